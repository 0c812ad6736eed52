"""Rolling of the last segment of a log that no broker uses, so that the segment becomes cleanable.

The result is the same as after Kafka's roll: the old active segment has complete, trimmed indexes.

Invariants: files that are already correct are kept, and no existing inode changes. New files appear in this order;
after a crash at any point, Sediment and a broker can load the directory:

    indexes of the old active segment   each is replaced as a whole
    <log end>.snapshot                  a log may have one snapshot past the last segment's base offset
    <log end>.index, .timeindex         without their log, they are orphans, which a start removes
    <log end>.log                       this empty file completes the segment

Source: kafka-log 04 §6 (rolling), 05 §2 pass 4 (orphans), 05 §6 (snapshots past the last base), 07 AP-25.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from sediment.segment_io.errors import CorruptBatchError, UncleanDirectoryError
from sediment.segment_io.format.layout import MAX_SEGMENT_BYTES
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing, SegmentRef
from sediment.segment_io.partition.log_view import LogView
from sediment.segment_io.partition.producer_snapshots import encode_snapshot
from sediment.segment_io.segment.recovery_scan import scan_segment

_LOG, _OFFSET_INDEX, _TIME_INDEX, _, _SNAPSHOT = SegmentFileKind


@dataclass(frozen=True, slots=True)
class Roll:
    """`listing` contains the segments after the roll, but the snapshots before it, and only indexes that existed.

    So a view of this listing needs only files that already exist.
    """

    listing: LogListing
    like: Path
    replaced: tuple[tuple[str, bytes], ...]
    created: tuple[tuple[str, bytes], ...]


def plan_roll(view: LogView, fs: Fs, *, index_interval_bytes: int, segment_index_bytes: int) -> Roll | None:
    listing = view.listing
    if not listing.segments or listing.segments[-1].log_bytes == 0 or view.unverified_from_offset is not None:
        return None
    active = listing.segments[-1]
    path = listing.path / segment_file_name(active.base_offset, _LOG)
    scan = scan_segment(
        path,
        active.base_offset,
        active.log_bytes,
        index_interval_bytes=index_interval_bytes,
        segment_index_bytes=min(segment_index_bytes, MAX_SEGMENT_BYTES),
        stop_if_offsets_go_back=False,
    )
    if scan.good_bytes < active.log_bytes:
        kind = UncleanDirectoryError if scan.is_torn else CorruptBatchError
        raise kind(
            "the active segment ends inside a batch" if scan.is_torn else scan.stop or "no batch begins here",
            partition=str(listing.partition),
            path=str(path),
            position=scan.good_bytes,
            offset=scan.next_offset,
            advice="run `sediment recover` first",
        )
    end_offset = scan.next_offset
    indexes = ((_OFFSET_INDEX, scan.offset_index), (_TIME_INDEX, scan.time_index))
    replaced = [
        (name, content)
        for kind, content in indexes
        for name in [segment_file_name(active.base_offset, kind)]
        if not fs.exists(listing.path / name) or fs.read_bytes(listing.path / name) != content
    ]
    if end_offset not in listing.snapshots:
        replaced.append((segment_file_name(end_offset, _SNAPSHOT), encode_snapshot(view.producers)))
    created = tuple((segment_file_name(end_offset, kind), b"") for kind in (_OFFSET_INDEX, _TIME_INDEX, _LOG))
    rolled = (
        replace(
            active,
            offset_index_bytes=None if active.offset_index_bytes is None else len(scan.offset_index),
            time_index_bytes=None if active.time_index_bytes is None else len(scan.time_index),
        ),
        SegmentRef(end_offset, 0, 0, 0, None, active.mtime_ns),
    )
    return Roll(
        replace(listing, segments=(*listing.segments[:-1], *rolled)),
        path,
        tuple(replaced),
        created,
    )


def perform_roll(roll: Roll, fs: Fs) -> None:
    """The directory's lock must be held."""
    directory = roll.listing.path
    for name, content in roll.replaced:
        fs.replace_file(directory / name, content, like=roll.like)
    for name, content in roll.created:
        path = directory / name
        fs.write_new(path, [content])
        fs.adopt_owner(path, roll.like)
        fs.sync_file(path)
        fs.sync_directory(directory)
