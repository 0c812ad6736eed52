"""Consumer groups of a coordinator: records, restarts, memory, deletions, and members of the classic protocol."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.errors import StorageError
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server import regex
from sediment.server.errors import ApiError
from sediment.server.groups.consumer.consumer_group import ConsumerGroupState
from sediment.server.groups.group_offsets import MS_PER_MINUTE, CommittedOffset
from sediment.server.groups.group_requests import JoinRequest, MemberIdentity, SyncRequest
from sediment.server.groups.stored_groups import GroupKind
from tests.server.groups.consumer.coordinated import (
    CLASSIC_SESSION_MS,
    REBALANCE_MS,
    SESSION_MS,
    Groups,
    ListedTopics,
    assigned,
    assignment,
)
from tests.server.groups.consumer.group_members import stored_state
from tests.server.groups.offsets_logs import CHECK_MS, NOT_A_MEMBER, OffsetsLogs
from tests.waiting import LIMIT_SECONDS

ALL = {"orders": [0, 1, 2, 3]}
HOUR_MS = 60 * MS_PER_MINUTE
CHECKS_PER_HOUR = HOUR_MS // CHECK_MS


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    return Groups(OffsetsLogs(tmp_path), ListedTopics(orders=4))


def limited(tmp_path: Path, **config: Any) -> Groups:
    return Groups(OffsetsLogs(tmp_path), ListedTopics(orders=4), config)


# -------------------------------------------------------------------------------------------------------------- members
def test_a_group_is_the_same_after_a_restart(groups: Groups) -> None:
    answer = groups.settled()
    assert groups.catalog.names(answer.assignment) == ALL
    before = groups.group()
    groups.start()
    assert stored_state(groups.group()) == stored_state(before)
    assert groups.heartbeat(epoch=1).error is ErrorCode.NONE
    groups.pass_ms(SESSION_MS - 1)
    assert groups.group().members
    groups.pass_ms(1)
    assert groups.group().state is ConsumerGroupState.EMPTY
    groups.start()
    assert groups.group().members == {}


def test_each_change_is_one_batch_and_a_heartbeat_without_change_is_none(groups: Groups) -> None:
    groups.settled()
    assert groups.logs.batches == 1
    assert groups.heartbeat(epoch=1).assignment is None
    assert groups.logs.batches == 1


def test_a_change_that_cannot_be_stored_changes_nothing(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    groups.settled()
    before, free_bytes = groups.group(), groups.coordinator.memory.free_bytes

    def failing(*_: Any, **__: Any) -> None:
        raise StorageError("the disk failed")

    with monkeypatch.context() as patched:
        patched.setattr(groups.logs.partition, "append_of_coordinator", failing)
        assert groups.heartbeat("b").error is ErrorCode.NOT_COORDINATOR
        assert groups.heartbeat(epoch=-1).error is ErrorCode.NOT_COORDINATOR
        groups.pass_ms(SESSION_MS)
    assert stored_state(groups.group()) == stored_state(before)
    assert groups.coordinator.memory.free_bytes == free_bytes
    groups.pass_ms(500)
    assert groups.group().members == {}


def test_stored_timeouts_of_a_group_count_although_the_limits_of_the_broker_have_changed(groups: Groups) -> None:
    groups.configs["g"] = {"consumer.session.timeout.ms": "1000", "consumer.heartbeat.interval.ms": "90000"}
    assert groups.settled().heartbeat_interval_ms == 90_000
    groups.pass_ms(999)
    assert groups.group().members
    groups.pass_ms(1)
    assert not groups.group().members


def test_groups_have_their_own_timeouts(groups: Groups) -> None:
    groups.configs["g"] = {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "7000"}
    assert groups.settled().heartbeat_interval_ms == 7000
    assert groups.settled(group="other").heartbeat_interval_ms == 5000
    groups.pass_ms(SESSION_MS)
    assert groups.group().members
    assert not groups.group("other").members
    groups.pass_ms(5000)
    assert not groups.group().members


def test_requests_for_other_groups_are_refused(groups: Groups) -> None:
    assert groups.heartbeat(epoch=1).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert groups.heartbeat(epoch=-1).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert groups.heartbeat(topic_regex="(").error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert groups.at.groups() == set()
    assert groups.heartbeat(assignor="none").error is ErrorCode.UNSUPPORTED_ASSIGNOR
    groups.settled()
    assert groups.coordinator.describe("g")[0] is ErrorCode.GROUP_ID_NOT_FOUND
    with pytest.raises(ApiError, match=r"^Group x not found\.$") as unknown:
        groups.coordinator.describe_consumer_group("x")
    assert unknown.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    (listed,) = groups.coordinator.list_groups()[1]
    assert (listed.kind, listed.state, listed.protocol_type) == (
        GroupKind.CONSUMER,
        ConsumerGroupState.STABLE,
        "consumer",
    )


# -------------------------------------------------------------------------------------------------------------- offsets
def test_offsets_need_the_epoch_of_their_member(groups: Groups) -> None:
    groups.settled()

    def commit(member_id: str, epoch: int) -> ErrorCode:
        offsets = [("orders", 0, CommittedOffset(5))]
        (error,) = groups.coordinator.commit("g", MemberIdentity(member_id), epoch, offsets)
        return error

    assert commit("a", 1) is ErrorCode.NONE
    assert commit("a", 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit("", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    wanted = [("orders", [0])]
    fetch = groups.coordinator.fetch
    assert fetch("g", wanted, require_stable=False)[0] is ErrorCode.NONE
    assert fetch("g", wanted, require_stable=False, member_id="a", member_epoch=1)[0] is ErrorCode.NONE
    stale = fetch("g", wanted, require_stable=False, member_id="a", member_epoch=9)
    assert stale == (ErrorCode.STALE_MEMBER_EPOCH, [])
    assert groups.coordinator.delete_offsets("g", [("orders", 0)])[1] == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert groups.coordinator.delete("g") is ErrorCode.NON_EMPTY_GROUP
    groups.heartbeat(epoch=-1)
    assert commit("", -1) is ErrorCode.NONE
    assert groups.coordinator.delete("g") is ErrorCode.NONE
    assert groups.logs.replay() == {}
    groups.start()
    assert groups.at.groups() == set()


@pytest.mark.parametrize(
    ("member_id", "epoch", "code"),
    [
        ("a", 1, ErrorCode.UNSUPPORTED_VERSION),
        ("a", 0, ErrorCode.UNSUPPORTED_VERSION),
        ("nobody", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_member_of_the_new_protocol_commits_from_version_9_on(
    groups: Groups, member_id: str, epoch: int, code: ErrorCode
) -> None:
    groups.settled()
    offsets = [("orders", 0, CommittedOffset(5))]
    identity = MemberIdentity(member_id)
    assert groups.coordinator.commit("g", identity, epoch, offsets, knows_epochs=False) == [code]
    groups.heartbeat(epoch=-1)
    assert groups.coordinator.commit("g", NOT_A_MEMBER, -1, offsets, knows_epochs=False) == [ErrorCode.NONE]


def test_a_classic_member_of_a_consumer_group_commits_in_any_version(groups: Groups) -> None:
    groups.settled()
    joined = groups.join()
    offsets = [("orders", 0, CommittedOffset(5))]

    def commit(generation: int) -> list[ErrorCode]:
        identity = MemberIdentity(joined.member_id)
        return groups.coordinator.commit("g", identity, generation, offsets, knows_epochs=False)

    assert commit(joined.generation) == [ErrorCode.NONE]
    assert commit(joined.generation + 1) == [ErrorCode.ILLEGAL_GENERATION]


@pytest.mark.parametrize(
    ("member_id", "instance", "epoch", "code"),
    [
        ("a", None, 1, ErrorCode.NONE),
        ("a", None, 0, ErrorCode.ILLEGAL_GENERATION),
        ("a", None, 2, ErrorCode.ILLEGAL_GENERATION),
        ("nobody", None, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", None, -1, ErrorCode.NONE),
        ("", None, -2, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", "instance", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_stale_epoch_is_an_illegal_generation_for_a_commit_in_a_transaction(
    groups: Groups, member_id: str, instance: str | None, epoch: int, code: ErrorCode
) -> None:
    groups.settled()
    offsets = [("orders", 0, CommittedOffset(5))]
    identity = MemberIdentity(member_id, instance)
    codes = groups.coordinator.commit_in_transaction("g", identity, epoch, 7, offsets, lambda commits: commits)
    assert codes == [code]


# ----------------------------------------------------------------------------------------------- expiration of offsets
def committed(groups: Groups, member_id: str = "", epoch: int = -1) -> None:
    offsets = [("orders", 0, CommittedOffset(5, commit_timestamp_ms=groups.now_ms))]
    assert groups.coordinator.commit("g", MemberIdentity(member_id), epoch, offsets) == [ErrorCode.NONE]


def stay_empty_for(groups: Groups, checks: int) -> None:
    for _ in range(checks):
        groups.pass_ms(CHECK_MS)


def stay_for(groups: Groups, duration_ms: int) -> None:
    """Let the member `a` send heartbeats."""
    for _ in range(duration_ms // (SESSION_MS - 1) + 1):
        groups.pass_ms(SESSION_MS - 1)
        assert groups.heartbeat(epoch=1).error is ErrorCode.NONE


def test_offsets_of_a_consumer_group_expire_after_its_last_member_has_left(tmp_path: Path) -> None:
    groups = limited(tmp_path, offsets_retention_minutes=60)
    groups.settled()
    committed(groups, "a", 1)
    stay_for(groups, 2 * HOUR_MS)
    assert groups.at.offset("g", "orders") == 5
    groups.heartbeat(epoch=-1)
    stay_empty_for(groups, CHECKS_PER_HOUR - 1)
    assert groups.at.offset("g", "orders") == 5
    stay_empty_for(groups, 2)
    assert (groups.at.offset("g", "orders"), groups.at.groups()) == (None, set())
    assert groups.logs.replay() == {}


def test_offsets_of_a_consumer_group_stay_if_no_time_is_stated(groups: Groups) -> None:
    groups.settled()
    committed(groups, "a", 1)
    groups.heartbeat(epoch=-1)
    for _ in range(10):
        groups.pass_ms(24 * HOUR_MS)
    assert groups.at.offset("g", "orders") == 5


def test_a_member_that_joins_again_starts_the_time_of_a_consumer_group_again(tmp_path: Path) -> None:
    groups = limited(tmp_path, offsets_retention_minutes=60)
    groups.settled()
    committed(groups, "a", 1)
    groups.heartbeat(epoch=-1)
    stay_empty_for(groups, CHECKS_PER_HOUR - 1)
    groups.settled()
    groups.heartbeat(epoch=-1)
    stay_empty_for(groups, CHECKS_PER_HOUR - 1)
    assert groups.at.offset("g", "orders") == 5
    groups.start()
    stay_empty_for(groups, CHECKS_PER_HOUR)
    assert groups.at.offset("g", "orders") == 5
    stay_empty_for(groups, 2)
    assert groups.at.offset("g", "orders") is None


def test_a_consumer_group_whose_member_fell_silent_loses_its_offsets(tmp_path: Path) -> None:
    groups = limited(tmp_path, offsets_retention_minutes=60)
    groups.settled(instance_id="i")
    committed(groups, "a", 1)
    stay_empty_for(groups, CHECKS_PER_HOUR + 3)
    assert groups.at.groups() == set()


def test_a_group_without_members_and_offsets_is_removed(groups: Groups) -> None:
    free_bytes = groups.coordinator.memory.free_bytes
    groups.settled()
    groups.heartbeat(epoch=-1)
    groups.pass_ms(CHECK_MS)
    assert groups.at.groups() == set()
    assert groups.logs.replay() == {}
    assert groups.coordinator.memory.free_bytes == free_bytes


# --------------------------------------------------------------------------------------------------------------- memory
@pytest.mark.parametrize(
    "larger",
    [
        {"topic_names": frozenset(f"topic-{number}" for number in range(2000))},
        {"topic_regex": "x" * 1000, "rack_id": "r" * 30_000},
    ],
)
@pytest.mark.parametrize("limit", ["group_members_max_bytes", "groups_max_bytes"])
def test_a_heartbeat_that_enlarges_a_group_needs_memory(tmp_path: Path, limit: str, larger: dict[str, Any]) -> None:
    groups = limited(tmp_path, **{limit: 30_000})
    groups.settled()
    free_bytes, before = groups.coordinator.memory.free_bytes, groups.group()
    assert groups.heartbeat(epoch=1, **larger).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert groups.coordinator.memory.free_bytes == free_bytes
    assert stored_state(groups.group()) == stored_state(before)
    assert groups.heartbeat(epoch=1).error is ErrorCode.NONE


def test_owned_partitions_need_memory_while_they_are_handled(tmp_path: Path) -> None:
    groups = limited(tmp_path, groups_max_bytes=60_000)
    groups.settled()
    owned = {groups.catalog.topics()[0].id: frozenset(range(2000))}
    assert groups.heartbeat(epoch=1, owned=owned).error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_small_heartbeats_cannot_exceed_the_limit_together(tmp_path: Path) -> None:
    groups = limited(tmp_path, groups_max_bytes=60_000)
    errors = [groups.heartbeat(f"m{number}", group=f"g{number % 3}").error for number in range(100)]
    assert ErrorCode.GROUP_MAX_SIZE_REACHED in errors
    assert groups.coordinator.memory.free_bytes >= 0


def test_what_regular_expressions_match_needs_memory(tmp_path: Path) -> None:
    groups = limited(tmp_path, group_members_max_bytes=20_000)
    groups.catalog.set(**{f"topic-{number}": 1 for number in range(1000)})
    groups.settled(topic_names=None, topic_regex="topic-.*")
    free_bytes = groups.coordinator.memory.free_bytes
    groups.pass_ms(1)
    assert groups.group().regexes == {}
    assert groups.coordinator.memory.free_bytes == free_bytes


# -------------------------------------------------------------------------------------------------- regular expressions
def test_topics_of_an_expression_are_assigned_after_they_were_matched(groups: Groups) -> None:
    groups.settled(topic_names=None, topic_regex="ord.*")
    groups.pass_ms(1)
    answer = groups.heartbeat(epoch=1, owned={})
    assert groups.catalog.names(answer.assignment) == ALL
    groups.start()
    assert groups.group().regexes["ord.*"].topics == {"orders"}


def test_members_are_answered_while_a_slow_expression_is_matched(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    matching, released = threading.Event(), threading.Event()
    original = regex._search

    def slow(pattern: str, names: Any) -> Any:
        if len(names) > 1:
            matching.set()
            assert released.wait(LIMIT_SECONDS)
        return original(pattern, names)

    monkeypatch.setattr(regex, "_search", slow)
    groups.catalog.set(**{f"topic-{number}": 1 for number in range(10)})
    groups.settled(topic_names=None, topic_regex="ord.*")
    background = threading.Thread(target=groups.pass_ms, args=(1,))
    background.start()
    assert matching.wait(LIMIT_SECONDS)
    try:
        assert groups.heartbeat(epoch=1).error is ErrorCode.NONE
        assert groups.heartbeat("b").error is ErrorCode.NONE
    finally:
        released.set()
        background.join(LIMIT_SECONDS)
    assert groups.group().regexes["ord.*"].topics == {"orders"}


# ------------------------------------------------------------------------------------------------------ classic members
def stable_classic(groups: Groups) -> Any:
    joined = groups.join()
    data = assignment(orders=[0, 1, 2, 3])
    assert groups.sync(joined, {joined.member_id: data}).assignment == data
    return joined


def test_a_classic_group_is_upgraded_and_its_member_shares_its_partitions(groups: Groups) -> None:
    joined = stable_classic(groups)
    new = groups.settled("new")
    assert groups.catalog.names(new.assignment) == {}
    assert groups.group().members[joined.member_id].classic is not None
    groups.start()
    assert set(groups.logs.replay()) == {"g"}
    assert groups.classic_heartbeat(joined) is ErrorCode.REBALANCE_IN_PROGRESS
    again = groups.join(joined.member_id, owned=ALL["orders"])
    kept = assigned(groups.sync(again).assignment)
    assert len(kept["orders"]) == 2
    assert groups.classic_heartbeat(again) is ErrorCode.REBALANCE_IN_PROGRESS
    again = groups.join(joined.member_id, owned=kept["orders"])
    assert assigned(groups.sync(again).assignment) == kept
    answer = groups.heartbeat("new", new.epoch, owned={})
    assert sorted(groups.catalog.names(answer.assignment)["orders"] + kept["orders"]) == ALL["orders"]
    assert groups.classic_heartbeat(again) is ErrorCode.NONE
    assert groups.group().state is ConsumerGroupState.STABLE


def test_a_group_is_downgraded_when_its_last_new_member_leaves(groups: Groups) -> None:
    joined = stable_classic(groups)
    new = groups.settled("new")
    assert groups.heartbeat("new", -1).error is ErrorCode.NONE
    assert new.epoch > 0
    with pytest.raises(ApiError, match=r"^Group g is not a consumer group\.$") as classic:
        groups.coordinator.describe_consumer_group("g")
    assert classic.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    stored = groups.logs.replay()["g"]
    assert stored.kind is GroupKind.CLASSIC
    assert stored.consumer is None
    again = groups.join(joined.member_id)
    data = assignment(orders=[0, 1, 2, 3])
    assert groups.sync(again, {joined.member_id: data}).assignment == data
    groups.start()
    assert groups.classic_heartbeat(again) is ErrorCode.NONE


@pytest.mark.parametrize(("policy", "upgrades", "downgrades"), [("upgrade", True, False), ("DISABLED", False, False)])
def test_the_migration_policy_is_kept(tmp_path: Path, policy: str, upgrades: bool, downgrades: bool) -> None:
    groups = limited(tmp_path, group_consumer_migration_policy=policy)
    joined = stable_classic(groups)
    answer = groups.heartbeat("new")
    assert answer.error is (ErrorCode.NONE if upgrades else ErrorCode.GROUP_ID_NOT_FOUND)
    if not upgrades:
        assert groups.classic_heartbeat(joined) is ErrorCode.NONE
        return
    groups.heartbeat("new", -1)
    assert (groups.coordinator.describe("g")[0] is ErrorCode.NONE) is downgrades
    assert set(groups.group().members) == {joined.member_id}


def test_an_empty_group_takes_the_protocol_of_its_first_member(groups: Groups) -> None:
    groups.settled()
    groups.heartbeat(epoch=-1)
    joined = stable_classic(groups)
    assert groups.logs.replay()["g"].kind is GroupKind.CLASSIC
    assert groups.coordinator.leave("g", [MemberIdentity(joined.member_id)])[1] == [ErrorCode.NONE]
    assert groups.catalog.names(groups.settled().assignment) == ALL
    assert groups.logs.replay()["g"].kind is GroupKind.CONSUMER


def test_classic_members_that_fall_silent_or_leave_are_removed(groups: Groups) -> None:
    joined = stable_classic(groups)
    groups.settled("new")
    groups.pass_ms(CLASSIC_SESSION_MS)
    assert set(groups.group().members) == {"new"}
    assert groups.classic_heartbeat(joined) is ErrorCode.UNKNOWN_MEMBER_ID
    joined = groups.join()
    assert joined.error is ErrorCode.NONE
    identities = [MemberIdentity(joined.member_id), MemberIdentity("unknown")]
    assert groups.coordinator.leave("g", identities) == (
        ErrorCode.NONE,
        [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID],
    )
    assert set(groups.group().members) == {"new"}


def test_a_static_classic_member_takes_the_place_of_the_last_new_one(groups: Groups) -> None:
    groups.settled("new", instance_id="i")
    groups.heartbeat("new", -2, instance_id="i")
    joined = groups.join(instance="i")
    assert joined.error is ErrorCode.NONE
    assert groups.coordinator.describe("g")[0] is ErrorCode.NONE
    assert groups.logs.replay()["g"].kind is GroupKind.CLASSIC


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("kind", ["classic", "upgraded", "joined", "downgraded"])
def test_a_static_classic_member_that_never_comes_back_leaves_its_group(
    groups: Groups, kind: str, restarts: bool
) -> None:
    if kind in ("joined", "downgraded"):
        groups.settled()
    joined = groups.join(instance="i")
    assert joined.error is ErrorCode.NONE
    if kind in ("classic", "upgraded"):
        request = SyncRequest(
            joined.member_id, "i", joined.generation, assignments=((joined.member_id, assignment(orders=[0])),)
        )
        groups.coordinator.sync("g", request, lambda _: None)
    if kind == "upgraded":
        groups.settled()
    if kind == "downgraded":
        groups.heartbeat(epoch=-1)
    if restarts:
        groups.start()
    groups.pass_ms(CLASSIC_SESSION_MS + REBALANCE_MS)
    _, classic = groups.coordinator.describe("g")
    members = [each.member_id for each in classic.members] if classic is not None else list(groups.group().members)
    assert joined.member_id not in members


def test_a_client_of_another_kind_cannot_join(groups: Groups) -> None:
    groups.settled()
    answers: list[Any] = []
    request = JoinRequest("x", None, "c", "/h", 10_000, 10_000, "connect", (("default", b""),))
    groups.coordinator.join("g", request, answers.append)
    assert [each.error for each in answers] == [ErrorCode.INCONSISTENT_GROUP_PROTOCOL]
    assert set(groups.group().members) == {"a"}
