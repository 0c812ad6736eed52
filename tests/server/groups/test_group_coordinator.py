"""Groups and their records in `__consumer_offsets`: deletions, and groups that are not used any more."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.groups.group_requests import MemberIdentity
from sediment.server.groups.stored_groups import GroupKind, StoredGroup
from tests.server.groups.offsets_logs import CHECK_MS, SESSION_MS, Coordinated, OffsetsLogs


@pytest.fixture
def groups(tmp_path: Path) -> Coordinated:
    made = Coordinated(OffsetsLogs(tmp_path))
    made.load()
    return made


# --------------------------------------------------------------------------------------------- groups that are not used
def test_a_group_whose_first_commit_is_being_written_is_not_removed(groups: Coordinated) -> None:
    with groups.logs.partition.held(threading.Thread(target=groups.commit, args=("g", 5))):
        groups.pass_ms(CHECK_MS)
    assert groups.offset("g") == 5


def test_a_group_that_is_being_deleted_is_removed_once(groups: Coordinated) -> None:
    assert groups.commit("g") == ErrorCode.NONE
    groups.coordinator.delete_offsets("g", [("t", 0)])
    errors: list[ErrorCode] = []
    deletion = threading.Thread(target=lambda: errors.append(groups.coordinator.delete("g")))
    with groups.logs.partition.held(deletion):
        groups.pass_ms(CHECK_MS)
        assert groups.groups() == {"g"}
    assert errors == [ErrorCode.NONE]
    assert groups.groups() == set()
    assert groups.commit("g", 6) == ErrorCode.NONE
    assert groups.offset("g") == 6


def test_a_group_that_is_not_used_any_more_does_not_return_after_a_restart(groups: Coordinated) -> None:
    assert groups.commit("g") == ErrorCode.NONE
    assert groups.coordinator.delete_offsets("g", [("t", 0)]) == (ErrorCode.NONE, [ErrorCode.NONE])
    assert set(groups.logs.replay()) == {"g"}
    groups.pass_ms(CHECK_MS)
    assert groups.groups() == set()
    assert groups.logs.replay() == {}


def test_a_group_without_records_is_removed_without_a_record(groups: Coordinated) -> None:
    groups.join("g", known=False)
    groups.pass_ms(CHECK_MS)
    assert groups.groups() == set()
    assert groups.logs.batches == 0


def test_a_group_of_a_later_protocol_stays_and_its_offsets_can_be_deleted(tmp_path: Path) -> None:
    groups = Coordinated(OffsetsLogs(tmp_path))
    groups.coordinator.load({"modern": StoredGroup(GroupKind.SHARE)})
    groups.pass_ms(CHECK_MS)
    assert groups.groups() == {"modern"}
    assert groups.coordinator.delete("modern") is ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert groups.logs.batches == 0
    assert groups.commit("modern") == ErrorCode.NONE
    assert groups.coordinator.delete_offsets("modern", [("t", 0)]) == (ErrorCode.NONE, [ErrorCode.NONE])
    assert groups.offset("modern") is None


# --------------------------------------------------------------------------------------------------------------- memory
def test_a_deleted_group_gives_back_the_memory_of_its_offsets_and_reserved_ids(groups: Coordinated) -> None:
    free_bytes = groups.coordinator.memory.free_bytes
    assert groups.commit("g") == ErrorCode.NONE
    for _ in range(10):
        assert groups.join("g", known=False).error is ErrorCode.MEMBER_ID_REQUIRED
    assert groups.coordinator.memory.free_bytes < free_bytes
    assert groups.coordinator.delete("g") is ErrorCode.NONE
    assert groups.coordinator.memory.free_bytes == free_bytes
    groups.pass_ms(SESSION_MS)
    assert groups.coordinator.memory.free_bytes == free_bytes


def test_a_group_is_deleted_once_if_its_topic_is_deleted_meanwhile(groups: Coordinated) -> None:
    free_bytes = groups.coordinator.memory.free_bytes
    assert groups.commit("g") == ErrorCode.NONE
    deletions = [
        threading.Thread(target=groups.coordinator.delete, args=("g",)),
        threading.Thread(target=groups.coordinator.topics_deleted, args=({"t"},)),
    ]
    with groups.logs.partition.held(*deletions):
        pass
    assert groups.logs.batches == 2  # the commit and the deletion
    assert groups.coordinator.memory.free_bytes == free_bytes


# ------------------------------------------------------------------------------------------------------- deleted topics
def test_topics_that_are_deleted_during_the_load_lose_their_offsets(tmp_path: Path) -> None:
    logs = OffsetsLogs(tmp_path)
    before = Coordinated(logs)
    before.load()
    for topic in ("t", "kept"):
        assert before.commit("g", topic=topic) == ErrorCode.NONE
    groups = Coordinated(logs)
    groups.coordinator.topics_deleted({"t"})
    groups.load()
    assert (groups.offset("g"), groups.offset("g", "kept")) == (None, 5)
    assert logs.replay()["g"].offsets.partitions() == [("kept", 0)]


def test_the_offsets_of_a_topic_are_deleted_in_one_batch_for_each_partition(tmp_path: Path) -> None:
    logs = OffsetsLogs(tmp_path, 2)
    groups = Coordinated(logs)
    groups.load()
    names = [f"group-{number}" for number in range(20)]
    for name in names:
        assert groups.commit(name) == ErrorCode.NONE
    assert groups.commit("other", topic="kept") == ErrorCode.NONE
    before = logs.batches
    groups.coordinator.topics_deleted({"t"})
    assert logs.batches == before + 2
    assert [groups.offset(name) for name in names] == [None] * 20
    assert groups.offset("other", "kept") == 5
    assert all(not group.offsets for name, group in logs.replay().items() if name != "other")


# ------------------------------------------------------------------------------------------------------------- the disk
def test_the_end_of_a_session_does_not_wait_for_the_disk_but_an_answer_does(tmp_path: Path) -> None:
    logs = OffsetsLogs(tmp_path, flushes=True)
    groups = Coordinated(logs)
    groups.load()
    log = logs.partition.log
    groups.stable("expired")
    assert log.recovery_point == log.log_end_offset == 1
    groups.pass_ms(SESSION_MS)
    assert groups.logs.replay()["expired"].members == set()
    assert (log.recovery_point, log.log_end_offset) == (1, 2)
    member_id = groups.stable("left")
    assert groups.coordinator.leave("left", [MemberIdentity(member_id)]) == (ErrorCode.NONE, [ErrorCode.NONE])
    assert log.recovery_point == log.log_end_offset == 4
