"""LogManager: all logs of one engine, in one or more log directories, from the start to a clean stop.

    start      lock directories · read meta.properties · remove markers · load logs in parallel · read uncleanable
               marks · start background tasks
    serve      get, create, delete, truncate, reconfigure; each log does its own appends and reads
    tasks      retention · flush · recovery points · log starts · high watermarks · deletion of renamed logs · cleaner ·
               spool
    shutdown   stop cleaner and tasks · flush and close logs in parallel · write checkpoints and markers · release locks
    create     choose the online directory with the fewest logs; refuse if the log may be in an offline directory
    delete     abort the cleaning · rename the folder to -delete · write checkpoints · remove the folder after
               log.segment.delete.delay.ms
    truncate   pause cleaning if the offset is below the active segment · lower the cleaner checkpoint · write recovery
               points
    config     if a topic is not compacted any more, abort its cleaning
    stray      if the metadata does not list the topic id, rename the folder to -stray and do not serve the log

Invariants: each log is in exactly one online directory.  A failed directory goes offline with its logs until the next
start, and nothing more is written to it.  The marker of a clean stop is written last, and only if every log of the
directory was closed without error.  In addition, every log must have been loaded, or the marker must have existed at
the start.  If a caller must do further work after an unclean stop, it passes `marks_unclean=False` to `shutdown`.  In
this case, a directory that had no marker at the start gets none.

The manager has three kinds of locks.  `_guard` covers the maps and is the innermost lock.  A thread that holds `_guard`
must not wait for a log or the cleaner, because a log takes `_guard` when it reports a disk failure under its own lock.
`_administration` is held while logs are created, deleted or truncated.  To avoid a long wait, a stop interrupts the
creation of logs after the log that is being created.  The `checkpoint_guard` of a directory is held while the
directory's offsets are collected and written, so that no checkpoint replaces a newer one.  A thread that holds this
lock may take the lock of a log.  If a disk hangs, the periodic checkpoints of all directories wait for this disk, as in
Kafka.  A client's changes in another directory do not wait.

Source: kafka-log 04 §11 to §14, 05 §1.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from sediment.engine.directory.spool import announce, withdraw
from sediment.engine.live.broker_config import BrokerConfig
from sediment.engine.live.future_log import copy_rest
from sediment.engine.live.log.partition_log import PartitionLog, ignore_change
from sediment.engine.live.log_cleaner import LogCleaner
from sediment.engine.live.log_dir_failure import LogDirFailureHandler
from sediment.engine.live.log_directory import LogDirectory, check_owners
from sediment.engine.live.open_files import open_files_limit, require_spare_descriptors
from sediment.engine.live.partition_folders import (
    folder_aside,
    make_future_folder,
    make_partition_folders,
    remove_folder,
)
from sediment.engine.live.scheduler import Clock, Scheduler
from sediment.engine.live.spool_committer import SpoolCommitter
from sediment.engine.live.topic_names import check_partition, check_topic, check_topic_id
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import (
    CommitStateUnknownError,
    CorruptCheckpointError,
    DirectoryInUseError,
    NotALogDirectoryError,
    OpenFilesLimitError,
    OwnershipError,
    SedimentError,
    StorageError,
    UsageError,
)
from sediment.segment_io.format.names import DirectoryState, TopicPartition, parse_partition_directory
from sediment.segment_io.fs import Fs, is_out_of_descriptors
from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints, PartitionCheckpoints, log_start_entries
from sediment.segment_io.partition.partition_directories import partition_of

_LOGGER = logging.getLogger(__name__)

IDLE_FILES_CHECK_INTERVAL_MS = 60_000
"""The interval at which files of unused segments are closed; Kafka keeps every `.log` open."""

_CLOCK = Clock()
_FS = Fs()


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The progress after a log was loaded: `loaded` of the `total` logs in its directory are loaded."""

    log_dir: Path
    name: str
    loaded: int
    total: int


@dataclass(frozen=True, slots=True)
class _ToLoad:
    """A partition directory to load."""

    directory: LogDirectory
    name: str
    partition: TopicPartition
    state: DirectoryState
    checkpoints: PartitionCheckpoints


@dataclass(frozen=True, slots=True)
class _Deleted:
    """A renamed folder that is waiting for its removal; `log` is None if the folder was not loaded."""

    log: PartitionLog | None
    folder: Path
    directory: LogDirectory
    since_ms: int


def _is_never_stray(_partition: TopicPartition, _topic_id: str | None) -> bool:
    return False


def _ignore_progress(_progress: LoadProgress) -> None:
    return None


