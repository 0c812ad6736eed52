"""The rule that selects the batches that may be re-encoded and the neighbours that may be merged.

It reads only headers.

A batch may change if it is a data batch of magic 2 with records, entirely below the bound.  It may be merged with the
previous batch if both may change, neither is among the last five data batches of its producer in the segment, and these
are equal:

    field                                         reason
    codec, unless all batches get a new one       each batch keeps its codec
    producer, epoch, transaction flag             a header has one of each
    leader epoch                                  a log can be truncated at the end of an epoch only between batches
    timestamp type; the time, if LogAppendTime    the header's time applies to all records
    delete horizon                                a header has one

Offsets and sequence numbers must continue without a gap, because a header contains only the first offset and sequence
number.

A broker that loads the log keeps the last five batches of each producer in memory, to recognise a duplicate from a
client.  Therefore the last five batches of each producer in a segment do not change, and neither does the producer
state at the segment's end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sediment.compaction.reencode.plan import Encoding
from sediment.compaction.rewrite.verdicts import Int64s
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
from sediment.segment_io.segment.reader import Rows

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class MergeRule:
    """The rule for one segment.

    `last_of_producers`, int64[n], are the positions of the last five data batches of each producer, in ascending order.
    `merges` is False if batches are not merged; `keeps_codec` is True if each batch keeps its codec.
    """

    bound: int
    last_of_producers: Int64s
    merges: bool
    keeps_codec: bool

    def may_change(self, rows: Rows) -> Flags:
        """Return bool[rows]: True for batches that may be re-encoded."""
        is_data = (rows["magic"] >= MAGIC_V2) & (rows["attributes"] & CONTROL_BIT == 0) & (rows["record_count"] > 0)
        changes: Flags = is_data & (rows["last_offset"] < self.bound) & (rows["attributes"] & CODEC_MASK <= CODEC_ZSTD)
        return changes

    def may_join(self, rows: Rows, before: Rows) -> Flags:
        """Return bool[rows]: True for batches that may be merged with the previous batch.

        `before`, BATCH_ROW[0 or 1], is the batch before `rows`.
        """
        joins = np.zeros(rows.size, dtype=np.bool_)
        both = np.concatenate([before, rows])
        if self.merges and both.size > 1:
            mergeable = self.may_change(both) & ~np.isin(both["position"], self.last_of_producers)
            joins[rows.size - both.size + 1 :] = (
                mergeable[:-1] & mergeable[1:] & _agree(both[:-1], both[1:], self.keeps_codec)
            )
        return joins


def merge_rule(encoding: Encoding, bound: int, last_of_producers: Int64s) -> MergeRule:
    """Return the rule for a segment that is re-encoded as `encoding`.

    The other arguments are the fields of `MergeRule`.
    """
    return MergeRule(bound, last_of_producers, encoding.batch_bytes is not None, encoding.codec is None)


def encoded_anyway(rule: MergeRule, encoding: Encoding, rows: Rows) -> Flags:
    """Return bool[rows]: True for batches that are re-encoded even if they are not merged."""
    if encoding.codec is None:
        return np.zeros(rows.size, dtype=np.bool_)
    has_other_codec: Flags = rows["attributes"] & CODEC_MASK != encoding.codec
    return rule.may_change(rows) & (has_other_codec | (encoding.level is not None))


def chosen_batches(rule: MergeRule, encoding: Encoding, rows: Rows, before: Rows) -> tuple[Flags, Flags]:
    """Return two bool[rows]: the batches of a chunk to open, and the batches that may join the previous one.

    `before`, BATCH_ROW[0 or 1], is the batch before the first of `rows`.
    """
    joins = rule.may_join(rows, before)
    # Open the last batch, because the first batch of the next chunk may join it.
    is_joined = np.append(joins[1:], rule.merges)
    return rule.may_change(rows) & (encoded_anyway(rule, encoding, rows) | joins | is_joined), joins


def _agree(first: Rows, second: Rows, keeps_codec: bool) -> Flags:
    """Return bool[rows]: True if the headers of two neighbours permit a merge."""
    same_flags = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | DELETE_HORIZON_BIT | (CODEC_MASK if keeps_codec else 0)
    has_append_time = second["attributes"] & TIMESTAMP_TYPE_BIT != 0
    has_horizon = second["attributes"] & DELETE_HORIZON_BIT != 0
    result: Flags = (
        ((first["attributes"] ^ second["attributes"]) & same_flags == 0)
        & (first["producer_id"] == second["producer_id"])
        & (first["producer_epoch"] == second["producer_epoch"])
        & (first["leader_epoch"] == second["leader_epoch"])
        & (~has_append_time | (first["max_timestamp"] == second["max_timestamp"]))
        & (~has_horizon | (first["base_timestamp"] == second["base_timestamp"]))
        & (first["last_offset"] + 1 == second["base_offset"])
        & _sequences_go_on(first, second)
    )
    return result


def _sequences_go_on(first: Rows, second: Rows) -> Flags:
    """Return bool[rows]: True if the sequence numbers of `second` follow those of `first`; 0 follows 2^31 - 1.

    Source: Kafka's DefaultRecordBatch.incrementSequence.
    """
    following = first["base_sequence"].astype(np.int64) + (first["last_offset"] - first["base_offset"]) + 1
    wrapped = np.where(following > INT32_MAX, following - INT32_MAX - 1, following)
    result: Flags = np.where(
        first["producer_id"] == NO_PRODUCER_ID,
        first["base_sequence"] == second["base_sequence"],
        wrapped == second["base_sequence"],
    )
    return result
