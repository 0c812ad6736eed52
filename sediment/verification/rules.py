"""Rules of a correct compaction for batches: each rule yields a mask over pairs of batches, and a text for each pair.

A batch that is only in BEFORE was removed; a batch that is only in AFTER was added.  The rules for records are in
`record_rules`.

Invariants: the cleaner's code is not used.

Source: kafka-log 02 §6, §7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sediment.segment_io.format.control_records import control_type_name
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    CODEC_NAMES,
    CONTROL_ABORT,
    CONTROL_BIT,
    CONTROL_COMMIT,
    DELETE_HORIZON_BIT,
    INT64_MAX,
    MAGIC_V2,
    NO_CONTROL_RECORD,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from sediment.verification.cleaned_range import CleanedRange
from sediment.verification.record_kernels import NO_HORIZON

Mask = npt.NDArray[np.bool_]
BatchRows = npt.NDArray[np.void]
Text = Callable[[np.void, np.void], str]

NO_SIZE = -1

_EMPTY_BITS = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT
_KNOWN_BITS = CODEC_MASK | _EMPTY_BITS | DELETE_HORIZON_BIT

# ---------------------------------------------------------------------------------------------------- one row per batch
BATCH = np.dtype(
    [
        ("segment", np.int64),
        ("size", np.int64),
        ("crc", np.int64),
        ("base", np.int64),
        ("last", np.int64),
        ("leader_epoch", np.int32),
        ("magic", np.int8),
        ("attributes", np.int16),
        ("max_ms", np.int64),
        ("base_ms", np.int64),
        ("horizon_ms", np.int64),
        ("producer_id", np.int64),
        ("producer_epoch", np.int16),
        ("base_sequence", np.int32),
        ("records", np.int32),
        ("control_type", np.int16),
        ("codec", np.int8),
        ("timestamp_type", np.int8),
        ("transactional", np.bool_),
        ("control", np.bool_),
        ("in_transaction", np.bool_),
        ("marker", np.int64),
        ("outcome", np.int8),
        ("known", np.bool_),
        ("first_record", np.int64),
        ("last_record", np.int64),
        ("largest_ms", np.int64),
        ("descending", np.bool_),
        ("null_value", np.bool_),
    ]
)
"""A readable batch: its header fields, then its transaction, then its records.

