"""Producer state, and its replay from batch headers (kafka-log 04 §3, 05 §6); `producer_snapshots` stores it.

Sequences wrap to 0 after 2^31 - 1 (`last_sequence`, `RememberedBatch.first_sequence`, kafka-log 01 §3.3).

A producer has at most one open transaction, which is part of its entry.  A snapshot contains one batch of each
producer.  A replay keeps up to five batches of each producer, because a client may send its last five batches again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.status import NO_MARKER, OK
from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.layout import (
    FIRST_MAGIC_WITH_PRODUCERS,
    INT32_MAX,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)
from sediment.segment_io.format.transaction_index import AbortedTxn

NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1


class RememberedBatch(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        """Source: kafka-log 01 §3.3 (decrementSequence)."""
        if self.last_sequence < self.offset_delta:
            return INT32_MAX - (self.offset_delta - self.last_sequence) + 1
        return self.last_sequence - self.offset_delta

    @property
    def first_offset(self) -> int:
        """The base offset of the batch when it was appended."""
        return self.last_offset - self.offset_delta


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """`last_sequence`, `last_offset` and `offset_delta` describe the producer's last data batch.

    If it has none, they are −1, −1 and 0.  `timestamp_ms` is the largest timestamp of that batch, or the timestamp of
    the last marker.  `current_txn_first_offset` is −1 without an open transaction.
    """

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_sequence: int = NO_SEQUENCE
    last_offset: int = NO_OFFSET
    offset_delta: int = 0
    timestamp_ms: int = NO_TIMESTAMP
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    current_txn_first_offset: int = NO_OFFSET

    @property
    def has_open_transaction(self) -> bool:
        return self.current_txn_first_offset >= 0

    @property
    def batches(self) -> tuple[RememberedBatch, ...]:
        """The batch that a snapshot stores; empty if the producer has no data in this epoch."""
        if self.last_offset < 0:
            return ()
        return (RememberedBatch(self.last_sequence, self.last_offset, self.offset_delta, self.timestamp_ms),)

    def is_expired(self, now_ms: int, expiration_ms: int | None) -> bool:
        """Return True if the producer was idle for at least `expiration_ms` and has no open transaction."""
        if expiration_ms is None:
            return False
        return not self.has_open_transaction and now_ms - self.timestamp_ms >= expiration_ms


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction whose marker is at `last_offset`.

    `last_stable_offset` is the log's last stable offset after the append of the marker.  This is the first offset of
    the earliest transaction that is still open.  If none is open, it is the offset after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    last_stable_offset: int


# ------------------------------------------------------------------------------------------------------------- state


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The producers (by id) of a log below `end_offset`, and the transactions that ended during the replay.

    If more than one batch of a producer was replayed, `remembered` contains its last batches: at most five of its
    current epoch, oldest first.
    """

    end_offset: int
    entries: Mapping[int, ProducerEntry]
    completed: tuple[CompletedTransaction, ...] = ()
    remembered: Mapping[int, tuple[RememberedBatch, ...]] = field(default_factory=dict)

    @classmethod
    def at(cls, end_offset: int, entries: Iterable[ProducerEntry] = ()) -> ProducerState:
        """Without entries, return the state of a log that begins at this offset."""
        return cls(end_offset, {entry.producer_id: entry for entry in entries})

    def batches(self, producer_id: int) -> tuple[RememberedBatch, ...]:
        """Return those batches of a producer that would be recognised as duplicates, oldest first."""
        entry = self.entries.get(producer_id)
        return self.remembered.get(producer_id, () if entry is None else entry.batches)

    def first_undecided_offset(self) -> int | None:
        return min(
            (entry.current_txn_first_offset for entry in self.entries.values() if entry.has_open_transaction),
            default=None,
        )

    def first_unstable_offset(self, high_watermark: int, *, log_start_offset: int = 0) -> int | None:
        """Return the lowest first offset of a transaction that is open or has its marker at or above `high_watermark`.

        The result is never below the log start offset.
        """
        unreplicated = [txn.first_offset for txn in self.completed if txn.last_offset >= high_watermark]
        undecided = self.first_undecided_offset()
        candidates = unreplicated if undecided is None else [*unreplicated, undecided]
        return max(min(candidates), log_start_offset) if candidates else None

    def last_stable_offset(self, high_watermark: int, *, log_start_offset: int = 0) -> int:
        """Return the offset at which a READ_COMMITTED consumer stops.

        Source: kafka-log 04 §0.
        """
        unstable = self.first_unstable_offset(high_watermark, log_start_offset=log_start_offset)
        return high_watermark if unstable is None else min(unstable, high_watermark)

    def aborted(self) -> tuple[AbortedTxn, ...]:
        return tuple(
            AbortedTxn(txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset)
            for txn in self.completed
            if txn.is_aborted
        )

    def without_expired(self, now_ms: int, expiration_ms: int | None) -> ProducerState:
        kept = {key: entry for key, entry in self.entries.items() if not entry.is_expired(now_ms, expiration_ms)}
        remembered = {key: self.remembered[key] for key in kept.keys() & self.remembered.keys()}
        return replace(self, entries=kept, remembered=remembered)


# ------------------------------------------------------------------------------------------------------------ replay

