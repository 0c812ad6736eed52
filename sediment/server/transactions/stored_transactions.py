"""Replay of `__transaction_state`: the state of the last transaction of each transactional id, as stored.

Invariant: this module neither aborts nor completes a transaction.  A real coordinator would abort an open transaction
after its timeout, and complete a prepared one; here, both keep their stored state.

Source: Kafka's TransactionStateManager and TransactionMetadata.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum

from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import TRANSACTION_STATE, decode_coordinator_record
from sediment.server.coordinator_log import CoordinatorLog, LoggedRecord, read_records

_LOGGER = logging.getLogger(__name__)


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


_STATES = {state.number: state for state in TransactionState}


@dataclass(frozen=True, slots=True)
class StoredTransaction:
    """The last transaction of a transactional id; `partitions` are pairs (topic, partitions)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_timestamp_ms: int
    state: TransactionState
    partitions: tuple[tuple[str, tuple[int, ...]], ...]


def replay_transactions(log: CoordinatorLog, fs: Fs) -> dict[str, StoredTransaction]:
    """Return the transactions of a partition, by transactional id.

    Raises:
        SedimentError, OSError: the partition cannot be read, was removed, or was replaced while it was read.
    """
    current: dict[str, StoredTransaction] = {}
    unknown = sum(not _apply(record, current) for record in read_records(log, fs) if not record.is_control)
    if unknown:
        _LOGGER.warning("%s: %d records cannot be decoded; they are left out", log.source.partition, unknown)
    return current


def _apply(record: LoggedRecord, current: dict[str, StoredTransaction]) -> bool:
    """Apply one record; return False if it cannot be decoded."""
    decoded = decode_coordinator_record(TRANSACTION_STATE, record.key, record.value)
    if decoded is None:
        return False
    transactional_id, value = decoded.key.transactional_id, decoded.value
    if value is None:
        current.pop(transactional_id, None)
        return True
    state = _STATES.get(value.transaction_status)
    if state is None:
        return False
    current[transactional_id] = StoredTransaction(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        start_timestamp_ms=value.transaction_start_timestamp_ms,
        state=state,
        partitions=tuple((each.topic, tuple(each.partition_ids)) for each in value.transaction_partitions or ()),
    )
    return True
