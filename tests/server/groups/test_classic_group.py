"""Rules of the classic group protocol, one transcript each."""

from __future__ import annotations

import time

from tests.server.groups.group_driver import ErrorCode, GroupDriver, GroupState, JoinAnswer, SyncAnswer


def joined(answer: object) -> JoinAnswer:
    assert isinstance(answer, JoinAnswer)
    return answer


def synced(answer: object) -> SyncAnswer:
    assert isinstance(answer, SyncAnswer)
    return answer


# --------------------------------------------------------------------------------------------------------------- joins
def test_a_dynamic_member_gets_its_id_first_and_joins_with_it() -> None:
    group = GroupDriver()
    first = joined(group.join(client_id="reader").answer)
    assert (first.error, first.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "reader-1")
    assert group.state is GroupState.EMPTY
    second = group.join(first.member_id)
    assert second.answer is None
    group.pass_ms(3000)
    answer = joined(second.answer)
    assert answer.error is ErrorCode.NONE
    assert (answer.member_id, answer.leader, answer.generation) == ("reader-1", "reader-1", 1)
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert [member.member_id for member in answer.members] == ["reader-1"]


def test_an_old_client_joins_in_one_step() -> None:
    group = GroupDriver()
    waiter = group.join(requires_known_member_id=False)
    group.pass_ms(3000)
    assert joined(waiter.answer).error is ErrorCode.NONE


def test_a_static_member_joins_in_one_step_under_an_id_made_of_its_instance_id() -> None:
    group = GroupDriver()
    waiter = group.join(instance="pod-1")
    group.pass_ms(3000)
    assert joined(waiter.answer).member_id == "pod-1-1"


def test_the_first_rebalance_of_a_group_is_prolonged_while_members_arrive() -> None:
    group = GroupDriver()
    first = group.join_with_id(rebalance_timeout_ms=10_000)
    group.pass_ms(2000)
    second = group.join_with_id(rebalance_timeout_ms=10_000)
    group.pass_ms(1000)
    assert first.answer is None
    group.pass_ms(2999)
    assert first.answer is None
    group.pass_ms(1)
    assert joined(first.answer).generation == joined(second.answer).generation == 1
    assert len(joined(first.answer).members) == 2
    assert joined(second.answer).members == ()


def test_the_first_rebalance_is_not_prolonged_past_the_rebalance_timeout() -> None:
    group = GroupDriver()
    first = group.join_with_id(rebalance_timeout_ms=5000)
    for _ in range(5):
        group.pass_ms(1000)
        group.join_with_id(rebalance_timeout_ms=5000)
    assert group.now_ms == 5000
    assert joined(first.answer).error is ErrorCode.NONE


def test_a_member_with_another_protocol_type_or_no_common_protocol_is_refused() -> None:
    group = GroupDriver()
    group.stable(1)
    for options in ({"protocol_type": "connect"}, {"protocols": (("sticky", b""),)}):
        assert joined(group.join(**options).answer).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_group_is_not_begun_without_protocols() -> None:
    group = GroupDriver()
    assert joined(group.join(protocols=()).answer).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert joined(group.join(protocol_type="").answer).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_with_most_votes_among_the_common_ones_is_chosen() -> None:
    group = GroupDriver()
    waiters = [
        group.join_with_id(protocols=(("x", b""), ("range", b""), ("sticky", b""))),
        group.join_with_id(protocols=(("sticky", b"1"), ("range", b""))),
        group.join_with_id(protocols=(("sticky", b"2"), ("range", b""))),
    ]
    group.pass_ms(9000)
    assert {joined(waiter.answer).protocol_name for waiter in waiters} == {"sticky"}
    assert [member.metadata for member in joined(waiters[0].answer).members] == [b"", b"1", b"2"]


