"""OffsetsTopic: commits and groups as records of `__consumer_offsets`, where a broker finds them.

Each commit, each generation and each change of a consumer group is one batch in the group's partition. A batch counts
as stored when the high watermark is above it. A deletion uses as many batches as `max.message.bytes` requires. The
record that deletes a group comes last.

Source: Kafka's GroupMetadataManager and CoordinatorRuntime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import (
    PolicyViolationError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    StorageError,
)
from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.internal_topics.coordinator_records import CONSUMER_OFFSETS
from sediment.server.coordinator_log import coordinator_partition
from sediment.server.groups.group_offsets import CommittedOffset, GroupOffsets
from sediment.server.groups.group_requests import StableGroup
from sediment.server.groups.offset_records import (
    encode_group,
    encode_offset_commit,
    group_tombstone,
    offset_tombstone,
)


class AppendedBatch(Protocol):
    @property
    def first_offset(self) -> int: ...


class OffsetsPartition(Protocol):
    def append_of_coordinator(self, records: Buffer, *, wait: bool = True) -> AppendedBatch:
        """Append a batch; with `wait`, return when the high watermark is above the batch."""


class OffsetsTopic:
    """The value of a partition whose log could not be created is None."""

    def __init__(
        self, partitions: Callable[[], Mapping[int, OffsetsPartition | None]], wall_ms: Callable[[], int]
    ) -> None:
        self._partitions = partitions
        self._wall_ms = wall_ms

    @property
    def offsets(self) -> Mapping[str, GroupOffsets]:
        """Empty, because the offsets are in the log directory itself."""
        return {}

    def append(
        self, group_id: str, commits: Sequence[tuple[str, int, CommittedOffset]]
    ) -> Sequence[tuple[str, int, CommittedOffset]]:
        first_offset = _append(self._partition(group_id), commit_records(group_id, commits))
        return with_record_offsets(commits, first_offset)

    def partition_of(self, group_id: str) -> int | None:
        """Return the partition of a group; None if the topic does not exist."""
        partitions = self._partitions()
        return coordinator_partition(group_id, len(partitions)) if partitions else None

    def store_group(self, group_id: str, group: StableGroup, *, wait: bool = True) -> None:
        now_ms = self._wall_ms()
        record = NewRecord(now_ms, *encode_group(group_id, group, now_ms))
        _append(self._partition(group_id), [record], wait=wait)

    def store_records(self, group_id: str, records: Sequence[tuple[bytes, bytes | None]], *, wait: bool = True) -> None:
        now_ms = self._wall_ms()
        _append(self._partition(group_id), [NewRecord(now_ms, key, value) for key, value in records], wait=wait)

    def delete_offsets(self, offsets: Mapping[str, Sequence[tuple[str, int]]]) -> None:
        keys = [offset_tombstone(group_id, *each) for group_id, partitions in offsets.items() for each in partitions]
        self._delete(next(iter(offsets)), keys)

    def delete_group(
        self,
        group_id: str,
        partitions: Sequence[tuple[str, int]],
        *,
        keys: Sequence[bytes] | None = None,
        wait: bool = True,
    ) -> None:
        offsets = [offset_tombstone(group_id, *partition) for partition in partitions]
        self._delete(group_id, offsets + list([group_tombstone(group_id)] if keys is None else keys), wait=wait)

    def _delete(self, group_id: str, keys: Sequence[bytes], *, wait: bool = True) -> None:
        now_ms = self._wall_ms()
        _append_in_parts(self._partition(group_id), [NewRecord(now_ms, key, None) for key in keys], wait=wait)

    def _partition(self, group_id: str) -> OffsetsPartition:
        partitions = self._partitions()
        if not partitions:
            raise PolicyViolationError(f"the cluster has no topic {CONSUMER_OFFSETS}", advice="find the coordinator")
        number = coordinator_partition(group_id, len(partitions))
        partition = partitions.get(number)
        if partition is None:
            raise StorageError(
                "the log of the partition could not be created",
                partition=str(TopicPartition(CONSUMER_OFFSETS, number)),
                advice="remove the cause and start again",
            )
        return partition


def commit_records(group_id: str, commits: Sequence[tuple[str, int, CommittedOffset]]) -> list[NewRecord]:
    return [
        NewRecord(value.commit_timestamp_ms, *encode_offset_commit(group_id, topic, partition, value))
        for topic, partition, value in commits
    ]


def with_record_offsets(
    commits: Sequence[tuple[str, int, CommittedOffset]], first_offset: int
) -> list[tuple[str, int, CommittedOffset]]:
    return [
        (topic, partition, value._replace(record_offset=first_offset + delta))
        for delta, (topic, partition, value) in enumerate(commits)
    ]


def _append(partition: OffsetsPartition, records: Sequence[NewRecord], *, wait: bool = True) -> int:
    batch = build_batch(records, BatchHead(base_offset=0, leader_epoch=0))
    return partition.append_of_coordinator(batch, wait=wait).first_offset


def _append_in_parts(partition: OffsetsPartition, records: Sequence[NewRecord], *, wait: bool) -> None:
    try:
        _append(partition, records, wait=wait)
    except (RecordTooLargeError, RecordBatchTooLargeError):
        if len(records) == 1:
            raise
        middle = len(records) // 2
        _append_in_parts(partition, records[:middle], wait=wait)
        _append_in_parts(partition, records[middle:], wait=wait)
