"""Replay of `__consumer_offsets`."""

from __future__ import annotations

import json
import logging
import random
import uuid
from pathlib import Path

import pytest

from sediment.segment_io.fs import Fs
from sediment.segment_io.protocol import messages as m
from sediment.server.coordinator_log import CoordinatorTopic, coordinator_partition
from sediment.server.groups.stored_groups import GroupKind, StoredGroup, replay_groups
from tests.segments import NOW_MS
from tests.server.groups.coordinator_logs import (
    CoordinatorLogBuilder,
    group_key,
    group_value,
    offset_key,
    offset_value,
    offsets_of,
    versioned,
)

GOLDEN = Path(__file__).parents[2] / "data" / "kafka-4.2.0-coordinator-records.jsonl"


@pytest.fixture
def log(tmp_path: Path) -> CoordinatorLogBuilder:
    return CoordinatorLogBuilder(tmp_path)


# ------------------------------------------------------------------------------------------------------------- offsets
def test_the_last_commit_of_a_partition_counts(log: CoordinatorLogBuilder) -> None:
    for offset in range(5):
        log.commit("readers", offset)
        log.commit("readers", offset * 10, partition=1)
    assert offsets_of(log.replay()["readers"]) == {("orders", 0): 4, ("orders", 1): 40}


def test_a_commit_keeps_all_its_fields(log: CoordinatorLogBuilder) -> None:
    topic_id = uuid.UUID(int=7)
    value = m.OffsetCommitValue(offset=5, leader_epoch=3, metadata="note", commit_timestamp=NOW_MS, topic_id=topic_id)
    log.add(offset_key("readers"), versioned(4, value, 4))
    found = log.replay()["readers"].offsets.get("orders", 0)
    assert found is not None
    assert (found.offset, found.leader_epoch, found.metadata) == (5, 3, "note")
    assert (found.commit_timestamp_ms, found.topic_id, found.record_offset) == (NOW_MS, topic_id, 0)


def test_a_group_that_only_commits_is_classic_without_protocol_type(log: CoordinatorLogBuilder) -> None:
    log.commit("readers", 1)
    group = log.replay()["readers"]
    assert (group.kind, group.protocol_type, group.generation) == (GroupKind.CLASSIC, None, 0)


def test_a_tombstone_removes_an_offset_and_the_group_stays(log: CoordinatorLogBuilder) -> None:
    log.commit("readers", 1)
    log.commit("readers", None)
    assert offsets_of(log.replay()["readers"]) == {}


def test_a_commit_after_a_tombstone_counts(log: CoordinatorLogBuilder) -> None:
    log.commit("readers", 1)
    log.commit("readers", None)
    log.commit("readers", 2)
    assert offsets_of(log.replay()["readers"]) == {("orders", 0): 2}


def test_old_offsets_do_not_expire(log: CoordinatorLogBuilder) -> None:
    log.add(offset_key("readers"), versioned(1, m.OffsetCommitValue(offset=5, expire_timestamp=2), 1))
    assert offsets_of(log.replay()["readers"]) == {("orders", 0): 5}


def test_compressed_batches_and_records_above_the_end_offset(log: CoordinatorLogBuilder) -> None:
    for codec in range(5):
        log.add(offset_key("readers"), offset_value(codec), codec=codec)
    assert offsets_of(log.replay()["readers"]) == {("orders", 0): 4}
    assert offsets_of(replay_groups(log.up_to(2), Fs())["readers"]) == {("orders", 0): 1}


# -------------------------------------------------------------------------------------------------------- transactions
def test_offsets_of_a_transaction_count_from_its_commit_on(log: CoordinatorLogBuilder) -> None:
    log.commit("readers", 1)
    log.commit("readers", 2, producer_id=9)
    group = log.replay()["readers"]
    assert offsets_of(group) == {("orders", 0): 1}
    assert group.offsets.is_unstable("orders", 0)
    log.end(9, commit=True)
    group = log.replay()["readers"]
    assert offsets_of(group) == {("orders", 0): 2}
    assert not group.offsets.is_unstable("orders", 0)


