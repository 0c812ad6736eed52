"""Partition: one partition that this process leads, with its live log.

If a move has just replaced the log, a call on the old log may fail. The call is then repeated on the new log.

This node is the only replica. So without a `LogFlusher`, the high watermark is the log end after each append.

Source: Kafka's Partition.appendRecordsToLeader, readRecords and fetchOffsetForTimestamp.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from sediment.engine.live.log.fetched_data import (
    EARLIEST_TIMESTAMP,
    MAX_TIMESTAMP,
    Isolation,
    TimestampOffsetEpoch,
)
from sediment.engine.live.log.partition_log import AppendedRun, AppendInfo, AppendOrigin, PartitionLog
from sediment.engine.live.log.producer_appends import UNKNOWN_TRANSACTION_VERSION, VerificationGuard
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import SedimentError, StorageError
from sediment.segment_io.format.layout import NO_LEADER_EPOCH
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.format.transaction_index import AbortedTxn
from sediment.segment_io.partition.file_slice import FileSlice
from sediment.segment_io.partition.producer_state import ProducerEntry
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.segment_io.segment.append_run_kernels import RunRows
from sediment.server.errors import ApiError
from sediment.server.live.log_flusher import LogFlusher, flush_and_replicate

_UNUSABLE = (-1, -1)

_Result = TypeVar("_Result")


class _Fetched(NamedTuple):
    records: FileSlice | None
    aborted: tuple[AbortedTxn, ...] | None


class Partition:
    def __init__(self, log: PartitionLog, leader_epoch: int, flusher: LogFlusher | None) -> None:
        self.log = log
        self.leader_epoch = leader_epoch
        self._flusher = flusher
        self._refusal: Callable[[], SedimentError] | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.partition

    @property
    def directory(self) -> Path:
        return self.log.directory

    @property
    def size_bytes(self) -> int:
        return self.log.size_bytes

    @property
    def failure(self) -> SedimentError | None:
        """The error for every read and append if the topic was deleted or the disk failed, else None."""
        if self._refusal is not None:
            return self._refusal()
        if not self.log.is_offline:
            return None
        return self._storage_error("the log is offline, because its disk failed", "remove the cause and start again")

    @property
    def replicates_at_once(self) -> bool:
        """True if an append raises the high watermark before it returns."""
        return self._flusher is None

    def use(self, log: PartitionLog) -> None:
        self.log = log

    def _on_log(self, action: Callable[[PartitionLog], _Result]) -> _Result:
        while True:
            log = self.log
            try:
                return action(log)
            except SedimentError:
                if self.log is log:
                    raise

    def mark_deleted(self) -> None:
        self._refusal = partial(ApiError, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def mark_perhaps_deleted(self) -> None:
        """Refuse all later reads and appends, because the next start may find that the topic was deleted."""
        self._refusal = partial(
            self._storage_error,
            "it is not known whether the topic was deleted, because the metadata could not be written",
            "repair the disk and start again",
        )

    def _storage_error(self, what: str, advice: str) -> StorageError:
        return StorageError(what, partition=str(self.topic_partition), path=str(self.directory), advice=advice)

    def _check_not_refused(self) -> None:
        if self._refusal is not None:
            raise self._refusal()

    # ---------------------------------------------------------------------------------------------------------- offsets
    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset

    @property
    def producers(self) -> tuple[ProducerEntry, ...]:
        return tuple(self.log.producers.entries.values())

    def end_offset(self, isolation: Isolation) -> int:
        if isolation is Isolation.LOG_END:
            return self.log.log_end_offset
        return self.high_watermark if isolation is Isolation.HIGH_WATERMARK else self.last_stable_offset

    def readable_range(self, isolation: Isolation) -> tuple[int, int]:
        """Return the log start and the end offset of reads; (-1, -1) if the log is deleted, offline or closed."""
        if self._refusal is not None or self.log.is_offline or self.log.is_closed:
            return _UNUSABLE
        return self.log_start_offset, self.end_offset(isolation)

    # ----------------------------------------------------------------------------------------------------------- append
    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool
    ) -> VerificationGuard | None:
        """Return a guard for the first batch of a transaction; None if the transaction is already open."""
        self._check_not_refused()
        return self._on_log(
            lambda log: log.maybe_start_transaction_verification(
                producer_id, sequence, epoch, supports_epoch_bump=supports_epoch_bump
            )
        )

    def append(
        self, records: Buffer, guard: VerificationGuard | None = None, *, only_quick: bool = False
    ) -> AppendInfo:
        """Append a batch of a client; the first batch of a transaction needs the guard of its verification.

        With `only_quick`, a large batch is not appended, because others wait for this thread.
        """
        self._check_not_refused()
        info = self._on_log(
            lambda log: log.append_as_leader(
                records, self.leader_epoch, verification_guard=guard, only_quick=only_quick
            )
        )
        self._replicate()
        return info

    def append_run(self, address: int, rows: RunRows, count: int) -> AppendedRun | None:
        """Return None, without an append, if `append` must check the first batch."""
        self._check_not_refused()
        run = self._on_log(lambda log: log.append_run(address, rows, count, self.leader_epoch))
        if run is not None:
            self._replicate()
        return run

    def _replicate(self) -> None:
        if self._flusher is None:
            self.log.maybe_increment_high_watermark()
        else:
            self._flusher.request(self.log)

    def append_of_coordinator(
        self,
        records: Buffer,
        *,
        wait: bool = True,
        guard: VerificationGuard | None = None,
        transaction_version: int = UNKNOWN_TRANSACTION_VERSION,
    ) -> AppendInfo:
        """A marker needs its `transaction_version`.

        The first batch of a transaction needs the guard of its verification.
        """
        self._check_not_refused()
        info = self._on_log(
            lambda log: log.append_as_leader(
                records,
                self.leader_epoch,
                origin=AppendOrigin.COORDINATOR,
                transaction_version=transaction_version,
                verification_guard=guard,
            )
        )
        if wait and self._flusher is not None:
            self._on_log(flush_and_replicate)
        else:
            self._replicate()
        return info

    # ----------------------------------------------------------------------------------------------------------- delete
    def delete_records(self, before_offset: int) -> int:
        self._check_not_refused()
        return self._on_log(lambda log: log.delete_records(before_offset))

    def delete_segments_below_log_start(self) -> None:
        self._on_log(PartitionLog.delete_segments_below_log_start)

    # ------------------------------------------------------------------------------------------------------------- read
    def read(self, offset: int, max_bytes: int, *, isolation: Isolation, min_one: bool) -> _Fetched:
        """If the first batch is larger, return the whole batch if `min_one` is True, else nothing (KIP-74)."""
        self._check_not_refused()
        found = self._on_log(lambda log: log.read(offset, max_bytes, isolation, min_one_message=min_one))
        return _Fetched(None if found.first_entry_incomplete else found.records, found.aborted)

    def offset_for_time(self, target_ms: int, *, only_quick: bool = False) -> TimestampOffsetEpoch | None:
        return self._on_log(lambda log: log.lookup_timestamp(target_ms, only_quick=only_quick))

    def offset_of_largest_timestamp(self, *, only_quick: bool = False) -> TimestampOffsetEpoch | None:
        return self._on_log(lambda log: log.lookup_timestamp(MAX_TIMESTAMP, only_quick=only_quick))

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the last point at which this log agrees with a log that ends in `epoch`.

        Return (-1, -1) if no such point exists.

        Source: kafka-log 04 §4 (endOffsetFor).
        """
        return self.log.end_offset_for_epoch(epoch)

    def epoch_at_log_start(self) -> int:
        found = self._on_log(lambda log: log.lookup_timestamp(EARLIEST_TIMESTAMP))
        return NO_LEADER_EPOCH if found is None else found.leader_epoch
