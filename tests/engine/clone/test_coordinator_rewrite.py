"""Logs of coordinators whose records name topics that a clone lacks, or has under another name or id."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sediment.engine.clone.coordinator_rewrite import (
    ClonedNames,
    RewriteCounts,
    committing_producers,
    rewrite_coordinator_log,
)
from sediment.engine.clone.source import SourceTopic
from sediment.engine.log_config import LogConfig
from sediment.engine.replicas import ClusterDirectory, Replica
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    decode_coordinator_record,
    encode_coordinator_key,
    encode_coordinator_value,
)
from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints, PartitionCheckpoints
from sediment.segment_io.protocol import messages as m
from tests.segments import NOW_MS, write_segment
from tests.twin.batches import Record, encode_batch
from tests.twin.segments import list_segments

OLD_ID, NEW_ID, OTHER_ID = uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=3)
CHECKPOINTS = PartitionCheckpoints(clean_shutdown=True, first_dirty=2)
Pair = tuple[bytes, bytes | None]


def pair(key: Any, value: Any | None, version: int = 0) -> Pair:
    return encode_coordinator_key(key), None if value is None else encode_coordinator_value(value, version)


def committed(group: str, topic: str, partition: int, offset: int | None, topic_id: uuid.UUID = OLD_ID) -> Pair:
    key = m.OffsetCommitKey(group=group, topic=topic, partition=partition)
    value = None if offset is None else m.OffsetCommitValue(offset=offset, metadata="", topic_id=topic_id)
    return pair(key, value, 4)


def classic(group: str, *members: str) -> Pair:
    rows = [m.GroupMetadataValue.MemberMetadata(member_id=name, client_id="c", client_host="h") for name in members]
    value = m.GroupMetadataValue(protocol_type="consumer", generation=7, protocol="range", leader="a", members=rows)
    return pair(m.GroupMetadataKey(group=group), value, 3)


def consumer_group(group: str) -> list[Pair]:
    """Records of a group of the new protocol with one member."""
    assigned = [m.ConsumerGroupTargetAssignmentMemberValue.TopicPartition(topic_id=OLD_ID, partitions=[0])]
    return [
        pair(m.ConsumerGroupMemberMetadataKey(group_id=group, member_id="m"), m.ConsumerGroupMemberMetadataValue()),
        pair(m.ConsumerGroupMetadataKey(group_id=group), m.ConsumerGroupMetadataValue(epoch=4)),
        pair(
            m.ConsumerGroupTargetAssignmentMemberKey(group_id=group, member_id="m"),
            m.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=assigned),
        ),
        pair(
            m.ConsumerGroupTargetAssignmentMetadataKey(group_id=group),
            m.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=4),
        ),
    ]


def transaction(name: str, producer_id: int, status: int, *topics: str) -> Pair:
    rows = [m.TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=[0, 1]) for topic in topics]
    value = m.TransactionLogValue(producer_id=producer_id, transaction_status=status, transaction_partitions=rows)
    return pair(m.TransactionLogKey(transactional_id=name), value, 1)


def write_log(directory: Path, pairs: Sequence[Pair]) -> Path:
    """Write a log with two records a batch."""
    records = [Record(offset, NOW_MS, key, value) for offset, (key, value) in enumerate(pairs)]
    batches = [encode_batch(records[at : at + 2], base_offset=at, leader_epoch=0) for at in range(0, len(records), 2)]
    write_segment(directory, 0, batches)
    return directory


def decoded(directory: Path, topic: str) -> list[tuple[int, Any, Any]]:
    found = []
    for segment in list_segments(directory):
        for _, batch in segment.batches():
            assert batch.is_valid()
            for record in batch.records():
                each = decode_coordinator_record(topic, record.key, record.value)
                assert each is not None
                found.append((record.offset, each.key, each.value))
    return found


def rewrite(directory: Path, topic: str, names: ClonedNames) -> tuple[RewriteCounts, int | None]:
    partition = TopicPartition(topic, 0)
    return rewrite_coordinator_log(partition, directory, LogConfig(), CHECKPOINTS, names, Fs(), run_id="run")


NAMES = ClonedNames(
    partitions=frozenset({TopicPartition("orders", 0)}),
    names={"orders": "o2"},
    ids={"orders": NEW_ID},
    producer_ids=frozenset({5}),
)


def test_offset_commits_get_the_new_name_and_id(tmp_path: Path) -> None:
    log = write_log(
        tmp_path / "l", [committed("g", "orders", 0, 11), committed("g", "orders", 0, 12, uuid.UUID(int=0))]
    )
    counts, _ = rewrite(log, CONSUMER_OFFSETS, NAMES)
    found = decoded(log, CONSUMER_OFFSETS)
    assert [(offset, key.topic, value.offset, value.topic_id) for offset, key, value in found] == [
        (0, "o2", 11, NEW_ID),
        (1, "o2", 12, uuid.UUID(int=0)),
    ]
    assert (counts.kept, counts.dropped) == (1, 0)


def test_groups_without_an_offset_of_a_cloned_partition_are_dropped(tmp_path: Path) -> None:
    pairs = [
        committed("kept", "orders", 0, 11),
        committed("kept", "orders", 1, 12),
        committed("kept", "prices", 0, 13, OTHER_ID),
        classic("kept"),
        committed("other", "prices", 0, 14, OTHER_ID),
        classic("other"),
        committed("gone", "orders", 0, 15),
        committed("gone", "orders", 0, None),
    ]
    log = write_log(tmp_path / "l", pairs)
    counts, _ = rewrite(log, CONSUMER_OFFSETS, NAMES)
    assert [offset for offset, _, _ in decoded(log, CONSUMER_OFFSETS)] == [0, 3]
    assert (counts.kept, counts.dropped) == (1, 2)


def test_groups_come_along_without_members_and_assignments(tmp_path: Path) -> None:
    pairs = [
        classic("old", "a", "b"),
        committed("old", "orders", 0, 1),
        *consumer_group("new"),
        committed("new", "orders", 0, 2),
    ]
    log = write_log(tmp_path / "l", pairs)
    rewrite(log, CONSUMER_OFFSETS, NAMES)
    found = decoded(log, CONSUMER_OFFSETS)
    assert [type(key).__name__ for _, key, _ in found] == [
        "GroupMetadataKey",
        "OffsetCommitKey",
        "ConsumerGroupMetadataKey",
        "ConsumerGroupTargetAssignmentMetadataKey",
        "OffsetCommitKey",
    ]
    group = found[0][2]
    assert (group.members, group.leader, group.protocol, group.generation) == ((), None, None, 7)


def test_the_log_end_and_the_cleaner_checkpoint_stay_true(tmp_path: Path) -> None:
    pairs = [committed("other", "prices", 0, n) for n in range(4)]
    log = write_log(tmp_path / "l", pairs)
    _, first_dirty = rewrite(log, CONSUMER_OFFSETS, NAMES)
    (segment,) = list_segments(log)
    assert max(batch.last_offset for _, batch in segment.batches()) == 3
    assert first_dirty == 2
    renamed = write_log(tmp_path / "renamed", [committed("g", "orders", 0, n) for n in range(4)])
    assert rewrite(renamed, CONSUMER_OFFSETS, NAMES)[1] == 0  # an older record may have the new key


def test_records_that_cannot_be_decoded_are_kept(tmp_path: Path) -> None:
    log = write_log(tmp_path / "l", [(b"\x7f\xff", b"later"), committed("other", "prices", 0, 1)])
    rewrite(log, CONSUMER_OFFSETS, NAMES)
    (segment,) = list_segments(log)
    assert [record.key for _, batch in segment.batches() for record in batch.records()] == [b"\x7f\xff"]


def test_transactional_ids_keep_only_cloned_partitions(tmp_path: Path) -> None:
    pairs = [
        transaction("both", 9, 1, "orders", "prices"),
        transaction("other", 8, 1, "prices"),
        transaction("producer", 5, 4),
    ]
    log = write_log(tmp_path / "l", pairs)
    counts, _ = rewrite(log, TRANSACTION_STATE, NAMES)
    found = {key.transactional_id: value for _, key, value in decoded(log, TRANSACTION_STATE)}
    assert found.keys() == {"both", "producer"}
    assert [(each.topic, list(each.partition_ids)) for each in found["both"].transaction_partitions] == [("o2", [0])]
    assert (counts.kept, counts.dropped) == (2, 1)


def test_a_second_rewrite_changes_nothing(tmp_path: Path) -> None:
    log = write_log(tmp_path / "l", [classic("g", "a"), committed("g", "orders", 0, 1)])
    names = ClonedNames(NAMES.partitions, {}, {"orders": OLD_ID})
    rewrite(log, CONSUMER_OFFSETS, names)
    before = {path.name: path.read_bytes() for path in log.iterdir()}
    counts, _ = rewrite(log, CONSUMER_OFFSETS, names)
    assert counts.records_changed == 0
    assert {path.name: path.read_bytes() for path in log.iterdir()} == before


def test_committing_producers_are_those_whose_last_state_says_so(tmp_path: Path) -> None:
    directory = tmp_path / f"{TRANSACTION_STATE}-0"
    write_log(directory, [transaction("a", 1, 2, "t"), transaction("b", 2, 2, "t"), transaction("b", 2, 4, "t")])
    log_dir = ClusterDirectory(tmp_path, None, LogDirCheckpoints(None, None, None, None, clean_shutdown=True), ())
    replica = Replica(log_dir, TopicPartition(TRANSACTION_STATE, 0))
    topic = SourceTopic(TRANSACTION_STATE, None, 1, {0: (replica,)})
    assert committing_producers(topic, None, Fs()) == {1}
    assert committing_producers(topic, NOW_MS - 1, Fs()) == frozenset()
