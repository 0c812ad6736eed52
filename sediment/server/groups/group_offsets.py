"""GroupOffsets: the committed offsets of one group, the pending offsets of open transactions, and their expiration.

Invariant: if a partition has a commit in a transaction and a commit outside a transaction, the later record wins. The
marker's position does not matter, because compaction also keeps only the later record.

An offset expires when its commit is `offsets.retention.minutes` old and the group has had no members for that time. The
time without members begins when this process first sees the group empty, so it begins again after each start. Offsets
that an open transaction may replace do not expire.

Source: Kafka's OffsetMetadataManager, OffsetAndMetadata and ClassicGroup.offsetExpirationCondition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from sediment.segment_io.format.layout import NO_LEADER_EPOCH
from sediment.server.client_memory import OFFSET_BYTES

NO_TOPIC_ID = UUID(int=0)
MS_PER_MINUTE = 60_000
_NEVER_SEEN = -2  # below every generation


class CommittedOffset(NamedTuple):
    """The committed offset of a partition; `record_offset` is the commit's own offset in the coordinator's log."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = 0
    topic_id: UUID = NO_TOPIC_ID
    record_offset: int = -1

    @property
    def size_bytes(self) -> int:
        return OFFSET_BYTES + len(self.metadata)


@dataclass(slots=True)
class GroupOffsets:
    """The offsets of a group: `committed` by topic and partition, `pending` by producer id and (topic, partition)."""

    committed: dict[str, dict[int, CommittedOffset]] = field(default_factory=dict)
    pending: dict[int, dict[tuple[str, int], CommittedOffset]] = field(default_factory=dict)

    def commit(self, topic: str, partition: int, value: CommittedOffset) -> None:
        partitions = self.committed.get(topic)
        if partitions is None:
            partitions = self.committed[topic] = {}
        partitions[partition] = value

    def commit_in_transaction(self, producer_id: int, topic: str, partition: int, value: CommittedOffset) -> None:
        self.pending.setdefault(producer_id, {})[topic, partition] = value

    def remove(self, topic: str, partition: int) -> int:
        partitions = self.committed.get(topic, {})
        removed = [partitions.pop(partition, None)]
        if not partitions:
            self.committed.pop(topic, None)
        removed += [offsets.pop((topic, partition), None) for offsets in self.pending.values()]
        return sum(value.size_bytes for value in removed if value is not None)

    def end_transaction(self, producer_id: int, *, is_committed: bool) -> int:
        growth = 0
        for (topic, partition), value in self.pending.pop(producer_id, {}).items():
            existing = self.get(topic, partition)
            if is_committed and (existing is None or value.record_offset > existing.record_offset):
                growth += self.growth_bytes([(topic, partition, value)])
                self.commit(topic, partition, value)
        return growth

    def pending_bytes(self, producer_id: int) -> int:
        return sum(value.size_bytes for value in self.pending.get(producer_id, {}).values())

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        return self.committed.get(topic, {}).get(partition)

    def partitions(self) -> list[tuple[str, int]]:
        committed = [(topic, number) for topic, numbers in self.committed.items() for number in numbers]
        pending = [each for offsets in self.pending.values() for each in offsets]
        return list(dict.fromkeys(committed + pending))

    def growth_bytes(self, commits: Sequence[tuple[str, int, CommittedOffset]]) -> int:
        growth = 0
        for (topic, partition), value in {commit[:2]: commit[2] for commit in commits}.items():
            existing = self.get(topic, partition)
            growth += value.size_bytes - (0 if existing is None else existing.size_bytes)
        return growth

    def is_unstable(self, topic: str, partition: int) -> bool:
        return any((topic, partition) in offsets for offsets in self.pending.values())

    def __iter__(self) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, partitions in self.committed.items():
            for partition, value in partitions.items():
                yield topic, partition, value

    def __bool__(self) -> bool:
        return bool(self.committed or self.pending)


@dataclass(slots=True)
class TimeWithoutMembers:
    """The time at which a group was first seen without members; a new generation resets this time."""

    generation: int = _NEVER_SEEN
    since_ms: int = 0

    def begin(self, generation: int, now_ms: int) -> int:
        if generation != self.generation:
            self.generation, self.since_ms = generation, now_ms
        return self.since_ms

    def end(self) -> None:
        self.generation = _NEVER_SEEN


def expired_offsets(offsets: GroupOffsets, *, since_ms: int, now_ms: int, retention_ms: int) -> list[tuple[str, int]]:
    return [
        (topic, number)
        for topic, number, value in offsets
        if now_ms - max(since_ms, value.commit_timestamp_ms) >= retention_ms and not offsets.is_unstable(topic, number)
    ]
