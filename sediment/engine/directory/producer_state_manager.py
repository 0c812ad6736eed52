"""Producer snapshots of a log, and producers rebuilt from snapshots and batches: Kafka's ProducerStateManager.

    load, live truncation     `rebuild` loads the newest good snapshot and replays the later batches   kafka-log 05 §6
    truncateAndReload         `truncate_and_reload` drops the snapshots outside the log                04 §3.1, 05 §6
    removeStraySnapshots      a load calls `remove_stray_snapshots`                                    05 §6
    takeSnapshot              `take_snapshot`; a live log calls `needs_snapshot` instead               04 §3.1
    log start raised          `live.log.local_log.LocalLog.start_at` drops transactions below it       03 §4
    corrupt snapshot          it is dropped, and the next older one is tried

If no snapshot exists, all batches from the log start are replayed, except after a clean stop, when none is replayed.

Invariants: a snapshot gets its final name only when it is complete. A dropped snapshot is not read again, but its file
exists until `delete_dropped`. So if a snapshot with the same producers is taken again, the file is still there and need
not be rewritten.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sediment.engine.directory.repair import Repair
from sediment.segment_io.errors import CorruptSnapshotError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.producer_snapshots import encode_snapshot, parse_snapshot
from sediment.segment_io.partition.producer_state import ProducerEntry, ProducerState, replay
from sediment.segment_io.segment.reader import HeaderScan, Rows


class Snapshots:
    """New files get the owner, group and mode of the path that `like()` returns."""

    def __init__(
        self, directory: Path, offsets: Iterable[int], fs: Fs, *, like: Callable[[], Path], repairs: list[Repair]
    ) -> None:
        self._directory = directory
        self._fs = fs
        self._like = like
        self._offsets = sorted(set(offsets))
        self._dropped: dict[int, tuple[str, bool]] = {}
        self._repairs = repairs

    def offsets(self) -> tuple[int, ...]:
        return tuple(self._offsets)

    def path(self, offset: int) -> Path:
        return self._directory / segment_file_name(offset, SegmentFileKind.SNAPSHOT)

    def read(self, offset: int) -> tuple[ProducerEntry, ...]:
        return parse_snapshot(self._fs.read_bytes(self.path(offset)), path=str(self.path(offset)))

    def take(self, offset: int, entries: Iterable[ProducerEntry]) -> None:
        path = self.path(offset)
        wanted = {entry.producer_id: entry for entry in entries}
        is_there = self._has(offset) or offset in self._dropped
        if is_there and self._holds(offset, wanted):
            self._fs.sync_file(path)
        else:
            self._fs.replace_file(path, encode_snapshot(wanted.values()), like=self._like())
            action = "rewritten" if is_there else "written"
            why = f"it contains the {len(wanted)} producers known at this offset"
            self._repairs.append(Repair(action, path.name, why, is_routine=not is_there))
        self._add(offset)

    def drop(self, offset: int, why: str, *, is_routine: bool = False) -> None:
        if self._has(offset):
            del self._offsets[bisect_left(self._offsets, offset)]
            self._dropped[offset] = why, is_routine

    def restore(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._add(offset)

    def delete_dropped(self) -> None:
        """Delete the files of the dropped snapshots, except those that were taken again after they were dropped."""
        for offset, (why, is_routine) in sorted(self._dropped.items()):
            self._fs.unlink(self.path(offset), missing_ok=True)
            self._repairs.append(Repair("deleted", self.path(offset).name, why, is_routine))
        if self._dropped:
            self._fs.sync_directory(self._directory)
        self._dropped.clear()

    def _has(self, offset: int) -> bool:
        index = bisect_left(self._offsets, offset)
        return index < len(self._offsets) and self._offsets[index] == offset

    def _add(self, offset: int) -> None:
        self._dropped.pop(offset, None)
        if not self._has(offset):
            insort(self._offsets, offset)

    def _holds(self, offset: int, wanted: dict[int, ProducerEntry]) -> bool:
        try:
            found = self.read(offset)
        except CorruptSnapshotError:
            return False
        return len(found) == len(wanted) and {entry.producer_id: entry for entry in found} == wanted


@dataclass(frozen=True, slots=True)
class ReplayedSegment:
    base_offset: int
    path: Path
    log_bytes: int
    fs: Fs

    def batches(self) -> Iterator[Rows]:
        if self.log_bytes:
            yield from HeaderScan(self.path, size_bytes=self.log_bytes, fs=self.fs, unknown_magic_may_be_torn=True)


def needs_snapshot(map_end_offset: int, last_snapshot_offset: int) -> bool:
    """Return True if a snapshot must be taken at `map_end_offset`, because no snapshot exists at this offset or above.

    Source: kafka-log 04 §3.1 (takeSnapshot).
    """
    return map_end_offset > last_snapshot_offset


class ProducerStateManager:
    # `state` reflects the batches below `map_end_offset`; `state.completed` contains the transactions that ended since
    # `forget_completed` was last called.

    def __init__(self, snapshots: Snapshots, *, now_ms: int, expiration_ms: int | None) -> None:
        self._snapshots = snapshots
        self._now_ms = now_ms
        self._expiration_ms = expiration_ms
        self._last_snapshot_offset = 0
        self.map_end_offset = 0
        self.state = ProducerState.at(0)

    def replay(self, table: Rows) -> None:
        """Apply a BATCH_ROW table to the state; the caller advances `map_end_offset`."""
        self.state = replay(self.state, table)

    def replay_aborted(self, table: Rows) -> None:
        """Apply a table to the state as `replay` does, but add only aborted transactions to `state.completed`."""
        self.state = replay(self.state, table, only_aborted=True)

    def take_snapshot(self) -> None:
        if needs_snapshot(self.map_end_offset, self._last_snapshot_offset):
            self._snapshots.take(self.map_end_offset, self.state.entries.values())
            self._last_snapshot_offset = self.map_end_offset

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int) -> None:
        """Source: kafka-log 05 §6 (truncateAndReload)."""
        offsets = self._snapshots.offsets()
        end = bisect_right(offsets, log_end_offset)
        for offset in offsets[end:]:
            self._snapshots.drop(offset, "it is past the end of the log")
        for offset in offsets[: bisect_right(offsets, log_start_offset, hi=end)]:
            self._snapshots.drop(offset, f"the log starts at {log_start_offset}", is_routine=True)
        if log_end_offset == self.map_end_offset:
            self.map_end_offset = max(self.map_end_offset, log_start_offset)
            self._last_snapshot_offset = max(self._snapshots.offsets(), default=log_start_offset)
            return
        self.map_end_offset, entries = self._newest(log_start_offset)
        self._last_snapshot_offset = self.map_end_offset
        state = ProducerState.at(self.map_end_offset, entries)
        self.state = state.without_expired(self._now_ms, self._expiration_ms)

    def _newest(self, log_start_offset: int) -> tuple[int, tuple[ProducerEntry, ...]]:
        for offset in reversed(self._snapshots.offsets()):
            try:
                return offset, self._snapshots.read(offset)
            except CorruptSnapshotError as error:
                self._snapshots.drop(offset, error.what)
        return log_start_offset, ()

    def rebuild(
        self,
        segments: Sequence[ReplayedSegment],
        log_start_offset: int,
        end_offset: int,
        *,
        reload_from_clean_shutdown: bool,
    ) -> None:
        """Rebuild the state at `end_offset` from the newest snapshot at or below it, and from the batches after it.

        If a log has no snapshot after a clean stop, nothing is read and the state is empty.

        Source: kafka-log 05 §6 (rebuildProducerState).
        """
        marks = sorted({*(segment.base_offset for segment in segments[-2:]), end_offset})
        if reload_from_clean_shutdown and not self._snapshots.offsets():
            for mark in marks:
                self.map_end_offset = mark
                self.take_snapshot()
            return
        is_empty_before = not self.state.entries and not self.state.completed and self.map_end_offset >= end_offset
        self.truncate_and_reload(log_start_offset, end_offset)
        if end_offset > self.map_end_offset and not is_empty_before:
            end_base_offset = max((s.base_offset for s in segments if s.base_offset <= end_offset), default=end_offset)
            for segment in _from_offset(segments, self.map_end_offset):
                if segment.base_offset >= end_offset:
                    break
                start_offset = max(segment.base_offset, self.map_end_offset, log_start_offset)
                self.map_end_offset = start_offset
                if segment.base_offset in marks:
                    self.take_snapshot()
                holds_end = segment.base_offset == end_base_offset
                self._replay_range(segment, start_offset, end_offset if holds_end else INT64_MAX)
        self.map_end_offset = end_offset
        self.take_snapshot()

    def _replay_range(self, segment: ReplayedSegment, start_offset: int, end_offset: int) -> None:
        """Apply the batches, beginning with the first batch that ends at or above `start_offset`.

        Stop before the first batch that ends at or above `end_offset`. All batches between the two are applied, even if
        their offsets are out of range. A broker also applies them, because no checksum covers the offsets.
        """
        has_begun = False
        for rows in segment.batches():
            first = 0 if has_begun else _first_at_or_after(rows, start_offset)
            has_begun = has_begun or first < len(rows)
            end = first + _first_at_or_after(rows[first:], end_offset)
            self.replay(rows[first:end])
            if end < len(rows):
                return

    def forget_completed(self) -> None:
        self.state = replace(self.state, completed=())

    def remove_stray_snapshots(self, base_offsets: Sequence[int]) -> None:
        """Drop each snapshot whose offset is not the base offset of a segment.

        If the largest of these offsets is at or above the last segment's base offset, the snapshot at this offset is
        kept. A clean stop wrote this snapshot at the log end.

        Source: kafka-log 05 §6 (removeStraySnapshots).
        """
        strays = sorted(set(self._snapshots.offsets()) - set(base_offsets))
        if strays and strays[-1] >= max(base_offsets, default=strays[-1]):
            strays.pop()
        for offset in strays:
            self._snapshots.drop(offset, "no segment begins there", is_routine=True)


def _first_at_or_after(rows: Rows, offset: int) -> int:
    found = rows["last_offset"] >= offset
    return int(found.argmax()) if found.any() else len(rows)


def _from_offset(segments: Sequence[ReplayedSegment], offset: int) -> Sequence[ReplayedSegment]:
    first = sum(segment.base_offset <= offset for segment in segments) - 1
    return segments[max(first, 0) :]
