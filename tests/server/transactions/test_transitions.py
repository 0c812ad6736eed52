"""The state machine of a transaction, for producers of both transaction versions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.transactions import transitions
from sediment.server.transactions.transaction import PREPARED, Transaction, TransactionState
from sediment.server.transactions.transitions import ProducerOf

NOW_MS = 1_700_000_000_000
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OLD, NEW = 0, 2
NO_ID = -1
NEW_ID = 900

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
COMMITTED, ABORTED = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
TO_COMMIT, TO_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT


def transaction(state: TransactionState = ONGOING, epoch: int = 5, **fields: object) -> Transaction:
    partitions = frozenset({T0}) if state is ONGOING or state in PREPARED else frozenset()
    made = Transaction("x", 7, epoch, 60_000, NOW_MS - 10, state, partitions, NOW_MS - 5)
    return replace(made, **fields)  # type: ignore[arg-type]


def taken(outcome: transitions.Outcome) -> Transaction:
    assert isinstance(outcome, Transaction), outcome
    return outcome


def end(
    current: Transaction, epoch: int, version: int = NEW, *, commit: bool, producer_id: int = 7
) -> transitions.Outcome:
    return transitions.end(current, ProducerOf(producer_id, epoch), version, NOW_MS, is_commit=commit)


# ----------------------------------------------------------------------------------------------------------- initialize
def test_each_initialization_raises_the_epoch() -> None:
    first = taken(transitions.initialize(transitions.new_transaction("x", 7, 1000, NOW_MS), 1000, None, NO_ID, NOW_MS))
    assert (first.producer_id, first.producer_epoch, first.state, first.timeout_ms) == (7, 0, EMPTY, 1000)
    second = taken(transitions.initialize(first, 2000, None, NO_ID, NOW_MS))
    assert (second.producer_epoch, second.last_producer_epoch, second.timeout_ms) == (1, -1, 2000)


def test_a_producer_continues_after_an_error_and_may_repeat_the_request() -> None:
    current = transaction(COMMITTED)
    raised = taken(transitions.initialize(current, 1000, ProducerOf(7, 5), NO_ID, NOW_MS))
    assert (raised.producer_epoch, raised.last_producer_epoch) == (6, 5)
    repeated = taken(transitions.initialize(raised, 1000, ProducerOf(7, 5), NO_ID, NOW_MS))
    assert repeated.producer_epoch == 6
    assert transitions.initialize(raised, 1000, ProducerOf(7, 4), NO_ID, NOW_MS) is ErrorCode.PRODUCER_FENCED
    assert transitions.initialize(raised, 1000, ProducerOf(8, 6), NO_ID, NOW_MS) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("epoch", [32_766, 32_767])
def test_a_producer_whose_epochs_are_used_up_gets_a_new_id(epoch: int) -> None:
    current = transaction(ABORTED, epoch)
    assert transitions.needs_producer_id_to_initialize(current, None)
    rotated = taken(transitions.initialize(current, 1000, None, NEW_ID, NOW_MS))
    assert (rotated.producer_id, rotated.producer_epoch, rotated.previous_producer_id) == (NEW_ID, 0, 7)
    # The former producer may repeat its request, because it did not see the answer.
    again = transitions.initialize(
        replace(rotated, last_producer_epoch=32_766), 1000, ProducerOf(7, 32_766), NO_ID, NOW_MS
    )
    assert (taken(again).producer_id, taken(again).producer_epoch) == (NEW_ID, 0)


@pytest.mark.parametrize("state", sorted(PREPARED, key=str))
def test_a_decided_transaction_must_be_complete_first(state: TransactionState) -> None:
    outcome = transitions.initialize(transaction(state), 1000, None, NO_ID, NOW_MS)
    assert outcome is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize(("version", "last_epoch"), [(OLD, -1), (NEW, 5)])
def test_a_fenced_transaction_is_aborted_under_one_higher_epoch(version: int, last_epoch: int) -> None:
    fenced = transitions.fence(transaction(), version, NOW_MS)
    assert (fenced.state, fenced.producer_epoch, fenced.last_producer_epoch) == (TO_ABORT, 6, last_epoch)
    assert (fenced.client_version, fenced.partitions) == (version, {T0})
    assert transitions.fence(transaction(epoch=32_766), version, NOW_MS).producer_epoch == 32_767


def test_a_second_fence_uses_the_epoch_of_the_first() -> None:
    assert transitions.fence(transaction(epoch=6), OLD, NOW_MS, is_raised=True).producer_epoch == 6


def test_a_producer_that_was_fenced_for_certain_takes_no_new_id() -> None:
    current = transaction(COMMITTED, 32_766)
    assert not transitions.needs_producer_id_to_initialize(current, ProducerOf(8, 32_766))
    assert transitions.needs_producer_id_to_initialize(current, ProducerOf(7, 32_766))


# ----------------------------------------------------------------------------------------------------------- partitions
@pytest.mark.parametrize("state", [EMPTY, COMMITTED, ABORTED])
def test_the_first_partition_begins_a_transaction(state: TransactionState) -> None:
    begun = taken(transitions.add_partitions(transaction(state), ProducerOf(7, 5), frozenset({T0}), OLD, NOW_MS))
    assert (begun.state, begun.partitions, begun.start_timestamp_ms) == (ONGOING, {T0}, NOW_MS)
    grown = taken(transitions.add_partitions(begun, ProducerOf(7, 5), frozenset({T1}), OLD, NOW_MS + 1))
    assert (grown.partitions, grown.start_timestamp_ms, grown.last_update_ms) == ({T0, T1}, NOW_MS, NOW_MS + 1)
    assert transitions.add_partitions(grown, ProducerOf(7, 5), frozenset({T1}), OLD, NOW_MS) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("state", "producer", "code"),
    [
        (ONGOING, ProducerOf(8, 5), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ONGOING, ProducerOf(7, 4), ErrorCode.PRODUCER_FENCED),
        (ONGOING, ProducerOf(7, 6), ErrorCode.PRODUCER_FENCED),
        (TO_COMMIT, ProducerOf(7, 5), ErrorCode.CONCURRENT_TRANSACTIONS),
        (TO_ABORT, ProducerOf(7, 5), ErrorCode.CONCURRENT_TRANSACTIONS),
    ],
)
def test_a_producer_that_may_not_add_may_not_write_either(
    state: TransactionState, producer: ProducerOf, code: ErrorCode
) -> None:
    assert transitions.add_partitions(transaction(state), producer, frozenset({T1}), OLD, NOW_MS) is code
    assert transitions.verify_partitions(transaction(state), producer, [T0, T1]) == {T0: code, T1: code}


def test_only_partitions_of_the_transaction_are_verified() -> None:
    found = transitions.verify_partitions(transaction(), ProducerOf(7, 5), [T0, T1])
    assert found == {T0: ErrorCode.NONE, T1: ErrorCode.TRANSACTION_ABORTABLE}


# ------------------------------------------------------------------------------------------------------------------ end
@pytest.mark.parametrize(("commit", "prepared", "complete"), [(True, TO_COMMIT, COMMITTED), (False, TO_ABORT, ABORTED)])
@pytest.mark.parametrize(("version", "epoch"), [(OLD, 5), (NEW, 6)])
def test_an_end_raises_the_epoch_from_version_2_on(
    version: int, epoch: int, commit: bool, prepared: TransactionState, complete: TransactionState
) -> None:
    decided = taken(end(transaction(), 5, version, commit=commit))
    assert (decided.state, decided.producer_epoch, decided.partitions) == (prepared, epoch, {T0})
    done = transitions.complete(decided, NOW_MS + 3)
    assert (done.state, done.producer_id, done.producer_epoch, done.partitions) == (complete, 7, epoch, frozenset())
    assert (done.start_timestamp_ms, done.last_update_ms) == (NOW_MS - 10, NOW_MS + 3)


RETRIED, CURRENT = 4, 5
TABLE = {
    # The table of Kafka's TransactionCoordinator for version 2; None is an abort under a raised epoch.
    (EMPTY, False, RETRIED): ErrorCode.PRODUCER_FENCED,
    (EMPTY, False, CURRENT): None,
    (EMPTY, True, RETRIED): ErrorCode.PRODUCER_FENCED,
    (EMPTY, True, CURRENT): ErrorCode.INVALID_TXN_STATE,
    (ABORTED, False, RETRIED): ErrorCode.NONE,
    (ABORTED, False, CURRENT): None,
    (ABORTED, True, RETRIED): ErrorCode.INVALID_TXN_STATE,
    (ABORTED, True, CURRENT): ErrorCode.INVALID_TXN_STATE,
    (COMMITTED, False, RETRIED): ErrorCode.INVALID_TXN_STATE,
    (COMMITTED, False, CURRENT): None,
    (COMMITTED, True, RETRIED): ErrorCode.NONE,
    (COMMITTED, True, CURRENT): ErrorCode.INVALID_TXN_STATE,
    (TO_COMMIT, True, RETRIED): ErrorCode.CONCURRENT_TRANSACTIONS,
    (TO_COMMIT, False, RETRIED): ErrorCode.INVALID_TXN_STATE,
    (TO_COMMIT, True, CURRENT): ErrorCode.PRODUCER_FENCED,
    (TO_ABORT, False, RETRIED): ErrorCode.CONCURRENT_TRANSACTIONS,
    (TO_ABORT, True, RETRIED): ErrorCode.INVALID_TXN_STATE,
    (ONGOING, True, RETRIED): ErrorCode.PRODUCER_FENCED,
}


@pytest.mark.parametrize(("state", "commit", "epoch"), TABLE, ids=str)
def test_version_2_tells_a_repeated_end_from_the_next_one(state: TransactionState, commit: bool, epoch: int) -> None:
    outcome = end(transaction(state), epoch, commit=commit)
    wanted = TABLE[state, commit, epoch]
    if wanted is not None:
        assert outcome is wanted
    else:
        aborted = taken(outcome)
        assert (aborted.state, aborted.producer_epoch, aborted.start_timestamp_ms) == (TO_ABORT, 6, NOW_MS)


OLD_TABLE = {
    (EMPTY, True): ErrorCode.INVALID_TXN_STATE,
    (EMPTY, False): ErrorCode.INVALID_TXN_STATE,
    (COMMITTED, True): ErrorCode.NONE,
    (COMMITTED, False): ErrorCode.INVALID_TXN_STATE,
    (ABORTED, False): ErrorCode.NONE,
    (ABORTED, True): ErrorCode.INVALID_TXN_STATE,
    (TO_COMMIT, True): ErrorCode.CONCURRENT_TRANSACTIONS,
    (TO_COMMIT, False): ErrorCode.INVALID_TXN_STATE,
    (TO_ABORT, False): ErrorCode.CONCURRENT_TRANSACTIONS,
    (TO_ABORT, True): ErrorCode.INVALID_TXN_STATE,
}


@pytest.mark.parametrize(("state", "commit"), OLD_TABLE, ids=str)
def test_version_1_has_one_epoch_for_all_transactions(state: TransactionState, commit: bool) -> None:
    assert end(transaction(state), 5, OLD, commit=commit) is OLD_TABLE[state, commit]
    assert end(transaction(state), 4, OLD, commit=commit) is ErrorCode.PRODUCER_FENCED
    assert end(transaction(state), 5, OLD, commit=commit, producer_id=8) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_an_end_with_the_last_epoch_gives_the_producer_a_new_id() -> None:
    current = transaction(epoch=32_766)
    assert not transitions.needs_next_producer_id(taken(end(current, 32_766, OLD, commit=True)))
    decided = taken(end(current, 32_766, commit=True))
    assert (decided.producer_id, decided.producer_epoch) == (7, 32_767)  # of the markers
    assert transitions.needs_next_producer_id(decided)
    done = transitions.complete(replace(decided, next_producer_id=NEW_ID), NOW_MS)
    assert (done.producer_id, done.producer_epoch, done.previous_producer_id) == (NEW_ID, 0, 7)
    assert end(done, 32_766, commit=True) is ErrorCode.NONE
    assert end(done, 32_766, commit=False) is ErrorCode.INVALID_TXN_STATE
    assert end(done, 32_765, commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("state", [COMMITTED, ABORTED])
def test_no_answer_has_the_epoch_that_only_fences(state: TransactionState) -> None:
    current, was_commit = transaction(state, epoch=32_767), state is COMMITTED
    assert end(current, 32_766, commit=was_commit) is ErrorCode.PRODUCER_FENCED
    assert end(current, 32_766, commit=not was_commit) is ErrorCode.INVALID_TXN_STATE
    continued = transitions.initialize(current, 1000, ProducerOf(7, 32_766), NO_ID, NOW_MS)
    assert continued is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("state", [ONGOING, EMPTY, COMMITTED, ABORTED])
def test_an_epoch_is_never_raised_above_the_largest(state: TransactionState) -> None:
    assert end(transaction(state, epoch=32_767), 32_767, commit=False) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_an_open_transaction_with_the_largest_epoch_can_be_aborted() -> None:
    fenced = transitions.fence(transaction(epoch=32_767), NEW, NOW_MS)
    assert (fenced.state, fenced.producer_epoch, fenced.client_version) == (TO_ABORT, 32_767, OLD)
    assert transitions.fence(transaction(epoch=32_767), NEW, NOW_MS, is_raised=True) == fenced
    done = transitions.complete(fenced, NOW_MS)
    assert (done.state, done.producer_id) == (ABORTED, 7)
    assert transitions.needs_producer_id_to_initialize(done, None)


# ---------------------------------------------------------------------------------------------------------------- times
def test_only_open_transactions_time_out_and_only_finished_ones_expire() -> None:
    for state in TransactionState:
        current = transaction(state, start_timestamp_ms=NOW_MS, last_update_ms=NOW_MS)
        assert not current.has_timed_out(NOW_MS + 60_000)
        assert current.has_timed_out(NOW_MS + 60_001) == (state is ONGOING)
        assert not current.has_expired(NOW_MS + 99, 100)
        assert current.has_expired(NOW_MS + 100, 100) == (state in (EMPTY, COMMITTED, ABORTED))
    assert not transaction(timeout_ms=2**31 - 1).has_timed_out(NOW_MS + 2**40)
