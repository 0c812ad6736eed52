"""The expiration of committed offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.server.groups.group_offsets import (
    MS_PER_MINUTE,
    CommittedOffset,
    GroupOffsets,
    TimeWithoutMembers,
    expired_offsets,
)
from sediment.server.groups.group_requests import MemberIdentity
from tests.server.groups.offsets_logs import CHECK_MS, SESSION_MS, Coordinated, OffsetsLogs

HOUR_MS = 60 * MS_PER_MINUTE


def test_an_offset_expires_when_commit_and_last_member_are_old() -> None:
    offsets = GroupOffsets()
    offsets.commit("t", 0, CommittedOffset(5, commit_timestamp_ms=1000))
    offsets.commit("t", 1, CommittedOffset(5, commit_timestamp_ms=5000))
    offsets.commit("u", 0, CommittedOffset(5, commit_timestamp_ms=1000))
    offsets.commit_in_transaction(7, "u", 0, CommittedOffset(6))

    def expired(since_ms: int, now_ms: int) -> list[tuple[str, int]]:
        return expired_offsets(offsets, since_ms=since_ms, now_ms=now_ms, retention_ms=100)

    assert expired(0, 1099) == []
    assert expired(0, 1100) == [("t", 0)]  # that of u may be replaced when the transaction ends
    assert expired(1050, 1149) == []
    assert expired(1050, 1150) == [("t", 0)]
    assert expired(0, 5100) == [("t", 0), ("t", 1)]


def test_a_new_generation_starts_the_time_again() -> None:
    time = TimeWithoutMembers()
    assert [time.begin(3, now_ms) for now_ms in (10, 20)] == [10, 10]
    assert time.begin(4, 30) == 30
    time.end()
    assert time.begin(4, 40) == 40


@pytest.fixture
def logs(tmp_path: Path) -> OffsetsLogs:
    return OffsetsLogs(tmp_path)


def loaded(logs: OffsetsLogs, minutes: int | None) -> Coordinated:
    coordinated = Coordinated(logs, offsets_retention_minutes=minutes)
    coordinated.load()
    return coordinated


def test_offsets_of_a_group_without_members_expire_with_the_group(logs: OffsetsLogs) -> None:
    groups = loaded(logs, minutes=60)
    groups.commit("g")
    for _ in range(2):
        groups.pass_ms(CHECK_MS)
    assert groups.offset("g") == 5
    for _ in range(HOUR_MS // CHECK_MS + 1):
        groups.pass_ms(CHECK_MS)
    assert (groups.offset("g"), groups.groups()) == (None, set())
    assert logs.replay() == {}


def test_offsets_stay_if_no_time_is_stated(logs: OffsetsLogs) -> None:
    groups = loaded(logs, minutes=None)
    groups.commit("g")
    for _ in range(100):
        groups.pass_ms(HOUR_MS * 24)
    assert groups.offset("g") == 5


def test_offsets_of_a_group_with_members_stay(logs: OffsetsLogs) -> None:
    groups = loaded(logs, minutes=60)
    groups.commit("g")
    member = groups.stable("g")
    for _ in range(2 * HOUR_MS // (SESSION_MS // 2)):
        groups.pass_ms(SESSION_MS // 2)
        groups.coordinator.heartbeat("g", MemberIdentity(member), 1)
    is_there = groups.offset("g")
    groups.coordinator.leave("g", [MemberIdentity(member)])
    groups.pass_ms(CHECK_MS)
    assert groups.offset("g") == is_there == 5


def test_the_time_without_members_begins_again_at_a_start(logs: OffsetsLogs) -> None:
    loaded(logs, minutes=60).commit("g")
    groups = loaded(logs, minutes=60)
    groups.pass_ms(30 * MS_PER_MINUTE)
    assert groups.offset("g") == 5
    for _ in range(2 * HOUR_MS // CHECK_MS):
        groups.pass_ms(CHECK_MS)
    assert groups.offset("g") is None