def test_a_full_group_refuses_more_members() -> None:
    group = GroupDriver(group_max_size=2)
    group.stable(2)
    answer = joined(group.join().answer)
    assert (answer.error, answer.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")


def test_the_last_to_rejoin_a_group_that_became_full_is_left_out() -> None:
    group = GroupDriver(group_max_size=2)
    leader, follower = group.stable(2)
    group.join(leader)
    newcomer = group.join(requires_known_member_id=False)
    late = joined(group.join(follower).answer)
    assert late.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    group.pass_ms(60_000)
    assert joined(newcomer.answer).error is ErrorCode.NONE


def test_an_unknown_member_id_is_refused() -> None:
    group = GroupDriver()
    group.stable(1)
    assert joined(group.join("nobody").answer).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_that_joins_again_unchanged_gets_the_current_generation() -> None:
    group = GroupDriver()
    _, follower = group.stable(2)
    answer = joined(group.join(follower).answer)
    assert (answer.error, answer.generation, answer.members) == (ErrorCode.NONE, 1, ())
    assert group.state is GroupState.STABLE


def test_a_leader_that_joins_again_starts_a_rebalance() -> None:
    group = GroupDriver()
    leader, follower = group.stable(2)
    waiter = group.join(leader)
    assert group.state is GroupState.PREPARING_REBALANCE
    assert group.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    group.join(follower)
    assert joined(waiter.answer).generation == 2


def test_a_follower_with_other_metadata_starts_a_rebalance() -> None:
    group = GroupDriver()
    _, follower = group.stable(2)
    group.join(follower, protocols=(("range", b"other"),))
    assert group.state is GroupState.PREPARING_REBALANCE


def test_members_that_do_not_rejoin_within_the_rebalance_timeout_are_removed() -> None:
    group = GroupDriver()
    leader, follower = group.stable(2, rebalance_timeout_ms=20_000, session_timeout_ms=60_000)
    waiter = group.join(follower, protocols=(("range", b"other"),), rebalance_timeout_ms=20_000)
    group.pass_ms(20_000)
    answer = joined(waiter.answer)
    assert (answer.leader, answer.generation) == (follower, 2)
    assert group.heartbeat(leader, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_id_that_was_given_out_and_not_used_ends_with_its_session_timeout() -> None:
    group = GroupDriver()
    leader, follower = group.stable(2, session_timeout_ms=600_000)
    pending = joined(group.join().answer).member_id
    waiter = group.join(leader)
    group.join(follower)
    assert waiter.answer is None
    group.pass_ms(10_000)
    assert joined(waiter.answer).error is ErrorCode.NONE
    assert joined(group.join(pending).answer).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_many_member_ids_that_were_not_used_end_at_once() -> None:
    """One connection can ask for thousands; the thread of the timer must not be busy with them for minutes."""
    group = GroupDriver()
    ids = [joined(group.join().answer).member_id for _ in range(10_000)]
    started = time.monotonic()
    group.pass_ms(10_000)
    assert time.monotonic() - started < 4
    assert joined(group.join(ids[-1]).answer).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_member_whose_client_is_gone_does_not_wait_forever() -> None:
    group = GroupDriver()
    leader = group.stable(1, rebalance_timeout_ms=900_000, session_timeout_ms=1_800_000)[0]
    waiter = group.join_with_id(rebalance_timeout_ms=900_000)
    group.pass_ms(300_000)
    assert joined(waiter.answer).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_the_metadata_of_members_is_not_read() -> None:
    group = GroupDriver()
    (member_id,) = group.completing(1, protocols=(("range", b"not a subscription"),))
    assert group.group.members[member_id].metadata("range") == b"not a subscription"


def test_a_rebalance_waits_at_least_100_ms() -> None:
    group = GroupDriver()
    group.stable(1, instances=["pod-1"], rebalance_timeout_ms=-1, session_timeout_ms=60_000)
    waiter = group.join_with_id(rebalance_timeout_ms=0)
    group.pass_ms(99)
    assert waiter.answer is None
    group.pass_ms(1)
    assert joined(waiter.answer).error is ErrorCode.NONE


def test_a_join_that_is_repeated_while_it_waits_answers_the_first_one() -> None:
    group = GroupDriver()
    first = group.join_with_id()
    member_id = group.member_ids()[0]
    second = group.join(member_id)
    assert joined(first.answer).error is ErrorCode.REBALANCE_IN_PROGRESS
    group.pass_ms(3000)
    assert joined(second.answer).error is ErrorCode.NONE


# --------------------------------------------------------------------------------------------------------------- syncs
def test_followers_wait_for_the_assignment_of_the_leader() -> None:
    group = GroupDriver()
    leader, follower = group.completing(2)
    waiting = group.sync(follower, 1)
    assert waiting.answer is None
    own = group.sync(leader, 1, {leader: b"0", follower: b"1"})
    assert synced(own.answer).assignment == b"0"
    assert synced(waiting.answer) == SyncAnswer(ErrorCode.NONE, "consumer", "range", b"1")
    assert group.state is GroupState.STABLE


def test_a_member_that_the_leader_left_out_gets_an_empty_assignment() -> None:
    group = GroupDriver()
    leader, follower = group.completing(2)
    group.sync(leader, 1, {leader: b"0"})
    assert synced(group.sync(follower, 1).answer).assignment == b""


def test_a_sync_is_checked() -> None:
    group = GroupDriver()
    leader, _ = group.completing(2)
    assert synced(group.sync("nobody", 1).answer).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert synced(group.sync(leader, 0).answer).error is ErrorCode.ILLEGAL_GENERATION
    wrong = group.sync(leader, 1, protocol_name="sticky")
    assert synced(wrong.answer).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    group.join_with_id()
    assert synced(group.sync(leader, 1).answer).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_waiting_syncs_are_told_of_a_new_rebalance() -> None:
    group = GroupDriver()
    _, follower = group.completing(2)
    waiting = group.sync(follower, 1)
    group.join_with_id()
    assert synced(waiting.answer).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_do_not_sync_within_the_rebalance_timeout_are_removed() -> None:
    group = GroupDriver()
    leader, follower = group.completing(2, rebalance_timeout_ms=20_000, session_timeout_ms=60_000)
    group.sync(leader, 1)
    group.pass_ms(20_000)
    assert group.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert group.heartbeat(follower, 1) is ErrorCode.UNKNOWN_MEMBER_ID


# ------------------------------------------------------------------------------------------------ heartbeats, sessions
def test_a_heartbeat_is_checked() -> None:
    group = GroupDriver()
    (leader,) = group.stable(1)
    assert group.heartbeat(leader, 1) is ErrorCode.NONE
    assert group.heartbeat(leader, 2) is ErrorCode.ILLEGAL_GENERATION
    assert group.heartbeat("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_session_without_heartbeats_ends_and_the_others_rebalance() -> None:
    group = GroupDriver()
    leader, follower = group.stable(2, session_timeout_ms=10_000)
    group.pass_ms(6000)
    group.heartbeat(follower, 1)
    group.pass_ms(3999)
    assert group.heartbeat(follower, 1) is ErrorCode.NONE
    group.pass_ms(1)
    assert group.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert group.heartbeat(leader, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_commits_keep_a_session_alive() -> None:
    group = GroupDriver()
    (leader,) = group.stable(1, session_timeout_ms=10_000)
    for _ in range(4):
        group.pass_ms(6000)
        group.commit(leader, 1)
    assert group.heartbeat(leader, 1) is ErrorCode.NONE


def test_a_group_whose_sessions_all_ended_is_empty_and_of_the_next_generation() -> None:
    group = GroupDriver()
    group.stable(2, session_timeout_ms=10_000)
    group.pass_ms(10_000)
    assert (group.state, group.group.generation) == (GroupState.EMPTY, 2)
    assert group.group.protocol_type == "consumer"
    assert group.group.is_idle


# -------------------------------------------------------------------------------------------------------------- leaves
def test_a_member_that_leaves_makes_the_others_rebalance_at_once() -> None:
    group = GroupDriver()
    leader, follower = group.stable(2)
    assert group.leave(follower) == [ErrorCode.NONE]
    assert group.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert group.leave(leader) == [ErrorCode.NONE]
    assert group.state is GroupState.EMPTY


def test_several_members_leave_in_one_request_each_with_its_own_error() -> None:
    group = GroupDriver()
    leader, follower = group.stable(2)
    assert group.leave("nobody", follower, leader) == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE, ErrorCode.NONE]


def test_an_operator_removes_a_static_member_by_its_instance_id() -> None:
    group = GroupDriver()
    group.stable(1, instances=["pod-1"])
    assert group.leave("", instance="pod-2") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert group.leave("", instance="pod-1") == [ErrorCode.NONE]
    assert group.state is GroupState.EMPTY


def test_a_pending_member_may_leave() -> None:
    group = GroupDriver()
    pending = joined(group.join().answer).member_id
    assert group.leave(pending) == [ErrorCode.NONE]
    assert group.state is GroupState.EMPTY
    assert group.group.is_idle


def test_a_member_that_is_removed_while_it_waits_is_told_so() -> None:
    group = GroupDriver()
    waiter = group.join(instance="pod-1")
    group.leave("", instance="pod-1")
    assert joined(waiter.answer).error is ErrorCode.UNKNOWN_MEMBER_ID
    group = GroupDriver()
    _, follower = group.completing(2)
    waiter = group.sync(follower, 1)
    group.leave(follower)
    assert synced(waiter.answer).error is ErrorCode.UNKNOWN_MEMBER_ID


# ------------------------------------------------------------------------------------------------------ static members
def test_a_static_member_that_restarts_gets_its_place_back_without_a_rebalance() -> None:
    group = GroupDriver()
    leader, follower = group.stable(2, instances=["pod-1", "pod-2"])
    answer = joined(group.join(instance="pod-2").answer)
    assert (answer.error, answer.generation, answer.leader) == (ErrorCode.NONE, 1, leader)
    assert answer.member_id not in (leader, follower)
    assert not answer.skip_assignment
    assert synced(group.sync(answer.member_id, 1).answer).assignment == follower.encode()
    assert group.heartbeat(leader, 1) is ErrorCode.NONE


def test_the_former_self_of_a_static_member_is_fenced() -> None:
    group = GroupDriver()
    _, follower = group.stable(2, instances=["pod-1", "pod-2"])
    group.join(instance="pod-2")
    assert group.heartbeat(follower, 1, instance="pod-2") is ErrorCode.FENCED_INSTANCE_ID
    assert joined(group.join(follower, instance="pod-2").answer).error is ErrorCode.FENCED_INSTANCE_ID
    assert group.leave(follower, instance="pod-2") == [ErrorCode.FENCED_INSTANCE_ID]
    assert group.commit(follower, 1, instance="pod-2") is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_leader_that_restarts_is_told_to_skip_the_assignment() -> None:
    group = GroupDriver()
    group.stable(2, instances=["pod-1", "pod-2"])
    answer = joined(group.join(instance="pod-1").answer)
    assert answer.leader == answer.member_id
    assert answer.skip_assignment
    assert len(answer.members) == 2


def test_an_older_static_leader_that_restarts_is_not_told_that_it_leads() -> None:
    group = GroupDriver()
    leader, _ = group.stable(2, instances=["pod-1", "pod-2"])
    answer = joined(group.join(instance="pod-1", supports_skipping_assignment=False).answer)
    assert (answer.leader, answer.members, answer.skip_assignment) == (leader, (), False)
    assert group.group.leader_id == answer.member_id


def test_a_static_member_that_restarts_with_another_protocol_starts_a_rebalance() -> None:
    group = GroupDriver()
    protocols = (("range", b""), ("sticky", b""))
    group.stable(1, instances=["pod-1"], protocols=protocols)
    answer = joined(group.join(instance="pod-1", protocols=protocols[::-1]).answer)
    assert (answer.generation, answer.protocol_name) == (2, "sticky")


def test_a_static_member_that_restarts_before_the_assignment_starts_a_rebalance() -> None:
    group = GroupDriver()
    leader, _ = group.completing(2, instances=["pod-1", "pod-2"])
    group.join(instance="pod-2")
    assert group.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_the_request_of_a_fenced_member_that_waits_is_answered() -> None:
    group = GroupDriver()
    first = group.join(instance="pod-1")
    second = group.join(instance="pod-1")
    assert joined(first.answer).error is ErrorCode.FENCED_INSTANCE_ID
    group.pass_ms(3000)
    assert joined(second.answer).error is ErrorCode.NONE


def test_static_members_keep_their_place_when_they_do_not_rejoin_in_time() -> None:
    group = GroupDriver()
    leader, _ = group.stable(2, instances=["pod-1", None], rebalance_timeout_ms=20_000, session_timeout_ms=60_000)
    waiter = group.join_with_id(rebalance_timeout_ms=20_000)
    group.pass_ms(20_000)
    answer = joined(waiter.answer)
    assert answer.leader == answer.member_id
    assert {member.member_id for member in answer.members} == {leader, answer.member_id}


# ------------------------------------------------------------------------------------------------------------- commits
def test_who_may_commit() -> None:
    group = GroupDriver()
    assert group.commit("", -1) is ErrorCode.NONE
    leader, follower = group.completing(2)
    assert group.commit(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    group.sync(leader, 1)
    assert group.commit(leader, 1) is ErrorCode.NONE
    assert group.commit(leader, 0) is ErrorCode.ILLEGAL_GENERATION
    assert group.commit("", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.commit("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    group.leave(follower)
    assert group.state is GroupState.PREPARING_REBALANCE
    assert group.commit(leader, 1) is ErrorCode.NONE


def test_who_may_commit_in_a_transaction() -> None:
    group = GroupDriver()
    leader, _ = group.completing(2)
    assert group.commit("", -1, transactional=True) is ErrorCode.NONE
    assert group.commit(leader, 1, transactional=True) is ErrorCode.NONE
    assert group.commit(leader, 0, transactional=True) is ErrorCode.ILLEGAL_GENERATION


# ---------------------------------------------------------------------------------------------------------------- dead
def test_a_group_that_is_unloaded_answers_every_waiter_and_is_dead() -> None:
    group = GroupDriver()
    waiter = group.join_with_id()
    group.unload()
    assert joined(waiter.answer).error is ErrorCode.NOT_COORDINATOR
    assert joined(group.join().answer).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert synced(group.sync("m", 1).answer).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group.heartbeat("m", 1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group.leave("m") == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert group.commit("m", 1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
