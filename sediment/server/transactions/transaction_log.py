"""TransactionLog: appends to `__transaction_state`; a record takes effect when the high watermark is above it.

Source: Kafka's TransactionStateManager.appendTransactionToLog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.coordinator_log import coordinator_partition
from sediment.server.errors import error_code_of
from sediment.server.live.delayed_append import ReplicatingAppend, ReplicationWaits
from sediment.server.live.partition import Partition

_CODES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


class TransactionLog:
    """The topic; `partitions` returns all partitions by number, with None for a partition without a log."""

    def __init__(self, partitions: Callable[[], Mapping[int, Partition | None]], waits: ReplicationWaits) -> None:
        self._partitions = partitions
        self._waits = waits

    def partition_number(self, transactional_id: str) -> int | None:
        partitions = self._partitions()
        return coordinator_partition(transactional_id, len(partitions)) if partitions else None

    def coordinator_epoch(self, transactional_id: str) -> int | None:
        number = self.partition_number(transactional_id)
        partition = None if number is None else self._partitions().get(number)
        return None if partition is None else partition.leader_epoch

    def append(self, number: int, records: Sequence[NewRecord], then: Callable[[ErrorCode], object]) -> None:
        partition = self._partitions().get(number)
        if partition is None:
            then(ErrorCode.NOT_COORDINATOR)
            return
        try:
            batch = build_batch(records, BatchHead(base_offset=0, leader_epoch=0))
            info = partition.append_of_coordinator(batch, wait=False)
        except (SedimentError, OSError) as error:
            then(_coordinator_code(error_code_of(error)))
            return
        self._waits.then(
            [ReplicatingAppend(partition, info.last_offset + 1)],
            lambda codes: then(_coordinator_code(codes[partition.topic_partition])),
        )


def _coordinator_code(code: ErrorCode) -> ErrorCode:
    return _CODES.get(code, code)
