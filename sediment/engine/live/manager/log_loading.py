"""The load of all logs of an engine, in parallel, at its start (kafka-log 05 §1 steps 2 to 4).

    folder t-0            its log is loaded and served
    t-0.<id>-future       its log is loaded, and continues to be a copy (`log_moves`)
    t-0.<id>-delete       its log is loaded and then deleted (`log_deletion`)
    t-0.<id>-stray        it is not loaded
    id not in metadata    the log is loaded, and its folder renamed to -stray
    t-0 in two folders    the start is refused
    metadata log          it is not loaded, and neither is the index cache of tiered storage
    any other folder      the start is refused

Each directory has num.recovery.threads.per.data.dir threads.

Source: Kafka's LogManager.loadLogs, loadLog.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from sediment.engine.live.log_directory import LogDirectory
from sediment.engine.live.manager.log_deletion import rename_aside
from sediment.engine.live.manager.manager_state import DeletedFolder, ManagerState
from sediment.segment_io.errors import CorruptCheckpointError, StorageError, UsageError
from sediment.segment_io.format.names import DirectoryState, TopicPartition
from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints, PartitionCheckpoints
from sediment.segment_io.partition.partition_directories import parse_log_folder

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadProgress:
    log_dir: Path
    name: str
    loaded: int
    total: int


@dataclass(frozen=True, slots=True)
class _ToLoad:
    directory: LogDirectory
    name: str
    partition: TopicPartition
    state: DirectoryState
    checkpoints: PartitionCheckpoints


def load_logs(manager: ManagerState, progress: Callable[[LoadProgress], None], stop: threading.Event) -> None:
    work = {directory: _find_logs(manager, directory) for directory in manager.online()}
    pools = []
    try:
        jobs = {}
        for directory, found in work.items():
            pool = ThreadPoolExecutor(
                manager.config.num_recovery_threads_per_data_dir, thread_name_prefix=f"sediment-load-{directory}"
            )
            pools.append(pool)
            counted = _Counted(directory.path, len(found), progress)
            spare = max(manager.config.num_recovery_threads_per_data_dir // max(len(found), 1), 1)
            jobs.update({pool.submit(_load, manager, item, counted, stop, spare): directory for item in found})
        for job in as_completed(jobs):
            with manager.failures.failing(jobs[job]):
                try:
                    job.result()
                except CorruptCheckpointError as error:
                    # As in Kafka: a malformed line in a checkpoint file causes an IOException there.
                    manager.failures.take_offline(jobs[job], error)
                except StorageError as error:
                    # If the cause is an OSError, the log has already reported the disk failure; raise every other error
                    # again.
                    if not isinstance(error.__cause__, OSError):
                        raise
    finally:
        for pool in pools:
            pool.shutdown(wait=True, cancel_futures=True)
    for directory in manager.online():
        directory.is_loaded = not stop.is_set()
        with manager.failures.failing(directory):
            manager.cleaner.manager.checkpoints.remember_uncleanable(directory)


def _find_logs(manager: ManagerState, directory: LogDirectory) -> list[_ToLoad]:
    found: list[_ToLoad] = []
    try:
        with manager.failures.failing(directory):
            state = directory.read_state()
            for entry in manager.fs.scan(directory.path):
                item = _to_load(manager, directory, entry.name, state) if entry.is_directory else None
                if item is not None and item.state is DirectoryState.STRAY:
                    manager.strays.append(directory.path / item.name)
                elif item is not None:
                    found.append(item)
    except CorruptCheckpointError as error:
        manager.failures.take_offline(directory, error)
    return [] if directory.is_offline else found


def _to_load(manager: ManagerState, directory: LogDirectory, name: str, state: LogDirCheckpoints) -> _ToLoad | None:
    try:
        found = parse_log_folder(name)
    except UsageError as error:
        error.path = str(directory.path / name)
        raise
    if found is None or (found[1] is DirectoryState.DELETE and not manager.deletes):
        return None
    if (directory.path / name).absolute() in manager.left_out:
        directory.left_out.add(found[0])
        return None
    partition, what = found
    return _ToLoad(directory, name, partition, what, state.of(partition))


def _load(manager: ManagerState, item: _ToLoad, counted: _Counted, stop: threading.Event, threads: int) -> None:
    directory = item.directory
    if stop.is_set() or directory.is_offline:
        return
    path = directory.path / item.name
    log = manager.open_log(
        item.partition,
        path,
        item.checkpoints,
        item.state,
        recovery_threads=threads,
        announces=item.state is not DirectoryState.FUTURE,
    )
    if item.state is DirectoryState.LIVE and manager.is_stray(item.partition, log.topic_id):
        rename_aside(manager, [log], directory, DirectoryState.STRAY)
        log.close_handlers()
        manager.strays.append(log.directory)
    elif item.state is DirectoryState.DELETE:
        manager.deleted.append(DeletedFolder(log, path, directory, manager.clock.now_ms()))
    else:
        logs = manager.future if item.state is DirectoryState.FUTURE else manager.logs
        with manager.guard:
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


class _Counted:
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
