"""Logs opened to be only read, and what a plain scan of their files gives: the reference of every look-up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sediment.engine.live.log.fetched_data import Isolation
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.sources import partition_of
from sediment.server.read_only.frozen_log import Fetched, FrozenLog
from sediment.server.read_only.open_segments import OpenSegments
from tests.twin.batches import Batch, ControlType
from tests.twin.segments import AnyBatch, Segment, list_segments


def frozen_log(
    directory: Path,
    *,
    max_files: int = 100,
    max_index_bytes: int = 1 << 20,
    fs: Fs | None = None,
    **checkpoints: object,
) -> FrozenLog:
    """Return the log in `directory`; `checkpoints` are fields of PartitionCheckpoints."""
    fs = fs or Fs()
    listing = list_log(partition_of(directory), directory, fs)
    segments = OpenSegments(fs, max_files=max_files, max_index_bytes=max_index_bytes)
    stated = PartitionCheckpoints(clean_shutdown=True, **checkpoints)  # type: ignore[arg-type]
    return FrozenLog(listing, stated, segments, fs)


def content(fetched: Fetched) -> bytes:
    """Return the bytes of a read."""
    return b"" if fetched.records is None else fetched.records.read()


@dataclass(frozen=True, slots=True)
class ScannedBatch:
    """A batch with its place."""

    segment: int
    position: int
    batch: AnyBatch

    @property
    def end_position(self) -> int:
        return self.position + len(self.batch.data)


class Scan:
    """Every batch of a partition directory, in order."""

    def __init__(self, directory: Path) -> None:
        self.segments: list[Segment] = list_segments(directory)
        self.batches = [
            ScannedBatch(number, position, batch)
            for number, segment in enumerate(self.segments)
            for position, batch in segment.batches()
        ]
        last = self.batches[-1].batch.last_offset + 1 if self.batches else 0
        self.log_start = self.segments[0].base_offset if self.segments else 0
        self.log_end = max(last, self.segments[-1].base_offset if self.segments else 0)

    def last_stable(self, high_watermark: int) -> int:
        """Return the first offset of a transaction that is undecided below the high watermark, by replay."""
        open_since: dict[int, int] = {}
        unstable = [high_watermark]
        for found in self.batches:
            batch = found.batch
            if not isinstance(batch, Batch) or not batch.is_transactional:
                continue
            if batch.is_control:
                first = open_since.pop(batch.producer_id, None)
                if first is not None and batch.last_offset >= high_watermark:
                    unstable.append(first)
            else:
                open_since.setdefault(batch.producer_id, batch.base_offset)
        return min(unstable + list(open_since.values()))

    def aborted(self) -> list[tuple[int, int, int]]:
        """Return (producer, first offset, last offset) of each aborted transaction, by a replay."""
        open_since: dict[int, int] = {}
        found = []
        for each in self.batches:
            batch = each.batch
            if not isinstance(batch, Batch) or not batch.is_transactional:
                continue
            if not batch.is_control:
                open_since.setdefault(batch.producer_id, batch.base_offset)
            elif batch.records():
                first = open_since.pop(batch.producer_id, None)
                if first is not None and batch.control_type() is ControlType.ABORT:
                    found.append((batch.producer_id, first, batch.last_offset))
        return found

    def read(self, offset: int, limit: int, max_bytes: int, min_one: bool) -> bytes:
        """Return the bytes that a read gives which ends at offset `limit`."""
        if offset >= limit:
            return b""
        first = next((found for found in self.batches if found.batch.last_offset >= offset), None)
        if first is None:
            return b""
        size = len(first.batch.data)
        inside = [found for found in self.batches if found.segment == first.segment and found.batch.last_offset < limit]
        end = inside[-1].end_position if inside else 0
        if end <= first.position or (size > max_bytes and not min_one):
            return b""
        data = self.segments[first.segment].read(".log")
        return data[first.position : min(end, first.position + max(max_bytes, size))]


ISOLATIONS = (Isolation.LOG_END, Isolation.HIGH_WATERMARK, Isolation.TXN_COMMITTED)
