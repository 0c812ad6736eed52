"""Records of `__transaction_state`, and their replay: the last transaction of each transactional id.

Invariant: this module neither aborts nor completes a transaction; a replayed transaction keeps its stored state.

Source: Kafka's TransactionLog and TransactionStateManager.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable

from sediment.segment_io.format.layout import NO_PRODUCER_ID
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import (
    TRANSACTION_STATE,
    decode_coordinator_record,
    encode_coordinator_key,
    encode_coordinator_value,
)
from sediment.segment_io.protocol import messages as m
from sediment.server.coordinator_log import CoordinatorLog, LoggedRecord, read_records
from sediment.server.transactions.transaction import STATES, Transaction, TransactionState

_LOGGER = logging.getLogger(__name__)

_FIRST_VALUE_VERSION, _FLEXIBLE_VALUE_VERSION = 0, 1


# --------------------------------------------------------------------------------------------------------------- encode
def encode_transaction(transaction: Transaction, transaction_version: int) -> tuple[bytes, bytes]:
    """Return key and value of a record, as a broker with this level of `transaction.version` writes it."""
    partitions = [
        m.TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=numbers)
        for topic, numbers in by_topic(transaction.partitions)
    ]
    version = _FLEXIBLE_VALUE_VERSION if transaction_version >= 1 else _FIRST_VALUE_VERSION
    value = m.TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state.number,
        transaction_partitions=None if transaction.state is TransactionState.EMPTY else partitions,
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_timestamp_ms,
        client_transaction_version=transaction.client_version if version >= _FLEXIBLE_VALUE_VERSION else 0,
        next_producer_id=transaction.next_producer_id if version >= _FLEXIBLE_VALUE_VERSION else NO_PRODUCER_ID,
    )
    return transaction_key(transaction.transactional_id), encode_coordinator_value(value, version)


def transaction_key(transactional_id: str) -> bytes:
    """Return the key of the records of a transactional id; without a value, the record removes the id."""
    return encode_coordinator_key(m.TransactionLogKey(transactional_id=transactional_id))


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Return the sorted numbers of partitions by topic."""
    topics: dict[str, list[int]] = defaultdict(list)
    for partition in sorted(partitions):
        topics[partition.topic].append(partition.partition)
    return list(topics.items())


# --------------------------------------------------------------------------------------------------------------- replay
def replay_transactions(log: CoordinatorLog, fs: Fs) -> dict[str, Transaction]:
    """Return the transactions of a partition, by transactional id.

    Raises:
        SedimentError, OSError: the partition cannot be read, was removed, or was replaced while it was read.
    """
    current: dict[str, Transaction] = {}
    unknown = sum(not _apply(record, current) for record in read_records(log, fs) if not record.is_control)
    if unknown:
        _LOGGER.warning("%s: %d records cannot be decoded; they are left out", log.source.partition, unknown)
    return current


def _apply(record: LoggedRecord, current: dict[str, Transaction]) -> bool:
    """Apply one record; return False if it cannot be decoded."""
    decoded = decode_coordinator_record(TRANSACTION_STATE, record.key, record.value)
    if decoded is None:
        return False
    transactional_id, value = decoded.key.transactional_id, decoded.value
    if value is None:
        current.pop(transactional_id, None)
        return True
    state = STATES.get(value.transaction_status)
    if state is None:
        return False
    current[transactional_id] = Transaction(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        start_timestamp_ms=value.transaction_start_timestamp_ms,
        state=state,
        partitions=frozenset(
            TopicPartition(each.topic, number)
            for each in value.transaction_partitions or ()
            for number in each.partition_ids
        ),
        last_update_ms=value.transaction_last_update_timestamp_ms,
        client_version=value.client_transaction_version,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
    )
    return True
