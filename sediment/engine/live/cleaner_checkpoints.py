"""The stored state of the cleaner: the checkpoint of each partition, and the marks of uncleanable partitions.

    cleaned              the checkpoint is set to the end of the cleaning
    truncated            if the checkpoint is above the new log end, it is lowered to the log end
    deleted              the checkpoint and the mark are removed
    directory failed     its checkpoint file is not written any more (`LogDirectory.change_first_dirty`)
    failed               the partition is marked uncleanable until its segments change
    moved                `log_moves` moves the checkpoint to the other directory
    malformed            the file counts as empty (`log_directory`)

Invariant: a checkpoint file lists only partitions that exist.

Source: kafka-log 02 §1 (uncleanable), §2.5 (LogCleanerManager).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from sediment.engine.directory.uncleanable import Uncleanable, read_uncleanable, uncleanable_after, update_uncleanable
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_directory import LogDirectory
from sediment.segment_io.errors import CorruptCheckpointError, CorruptDataError, SedimentError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing

_LOGGER = logging.getLogger(__name__)


class LogOwner(Protocol):
    def all_logs(self) -> list[PartitionLog]: ...

    def directory_of(self, log: PartitionLog) -> LogDirectory: ...


class CleanerCheckpoints:
    """Checkpoints and marks of the logs of `owner`; every method may be called from any thread."""

    def __init__(self, owner: LogOwner, fs: Fs) -> None:
        self._owner = owner
        self._fs = fs
        self._uncleanable: dict[TopicPartition, Uncleanable] = {}

    # ------------------------------------------------------------------------------------------------------ checkpoints
    def update(self, directory: LogDirectory, partition: TopicPartition, first_dirty_offset: int) -> None:
        self._change(directory, add={partition: first_dirty_offset})

    def truncate(self, log: PartitionLog, offset: int) -> None:
        directory = self._owner.directory_of(log)
        if log.config.compacts and directory.first_dirty_offsets().get(log.partition, 0) > offset:
            self.update(directory, log.partition, offset)

    def forget(self, directory: LogDirectory, partitions: Collection[TopicPartition]) -> None:
        self._change(directory, remove=partitions)
        for partition in partitions:
            self._unmark(directory, partition)

    def _change(
        self,
        directory: LogDirectory,
        *,
        add: Mapping[TopicPartition, int] | None = None,
        remove: Collection[TopicPartition] = (),
    ) -> None:
        kept = {log.partition for log in self._owner.all_logs()}.difference(remove)
        directory.change_first_dirty(
            lambda before: {partition: before[partition] for partition in before if partition in kept} | dict(add or {})
        )

    # ------------------------------------------------------------------------------------------------------- quarantine
    def remember_uncleanable(self, directory: LogDirectory) -> None:
        self._uncleanable.update(read_uncleanable(directory.path, self._fs))

    def uncleanable(self) -> dict[TopicPartition, Uncleanable]:
        return dict(self._uncleanable)

    def has_mark(self, partition: TopicPartition) -> bool:
        """Return True if the partition is marked, even if its segments have changed after that."""
        return partition in self._uncleanable

    def is_uncleanable(self, log: PartitionLog, directory: LogDirectory) -> bool:
        """Return True if the log is marked; remove the mark if its segments have changed."""
        mark = self._uncleanable.get(log.partition)
        if mark is None or mark.holds_for(_listing(log)):
            return mark is not None
        self._unmark(directory, log.partition)
        return False

    def quarantine(self, log: PartitionLog, directory: LogDirectory, error: Exception, *, since_ms: int) -> None:
        """Mark a partition uncleanable because of `error`; only a mark for corrupt files survives a restart."""
        known = error if isinstance(error, SedimentError) else SedimentError(f"cleaning failed: {error!r}")
        durable = isinstance(error, CorruptDataError) and not isinstance(error, CorruptCheckpointError)
        mark = uncleanable_after(
            known, _listing(log), reason_code=known.reason_code, reason=str(known), since_ms=since_ms
        )
        _LOGGER.error(
            "%s is not cleaned any more: %s", log.partition, known, exc_info=None if known is error else error
        )
        self._mark(directory, mark, durable=durable)

    def _mark(self, directory: LogDirectory, mark: Uncleanable, *, durable: bool) -> None:
        self._uncleanable[mark.partition] = mark
        if durable:
            update_uncleanable(directory.path, self._fs, add=[mark])

    def _unmark(self, directory: LogDirectory, partition: TopicPartition) -> None:
        if self._uncleanable.pop(partition, None) is not None:
            update_uncleanable(directory.path, self._fs, remove=[partition])


def _listing(log: PartitionLog) -> LogListing:
    return LogListing(log.partition, log.directory, log.segments(), (), ())
