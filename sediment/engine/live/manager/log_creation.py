"""Creation of logs: in which directory, with which folder, and when it is refused (kafka-log 04 §12).

    directory    the given one, else the online directory with the fewest logs
    refused      if a directory is offline and the log may be there; if the deletion of an earlier log of this name is
                 not complete; if too few file descriptors are left; while the manager stops
    folder       `partition_folders` makes it durable before the log is opened

Source: Kafka's LogManager.getOrCreateLog.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_directory import LogDirectory
from sediment.engine.live.manager.log_deletion import check_deleted, delete_folder, log_is_not_deleted
from sediment.engine.live.manager.manager_state import ManagerState
from sediment.engine.live.manager.offset_checkpoints import write_recovery_points
from sediment.engine.live.open_files import require_spare_descriptors
from sediment.engine.live.partition_folders import make_partition_folders
from sediment.engine.live.topic_names import check_partition, check_topic_id
from sediment.segment_io.errors import StorageError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints


def create_log(
    manager: ManagerState,
    partition: TopicPartition,
    *,
    is_new: bool = True,
    log_dir: Path | None = None,
    topic_id: str | None = None,
) -> PartitionLog:
    check_partition(partition)
    if topic_id is not None:
        check_topic_id(topic_id)
    with manager.administration:
        manager.check_not_stopping()
        existing = manager.get_log(partition)
        if existing is not None:
            return existing
        check_deleted(manager, [partition])
        offline = [directory for directory in manager.directories if directory.is_offline]
        if not is_new and offline:
            raise StorageError(
                f"the log may be in an offline directory: {offline[0].failure}",
                partition=str(partition),
                path=str(offline[0]),
                advice="repair the directory and start the engine again",
            )
        require_spare_descriptors(manager.fs)
        for directory in manager.candidates(log_dir):
            _create_in(manager, directory, {partition: topic_id})
            created = manager.get_log(partition)
            if created is not None:
                return created
        raise StorageError(
            "no log directory accepts a new log", partition=str(partition), advice="repair a log directory"
        )


def create_logs(
    manager: ManagerState, topic_ids: Mapping[TopicPartition, str], log_dirs: Mapping[TopicPartition, Path]
) -> None:
    for partition, topic_id in topic_ids.items():
        check_partition(partition)
        check_topic_id(topic_id)
    with manager.administration:
        manager.check_not_stopping()
        existing = {partition: log for partition in topic_ids if (log := manager.get_log(partition)) is not None}
        for partition, log in existing.items():
            if log.topic_id != topic_ids[partition]:
                raise log_is_not_deleted(log)
        check_deleted(manager, topic_ids)
        missing = [partition for partition in topic_ids if partition not in existing]
        by_directory: dict[LogDirectory, dict[TopicPartition, str | None]] = {}
        for partition in missing:
            for directory in manager.candidates(log_dirs[partition]):
                by_directory.setdefault(directory, {})[partition] = topic_ids[partition]
        try:
            for directory, found in by_directory.items():
                _create_in(manager, directory, found)
        finally:
            write_recovery_points(manager, by_directory)


def check_ready(manager: ManagerState, new: Iterable[TopicPartition] = ()) -> None:
    with manager.administration:
        manager.check_not_stopping()
        require_spare_descriptors(manager.fs)
        partitions = tuple(new)
        check_deleted(manager, partitions)
        for directory in manager.online():
            with manager.failures.failing(directory):
                _check_free(manager, directory, partitions)


def _check_free(manager: ManagerState, directory: LogDirectory, partitions: Iterable[TopicPartition]) -> None:
    for partition in partitions:
        if manager.fs.exists(directory.path / str(partition)):
            raise StorageError(
                "a folder that is not in use has the name of the new partition",
                partition=str(partition),
                path=str(directory),
                advice="move the folder out of the log directory",
            )


def _create_in(manager: ManagerState, directory: LogDirectory, topic_ids: Mapping[TopicPartition, str | None]) -> None:
    new: list[TopicPartition] = []
    try:
        with manager.failures.failing(directory):
            new += (partition for partition in topic_ids if not manager.fs.exists(directory.path / str(partition)))
            made = make_partition_folders(directory.path, topic_ids, manager.fs, before_each=manager.check_not_stopping)
            for partition, topic_id in topic_ids.items():
                manager.check_not_stopping()
                require_spare_descriptors(manager.fs)
                path = directory.path / str(partition)
                # The empty segment of a new folder needs no recovery.
                checkpoints = PartitionCheckpoints(clean_shutdown=partition in made)
                log = manager.open_log(partition, path, checkpoints, topic_id=topic_id)
                with manager.guard:
                    if not directory.is_offline:
                        manager.logs[partition] = log
    finally:
        if not directory.is_offline:
            with manager.failures.failing(directory):
                _free_names(manager, directory, new)


def _free_names(manager: ManagerState, directory: LogDirectory, new: Iterable[TopicPartition]) -> None:
    """Rename new folders that have no log to -delete, and remove them later; this opens no file.

    If a crash undoes a rename, the folder has its old name again. But the folder is complete and contains its topic id.
    """
    for partition in new:
        folder = directory.path / str(partition)
        if manager.get_log(partition) is None and manager.fs.exists(folder):
            delete_folder(manager, directory, folder, partition)
