"""Records of `__transaction_state`, and their replay: the last transaction of each transactional id.

Invariants: this module neither aborts nor completes a transaction; a replayed transaction keeps its stored state.  If a
record of a partition is damaged, none of the partition's transactions are used.  Otherwise an id could get an earlier
state.

Source: Kafka's TransactionLog and TransactionStateManager.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from sediment.segment_io.errors import UnsupportedDataError
from sediment.segment_io.format.layout import NO_PRODUCER_ID
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import (
    TRANSACTION_STATE,
    coordinator_record_type,
    decode_coordinator_record,
    encode_coordinator_key,
    encode_coordinator_value,
)
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.tables.schema import FAIL
from sediment.server.coordinator_log import CoordinatorLog, LoggedRecord, read_coordinator_records
from sediment.server.transactions.transaction import STATES, Transaction, TransactionState

_LOGGER = logging.getLogger(__name__)

_FIRST_VALUE_VERSION, _FLEXIBLE_VALUE_VERSION = 0, 1


# --------------------------------------------------------------------------------------------------------------- encode
def encode_transaction(transaction: Transaction, transaction_version: int) -> tuple[bytes, bytes]:
    """When a producer id changes, the record also contains the previous and the next id.

    Kafka 4.2.0 reads these two fields, but does not write them.
    """
    partitions = [
        m.TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=numbers)
        for topic, numbers in by_topic(transaction.partitions)
    ]
    version = _FLEXIBLE_VALUE_VERSION if transaction_version >= 1 else _FIRST_VALUE_VERSION
    is_flexible = version >= _FLEXIBLE_VALUE_VERSION
    has_changed_id = transaction.previous_producer_id != transaction.producer_id
    value = m.TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state.number,
        transaction_partitions=None if transaction.state is TransactionState.EMPTY else partitions,
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_timestamp_ms,
        client_transaction_version=transaction.client_version if is_flexible else 0,
        previous_producer_id=transaction.previous_producer_id if is_flexible and has_changed_id else NO_PRODUCER_ID,
        next_producer_id=transaction.next_producer_id if is_flexible else NO_PRODUCER_ID,
    )
    return transaction_key(transaction.transactional_id), encode_coordinator_value(value, version)


def transaction_key(transactional_id: str) -> bytes:
    return encode_coordinator_key(m.TransactionLogKey(transactional_id=transactional_id))


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for partition in sorted(partitions):
        topics[partition.topic].append(partition.partition)
    return list(topics.items())


# --------------------------------------------------------------------------------------------------------------- replay
def replay_transactions(log: CoordinatorLog, fs: Fs) -> dict[str, Transaction]:
    current: dict[str, Transaction] = {}
    unknown = 0
    for record in read_coordinator_records(log, fs, on_corruption=FAIL):
        if record.is_control:
            continue
        if coordinator_record_type(record.key) not in (None, m.TransactionLogKey.API_KEY):
            unknown += 1
            continue
        _apply(log, record, current)
    if unknown:
        _LOGGER.warning("%s: records of unknown types are skipped: %d", log.source.partition, unknown)
    return current


def _apply(log: CoordinatorLog, record: LoggedRecord, current: dict[str, Transaction]) -> None:
    decoded = decode_coordinator_record(TRANSACTION_STATE, record.key, record.value)
    transaction = None
    if decoded is not None and decoded.value is not None:
        transaction = decode_transaction(decoded.key.transactional_id, decoded.value)
    if decoded is None or (transaction is None and decoded.value is not None):
        raise UnsupportedDataError(
            "a record cannot be decoded",
            partition=str(log.source.partition),
            path=str(log.source.directory),
            offset=record.offset,
            advice="use a Sediment version that supports this Kafka version",
        )
    if transaction is None:
        current.pop(decoded.key.transactional_id, None)
    else:
        current[transaction.transactional_id] = transaction


def decode_transaction(transactional_id: str, value: Any) -> Transaction | None:
    state = STATES.get(value.transaction_status)
    if state is None:
        return None
    return Transaction(
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
