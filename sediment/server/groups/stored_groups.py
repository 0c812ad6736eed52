"""Replay of `__consumer_offsets`: groups and their offsets as a log directory holds them.

    key type    record                        effect
    0, 1        offset commit                 offset of a partition; in a transaction pending until its marker
    2           classic group                 generation and protocol type
    3, 11, 17   consumer, share, streams      kind of the group
    others      members and assignments       none

Members are not kept: a directory that is served read-only has no members that could come back.  Offsets do not expire.

Invariants: the result does not depend on records that a later one of the same key supersedes.  Records that cannot be
decoded are left out, with one warning for each partition.

Source: Kafka's GroupMetadataManager.replay and OffsetMetadataManager.replay.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from sediment.segment_io.errors import ProtocolError
from sediment.segment_io.format.layout import CONTROL_COMMIT, CONTROL_KEY_STRUCT, NO_PRODUCER_ID
from sediment.segment_io.fs import Fs
from sediment.segment_io.protocol import messages as m
from sediment.server.coordinator_log import (
    VERSION_BYTES,
    CoordinatorLog,
    LoggedRecord,
    coordinator_partition,
    read_records,
)
from sediment.server.groups.group_offsets import GroupOffsets
from sediment.server.groups.offset_records import decode_offset_key, decode_offset_value

_LOGGER = logging.getLogger(__name__)
_OFFSET_COMMITS = (m.LegacyOffsetCommitKey.API_KEY, m.OffsetCommitKey.API_KEY)


class GroupKind(Enum):
    """Kind of a group; the value is Kafka's name of it."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


_MODERN_GROUPS = {
    m.ConsumerGroupMetadataKey.API_KEY: (GroupKind.CONSUMER, m.ConsumerGroupMetadataKey),
    m.ShareGroupMetadataKey.API_KEY: (GroupKind.SHARE, m.ShareGroupMetadataKey),
    m.StreamsGroupMetadataKey.API_KEY: (GroupKind.STREAMS, m.StreamsGroupMetadataKey),
}


@dataclass(slots=True)
class StoredGroup:
    """Group of a log directory; `kind` is None if only leftover offsets of it are there."""

    kind: GroupKind | None = None
    generation: int = 0
    protocol_type: str | None = None
    offsets: GroupOffsets = field(default_factory=GroupOffsets)


def replay_groups(logs: Sequence[CoordinatorLog], partition_count: int, fs: Fs) -> dict[str, StoredGroup]:
    """Return the groups of the partitions in `logs`, by group id.

    `partition_count` is that of the topic.  If several partitions hold a group, the one that its id belongs to counts.

    Raises:
        SedimentError: a directory went away, or its files were replaced while they were read.
    """
    groups: dict[str, StoredGroup] = {}
    for log in logs:
        for group_id, group in _replay(read_records(log, fs), str(log.source.partition)).items():
            if group_id not in groups or coordinator_partition(group_id, partition_count) == log.partition:
                groups[group_id] = group
    return groups


def _replay(records: Iterable[LoggedRecord], name: str) -> Mapping[str, StoredGroup]:
    replay = _Replay()
    unknown = 0
    for record in records:
        try:
            replay.add(record)
        except ProtocolError:
            unknown += 1
    if unknown:
        _LOGGER.warning("%s: %d records cannot be decoded; they are left out", name, unknown)
    return {group_id: group for group_id, group in replay.groups.items() if group.kind is not None}


class _Replay:
    """State of the replay of one partition; `_open` are the groups with pending offsets, by producer id."""

    def __init__(self) -> None:
        self.groups: dict[str, StoredGroup] = {}
        self._open: dict[int, set[str]] = {}

    def add(self, record: LoggedRecord) -> None:
        """Apply one record.

        Raises:
            ProtocolError: it cannot be decoded; nothing was changed.
        """
        if record.is_control:
            self._end_transaction(record)
            return
        kind = int.from_bytes(record.key[:VERSION_BYTES], "big")
        if kind in _OFFSET_COMMITS:
            self._commit(record)
        elif kind == m.GroupMetadataKey.API_KEY:
            self._set_classic_group(record)
        elif kind in _MODERN_GROUPS:
            group_kind, key = _MODERN_GROUPS[kind]
            group = self._group(key.decode(record.key[VERSION_BYTES:], 0).group_id)
            group.kind = None if record.value is None else group_kind
            group.protocol_type = None

    def _group(self, group_id: str) -> StoredGroup:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = StoredGroup()
        return group

    def _commit(self, record: LoggedRecord) -> None:
        group_id, topic, partition = decode_offset_key(record.key)
        if record.value is None:
            if group_id in self.groups:
                self.groups[group_id].offsets.remove(topic, partition)
            return
        value = decode_offset_value(record.value, record.offset)
        group = self._group(group_id)
        group.kind = group.kind or GroupKind.CLASSIC
        if record.producer_id == NO_PRODUCER_ID:
            group.offsets.commit(topic, partition, value)
        else:
            group.offsets.commit_in_transaction(record.producer_id, topic, partition, value)
            self._open.setdefault(record.producer_id, set()).add(group_id)

    def _end_transaction(self, record: LoggedRecord) -> None:
        if len(record.key) != CONTROL_KEY_STRUCT.size:
            raise ProtocolError("the marker of a transaction has a key of another size")
        _, marker = CONTROL_KEY_STRUCT.unpack(record.key)
        for group_id in self._open.pop(record.producer_id, ()):
            self.groups[group_id].offsets.end_transaction(record.producer_id, is_committed=marker == CONTROL_COMMIT)

    def _set_classic_group(self, record: LoggedRecord) -> None:
        group_id = m.GroupMetadataKey.decode(record.key[VERSION_BYTES:], 0).group
        if record.value is None:
            if group_id in self.groups:
                self.groups[group_id].kind = None
            return
        version = int.from_bytes(record.value[:VERSION_BYTES], "big", signed=True)
        value = m.GroupMetadataValue.decode(record.value[VERSION_BYTES:], version)
        group = self._group(group_id)
        group.kind = GroupKind.CLASSIC
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
