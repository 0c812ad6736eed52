"""Moves of logs between log directories: future logs, and the switch from a log to its future log.

    create      a future log next to the live one, in another directory
    replace     the rest is copied, the partition is assigned to the new directory, and the folders are renamed
    promote     after a crash during the renames, the next start completes them
    cancel      the future log is deleted (`log_deletion.delete_future_log`)

Source: Kafka's LogManager.replaceCurrentWithFutureLog, recoverAbandonedFutureLogs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from sediment.engine.live.future_log import copy_rest
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_directory import LogDirectory
from sediment.engine.live.manager.log_deletion import retire
from sediment.engine.live.manager.manager_state import ManagerState, check_online
from sediment.engine.live.manager.offset_checkpoints import write_all, write_offsets
from sediment.engine.live.open_files import require_spare_descriptors
from sediment.engine.live.partition_folders import make_future_folder
from sediment.segment_io.errors import CommitStateUnknownError, SedimentError, StorageError, UsageError
from sediment.segment_io.format.names import DirectoryState, SegmentFileKind, TopicPartition, segment_file_name
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints


def create_future_log(manager: ManagerState, partition: TopicPartition, log_dir: Path) -> PartitionLog:
    with manager.administration:
        manager.check_not_stopping()
        existing = manager.get_future_log(partition)
        if existing is not None:
            return existing
        current = manager.get_log(partition)
        if current is None or any(directory.is_offline for directory in manager.directories):
            raise StorageError("a log directory is offline", partition=str(partition), path=str(log_dir))
        (directory,) = manager.candidates(log_dir)
        if manager.directory_of(current) is directory:
            raise UsageError("the log is in this directory", partition=str(partition), path=str(log_dir))
        require_spare_descriptors(manager.fs)
        with manager.failures.failing(directory):
            like = current.directory / segment_file_name(current.active_base_offset, SegmentFileKind.LOG)
            folder = make_future_folder(directory.path, partition, current.topic_id, manager.fs, like=like)
            clean = PartitionCheckpoints(clean_shutdown=True)
            log = manager.open_log(partition, folder, clean, DirectoryState.FUTURE, announces=False)
            with manager.guard:
                if not directory.is_offline:
                    manager.future[partition] = log
                    return log
        raise StorageError("the log directory failed", partition=str(partition), path=str(log_dir))


def replace_current_with_future_log(
    manager: ManagerState,
    partition: TopicPartition,
    assign: Callable[[LogDirectory], None],
    on_replaced: Callable[[PartitionLog], None],
) -> bool:
    with manager.administration:
        manager.check_not_stopping()
        current, future = manager.get_log(partition), manager.get_future_log(partition)
        if current is None or future is None:
            return False
        source, target = manager.directory_of(current), manager.directory_of(future)
        require_spare_descriptors(manager.fs)
        future.flush()
        # No batch may be appended between the last copy and the switch.
        with target.checkpoint_guard, current.lock:
            copy_rest(current, future)
            end_offset = future.log_end_offset
            future.store_state_of(current)
            future.flush(force_last_segment=True)
            with manager.failures.failing(target):
                write_offsets(target, manager.logs_in(target))
            check_online(target)
            _assign(manager, future, target, assign)
            future.use_producers_of(current)
            _switch(manager, current, future)
            on_replaced(future)
        # All copied records are on disk.
        future.maybe_increment_high_watermark(end_offset)
        future.announce_to(manager.on_readable_change)
        current.close_handlers()
        _after_switch(manager, partition, source, target)
        return True


def _assign(
    manager: ManagerState, future: PartitionLog, target: LogDirectory, assign: Callable[[LogDirectory], None]
) -> None:
    try:
        assign(target)
    except SedimentError as error:
        if isinstance(error, CommitStateUnknownError) or isinstance(error.__cause__, CommitStateUnknownError):
            with manager.guard:
                manager.future.pop(future.partition, None)
            manager.deleted.append(retire(manager, future, target))
            future.close_handlers()
        raise


def _switch(manager: ManagerState, current: PartitionLog | None, future: PartitionLog) -> None:
    """Rename the folders, and use the future log; `current` is None if its folder was already renamed.

    If this fails, the partition is offline, because the metadata names a directory whose folder is not in use.
    """
    partition, target = future.partition, manager.directory_of(future)
    deleted = None
    try:
        if current is not None:
            deleted = retire(manager, current, manager.directory_of(current))
        with manager.failures.failing(target):
            future.rename_directory(target.path / str(partition))
            manager.fs.sync_directory(target.path)
        check_online(target)
    except SedimentError:
        with manager.guard:
            manager.logs.pop(partition, None)
        raise
    with manager.guard:
        manager.future.pop(partition, None)
        manager.logs[partition] = future
    if deleted is not None:
        manager.deleted.append(deleted)


def _after_switch(manager: ManagerState, partition: TopicPartition, source: LogDirectory, target: LogDirectory) -> None:
    first_dirty = source.first_dirty_offsets().get(partition)
    checkpoints = manager.cleaner.manager.checkpoints
    if first_dirty is not None:
        with manager.failures.failing(target):
            checkpoints.update(target, partition, first_dirty)
    with manager.failures.failing(source):
        checkpoints.forget(source, [partition])
    write_all(manager, [source, target])


def promote_future_logs(manager: ManagerState, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
    promoted = set()
    with manager.administration:
        for partition in partitions:
            current, future = manager.get_log(partition), manager.get_future_log(partition)
            if future is None or (current is not None and current.log_end_offset > future.log_end_offset):
                continue
            future.flush(force_last_segment=True)
            _switch(manager, current, future)
            future.announce_to(manager.on_readable_change)
            promoted.add(partition)
            if current is not None:
                current.close_handlers()
                _after_switch(manager, partition, manager.directory_of(current), manager.directory_of(future))
    return frozenset(promoted)
