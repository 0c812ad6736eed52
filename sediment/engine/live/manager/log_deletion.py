"""Deletion of logs, and of folders that nothing uses any more (kafka-log 04 §13).

    1 abort     the log is removed from the live logs, and its cleaning is aborted
    2 forget    the cleaner's checkpoint and mark of the log are removed
    3 rename    the folder is renamed to -delete, durably
    4 write     the checkpoints of offsets are written without the log
    5 remove    after log.segment.delete.delay.ms, a background task removes the files and the folder

If step 2, 3 or 4 fails, the next change and the background task try again.

    future log, log that was moved    `retire` renames the folder durably; then step 5
    unused folder                     `delete_folder` renames it without a sync; then step 5
    folder that was not loaded        `put_away`: step 5, or a rename to -stray

Source: Kafka's LogManager.asyncDelete, deleteLogs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_directory import LogDirectory
from sediment.engine.live.manager.manager_state import DeletedFolder, ManagerState, attempt, check_online
from sediment.engine.live.manager.offset_checkpoints import write_all
from sediment.engine.live.open_files import require_spare_descriptors
from sediment.engine.live.partition_folders import folder_aside, remove_folder
from sediment.segment_io.errors import SedimentError, StorageError
from sediment.segment_io.format.names import DirectoryState, TopicPartition, parse_partition_directory

_LOGGER = logging.getLogger(__name__)


def delete_logs(manager: ManagerState, partitions: Iterable[TopicPartition]) -> None:
    with manager.administration:
        manager.check_not_stopped()
        wanted = frozenset(partitions)
        with manager.guard:
            found = [partition for partition in wanted if partition in manager.logs]
            manager.to_delete |= {partition: manager.logs.pop(partition) for partition in found}
            left = {partition.topic for partition in manager.logs}
        for topic in {partition.topic for partition in wanted} - left:
            manager.overrides.pop(topic, None)
        for partition in found:
            manager.cleaner.manager.abort(partition)
        for partition in wanted:
            with suppress(StorageError):  # its directory is offline
                delete_future_log(manager, partition)
        rename_deleted(manager)


def delete_future_log(manager: ManagerState, partition: TopicPartition) -> None:
    """Delete the future log of a partition, if there is one; the caller holds `administration`."""
    with manager.guard:
        log = manager.future.pop(partition, None)
    if log is not None:
        directory = manager.directory_of(log)
        try:
            manager.deleted.append(retire(manager, log, directory))
        finally:
            log.close_handlers()
        write_all(manager, [directory])


def check_deleted(manager: ManagerState, partitions: Iterable[TopicPartition]) -> None:
    if manager.to_delete or manager.listing_deleted:
        with suppress(StorageError):
            rename_deleted(manager)
    for directory in manager.listing_deleted:
        raise _still_listed(directory)
    for partition in partitions:
        log = manager.to_delete.get(partition)
        if log is not None:
            raise log_is_not_deleted(log)


def rename_deleted(manager: ManagerState) -> None:
    by_directory: dict[LogDirectory, list[PartitionLog]] = {}
    for log in manager.values(manager.to_delete):
        by_directory.setdefault(manager.directory_of(log), []).append(log)
    failure: SedimentError | None = None
    for directory, logs in by_directory.items():
        try:
            with manager.failures.failing(directory):
                _delete_in(manager, directory, logs)
        except SedimentError as error:
            failure = error
    changed = manager.listing_deleted | by_directory.keys()
    failed = write_all(manager, changed)
    manager.listing_deleted = {each for each in changed if each.path in failed and not each.is_offline}
    for directory in manager.listing_deleted:
        failure = failure or _still_listed(directory)
    if failure is not None:
        raise failure


def _delete_in(manager: ManagerState, directory: LogDirectory, logs: Sequence[PartitionLog]) -> None:
    manager.cleaner.manager.checkpoints.forget(directory, [log.partition for log in logs])
    usable: list[PartitionLog] = []
    for log in logs:
        if not log.is_offline:
            usable.append(log)
        elif manager.fs.exists(log.directory):
            # A change of this log was interrupted: close its files, and rename its folder without a call to the log.
            log.close_handlers()
            delete_folder(manager, directory, log.directory, log.partition)
    rename_aside(manager, usable, directory, DirectoryState.DELETE)
    with manager.guard:
        for log in logs:
            manager.to_delete.pop(log.partition, None)
    now_ms = manager.clock.now_ms()
    manager.deleted += [DeletedFolder(log, log.directory, directory, now_ms) for log in usable]


def rename_aside(
    manager: ManagerState, logs: Iterable[PartitionLog], directory: LogDirectory, state: DirectoryState
) -> None:
    for log in logs:
        if log.directory.name == str(log.partition):
            log.rename_directory(directory.path / folder_aside(log.partition, state))
    manager.fs.sync_directory(directory.path)


def delete_folder(manager: ManagerState, directory: LogDirectory, folder: Path, partition: TopicPartition) -> None:
    """Rename an unused folder to -delete and remove it later; the rename is not synced, and no file is opened."""
    aside = folder.with_name(folder_aside(partition, DirectoryState.DELETE))
    manager.fs.rename(folder, aside)
    manager.deleted.append(DeletedFolder(None, aside, directory, manager.clock.now_ms()))


def retire(manager: ManagerState, log: PartitionLog, directory: LogDirectory) -> DeletedFolder:
    """Rename the folder of a log to -delete, durably; the log refuses every further call."""
    log.go_offline("the partition was moved, or its move was cancelled")
    aside = log.directory.with_name(folder_aside(log.partition, DirectoryState.DELETE))
    with manager.failures.failing(directory):
        manager.fs.rename(log.directory, aside)
        manager.fs.sync_directory(directory.path)
    check_online(directory)
    return DeletedFolder(None, aside, directory, manager.clock.now_ms())


def put_away(manager: ManagerState, folders: Iterable[Path]) -> None:
    with manager.administration:
        by_path = {directory.path.absolute(): directory for directory in manager.directories}
        by_directory: dict[LogDirectory, list[Path]] = {}
        for folder in folders:
            by_directory.setdefault(by_path[folder.parent], []).append(folder)
        for directory, found in by_directory.items():
            with manager.failures.failing(directory):
                _put_away_in(manager, directory, found)
        write_all(manager, by_directory.keys())


def _put_away_in(manager: ManagerState, directory: LogDirectory, folders: Iterable[Path]) -> None:
    require_spare_descriptors(manager.fs)
    renamed = []
    for folder in folders:
        partition, state = parse_partition_directory(folder.name)
        if state is DirectoryState.DELETE:
            manager.deleted.append(DeletedFolder(None, folder, directory, manager.clock.now_ms()))
            continue
        if state is DirectoryState.FUTURE:
            delete_folder(manager, directory, folder, partition)
            directory.left_out.discard(partition)
            continue
        renamed.append(partition)
        stray = folder.with_name(folder_aside(partition, DirectoryState.STRAY))
        manager.fs.rename(folder, stray)
        manager.strays.append(stray)
    manager.fs.sync_directory(directory.path)
    directory.left_out.difference_update(renamed)
    manager.cleaner.manager.checkpoints.forget(directory, renamed)


def remove_overdue(manager: ManagerState) -> None:
    # First try again to complete earlier deletions that failed.
    delay_ms = manager.config.log_segment_delete_delay_ms
    if manager.to_delete or manager.listing_deleted:
        try:
            with manager.administration:
                rename_deleted(manager)
        except SedimentError as error:
            _LOGGER.error("%s", error)
    while manager.deleted and manager.clock.now_ms() - manager.deleted[0].since_ms >= delay_ms:
        remove_renamed(manager, manager.deleted.popleft())
    wait_ms = max(delay_ms, 1)
    if manager.deleted:
        wait_ms = max(manager.deleted[0].since_ms + delay_ms - manager.clock.now_ms(), 1)
    manager.scheduler.schedule_once("kafka-delete-logs", partial(remove_overdue, manager), delay_ms=wait_ms)


def remove_renamed(manager: ManagerState, deleted: DeletedFolder) -> None:
    if deleted.directory.is_offline:
        if deleted.log is not None:
            deleted.log.close_handlers()
    elif deleted.log is not None:
        attempt(deleted.log, deleted.log.delete)
    else:
        try:
            remove_folder(deleted.folder, manager.fs)
        except OSError as error:
            _LOGGER.error("the folder of a deleted topic could not be removed: %s", error)


def log_is_not_deleted(log: PartitionLog) -> StorageError:
    return StorageError(
        "the log of a deleted topic with this name could not be renamed",
        partition=str(log.partition),
        path=str(log.directory),
        advice="try again later; the next start renames it",
    )


def _still_listed(directory: LogDirectory) -> StorageError:
    return StorageError(
        "checkpoints could not be written, so they may list logs of deleted topics",
        path=str(directory),
        advice="try again later; if the process has reached its limit on open files, raise ulimit -n",
    )
