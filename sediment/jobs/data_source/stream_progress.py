"""The offsets that each batch of a stream reads, even if logs are truncated, deleted, or created again meanwhile.

    checkpoint --> offset and mark of each partition --\
    directory  --> log end and identity  ---------------+--> where the next batch begins and ends, or data loss

    the log now, compared with the checkpoint                    the next batch begins
    the same log, or nothing is known                            at the offset of the checkpoint
    another log: the partition was deleted and created again     at the first offset of the log
    the same log, and it ends below the offset                   at the end of the log, which was truncated
    nothing is known, and it ends below the offset               at the first offset of the log

Any change of the offset is data loss, for which the caller fails or logs a warning.

Invariants: a batch that is run again reads the same offsets of the same log, or reports data loss.  The end of a batch
is never above the last offset that a task can read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from sediment.jobs.data_source.stream_offsets import StreamOffset, StreamOffsets
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.identity import PartitionIdentity
from sediment.segment_io.partition.slices import ALL, Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.log_ends import LogEnds, end_offset, first_offset
from sediment.segment_io.tables.log_marks import LogMatch, mark_of, match_log
from sediment.segment_io.tables.schema import READ_UNCOMMITTED


class OnDataLoss(Protocol):
    """A callback for data loss in a partition; it raises an error if the query fails on data loss."""

    def __call__(self, partition: str, what: str, advice: str) -> None: ...


@dataclass(frozen=True, slots=True)
class FoundEnd:
    source: Source
    offset: int
    identity: PartitionIdentity


@dataclass(frozen=True, slots=True)
class _Begin:
    """The offset at which a batch begins; `is_moved` is True if the previous batch did not end there."""

    offset: int
    is_moved: bool


class StreamProgress:
    def __init__(self, ends: LogEnds, on_data_loss: OnDataLoss) -> None:
        self._ends = ends
        self._on_data_loss = on_data_loss
        self._fs = Fs()
        self._matches: dict[str, tuple[StreamOffset, PartitionIdentity, LogMatch]] = {}
        self._absent: frozenset[str] = frozenset()

    def found(self) -> dict[str, FoundEnd]:
        sources = self._ends.sources()
        identified = self._ends.identified(sources.values())
        return {str(source.partition): FoundEnd(source, *found) for source, found in identified.items()}

    def started(self, offsets: Mapping[str, int], found: Mapping[str, FoundEnd]) -> dict[str, StreamOffset]:
        return {
            name: self._marked(found[name], offset) if name in found else StreamOffset(offset)
            for name, offset in offsets.items()
        }

    def next_offsets(
        self, start: StreamOffsets, found: Mapping[str, FoundEnd], most_offsets: int | None
    ) -> dict[str, StreamOffset]:
        """Return the end of the batch that begins at `start` and ends at or below `found`.

        The batch has about `most_offsets` offsets, but at least one of each partition with data.
        """
        self._check_present(start.keys() - self._ends.sources().keys())
        begins = {name: self._begin(name, start.get(name), end) for name, end in found.items()}
        ends = _limited(found, begins, most_offsets)
        reached = {name: self._reached(found[name], start.get(name), begins[name], ends[name]) for name in found}
        return {**start, **{name: entry for name, entry in reached.items() if entry is not None}}

    def compared(self, start: StreamOffsets, end: StreamOffsets) -> dict[str, StreamOffset]:
        """Return `end`, which was found without knowledge of `start`, with the offsets at which the batch begins.

        Data loss between the two is reported; what became of a log since `end` was found is left to `ranges`.
        """
        self._check_present(start.keys() - end.keys())
        found = self.found()
        compared = dict(end)
        for name, entry in end.items():
            if name not in found or self._match(name, entry, found[name]) is LogMatch.OTHER:
                continue
            begin = self._begin(name, start.get(name), found[name])
            if begin.is_moved:
                compared[name] = replace(entry, first=begin.offset)
        return compared

    def ranges(self, start: StreamOffsets, end: StreamOffsets) -> Iterator[tuple[Source, Bounds, str | None]]:
        wanted = {name: entry for name, entry in end.items() if start.get(name) != entry}
        sources = self._ends.sources()
        found = {
            str(source.partition): FoundEnd(source, *each)
            for source, each in self._ends.identified(sources[name] for name in wanted if name in sources).items()
        }
        for name, entry in wanted.items():
            before = start.get(name)
            first = entry.first
            if first is None:
                first = ALL.first_offset if before is None else before.offset
            if first >= entry.offset:
                continue
            bounds = self._present(name, found.get(name), Bounds(first_offset=first, end_offset=entry.offset), entry)
            if bounds is not None:
                now = found[name]
                yield now.source, bounds, now.identity.topic_id

    def _check_present(self, absent: frozenset[str] | set[str]) -> None:
        for name in sorted(absent - self._absent):
            self._on_data_loss(
                name,
                "the partition was removed while the stream read it",
                "set failOnDataLoss to false to continue without this partition",
            )
        self._absent = frozenset(absent)

    def _begin(self, name: str, known: StreamOffset | None, end: FoundEnd) -> _Begin:
        if known is None:
            return _Begin(first_offset(end.source, self._fs), is_moved=False)
        match = self._match(name, known, end)
        if match is LogMatch.OTHER:
            first = first_offset(end.source, self._fs)
            why = "the partition was deleted and created again"
            self._on_moved(name, known.offset, first, why, "read the new partition from its first offset")
            return _Begin(first, is_moved=True)
        # A last stable offset below the known offset does not prove a truncation: a high watermark may go back.
        if end.offset >= known.offset or (log_end := self._log_end(end)) >= known.offset:
            return _Begin(known.offset, is_moved=False)
        if match is LogMatch.SAME:
            self._on_moved(name, known.offset, log_end, "the log was truncated", "continue at this offset")
            return _Begin(log_end, is_moved=True)
        first = first_offset(end.source, self._fs)
        why = f"the log ends at offset {log_end}: it was truncated, or the partition was deleted and created again"
        self._on_moved(name, known.offset, first, why, "read the partition from its first offset")
        return _Begin(first, is_moved=True)

    def _on_moved(self, name: str, known: int, now: int, why: str, what_to_do: str) -> None:
        what = f"the offset was changed from {known} to {now}, because {why}"
        self._on_data_loss(name, what, f"set failOnDataLoss to false to {what_to_do}")

    def _match(self, name: str, known: StreamOffset, end: FoundEnd) -> LogMatch:
        if known.mark is None:
            return LogMatch.UNKNOWN
        before = self._matches.get(name)
        if before is None or before[:2] != (known, end.identity):
            before = (known, end.identity, match_log(known.mark, end.source, end.identity, self._fs))
            self._matches[name] = before
        return before[2]

    def _log_end(self, end: FoundEnd) -> int:
        return max(end.offset, end_offset(READ_UNCOMMITTED, end.source, self._fs))

    def _reached(self, found: FoundEnd, known: StreamOffset | None, begin: _Begin, offset: int) -> StreamOffset | None:
        if known is not None and known.mark is not None and not begin.is_moved and offset == known.offset:
            return known
        try:
            entry = self._marked(found, offset, begin.offset if begin.is_moved else None)
        except (SedimentError, FileNotFoundError):
            if self._is_still(found):
                raise
            return known
        return entry if self._is_still(found) else known

    def _marked(self, found: FoundEnd, offset: int, first: int | None = None) -> StreamOffset:
        return StreamOffset(offset, mark_of(found.source, found.identity, offset, self._fs), first)

    def _is_still(self, found: FoundEnd) -> bool:
        try:
            return found.identity.is_same(self._ends.identities.of(found.source))
        except FileNotFoundError:
            return False

    def _present(self, name: str, found: FoundEnd | None, bounds: Bounds, end: StreamOffset) -> Bounds | None:
        if found is None:
            self._lost(name, bounds, "the partition was removed")
            return None
        if self._match(name, end, found) is LogMatch.OTHER:
            self._lost(name, bounds, "the partition was deleted and created again")
            return None
        if found.offset < bounds.end_offset and (log_end := self._log_end(found)) < bounds.end_offset:
            self._lost(name, bounds & Bounds(first_offset=log_end), "the log was truncated")
            bounds &= Bounds(end_offset=log_end)
        begins = min(first_offset(found.source, self._fs), bounds.end_offset)
        if ALL.first_offset < bounds.first_offset < begins:
            self._on_removed(name, bounds.first_offset, begins)
        return bounds

    def _lost(self, name: str, bounds: Bounds, why: str) -> None:
        first = max(bounds.first_offset, 0)
        what = f"offsets {first} to {bounds.end_offset - 1} were lost before the stream read them, because {why}"
        self._on_data_loss(name, what, "set failOnDataLoss to false to continue without them")

    def _on_removed(self, name: str, first_lost: int, next_offset: int) -> None:
        what = f"offsets {first_lost} to {next_offset - 1} were removed by retention before the stream read them"
        self._on_data_loss(name, what, "set failOnDataLoss to false to continue after these offsets")


def _limited(found: Mapping[str, FoundEnd], begins: Mapping[str, _Begin], most_offsets: int | None) -> dict[str, int]:
    waiting = {name: max(end.offset - begins[name].offset, 0) for name, end in found.items()}
    share = 1.0 if most_offsets is None else min(1.0, most_offsets / max(sum(waiting.values()), 1))
    return {
        name: begins[name].offset + (count if share == 1.0 else min(count, max(1, int(count * share))))
        for name, count in waiting.items()
    }
