"""Replay of `__consumer_offsets`: the groups of a log directory and their offsets.

    key type    record                        effect
    0, 1        offset commit                 offset of a partition; pending in a transaction without a marker
    2           classic group                 generation with its members
    3 to 8, 16  consumer group                its members and assignments
    11, 17      share, streams                kind of the group
    10, 19      member of such a group        id of a member
    others      assignments                   no effect

A read-only server ignores the stored members, because no member from its directory can return.

Records that cannot be decoded are skipped, with one warning for each partition.

Source: Kafka's GroupMetadataManager.replay and OffsetMetadataManager.replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sediment.segment_io.errors import UnsupportedDataError
from sediment.segment_io.format.layout import NO_PRODUCER_ID
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import (
    CONSUMER_OFFSETS,
    decode_control_record,
    decode_coordinator_record,
)
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.tables.planning import UnreadableRange
from sediment.segment_io.tables.schema import FAIL, SKIP
from sediment.server.coordinator_log import CoordinatorLog, LoggedRecord, read_coordinator_records, warn_of_unreadable
from sediment.server.groups.consumer.consumer_group import CONSUMER_GROUP_KEYS, ConsumerGroup
from sediment.server.groups.consumer.group_records import GroupRecord
from sediment.server.groups.group_offsets import CommittedOffset, GroupOffsets
from sediment.server.groups.group_requests import StableGroup
from sediment.server.groups.offset_records import committed_offset, decode_committed_offset, stable_group

_LOGGER = logging.getLogger(__name__)
_PARTITION_BYTES = 4  # the partition number at the end of an offset commit's key
_CLASSIC_GROUP = m.GroupMetadataKey.API_KEY
_OFFSET_COMMITS = (m.LegacyOffsetCommitKey.API_KEY, m.OffsetCommitKey.API_KEY)


class GroupKind(Enum):
    """The kind of a group; the value is Kafka's name."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


_KINDS = {
    m.ConsumerGroupMetadataKey.API_KEY: GroupKind.CONSUMER,
    m.ShareGroupMetadataKey.API_KEY: GroupKind.SHARE,
    m.StreamsGroupMetadataKey.API_KEY: GroupKind.STREAMS,
}
_MEMBERS = frozenset(
    key.API_KEY
    for key in (m.ConsumerGroupMemberMetadataKey, m.ShareGroupMemberMetadataKey, m.StreamsGroupMemberMetadataKey)
)


@dataclass(slots=True)
class StoredGroup:
    """`classic` is the last stable generation of a classic group."""

    kind: GroupKind | None = None
    generation: int = 0
    protocol_type: str | None = None
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    members: set[str] = field(default_factory=set)
    classic: StableGroup | None = None
    consumer: ConsumerGroup | None = None


def replay_groups(
    log: CoordinatorLog,
    fs: Fs,
    *,
    on_corruption: str = SKIP,
    on_unreadable: Callable[[UnreadableRange], None] = warn_of_unreadable,
) -> dict[str, StoredGroup]:
    replay = _Replay()
    unknown = 0
    for record in read_coordinator_records(log, fs, on_corruption=on_corruption, on_unreadable=on_unreadable):
        unknown += not replay.add(record)
    if unknown and on_corruption == FAIL:
        raise UnsupportedDataError(
            f"records that cannot be decoded: {unknown}",
            partition=str(log.source.partition),
            path=str(log.source.directory),
            advice="use a Sediment version that supports this Kafka version, or skip these records with on_corruption",
        )
    if unknown:
        _LOGGER.warning("%s: records that cannot be decoded are skipped: %d", log.source.partition, unknown)
    return {group_id: group for group_id, group in replay.groups.items() if group.kind is not None}