def test_offsets_of_an_aborted_transaction_are_dropped(log: CoordinatorLogBuilder) -> None:
    log.commit("readers", 1)
    log.commit("readers", 2, producer_id=9)
    log.end(9, commit=False)
    group = log.replay()["readers"]
    assert offsets_of(group) == {("orders", 0): 1}
    assert not group.offsets.is_unstable("orders", 0)


def test_a_marker_ends_the_transaction_of_its_producer_only(log: CoordinatorLogBuilder) -> None:
    log.commit("readers", 1, producer_id=9)
    log.commit("auditors", 2, producer_id=9)
    log.commit("readers", 3, producer_id=10, partition=1)
    log.end(9, commit=True)
    groups = log.replay()
    assert offsets_of(groups["readers"]) == {("orders", 0): 1}
    assert offsets_of(groups["auditors"]) == {("orders", 0): 2}
    assert groups["readers"].offsets.is_unstable("orders", 1)


def test_a_plain_commit_after_that_of_a_transaction_wins_even_if_the_marker_follows(
    log: CoordinatorLogBuilder,
) -> None:
    log.commit("readers", 1, producer_id=9)
    log.commit("readers", 2)
    log.end(9, commit=True)
    assert offsets_of(log.replay()["readers"]) == {("orders", 0): 2}


def test_a_tombstone_removes_a_pending_offset(log: CoordinatorLogBuilder) -> None:
    log.commit("readers", 1, producer_id=9)
    log.commit("readers", None)
    log.end(9, commit=True)
    assert offsets_of(log.replay()["readers"]) == {}


# -------------------------------------------------------------------------------------------------------------- groups
def test_a_classic_group_keeps_generation_and_protocol_type(log: CoordinatorLogBuilder) -> None:
    log.add(group_key("readers"), group_value(3))
    log.add(group_key("readers"), group_value(7))
    group = log.replay()["readers"]
    assert (group.kind, group.generation, group.protocol_type) == (GroupKind.CLASSIC, 7, "consumer")


def test_a_deleted_group_is_gone_with_its_leftover_offsets(log: CoordinatorLogBuilder) -> None:
    log.add(group_key("readers"), group_value())
    log.commit("readers", 1)
    log.add(group_key("readers"), None)
    assert log.replay() == {}


@pytest.mark.parametrize(
    ("number", "key", "value", "kind"),
    [
        (3, m.ConsumerGroupMetadataKey, m.ConsumerGroupMetadataValue(epoch=4), GroupKind.CONSUMER),
        (11, m.ShareGroupMetadataKey, m.ShareGroupMetadataValue(epoch=4), GroupKind.SHARE),
        (17, m.StreamsGroupMetadataKey, m.StreamsGroupMetadataValue(epoch=4), GroupKind.STREAMS),
    ],
)
def test_groups_of_other_protocols_keep_their_kind_and_offsets(
    log: CoordinatorLogBuilder, number: int, key: type, value: object, kind: GroupKind
) -> None:
    log.add(versioned(number, key(group_id="readers")), versioned(0, value))
    log.commit("readers", 5)
    group = log.replay()["readers"]
    assert (group.kind, offsets_of(group)) == (kind, {("orders", 0): 5})
    log.add(versioned(number, key(group_id="readers")), None)
    assert log.replay() == {}


def test_every_record_of_kafka_is_taken(log: CoordinatorLogBuilder, caplog: pytest.LogCaptureFixture) -> None:
    records = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    records = [record for record in records if record["topic"] == "__consumer_offsets"]
    for record in records:
        log.add(bytes.fromhex(record["key"]), bytes.fromhex(record["value"]))
    groups = log.replay()
    assert caplog.records == []
    commits = {record["keyJson"]["group"] for record in records if "OFFSET_COMMIT" in record["name"]}
    assert commits <= set(groups)


