"""The segments of a partition that a reader may use, even while another process replaces segments.

    two equal listings --> no replacement is in progress, or it was interrupted --> segments and their files

`live_segments` reads the clock and may sleep.

Invariant: the result never mixes old and new segments of a replacement, unless replacements follow without a pause.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sediment.segment_io.errors import NotALogDirectoryError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import CLEANED_SUFFIX, SWAP_SUFFIX, SegmentFileKind, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import (
    LogListing,
    SegmentRef,
    list_log,
    stat_segment,
)
from sediment.segment_io.partition.sources import Source

_NO_OFFSET = -INT64_MAX - 1
_LISTING_ATTEMPTS = 20
_FIRST_WAIT_SECONDS = 0.005
_QUIET_SECONDS = 5.0  # after this time without a change, a replacement is considered interrupted


@dataclass(frozen=True, slots=True)
class LiveSegment:
    """A segment that a reader may use; `end_offset` is the next segment's base offset, or 2^63 - 1.

    `log_name` is the name of the segment's `.log`, with a suffix if a replacement was interrupted or is not complete.
    """

    ref: SegmentRef
    log_name: str
    end_offset: int
    is_active: bool

    @property
    def base_offset(self) -> int:
        return self.ref.base_offset

    def path(self, directory: Path, kind: SegmentFileKind) -> Path:
        stem, suffix = segment_file_name(self.base_offset, kind), self.log_name.partition(SegmentFileKind.LOG)[2]
        return directory / (self.log_name if kind is SegmentFileKind.LOG else stem + suffix)


def live_segments(source: Source, fs: Fs) -> tuple[LiveSegment, ...]:
    """Return the segments of a partition, sorted by base offset, or only the segment that `source` names.

    After an interrupted replacement, return the new segments if Kafka's loader would complete the replacement.
    Otherwise return the old segments.

    Source: kafka-log 05 §2.
    """
    listing = as_loaded(_settled(source, fs), fs)
    ends = [*(ref.base_offset for ref in listing.segments[1:]), INT64_MAX][: len(listing.segments)]
    segments = tuple(
        LiveSegment(ref, listing.file(ref, SegmentFileKind.LOG).name, end, end == INT64_MAX)
        for ref, end in zip(listing.segments, ends, strict=True)
    )
    if source.base_offset is None:
        return segments
    return (_named_segment(source, segments, fs),)


def as_loaded(listing: LogListing, fs: Fs) -> LogListing:
    """Return the listing with the segments that Kafka's loader would keep after an interrupted replacement.

    Source: kafka-log 05 §2.
    """
    swaps = _completed_swaps(listing)
    if not swaps:
        return listing
    end = max(_next_offset(listing.path / name) for _, name in swaps)
    first = swaps[0][0]
    segments = [ref for ref in listing.segments if not first <= ref.base_offset < end]
    segments += [_stat_segment(listing.path, base, SWAP_SUFFIX, fs) for base, _ in swaps]
    segments.sort(key=lambda ref: ref.base_offset)
    return replace(listing, segments=tuple(segments), swapped=frozenset(base for base, _ in swaps))


def _named_segment(source: Source, segments: Sequence[LiveSegment], fs: Fs) -> LiveSegment:
    base_offset = source.base_offset
    assert base_offset is not None
    name = source.log_name or segment_file_name(base_offset, SegmentFileKind.LOG)
    for segment in segments:
        if segment.log_name == name:
            return segment
    if not (source.directory / name).exists():
        raise NotALogDirectoryError("the segment has no .log", path=str(source.directory / name))
    # This is a file that loaders ignore, such as a `.deleted` file.
    ref = _stat_segment(source.directory, base_offset, name.partition(SegmentFileKind.LOG)[2], fs)
    return LiveSegment(ref, name, INT64_MAX, is_active=True)


def _settled(source: Source, fs: Fs) -> LogListing:
    wait_seconds = _FIRST_WAIT_SECONDS
    listing = list_log(source.partition, source.directory, fs)
    for _ in range(_LISTING_ATTEMPTS):
        again = list_log(source.partition, source.directory, fs)
        # If a listing shows a replacement, the directory is listed again until the replacement is complete.  If the
        # directory does not change for some seconds, the replacement is considered interrupted.
        if _names(listing) == _names(again) and (not _has_swaps(again) or _is_quiet(source.directory)):
            return again
        listing = again
        time.sleep(wait_seconds)
        wait_seconds *= 1.4
    return listing


def _names(listing: LogListing) -> tuple[list[int], list[str]]:
    return [segment.base_offset for segment in listing.segments], [leftover.name for leftover in listing.leftovers]


def _has_swaps(listing: LogListing) -> bool:
    return any(leftover.parsed.state == SWAP_SUFFIX for leftover in listing.leftovers)


def _is_quiet(directory: Path) -> bool:
    return time.time() - directory.stat().st_mtime > _QUIET_SECONDS


def _completed_swaps(listing: LogListing) -> list[tuple[int, str]]:
    parsed = [(leftover.parsed, leftover.name) for leftover in listing.leftovers]
    lowest_cleaned = min((p.base_offset for p, _ in parsed if p.state == CLEANED_SUFFIX), default=INT64_MAX)
    return sorted(
        (p.base_offset, name)
        for p, name in parsed
        if p.state == SWAP_SUFFIX and p.kind is SegmentFileKind.LOG and p.base_offset < lowest_cleaned
    )


def _stat_segment(directory: Path, base_offset: int, suffix: str, fs: Fs) -> SegmentRef:
    found = stat_segment(directory, base_offset, fs, suffix=suffix)
    if found is None:
        path = directory / (segment_file_name(base_offset, SegmentFileKind.LOG) + suffix)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return found


def _next_offset(path: Path) -> int:
    from sediment.segment_io.segment.reader import HeaderScan

    end = _NO_OFFSET
    for rows in HeaderScan(path):
        end = int(rows["last_offset"][-1]) + 1
    return end
