"""Generations that a classic group stores, and continues after a restart."""

from __future__ import annotations

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.groups.classic_group import subscribed_topics
from sediment.server.groups.group_requests import Answer, StoreGroup, SyncAnswer, SyncRequest
from sediment.server.groups.offset_records import encode_group, stable_group
from tests.server.groups.group_driver import GroupDriver, GroupState, JoinAnswer, Waiting
from tests.server.handlers.group_servers import subscription

_VERSION_BYTES = 2


def restarted(driver: GroupDriver) -> GroupDriver:
    """Return a new group that continues what the first one stored last."""
    after = GroupDriver(first_id=100)
    after.now_ms = driver.now_ms
    after.restore(driver.stored[-1])
    return after


def test_an_assignment_is_stored_before_its_members_get_it() -> None:
    driver = GroupDriver()
    leader, follower = driver.completing(2)
    driver.sync(follower, 1)
    assert driver.stored == []
    request = SyncRequest(leader, None, 1, "consumer", "range", ((leader, b"a"), (follower, b"b")))
    effects = driver.group.sync(request, Waiting(), driver.now_ms)
    kinds = [type(effect.answer) if isinstance(effect, Answer) else type(effect) for effect in effects]
    assert kinds.index(StoreGroup) < kinds.index(SyncAnswer)
    (stored,) = (effect.group for effect in effects if isinstance(effect, StoreGroup))
    assert (stored.generation, stored.protocol_name, stored.leader_id) == (1, "range", leader)
    assert [(each.member_id, each.assignment) for each in stored.members] == [(leader, b"a"), (follower, b"b")]


def test_an_empty_group_is_stored_without_members() -> None:
    driver = GroupDriver()
    driver.leave(*driver.stable(1))
    assert driver.state is GroupState.EMPTY
    assert (driver.stored[-1].generation, driver.stored[-1].members) == (2, ())
    assert restarted(driver).state is GroupState.EMPTY


def test_members_continue_after_a_restart() -> None:
    driver = GroupDriver()
    members = driver.stable(2)
    after = restarted(driver)
    assert after.state is GroupState.STABLE
    assert [after.heartbeat(member, 1) for member in members] == [ErrorCode.NONE, ErrorCode.NONE]
    waiting = after.sync(members[1], 1)
    assert waiting.answer == SyncAnswer(ErrorCode.NONE, "consumer", "range", members[1].encode())
    assert after.heartbeat(members[0], 2) is ErrorCode.ILLEGAL_GENERATION


def test_members_that_do_not_return_expire_after_their_session() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2, session_timeout_ms=10_000)
    after = restarted(driver)
    after.pass_ms(9_000)
    assert after.heartbeat(first, 1) is ErrorCode.NONE
    after.pass_ms(2_000)
    assert after.member_ids() == [first]
    answer = after.join(first).answer
    assert isinstance(answer, JoinAnswer)
    assert (answer.error, answer.generation, answer.leader) == (ErrorCode.NONE, 2, first)
    assert second not in after.member_ids()


def test_a_static_member_keeps_its_place_after_a_restart() -> None:
    driver = GroupDriver()
    (member,) = driver.stable(1, instances=["one"])
    after = restarted(driver)
    answer = after.join(instance="one").answer
    assert isinstance(answer, JoinAnswer)
    assert (answer.error, answer.generation) == (ErrorCode.NONE, 1)
    assert answer.member_id != member
    assert [each.member_id for each in after.stored[-1].members] == [answer.member_id]
    assert after.heartbeat(member, 1, instance="one") is ErrorCode.FENCED_INSTANCE_ID


def test_if_a_generation_cannot_be_stored_its_members_get_an_error_and_the_group_rebalances() -> None:
    driver = GroupDriver()
    leader, follower = driver.completing(2)
    driver.store_fails = True
    waiting = [driver.sync(follower, 1), driver.sync(leader, 1, {leader: b"a"})]
    assert [each.answer for each in waiting] == [SyncAnswer(ErrorCode.NOT_COORDINATOR)] * 2
    assert driver.state is GroupState.PREPARING_REBALANCE
    assert driver.group.members[leader].assignment == b""


def test_if_the_new_id_of_a_static_member_cannot_be_stored_its_former_id_stays_valid() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2, instances=["one", "two"], session_timeout_ms=10_000)
    before = driver.stored[-1]
    driver.pass_ms(9_000)
    assert driver.heartbeat(second, 1, instance="two") is ErrorCode.NONE
    driver.store_fails = True
    other = (("range", b"other"), ("sticky", b""))
    answer = driver.join(instance="one", protocols=other, session_timeout_ms=20_000, rebalance_timeout_ms=1_000).answer
    assert answer == JoinAnswer(ErrorCode.NOT_COORDINATOR, "")
    assert (driver.state, driver.group.leader_id, set(driver.member_ids())) == (
        GroupState.STABLE,
        first,
        {first, second},
    )
    driver.pass_ms(9_000)  # the failed request extended the session
    assert driver.heartbeat(first, 1, instance="one") is ErrorCode.NONE
    assert driver.sync(first, 1, instance="one").answer == SyncAnswer(
        ErrorCode.NONE, "consumer", "range", first.encode()
    )
    driver.heartbeat(second, 1, instance="two")
    driver.store_fails = False
    again = driver.join(instance="two").answer
    assert isinstance(again, JoinAnswer)
    assert (again.error, again.generation) == (ErrorCode.NONE, 1)
    (member,) = (each for each in driver.stored[-1].members if each.group_instance_id == "one")
    assert member in before.members


def test_a_group_is_the_same_after_its_record() -> None:
    driver = GroupDriver()
    driver.stable(3, instances=["one", None, "three"])
    stored = driver.stored[-1]
    _, value = encode_group("g", stored, 1)
    version = int.from_bytes(value[:_VERSION_BYTES], "big")
    assert stable_group(m.GroupMetadataValue.decode(value[_VERSION_BYTES:], version)) == stored


@pytest.mark.parametrize(
    ("content", "topics"),
    [
        (subscription(), {"orders"}),
        (subscription(b"more"), {"orders"}),
        (b"\0\3\0\0\0\0", set()),
        (b"", None),
        (b"\0\0\0\0\0\2\0\1a", None),
        (b"\0\0\0\0\0\1\0\1\xff", None),
        (b"\0\0\0\0\0\1\xff\xffa", None),
    ],
)
def test_the_topics_of_a_subscription(content: bytes, topics: set[str] | None) -> None:
    assert subscribed_topics(content) == topics
