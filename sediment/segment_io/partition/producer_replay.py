"""The kernel that replays batch headers into producer state; `producer_state.replay` allocates its arrays.

    table        int64[n, 7]                   a row for each producer, with the fields of a snapshot entry
    remembered   int64[n, REMEMBERED_FIELDS]   a row for each producer: the number of batches in its current epoch, and
                                               its last five batches; batch i is in slot i modulo 5
    queue        int64[>= n, 2]                the open transactions, sorted by first offset

Invariants: the kernel returns a status and never raises.  An ended transaction remains in the queue until it is at the
head.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.status import NO_MARKER, OK, OUTSIDE_TRANSACTION
from sediment.segment_io.format.layout import (
    CONTROL_ABORT,
    CONTROL_BIT,
    CONTROL_COMMIT,
    INT32_MAX,
    NO_CONTROL_RECORD,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.segment.reader import Rows

EPOCH, LAST_SEQUENCE, LAST_OFFSET, OFFSET_DELTA, TIMESTAMP, COORDINATOR_EPOCH, TXN_FIRST_OFFSET = range(7)
SLOT, FIRST_OFFSET, MARKER_OFFSET, IS_ABORTED, LAST_STABLE_OFFSET = range(5)
COMPLETED_FIELDS = 5
REMEMBERED_BATCHES = 5
BATCH_FIELDS = 4
REMEMBERED_FIELDS = 1 + REMEMBERED_BATCHES * BATCH_FIELDS

_NO_OFFSET = -1


@kernel
def fold_rows(
    rows: npt.NDArray[np.void],
    slots: npt.NDArray[np.int64],
    table: npt.NDArray[np.int64],
    queue: npt.NDArray[np.int64],
    queued: int,
    completed: npt.NDArray[np.int64],
    remembered: npt.NDArray[np.int64],
) -> tuple[int, int, int]:
    """`slots`, int64[n], contains the row of each batch's producer in `table` and `remembered`.

    `queue`, int64[>= queued + n, 2] of (first offset, slot), contains the transactions that are open at the start.
    `completed`, int64[n, COMPLETED_FIELDS], receives the transactions that end.

    Returns:
        (status, row of an error, number of transactions that ended).

    Source: kafka-log 04 §3 (origin REPLICATION).
    """
    head = 0
    ended = 0
    for index in range(rows.size):
        row = rows[index]
        slot = slots[index]
        entry = table[slot]
        first_offset = entry[TXN_FIRST_OFFSET]
        attributes = row["attributes"]
        base_offset = row["base_offset"]
        if not attributes & CONTROL_BIT:
            if not attributes & TRANSACTIONAL_BIT:
                if first_offset >= 0:
                    return OUTSIDE_TRANSACTION, index, ended
            elif first_offset < 0:
                entry[TXN_FIRST_OFFSET] = base_offset
                place = queued
                while place > head and queue[place - 1, 0] > base_offset:
                    queue[place, 0] = queue[place - 1, 0]
                    queue[place, 1] = queue[place - 1, 1]
                    place -= 1
                queue[place, 0] = base_offset
                queue[place, 1] = slot
                queued += 1
            delta = row["last_offset"] - base_offset
            sequence = np.int64(row["base_sequence"])
            batches = remembered[slot]
            if row["producer_epoch"] != entry[EPOCH]:
                batches[0] = 0
            entry[EPOCH] = row["producer_epoch"]
            entry[LAST_SEQUENCE] = NO_SEQUENCE if sequence == NO_SEQUENCE else (sequence + delta) & INT32_MAX
            entry[LAST_OFFSET] = row["last_offset"]
            entry[OFFSET_DELTA] = delta
            entry[TIMESTAMP] = row["max_timestamp"]
            at = 1 + batches[0] % REMEMBERED_BATCHES * BATCH_FIELDS
            batches[at] = entry[LAST_SEQUENCE]
            batches[at + 1] = entry[LAST_OFFSET]
            batches[at + 2] = delta
            batches[at + 3] = entry[TIMESTAMP]
            batches[0] += 1
        elif row["control_type"] != NO_CONTROL_RECORD:
            kind = row["control_type"]
            if kind not in (CONTROL_ABORT, CONTROL_COMMIT):
                return NO_MARKER, index, ended
            entry[TXN_FIRST_OFFSET] = _NO_OFFSET
            if first_offset >= 0:
                while head < queued and table[queue[head, 1], TXN_FIRST_OFFSET] != queue[head, 0]:
                    head += 1
                done = completed[ended]
                done[SLOT] = slot
                done[FIRST_OFFSET] = first_offset
                done[MARKER_OFFSET] = base_offset
                done[IS_ABORTED] = kind == CONTROL_ABORT
                done[LAST_STABLE_OFFSET] = queue[head, 0] if head < queued else base_offset + 1
                ended += 1
            if row["producer_epoch"] != entry[EPOCH]:
                entry[EPOCH] = row["producer_epoch"]
                entry[LAST_SEQUENCE] = NO_SEQUENCE
                entry[LAST_OFFSET] = _NO_OFFSET
                entry[OFFSET_DELTA] = 0
                remembered[slot, 0] = 0
            entry[TIMESTAMP] = row["control_timestamp"]
            entry[COORDINATOR_EPOCH] = row["coordinator_epoch"]
    return OK, 0, ended


def batch_positions(counted: int) -> list[int]:
    """Return the columns at which the batches of a `remembered` row begin, oldest first.

    `counted` is the value of the first column of the row: the number of batches.
    """
    numbers = range(max(counted - REMEMBERED_BATCHES, 0), counted)
    return [1 + number % REMEMBERED_BATCHES * BATCH_FIELDS for number in numbers]


def with_last_of_producers(before: npt.NDArray[np.int64], rows: Rows) -> npt.NDArray[np.int64]:
    """Append `rows` to `before`; return (producer id, position) of the last five batches of each producer.

    `before`, int64[n, 2], is an earlier result; `rows` are data batches of producers.
    """
    if not rows.size:
        return before
    every = np.concatenate([before, np.stack([rows["producer_id"], rows["position"]], axis=1)])
    every = every[np.argsort(every[:, 0], kind="stable")]
    ends = np.searchsorted(every[:, 0], every[:, 0], side="right")
    return every[ends - np.arange(len(every)) <= REMEMBERED_BATCHES]