class LogManager:
    """The logs of the directories `log_dirs`; `topic_config` returns the config of a topic."""

    def __init__(
        self,
        log_dirs: Sequence[Path],
        topic_config: Callable[[str], LogConfig],
        config: BrokerConfig | None = None,
        *,
        fs: Fs = _FS,
        clock: Clock = _CLOCK,
        is_stray: Callable[[TopicPartition, str | None], bool] = _is_never_stray,
        on_readable_change: Callable[[PartitionLog], None] = ignore_change,
        deletes: bool = True,
        left_out: Collection[Path] = (),
    ) -> None:
        """Create a manager; `is_stray(partition, topic id)` is True for a log that does not belong to this node.

        `on_readable_change` is called after the readable range of a log has changed, and after the log was closed.  The
        log's lock is not held during this call.  If `deletes` is False, nothing is deleted before `start_deleting` is
        called.  Even logs that were renamed to `-delete` before the start are kept until then.  The folders in
        `left_out`, which are absolute paths, are not loaded; `put_away` takes them out of use.
        """
        self.config = config or BrokerConfig()
        self.clock = clock
        self.fs = fs
        self._log_dirs = tuple(log_dirs)
        self._topic_config = topic_config
        self._overrides: dict[str, LogConfig] = {}
        self._is_stray = is_stray
        self._on_readable_change = on_readable_change
        self._deletes = deletes
        self._left_out = frozenset(left_out)
        self._guard = threading.RLock()
        self._administration = threading.RLock()
        self._directories: list[LogDirectory] = []
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._future: dict[TopicPartition, PartitionLog] = {}
        self._to_delete: dict[TopicPartition, PartitionLog] = {}
        self._listing_deleted: set[LogDirectory] = set()
        """Directories whose checkpoints may still list deleted logs."""
        self._deleted: deque[_Deleted] = deque()
        self._strays: list[Path] = []
        self._deletes_by_limits = False
        self._is_stopping = False
        self._is_stopped = False
        self._has_announced = False
        threads = self.config.background_threads
        self.scheduler = Scheduler(clock, threads=threads and threads + self.config.log_cleaner_threads)
        self._failures = LogDirFailureHandler(self._remove_logs, self.scheduler)
        self.cleaner = LogCleaner(self, self.config, fs, clock, self.scheduler)

    def __enter__(self) -> LogManager:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # ------------------------------------------------------------------------------------------------------------ start
    def start(
        self,
        *,
        progress: Callable[[LoadProgress], None] = _ignore_progress,
        stop: threading.Event | None = None,
    ) -> None:
        """Lock the directories, load their logs, and start the background tasks.

        If the start fails, the directories are released, and a directory that was stopped cleanly keeps its marker.
        `progress` is called from the loading threads.  After `stop` is set, no further log is loaded and no task
        starts; `shutdown` then leaves the directories unchanged.

        Raises:
            DirectoryInUseError: a broker, an engine or a run holds one of the directories.
            UsageError: a sub-directory is not named like a partition, or a partition exists twice.  Or the directories
                belong to several brokers, or to a broker other than the one in `BrokerConfig`; then nothing was
                written.
            CorruptDataError: a broker would refuse to load a log.
            StorageError: no directory is usable.
            OpenFilesLimitError: the limit on open files is too low.
        """
        stop = stop or threading.Event()
        try:
            self._open_directories()
            self._load_logs(progress, stop)
            self._check_not_halted()
            if not stop.is_set():
                self._schedule_tasks()
        except BaseException:
            self._stop(None, marks_unclean=False)
            raise

    def _open_directories(self) -> None:
        seen: dict[Path, Path] = {}
        for path in self._log_dirs:
            if seen.setdefault(path.resolve(), path) is not path:
                raise UsageError(f"the directory is the same as {seen[path.resolve()]}", path=str(path))
        self._check_owners_before_writing()
        for path in self._log_dirs:
            directory = LogDirectory(path, self.fs)
            self._directories.append(directory)
            try:
                directory.open()
            except DirectoryInUseError:
                raise
            except (OSError, OwnershipError, NotALogDirectoryError, CorruptCheckpointError) as error:
                if isinstance(error, OSError) and is_out_of_descriptors(error):
                    raise open_files_limit(error) from error
                self._failures.take_offline(directory, error)
        self._check_owners(self._live())
        self._name_owners()

    def _check_owners_before_writing(self) -> None:
        """Refuse directories of another node or cluster, before any directory is created or written to."""
        directories = [LogDirectory(path, self.fs) for path in self._log_dirs]
        for directory in directories:
            # A directory that cannot be read is reported when it is opened.
            with suppress(OSError, CorruptCheckpointError):
                directory.read_owner()
        self._check_owners(directories)

    def _check_owners(self, directories: Sequence[LogDirectory]) -> None:
        check_owners(directories, cluster_id=self.config.cluster_id, node_id=self.config.node_id)

    def _name_owners(self) -> None:
        """Write meta.properties into the directories that lack the file, if cluster and node are known."""
        named = [directory.meta for directory in self._live() if directory.meta is not None]
        cluster_id = self.config.cluster_id or next((meta.cluster_id for meta in named if meta.cluster_id), None)
        node_id = self.config.node_id
        if node_id is None:
            node_id = next((meta.node_id for meta in named if meta.node_id is not None), None)
        if cluster_id is None or node_id is None:
            return
        for directory in self._live():
            if directory.meta is None:
                with self._failures.failing(directory):
                    directory.name_owner(cluster_id, node_id)
        self._check_owners(self._live())

    def _load_logs(self, progress: Callable[[LoadProgress], None], stop: threading.Event) -> None:
        """Load the logs of each directory in its own threads (kafka-log 05 §1 steps 2 to 4)."""
        work = {directory: self._find_logs(directory) for directory in self._live()}
        pools = []
        try:
            jobs = {}
            for directory, found in work.items():
                pool = ThreadPoolExecutor(
                    self.config.num_recovery_threads_per_data_dir, thread_name_prefix=f"sediment-load-{directory}"
                )
                pools.append(pool)
                counted = _Counted(directory.path, len(found), progress)
                spare = max(self.config.num_recovery_threads_per_data_dir // max(len(found), 1), 1)
                jobs.update({pool.submit(self._load, item, counted, stop, spare): directory for item in found})
            for job in as_completed(jobs):
                with self._failures.failing(jobs[job]):
                    try:
                        job.result()
                    except CorruptCheckpointError as error:
                        # As in Kafka: a malformed line in a checkpoint file causes an IOException there.
                        self._failures.take_offline(jobs[job], error)
                    except StorageError as error:
                        # The log has already reported a disk failure; an error with another cause is not a disk
                        # failure.
                        if not isinstance(error.__cause__, OSError):
                            raise
        finally:
            for pool in pools:
                pool.shutdown(wait=True, cancel_futures=True)
        for directory in self._live():
            directory.is_loaded = not stop.is_set()
            with self._failures.failing(directory):
                self.cleaner.manager.checkpoints.remember_uncleanable(directory)

    def _find_logs(self, directory: LogDirectory) -> list[_ToLoad]:
        """Return the partition directories of a log directory; the marker of a clean stop is removed."""
        found: list[_ToLoad] = []
        try:
            with self._failures.failing(directory):
                state = directory.read_state()
                for entry in self.fs.scan(directory.path):
                    item = self._to_load(directory, entry.name, state) if entry.is_directory else None
                    if item is not None and item.state is DirectoryState.STRAY:
                        self._strays.append(directory.path / item.name)
                    elif item is not None:
                        found.append(item)
        except CorruptCheckpointError as error:
            self._failures.take_offline(directory, error)
        return [] if directory.is_offline else found

    def _to_load(self, directory: LogDirectory, name: str, state: LogDirCheckpoints) -> _ToLoad | None:
        try:
            found = partition_of(name)
        except UsageError as error:
            error.path = str(directory.path / name)
            raise
        if found is None or (found[1] is DirectoryState.DELETE and not self._deletes):
            return None
        if (directory.path / name).absolute() in self._left_out:
            directory.left_out.add(found[0])
            return None
        partition, what = found
        return _ToLoad(directory, name, partition, what, state.of(partition))

    def _load(self, item: _ToLoad, counted: _Counted, stop: threading.Event, threads: int) -> None:
        directory = item.directory
        if stop.is_set() or directory.is_offline:
            return
        path = directory.path / item.name
        log = self._open_log(
            item.partition,
            path,
            item.checkpoints,
            item.state,
            recovery_threads=threads,
            announces=item.state is not DirectoryState.FUTURE,
        )
        if item.state is DirectoryState.LIVE and self._is_stray(item.partition, log.topic_id):
            self._rename_aside([log], directory, DirectoryState.STRAY)
            log.close_handlers()
            self._strays.append(log.directory)
        elif item.state is DirectoryState.DELETE:
            self._deleted.append(_Deleted(log, path, directory, self.clock.now_ms()))
        else:
            logs = self._future if item.state is DirectoryState.FUTURE else self._logs
            with self._guard:
                # If the directory has failed by now, its logs are already closed.
                is_lost = directory.is_offline
                other = log if is_lost else logs.setdefault(item.partition, log)
            if is_lost:
                log.go_offline(f"its directory failed: {directory.failure}")
                log.close_handlers()
                return
            if other is not log:
                log.close_handlers()
                raise UsageError(
                    f"the partition is also in {other.directory}",
                    partition=str(item.partition),
                    path=str(directory.path / item.name),
                    advice="find the log to which the broker wrote last, and move the other log out of its directory",
                )
        for repair in log.loaded.repairs:
            _LOGGER.info("%s: %s", log.partition, repair)
        for damage in log.loaded.damage:
            _LOGGER.warning("%s: %s", log.partition, damage)
        counted.one_more(item.name)

    def _open_log(
        self,
        partition: TopicPartition,
        path: Path,
        checkpoints: PartitionCheckpoints,
        state: DirectoryState = DirectoryState.LIVE,
        topic_id: str | None = None,
        recovery_threads: int = 1,
        announces: bool = True,
    ) -> PartitionLog:
        return PartitionLog.open(
            partition,
            path,
            self._config_of(partition.topic),
            checkpoints,
            self.fs,
            clock=self.clock.now_ms,
            scheduler=self.scheduler,
            on_failure=self._log_failed,
            on_readable_change=self._on_readable_change if announces else ignore_change,
            state=state,
            topic_id=topic_id,
            recovery_threads=recovery_threads,
        )

    # ------------------------------------------------------------------------------------------------------------ tasks
    def _schedule_tasks(self) -> None:
        """Schedule the background tasks.  Source: kafka-log 04 §11."""
        config, delay_ms = self.config, self.config.log_initial_task_delay_ms
        if self._deletes:
            self.start_deleting()
        for name, task, period_ms in (
            ("kafka-log-flusher", self.flush_overdue, config.log_flush_scheduler_interval_ms),
            (
                "kafka-recovery-point-checkpoint",
                self.checkpoint_recovery_points,
                config.log_flush_offset_checkpoint_interval_ms,
            ),
            (
                "kafka-log-start-offset-checkpoint",
                self.checkpoint_log_starts,
                config.log_flush_start_offset_checkpoint_interval_ms,
            ),
        ):
            self.scheduler.schedule_periodically(name, task, period_ms=period_ms, delay_ms=delay_ms)
        self.scheduler.schedule_periodically(
            "highwatermark-checkpoint",
            self.checkpoint_high_watermarks,
            period_ms=config.replica_high_watermark_checkpoint_interval_ms,
        )
        expiration_ms = config.producer_id_expiration_check_interval_ms
        self.scheduler.schedule_periodically(
            "PeriodicProducerExpirationCheck",
            self.remove_expired_producers,
            period_ms=expiration_ms,
            delay_ms=expiration_ms,
        )
        self.scheduler.schedule_periodically(
            "close-idle-files", self.close_idle_files, period_ms=IDLE_FILES_CHECK_INTERVAL_MS
        )
        if config.hand_off is not None:
            announce(config.hand_off, [directory.path for directory in self._live()], self.fs)
            self._has_announced = True
            committer = SpoolCommitter(config.hand_off, self, self.fs)
            period_ms = config.log_cleaner_backoff_ms
            self.scheduler.schedule_periodically("hand-off", committer.commit_all, period_ms=period_ms)

    def start_deleting(self, *, by_limits: bool = True) -> None:
        """Remove folders of deleted logs in the background; if `by_limits`, also run retention and the cleaner."""
        config, delay_ms = self.config, self.config.log_initial_task_delay_ms
        self.scheduler.schedule_once("kafka-delete-logs", self._delete_logs, delay_ms=delay_ms)
        if not by_limits:
            return
        self._deletes_by_limits = True
        self.scheduler.schedule_periodically(
            "kafka-log-retention",
            self.delete_old_segments,
            period_ms=config.log_retention_check_interval_ms,
            delay_ms=delay_ms,
        )
        if config.log_cleaner_enable:
            self.cleaner.start()

    def stop_deleting_by_limits(self) -> None:
        """End retention after the current log, and cleanings at their next chunk; neither runs again."""
        self._deletes_by_limits = False
        self.cleaner.stop()

    def run_due(self) -> None:
        """Run due background tasks in this thread, if the manager has no background threads."""
        self.scheduler.run_due()

    def delete_old_segments(self) -> int:
        """Apply retention to the logs that are not compacted; return the number of deleted segments.

        An error in one log does not affect the others.

        Source: kafka-log 03 §1.
        """
        if not self._deletes_by_limits:
            return 0
        paused = self.cleaner.manager.pause_for_retention()
        try:
            return sum(map(self._delete_old_segments, paused))
        finally:
            self.cleaner.manager.resume(log.partition for log in paused)

    def _delete_old_segments(self, log: PartitionLog) -> int:
        if not self._deletes_by_limits or self._is_stopping:
            return 0
        try:
            return self._attempt(log, log.delete_old_segments) or 0
        except SedimentError as error:
            _LOGGER.error("retention of %s failed: %s", log.partition, error)
            return 0

    def flush_overdue(self) -> None:
        """Flush the logs whose last flush is at least `flush.ms` ago."""
        now_ms = self.clock.now_ms()
        for log in self.all_logs():
            if now_ms - log.last_flush_ms >= log.config.flush_ms:
                self._attempt(log, log.flush)

    def remove_expired_producers(self) -> None:
        """Remove expired producers from every log."""
        for log in self.all_logs():
            self._attempt(log, log.remove_expired_producers)

    def checkpoint_recovery_points(self) -> None:
        """Write the recovery points of every directory."""
        self._checkpoint(LogDirectory.write_recovery_points, _recovery_points)

    def checkpoint_log_starts(self, log_dirs: Collection[Path] | None = None) -> frozenset[Path]:
        """Write the log start offsets of the logs that do not start at the base of their first segment (LM-06).

        Return the directories in which these offsets could not be written.  If `log_dirs` is None, write them in every
        directory.
        """
        wanted = [each for each in self._directories if log_dirs is None or each.path in log_dirs]
        return self._checkpoint(LogDirectory.write_log_starts, _log_starts, wanted)

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks of every directory."""
        self._checkpoint(LogDirectory.write_high_watermarks, _high_watermarks)

    def checkpoint_all(self) -> None:
        """Write all checkpoints of offsets."""
        self._checkpoint_all(self.directories())

    def _checkpoint_all(self, directories: Collection[LogDirectory]) -> frozenset[Path]:
        return (
            self._checkpoint(LogDirectory.write_recovery_points, _recovery_points, directories)
            | self._checkpoint(LogDirectory.write_log_starts, _log_starts, directories)
            | self._checkpoint(LogDirectory.write_high_watermarks, _high_watermarks, directories)
        )

    def _checkpoint(
        self,
        write: Callable[[LogDirectory, Mapping[TopicPartition, int]], None],
        offsets: Callable[[Iterable[PartitionLog]], Mapping[TopicPartition, int]],
        directories: Iterable[LogDirectory] | None = None,
    ) -> frozenset[Path]:
        """Write a checkpoint in each directory; return the directories in which it could not be written."""
        failed = set()
        for directory in self._directories if directories is None else directories:
            try:
                with directory.checkpoint_guard, self._failures.failing(directory):
                    write(directory, offsets(self._logs_in(directory)))
            except OpenFilesLimitError as error:
                failed.add(directory.path)
                _LOGGER.error("a checkpoint of %s was not written: %s", directory, error)
            if directory.is_offline:
                failed.add(directory.path)
        return frozenset(failed)

    def close_idle_files(self) -> None:
        """Close the files of segments that have not been used since the last call."""
        for logs in (self._logs, self._future):
            for log in self._values(logs):
                log.close_idle_files()

    def _delete_logs(self) -> None:
        """Remove the renamed logs after their delay; an error in one log does not affect the others.

        First try again to complete earlier deletions that failed.
        """
        delay_ms = self.config.log_segment_delete_delay_ms
        if self._to_delete or self._listing_deleted:
            try:
                with self._administration:
                    self._rename_deleted()
            except SedimentError as error:
                _LOGGER.error("%s", error)
        while self._deleted and self.clock.now_ms() - self._deleted[0].since_ms >= delay_ms:
            self._remove(self._deleted.popleft())
        wait_ms = max(delay_ms, 1)
        if self._deleted:
            wait_ms = max(self._deleted[0].since_ms + delay_ms - self.clock.now_ms(), 1)
        self.scheduler.schedule_once("kafka-delete-logs", self._delete_logs, delay_ms=wait_ms)

    def _remove(self, deleted: _Deleted) -> None:
        if deleted.directory.is_offline:
            if deleted.log is not None:
                deleted.log.close_handlers()
        elif deleted.log is not None:
            self._attempt(deleted.log, deleted.log.delete)
        else:
            try:
                remove_folder(deleted.folder, self.fs)
            except OSError as error:
                _LOGGER.error("the folder of a deleted topic could not be removed: %s", error)

    def _attempt(self, log: PartitionLog, action: Callable[[], int | None]) -> int | None:
        """Call `action` on a log whose disk may fail; the log itself reports a failure."""
        try:
            return action()
        except StorageError as error:
            _LOGGER.error("%s: %s", log.partition, error)
        except SedimentError as error:
            if not log.is_closed:
                raise
            _LOGGER.info("%s: %s", log.partition, error)
        return None

    # ------------------------------------------------------------------------------------------------------------- logs
    def get_log(self, partition: TopicPartition) -> PartitionLog | None:
        """Return the live log of a partition; None if there is none, or if its directory is offline."""
        with self._guard:
            return self._logs.get(partition)

    def get_future_log(self, partition: TopicPartition) -> PartitionLog | None:
        """Return the future log of a partition, which will replace the live one; None if there is none."""
        with self._guard:
            return self._future.get(partition)

    def future_logs(self) -> list[PartitionLog]:
        """Return the future logs."""
        return self._values(self._future)

    def all_logs(self) -> list[PartitionLog]:
        """Return the live logs, sorted by partition."""
        return sorted(self._values(self._logs), key=lambda log: log.partition)

    def directories(self) -> list[LogDirectory]:
        """Return all directories, online and offline, in the order of `log_dirs`."""
        return list(self._directories)

    def strays(self) -> list[Path]:
        """Return the directories of stray logs, which are not served."""
        return list(self._strays)

    def directory_of(self, log: PartitionLog) -> LogDirectory:
        """Return the log directory of a log.

        Raises:
            UsageError: the log does not belong to this engine.
        """
        for directory in self._directories:
            if directory.path == log.directory.parent:
                return directory
        raise UsageError("this is not a log of the engine", partition=str(log.partition), path=str(log.directory))

    def create_log(
        self,
        partition: TopicPartition,
        *,
        is_new: bool = True,
        log_dir: Path | None = None,
        topic_id: str | None = None,
    ) -> PartitionLog:
        """Return the log of a partition; if it is missing, create it in `log_dir` or where the fewest logs are.

        If `is_new` is False and a directory is offline, no log is created, because it may already exist in that
        directory.

        Raises:
            StorageError: the log may be in an offline directory, no directory accepts it, the deleted log of this name
                could not be renamed, or the manager stops.
            UsageError: Kafka does not allow the topic, partition or topic id, or `log_dir` does not belong to this
                engine.

        Source: kafka-log 04 §12.
        """
        check_partition(partition)
        if topic_id is not None:
            check_topic_id(topic_id)
        with self._administration:
            self._check_not_stopping()
            existing = self.get_log(partition)
            if existing is not None:
                return existing
            self._check_deleted([partition])
            offline = [directory for directory in self._directories if directory.is_offline]
            if not is_new and offline:
                raise StorageError(
                    f"the log may be in an offline directory: {offline[0].failure}",
                    partition=str(partition),
                    path=str(offline[0]),
                    advice="repair the directory and start the engine again",
                )
            require_spare_descriptors(self.fs)
            for directory in self._candidates(log_dir):
                self._create_in(directory, {partition: topic_id})
                created = self.get_log(partition)
                if created is not None:
                    return created
            raise StorageError(
                "no log directory accepts a new log", partition=str(partition), advice="repair a log directory"
            )

    def check_ready(self, new: Iterable[TopicPartition] = ()) -> None:
        """Check that logs can be deleted, and that the logs `new` can be created.

        If a caller first makes a change durable elsewhere, it must call this method before that change.  Deletions that
        failed are tried again.

        Raises:
            OpenFilesLimitError: the limit on open files is too low.
            StorageError: a folder, such as that of a deleted topic, has the name of a new log; the checkpoints may list
                deleted logs; or the manager stops.
        """
        with self._administration:
            self._check_not_stopping()
            require_spare_descriptors(self.fs)
            partitions = tuple(new)
            self._check_deleted(partitions)
            for directory in self._live():
                with self._failures.failing(directory):
                    self._check_free(directory, partitions)

    def _check_not_stopping(self) -> None:
        """Check that the manager is not stopping; a stop waits for the change in progress."""
        if self._is_stopping:
            raise _stopped()

    def _check_not_stopped(self) -> None:
        """Check that the locks of the directories are held."""
        if self._is_stopped:
            raise _stopped()

    def _check_free(self, directory: LogDirectory, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            if self.fs.exists(directory.path / str(partition)):
                raise StorageError(
                    "a folder that is not in use has the name of the new partition",
                    partition=str(partition),
                    path=str(directory),
                    advice="move the folder out of the log directory",
                )

    def _check_deleted(self, partitions: Iterable[TopicPartition]) -> None:
        """Try again to complete all deletions, and check that earlier logs of `partitions` are completely deleted."""
        if self._to_delete or self._listing_deleted:
            with suppress(StorageError):
                self._rename_deleted()
        for directory in self._listing_deleted:
            raise _still_listed(directory)
        for partition in partitions:
            log = self._to_delete.get(partition)
            if log is not None:
                raise _not_deleted(log)

    def create_logs(self, topic_ids: Mapping[TopicPartition, str], log_dirs: Mapping[TopicPartition, Path]) -> None:
        """Create the missing logs of partitions, each in its directory in `log_dirs`; sync all of them together.

        Their recovery points are written to the checkpoint, so that a checkpoint lists every log that was created
        completely.  If a directory fails, it goes offline, and its logs are missing.  If the limit on open files is too
        low, or if the manager stops, new folders without a log are renamed to free their names.

        Raises:
            OpenFilesLimitError: the limit on open files is too low; the logs of some partitions may be missing.
            StorageError: the log of a partition has another topic id, or its deleted log could not be renamed; nothing
                changed.  Or the manager stops; the logs of some partitions may be missing.
            UsageError: see `create_log`; nothing changed.
        """
        for partition, topic_id in topic_ids.items():
            check_partition(partition)
            check_topic_id(topic_id)
        with self._administration:
            self._check_not_stopping()
            existing = {partition: log for partition in topic_ids if (log := self.get_log(partition)) is not None}
            for partition, log in existing.items():
                if log.topic_id != topic_ids[partition]:
                    raise _not_deleted(log)
            self._check_deleted(topic_ids)
            missing = [partition for partition in topic_ids if partition not in existing]
            by_directory: dict[LogDirectory, dict[TopicPartition, str | None]] = {}
            for partition in missing:
                for directory in self._candidates(log_dirs[partition]):
                    by_directory.setdefault(directory, {})[partition] = topic_ids[partition]
            try:
                for directory, found in by_directory.items():
                    self._create_in(directory, found)
            finally:
                self._checkpoint(LogDirectory.write_recovery_points, _recovery_points, by_directory)

    def _create_in(self, directory: LogDirectory, topic_ids: Mapping[TopicPartition, str | None]) -> None:
        """Create logs in a directory; if the directory fails, take it offline.

        Raises:
            OpenFilesLimitError: the limit on open files is too low.
            StorageError: the manager stops.
        """
        new: list[TopicPartition] = []
        try:
            with self._failures.failing(directory):
                new += (partition for partition in topic_ids if not self.fs.exists(directory.path / str(partition)))
                made = make_partition_folders(directory.path, topic_ids, self.fs, before_each=self._check_not_stopping)
                for partition, topic_id in topic_ids.items():
                    self._check_not_stopping()
                    require_spare_descriptors(self.fs)
                    path = directory.path / str(partition)
                    # The empty segment of a new folder needs no recovery.
                    checkpoints = PartitionCheckpoints(clean_shutdown=partition in made)
                    log = self._open_log(partition, path, checkpoints, topic_id=topic_id)
                    with self._guard:
                        if not directory.is_offline:
                            self._logs[partition] = log
        finally:
            if not directory.is_offline:
                with self._failures.failing(directory):
                    self._free_names(directory, new)

    def _free_names(self, directory: LogDirectory, new: Iterable[TopicPartition]) -> None:
        """Rename new folders that have no log to -delete, and remove them later; this opens no file.

        The renames are not synced.  If a crash undoes a rename, the folder has its old name again.  But the folder is
        complete and contains its topic id.
        """
        for partition in new:
            folder = directory.path / str(partition)
            if self.get_log(partition) is None and self.fs.exists(folder):
                self._delete_folder(directory, folder, partition)

    def _delete_folder(self, directory: LogDirectory, folder: Path, partition: TopicPartition) -> None:
        """Rename an unused folder to -delete and remove it later; the rename is not synced, and no file is opened."""
        aside = folder.with_name(folder_aside(partition, DirectoryState.DELETE))
        self.fs.rename(folder, aside)
        self._deleted.append(_Deleted(None, aside, directory, self.clock.now_ms()))

    def _candidates(self, log_dir: Path | None) -> list[LogDirectory]:
        if log_dir is None:
            with self._guard:
                parents = [log.directory.parent for log in (*self._logs.values(), *self._future.values())]
            return sorted(self._live(), key=lambda directory: parents.count(directory.path))
        chosen = [directory for directory in self._directories if directory.path == log_dir]
        if not chosen:
            raise UsageError("this is not a log directory of the engine", path=str(log_dir))
        return [directory for directory in chosen if not directory.is_offline]

    def delete_log(self, partition: TopicPartition) -> None:
        """Delete a log: rename its directory now, and remove it after `log.segment.delete.delay.ms`.

        Raises:
            StorageError: the log does not exist, and a directory is offline.
            UsageError: the log does not exist, or Kafka does not allow the topic or partition.

        Source: kafka-log 04 §13.
        """
        check_partition(partition)
        with self._administration:
            if self.get_log(partition) is None:
                kind = StorageError if any(directory.is_offline for directory in self._directories) else UsageError
                raise kind("the log does not exist", partition=str(partition))
            require_spare_descriptors(self.fs)
            self.delete_logs([partition])

    def delete_logs(self, partitions: Iterable[TopicPartition]) -> None:
        """Delete logs as `delete_log` does, but sync all of them together; skip a log that does not exist.

        If a topic has no more logs, the config from `update_topic_config` is dropped.  If a folder cannot be renamed,
        or a checkpoint cannot be written, the next change and a background task try again.

        Raises:
            OpenFilesLimitError: the limit on open files is too low; some logs are not renamed yet.
            StorageError: the checkpoints may still list the logs; or the manager was shut down.
        """
        with self._administration:
            self._check_not_stopped()
            wanted = frozenset(partitions)
            with self._guard:
                found = [partition for partition in wanted if partition in self._logs]
                self._to_delete |= {partition: self._logs.pop(partition) for partition in found}
                left = {partition.topic for partition in self._logs}
            for topic in {partition.topic for partition in wanted} - left:
                self._overrides.pop(topic, None)
            for partition in found:
                self.cleaner.manager.abort(partition)
            for partition in wanted:
                with suppress(StorageError):  # its directory is offline
                    self._delete_future_log(partition)
            self._rename_deleted()

    # ------------------------------------------------------------------------------------------------------ future logs
    def create_future_log(self, partition: TopicPartition, log_dir: Path) -> PartitionLog:
        """Return the future log of a partition; create it in `log_dir` if there is none.

        Raises:
            OpenFilesLimitError: the limit on open files is too low.
            StorageError: the partition has no log, or a log directory is offline, or the manager stops.
            UsageError: `log_dir` does not belong to this engine, or contains the log of the partition.

        Source: Kafka's Partition.maybeCreateFutureReplica, LogManager.getOrCreateLog.
        """
        with self._administration:
            self._check_not_stopping()
            existing = self.get_future_log(partition)
            if existing is not None:
                return existing
            current = self.get_log(partition)
            if current is None or any(directory.is_offline for directory in self._directories):
                raise StorageError("a log directory is offline", partition=str(partition), path=str(log_dir))
            (directory,) = self._candidates(log_dir)
            if self.directory_of(current) is directory:
                raise UsageError("the log is in this directory", partition=str(partition), path=str(log_dir))
            require_spare_descriptors(self.fs)
            with self._failures.failing(directory):
                folder = make_future_folder(directory.path, partition, current.topic_id, self.fs)
                clean = PartitionCheckpoints(clean_shutdown=True)
                log = self._open_log(partition, folder, clean, DirectoryState.FUTURE, announces=False)
                with self._guard:
                    if not directory.is_offline:
                        self._future[partition] = log
                        return log
            raise StorageError("the log directory failed", partition=str(partition), path=str(log_dir))

    def delete_future_log(self, partition: TopicPartition) -> None:
        """Delete the future log of a partition, if there is one; its folder is removed later.

        Raises:
            StorageError: the disk of the future log failed.
        """
        with self._administration:
            self._delete_future_log(partition)

    def _delete_future_log(self, partition: TopicPartition) -> None:
        with self._guard:
            log = self._future.pop(partition, None)
        if log is not None:
            directory = self.directory_of(log)
            try:
                self._deleted.append(self._retire(log, directory))
            finally:
                log.close_handlers()
            self._checkpoint_all([directory])

    def _retire(self, log: PartitionLog, directory: LogDirectory) -> _Deleted:
        """Rename the folder of a log to -delete, durably; the log refuses every further call.

        Raises:
            StorageError: the disk failed.
        """
        log.go_offline("the partition was moved, or its move was cancelled")
        aside = log.directory.with_name(folder_aside(log.partition, DirectoryState.DELETE))
        with self._failures.failing(directory):
            self.fs.rename(log.directory, aside)
            self.fs.sync_directory(directory.path)
        _check_online(directory)
        return _Deleted(None, aside, directory, self.clock.now_ms())

    def replace_current_with_future_log(
        self,
        partition: TopicPartition,
        assign: Callable[[LogDirectory], None],
        on_replaced: Callable[[PartitionLog], None],
    ) -> bool:
        """Replace the log of a partition with its future log; return False if one of the two is missing.

        Call this when the future log has nearly all records: the lock of the log is held while the remaining records
        are copied.

            1. copy the remaining records and flush them; write the checkpoints of the future log's directory
            2. call `assign(directory)`, which durably makes this directory the partition's
            3. rename the folder of the log to -delete
            4. rename the folder of the future log, which then becomes the log of the partition
            5. call `on_replaced` with this log

        After a crash before step 2, the old log is valid.  After a later crash, the future log is valid and has the
        same records.  If the outcome of step 2 is unknown, the future log is deleted, and the old log stays valid.

        Raises:
            CommitStateUnknownError: raised by `assign`; the future log was deleted.
            SedimentError: raised by `assign`, and nothing changed; or see `future_log.copy_next`.
            StorageError: a disk failed; after step 2, the partition is offline until the next start.

        Source: Kafka's Partition.maybeReplaceCurrentWithFutureReplica, LogManager.replaceCurrentWithFutureLog.
        """
        with self._administration:
            self._check_not_stopping()
            current, future = self.get_log(partition), self.get_future_log(partition)
            if current is None or future is None:
                return False
            source, target = self.directory_of(current), self.directory_of(future)
            require_spare_descriptors(self.fs)
            future.flush()
            # No batch may be appended between the last copy and the switch.
            with target.checkpoint_guard, current.lock:
                copy_rest(current, future)
                end_offset = future.log_end_offset
                future.store_state_of(current)
                future.flush(force_last_segment=True)
                self._write_checkpoints(target)
                self._assign(future, target, assign)
                future.use_producers_of(current)
                self._switch(current, future)
                on_replaced(future)
            # All copied records are on disk.
            future.maybe_increment_high_watermark(end_offset)
            future.announce_to(self._on_readable_change)
            current.close_handlers()
            self._after_switch(partition, source, target)
            return True

    def _write_checkpoints(self, directory: LogDirectory) -> None:
        """Write the offsets of a directory; the caller holds its `checkpoint_guard`.

        Raises:
            StorageError: the disk failed.
        """
        logs = self._logs_in(directory)
        with self._failures.failing(directory):
            directory.write_recovery_points(_recovery_points(logs))
            directory.write_log_starts(_log_starts(logs))
            directory.write_high_watermarks(_high_watermarks(logs))
        _check_online(directory)

    def _assign(self, future: PartitionLog, target: LogDirectory, assign: Callable[[LogDirectory], None]) -> None:
        try:
            assign(target)
        except SedimentError as error:
            if isinstance(error, CommitStateUnknownError) or isinstance(error.__cause__, CommitStateUnknownError):
                with self._guard:
                    self._future.pop(future.partition, None)
                self._deleted.append(self._retire(future, target))
                future.close_handlers()
            raise

    def _switch(self, current: PartitionLog | None, future: PartitionLog) -> None:
        """Rename the folders, and use the future log; `current` is None if its folder was already renamed.

        If this fails, the partition is offline: the folder in the directory that the metadata names is not in use.

        Raises:
            StorageError: a disk failed.
        """
        partition, target = future.partition, self.directory_of(future)
        deleted = None
        try:
            if current is not None:
                deleted = self._retire(current, self.directory_of(current))
            with self._failures.failing(target):
                future.rename_directory(target.path / str(partition))
                self.fs.sync_directory(target.path)
            _check_online(target)
        except SedimentError:
            with self._guard:
                self._logs.pop(partition, None)
            raise
        with self._guard:
            self._future.pop(partition, None)
            self._logs[partition] = future
        if deleted is not None:
            self._deleted.append(deleted)

    def _after_switch(self, partition: TopicPartition, source: LogDirectory, target: LogDirectory) -> None:
        first_dirty = source.first_dirty_offsets().get(partition)
        checkpoints = self.cleaner.manager.checkpoints
        if first_dirty is not None:
            with self._failures.failing(target):
                checkpoints.update(target, partition, first_dirty)
        with self._failures.failing(source):
            checkpoints.forget(source, [partition])
        self._checkpoint_all([source, target])

    def promote_future_logs(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Replace logs with their future logs, after a crash in step 3 or 4 of a replacement; return the partitions.

        A log with a higher end than its future log is not replaced.

        Raises:
            StorageError: a disk failed.

        Source: Kafka's LogManager.recoverAbandonedFutureLogs.
        """
        promoted = set()
        with self._administration:
            for partition in partitions:
                current, future = self.get_log(partition), self.get_future_log(partition)
                if future is None or (current is not None and current.log_end_offset > future.log_end_offset):
                    continue
                future.flush(force_last_segment=True)
                self._switch(current, future)
                future.announce_to(self._on_readable_change)
                promoted.add(partition)
                if current is not None:
                    current.close_handlers()
                    self._after_switch(partition, self.directory_of(current), self.directory_of(future))
        return frozenset(promoted)

    def _rename_deleted(self) -> None:
        """Rename the folders of the logs to delete, durably, and then remove the logs from the checkpoints.

        Raises:
            OpenFilesLimitError, StorageError: see `delete_logs`.
        """
        by_directory: dict[LogDirectory, list[PartitionLog]] = {}
        for log in self._values(self._to_delete):
            by_directory.setdefault(self.directory_of(log), []).append(log)
        failure: SedimentError | None = None
        for directory, logs in by_directory.items():
            try:
                with self._failures.failing(directory):
                    self._delete_in(directory, logs)
            except SedimentError as error:
                failure = error
        changed = self._listing_deleted | by_directory.keys()
        failed = self._checkpoint_all(changed)
        self._listing_deleted = {each for each in changed if each.path in failed and not each.is_offline}
        for directory in self._listing_deleted:
            failure = failure or _still_listed(directory)
        if failure is not None:
            raise failure

    def _delete_in(self, directory: LogDirectory, logs: Sequence[PartitionLog]) -> None:
        self.cleaner.manager.checkpoints.forget(directory, [log.partition for log in logs])
        usable: list[PartitionLog] = []
        for log in logs:
            if not log.is_offline:
                usable.append(log)
            elif self.fs.exists(log.directory):
                # A change of this log was interrupted; its folder can be renamed without the log.
                log.close_handlers()
                self._delete_folder(directory, log.directory, log.partition)
        self._rename_aside(usable, directory, DirectoryState.DELETE)
        with self._guard:
            for log in logs:
                self._to_delete.pop(log.partition, None)
        now_ms = self.clock.now_ms()
        self._deleted += [_Deleted(log, log.directory, directory, now_ms) for log in usable]

    def _rename_aside(self, logs: Iterable[PartitionLog], directory: LogDirectory, state: DirectoryState) -> None:
        """Rename the folders of logs, durably; if a folder is already renamed, only the directory is synced."""
        for log in logs:
            if log.directory.name == str(log.partition):
                log.rename_directory(directory.path / folder_aside(log.partition, state))
        self.fs.sync_directory(directory.path)

    def put_away(self, folders: Iterable[Path]) -> None:
        """Take unloaded folders out of use: remove those of deleted and future logs, and rename the others to -stray.

        A folder of a deleted or future log is removed after `log.segment.delete.delay.ms`; a stray folder is never
        removed.  If a directory fails, it goes offline, and so do its folders.

        Raises:
            OpenFilesLimitError: the limit on open files is too low; some folders are not renamed.
        """
        with self._administration:
            by_path = {directory.path.absolute(): directory for directory in self._directories}
            by_directory: dict[LogDirectory, list[Path]] = {}
            for folder in folders:
                by_directory.setdefault(by_path[folder.parent], []).append(folder)
            for directory, found in by_directory.items():
                with self._failures.failing(directory):
                    self._put_away_in(directory, found)
            self._checkpoint_all(by_directory.keys())

    def _put_away_in(self, directory: LogDirectory, folders: Iterable[Path]) -> None:
        require_spare_descriptors(self.fs)
        renamed = []
        for folder in folders:
            partition, state = parse_partition_directory(folder.name)
            if state is DirectoryState.DELETE:
                self._deleted.append(_Deleted(None, folder, directory, self.clock.now_ms()))
                continue
            if state is DirectoryState.FUTURE:
                self._delete_folder(directory, folder, partition)
                directory.left_out.discard(partition)
                continue
            renamed.append(partition)
            stray = folder.with_name(folder_aside(partition, DirectoryState.STRAY))
            self.fs.rename(folder, stray)
            self._strays.append(stray)
        self.fs.sync_directory(directory.path)
        directory.left_out.difference_update(renamed)
        self.cleaner.manager.checkpoints.forget(directory, renamed)

    def truncate_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Truncate logs to the given offsets, and write the recovery points of their directories.

        Source: kafka-log 04 §10.
        """
        with self._administration:
            for log, offset in self._present(offsets):
                with log.lock:
                    # No append may roll the log before the truncation; otherwise the truncation could reach segments
                    # that are being cleaned.
                    if offset >= log.active_base_offset:
                        self._attempt(log, partial(log.truncate_to, offset))
                        continue
                with self._paused(log.partition):
                    if self._attempt(log, partial(log.truncate_to, offset)):
                        with self._failures.failing(self.directory_of(log)):
                            self.cleaner.manager.checkpoints.truncate(log, log.active_base_offset)
            self._checkpoint_directories_of(offsets)

    def truncate_fully_and_start_at(self, partition: TopicPartition, offset: int) -> None:
        """Empty a log, continue it at `offset`, and write recovery points as `truncate_to` does."""
        with self._administration:
            for log, _ in self._present({partition: offset}):
                with self._paused(partition):
                    self._attempt(log, partial(log.truncate_fully_and_start_at, offset))
                    with self._failures.failing(self.directory_of(log)):
                        self.cleaner.manager.checkpoints.truncate(log, log.active_base_offset)
            self._checkpoint_directories_of([partition])

    def _present(self, offsets: Mapping[TopicPartition, int]) -> list[tuple[PartitionLog, int]]:
        with self._guard:
            return [(self._logs[partition], offset) for partition, offset in offsets.items() if partition in self._logs]

    def _checkpoint_directories_of(self, partitions: Iterable[TopicPartition]) -> None:
        logs = [log for partition in partitions if (log := self.get_log(partition)) is not None]
        touched = {directory.path: directory for directory in map(self.directory_of, logs)}
        self._checkpoint(LogDirectory.write_recovery_points, _recovery_points, touched.values())

    @contextmanager
    def _paused(self, partition: TopicPartition) -> Iterator[None]:
        self.cleaner.manager.abort_and_pause(partition)
        try:
            yield
        finally:
            self.cleaner.manager.resume([partition])

    # ----------------------------------------------------------------------------------------------------------- config
    def update_topic_config(self, topic: str, config: LogConfig) -> None:
        """Change a topic's config; see `update_topic_configs`."""
        self.update_topic_configs({topic: config})

    def update_topic_configs(self, configs: Mapping[str, LogConfig]) -> None:
        """Change the configs of topics, for their existing logs and for logs that are created later.

        If a new config ends compaction of a topic, a cleaning of its logs is aborted (LM-12).

        Raises:
            UsageError: Kafka does not allow a topic of this name.
        """
        for topic in configs:
            check_topic(topic)
        self._overrides.update(configs)
        for log in (*self.all_logs(), *self.future_logs()):
            config = configs.get(log.partition.topic)
            if config is not None:
                was_compacted = log.config.compacts
                log.update_config(config)
                if was_compacted and not config.compacts:
                    self.cleaner.manager.abort(log.partition)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Change the dynamic keys of the cleaner, and the delay after which deleted logs are removed."""
        self.config = config
        self.cleaner.reconfigure(config)

    def _config_of(self, topic: str) -> LogConfig:
        return self._overrides.get(topic) or self._topic_config(topic)

    # ---------------------------------------------------------------------------------------------------------- failure
    def handle_directory_failure(self, directory: LogDirectory, error: OSError) -> None:
        """Take a directory and its logs offline; the other directories continue."""
        self._failures.report(directory, error)

    def _log_failed(self, log: PartitionLog, error: OSError) -> None:
        self._failures.take_offline(self.directory_of(log), error)

    def _remove_logs(self, directory: LogDirectory, failure: str) -> list[PartitionLog] | None:
        with self._guard:
            if directory.failure is not None:
                return None
            directory.failure = failure
            lost = self._logs_in(directory)
            for logs in (self._logs, self._future, self._to_delete):
                for partition in [partition for partition, log in logs.items() if _is_in(log, directory)]:
                    del logs[partition]
        deleted = [each.log for each in self._deleted.copy() if each.directory is directory]
        return lost + [log for log in deleted if log is not None]

    def is_halted(self) -> bool:
        """Return True if every directory is offline; then no log can be used."""
        return all(directory.is_offline for directory in self._directories)

    def _check_not_halted(self) -> None:
        if not self.is_halted():
            return
        reasons = "; ".join(f"{directory}: {directory.failure}" for directory in self._directories)
        raise StorageError(f"no log directory is usable: {reasons}", advice="repair one of them and start again")

    # --------------------------------------------------------------------------------------------------------- shutdown
    def shutdown(self, broker_epoch: int | None = -1, *, marks_unclean: bool = True) -> None:
        """Stop cleanly: every append is durable and the next start needs no recovery.

        A directory in which a log cannot be closed gets no marker of a clean stop; the other directories get one.  The
        marker contains `broker_epoch`; if that is None, it contains the epoch from the marker at the start.  If
        `marks_unclean` is False, a directory that had no marker at the start gets none.  A second call does nothing.

        Source: kafka-log 04 §14.
        """
        self._stop(broker_epoch, marks_unclean=marks_unclean)

    def _stop(self, broker_epoch: int | None, *, marks_unclean: bool = True) -> None:
        self._is_stopping = True
        with self._administration:
            if self._is_stopped:
                return
            self._is_stopped = True
        self.cleaner.stop()
        self.scheduler.close()
        self.cleaner.close()
        if self.config.hand_off is not None and self._has_announced:
            try:
                withdraw(self.config.hand_off, self.fs)
            except OSError as error:
                _LOGGER.error("jobs can still leave segments in %s: %s", self.config.hand_off, error)
        with self._administration:
            live = self._live()
            with ThreadPoolExecutor(max(len(live), 1), thread_name_prefix="sediment-close") as pool:
                for _ in pool.map(partial(self._close_directory, broker_epoch, marks_unclean), live):
                    pass
            for deleted in self._deleted:
                if deleted.log is not None:
                    deleted.log.close_handlers()
            with self._guard:
                lost = [*self._logs.values(), *self._future.values(), *self._to_delete.values()]
                self._logs, self._future, self._to_delete = {}, {}, {}
            for log in lost:
                if not log.is_closed:
                    log.close_handlers()
            for directory in self._directories:
                directory.release()

    def _close_directory(self, broker_epoch: int | None, marks_unclean: bool, directory: LogDirectory) -> None:
        logs = self._logs_in(directory)
        threads = self.config.num_recovery_threads_per_data_dir
        with ThreadPoolExecutor(threads, thread_name_prefix=f"sediment-close-{directory}") as pool:
            closed = list(pool.map(self._close_log, logs))
        if not all(closed) or directory.is_offline:
            return
        try:
            with self._failures.failing(directory):
                directory.write_recovery_points(_recovery_points(logs))
                directory.write_log_starts(_log_starts(logs))
                directory.write_high_watermarks(_high_watermarks(logs))
                if (directory.is_loaded and marks_unclean) or directory.clean_shutdown is not None:
                    directory.write_clean_shutdown(broker_epoch)
        except OpenFilesLimitError as error:
            _LOGGER.error("%s was not stopped cleanly: %s", directory, error)

    def _close_log(self, log: PartitionLog) -> bool:
        try:
            log.flush(force_last_segment=True)
            log.close()
        except (SedimentError, OSError) as error:
            _LOGGER.error("%s could not be closed: %s", log.partition, error)
            return False
        return True

    # ------------------------------------------------------------------------------------------------------------- maps
    def _live(self) -> list[LogDirectory]:
        return [directory for directory in self._directories if not directory.is_offline]

    def _values(self, logs: Mapping[TopicPartition, PartitionLog]) -> list[PartitionLog]:
        with self._guard:
            return list(logs.values())

    def _logs_in(self, directory: LogDirectory) -> list[PartitionLog]:
        with self._guard:
            every = (*self._logs.values(), *self._future.values(), *self._to_delete.values())
        return [log for log in every if _is_in(log, directory)]


class _Counted:
    """A thread-safe counter of the loaded logs of one directory."""

    def __init__(self, log_dir: Path, total: int, progress: Callable[[LoadProgress], None]) -> None:
        self._log_dir = log_dir
        self._total = total
        self._progress = progress
        self._loaded = 0
        self._guard = threading.Lock()

    def one_more(self, name: str) -> None:
        with self._guard:
            self._loaded += 1
            self._progress(LoadProgress(self._log_dir, name, self._loaded, self._total))


def _stopped() -> StorageError:
    return StorageError("the engine stops, or was stopped", advice="start it again")


def _check_online(directory: LogDirectory) -> None:
    if directory.is_offline:
        raise StorageError(f"the log directory failed: {directory.failure}", path=str(directory))


def _still_listed(directory: LogDirectory) -> StorageError:
    return StorageError(
        "checkpoints could not be written, so they may list logs of deleted topics",
        path=str(directory),
        advice="try again later; if the process has reached its limit on open files, raise ulimit -n",
    )


def _not_deleted(log: PartitionLog) -> StorageError:
    return StorageError(
        "the log of a deleted topic with this name could not be renamed",
        partition=str(log.partition),
        path=str(log.directory),
        advice="try again later; the next start renames it",
    )


def _is_in(log: PartitionLog, directory: LogDirectory) -> bool:
    return log.directory.parent == directory.path


def _recovery_points(logs: Iterable[PartitionLog]) -> dict[TopicPartition, int]:
    return {log.partition: log.recovery_point for log in logs}


def _log_starts(logs: Iterable[PartitionLog]) -> dict[TopicPartition, int]:
    return log_start_entries((log.partition, log.log_start_offset, log.first_base_offset) for log in logs)


def _high_watermarks(logs: Iterable[PartitionLog]) -> dict[TopicPartition, int]:
    return {log.partition: log.high_watermark for log in logs}
