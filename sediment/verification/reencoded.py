"""Batches of AFTER with another codec or size than in BEFORE, and the rules for merged batches.

    BEFORE   | A | B | C | D | E |        A' has the offsets of A to C, so it must agree with each of them
    AFTER    |     A'    | D'| E |        D' has other bytes, but the same records

One row replaces A to C, and the rules for a pair of batches apply to A' and this row.  The rules for records apply
unchanged, so a re-encoded batch can neither lose nor change a record.

Only data batches of magic 2 in the cleaned range may be re-encoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sediment.segment_io.format.layout import INT32_MAX, MAGIC_V2, NO_PRODUCER_ID
from sediment.verification import rules as r
from sediment.verification.record_kernels import NO_HORIZON
from sediment.verification.report import SHOWN_DIFFERENCES, ReencodedBatch

_EQUAL_FIELDS = {
    "leader_epoch": "leader epoch",
    "producer_id": "producer id",
    "producer_epoch": "producer epoch",
    "transactional": "transactional bit",
    "control": "control bit",
    "timestamp_type": "timestamp type",
}


@dataclass(frozen=True, slots=True, eq=False)
class MergedBatches:
    """Batches of BEFORE that were merged in AFTER: row n of `merged` is the batch that contains row n of `originals`.

    Row n of `previous` is the batch that precedes row n of `originals` in BEFORE.
    """

    originals: r.BatchRows
    previous: r.BatchRows
    merged: r.BatchRows


def window_end(after: r.BatchRows, end: int | None) -> int | None:
    """Return the largest offset up to `end` that no batch of AFTER spans, so that both logs can be divided there.

    If `end` is None, the logs are not divided, and the result is None.
    """
    if end is None:
        return None
    inside = after[: np.searchsorted(after["base"], end)]
    return int(inside["base"][-1]) if len(inside) and inside["last"][-1] >= end else end


def join_originals(before: r.BatchRows, after: r.BatchRows) -> tuple[r.BatchRows, MergedBatches]:
    """Return BEFORE with one row for the originals of a merged batch, and the originals that the row replaces.

    The row has the header of the first original.
    """
    if not len(before) or not len(after):
        return before, MergedBatches(before[:0], before[:0], after[:0])
    slots = np.searchsorted(after["base"], before["base"], side="right") - 1
    is_inside = (slots >= 0) & (before["base"] > after["base"][slots]) & (before["base"] <= after["last"][slots])
    is_inside[0] = False
    originals = np.flatnonzero(is_inside)
    inside = MergedBatches(before[originals], before[originals - 1], after[slots[originals]])
    if not len(originals):
        return before, inside
    heads = np.flatnonzero(~is_inside)
    joined = before[heads]
    joined["records"] = np.add.reduceat(before["records"], heads)
    joined["max_ms"] = np.maximum.reduceat(before["max_ms"], heads)
    joined["last"] = np.maximum.reduceat(before["last"], heads)
    joined["null_value"] = np.logical_or.reduceat(before["null_value"], heads)
    joined["magic"] = np.maximum.reduceat(before["magic"], heads)
    # If several originals were merged, the row has no size, because the bytes must differ.
    joined["size"][np.diff(heads, append=len(before)) > 1] = r.NO_SIZE
    return joined, inside


def merged_batches(found: MergedBatches, rules: r.PairRules) -> Iterator[r.RuleDifferences]:
    before, after = found.originals, found.merged
    is_current = (
        before["magic"] == MAGIC_V2
    )  # cleaning converts batches of magic 0 and 1, so only their records are compared
    yield r.RuleDifferences(
        "untouched", before["segment"] >= rules.cleaned.end, lambda b, _: f"{_original(b)} was merged"
    )
    for name, label in _EQUAL_FIELDS.items():
        yield r.RuleDifferences(
            "batches",
            is_current & (before[name] != after[name]),
            lambda b, a, name=name, label=label: (  # type: ignore[misc]
                f"{label} {r.shown(a[name])} of the merged batch, but in BEFORE {r.shown(b[name])}"
            ),
        )
    yield r.RuleDifferences(
        "batches",
        is_current & (before["base_sequence"] != _sequences(before, after)),
        lambda b, a: f"base sequence {b['base_sequence']} of {_original(b)} does not continue {a['base_sequence']}",
    )
    yield r.RuleDifferences(
        "batches",
        before["base"] != found.previous["last"] + 1,
        lambda b, _: f"offsets below {_original(b)} are missing in BEFORE, so this batch cannot be merged with others",
    )
    yield r.RuleDifferences("batches", after["magic"] != MAGIC_V2, lambda _, a: f"merged batch of magic {a['magic']}")
    yield r.RuleDifferences(
        "batches", before["records"] == 0, lambda b, _: f"{_original(b)} has no records, but was merged"
    )
    yield r.RuleDifferences(
        "batches",
        (after["timestamp_type"] == 1) & (before["max_ms"] != after["max_ms"]),
        lambda b, a: f"log append time {a['max_ms']} of the merged batch, but in BEFORE {b['max_ms']}",
    )
    yield from r.kept_horizons(before, after)
    yield from r.new_horizons(after, before["horizon_ms"] == NO_HORIZON, np.zeros(len(after), dtype=np.bool_), rules)
    yield from r.decisions(before, after, rules)


def last_of_producers(
    after: r.BatchRows, is_merged: r.Mask, is_remembered: r.Mask, rules: r.PairRules
) -> r.RuleDifferences:
    """Return the merged batches for which `is_remembered` is True: the last five batches of a producer in a segment.

    A broker that loads the segment would not recognise an original of such a batch if a client sent it again.
    """
    return r.RuleDifferences(
        "producers",
        # After several cleanings, the last five are unknown, because a later cleaning can have removed later batches.
        is_merged & is_remembered & (after["producer_id"] != NO_PRODUCER_ID) & (rules.since_ms is None),
        lambda _, a: f"the batch was merged, but is one of the last five of producer {a['producer_id']} in its segment",
    )


class ReencodedBatches:
    def __init__(self) -> None:
        self.count = 0
        self.first: list[ReencodedBatch] = []

    def add(self, found: r.BatchRows, originals: r.BatchRows) -> None:
        """Add batches of AFTER; `originals` are the second and later batches of BEFORE in each merged batch."""
        self.count += len(found)
        for row in found[: SHOWN_DIFFERENCES - len(self.first)]:
            base, last = int(row["base"]), int(row["last"])
            inside = (originals["base"] > base) & (originals["base"] <= last)
            self.first.append(ReencodedBatch(base, last, 1 + int(np.count_nonzero(inside))))


def _original(batch: np.void) -> str:
    return f"the batch {batch['base']}–{batch['last']}"


def _sequences(before: r.BatchRows, after: r.BatchRows) -> r.Mask:
    """Return the base sequences that originals must have: 0 follows 2^31 - 1, and without a producer, all are equal."""
    steps = before["base"] - after["base"]
    continued = (after["base_sequence"].astype(np.int64) + steps) & INT32_MAX
    result: r.Mask = np.where(after["base_sequence"] < 0, after["base_sequence"], continued)
    return result
