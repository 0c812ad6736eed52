"""OffsetsTopic: commits as records of `__consumer_offsets`, where a broker finds them.

Each commit is one batch in the partition of its group.  A commit is complete when the high watermark is above it.

Source: Kafka's GroupMetadataManager and CoordinatorRuntime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import PolicyViolationError
from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.internal_topics.coordinator_records import CONSUMER_OFFSETS
from sediment.server.coordinator_log import coordinator_partition
from sediment.server.groups.group_offsets import CommittedOffset, GroupOffsets
from sediment.server.groups.offset_records import encode_offset_commit

Append = Callable[[Buffer], int]
"""The function that appends a batch durably and returns the offset of its first record."""


class OffsetsTopic:
    """The topic.

    `partitions` contains an append function for each partition, by number, and is empty if the topic does not exist.
    """

    def __init__(self, partitions: Mapping[int, Append]) -> None:
        self._partitions = partitions

    @property
    def offsets(self) -> Mapping[str, GroupOffsets]:
        """Empty, because the offsets are in the log directory itself."""
        return {}

    def append(
        self, group_id: str, commits: Sequence[tuple[str, int, CommittedOffset]]
    ) -> Sequence[tuple[str, int, CommittedOffset]]:
        """Append commits of a group, and return them with the offsets of their records.

        Raises:
            PolicyViolationError: the topic does not exist.
            RejectedAppendError: the batch is too large for the topic.
            StorageError: the disk failed.
        """
        if not self._partitions:
            raise PolicyViolationError(f"the cluster has no topic {CONSUMER_OFFSETS}", advice="let a broker create it")
        records = [
            NewRecord(value.commit_timestamp_ms, *encode_offset_commit(group_id, topic, partition, value))
            for topic, partition, value in commits
        ]
        append = self._partitions[coordinator_partition(group_id, len(self._partitions))]
        first_offset = append(build_batch(records, BatchHead(base_offset=0, leader_epoch=0)))
        return [
            (topic, partition, value._replace(record_offset=first_offset + delta))
            for delta, (topic, partition, value) in enumerate(commits)
        ]
