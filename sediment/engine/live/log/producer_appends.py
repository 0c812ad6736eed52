"""The producers of a live log: each append is checked against their state, and changes this state after the write.

    sequence        only a client's is checked: it follows the last one, and 0 follows 2^31 - 1; a new epoch begins with
                    0; an unknown producer may begin with any sequence, but with 0 under transaction version 2
    duplicate       a batch is a duplicate if one of the last five has the same epoch and sequences
    epoch           an old epoch is refused, except in replication
    transaction     the first batch needs a verification; later batches must be transactional
    marker          the transaction version decides which epoch is allowed; an old coordinator epoch is refused, except
                    in replication
    ended           in the index entry, the last stable offset is where the first open transaction of another producer
                    begins; without such a transaction, it is the offset after the marker
    map end offset  it is the log end offset; `LocalLog.write_snapshot` writes snapshots
    expired         a producer without an open transaction is removed after producer.id.expiration.ms (`remove_expired`)
    forgotten       above MAX_PRODUCERS, the producers that wrote least recently and have no open transaction (`forget`)
    late            a transaction is late if it is open longer than transaction.max.timeout.ms plus 5 minutes
                    (`has_late_transaction`)
    unstable        a transaction is unstable if it is open, or if its marker is not below the high watermark

Invariants
* `check` changes nothing.  It returns a `ProducerUpdate`; `apply` carries this update out after the batches were
  written.  So a refused or failed append leaves no trace.
* The state of a producer contains its last five batches, because a client may have five requests in flight.  All five
  have the producer's current epoch.
* `_open` contains the open transactions, sorted by first offset.
* `_unreplicated` contains ended transactions, in the order of their markers.  The last offsets of the transactions have
  the same order, because the log end only grows.  `_unreplicated_firsts` is a heap of (first offset, last offset).  It
  can contain transactions that were already removed, but its top is never such a transaction.

Source: kafka-log 04 §3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, nsmallest
from typing import NamedTuple

from sediment.engine.live.log.append_analysis import BatchFields
from sediment.engine.live.log.append_origin import AppendOrigin
from sediment.segment_io.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
    UsageError,
)
from sediment.segment_io.format.layout import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    INT32_MAX,
    NO_CONTROL_RECORD,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
)
from sediment.segment_io.format.transaction_index import AbortedTxn
from sediment.segment_io.partition.producer_state import (
    NO_COORDINATOR_EPOCH,
    NO_OFFSET,
    CompletedTransaction,
    ProducerEntry,
    ProducerState,
    RememberedBatch,
    last_sequence,
)
from sediment.segment_io.segment.append_run_kernels import (
    RUN_PRODUCER_EPOCH,
    RUN_PRODUCER_ID,
    RUN_RECORDS,
    RUN_SEQUENCE,
    RUN_TIMESTAMP,
)

REMEMBERED_BATCHES = 5
MAX_PRODUCERS = 100_000
"""The largest number of producers of one log; Kafka has no limit, although each batch may name a new producer."""

_FORGOTTEN_AT_ONCE = MAX_PRODUCERS // 10
UNKNOWN_TRANSACTION_VERSION = -1
_EPOCH_BUMPING_VERSION = 2
_LATE_TRANSACTION_GRACE_MS = 300_000
_new_tuple = tuple.__new__  # an append makes two of these tuples, and the constructors of their classes take longer


class ProducerStateEntry(NamedTuple):
    """The state of one producer; `batches` are its last five batches, oldest first."""

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    batches: tuple[RememberedBatch, ...] = ()
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    timestamp_ms: int = -1
    txn_first_offset: int = NO_OFFSET

    @property
    def has_open_transaction(self) -> bool:
        return self.txn_first_offset >= 0

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def duplicate_of(self, fields: BatchFields) -> RememberedBatch | None:
        if fields.producer_epoch != self.epoch:
            return None
        last = last_sequence(fields.base_sequence, fields.last_offset - fields.base_offset)
        for batch in self.batches:
            if batch.first_sequence == fields.base_sequence and batch.last_sequence == last:
                return batch
        return None

    def entry(self) -> ProducerEntry:
        last = self.batches[-1] if self.batches else RememberedBatch(NO_SEQUENCE, NO_OFFSET, 0, -1)
        return ProducerEntry(
            self.producer_id,
            self.epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            self.timestamp_ms,
            self.coordinator_epoch,
            self.txn_first_offset,
        )

    @classmethod
    def of(cls, entry: ProducerEntry, batches: tuple[RememberedBatch, ...]) -> ProducerStateEntry:
        return cls(
            entry.producer_id,
            entry.producer_epoch,
            batches,
            entry.coordinator_epoch,
            entry.timestamp_ms,
            entry.current_txn_first_offset,
        )


class VerificationGuard:
    """A token for one verification of a transaction; it is compared by identity."""

    __slots__ = ()


@dataclass(slots=True)
class _Verification:
    guard: VerificationGuard
    created_ms: int
    lowest_sequence: int
    epoch: int
    supports_epoch_bump: bool


@dataclass(frozen=True, slots=True)
class _EndedTransaction:
    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


@dataclass(slots=True)
class ProducerUpdate:
    """The changes of an append; if it repeats a stored batch, `duplicate` is that batch, and nothing changes."""

    producers: dict[int, ProducerStateEntry] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)
    ended: list[_EndedTransaction] = field(default_factory=list)
    verified: set[int] = field(default_factory=set)
    duplicate: RememberedBatch | None = None


class LogProducers:
    def __init__(self, state: ProducerState, *, expiration_ms: int | None, verifies_transactions: bool) -> None:
        self.expiration_ms = expiration_ms
        self._verifies = verifies_transactions
        self._producers = {
            key: ProducerStateEntry.of(entry, state.batches(key)) for key, entry in state.entries.items()
        }
        opened = sorted(
            (entry.current_txn_first_offset, key) for key, entry in state.entries.items() if entry.has_open_transaction
        )
        self._open: dict[int, int] = dict(opened)
        self._unreplicated = deque(sorted(state.completed, key=lambda txn: txn.last_offset))
        self._unreplicated_firsts = sorted((txn.first_offset, txn.last_offset) for txn in self._unreplicated)
        self._verifications: dict[int, _Verification] = {}

    # ------------------------------------------------------------------------------------------------------------ state
    def state(self, end_offset: int) -> ProducerState:
        """In the copy, `completed` contains the ended transactions whose marker is at or above the high watermark."""
        entries = {key: producer.entry() for key, producer in self._producers.items()}
        remembered = {
            key: producer.batches
            for key, producer in self._producers.items()
            if producer.batches != entries[key].batches
        }
        return ProducerState(end_offset, entries, tuple(self._unreplicated), remembered)

    def entries(self) -> Iterable[ProducerEntry]:
        return [producer.entry() for producer in self._producers.values()]

    def producer(self, producer_id: int) -> ProducerStateEntry | None:
        return self._producers.get(producer_id)

    def first_undecided_offset(self) -> int | None:
        return next(iter(self._open), None)

    def first_unstable_offset(self) -> int | None:
        undecided = self.first_undecided_offset()
        if not self._unreplicated:
            return undecided
        first = self._unreplicated_firsts[0][0]
        return first if undecided is None else min(undecided, first)

    def on_high_watermark(self, high_watermark: int) -> None:
        while self._unreplicated and self._unreplicated[0].last_offset < high_watermark:
            self._unreplicated.popleft()
        firsts = self._unreplicated_firsts
        while firsts and (not self._unreplicated or firsts[0][1] < self._unreplicated[0].last_offset):
            heappop(firsts)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        producer = self._producers.get(producer_id)
        return producer is not None and producer.has_open_transaction and producer.epoch == epoch

    def has_late_transaction(self, now_ms: int, max_timeout_ms: int) -> bool:
        """Source: kafka-log 04 §3."""
        oldest = next(iter(self._open.values()), None)
        if oldest is None:
            return False
        timestamp_ms = self._producers[oldest].timestamp_ms
        return timestamp_ms > 0 and now_ms - timestamp_ms > max_timeout_ms + _LATE_TRANSACTION_GRACE_MS

    def remove_expired(self, now_ms: int) -> None:
        """Source: kafka-log 04 §3 (PeriodicProducerExpirationCheck)."""
        expiration_ms = self.expiration_ms
        if expiration_ms is None:
            return
        self._producers = {
            key: producer
            for key, producer in self._producers.items()
            if producer.has_open_transaction or now_ms - producer.timestamp_ms < expiration_ms
        }
        self._verifications = {
            key: entry for key, entry in self._verifications.items() if now_ms - entry.created_ms < expiration_ms
        }

    def __len__(self) -> int:
        return len(self._producers)

    def forget(self, count: int) -> None:
        """A producer with an open transaction, or with one that is being verified, is not removed.

        A removed producer is treated like one that has expired: its next batch may have any sequence.
        """
        idle = (
            (producer.batches[-1].last_offset if producer.batches else NO_OFFSET, key)
            for key, producer in self._producers.items()
            if not producer.has_open_transaction and key not in self._verifications
        )
        for _, key in nsmallest(count, idle):
            del self._producers[key]

    # ----------------------------------------------------------------------------------------------------- verification
    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool, now_ms: int
    ) -> VerificationGuard | None:
        producer = self._producers.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise _old_epoch(producer_id, epoch, producer.epoch)
        if self.has_open_transaction(producer_id, epoch):
            return None
        entry = self._verifications.get(producer_id)
        if entry is None:
            entry = _Verification(VerificationGuard(), now_ms, sequence, epoch, supports_epoch_bump)
            self._verifications[producer_id] = entry
        elif epoch > entry.epoch:
            entry.epoch, entry.lowest_sequence = epoch, sequence
        elif epoch == entry.epoch:
            entry.lowest_sequence = min(entry.lowest_sequence, sequence)
        return entry.guard

    # ----------------------------------------------------------------------------------------------------------- append
    def check(
        self,
        batches: Iterable[BatchFields],
        *,
        origin: AppendOrigin,
        guard: VerificationGuard | None,
        transaction_version: int,
    ) -> ProducerUpdate:
        update = ProducerUpdate()
        for fields in batches:
            known = self._producers.get(fields.producer_id)
            if origin is AppendOrigin.CLIENT and known is not None:
                update.duplicate = known.duplicate_of(fields)
                if update.duplicate is not None:
                    return update
            if origin in (AppendOrigin.CLIENT, AppendOrigin.COORDINATOR) and fields.is_transactional:
                self._check_transaction(known, fields, guard)
            producer = update.producers.get(fields.producer_id) or known or ProducerStateEntry(fields.producer_id)
            if not fields.is_control:
                producer = self._data(producer, fields, origin, update)
            elif fields.control_type != NO_CONTROL_RECORD:
                producer = self._marker(producer, fields, origin, transaction_version, update)
            update.producers[fields.producer_id] = producer
            if fields.is_transactional and not self._keeps_verification(fields):
                update.verified.add(fields.producer_id)
        return update

    def next_state(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        base_offset: int,
        last_offset: int,
        timestamp_ms: int,
        before: ProducerStateEntry | None = None,
    ) -> ProducerStateEntry | None:
        """`before` is a state that is not stored yet.

        Return None if the batch does not follow the producer's last one, or if only `check` can decide.
        """
        known = before or self._producers.get(producer_id)
        if known is None or producer_id in self._verifications:
            return None
        _, known_epoch, batches, coordinator_epoch, _, txn_first_offset = known
        if known_epoch != epoch or txn_first_offset >= 0:
            return None
        delta = last_offset - base_offset
        last = base_sequence + delta
        if not batches or batches[-1][0] != base_sequence - 1 or last > INT32_MAX or batches[0][0] >= base_sequence:
            return None
        # In five batches, the sequences wrap from INT32_MAX to 0 at most once.  If they had wrapped, the first would be
        # at or above `base_sequence`.  So the sequences ascend, and no remembered batch has this last sequence.
        if len(batches) >= REMEMBERED_BATCHES:
            batches = batches[1 - REMEMBERED_BATCHES :]
        batches += (_new_tuple(RememberedBatch, (last, last_offset, delta, timestamp_ms)),)
        return _new_tuple(ProducerStateEntry, (producer_id, epoch, batches, coordinator_epoch, timestamp_ms, NO_OFFSET))

    def after_run(self, rows: memoryview, count: int, base_offset: int) -> tuple[int, dict[int, ProducerStateEntry]]:
        """`rows` are the rows of `check_plain_run`; the first batch gets `base_offset`."""
        states: dict[int, ProducerStateEntry] = {}
        for index in range(count):
            records = rows[index, RUN_RECORDS]
            producer_id = rows[index, RUN_PRODUCER_ID]
            if producer_id >= 0:
                state = self.next_state(
                    producer_id,
                    rows[index, RUN_PRODUCER_EPOCH],
                    rows[index, RUN_SEQUENCE],
                    base_offset,
                    base_offset + records - 1,
                    rows[index, RUN_TIMESTAMP],
                    states.get(producer_id),
                )
                if state is None:
                    return index, states
                states[producer_id] = state
            base_offset += records
        return count, states

    def put(self, producer: ProducerStateEntry) -> None:
        """Store the state that `next_state` returned; call this after the batch was written."""
        self._producers[producer.producer_id] = producer

    def put_all(self, states: Mapping[int, ProducerStateEntry]) -> None:
        """Store the states that `after_run` returned; call this after the batches were written."""
        self._producers.update(states)

    def _keeps_verification(self, fields: BatchFields) -> bool:
        entry = self._verifications.get(fields.producer_id)
        return (
            entry is not None
            and fields.is_control
            and entry.supports_epoch_bump
            and entry.epoch == fields.producer_epoch
        )

    def _check_transaction(
        self, known: ProducerStateEntry | None, fields: BatchFields, guard: VerificationGuard | None
    ) -> None:
        if self.has_open_transaction(fields.producer_id, fields.producer_epoch):
            return
        if known is not None and fields.producer_epoch < known.epoch:
            raise _old_epoch(fields.producer_id, fields.producer_epoch, known.epoch)
        if fields.is_control or not self._verifies:
            return
        entry = self._verifications.get(fields.producer_id)
        if guard is None or entry is None or entry.guard is not guard:
            raise InvalidTransactionStateError(
                f"the transaction of producer {fields.producer_id} was not verified",
                advice="start a verification before the first batch of a transaction",
            )

    def _data(
        self, producer: ProducerStateEntry, fields: BatchFields, origin: AppendOrigin, update: ProducerUpdate
    ) -> ProducerStateEntry:
        if fields.producer_epoch < producer.epoch and origin is not AppendOrigin.REPLICATION:
            raise _old_epoch(fields.producer_id, fields.producer_epoch, producer.epoch)
        if origin is AppendOrigin.CLIENT:
            self._check_sequence(producer, fields)
        batches = producer.batches if fields.producer_epoch == producer.epoch else ()
        delta = fields.last_offset - fields.base_offset
        last = last_sequence(fields.base_sequence, delta)
        batch = RememberedBatch(last, fields.last_offset, delta, fields.max_timestamp)
        txn_first_offset = producer.txn_first_offset
        if producer.has_open_transaction and not fields.is_transactional:
            raise InvalidTransactionStateError(
                f"a batch of producer {fields.producer_id} is outside the transaction that it opened at offset "
                f"{txn_first_offset}",
                advice="commit or abort the transaction first",
            )
        if fields.is_transactional and not producer.has_open_transaction:
            txn_first_offset = fields.base_offset
            update.begun[txn_first_offset] = fields.producer_id
        return ProducerStateEntry(
            fields.producer_id,
            fields.producer_epoch,
            (*batches, batch)[-REMEMBERED_BATCHES:],
            producer.coordinator_epoch,
            fields.max_timestamp,
            txn_first_offset,
        )

    def _check_sequence(self, producer: ProducerStateEntry, fields: BatchFields) -> None:
        """Source: kafka-log 04 §3 step 3b."""
        sequence = fields.base_sequence
        verification = self._verifications.get(fields.producer_id)
        if verification is not None:
            is_first = not producer.batches
            if verification.supports_epoch_bump and is_first and sequence != 0:
                raise _out_of_order(fields, "a transaction of this version begins with sequence 0")
            if sequence > verification.lowest_sequence:
                raise _out_of_order(fields, f"the batch with sequence {verification.lowest_sequence} comes before it")
        if fields.producer_epoch != producer.epoch:
            if sequence != 0 and producer.epoch != NO_PRODUCER_EPOCH:
                raise _out_of_order(fields, "a new epoch begins with sequence 0")
            return
        last = producer.last_sequence
        if sequence != last + 1 and not (sequence == 0 and last == INT32_MAX):
            raise _out_of_order(fields, f"its last sequence is {last}")

    def _marker(
        self,
        producer: ProducerStateEntry,
        fields: BatchFields,
        origin: AppendOrigin,
        transaction_version: int,
        update: ProducerUpdate,
    ) -> ProducerStateEntry:
        """Source: kafka-log 04 §3 step 4."""
        if fields.control_type not in (CONTROL_ABORT, CONTROL_COMMIT):
            raise UsageError(
                f"control record of producer {fields.producer_id} has type {fields.control_type}, "
                "which is not a transaction marker"
            )
        epoch = fields.producer_epoch
        if origin is not AppendOrigin.REPLICATION:
            if transaction_version == UNKNOWN_TRANSACTION_VERSION:
                raise UsageError("a transaction marker has no transaction version")
            is_retry = epoch == producer.epoch and not producer.has_open_transaction
            if transaction_version >= _EPOCH_BUMPING_VERSION:
                is_old = epoch <= producer.epoch and not is_retry
            else:
                is_old = epoch < producer.epoch
            if is_old:
                raise _old_epoch(fields.producer_id, epoch, producer.epoch)
            if fields.coordinator_epoch < producer.coordinator_epoch:
                raise TransactionCoordinatorFencedError(
                    f"the marker of producer {fields.producer_id} has coordinator epoch {fields.coordinator_epoch}, "
                    f"but epoch {producer.coordinator_epoch} was seen",
                    advice="let the current coordinator write the marker",
                )
        if producer.has_open_transaction:
            is_aborted = fields.control_type == CONTROL_ABORT
            update.ended.append(
                _EndedTransaction(fields.producer_id, producer.txn_first_offset, fields.base_offset, is_aborted)
            )
        return producer._replace(
            epoch=epoch,
            batches=producer.batches if epoch == producer.epoch else (),
            coordinator_epoch=fields.coordinator_epoch,
            timestamp_ms=fields.control_timestamp,
            txn_first_offset=NO_OFFSET,
        )

    def apply(self, update: ProducerUpdate) -> tuple[AbortedTxn, ...]:
        """Return transaction index entries for the segment that contains the markers.

        Source: kafka-log 04 §1 step 10.
        """
        self._producers.update(update.producers)
        if len(self._producers) > MAX_PRODUCERS:
            self.forget(_FORGOTTEN_AT_ONCE)
        self._open.update(update.begun)
        for producer_id in update.verified:
            self._verifications.pop(producer_id, None)
        aborted = []
        for ended in update.ended:
            others = (first for first, producer_id in self._open.items() if producer_id != ended.producer_id)
            stable = next(others, ended.last_offset + 1)
            self._open.pop(ended.first_offset, None)
            self._unreplicated.append(
                CompletedTransaction(ended.producer_id, ended.first_offset, ended.last_offset, ended.is_aborted, stable)
            )
            heappush(self._unreplicated_firsts, (ended.first_offset, ended.last_offset))
            if ended.is_aborted:
                aborted.append(AbortedTxn(ended.producer_id, ended.first_offset, ended.last_offset, stable))
        return tuple(aborted)


def _old_epoch(producer_id: int, epoch: int, known: int) -> InvalidProducerEpochError:
    return InvalidProducerEpochError(
        f"producer {producer_id} writes under epoch {epoch}, but epoch {known} was seen",
        advice="start again with a new producer epoch",
    )


def _out_of_order(fields: BatchFields, why: str) -> OutOfOrderSequenceError:
    return OutOfOrderSequenceError(
        f"producer {fields.producer_id} sends sequence {fields.base_sequence} under epoch {fields.producer_epoch}, "
        f"but {why}",
        advice="send the batches of a producer in order",
    )
