"""Kafka's transaction state machine, run forward over batch headers before the backward sweep.

A backward sweep reads a marker before the data of its transaction.  When the sweep reaches the marker, it does not know
yet if any batch of the transaction survives.  Therefore a partition with control or transactional batches is first
scanned forward.  The scan reads only headers and control keys, and sets flags for each batch; the sweep needs no other
information about transactions.

State (kafka-log 02 §7):
* the aborted transactions that have not begun yet, sorted by first offset
* for each producer, its current aborted transaction, and whether a batch of this transaction was read
* the producers with an unfinished committed transaction.

`classify_batches` implements Kafka's onBatchRead and onControlBatchRead.

`transaction_scan` feeds the state with the aborted transactions of the segments, and keeps the index entries that
survive.  `segment.writer` writes each entry into the cleaned segment that has its marker.  The entries keep the order
of their markers, so the last offsets in a transaction index increase.

Kafka fills its offset map in a separate pass over the dirty range.  For that pass, the scan keeps a second state of the
same kind, which starts at the first dirty segment.  If a batch is aborted according to the second state, the keys in
the batch do not enter the map.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.format.layout import (
    CONTROL_ABORT,
    CONTROL_BIT,
    CONTROL_COMMIT,
    FIRST_MAGIC_WITH_PRODUCERS,
    NO_CONTROL_RECORD,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.format.transaction_index import AbortedTxn

# Flags of a batch
DISCARD = 1  # data of an aborted transaction, or a marker of a transaction without batches
MARKS_NOTHING = 2  # a marker of a transaction without batches, dropped after its delete horizon
UNMAPPED = 4  # the batch's keys do not enter the offset map
# Flags that do not come from transactions
LEGACY = 8  # a message of magic 0 or 1; its survivors become a batch that begins at the first survivor
TOMBSTONES_GO = 16  # the batch's tombstones have expired, by the modification time of their segment
TOMBSTONES_STAY = 32  # the batch's tombstones do not expire
UNREADABLE = 64  # the batch is kept byte for byte, and never parsed
LEAVES_HEADER = 128  # the batch's header is kept even if all its records are dropped

# Columns of the open transactions, int64[producers, 5]
_PRODUCER = 0
_ABORTED = 1  # index of the producer's current aborted transaction; -1 if there is none
_SEEN = 2  # 1 if a batch of that aborted transaction was read
_COMMITTED = 3  # 1 if batches of a transaction that is not aborted were read
_UNMARKED = 4  # 1 if batches that are not aborted were read after the producer's last marker
_COLUMNS = 5
_NONE = -1
_EMPTY = -(2**62)  # no producer id


@kernel
def _slot_of(states: npt.NDArray[np.int64], producer_id: int) -> int:
    """Return the row of a producer or, if the producer has none, the empty row for it; an empty row always exists."""
    mask = states.shape[0] - 1
    slot = ((producer_id * 0x9E3779B97F4A7C1) >> 20) & mask
    while states[slot, _PRODUCER] != producer_id and states[slot, _PRODUCER] != _EMPTY:
        slot = (slot + 1) & mask
    return slot


@kernel
def _state_of(states: npt.NDArray[np.int64], producer_id: int) -> int:
    row = _slot_of(states, producer_id)
    if states[row, _PRODUCER] == _EMPTY:
        states[row, _PRODUCER] = producer_id
        states[row, _ABORTED] = _NONE
        states[row, _SEEN] = 0
        states[row, _COMMITTED] = 0
        states[row, _UNMARKED] = 0
    return row


@kernel
def classify_batches(
    rows: npt.NDArray[np.void],
    aborted: npt.NDArray[np.int64],
    cursor: int,
    states: npt.NDArray[np.int64],
    batch_flags: npt.NDArray[np.uint8],
    kept_aborts: npt.NDArray[np.int64],
) -> tuple[int, int, int]:
    """Advance the state machine over `rows` (BATCH_ROW) in log order.

    `aborted` is int64[n, 2] of (producer id, first offset), sorted by first offset.  `cursor` is the index of the first
    transaction that has not begun.  `batch_flags`, uint8[rows], receives DISCARD and MARKS_NOTHING.  A marker with
    DISCARD is dropped only after its delete horizon.  `kept_aborts`, int64[>= rows, 2], receives (row, index in
    `aborted`) of each ABORT whose transaction index entry survives.

    Returns:
        (cursor, number of kept aborts, row of the last marker that contradicts `aborted`, or -1).  An ABORT contradicts
        `aborted` if no entry lists the batches before it.  A COMMIT contradicts `aborted` if an entry lists the batches
        before it.
    """
    kept = 0
    contradicted = -1
    for index in range(rows.size):
        row = rows[index]
        last_offset = row["last_offset"]
        while cursor < aborted.shape[0] and aborted[cursor, 1] <= last_offset:
            state = _state_of(states, aborted[cursor, 0])
            if states[state, _ABORTED] == _NONE:
                states[state, _ABORTED] = cursor
                states[state, _SEEN] = 0
            cursor += 1
        batch_flags[index] = 0
        if row["magic"] < FIRST_MAGIC_WITH_PRODUCERS:
            continue
        if row["attributes"] & CONTROL_BIT:
            if row["control_type"] == NO_CONTROL_RECORD:
                batch_flags[index] = DISCARD | MARKS_NOTHING
            elif row["control_type"] == CONTROL_ABORT:
                state = _state_of(states, row["producer_id"])
                if states[state, _ABORTED] != _NONE and states[state, _SEEN]:
                    kept_aborts[kept, 0] = index
                    kept_aborts[kept, 1] = states[state, _ABORTED]
                    kept += 1
                else:
                    batch_flags[index] = DISCARD | MARKS_NOTHING
                    if states[state, _ABORTED] == _NONE and states[state, _UNMARKED]:
                        contradicted = index
                states[state, _ABORTED] = _NONE
                states[state, _UNMARKED] = 0
            elif row["control_type"] == CONTROL_COMMIT:
                state = _state_of(states, row["producer_id"])
                if states[state, _ABORTED] != _NONE and states[state, _SEEN]:
                    contradicted = index
                if not states[state, _COMMITTED]:
                    batch_flags[index] = DISCARD | MARKS_NOTHING
                states[state, _COMMITTED] = 0
                states[state, _UNMARKED] = 0
        # A non-transactional batch is never discarded.
        elif row["attributes"] & TRANSACTIONAL_BIT:
            state = _state_of(states, row["producer_id"])
            if states[state, _ABORTED] != _NONE:
                states[state, _SEEN] = 1
                batch_flags[index] = DISCARD
            else:
                states[state, _COMMITTED] = 1
                states[state, _UNMARKED] = 1
    return cursor, kept, contradicted


def _empty_states(rows: int) -> npt.NDArray[np.int64]:
    states = np.zeros((rows, _COLUMNS), dtype=np.int64)
    states[:, _PRODUCER] = _EMPTY
    return states


class TransactionScan:
    """`aborted` are the aborted transactions that concern the pass, in any order; duplicates are allowed."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._transactions = sorted(set(aborted), key=lambda entry: (entry.first_offset, entry.last_offset))
        self._aborted = np.array(
            [(entry.producer_id, entry.first_offset) for entry in self._transactions], dtype=np.int64
        ).reshape(-1, 2)
        self._cursor = 0
        self._states = _empty_states(64)

    def classify(self, rows: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.uint8], tuple[AbortedTxn, ...], int]:
        """Return the flags, the transaction index entries that survive with these batches, and a row number.

        The row number is the row of the last marker that contradicts the transaction index, or -1.
        """
        self._reserve(rows.size)
        batch_flags = np.zeros(rows.size, dtype=np.uint8)
        kept_aborts = np.zeros((rows.size, 2), dtype=np.int64)
        self._cursor, kept, contradicted = classify_batches(
            rows, self._aborted, self._cursor, self._states, batch_flags, kept_aborts
        )
        return batch_flags, tuple(self._transactions[index] for index in kept_aborts[:kept, 1]), contradicted

    def _reserve(self, rows: int) -> None:
        known = self._states[self._states[:, _PRODUCER] != _EMPTY]
        wanted = 2 * (known.shape[0] + rows + self._aborted.shape[0] - self._cursor)
        if wanted <= self._states.shape[0]:
            return
        live = known[(known[:, _ABORTED] != _NONE) | (known[:, _COMMITTED] != 0)]
        self._states = _empty_states(1 << (2 * wanted - 1).bit_length())
        for state in live:
            self._states[_slot_of(self._states, state[_PRODUCER])] = state
