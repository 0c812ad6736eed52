"""Verdicts on the records of one partition, by offset, and the reasons why a verdict is not applied."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from sediment.segment_io.errors import UsageError

Int64s = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]


class Action(IntEnum):
    DROP = 0
    TOMBSTONE = 1  # its value becomes null
    REPLACE_VALUE = 2
    REPLACE_KEY = 3


class Reason(IntEnum):
    NO_RECORD = 0  # the log has no record at this offset
    CONTROL_RECORD = 1  # transaction markers and leader changes are not data
    NO_KEY = 2  # a tombstone without a key would delete nothing
    ABOVE_HIGH_WATERMARK = 3  # not fully replicated; a broker may truncate the record
    OPEN_TRANSACTION = 4  # at or above the last stable offset
    UNVERIFIED = 5  # the broker did not stop cleanly; its next start verifies this record

    @property
    def code(self) -> str:
        """The name of the reason in reports; for example, `no-key` for `NO_KEY`."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The change of the record at `offset`; `replacement` is the record's new key or value."""

    offset: int
    action: Action
    replacement: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """Verdicts as columns, sorted by offset, with at most one verdict for each offset.

    `offsets` is int64[n], and `actions` is uint8[n] with the values of `Action`.  Replacement n is
    `replacements`[edges[n] : edges[n + 1]].  `edges` is int64[n + 1], and `replacements` is uint8[m].  For actions that
    replace nothing, the replacement is empty.
    """

    offsets: Int64s
    actions: ByteArray
    edges: Int64s
    replacements: ByteArray

    def __post_init__(self) -> None:
        count = self.offsets.size
        types = [column.dtype for column in (self.offsets, self.actions, self.edges, self.replacements)]
        if types != [np.int64, np.uint8, np.int64, np.uint8]:
            raise UsageError(f"the columns of verdicts have types {', '.join(map(str, types))}")
        if self.actions.size != count or self.edges.size != count + 1:
            raise UsageError("the columns of verdicts have different lengths")
        if count and (self.offsets[0] < 0 or np.any(self.offsets[1:] <= self.offsets[:-1])):
            raise UsageError(
                "the offsets of the verdicts must not be negative, and each must be above the previous offset"
            )
        if np.any(self.actions > max(Action)):
            raise UsageError("a verdict has an unknown action")
        sizes = np.diff(self.edges)
        if self.edges[0] != 0 or self.edges[-1] != self.replacements.size or np.any(sizes < 0):
            raise UsageError("the edges of replacements do not match the replacement bytes")
        if np.any(sizes[self.actions < Action.REPLACE_VALUE] > 0):
            raise UsageError(
                "a verdict that drops a record or makes the record a tombstone must not have a replacement"
            )

    def __len__(self) -> int:
        return int(self.offsets.size)

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> Verdicts:
        rows = sorted(verdicts, key=lambda verdict: verdict.offset)
        edges = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row.replacement) for row in rows], out=edges[1:])
        return cls(
            np.array([row.offset for row in rows], dtype=np.int64),
            np.array([row.action for row in rows], dtype=np.uint8),
            edges,
            np.frombuffer(b"".join(row.replacement for row in rows), dtype=np.uint8),
        )

    @classmethod
    def uniform(cls, offsets: Int64s, action: Action, replacement: bytes = b"") -> Verdicts:
        count = offsets.size
        return cls(
            offsets,
            np.full(count, action, dtype=np.uint8),
            np.arange(count + 1, dtype=np.int64) * len(replacement),
            np.frombuffer(replacement * count, dtype=np.uint8),
        )

    def replacement(self, index: int) -> bytes:
        return self.replacements[self.edges[index] : self.edges[index + 1]].tobytes()

    def between(self, first_offset: int, end_offset: int) -> Verdicts:
        low, high = np.searchsorted(self.offsets, [first_offset, end_offset])
        high = max(low, high)
        edges = self.edges[low : high + 1]
        return Verdicts(
            self.offsets[low:high],
            self.actions[low:high],
            edges - edges[0],
            self.replacements[edges[0] : edges[-1]],
        )


@dataclass(frozen=True, slots=True, eq=False)
class NotReached:
    """Verdicts that were not applied: `offsets` is int64[n], sorted; `reasons` is uint8[n] of `Reason`."""

    offsets: Int64s
    reasons: ByteArray

    def __len__(self) -> int:
        return int(self.offsets.size)

    @classmethod
    def of(cls, offsets: Int64s, reason: Reason) -> NotReached:
        return cls(offsets, np.full(offsets.size, reason, dtype=np.uint8))

    @classmethod
    def joined(cls, parts: Iterable[NotReached]) -> NotReached:
        every = list(parts)
        offsets = np.concatenate([np.zeros(0, dtype=np.int64), *(part.offsets for part in every)])
        reasons = np.concatenate([np.zeros(0, dtype=np.uint8), *(part.reasons for part in every)])
        order = np.argsort(offsets, kind="stable")
        return cls(offsets[order], reasons[order])

    def by_reason(self) -> dict[Reason, int]:
        reasons, counts = np.unique(self.reasons, return_counts=True)
        return {Reason(reason): int(count) for reason, count in zip(reasons, counts, strict=True)}
