"""The rule that selects the batches to re-encode, and the neighbours to merge.

A batch may change if it is a data batch of magic 2 with records, and all its offsets are below the bound.  Such a batch
may be merged with the previous batch under three conditions.  Both batches may change.  Neither batch is among the last
five data batches of its producer in the segment.  These header fields are equal:

    field                                         reason
    codec, unless a new codec is requested        each batch keeps its codec
    producer, epoch, transaction flag             a header has one of each
    leader epoch                                  a log can be truncated at the end of an epoch only between batches
    timestamp type; the time, if LogAppendTime    the header's time applies to all records
    delete horizon                                a header has one
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sediment.compaction.reencode.plan import Encoding
from sediment.compaction.rewrite.verdicts import Int64s
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.format.layout import (
    CODEC_MASK,
    CODEC_ZSTD,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    INT32_MAX,
    MAGIC_V2,
    NO_PRODUCER_ID,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.format.timestamps import has_delete_horizon
from sediment.segment_io.segment.reader import Rows

Flags = npt.NDArray[np.bool_]

_KEEP_CODEC = -1


class BatchMarks(NamedTuple):
    """Marks of the batches of a chunk, bool[batches] each.

    `changes`: the batch may be re-encoded.  `encoded`: the batch is re-encoded even if it is not merged.  `joins`: the
    batch may be merged with the previous batch.
    """

    changes: Flags
    encoded: Flags
    joins: Flags


@dataclass(frozen=True, slots=True, eq=False)
class MergeRule:
    """The rule for one segment that gets `encoding`; batches that end at or above `bound` do not change.

    `last_of_producers`, int64[n], are the positions of the last five data batches of each producer, in ascending order.
    """

    encoding: Encoding
    bound: int
    last_of_producers: Int64s

    def marks(self, rows: Rows, before: Rows) -> BatchMarks:
        """Return the marks of `rows`; `before`, BATCH_ROW[0 or 1], is the batch before them."""
        encoding = self.encoding
        marks = BatchMarks(*(np.zeros(rows.size, dtype=np.bool_) for _ in BatchMarks._fields))
        if rows.size:
            first = (before if before.size else rows)["position"][0]
            mark_batches(
                rows,
                before,
                self.last_of_producers[np.searchsorted(self.last_of_producers, first) :],
                self.bound,
                _KEEP_CODEC if encoding.codec is None else encoding.codec,
                encoding.level is not None,
                encoding.batch_bytes is not None,
                marks,
            )
        return marks

    def chosen(self, rows: Rows, before: Rows) -> tuple[Flags, Flags]:
        """Return two bool[rows]: the batches to open, and the batches that may join the previous batch."""
        marks = self.marks(rows, before)
        # The last batch is opened, because the first batch of the next chunk may join it.
        is_joined = np.append(marks.joins[1:], self.encoding.batch_bytes is not None)
        return marks.changes & (marks.encoded | marks.joins | is_joined), marks.joins


@kernel
def mark_batches(
    rows: Rows,
    before: Rows,
    last_of_producers: Int64s,
    bound: int,
    codec: int,
    encodes_same_codec: bool,
    merges: bool,
    marks: BatchMarks,
) -> None:
    """No position in `last_of_producers` is before these batches.

    `codec` is the new codec, or -1 if each batch keeps its codec.
    """
    last = 0
    is_mergeable = False
    if before.size:
        last = _skip_to(before[0]["position"], last_of_producers, last)
        is_mergeable = _may_change(before[0], bound) and not _is_at(before[0]["position"], last_of_producers, last)
    for index in range(rows.size):
        row = rows[index]
        changes = _may_change(row, bound)
        marks.changes[index] = changes
        is_other_codec = codec != _KEEP_CODEC and row["attributes"] & CODEC_MASK != codec
        marks.encoded[index] = changes and (is_other_codec or (codec != _KEEP_CODEC and encodes_same_codec))
        follows_mergeable = is_mergeable
        last = _skip_to(row["position"], last_of_producers, last)
        # A broker that loads the log keeps the last five batches of each producer in memory, to recognise a duplicate
        # from a client.  Therefore the last five batches of each producer in a segment are not merged.
        is_mergeable = changes and not _is_at(row["position"], last_of_producers, last)
        if merges and is_mergeable and follows_mergeable:
            previous = rows[index - 1] if index > 0 else before[0]
            marks.joins[index] = _agree(previous, row, codec == _KEEP_CODEC)


@kernel
def _skip_to(position: int, positions: Int64s, index: int) -> int:
    while index < positions.size and positions[index] < position:
        index += 1
    return index


@kernel
def _is_at(position: int, positions: Int64s, index: int) -> bool:
    return index < positions.size and positions[index] == position


@kernel
def _may_change(row: np.void, bound: int) -> bool:
    changes: bool = (
        row["magic"] >= MAGIC_V2
        and row["attributes"] & CONTROL_BIT == 0
        and row["record_count"] > 0
        and row["last_offset"] < bound
        and row["attributes"] & CODEC_MASK <= CODEC_ZSTD
    )
    return changes


@kernel
def _agree(first: np.void, second: np.void, keeps_codec: bool) -> bool:
    same_flags = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | DELETE_HORIZON_BIT | (CODEC_MASK if keeps_codec else 0)
    has_append_time = second["attributes"] & TIMESTAMP_TYPE_BIT != 0
    has_horizon = has_delete_horizon(second["attributes"])
    return (
        (first["attributes"] ^ second["attributes"]) & same_flags == 0
        and first["producer_id"] == second["producer_id"]
        and first["producer_epoch"] == second["producer_epoch"]
        and first["leader_epoch"] == second["leader_epoch"]
        and (not has_append_time or first["max_timestamp"] == second["max_timestamp"])
        and (not has_horizon or first["base_timestamp"] == second["base_timestamp"])
        # Offsets and sequence numbers must continue without a gap, because a header contains only the first of each.
        and first["last_offset"] + 1 == second["base_offset"]
        and _sequences_go_on(first, second)
    )


@kernel
def _sequences_go_on(first: np.void, second: np.void) -> bool:
    """Return True if the sequence numbers of `second` follow the numbers of `first`; 0 follows 2^31 - 1.

    Source: Kafka's DefaultRecordBatch.incrementSequence.
    """
    if first["producer_id"] == NO_PRODUCER_ID:
        return bool(first["base_sequence"] == second["base_sequence"])
    following = np.int64(first["base_sequence"]) + (first["last_offset"] - first["base_offset"]) + 1
    return bool(second["base_sequence"] == (following - INT32_MAX - 1 if following > INT32_MAX else following))
