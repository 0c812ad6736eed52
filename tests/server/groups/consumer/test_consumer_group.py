"""Consumer groups: members, epochs, static members, timeouts, and topics that change."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupState
from sediment.server.groups.consumer.group_changes import Heartbeat, check_heartbeat, needs_resolution
from sediment.server.groups.consumer.group_records import GroupRecord
from sediment.server.groups.consumer.members import MemberState
from sediment.server.groups.group_requests import MemberIdentity
from tests.server.groups.consumer.group_members import (
    REBALANCE_MS,
    SESSION_MS,
    Client,
    GivenTopics,
    GroupOfMembers,
    partitions_of,
    refused,
    stored_state,
)


@pytest.fixture
def made() -> GroupOfMembers:
    return GroupOfMembers(GivenTopics(orders=4, payments=2))


# -------------------------------------------------------------------------------------------------------------- members
def test_the_first_member_gets_every_partition_at_once(made: GroupOfMembers) -> None:
    client = made.joined("a", "orders")
    assert client.partitions == made.topics.partitions("orders")
    assert (client.epoch, made.group.epoch, made.group.assignment_epoch) == (1, 1, 1)
    assert made.group.state is ConsumerGroupState.STABLE


def test_a_second_member_gets_a_partition_only_after_the_first_gave_it_up(made: GroupOfMembers) -> None:
    first = made.joined("a", "orders")
    second = made.joined("b", "orders")
    assert second.partitions == set()
    had = first.partitions
    first.beat()  # the answer takes two partitions away; the client says so with its next heartbeat
    assert len(first.partitions) == 2
    assert first.epoch == 1
    assert made.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    assert second.beat().partitions == set()
    first.beat()
    assert first.epoch == 2
    second.beat()
    assert second.partitions == had - first.partitions
    assert made.group.state is ConsumerGroupState.STABLE


def test_members_that_leave_or_fall_silent_are_replaced(made: GroupOfMembers) -> None:
    clients = [made.joined(name, "orders") for name in "abc"]
    made.settle(*clients)
    clients[0].leave()
    made.settle(*clients[1:])
    assert sorted(partitions_of(clients[1:])) == sorted(made.topics.partitions("orders"))
    made.pass_ms(SESSION_MS // 2)
    clients[1].beat()
    made.pass_ms(SESSION_MS // 2 + 1)
    assert set(made.group.members) == {"b"}
    made.settle(clients[1])
    assert clients[1].partitions == made.topics.partitions("orders")


def test_a_group_without_members_is_empty_and_can_be_used_again(made: GroupOfMembers) -> None:
    made.joined("a", "orders").leave()
    assert made.group.state is ConsumerGroupState.EMPTY
    assert (made.group.targets, made.group.owners, made.group.size_bytes) == ({}, {}, 0)
    assert made.joined("b", "orders").partitions == made.topics.partitions("orders")


def test_a_member_that_does_not_give_up_partitions_in_time_is_removed(made: GroupOfMembers) -> None:
    first, second = made.joined("a", "orders"), made.joined("b", "orders")
    kept = first.assigned
    first.beat()
    for _ in range(2):
        made.pass_ms(REBALANCE_MS // 2)
        if "a" in made.group.members:
            first.assigned = kept
            first.beat()
        second.beat()
    assert set(made.group.members) == {"b"}
    made.settle(second)
    assert second.partitions == made.topics.partitions("orders")


def test_a_member_may_change_its_subscription(made: GroupOfMembers) -> None:
    client = made.joined("a", "orders")
    client.beat(topic_names=frozenset({"payments"}))
    made.settle(client)
    assert client.partitions == made.topics.partitions("payments")


def test_a_group_without_topics_has_members(made: GroupOfMembers) -> None:
    client = made.client("a")
    client.names = frozenset()
    assert client.join().partitions == set()
    missing = made.joined("b", "nothing")
    made.settle(client, missing)
    assert made.group.state is ConsumerGroupState.STABLE
    assert partitions_of([client, missing]) == []


# ------------------------------------------------------------------------------------------------------------- refusals
def test_epochs_are_checked(made: GroupOfMembers) -> None:
    client = made.joined("a", "orders")
    refused(ErrorCode.UNKNOWN_MEMBER_ID, lambda: made.beat(Heartbeat("b", 1)))
    refused(ErrorCode.FENCED_MEMBER_EPOCH, lambda: made.beat(Heartbeat("a", 2)))
    other = made.joined("b", "orders")
    made.settle(client, other)
    assert client.epoch == 2
    refused(ErrorCode.FENCED_MEMBER_EPOCH, lambda: made.beat(Heartbeat("a", 1)))
    client.epoch = 1  # the answer with epoch 2 was lost
    previous = made.group.members["a"].previous_epoch
    assert previous == 1
    assert client.beat().epoch == 2
    made.log.clear()
    refused(ErrorCode.FENCED_MEMBER_EPOCH, client.join)
    assert made.log == []


def test_commits_and_fetches_need_the_epoch_of_their_member(made: GroupOfMembers) -> None:
    outsider, member = MemberIdentity(""), MemberIdentity("a")
    assert made.group.commit_error(outsider, -1) is ErrorCode.NONE
    made.joined("a", "orders")
    assert made.group.commit_error(outsider, -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert made.group.commit_error(outsider, -1, transactional=True) is ErrorCode.NONE
    assert made.group.commit_error(member, 1) is ErrorCode.NONE
    assert made.group.commit_error(member, 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert made.group.fetch_error(None, -1) is ErrorCode.NONE
    assert made.group.fetch_error("a", 1) is ErrorCode.NONE
    assert made.group.fetch_error("a", 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert made.group.fetch_error("b", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_accepts_no_further_member() -> None:
    made = GroupOfMembers(GivenTopics(orders=1), group_consumer_max_size=1)
    first = made.joined("a", "orders")
    refused(ErrorCode.GROUP_MAX_SIZE_REACHED, made.client("b", "orders").join)
    assert first.beat().partitions == made.topics.partitions("orders")


JOIN = Heartbeat("a", 0, rebalance_timeout_ms=1, topic_names=frozenset(), owned={})


@pytest.mark.parametrize(
    ("request_", "version", "code"),
    [
        (JOIN, 1, None),
        (replace(JOIN, member_id=""), 0, None),
        (replace(JOIN, member_id=""), 1, ErrorCode.INVALID_REQUEST),
        (replace(JOIN, rebalance_timeout_ms=-1), 1, ErrorCode.INVALID_REQUEST),
        (replace(JOIN, owned=None), 1, ErrorCode.INVALID_REQUEST),
        (replace(JOIN, topic_names=None), 1, ErrorCode.INVALID_REQUEST),
        (replace(JOIN, topic_names=None, topic_regex=""), 1, None),
        (replace(JOIN, instance_id=" "), 1, ErrorCode.INVALID_REQUEST),
        (replace(JOIN, rack_id=""), 1, ErrorCode.INVALID_REQUEST),
        (replace(JOIN, assignor="sticky"), 1, ErrorCode.UNSUPPORTED_ASSIGNOR),
        (replace(JOIN, assignor="range"), 1, None),
        (Heartbeat("a", -2), 1, ErrorCode.INVALID_REQUEST),
        (Heartbeat("a", -3), 1, ErrorCode.INVALID_REQUEST),
        (Heartbeat("", -1), 0, ErrorCode.INVALID_REQUEST),
    ],
)
def test_requests_are_checked_as_by_kafka(request_: Heartbeat, version: int, code: ErrorCode | None) -> None:
    def check() -> None:
        check_heartbeat(request_, "g", version, ("uniform", "range"))

    check() if code is None else refused(code, check)


# -------------------------------------------------------------------------------------------------------------- topics
@pytest.mark.parametrize("by", ["leave", "session", "static leave"])
def test_a_leave_does_not_consume_a_change_of_topics(made: GroupOfMembers, by: str) -> None:
    staying = made.joined("a", "orders")
    leaving = made.joined("b", "orders", **({"instance_id": "i"} if by == "static leave" else {}))
    made.settle(staying, leaving)
    made.topics.set("orders", 8)
    if by == "session":
        made.pass_ms(SESSION_MS // 2)
        staying.beat(topic_names=frozenset({"orders"}))
        made.topics.set("orders", 9)
        made.pass_ms(SESSION_MS // 2 + 1)
    else:
        leaving.leave(-2 if by == "static leave" else -1)
    if by == "static leave":
        returned = made.joined("c", "orders", instance_id="i")
        made.settle(staying, returned)
        assert sorted(partitions_of([staying, returned])) == sorted(made.topics.partitions("orders"))
        return
    made.settle(staying)
    assert staying.partitions == made.topics.partitions("orders")


def test_members_get_new_partitions_and_topics_and_lose_deleted_ones(made: GroupOfMembers) -> None:
    client = made.joined("a", "orders", "later")
    made.topics.set("orders", 6)
    made.settle(client)
    assert client.partitions == made.topics.partitions("orders")
    made.topics.set("later", 2)
    made.settle(client)
    assert client.partitions == made.topics.partitions("orders", "later")
    made.topics.delete("orders")
    made.settle(client)
    assert client.partitions == made.topics.partitions("later")


def test_a_change_of_other_topics_changes_nothing(made: GroupOfMembers) -> None:
    client = made.joined("a", "orders")
    made.log.clear()
    made.topics.set("other", 3)
    client.beat()
    assert made.log == []
    assert made.group.topics_version == made.topics.version


# ------------------------------------------------------------------------------------------------------- static members
def test_a_static_member_that_leaves_for_a_while_keeps_its_partitions(made: GroupOfMembers) -> None:
    static = made.joined("a", "orders", instance_id="i")
    other = made.joined("b", "orders")
    made.settle(static, other)
    had = static.partitions
    refused(ErrorCode.UNRELEASED_INSTANCE_ID, made.client("c", "orders", instance_id="i").join)
    static.leave(-2)
    assert other.beat().partitions == made.topics.partitions("orders") - had
    returned = made.joined("c", "orders", instance_id="i")
    assert returned.partitions == had
    refused(ErrorCode.FENCED_INSTANCE_ID, static.beat)
    assert set(made.group.members) == {"b", "c"}
    returned.leave(-2)
    made.pass_ms(SESSION_MS - 1)
    other.beat()
    made.pass_ms(1)
    made.settle(other)
    assert other.partitions == made.topics.partitions("orders")


def test_a_static_member_is_replaced_while_its_partitions_are_revoked(made: GroupOfMembers) -> None:
    static = made.joined("a", "orders", instance_id="i")
    other = made.joined("b", "orders")
    static.beat()
    assert made.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    static.leave(-2)
    returned = made.joined("c", "orders", instance_id="i")
    made.settle(other, returned)
    assert sorted(partitions_of([other, returned])) == sorted(made.topics.partitions("orders"))
    assert set(made.group.owners.values()) == {"b", "c"}


# -------------------------------------------------------------------------------------------------- regular expressions
def test_a_regular_expression_selects_topics_once_it_is_resolved(made: GroupOfMembers) -> None:
    client = made.joined("a", topic_regex="ord.*|none")
    assert client.partitions == set()
    assert needs_resolution(made.group, made.circumstances())
    made.resolve()
    made.settle(client)
    assert client.partitions == made.topics.partitions("orders")
    assert not needs_resolution(made.group, made.circumstances())
    made.topics.set("ordinary", 1)
    assert not needs_resolution(made.group, made.circumstances())
    made.now_ms += 10_001
    assert needs_resolution(made.group, made.circumstances())
    made.resolve()
    made.settle(client)
    assert client.partitions == made.topics.partitions("orders", "ordinary")
    made.now_ms += 600_001
    assert needs_resolution(made.group, made.circumstances())
    client.beat(topic_regex="", topic_names=frozenset({"payments"}))
    assert made.group.regexes == {}
    made.settle(client)
    assert client.partitions == made.topics.partitions("payments")


def test_names_and_expressions_of_several_members_are_joined(made: GroupOfMembers) -> None:
    first = made.joined("a", "payments", topic_regex="ord.*")
    second = made.joined("b", topic_regex="ord.*")
    made.resolve()
    made.settle(first, second)
    assert made.topics.partitions("payments") <= first.partitions
    assert sorted(partitions_of([first, second])) == sorted(made.topics.partitions("orders", "payments"))
    first.leave()
    assert set(made.group.regexes) == {"ord.*"}
    second.leave()
    assert made.group.regexes == {}


@pytest.mark.parametrize("regex", ["(", "a)b(c", "(?=x)", "x" * 1001, "(?:a{30}){30}{30}", "a{99999}"])
def test_an_invalid_expression_is_refused_and_changes_nothing(made: GroupOfMembers, regex: str) -> None:
    refused(ErrorCode.INVALID_REGULAR_EXPRESSION, made.client("a", topic_regex=regex).join)
    client = made.joined("a", "orders")
    made.log.clear()
    refused(ErrorCode.INVALID_REGULAR_EXPRESSION, lambda: client.beat(topic_regex=regex))
    assert made.log == []
    assert client.beat().partitions == made.topics.partitions("orders")


# --------------------------------------------------------------------------------------------------------------- replay
def test_a_log_that_ends_between_two_records_leaves_a_group_that_works(made: GroupOfMembers) -> None:
    static = made.joined("a", "orders", instance_id="i", topic_regex="pay.*")
    other = made.joined("b", "orders")
    made.resolve()
    made.settle(static, other)
    static.leave(-2)
    made.settle(other, made.joined("c", "orders", instance_id="i"))
    other.leave()
    for count in range(len(made.log) + 1):
        started = GroupOfMembers(made.topics)
        started.group = made.replayed(count)
        for member_id in list(started.group.members):
            started.leave(Heartbeat(member_id, -1))
        assert (started.group.targets, started.group.owners) == ({}, {}), count
        fresh = started.joined("z", "orders")
        started.settle(fresh)
        assert fresh.partitions == made.topics.partitions("orders"), count


def test_a_tombstone_of_a_member_removes_its_target(made: GroupOfMembers) -> None:
    made.joined("a", "orders")
    made.group.replay(GroupRecord(m.ConsumerGroupMemberMetadataKey(group_id="g", member_id="a"), None))
    assert (made.group.members, made.group.targets, made.group.owners, made.group.size_bytes) == ({}, {}, {}, 0)
    assert made.joined("b", "orders").partitions == made.topics.partitions("orders")


def test_the_records_of_a_deleted_group_leave_nothing(made: GroupOfMembers) -> None:
    made.joined("a", "orders", topic_regex="pay.*")
    made.resolve()
    group = made.replayed()
    for record in group.tombstones():
        group.replay(record)
    assert replace(group, assignment_epoch=0) == ConsumerGroup("g")


def test_what_kafka_4_0_wrote_about_topics_is_deleted(made: GroupOfMembers) -> None:
    key, value = m.ConsumerGroupPartitionMetadataKey(group_id="g"), m.ConsumerGroupPartitionMetadataValue(topics=[])
    made.group.replay(GroupRecord(key, value))
    made.joined("a", "orders")
    assert any(record.key == key and record.value is None for record in made.log)
    assert not made.replayed().has_partition_metadata


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "beat", "beat", "beat", "leave", "away", "grow", "subscribe", "silent", "resolve"]),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_no_partition_has_two_owners_and_every_group_settles(steps: list[tuple[str, int]]) -> None:
    topics = GivenTopics(orders=3, payments=2)
    made = GroupOfMembers(topics)
    clients: dict[int, Client] = {}
    names = count = 0

    for action, index in steps:
        client = clients.get(index)
        if action == "join" and client is None:
            count += 1
            instance = {"instance_id": f"i{index}"} if index == 0 else {}
            regex = {"topic_regex": "ord.*"} if index == 1 else {}
            wanted = () if index == 1 else (("orders",), ("orders", "payments"))[names % 2]
            joining = made.client(f"m{count}", *wanted, **instance, **regex)
            static = made.group.static_member("i0") if index == 0 else None
            if static is None or static.epoch == -2:
                clients[index] = joining.join()
        elif action == "beat" and client is not None:
            client.beat()
        elif action == "leave" and client is not None:
            client.leave()
            del clients[index]
        elif action == "away" and index == 0 and client is not None:
            client.leave(-2)
            del clients[index]
        elif action == "grow":
            topics.set("orders", topics.found["orders"].partition_count + 1)
        elif action == "subscribe" and client is not None and index > 1:
            names += 1
            client.beat(topic_names=frozenset({"payments"} if names % 2 else {"orders", "payments"}))
        elif action == "resolve":
            made.resolve()
        elif action == "silent":
            made.pass_ms(1000)
        held = partitions_of(clients.values())
        assert len(held) == len(set(held))
        assert stored_state(made.replayed()) == stored_state(made.group)

    made.now_ms += 10_001
    made.resolve()
    if clients:
        for away in set(made.group.members) - {client.member_id for client in clients.values()}:
            member = made.group.members[away]
            made.leave(Heartbeat(away, -1, member.instance_id))
        made.settle(*clients.values())
        wanted_topics = made.group.subscribed_topics & topics.found.keys()
        assert sorted(partitions_of(clients.values())) == sorted(topics.partitions(*wanted_topics))
