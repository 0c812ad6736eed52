"""Partitions of coordinator topics, built record by record with the repository's own builders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import ALL, Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.protocol import messages as m
from sediment.server.coordinator_log import CoordinatorLog
from sediment.server.groups.stored_groups import StoredGroup, replay_groups
from tests.segments import ABORT, COMMIT, NOW_MS, marker_bytes, write_segment

OFFSETS = "__consumer_offsets"
STATES = "__transaction_state"


def versioned(number: int, message: Any, version: int = 0) -> bytes:
    return number.to_bytes(2, "big") + message.to_bytes(version)


def offset_key(group: str, topic: str = "orders", partition: int = 0) -> bytes:
    return versioned(1, m.OffsetCommitKey(group=group, topic=topic, partition=partition))


def offset_value(offset: int, version: int = 3, **fields: Any) -> bytes:
    value = m.OffsetCommitValue(offset=offset, metadata="", commit_timestamp=NOW_MS, **fields)
    return versioned(version, value, version)


def group_key(group: str) -> bytes:
    return versioned(2, m.GroupMetadataKey(group=group))


def group_value(generation: int = 7, protocol_type: str = "consumer") -> bytes:
    value = m.GroupMetadataValue(protocol_type=protocol_type, generation=generation, protocol=None, leader=None)
    return versioned(3, value, 3)


class CoordinatorLogBuilder:
    """Partition directory whose records are appended one batch each; `log` is what a coordinator replays."""

    def __init__(self, directory: Path, topic: str = OFFSETS, partition: int = 0) -> None:
        self.source = Source(TopicPartition(topic, partition), directory / f"{topic}-{partition}")
        self.batches: list[bytes] = []

    @property
    def log(self) -> CoordinatorLog:
        return CoordinatorLog(self.source, ALL)

    def up_to(self, end_offset: int) -> CoordinatorLog:
        return CoordinatorLog(self.source, Bounds(end_offset=end_offset))

    def add(self, key: bytes, value: bytes | None, *, producer_id: int = -1, codec: int = 0) -> None:
        head = BatchHead(
            base_offset=len(self.batches),
            leader_epoch=0,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            is_transactional=producer_id >= 0,
        )
        self.batches.append(build_batch([NewRecord(NOW_MS, key, value)], head))

    def commit(self, group: str, offset: int | None, *, producer_id: int = -1, partition: int = 0) -> None:
        """Commit an offset of a partition of `orders`; None removes it."""
        value = None if offset is None else offset_value(offset)
        self.add(offset_key(group, partition=partition), value, producer_id=producer_id)

    def end(self, producer_id: int, *, commit: bool) -> None:
        self.batches.append(marker_bytes(len(self.batches), COMMIT if commit else ABORT, producer_id=producer_id))

    def write(self) -> CoordinatorLogBuilder:
        write_segment(self.source.directory, 0, self.batches)
        return self

    def replay(self) -> dict[str, StoredGroup]:
        return replay_groups(self.write().log, Fs())


def offsets_of(group: StoredGroup) -> dict[tuple[str, int], int]:
    return {(topic, partition): value.offset for topic, partition, value in group.offsets}