_LOG_ADVICE = "restore the partition from a replica or a backup, or leave the partition out"


def replay(state: ProducerState, table: npt.NDArray[np.void], *, only_aborted: bool = False) -> ProducerState:
    """Return `state` after the batches of `table`; the rows (`BATCH_ROW`) start at `state.end_offset`, in log order.

    Batches without a producer only advance the end offset.  With `only_aborted`, `completed` contains no committed
    transactions, because a rebuild of a transaction index does not need them.

    Raises:
        CorruptBatchError: a batch is outside its producer's open transaction, or a control record of a producer is not
            a transaction marker.  A broker also refuses to load such a log.

    Source: kafka-log 04 §3 (origin REPLICATION), 04 §1 step 10, 05 §4.
    """
    if not len(table):
        return state
    end_offset = int(table["last_offset"][-1]) + 1
    has_producer = (table["producer_id"] >= 0) & (table["magic"] >= FIRST_MAGIC_WITH_PRODUCERS)
    rows = table if has_producer.all() else table[has_producer]
    if not len(rows):
        return replace(state, end_offset=end_offset)
    # Replay follows Kafka's rules for batches from a log (origin REPLICATION).  It does not check sequences and epochs,
    # because the leader checked them when the batches were appended.
    return _replayed(state, rows, end_offset, only_aborted)


def _replayed(state: ProducerState, rows: npt.NDArray[np.void], end_offset: int, only_aborted: bool) -> ProducerState:
    from sediment.segment_io.partition import producer_replay as kernels

    opened = sorted(
        (entry.current_txn_first_offset, key) for key, entry in state.entries.items() if entry.has_open_transaction
    )
    known = np.array([key for _, key in opened], dtype=np.int64)
    ids, rows_of_ids = np.unique(np.concatenate([known, rows["producer_id"]]), return_inverse=True)
    entries = [state.entries.get(key) or ProducerEntry(key) for key in ids.tolist()]
    table = np.array([_table_row(entry) for entry in entries], dtype=np.int64)
    queue = np.zeros((len(opened) + len(rows), 2), dtype=np.int64)
    queue[: len(opened), 0] = [first_offset for first_offset, _ in opened]
    queue[: len(opened), 1] = rows_of_ids[: len(opened)]
    completed = np.empty((len(rows), kernels.COMPLETED_FIELDS), dtype=np.int64)
    known_rows = [_remembered_row(state.batches(key), kernels.REMEMBERED_FIELDS) for key in ids.tolist()]
    remembered = np.array(known_rows, dtype=np.int64)
    slots = rows_of_ids[len(opened) :].astype(np.int64)
    status, failed, ended = kernels.fold_rows(rows, slots, table, queue, len(opened), completed, remembered)
    if status != OK:
        raise _not_replayable(rows[failed], int(table[slots[failed], kernels.TXN_FIRST_OFFSET]), status == NO_MARKER)
    changed = {key: ProducerEntry(key, *fields) for key, fields in zip(ids.tolist(), table.tolist(), strict=True)}
    completed = completed[:ended]
    if only_aborted:
        completed = completed[completed[:, kernels.IS_ABORTED] != 0]
    done = [
        CompletedTransaction(int(ids[slot]), first_offset, last_offset, bool(is_aborted), stable)
        for slot, first_offset, last_offset, is_aborted, stable in completed.tolist()
    ]
    batches = dict(state.remembered)
    for key, row in zip(ids.tolist(), remembered.tolist(), strict=True):
        found = tuple(RememberedBatch(*row[at : at + kernels.BATCH_FIELDS]) for at in kernels.batch_positions(row[0]))
        if found == changed[key].batches:
            batches.pop(key, None)
        else:
            batches[key] = found
    return ProducerState(end_offset, {**state.entries, **changed}, (*state.completed, *done), batches)


def _remembered_row(batches: tuple[RememberedBatch, ...], fields: int) -> list[int]:
    row = [len(batches)]
    for batch in batches:
        row += (batch.last_sequence, batch.last_offset, batch.offset_delta, batch.timestamp_ms)
    return row + [0] * (fields - len(row))


def _table_row(entry: ProducerEntry) -> tuple[int, ...]:
    return (
        entry.producer_epoch,
        entry.last_sequence,
        entry.last_offset,
        entry.offset_delta,
        entry.timestamp_ms,
        entry.coordinator_epoch,
        entry.current_txn_first_offset,
    )


def _not_replayable(row: np.void, txn_first_offset: int, is_marker: bool) -> CorruptBatchError:
    producer_id = int(row["producer_id"])
    began = f"transaction that began at offset {txn_first_offset}"
    what = f"batch of producer {producer_id} is outside the producer's {began}"
    if is_marker:
        kind = int(row["control_type"])
        what = f"control record of producer {producer_id} has type {kind}, which is not a transaction marker"
    return CorruptBatchError(what, offset=int(row["base_offset"]), advice=_LOG_ADVICE)


def last_sequence(base_sequence: int, offset_delta: int) -> int:
    """Return the sequence `offset_delta` steps after `base_sequence`; sequences wrap to 0 after 2^31 − 1."""
    return NO_SEQUENCE if base_sequence == NO_SEQUENCE else (base_sequence + offset_delta) & INT32_MAX
