"""The table of keys of one pass over both logs, and the histories of keys with differences.

Invariants: the table takes at most `limit_bytes`, even while it grows.  Histories exist for at most MOST_HISTORIES
keys: the keys that come first in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.huge_pages import LARGE_PAGE_BYTES, TABLE_PAGES
from sediment.verification import record_kernels as k
from sediment.verification.report import SHOWN_DIFFERENCES, Difference
from sediment.verification.rules import horizon_text

Int64s = npt.NDArray[np.int64]

MOST_HISTORIES = 1 << 16
_LEAST_SLOTS = 1 << 10
_SLOT_BYTES = 8 * k.SLOT_FIELDS


def _empty_slots(count: int) -> Int64s:
    """Return int64[count, SLOT_FIELDS] of zeros; a large table is in huge pages, because keys are looked up at random.

    A small table would waste most of a huge page.
    """
    size_bytes = count * _SLOT_BYTES
    if size_bytes < LARGE_PAGE_BYTES:
        return np.zeros((count, k.SLOT_FIELDS), dtype=np.int64)
    return TABLE_PAGES.take_zeroed(size_bytes).view(np.int64).reshape(count, k.SLOT_FIELDS)


class KeyTable:
    """Hash table of keys; `slots` is int64[n, SLOT_FIELDS]."""

    def __init__(self, limit_bytes: int, keys: int) -> None:
        self._limit_bytes = limit_bytes
        count = _LEAST_SLOTS
        while count * 3 // 4 <= keys and self._fits(2 * count):
            count *= 2
        self.slots = _empty_slots(count)

    def _fits(self, count: int) -> bool:
        return count <= _LEAST_SLOTS or count * _SLOT_BYTES * 3 // 2 <= self._limit_bytes

    def grow(self) -> bool:
        if not self._fits(2 * len(self.slots)):
            return False
        larger = _empty_slots(2 * len(self.slots))
        k.move_keys(self.slots, larger)
        self.slots = larger
        return True


@dataclass(slots=True)
class _History:
    first_offset: int
    before: list[int | None] = field(default_factory=lambda: [None, None])
    after: list[int | None] = field(default_factory=lambda: [None, None])
    lost: tuple[int, bool, int] | None = None
    left: list[int] = field(default_factory=list)
    superseder: int = -1

    def add(self, offset: int, facts: int, horizon_ms: int, dirty: int) -> None:
        for view, shift in ((0, 0), (1, 2)):
            if facts >> shift & k.IN_COMMITTED_BEFORE:
                self.before[view] = offset
            if facts >> shift & k.IN_COMMITTED_AFTER:
                self.after[view] = offset
        if facts & k.IS_MAPPED:
            self.lost = None
            if offset >= dirty:
                self.superseder = offset
        if facts & k.IS_LOST:
            self.lost = (offset, facts & k.IS_TOMBSTONE != 0, horizon_ms)
        if facts & k.IS_LEFT and len(self.left) < SHOWN_DIFFERENCES:
            self.left.append(offset)


class Histories:
    def __init__(self, table: KeyTable, dirty: int) -> None:
        self._words = table.slots[:, k.WORD]
        self._dirty = dirty
        self._by_slot: dict[int, _History] = {}

    def add(self, events: Int64s) -> None:
        for slot, offset, facts, horizon_ms in events.tolist():
            history = self._by_slot.get(slot)
            if history is None:
                if len(self._by_slot) >= MOST_HISTORIES:
                    continue
                history = self._by_slot[slot] = _History(offset)
            history.add(offset, facts, horizon_ms, self._dirty)

    def differences(self) -> Iterator[Difference]:
        for slot, history in self._by_slot.items():
            word = int(self._words[slot])
            for view, check, label in (
                (0, "latest_committed", "read_committed"),
                (1, "latest_uncommitted", "read_uncommitted"),
            ):
                if k.is_view_wrong(word >> view * k.UNCOMMITTED_SHIFT):
                    after, before = (
                        "nothing" if offset is None else f"at {offset}"
                        for offset in (history.after[view], history.before[view])
                    )
                    yield Difference(
                        check,
                        history.first_offset,
                        f"under {label}, the latest record of the key at this offset is {after}, "
                        f"but in BEFORE {before}",
                    )
            if history.lost is not None:
                yield lost_record(*history.lost)
            for offset in history.left:
                if offset < history.superseder:
                    yield Difference(
                        "superseded",
                        offset,
                        f"a later record of its key, at offset {history.superseder}, is below the cleaner checkpoint",
                    )


def lost_record(offset: int, is_tombstone: bool, horizon_ms: int) -> Difference:
    if is_tombstone:
        return Difference("tombstones", offset, f"the tombstone is gone, {horizon_text(horizon_ms)}")
    return Difference("lost", offset, "the record is missing, but its key has no later record")
