"""LogManager: all logs of one engine, in one or more log directories, from the start to a clean stop.

    start      lock directories · read meta.properties · remove markers · load logs in parallel · read uncleanable
               marks · start background tasks
    serve      get, create, delete, truncate, reconfigure; each log does its own appends and reads
    tasks      retention · flush · recovery points · log starts · high watermarks · deletion of renamed logs · cleaner ·
               spool
    shutdown   stop cleaner and tasks · flush and close logs in parallel · write checkpoints and markers · release locks
    truncate   pause cleaning if the offset is below the active segment · lower the cleaner checkpoint · write recovery
               points
    config     if a topic is not compacted any more, abort its cleaning

The package `manager` has its parts: `log_loading`, `log_creation`, `log_deletion`, `log_moves` between directories, and
`offset_checkpoints`.  They share a `ManagerState`, which explains the locks.

Invariants: a failed directory goes offline with its logs until the next start, and nothing more is written to it.  The
marker of a clean stop is written last, and only if every log of the directory was closed without error.  In addition,
every log must have been loaded, or the marker must have existed at the start.  If a caller must do further work after
an unclean stop, it passes `marks_unclean=False` to `shutdown`.  In this case, a directory that had no marker at the
start gets none.

Source: kafka-log 04 §11 to §14, 05 §1.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from sediment.engine.directory.spool import announce, withdraw
from sediment.engine.live.broker_config import BrokerConfig
from sediment.engine.live.log.partition_log import PartitionLog, ignore_change
from sediment.engine.live.log_directory import LogDirectory, check_owners
from sediment.engine.live.manager import log_creation, log_deletion, log_moves, offset_checkpoints
from sediment.engine.live.manager.log_loading import LoadProgress, load_logs
from sediment.engine.live.manager.manager_state import ManagerState, attempt
from sediment.engine.live.open_files import open_files_limit, require_spare_descriptors
from sediment.engine.live.scheduler import Clock
from sediment.engine.live.spool_committer import SpoolCommitter
from sediment.engine.live.topic_names import check_partition, check_topic
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import (
    CorruptCheckpointError,
    DirectoryInUseError,
    NotALogDirectoryError,
    OpenFilesLimitError,
    OwnershipError,
    SedimentError,
    StorageError,
    UsageError,
)
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs, is_out_of_descriptors, without_links

_LOGGER = logging.getLogger(__name__)

IDLE_FILES_CHECK_INTERVAL_MS = 60_000
"""The interval at which files of unused segments are closed; Kafka keeps every `.log` open."""

MAX_PRODUCERS_OF_ALL_LOGS = 1_000_000
"""A producer of a log takes about 550 bytes of memory; Kafka has no limit."""

PRODUCERS_CHECK_INTERVAL_MS = 10_000

_CLOCK = Clock()
_FS = Fs()


def _is_never_stray(_partition: TopicPartition, _topic_id: str | None) -> bool:
    return False


def limit_of_each(counts: Sequence[int], limit: int) -> int:
    """Return the largest number to which each of `counts` can be reduced so that their sum is at most `limit`."""
    ascending = sorted(counts)
    for number, count in enumerate(ascending):
        share = limit // (len(ascending) - number)
        if count > share:
            return share
        limit -= count
    return ascending[-1] if ascending else limit


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
        self._state = ManagerState(
            log_dirs,
            topic_config,
            config or BrokerConfig(),
            fs,
            clock,
            is_stray=is_stray,
            on_readable_change=on_readable_change,
            deletes=deletes,
            left_out=left_out,
        )
        self.clock = clock
        self.fs = fs
        self.scheduler = self._state.scheduler
        self.cleaner = self._state.cleaner
        self._deletes_by_limits = False
        self._has_announced = False

    def __enter__(self) -> LogManager:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    @property
    def config(self) -> BrokerConfig:
        """The config of the engine, with its dynamic changes."""
        return self._state.config

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
            load_logs(self._state, progress, stop)
            self._check_not_halted()
            if not stop.is_set():
                self._schedule_tasks()
        except BaseException:
            self._stop(None, marks_unclean=False)
            raise

    def _open_directories(self) -> None:
        seen: dict[Path, Path] = {}
        for path in self._state.log_dirs:
            if seen.setdefault(without_links(path), path) is not path:
                raise UsageError(f"the directory is the same as {seen[without_links(path)]}", path=str(path))
        self._check_owners_before_writing()
        for path in self._state.log_dirs:
            directory = LogDirectory(path, self.fs)
            self._state.directories.append(directory)
            try:
                directory.open()
            except DirectoryInUseError:
                raise
            except (OSError, OwnershipError, NotALogDirectoryError, CorruptCheckpointError) as error:
                if isinstance(error, OSError) and is_out_of_descriptors(error):
                    raise open_files_limit(error) from error
                self._state.failures.take_offline(directory, error)
        self._check_owners(self._state.online())
        self._name_owners()

    def _check_owners_before_writing(self) -> None:
        """Refuse directories of another node or cluster, before any directory is created or written to."""
        directories = [LogDirectory(path, self.fs) for path in self._state.log_dirs]
        for directory in directories:
            # A directory that cannot be read is reported when it is opened.
            with suppress(OSError, CorruptCheckpointError):
                directory.read_owner()
        self._check_owners(directories)

    def _check_owners(self, directories: Sequence[LogDirectory]) -> None:
        check_owners(directories, cluster_id=self.config.cluster_id, node_id=self.config.node_id)

    def _name_owners(self) -> None:
        """Write meta.properties into the directories that lack the file, if cluster and node are known."""
        named = [directory.meta for directory in self._state.online() if directory.meta is not None]
        cluster_id = self.config.cluster_id or next((meta.cluster_id for meta in named if meta.cluster_id), None)
        node_id = self.config.node_id
        if node_id is None:
            node_id = next((meta.node_id for meta in named if meta.node_id is not None), None)
        if cluster_id is None or node_id is None:
            return
        for directory in self._state.online():
            if directory.meta is None:
                with self._state.failures.failing(directory):
                    directory.name_owner(cluster_id, node_id)
        self._check_owners(self._state.online())

    # ------------------------------------------------------------------------------------------------------------ tasks
    def _schedule_tasks(self) -> None:
        """Schedule the background tasks.  Source: kafka-log 04 §11."""
        config, delay_ms = self.config, self.config.log_initial_task_delay_ms
        if self._state.deletes:
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
            "limit-producers", self.limit_producers, period_ms=PRODUCERS_CHECK_INTERVAL_MS
        )
        self.scheduler.schedule_periodically(
            "close-idle-files", self.close_idle_files, period_ms=IDLE_FILES_CHECK_INTERVAL_MS
        )
        if config.hand_off is not None:
            announce(config.hand_off, [directory.path for directory in self._state.online()], self.fs)
            self._has_announced = True
            committer = SpoolCommitter(config.hand_off, self, self.fs)
            period_ms = config.log_cleaner_backoff_ms
            self.scheduler.schedule_periodically("hand-off", committer.commit_all, period_ms=period_ms)

    def start_deleting(self, *, by_limits: bool = True) -> None:
        """Remove folders of deleted logs in the background; if `by_limits`, also run retention and the cleaner."""
        config, delay_ms = self.config, self.config.log_initial_task_delay_ms
        self.scheduler.schedule_once(
            "kafka-delete-logs", partial(log_deletion.remove_overdue, self._state), delay_ms=delay_ms
        )
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
        if not self._deletes_by_limits or self._state.is_stopping:
            return 0
        try:
            return attempt(log, log.delete_old_segments) or 0
        except SedimentError as error:
            _LOGGER.error("retention of %s failed: %s", log.partition, error)
            return 0

    def flush_overdue(self) -> None:
        """Flush the logs whose last flush is at least `flush.ms` ago."""
        now_ms = self.clock.now_ms()
        for log in self.all_logs():
            if now_ms - log.last_flush_ms >= log.config.flush_ms:
                attempt(log, log.flush)

    def remove_expired_producers(self) -> None:
        """Remove expired producers from every log."""
        for log in self.all_logs():
            attempt(log, log.remove_expired_producers)

    def limit_producers(self) -> None:
        """If all logs have more than MAX_PRODUCERS_OF_ALL_LOGS, remove producers from the logs with the most."""
        logs = [(log, log.producer_count) for log in self.all_logs()]
        limit = limit_of_each([count for _, count in logs], MAX_PRODUCERS_OF_ALL_LOGS)
        for log, count in logs:
            if count > limit:
                attempt(log, partial(log.forget_producers, count - limit))

    def checkpoint_recovery_points(self) -> None:
        """Write the recovery points of every directory."""
        offset_checkpoints.write_recovery_points(self._state)

    def checkpoint_log_starts(self, log_dirs: Collection[Path] | None = None) -> frozenset[Path]:
        """Write the log start offsets of the logs that do not start at the base of their first segment (LM-06).

        Return the directories in which these offsets could not be written.  If `log_dirs` is None, write the log start
        offsets of every directory.
        """
        return offset_checkpoints.write_log_starts(self._state, log_dirs)

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks of every directory."""
        offset_checkpoints.write_high_watermarks(self._state)

    def checkpoint_all(self) -> None:
        """Write all checkpoints of offsets."""
        offset_checkpoints.write_all(self._state, self.directories())

    def close_idle_files(self) -> None:
        """Close the files of segments that have not been used since the last call."""
        for logs in (self._state.logs, self._state.future):
            for log in self._state.values(logs):
                log.close_idle_files()

    # ------------------------------------------------------------------------------------------------------------- logs
    def get_log(self, partition: TopicPartition) -> PartitionLog | None:
        """Return the live log of a partition; None if there is none, or if its directory is offline."""
        return self._state.get_log(partition)

    def get_future_log(self, partition: TopicPartition) -> PartitionLog | None:
        """Return the future log of a partition, which will replace the live one; None if there is none."""
        return self._state.get_future_log(partition)

    def future_logs(self) -> list[PartitionLog]:
        """Return the future logs."""
        return self._state.future_logs()

    def all_logs(self) -> list[PartitionLog]:
        """Return the live logs, sorted by partition."""
        return self._state.all_logs()

    def directories(self) -> list[LogDirectory]:
        """Return all directories, online and offline, in the order of `log_dirs`."""
        return list(self._state.directories)

    def strays(self) -> list[Path]:
        """Return the directories of stray logs, which are not served."""
        return list(self._state.strays)

    def directory_of(self, log: PartitionLog) -> LogDirectory:
        """Return the log directory of a log.

        Raises:
            UsageError: the log does not belong to this engine.
        """
        return self._state.directory_of(log)

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
        return log_creation.create_log(self._state, partition, is_new=is_new, log_dir=log_dir, topic_id=topic_id)

    def check_ready(self, new: Iterable[TopicPartition] = ()) -> None:
        """Check that logs can be deleted, and that the logs `new` can be created.

        If a caller first makes a change durable elsewhere, it must call this method before that change.  Deletions that
        failed are tried again.

        Raises:
            OpenFilesLimitError: the limit on open files is too low.
            StorageError: a folder, such as that of a deleted topic, has the name of a new log; the checkpoints may list
                deleted logs; or the manager stops.
        """
        log_creation.check_ready(self._state, new)

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
        log_creation.create_logs(self._state, topic_ids, log_dirs)

    def delete_log(self, partition: TopicPartition) -> None:
        """Delete a log: rename its directory now, and remove it after `log.segment.delete.delay.ms`.

        Raises:
            StorageError: the log does not exist, and a directory is offline.
            UsageError: the log does not exist, or Kafka does not allow the topic or partition.

        Source: kafka-log 04 §13.
        """
        check_partition(partition)
        with self._state.administration:
            if self.get_log(partition) is None:
                kind = (
                    StorageError if any(directory.is_offline for directory in self._state.directories) else UsageError
                )
                raise kind("the log does not exist", partition=str(partition))
            require_spare_descriptors(self.fs)
            log_deletion.delete_logs(self._state, [partition])

    def delete_logs(self, partitions: Iterable[TopicPartition]) -> None:
        """Delete logs as `delete_log` does, but sync all of them together; skip a log that does not exist.

        If a topic has no more logs, the config from `update_topic_config` is dropped.  If a folder cannot be renamed,
        or a checkpoint cannot be written, the next change and a background task try again.

        Raises:
            OpenFilesLimitError: the limit on open files is too low; some logs are not renamed yet.
            StorageError: the checkpoints may still list the logs; or the manager was shut down.
        """
        log_deletion.delete_logs(self._state, partitions)

    def put_away(self, folders: Iterable[Path]) -> None:
        """Take unloaded folders out of use: remove those of deleted and future logs, and rename the others to -stray.

        A folder of a deleted or future log is removed after `log.segment.delete.delay.ms`; a stray folder is never
        removed.  If a directory fails, it goes offline, and so do its folders.

        Raises:
            OpenFilesLimitError: the limit on open files is too low; some folders are not renamed.
        """
        log_deletion.put_away(self._state, folders)

    # ------------------------------------------------------------------------------------------------------ future logs
    def create_future_log(self, partition: TopicPartition, log_dir: Path) -> PartitionLog:
        """Return the future log of a partition; create it in `log_dir` if there is none.

        Raises:
            OpenFilesLimitError: the limit on open files is too low.
            StorageError: the partition has no log, or a log directory is offline, or the manager stops.
            UsageError: `log_dir` does not belong to this engine, or contains the log of the partition.

        Source: Kafka's Partition.maybeCreateFutureReplica, LogManager.getOrCreateLog.
        """
        return log_moves.create_future_log(self._state, partition, log_dir)

    def delete_future_log(self, partition: TopicPartition) -> None:
        """Delete the future log of a partition, if there is one; its folder is removed later.

        Raises:
            StorageError: the disk of the future log failed.
        """
        with self._state.administration:
            log_deletion.delete_future_log(self._state, partition)

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
            2. call `assign(directory)`, which durably assigns the partition to this directory
            3. rename the folder of the log to -delete
            4. rename the folder of the future log, which then becomes the log of the partition
            5. call `on_replaced` with this log

        After a crash before step 2, the old log is valid.  After a later crash, the future log is valid and has the
        same records.  If the outcome of step 2 is unknown, the future log is deleted, and the old log stays valid.

        Raises:
            CommitStateUnknownError: raised by `assign`; the future log was deleted.
            SedimentError: raised by `assign`, and nothing changed; or raised by `future_log.copy_next`.
            StorageError: a disk failed; after step 2, the partition is offline until the next start.

        Source: Kafka's Partition.maybeReplaceCurrentWithFutureReplica, LogManager.replaceCurrentWithFutureLog.
        """
        return log_moves.replace_current_with_future_log(self._state, partition, assign, on_replaced)

    def promote_future_logs(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Replace each log whose replacement was interrupted by a crash in step 3 or 4; return the partitions.

        A log with a higher end than its future log is not replaced.

        Raises:
            StorageError: a disk failed.

        Source: Kafka's LogManager.recoverAbandonedFutureLogs.
        """
        return log_moves.promote_future_logs(self._state, partitions)

    # ------------------------------------------------------------------------------------------------------- truncation
    def truncate_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Truncate logs to the given offsets, and write the recovery points of their directories.

        Source: kafka-log 04 §10.
        """
        with self._state.administration:
            for log, offset in self._present(offsets):
                with log.lock:
                    # No append may roll the log before the truncation; otherwise the truncation could reach segments
                    # that are being cleaned.
                    if offset >= log.active_base_offset:
                        attempt(log, partial(log.truncate_to, offset))
                        continue
                with self._paused(log.partition):
                    if attempt(log, partial(log.truncate_to, offset)):
                        with self._state.failures.failing(self.directory_of(log)):
                            self.cleaner.manager.checkpoints.truncate(log, log.active_base_offset)
            offset_checkpoints.write_recovery_points_of(self._state, offsets)

    def truncate_fully_and_start_at(self, partition: TopicPartition, offset: int) -> None:
        """Empty a log, continue it at `offset`, and write recovery points as `truncate_to` does."""
        with self._state.administration:
            for log, _ in self._present({partition: offset}):
                with self._paused(partition):
                    attempt(log, partial(log.truncate_fully_and_start_at, offset))
                    with self._state.failures.failing(self.directory_of(log)):
                        self.cleaner.manager.checkpoints.truncate(log, log.active_base_offset)
            offset_checkpoints.write_recovery_points_of(self._state, [partition])

    def _present(self, offsets: Mapping[TopicPartition, int]) -> list[tuple[PartitionLog, int]]:
        with self._state.guard:
            return [
                (self._state.logs[partition], offset)
                for partition, offset in offsets.items()
                if partition in self._state.logs
            ]

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
        self._state.overrides.update(configs)
        for log in (*self.all_logs(), *self.future_logs()):
            config = configs.get(log.partition.topic)
            if config is not None:
                was_compacted = log.config.compacts
                log.update_config(config)
                if was_compacted and not config.compacts:
                    self.cleaner.manager.abort(log.partition)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Change the dynamic keys of the cleaner, and the delay after which deleted logs are removed."""
        self._state.config = config
        self.cleaner.reconfigure(config)

    # ---------------------------------------------------------------------------------------------------------- failure
    def handle_directory_failure(self, directory: LogDirectory, error: OSError) -> None:
        """Take a directory and its logs offline; the other directories continue."""
        self._state.handle_directory_failure(directory, error)

    def is_halted(self) -> bool:
        """Return True if every directory is offline; then no log can be used."""
        return all(directory.is_offline for directory in self._state.directories)

    def _check_not_halted(self) -> None:
        if not self.is_halted():
            return
        reasons = "; ".join(f"{directory}: {directory.failure}" for directory in self._state.directories)
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
        self._state.is_stopping = True
        with self._state.administration:
            if self._state.is_stopped:
                return
            self._state.is_stopped = True
        self.cleaner.stop()
        self.scheduler.close()
        self.cleaner.close()
        if self.config.hand_off is not None and self._has_announced:
            try:
                withdraw(self.config.hand_off, self.fs)
            except OSError as error:
                _LOGGER.error("jobs can still leave segments in %s: %s", self.config.hand_off, error)
        with self._state.administration:
            live = self._state.online()
            with ThreadPoolExecutor(max(len(live), 1), thread_name_prefix="sediment-close") as pool:
                for _ in pool.map(partial(self._close_directory, broker_epoch, marks_unclean), live):
                    pass
            for deleted in self._state.deleted:
                if deleted.log is not None:
                    deleted.log.close_handlers()
            with self._state.guard:
                lost = [*self._state.logs.values(), *self._state.future.values(), *self._state.to_delete.values()]
                self._state.logs, self._state.future, self._state.to_delete = {}, {}, {}
            for log in lost:
                if not log.is_closed:
                    log.close_handlers()
            for directory in self._state.directories:
                directory.release()

    def _close_directory(self, broker_epoch: int | None, marks_unclean: bool, directory: LogDirectory) -> None:
        logs = self._state.logs_in(directory)
        threads = self.config.num_recovery_threads_per_data_dir
        with ThreadPoolExecutor(threads, thread_name_prefix=f"sediment-close-{directory}") as pool:
            closed = list(pool.map(self._close_log, logs))
        if not all(closed) or directory.is_offline:
            return
        try:
            with self._state.failures.failing(directory):
                offset_checkpoints.write_offsets(directory, logs)
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