# ------------------------------------------------------------------------------------------------------- damage, merge
def test_records_that_cannot_be_decoded_are_left_out_with_one_warning(
    log: CoordinatorLogBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    log.commit("readers", 1)
    for key, value in (
        (b"\0\1", b""),
        (offset_key("readers", partition=1), b"\0\x63"),
        (b"", b""),
        (b"\0\x63", b"later type"),
    ):
        log.add(key, value)
    with caplog.at_level(logging.WARNING):
        assert offsets_of(log.replay()["readers"]) == {("orders", 0): 1}
    assert [record.getMessage() for record in caplog.records] == [
        "__consumer_offsets-0: records that cannot be decoded are skipped: 4"
    ]


def test_a_corrupt_batch_is_left_out_and_named(log: CoordinatorLogBuilder, caplog: pytest.LogCaptureFixture) -> None:
    for offset in range(3):
        log.commit("readers", offset, partition=offset)
    path = log.write().source.directory / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[len(log.batches[0]) + 70] ^= 1
    path.write_bytes(content)
    groups = replay_groups(log.log, Fs())
    assert offsets_of(groups["readers"]) == {("orders", 0): 0, ("orders", 2): 2}
    assert "__consumer_offsets-0" in caplog.text


def test_of_two_partitions_with_a_group_the_one_that_its_id_belongs_to_counts(tmp_path: Path) -> None:
    logs = [CoordinatorLogBuilder(tmp_path, partition=number) for number in range(4)]
    for log in logs:
        log.commit("readers", log.source.partition.partition)
        log.commit(f"only-in-{log.source.partition.partition}", 5)
        log.write()
    own = coordinator_partition("readers", 4)
    for order in (logs, logs[::-1]):
        groups = CoordinatorTopic([log.log for log in order], 4).replay(lambda log: replay_groups(log, Fs()))
        assert offsets_of(groups["readers"]) == {("orders", 0): own}
        assert len(groups) == 5


def test_the_replay_of_nothing_is_nothing(log: CoordinatorLogBuilder) -> None:
    assert log.replay() == {}
    assert CoordinatorTopic([], 50).replay(lambda log: replay_groups(log, Fs())) == {}


@pytest.mark.parametrize(
    ("key", "hash_code"),
    [
        ("", 0),
        ("a", 97),
        ("readers", 1080410128),
        ("polygenelubricants", -(1 << 31)),
        ("grüße", 98768023),
        ("\U0001f600", 1772899),
    ],
)
def test_the_partition_of_a_key_follows_javas_hash_code(key: str, hash_code: int) -> None:
    expected = 0 if hash_code == -(1 << 31) else abs(hash_code)
    assert coordinator_partition(key, 1 << 31) == expected
    assert coordinator_partition(key, 50) == expected % 50


@pytest.mark.parametrize("seed", range(4))
def test_random_commits_and_removals_leave_what_a_plain_list_of_them_leaves(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    log = CoordinatorLogBuilder(tmp_path)
    offsets: dict[tuple[str, str, int], int] = {}
    groups: set[str] = set()
    for offset in range(400):
        group, topic, partition = f"g{dice.randrange(3)}", f"t{dice.randrange(2)}", dice.randrange(3)
        act = dice.random()
        key, value = offset_key(group, topic, partition), offset_value(offset)
        if act > 0.97:
            key = versioned(0, m.LegacyOffsetCommitKey(group=group, topic=topic, partition=partition))
            value = versioned(0, m.LegacyOffsetCommitValue(offset=offset, metadata="", commit_timestamp=NOW_MS))
        if act < 0.8 or act > 0.985:
            log.add(key, value)
            offsets[group, topic, partition] = offset
            groups.add(group)
        elif act < 0.9 or act > 0.97:
            log.add(key, None)
            offsets.pop((group, topic, partition), None)
        elif act < 0.94:
            log.add(group_key(group), None)
            groups.discard(group)
        else:
            log.add(group_key(group), group_value())
            groups.add(group)
    found = log.replay()
    assert found.keys() == groups
    for group_id, group in found.items():
        wanted = {(topic, partition): each for (name, topic, partition), each in offsets.items() if name == group_id}
        assert offsets_of(group) == wanted


def test_a_stored_group_starts_without_kind() -> None:
    assert StoredGroup().kind is None
