"""Rewriting of the coordinators' records, if a clone lacks partitions or if its topics have other names or ids.

    record of __consumer_offsets            in the clone
    offset commit                           kept if its partition is cloned, with the topic's new name and id
    classic group                           kept without members, if one of its offset commits is kept
    epochs of consumer and streams groups   kept, if one of the group's offset commits is kept
    members, assignments, share groups      dropped, because they name topics that the clone lacks
    record of __transaction_state           in the clone
    transactional id                        kept if its producer wrote to a cloned partition, or if its last state names
                                            one; it then names only cloned partitions

A record that cannot be decoded is kept. Kafka's coordinators skip records of unknown types.

For each group and transactional id, either all records are dropped, or the record with the last state is kept.

Source: Kafka's GroupMetadataManager.replay and TransactionStateManager.loadTransactionMetadata.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

from sediment.compaction.rewrite.verdicts import Action, Verdict, Verdicts
from sediment.engine.clone.log_rewrite import change_records
from sediment.engine.clone.source import SourceTopic, fetch_partition
from sediment.engine.log_config import LogConfig
from sediment.segment_io.format.names import INTERNAL_TOPICS, Attempt, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    CoordinatorRecord,
    decode_coordinator_record,
    encode_coordinator_key,
    encode_coordinator_value,
)
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.slices import ALL, Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.tables.planning import plan_table
from sediment.segment_io.tables.readers import read_table
from sediment.segment_io.tables.schema import TableRequest

_OFFSET_COMMITS = frozenset({m.LegacyOffsetCommitKey.API_KEY, m.OffsetCommitKey.API_KEY})
_KEPT_OF_A_GROUP = frozenset(
    key.API_KEY
    for key in (
        m.ConsumerGroupMetadataKey,
        m.ConsumerGroupTargetAssignmentMetadataKey,
        m.StreamsGroupMetadataKey,
        m.StreamsGroupTargetAssignmentMetadataKey,
    )
)
_NO_ID = uuid.UUID(int=0)
# Kafka's TransactionState
_PREPARE_COMMIT = 2
_UNFINISHED = {1: "ongoing", _PREPARE_COMMIT: "being committed", 3: "being aborted", 7: "being fenced"}


@dataclass(frozen=True, slots=True)
class ClonedNames:
    """`names` and `ids` are the new names and topic ids, keyed by the topic's name in the source."""

    partitions: frozenset[TopicPartition]
    names: Mapping[str, str]
    ids: Mapping[str, uuid.UUID]
    producer_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class CoordinatedTransaction:
    """A transaction that its coordinator will end in `partitions`; `state` is a participle for people."""

    transactional_id: str
    state: str
    timeout_ms: int
    partitions: frozenset[TopicPartition]


@dataclass(slots=True)
class RewriteCounts:
    kept: int = 0
    dropped: int = 0
    records_changed: int = 0


@dataclass(frozen=True, slots=True)
class _Record:
    offset: int
    key: bytes
    value: bytes | None
    decoded: CoordinatorRecord


@dataclass(slots=True)
class _Changes:
    first: list[Verdict] = field(default_factory=list)
    second: list[Verdict] = field(default_factory=list)

    def drop(self, record: _Record) -> None:
        self.first.append(Verdict(record.offset, Action.DROP))

    def replace(self, record: _Record, key: Any, value: Any | None) -> None:
        encoded = encode_coordinator_key(key)
        if encoded != record.key:
            self.first.append(Verdict(record.offset, Action.REPLACE_KEY, encoded))
        version = record.decoded.value_version
        if value is not None and version is not None:
            content = encode_coordinator_value(value, version)
            if content != record.value:
                self.second.append(Verdict(record.offset, Action.REPLACE_VALUE, content))


def rewrite_coordinator_log(
    partition: TopicPartition,
    directory: Path,
    config: LogConfig,
    checkpoints: PartitionCheckpoints,
    names: ClonedNames,
    fs: Fs,
    *,
    run_id: str,
) -> tuple[RewriteCounts, int | None]:
    """Return the counts, and the new cleaner checkpoint."""
    decide = {CONSUMER_OFFSETS: _group_changes, TRANSACTION_STATE: _transaction_changes}.get(partition.topic)
    first_dirty = checkpoints.first_dirty
    if decide is None:
        return RewriteCounts(), first_dirty
    changes, counts = decide(lambda: _read(partition, directory, fs), names)
    for number, verdicts in enumerate((changes.first, changes.second)):
        if not verdicts:
            continue
        counts.records_changed += len(verdicts)
        first_dirty = change_records(
            partition,
            directory,
            Verdicts.of(verdicts),
            config.compaction,
            with_fields(checkpoints, first_dirty=first_dirty),
            fs,
            Attempt(run_id, f"names-{number}"),
        )
    return counts, first_dirty


def committing_producers(topic: SourceTopic, until_ms: int | None, fs: Fs) -> frozenset[int]:
    """Return the producers whose transaction was being committed at `until_ms`, or at the log end if it is None."""
    bounds = ALL if until_ms is None else Bounds(end_timestamp_ms=until_ms + 1)
    values = _last_states(topic, fs, bounds).values()
    return frozenset(value.producer_id for value in values if value.transaction_status == _PREPARE_COMMIT)


