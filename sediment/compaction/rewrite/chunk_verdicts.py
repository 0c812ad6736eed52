"""The verdicts of one segment, which a rewrite requests chunk by chunk.

    GivenVerdicts     by offset: the same table for every chunk
    SearchedVerdicts  by key: each chunk is searched, and has a table with its matches

A table marks the verdicts whose records were found; the rewrite reports all other verdicts.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sediment.compaction.rewrite.key_matches import KeySearch
from sediment.compaction.rewrite.plan import KeyVerdicts, MatchedRecords
from sediment.compaction.rewrite.rewrite_kernels import VerdictColumns
from sediment.compaction.rewrite.source_segment import SourceSegment
from sediment.compaction.rewrite.verdicts import Action, NotReached, Reason, Verdicts
from sediment.segment_io.segment.reader import BatchSpan


class VerdictTable:
    """`excluded`, bool[verdicts], marks the verdicts on batches that must not change."""

    def __init__(self, verdicts: Verdicts) -> None:
        self.offsets = verdicts.offsets
        self.excluded = np.zeros(len(verdicts), dtype=np.bool_)
        self.may_drop = bool((verdicts.actions == Action.DROP).any())
        self._replacements = verdicts.replacements  # `columns` contains only the address of these bytes
        # The columns are copied, because the kernel would be compiled a second time for read-only columns.
        self.columns = VerdictColumns(
            verdicts.offsets.copy(),
            verdicts.actions.copy(),
            verdicts.edges.copy(),
            verdicts.replacements.ctypes.data,
            np.zeros(len(verdicts), dtype=np.bool_),
            np.zeros(len(verdicts), dtype=np.bool_),
        )

    def __len__(self) -> int:
        return int(self.offsets.size)

    def not_applied(self) -> NotReached:
        is_met = self.columns.seen | self.excluded
        return NotReached.joined(
            [
                NotReached.of(self.offsets[self.columns.without_key], Reason.NO_KEY),
                NotReached.of(self.offsets[~is_met], Reason.NO_RECORD),
            ]
        )


class SegmentVerdicts(Protocol):
    zeros_may_follow: bool
    """True if zeros may follow the last batch of a segment in which nothing changes."""

    def on(self, span: BatchSpan) -> VerdictTable:
        """Return the table for a checked chunk; the caller passes every chunk once, in log order."""
        ...

    def not_applied(self) -> NotReached:
        """After the last chunk, return the verdicts that were not applied; leave out batches that must not change."""
        ...

    def matches(self) -> MatchedRecords | None: ...


class GivenVerdicts:
    zeros_may_follow = False

    def __init__(self, verdicts: Verdicts) -> None:
        self._table = VerdictTable(verdicts)

    def on(self, _span: BatchSpan) -> VerdictTable:
        return self._table

    def not_applied(self) -> NotReached:
        return self._table.not_applied()

    def matches(self) -> None:
        """Return None, because nothing was searched."""


class SearchedVerdicts:
    """Verdicts on the records with given keys; compressed records of a batch may expand to `limit_bytes`."""

    zeros_may_follow = True

    def __init__(self, by_key: KeyVerdicts, source: SourceSegment, limit_bytes: int) -> None:
        self._by_key = by_key
        self._search = KeySearch(source, by_key.keys, limit_bytes)
        self._no_verdicts = VerdictTable(Verdicts.of(()))
        self._tables: list[VerdictTable] = []

    def on(self, span: BatchSpan) -> VerdictTable:
        offsets = self._search.add(span)
        if not offsets.size:
            return self._no_verdicts
        # A log may contain an offset twice, or offsets that decrease.
        table = VerdictTable(Verdicts.uniform(np.unique(offsets), self._by_key.action, self._by_key.replacement))
        self._tables.append(table)
        return table

    def not_applied(self) -> NotReached:
        """Return the matches that the rewrite did not find, because no batch covers their offset."""
        return NotReached.joined([table.not_applied() for table in self._tables])

    def matches(self) -> MatchedRecords:
        found = self._search.matches()
        return MatchedRecords(np.unique(found.offsets), found.scanned)
