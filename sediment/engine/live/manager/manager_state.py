"""The state that the parts of a `LogManager` share: directories, the maps of logs, locks, scheduler and cleaner.

    logs         live logs, which clients use
    future       logs that will replace live ones (`log_moves`)
    to_delete    deleted logs whose folders are not renamed yet (`log_deletion`)
    deleted      renamed folders, which are removed later

Invariants: each log is in exactly one online directory. `guard` covers the maps and is the innermost lock. A thread
that holds `guard` must not wait for a log or the cleaner, because a log takes `guard` when it reports a disk failure
under its own lock. `administration` is held while logs are created, deleted or truncated. To avoid a long wait, a stop
ends the creation of logs once the current log has been created.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sediment.engine.live.broker_config import BrokerConfig
from sediment.engine.live.log.partition_log import PartitionLog, ignore_change
from sediment.engine.live.log_cleaner import LogCleaner
from sediment.engine.live.log_dir_failure import LogDirFailureHandler
from sediment.engine.live.log_directory import LogDirectory
from sediment.engine.live.scheduler import Clock, Scheduler
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import SedimentError, StorageError, UsageError
from sediment.segment_io.format.names import DirectoryState, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeletedFolder:
    log: PartitionLog | None
    folder: Path
    directory: LogDirectory
    since_ms: int


class ManagerState:
    """The logs of one engine, and what the parts of a `LogManager` need for them; see there for the parameters."""

    def __init__(
        self,
        log_dirs: Sequence[Path],
        topic_config: Callable[[str], LogConfig],
        config: BrokerConfig,
        fs: Fs,
        clock: Clock,
        *,
        is_stray: Callable[[TopicPartition, str | None], bool],
        on_readable_change: Callable[[PartitionLog], None],
        deletes: bool,
        left_out: Collection[Path],
    ) -> None:
        self.config = config
        self.clock = clock
        self.fs = fs
        self.log_dirs = tuple(log_dirs)
        self.topic_config = topic_config
        self.overrides: dict[str, LogConfig] = {}
        self.is_stray = is_stray
        self.on_readable_change = on_readable_change
        self.deletes = deletes
        self.left_out = frozenset(left_out)
        self.guard = threading.RLock()
        self.administration = threading.RLock()
        self.directories: list[LogDirectory] = []
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.future: dict[TopicPartition, PartitionLog] = {}
        self.to_delete: dict[TopicPartition, PartitionLog] = {}
        self.listing_deleted: set[LogDirectory] = set()
        """Directories whose checkpoints may still list deleted logs."""
        self.deleted: deque[DeletedFolder] = deque()
        self.strays: list[Path] = []
        self.is_stopping = False
        self.is_stopped = False
        threads = config.background_threads
        self.scheduler = Scheduler(clock, threads=threads and threads + config.log_cleaner_threads)
        self.failures = LogDirFailureHandler(self._remove_logs, self.scheduler)
        self.cleaner = LogCleaner(self, config, fs, clock, self.scheduler)

    # ------------------------------------------------------------------------------------------------------------ logs
    def get_log(self, partition: TopicPartition) -> PartitionLog | None:
        with self.guard:
            return self.logs.get(partition)

    def get_future_log(self, partition: TopicPartition) -> PartitionLog | None:
        with self.guard:
            return self.future.get(partition)

    def future_logs(self) -> list[PartitionLog]:
        return self.values(self.future)

    def all_logs(self) -> list[PartitionLog]:
        return sorted(self.values(self.logs), key=lambda log: log.partition)

    def directory_of(self, log: PartitionLog) -> LogDirectory:
        for directory in self.directories:
            if directory.path == log.directory.parent:
                return directory
        raise UsageError("this is not a log of the engine", partition=str(log.partition), path=str(log.directory))

    def online(self) -> list[LogDirectory]:
        return [directory for directory in self.directories if not directory.is_offline]

    def values(self, logs: Mapping[TopicPartition, PartitionLog]) -> list[PartitionLog]:
        with self.guard:
            return list(logs.values())

    def logs_in(self, directory: LogDirectory) -> list[PartitionLog]:
        with self.guard:
            every = (*self.logs.values(), *self.future.values(), *self.to_delete.values())
        return [log for log in every if _is_in(log, directory)]

    def candidates(self, log_dir: Path | None) -> list[LogDirectory]:
        if log_dir is None:
            with self.guard:
                parents = [log.directory.parent for log in (*self.logs.values(), *self.future.values())]
            return sorted(self.online(), key=lambda directory: parents.count(directory.path))
        chosen = [directory for directory in self.directories if directory.path == log_dir]
        if not chosen:
            raise UsageError("this is not a log directory of the engine", path=str(log_dir))
        return [directory for directory in chosen if not directory.is_offline]

    def config_of(self, topic: str) -> LogConfig:
        return self.overrides.get(topic) or self.topic_config(topic)

    def open_log(
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
            self.config_of(partition.topic),
            checkpoints,
            self.fs,
            clock=self.clock.now_ms,
            scheduler=self.scheduler,
            on_failure=self._log_failed,
            on_readable_change=self.on_readable_change if announces else ignore_change,
            state=state,
            topic_id=topic_id,
            recovery_threads=recovery_threads,
        )

    # -------------------------------------------------------------------------------------------- stops and failures
    def check_not_stopping(self) -> None:
        """Check that the manager is not stopping; a stop waits for the change in progress."""
        if self.is_stopping:
            raise _stopped()

    def check_not_stopped(self) -> None:
        """Check that the locks of the directories are held."""
        if self.is_stopped:
            raise _stopped()

    def handle_directory_failure(self, directory: LogDirectory, error: OSError) -> None:
        self.failures.report(directory, error)

    def _log_failed(self, log: PartitionLog, error: OSError) -> None:
        self.failures.take_offline(self.directory_of(log), error)

    def _remove_logs(self, directory: LogDirectory, failure: str) -> list[PartitionLog] | None:
        with self.guard:
            if directory.failure is not None:
                return None
            directory.failure = failure
            lost = self.logs_in(directory)
            for logs in (self.logs, self.future, self.to_delete):
                for partition in [partition for partition, log in logs.items() if _is_in(log, directory)]:
                    del logs[partition]
        deleted = [each.log for each in self.deleted.copy() if each.directory is directory]
        return lost + [log for log in deleted if log is not None]


def attempt(log: PartitionLog, action: Callable[[], int | None]) -> int | None:
    try:
        return action()
    except StorageError as error:
        _LOGGER.error("%s: %s", log.partition, error)
    except SedimentError as error:
        if not log.is_closed:
            raise
        _LOGGER.info("%s: %s", log.partition, error)
    return None


def check_online(directory: LogDirectory) -> None:
    if directory.is_offline:
        raise StorageError(f"the log directory failed: {directory.failure}", path=str(directory))


def _stopped() -> StorageError:
    return StorageError("the engine stops, or was stopped", advice="start it again")


def _is_in(log: PartitionLog, directory: LogDirectory) -> bool:
    return log.directory.parent == directory.path