class _Replay:
    """`_open` contains the groups with pending offsets, by producer id.

    `_topic_offsets` has one entry for the offsets of each group and topic. The key of the entry is the prefix that all
    its record keys have in common. So only one of these record keys has to be decoded.
    """

    def __init__(self) -> None:
        self.groups: dict[str, StoredGroup] = {}
        self._open: dict[int, set[str]] = {}
        self._topic_offsets: dict[bytes, dict[int, CommittedOffset]] = {}

    def add(self, record: LoggedRecord) -> bool:
        key, value, offset, producer_id, is_control = record
        if is_control:
            return self._end_transaction(record)
        topic_offsets = self._topic_offsets.get(key[:-_PARTITION_BYTES])
        if topic_offsets is not None and value is not None and producer_id == NO_PRODUCER_ID:
            committed = decode_committed_offset(value, offset)
            if committed is not None:
                topic_offsets[int.from_bytes(key[-_PARTITION_BYTES:], "big", signed=True)] = committed
            return committed is not None
        return self._add_decoded(record)

    def _add_decoded(self, record: LoggedRecord) -> bool:
        decoded = decode_coordinator_record(CONSUMER_OFFSETS, record.key, record.value)
        if decoded is None:
            return False
        key, value = decoded.key, decoded.value
        kind = key.API_KEY
        if kind in CONSUMER_GROUP_KEYS:
            self._change_consumer_group(GroupRecord(key, value))
        if kind in _OFFSET_COMMITS:
            self._commit(record, key, value)
        elif kind == _CLASSIC_GROUP:
            self._set_kind(key.group, None if value is None else GroupKind.CLASSIC)
            if value is not None:
                group = self._group(key.group)
                group.generation, group.protocol_type = value.generation, value.protocol_type or None
                group.members = {member.member_id for member in value.members}
                group.classic = stable_group(value)
        elif kind in _KINDS:
            self._set_kind(key.group_id, None if value is None else _KINDS[kind])
        elif kind in _MEMBERS:
            members = self._group(key.group_id).members
            members.discard(key.member_id) if value is None else members.add(key.member_id)
        return True

    def _change_consumer_group(self, record: GroupRecord) -> None:
        """Apply a record of a consumer group; the group is complete only if it has the record of its epoch."""
        group = self._group(record.key.group_id)
        if record.value is not None and group.classic is None and group.kind in (None, GroupKind.CLASSIC):
            group.kind = GroupKind.CONSUMER
        if record.value is not None and group.consumer is None:
            group.consumer = ConsumerGroup(record.key.group_id)
        if group.consumer is not None:
            group.consumer.replay(record)

    def _group(self, group_id: str) -> StoredGroup:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = StoredGroup()
        return group

    def _set_kind(self, group_id: str, kind: GroupKind | None) -> None:
        group = self._group(group_id)
        group.kind, group.generation, group.protocol_type, group.classic = kind, 0, None, None
        if kind is None:
            group.members.clear()
        if kind is not GroupKind.CONSUMER:
            group.consumer = None
        if kind is None:
            self._topic_offsets.clear()  # the next commit creates the group again

    def _commit(self, record: LoggedRecord, key: Any, value: Any) -> None:
        group = self._group(key.group)
        if value is None:
            group.offsets.remove(key.topic, key.partition)
            self._topic_offsets.clear()  # the group may have no other offsets of this topic
            return
        group.kind = group.kind or GroupKind.CLASSIC
        offset = committed_offset(value, record.offset)
        if record.producer_id == NO_PRODUCER_ID:
            group.offsets.commit(key.topic, key.partition, offset)
            if key.API_KEY == m.OffsetCommitKey.API_KEY:
                self._topic_offsets[record.key[:-_PARTITION_BYTES]] = group.offsets.committed[key.topic]
        else:
            group.offsets.commit_in_transaction(record.producer_id, key.topic, key.partition, offset)
            self._open.setdefault(record.producer_id, set()).add(key.group)

    def _end_transaction(self, record: LoggedRecord) -> bool:
        marker = decode_control_record(record.key, record.value)
        if marker is None:
            return False
        for group_id in self._open.pop(record.producer_id, ()):
            self.groups[group_id].offsets.end_transaction(record.producer_id, is_committed=marker["type"] == "COMMIT")
        return True