`base_ms` is the base timestamp; `horizon_ms` is NO_HORIZON if the batch has no delete horizon.  `in_transaction` marks
a data batch of a transaction; `marker` and `outcome` are the offset and the type of the marker that ends the
transaction, or NO_MARKER and NO_OUTCOME.  `known` is True if the records could be decoded.  `first_record`,
`last_record` and `largest_ms` are the lowest offset, the highest offset and the largest timestamp of a batch with
records.  `descending` is True if an offset is not above the previous one. `null_value` is True if a record has no
value.
"""

_HEADER_FIELDS = {
    "last": "last offset",
    "leader_epoch": "leader epoch",
    "producer_id": "producer id",
    "producer_epoch": "producer epoch",
    "base_sequence": "base sequence",
    "transactional": "transactional bit",
    "control": "control bit",
    "timestamp_type": "timestamp type",
}


@dataclass(frozen=True, slots=True)
class PairRules:
    """`since_ms` is the clock of the first of several cleanings between the two logs, or None for a single cleaning.

    The time of a single cleaning is `now_ms` if `now_is_exact`, else some earlier time.  All batches of magic 0 or 1 in
    BEFORE are below `legacy_end`.  `corrupt_from` is the base offset of the first segment of BEFORE with unreadable
    batches, or None if every batch is readable.  `delete_retention_ms` and `producer_id_expiration_ms` are None if
    these settings are not stated.  Without `delete_retention_ms`, every new delete horizon is wrong.  Without
    `producer_id_expiration_ms`, no producer expires.  With `may_be_reencoded`, batches may have another codec or size
    than in BEFORE.
    """

    cleaned: CleanedRange
    stable_before: int
    stable_after: int
    legacy_end: int
    corrupt_from: int | None
    delete_retention_ms: int | None
    producer_id_expiration_ms: int | None
    now_ms: int
    now_is_exact: bool
    since_ms: int | None
    may_be_reencoded: bool = False

    def new_horizons(self) -> tuple[int, int] | None:
        if self.delete_retention_ms is None:
            return None
        earliest_ms = self.now_ms if self.now_is_exact else 0
        if self.since_ms is not None:
            earliest_ms = self.since_ms
        return saturated(earliest_ms + self.delete_retention_ms), saturated(self.now_ms + self.delete_retention_ms)

    def first_round_horizon(self) -> int | None:
        if self.since_ms is None or self.delete_retention_ms is None:
            return None
        return saturated(self.since_ms + self.delete_retention_ms)

    def idle_since_ms(self) -> int:
        """Return a time in ms; a producer counts as expired if its last timestamp is not after this time."""
        if self.producer_id_expiration_ms is None:
            return -INT64_MAX
        return max(self.now_ms - self.producer_id_expiration_ms, -INT64_MAX)

    def passed(self, batches: BatchRows) -> Mask:
        """The horizon is stored in BEFORE, or was written by the first of several cleanings."""
        horizons, now_ms = batches["horizon_ms"], saturated(self.now_ms)
        first = self.first_round_horizon()
        without: bool = first is not None and first <= now_ms
        return np.where(horizons == NO_HORIZON, without, horizons <= now_ms)

    def tombstones_may_go(self, batches: BatchRows) -> Mask:
        passed = self.passed(batches)
        if not self.cleaned.legacy_expired:
            return passed
        return passed | (batches["magic"] < 2) & np.isin(batches["segment"], self.cleaned.legacy_expired)

    def removable_end(self) -> int:
        """Return the offset at and above which every tombstone and every marker must still exist.

        After an unreadable batch, tombstones and markers must remain, because the batch may contain an older value of
        the key, or records of the transaction.
        """
        return INT64_MAX if self.corrupt_from is None else self.corrupt_from


def saturated(time_ms: int) -> int:
    return min(time_ms, INT64_MAX)


@dataclass(frozen=True, slots=True)
class RuleDifferences:
    check: str
    mask: Mask
    text: Text


def _control_name(number: int) -> str | None:
    if number == NO_CONTROL_RECORD:
        return None
    return control_type_name(number)


def _is_transaction_marker(batches: BatchRows) -> Mask:
    mask: Mask = batches["control"] & np.isin(batches["control_type"], (CONTROL_ABORT, CONTROL_COMMIT))
    return mask


def horizon_text(horizon_ms: int) -> str:
    if horizon_ms == NO_HORIZON:
        return "and its batch had no delete horizon"
    return f"before its delete horizon {horizon_ms}"


def _range(batch: np.void) -> str:
    return f"the batch {batch['base']}–{batch['last']}"


def shown(value: Any) -> Any:
    plain = value.item()
    return str(plain).lower() if isinstance(plain, bool) else plain


# ------------------------------------------------------------------------------------------------------ without partner
def gone_batches(before: BatchRows, protected: Mask, rules: PairRules) -> Iterator[RuleDifferences]:
    in_range = before["segment"] < rules.cleaned.end
    yield RuleDifferences("untouched", ~in_range, lambda b, _: f"{_range(b)} above the cleaned range is gone")
    may_go = _is_transaction_marker(before) & rules.passed(before) & (before["base"] < rules.removable_end())
    yield RuleDifferences(
        "markers",
        in_range & before["control"] & (before["control_type"] != NO_CONTROL_RECORD) & ~may_go,
        lambda b, _: (
            f"the {_control_name(b['control_type'])} record of producer {b['producer_id']} is gone, "
            f"{horizon_text(b['horizon_ms'])}"
        ),
    )
    yield RuleDifferences(
        "producers",
        in_range & protected,
        lambda b, _: (
            f"{_range(b)} was the last batch of producer {b['producer_id']}, so the state of this producer is lost"
        ),
    )


def new_batches(after: BatchRows, rules: PairRules) -> Iterator[RuleDifferences]:
    yield RuleDifferences(
        "batches",
        after["base"] >= rules.legacy_end,
        lambda _, a: f"{_range(a)} has a base offset that no batch of BEFORE has",
    )
    everything = np.ones(len(after), dtype=np.bool_)
    yield from _rebuilt(after, everything, everything)
    yield from new_horizons(after, everything, everything, rules)


# --------------------------------------------------------------------------------------------------------------- pairs
def kept_batches(before: BatchRows, after: BatchRows, marked: Mask, rules: PairRules) -> Iterator[RuleDifferences]:
    """Yield the differences of batches in both logs; `marked` is True for markers that end a transaction of BEFORE."""
    same_bytes = have_same_bytes(before, after)
    yield from _header(before, after, same_bytes, rules)
    yield from _rebuilt(after, ~same_bytes, before["magic"] < 2)
    yield from kept_horizons(before, after)
    has_all = after["records"] == before["records"]
    fresh = before["horizon_ms"] == NO_HORIZON
    yield from new_horizons(after, fresh, has_all, rules)
    yield from _markers(before, after, marked, rules)
    yield from decisions(before, after, rules)


def have_same_bytes(before: BatchRows, after: BatchRows) -> Mask:
    mask: Mask = (before["size"] == after["size"]) & (before["crc"] == after["crc"])
    return mask


def may_be_reencoded(before: BatchRows, after: BatchRows, rules: PairRules) -> Mask:
    mask: Mask = (after["magic"] == MAGIC_V2) & ~after["control"] & (after["records"] > 0)
    return mask & (before["segment"] < rules.cleaned.end) & rules.may_be_reencoded


def are_reencoded(before: BatchRows, after: BatchRows, rules: PairRules) -> Mask:
    is_full = (before["magic"] == MAGIC_V2) & (after["records"] == before["records"])
    has_other_bytes = is_full & (after["horizon_ms"] == before["horizon_ms"]) & ~have_same_bytes(before, after)
    is_other = (after["codec"] != before["codec"]) | (before["size"] == NO_SIZE) | has_other_bytes
    mask: Mask = may_be_reencoded(before, after, rules) & is_other
    return mask


def _header(before: BatchRows, after: BatchRows, same_bytes: Mask, rules: PairRules) -> Iterator[RuleDifferences]:
    encodable = may_be_reencoded(before, after, rules)
    modern = before["magic"] == 2
    for name, label in _HEADER_FIELDS.items():
        yield RuleDifferences(
            "batches",
            modern & (before[name] != after[name]),
            lambda b, a, name=name, label=label: f"{label} {shown(a[name])}, but in BEFORE {shown(b[name])}",  # type: ignore[misc]
        )
    yield RuleDifferences(
        "batches", modern & (after["magic"] != 2), lambda b, a: f"magic {a['magic']}, but in BEFORE {b['magic']}"
    )
    yield RuleDifferences(
        "batches",
        (after["records"] > 0) & (after["codec"] != before["codec"]) & ~encodable,
        lambda b, a: f"codec {_codec(a)}, but in BEFORE {_codec(b)}",
    )
    yield RuleDifferences(
        "batches",
        modern & (after["records"] > before["records"]),
        lambda b, a: f"{a['records']} records, but in BEFORE {b['records']}",
    )
    is_empty = (after["records"] == 0) & (rules.since_ms is None)
    keeps = (after["timestamp_type"] == 1) | (after["records"] == before["records"]) | is_empty
    changed = after["max_ms"] != before["max_ms"]
    yield RuleDifferences(
        "batches",
        modern & ((after["max_ms"] > before["max_ms"]) | changed & keeps),
        lambda b, a: f"largest timestamp {a['max_ms']}, but in BEFORE {b['max_ms']}",
    )
    full = modern & (after["records"] == before["records"]) & (after["horizon_ms"] == before["horizon_ms"])
    yield RuleDifferences(
        "batches",
        full & ~same_bytes & ~encodable,
        lambda _b, _a: "the batch lost no record, but its bytes differ from BEFORE",
    )
    yield RuleDifferences(
        "batches",
        full & encodable & (after["base_ms"] != before["base_ms"]),
        lambda b, a: f"base timestamp {a['base_ms']}, but in BEFORE {b['base_ms']}",
    )


def _codec(batch: np.void) -> str:
    number = int(batch["codec"])
    return CODEC_NAMES[number] if number < len(CODEC_NAMES) else str(number)


def _rebuilt(after: BatchRows, differs: Mask, is_upgraded: Mask) -> Iterator[RuleDifferences]:
    """Yield batches whose bytes differ from BEFORE (`differs`) and whose header contradicts their records."""
    rebuilt = differs & (after["magic"] == 2)
    filled = after["known"] & (after["records"] > 0)
    yield RuleDifferences(
        "order", rebuilt & filled & after["descending"], lambda _b, _a: "the offsets in the batch do not ascend"
    )
    outside = (after["first_record"] < after["base"]) | (after["last_record"] > after["last"])
    not_tight = (after["first_record"] > after["base"]) | (after["last_record"] < after["last"])
    yield RuleDifferences(
        "batches",
        rebuilt & filled & (outside | is_upgraded & not_tight),
        lambda _, a: (
            f"its records have the offsets {a['first_record']}–{a['last_record']}, but its header has "
            f"{a['base']}–{a['last']}"
        ),
    )
    yield RuleDifferences(
        "batches",
        rebuilt & filled & (after["largest_ms"] != after["max_ms"]),
        lambda _, a: f"largest timestamp {a['max_ms']}, but {a['largest_ms']} in its records",
    )
    allowed = np.where(after["records"] == 0, _EMPTY_BITS, _KNOWN_BITS)
    yield RuleDifferences(
        "batches",
        rebuilt & after["known"] & (after["attributes"] & ~allowed != 0),
        lambda _, a: f"attributes {a['attributes']}, with a bit that Kafka does not set",
    )
    yield RuleDifferences(
        "batches",
        rebuilt & (after["records"] == 0) & (after["size"] > BATCH_HEADER_BYTES),
        lambda _, a: f"no records, but {a['size'] - BATCH_HEADER_BYTES} bytes after its header",
    )


def kept_horizons(before: BatchRows, after: BatchRows) -> Iterator[RuleDifferences]:
    kept = (before["magic"] == 2) & (before["horizon_ms"] != NO_HORIZON) & (after["records"] > 0)
    yield RuleDifferences(
        "horizons",
        kept & (after["horizon_ms"] != before["horizon_ms"]),
        lambda b, a: (
            f"delete horizon {'none' if a['horizon_ms'] == NO_HORIZON else a['horizon_ms']}, "
            f"but in BEFORE {b['horizon_ms']}"
        ),
    )


def new_horizons(after: BatchRows, is_new: Mask, has_all: Mask, rules: PairRules) -> Iterator[RuleDifferences]:
    """Yield the wrong horizons that a cleaning wrote; `has_all` is True for batches that lost no record."""
    fresh = is_new & (after["horizon_ms"] != NO_HORIZON)
    allowed = rules.new_horizons()
    low, high = (INT64_MAX, -INT64_MAX) if allowed is None else allowed
    yield RuleDifferences(
        "horizons",
        fresh & ~((after["horizon_ms"] >= low) & (after["horizon_ms"] <= high)),
        lambda _, a: (
            f"delete horizon {a['horizon_ms']} is new, but delete.retention.ms is not stated; give it with --set"
            if allowed is None
            else f"delete horizon {a['horizon_ms']}, but delete.retention.ms is {rules.delete_retention_ms} "
            f"and the clock was {saturated(rules.now_ms)}"
        ),
    )
    filled = after["known"] & (after["records"] > 0)
    yield RuleDifferences(
        "horizons",
        fresh & (has_all | (rules.since_ms is None)) & filled & ~after["null_value"] & ~_is_transaction_marker(after),
        lambda _b, _a: "the batch got a delete horizon, but contains no tombstone",
    )


def _markers(before: BatchRows, after: BatchRows, marked: Mask, rules: PairRules) -> Iterator[RuleDifferences]:
    got = (before["horizon_ms"] == NO_HORIZON) & (after["horizon_ms"] != NO_HORIZON)
    yield RuleDifferences(
        "markers",
        before["control"] & got & marked & (rules.since_ms is None),
        lambda _b, _a: "the marker got a delete horizon, but batches of its transaction remain",
    )
    yield RuleDifferences(
        "markers",
        before["control"] & (before["records"] > 0) & (after["records"] == 0) & ~rules.passed(before),
        lambda _b, _a: "the marker lost its record before its delete horizon",
    )
    yield RuleDifferences(
        "markers",
        before["control"] & (after["records"] > 0) & (before["control_type"] != after["control_type"]),
        lambda b, a: (
            f"the control record is {_control_name(a['control_type']) or 'none'}, "
            f"but in BEFORE {_control_name(b['control_type'])}"
        ),
    )


def decisions(before: BatchRows, after: BatchRows, rules: PairRules) -> Iterator[RuleDifferences]:
    live = before["in_transaction"]
    same = (before["marker"] == after["marker"]) & (before["outcome"] == after["outcome"])
    yield RuleDifferences("markers", live & ~same, _decision_text)
    is_checked = rules.cleaned.is_claimed and rules.corrupt_from is None
    left = (before["outcome"] == CONTROL_ABORT) & (after["records"] > 0) & (after["last"] < rules.cleaned.limit)
    yield RuleDifferences(
        "aborted",
        live & left & is_checked,
        lambda b, _: (
            f"records of producer {b['producer_id']} remain, although their transaction was aborted at offset "
            f"{b['marker']}"
        ),
    )


def _decision_text(b: np.void, a: np.void) -> str:
    old, new = (_control_name(side["outcome"]) for side in (b, a))
    was = "of an open transaction" if old is None else f"decided by the {old} at offset {b['marker']}"
    now = "by nothing" if new is None else f"by the {new} at offset {a['marker']}"
    return f"the batch of producer {b['producer_id']} is {was} in BEFORE, but {now} in AFTER"
