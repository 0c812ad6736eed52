"""Transaction: the last transaction of a transactional id, in the form that `__transaction_state` stores.

Source: Kafka's TransactionState and TransactionMetadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sediment.segment_io.format.layout import INT32_MAX, NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from sediment.segment_io.format.names import TopicPartition

NO_TIME = -1
LAST_USABLE_EPOCH = 32_766
"""The highest epoch that a producer gets; the epoch 32767 is used only for fencing."""

EPOCH_BUMPING_VERSION = 2
"""The first transaction version in which the end of a transaction raises the epoch (TV2, KIP-890)."""


class TransactionState(Enum):
    """The state of a transaction: its number in records, and Kafka's name."""

    EMPTY = 0, "Empty"
    ONGOING = 1, "Ongoing"
    PREPARE_COMMIT = 2, "PrepareCommit"
    PREPARE_ABORT = 3, "PrepareAbort"
    COMPLETE_COMMIT = 4, "CompleteCommit"
    COMPLETE_ABORT = 5, "CompleteAbort"
    DEAD = 6, "Dead"
    PREPARE_EPOCH_FENCE = 7, "PrepareEpochFence"

    def __init__(self, number: int, title: str) -> None:
        self.number = number
        self.title = title


STATES = {state.number: state for state in TransactionState}
"""The states by number."""

PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The states between the decision and the last marker."""

FINISHED = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
"""The states without a transaction in progress."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """The last transaction of a transactional id; `client_version` is the transaction version of its producer."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_timestamp_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    last_update_ms: int = NO_TIME
    client_version: int = 0
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The id that the producer gets when the markers are written, because its current id has no more epochs."""

    last_producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= LAST_USABLE_EPOCH

    def has_producer(self, producer_id: int) -> bool:
        return producer_id in (self.producer_id, self.next_producer_id)

    def has_timed_out(self, now_ms: int) -> bool:
        """Return True if the transaction has been open for longer than its timeout; INT32_MAX means no timeout."""
        return (
            self.state is TransactionState.ONGOING
            and self.timeout_ms != INT32_MAX
            and self.start_timestamp_ms + self.timeout_ms < now_ms
        )

    def has_expired(self, now_ms: int, expiration_ms: int) -> bool:
        return self.state in FINISHED and self.last_update_ms <= now_ms - expiration_ms
