"""The rules of `verify` for records in plain Python: every rule looks at all records of both logs.

A log is a sequence of batches of magic 2, in the order of offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.twin.batches import Batch, ControlType, Record

Found = tuple[str, int, str]
"""A difference: check, offset, text."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The range of a cleaning, as in `verification.cleaned_range`, and its clock."""

    first_dirty: int
    limit: int
    end: int
    is_claimed: bool
    stable_before: int
    stable_after: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A record with its batch; `is_aborted` if a marker aborted it."""

    record: Record
    batch: Batch
    is_aborted: bool

    @property
    def identity(self) -> tuple[int, bool, bytes | None]:
        return self.record.offset, self.batch.is_control, None if self.batch.is_control else self.record.key

    @property
    def content(self) -> list[object]:
        batch, record = self.batch, self.record
        value = (record.key, record.value) if batch.is_control else record.value
        producer = (
            batch.producer_id,
            batch.producer_epoch,
            batch.sequence_of(record),
            batch.is_transactional,
            batch.leader_epoch,
            batch.timestamp_type,
        )
        return [value, record.headers, record.timestamp, producer]


def entries_of(batches: Sequence[Batch]) -> list[Entry]:
    """Return all records; the next marker of its producer decides a transactional batch."""
    found = []
    for number, batch in enumerate(batches):
        is_data = batch.is_transactional and not batch.is_control
        markers = (b for b in batches[number + 1 :] if b.is_control and b.producer_id == batch.producer_id)
        marker = next(markers, None) if is_data else None
        is_aborted = marker is not None and marker.control_type() is ControlType.ABORT
        found += [Entry(record, batch, is_aborted) for record in batch.records()]
    return found


def record_differences(before: Sequence[Batch], after: Sequence[Batch], rules: Rules) -> Iterator[Found]:
    """Yield the differences of the records, and of the latest record of each key."""
    ours = {entry.identity: entry for entry in entries_of(before)}
    theirs = {entry.identity: entry for entry in entries_of(after)}
    for identity in theirs:
        if identity not in ours:
            of_key = "" if identity[2] is None else " of this key"
            yield "records", identity[0], f"BEFORE has no such record{of_key}"
    for identity, entry in ours.items():
        if identity in theirs:
            yield from _kept(entry, theirs[identity], list(ours.values()), rules)
        elif not entry.batch.is_control:
            yield from _gone(entry, list(ours.values()), rules)
    for key in sorted({key for _, is_control, key in (*ours, *theirs) if key is not None and not is_control}):
        yield from _latest(key, ours, theirs, rules)


def _later(entry: Entry, entries: Sequence[Entry], rules: Rules, first: int) -> int | None:
    """Return the last offset at or above `first` of a cleaned record that supersedes `entry`."""
    offsets = [
        other.record.offset
        for other in entries
        if not other.batch.is_control
        and other.record.key == entry.record.key
        and not other.is_aborted
        and max(first, entry.record.offset + 1) <= other.record.offset < rules.limit
    ]
    return max(offsets, default=None)


def _gone(entry: Entry, entries: Sequence[Entry], rules: Rules) -> Iterator[Found]:
    offset, horizon_ms = entry.record.offset, entry.batch.delete_horizon_ms
    is_tombstone = entry.record.value is None
    if entry.is_aborted and offset < rules.end:
        return
    if entry.record.key is None:
        if offset < rules.limit:
            return
        what = "the record without a key is missing, but its offset is above the cleaned range"
    else:
        if _later(entry, entries, rules, 0) is not None:
            return
        what = "the record is missing, but its key has no later record"
    if not is_tombstone:
        yield "lost", offset, what
    elif offset >= rules.limit or horizon_ms is None or horizon_ms > rules.now_ms:
        why = "and its batch had no" if horizon_ms is None else "before its"
        when = "" if horizon_ms is None else f" {horizon_ms}"
        yield "tombstones", offset, f"the tombstone is gone, {why} delete horizon{when}"


def _kept(before: Entry, after: Entry, entries: Sequence[Entry], rules: Rules) -> Iterator[Found]:
    offset = before.record.offset
    labels = ("value", "headers", "timestamp", "producer, sequence, leader epoch or timestamp type")
    for label, one, other in zip(labels, before.content, after.content, strict=True):
        if one != other:
            verb = "differ" if label == "headers" else "differs"
            yield "records", offset, f"the {label} of the record {verb} from BEFORE"
    if not rules.is_claimed or before.batch.is_control or before.is_aborted or offset >= rules.limit:
        return
    if before.record.key is None:
        yield "superseded", offset, "a record without a key remains below the cleaner checkpoint"
        return
    later = _later(before, entries, rules, rules.first_dirty)
    if later is not None:
        yield "superseded", offset, f"a later record of its key, at offset {later}, is below the cleaner checkpoint"


def _latest(key: bytes, ours: dict, theirs: dict, rules: Rules) -> Iterator[Found]:
    def of_key(entries: dict) -> list[Entry]:
        return [entry for (_, is_control, found), entry in entries.items() if found == key and not is_control]

    def is_hidden(entry: Entry) -> bool:
        other = ours.get(entry.identity)
        above = entry.record.offset >= rules.end or not rules.is_claimed
        return other is not None and other.is_aborted and above

    before, after = of_key(ours), of_key(theirs)
    living = [entry for entry in before if not entry.is_aborted]
    first = min(entry.record.offset for entry in (*before, *after))
    views = (
        (
            "latest_committed",
            "read_committed",
            [entry for entry in living if entry.record.offset < rules.stable_before],
            [entry for entry in after if not entry.is_aborted and entry.record.offset < rules.stable_after],
        ),
        ("latest_uncommitted", "read_uncommitted", living, [entry for entry in after if not is_hidden(entry)]),
    )
    for check, label, old, new in views:
        one = max((entry.record for entry in old), key=lambda record: record.offset, default=None)
        other = max((entry.record for entry in new), key=lambda record: record.offset, default=None)
        is_gone = other is None and (one is None or one.value is None)
        is_same = one is not None and other is not None and (one.offset, one.value) == (other.offset, other.value)
        if not is_gone and not is_same:
            after_text, before_text = ("nothing" if r is None else f"at {r.offset}" for r in (other, one))
            yield (
                check,
                first,
                f"under {label}, the latest record of the key at this offset is {after_text}, "
                f"but in BEFORE {before_text}",
            )
