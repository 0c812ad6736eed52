"""The state machine of a transaction: pure functions from a transaction and a request to the next transaction.

    Empty, CompleteCommit, CompleteAbort --add_partitions--> Ongoing --end--> PrepareCommit, PrepareAbort
                                         --end (TV2, abort)-----------------> PrepareAbort
    Ongoing --fence--> PrepareAbort
    PrepareCommit, PrepareAbort --complete--> CompleteCommit, CompleteAbort
    every state except Ongoing and the prepared states --initialize--> Empty, with a higher epoch

The error NONE means that the request succeeds without a change.

Source: Kafka's TransactionCoordinator and TransactionMetadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from sediment.segment_io.format.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.transactions.transaction import (
    EPOCH_BUMPING_VERSION,
    FINISHED,
    LAST_USABLE_EPOCH,
    NO_TIME,
    PREPARED,
    Transaction,
    TransactionState,
)

Outcome: TypeAlias = "Transaction | ErrorCode"


@dataclass(frozen=True, slots=True)
class ProducerOf:
    producer_id: int
    epoch: int


def new_transaction(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    return Transaction(
        transactional_id, producer_id, NO_PRODUCER_EPOCH, timeout_ms, NO_TIME, TransactionState.EMPTY,
        last_update_ms=now_ms,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- initialize
def needs_producer_id_to_initialize(current: Transaction, expected: ProducerOf | None) -> bool:
    return (
        current.state in FINISHED
        and current.is_epoch_exhausted
        and (expected is None or (may_continue(current, expected) and expected.epoch == current.producer_epoch))
    )


def initialize(
    current: Transaction, timeout_ms: int, expected: ProducerOf | None, new_producer_id: int, now_ms: int
) -> Outcome:
    """An open transaction must first be fenced."""
    if expected is not None and not may_continue(current, expected):
        return ErrorCode.PRODUCER_FENCED
    if current.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if current.state not in FINISHED:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    producer_id = current.producer_id
    if needs_producer_id_to_initialize(current, expected):
        producer_id, epoch = new_producer_id, 0
        last_epoch = NO_PRODUCER_EPOCH if expected is None else current.producer_epoch
    elif current.is_epoch_exhausted:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    elif expected is None:
        epoch, last_epoch = current.producer_epoch + 1, NO_PRODUCER_EPOCH
    elif current.producer_epoch == NO_PRODUCER_EPOCH or expected.epoch == current.producer_epoch:
        epoch, last_epoch = current.producer_epoch + 1, current.producer_epoch
    elif expected.epoch == current.last_producer_epoch:
        epoch, last_epoch = current.producer_epoch, current.last_producer_epoch
    else:
        return ErrorCode.PRODUCER_FENCED
    return replace(
        current,
        state=TransactionState.EMPTY,
        producer_id=producer_id,
        previous_producer_id=current.producer_id,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_timestamp_ms=NO_TIME,
        last_update_ms=now_ms,
    )


def may_continue(current: Transaction, expected: ProducerOf) -> bool:
    # A producer that got a new id may repeat the request with its former id, because the response may have been lost.
    return (
        current.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == current.producer_id
        or (expected.producer_id == current.previous_producer_id and expected.epoch >= LAST_USABLE_EPOCH)
    )


def fence(current: Transaction, server_version: int, now_ms: int, *, is_raised: bool = False) -> Transaction:
    """If `is_raised`, an earlier fence has raised the epoch.

    The epoch 32767 is not raised. The markers then have version 0, because markers of version 0 may have the same epoch
    as the records.
    """
    raised = current.producer_epoch + (not is_raised)
    is_largest = raised > LAST_USABLE_EPOCH + 1
    bumps = server_version >= EPOCH_BUMPING_VERSION and not is_largest and not is_raised
    return replace(
        current,
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=current.producer_epoch if is_largest else raised,
        last_producer_epoch=current.producer_epoch if bumps else NO_PRODUCER_EPOCH,
        previous_producer_id=current.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        client_version=EPOCH_BUMPING_VERSION if bumps else 0,
        last_update_ms=now_ms,
    )


# ----------------------------------------------------------------------------------------------------------- partitions
def add_partitions(
    current: Transaction, producer: ProducerOf, partitions: frozenset[TopicPartition], version: int, now_ms: int
) -> Outcome:
    if producer.producer_id != current.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.epoch != current.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if current.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    is_open = current.state is TransactionState.ONGOING
    if is_open and partitions <= current.partitions:
        return ErrorCode.NONE
    if not is_open and current.state not in FINISHED:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return replace(
        current,
        state=TransactionState.ONGOING,
        partitions=current.partitions | partitions,
        previous_producer_id=current.producer_id,
        start_timestamp_ms=current.start_timestamp_ms if is_open else now_ms,
        last_update_ms=now_ms,
        client_version=version,
    )


def verify_partitions(
    current: Transaction, producer: ProducerOf, partitions: Iterable[TopicPartition]
) -> Mapping[TopicPartition, ErrorCode]:
    error = None
    if producer.producer_id != current.producer_id:
        error = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    elif producer.epoch != current.producer_epoch:
        error = ErrorCode.PRODUCER_FENCED
    elif current.state in PREPARED:
        error = ErrorCode.CONCURRENT_TRANSACTIONS
    if error is not None:
        return dict.fromkeys(partitions, error)
    return {
        each: ErrorCode.NONE if each in current.partitions else ErrorCode.TRANSACTION_ABORTABLE for each in partitions
    }


# ------------------------------------------------------------------------------------------------------------------ end
def end(current: Transaction, producer: ProducerOf, version: int, now_ms: int, *, is_commit: bool) -> Outcome:
    if version < EPOCH_BUMPING_VERSION:
        return _end_of_old_client(current, producer, now_ms, is_commit=is_commit)
    is_retry_of_bump = current.producer_epoch == producer.epoch + 1
    is_retry_of_overflow = (
        current.previous_producer_id == producer.producer_id != current.producer_id
        and producer.epoch == LAST_USABLE_EPOCH
        and current.producer_epoch == 0
    )
    is_retry = is_retry_of_bump or is_retry_of_overflow
    is_current = producer.epoch == current.producer_epoch
    state = current.state
    if producer.producer_id != current.producer_id and not is_retry_of_overflow:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if state in PREPARED:
        is_valid = is_retry_of_bump
    elif state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
        is_valid = is_retry or is_current
    else:
        is_valid = is_current
    if not is_valid:
        return ErrorCode.PRODUCER_FENCED
    is_abort_of_nothing = state in FINISHED and not is_retry and not is_commit
    if state is TransactionState.ONGOING or is_abort_of_nothing:
        if current.producer_epoch > LAST_USABLE_EPOCH:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        start_ms = now_ms if is_abort_of_nothing else current.start_timestamp_ms
        return replace(_prepared(current, version, now_ms, is_commit=is_commit), start_timestamp_ms=start_ms)
    if state is TransactionState.EMPTY or (state in FINISHED and not is_retry):
        return ErrorCode.INVALID_TXN_STATE
    code = _code_of_repeated_end(state, is_commit=is_commit)
    # A response with NONE would contain the epoch, but the epoch 32767 is used only for fencing.
    is_largest = current.producer_epoch > LAST_USABLE_EPOCH
    return ErrorCode.PRODUCER_FENCED if code is ErrorCode.NONE and is_largest else code


def _end_of_old_client(current: Transaction, producer: ProducerOf, now_ms: int, *, is_commit: bool) -> Outcome:
    if producer.producer_id != current.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.epoch != current.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if current.state is TransactionState.ONGOING:
        return _prepared(current, 0, now_ms, is_commit=is_commit)
    return _code_of_repeated_end(current.state, is_commit=is_commit)


def _code_of_repeated_end(state: TransactionState, *, is_commit: bool) -> ErrorCode:
    decided = {
        TransactionState.COMPLETE_COMMIT: (True, ErrorCode.NONE),
        TransactionState.COMPLETE_ABORT: (False, ErrorCode.NONE),
        TransactionState.PREPARE_COMMIT: (True, ErrorCode.CONCURRENT_TRANSACTIONS),
        TransactionState.PREPARE_ABORT: (False, ErrorCode.CONCURRENT_TRANSACTIONS),
    }
    was_commit, code = decided.get(state, (not is_commit, ErrorCode.NONE))
    return code if was_commit is is_commit else ErrorCode.INVALID_TXN_STATE


def _prepared(current: Transaction, version: int, now_ms: int, *, is_commit: bool) -> Transaction:
    bumps = version >= EPOCH_BUMPING_VERSION
    return replace(
        current,
        state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        producer_epoch=current.producer_epoch + bumps,
        last_producer_epoch=current.producer_epoch if bumps else current.last_producer_epoch,
        previous_producer_id=current.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        client_version=version,
        last_update_ms=now_ms,
    )


def needs_next_producer_id(prepared: Transaction) -> bool:
    """A fence does not set the next producer id, and records of Kafka 4.2.0 do not contain this id."""
    return (
        prepared.client_version >= EPOCH_BUMPING_VERSION
        and prepared.producer_epoch > LAST_USABLE_EPOCH
        and prepared.next_producer_id == NO_PRODUCER_ID
    )


def complete(current: Transaction, now_ms: int) -> Transaction:
    is_commit = current.state is TransactionState.PREPARE_COMMIT
    gets_id = current.client_version >= EPOCH_BUMPING_VERSION and current.next_producer_id != NO_PRODUCER_ID
    return replace(
        current,
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        producer_id=current.next_producer_id if gets_id else current.producer_id,
        producer_epoch=0 if gets_id else current.producer_epoch,
        previous_producer_id=current.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
        last_update_ms=now_ms,
    )