def coordinated_transactions(topic: SourceTopic, fs: Fs) -> dict[int, CoordinatedTransaction]:
    found = {}
    for transactional_id, value in _last_states(topic, fs, ALL).items():
        if value.transaction_status not in _UNFINISHED:
            continue
        transaction = CoordinatedTransaction(
            transactional_id,
            _UNFINISHED[value.transaction_status],
            value.transaction_timeout_ms,
            frozenset(
                TopicPartition(each.topic, number)
                for each in value.transaction_partitions or ()
                for number in each.partition_ids
            ),
        )
        for producer_id in (value.producer_id, value.previous_producer_id, value.next_producer_id):
            if producer_id >= 0:
                found[producer_id] = transaction
    return found


def _last_states(topic: SourceTopic, fs: Fs, bounds: Bounds) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for replicas in topic.replicas.values():
        replica = replicas[0]
        fetch_partition(replica, fs)
        for record in _read(replica.partition, replica.path, fs, bounds):
            found[record.decoded.key.transactional_id] = record.decoded.value
    return {transactional_id: value for transactional_id, value in found.items() if value is not None}


def transactional_producers(topic: SourceTopic | None, fs: Fs) -> frozenset[int]:
    """A transactional id keeps its producer id, even if no log has a record of the producer."""
    found: set[int] = set()
    for replicas in () if topic is None else topic.replicas.values():
        replica = replicas[0]
        fetch_partition(replica, fs)
        for record in _read(replica.partition, replica.path, fs):
            value = record.decoded.value
            if value is not None:
                found |= {value.producer_id, value.next_producer_id}
    return frozenset(found)


def _read(partition: TopicPartition, directory: Path, fs: Fs, bounds: Bounds = ALL) -> Iterator[_Record]:
    request = TableRequest(columns=("key", "value", "offset", "control"), bounds=bounds)
    for task in plan_table(request, [Source(partition, directory)], fs):
        for rows in read_table(request, task, fs, follow=False):
            for key, value, offset, is_control in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                decoded = None if is_control else decode_coordinator_record(partition.topic, key, value)
                if decoded is not None:
                    yield _Record(offset, key, value, decoded)


# --------------------------------------------------------------------------------------------------------------- groups
def _group_changes(read: Any, names: ClonedNames) -> tuple[_Changes, RewriteCounts]:
    groups = _groups_of(read(), names)
    changes, dropped = _Changes(), set()
    for record in read():
        key = record.decoded.key
        group = _group_id(key)
        if group not in groups:
            dropped.add(group)
            changes.drop(record)
        elif key.API_KEY in _OFFSET_COMMITS:
            _change_commit(record, names, changes)
        elif key.API_KEY == m.GroupMetadataKey.API_KEY:
            _empty_classic_group(record, changes)
        elif key.API_KEY not in _KEPT_OF_A_GROUP:
            changes.drop(record)
    return changes, RewriteCounts(len(groups), len(dropped))


def _groups_of(records: Iterable[_Record], names: ClonedNames) -> frozenset[str]:
    live: dict[tuple[str, str, int], bool] = {}
    for record in records:
        key = record.decoded.key
        if key.API_KEY in _OFFSET_COMMITS and TopicPartition(key.topic, key.partition) in names.partitions:
            live[key.group, key.topic, key.partition] = record.value is not None
    return frozenset(group for (group, _, _), is_live in live.items() if is_live)


def _group_id(key: Any) -> str:
    group: str = key.group if hasattr(key, "group") else key.group_id
    return group


def _change_commit(record: _Record, names: ClonedNames, changes: _Changes) -> None:
    key, value = record.decoded.key, record.decoded.value
    topic = key.topic
    if TopicPartition(topic, key.partition) not in names.partitions:
        changes.drop(record)
        return
    key.topic = names.names.get(topic, topic)
    if value is not None and getattr(value, "topic_id", _NO_ID) != _NO_ID:
        value.topic_id = names.ids.get(topic, value.topic_id)
    changes.replace(record, key, value)


def _empty_classic_group(record: _Record, changes: _Changes) -> None:
    """Source: Kafka's ClassicGroup, state EMPTY."""
    value = record.decoded.value
    if value is not None and value.members:
        value.members, value.protocol, value.leader = [], None, None
        changes.replace(record, record.decoded.key, value)


# --------------------------------------------------------------------------------------------------------- transactions
def _transaction_changes(read: Any, names: ClonedNames) -> tuple[_Changes, RewriteCounts]:
    kept = _transactional_ids_of(read(), names)
    changes, dropped = _Changes(), set()
    for record in read():
        key, value = record.decoded.key, record.decoded.value
        if key.transactional_id not in kept:
            dropped.add(key.transactional_id)
            changes.drop(record)
        elif value is not None and value.transaction_partitions:
            value.transaction_partitions = _cloned(value.transaction_partitions, names)
            changes.replace(record, key, value)
    return changes, RewriteCounts(len(kept), len(dropped))


def _transactional_ids_of(records: Iterable[_Record], names: ClonedNames) -> frozenset[str]:
    kept: dict[str, bool] = {}
    for record in records:
        key, value = record.decoded.key, record.decoded.value
        kept[key.transactional_id] = value is not None and (
            value.producer_id in names.producer_ids
            or any(
                each.topic not in INTERNAL_TOPICS and TopicPartition(each.topic, number) in names.partitions
                for each in value.transaction_partitions or ()
                for number in each.partition_ids
            )
        )
    return frozenset(name for name, is_kept in kept.items() if is_kept)


def _cloned(partitions: Iterable[Any], names: ClonedNames) -> list[Any]:
    found = []
    for each in partitions:
        numbers = [n for n in each.partition_ids if TopicPartition(each.topic, n) in names.partitions]
        if numbers:
            topic = names.names.get(each.topic, each.topic)
            found.append(m.TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=numbers))
    return found
