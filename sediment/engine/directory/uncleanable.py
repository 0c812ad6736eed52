"""Marks of uncleanable partitions: each has a reason, a time and segments, and is valid until these segments change.

Kafka's cleaner marks such a partition in memory, and forgets the mark when the broker restarts. A run of Sediment is
short, so marks are stored in a file of the log directory, next to the checkpoints. A broker ignores this file, because
its LogManager reads only sub-directories and the files that it knows by name.

Invariants: a mark is valid as long as all its segments are unchanged. So a repair, a restored copy or retention
invalidates the mark. The files of a copy or a hard-link backup have other ctimes, so the mark is not valid for these
files. The only cost is that the partition is read once more. A file of marks that cannot be read is treated as empty,
at the same cost.

Source: kafka-log 02 §1 (uncleanable), 05 §1 step 2e (plain files are ignored).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from sediment.segment_io.errors import SedimentError, UsageError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import (
    UNCLEANABLE_FILE,
    DirectoryState,
    SegmentFileKind,
    TopicPartition,
    parse_partition_directory,
    parse_segment_file,
    segment_file_name,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing, SegmentRef

_VERSION = 1
_KINDS = tuple(kind for kind in SegmentFileKind if kind is not SegmentFileKind.SNAPSHOT)
_LOCAL = Fs()


@dataclass(frozen=True, slots=True)
class Uncleanable:
    """The mark is valid as long as `segments` are unchanged.

    `fingerprint` is a hash of the sizes, mtimes and ctimes of these segments' files. In a copy, and in a mark from an
    earlier version of Sediment, `fingerprint` is None. The sizes and mtimes of the logs are then compared instead.
    """

    partition: TopicPartition
    reason_code: str
    reason: str
    since_ms: int
    segments: tuple[SegmentRef, ...]
    fingerprint: str | None = None

    def holds_for(self, listing: LogListing) -> bool:
        if not set(self.segments) <= set(listing.segments):
            return False
        return self.fingerprint is None or self.fingerprint == _fingerprint(listing.path, self.segments)


def uncleanable_after(
    error: SedimentError, listing: LogListing, *, reason_code: str, reason: str, since_ms: int
) -> Uncleanable:
    """The mark covers the segment whose file the error names, or all segments if the error names no file.

    The active segment is left out unless the error names it, because a broker still appends to it.
    """
    named = parse_segment_file(Path(error.path).name) if error.path else None
    at_fault = tuple(s for s in listing.segments if named is not None and s.base_offset == named.base_offset)
    segments = at_fault or listing.segments[:-1]
    return Uncleanable(listing.partition, reason_code, reason, since_ms, segments, _fingerprint(listing.path, segments))


def _fingerprint(directory: Path, segments: Iterable[SegmentRef]) -> str:
    names = [segment_file_name(segment.base_offset, kind) for segment in segments for kind in _KINDS]
    stamps = [(name, _LOCAL.change_stamp(directory / name)) for name in names]
    return hashlib.sha256(repr(stamps).encode()).hexdigest()


def read_uncleanable(log_dir: Path, fs: Fs) -> dict[TopicPartition, Uncleanable]:
    try:
        content = fs.read_bytes(log_dir / UNCLEANABLE_FILE)
    except FileNotFoundError:
        return {}
    try:
        document = json.loads(content)
        marks = [_parse(entry) for entry in document["partitions"]] if document["version"] == _VERSION else []
    except (ValueError, TypeError, KeyError, RecursionError, UsageError):
        return {}
    return {mark.partition: mark for mark in marks}


def update_uncleanable(
    log_dir: Path, fs: Fs, *, add: Iterable[Uncleanable] = (), remove: Iterable[TopicPartition] = ()
) -> None:
    before = read_uncleanable(log_dir, fs)
    removed = set(remove)
    left = {p: mark for p, mark in before.items() if p not in removed and fs.is_directory(log_dir / str(p))}
    after = left | {mark.partition: mark for mark in add}
    path = log_dir / UNCLEANABLE_FILE
    if after and after != before:
        marks = [{**asdict(mark), "partition": str(partition)} for partition, mark in sorted(after.items())]
        fs.replace_file(path, json.dumps({"version": _VERSION, "partitions": marks}, indent=1).encode() + b"\n")
    elif not after and fs.exists(path):
        fs.unlink(path, missing_ok=True)
        fs.sync_directory(log_dir)


def _parse(entry: Mapping[str, Any]) -> Uncleanable:
    partition, state = parse_partition_directory(entry["partition"])
    if state is not DirectoryState.LIVE:
        raise ValueError(entry["partition"])
    segments = tuple(SegmentRef(**segment) for segment in entry["segments"])
    numbers = [entry["since_ms"], *(number for segment in segments for number in astuple(segment))]
    if not all(number is None or (type(number) is int and abs(number) <= INT64_MAX) for number in numbers):
        raise ValueError(entry)
    fingerprint = entry.get("fingerprint")
    return Uncleanable(
        partition=partition,
        reason_code=str(entry["reason_code"]),
        reason=str(entry["reason"]),
        since_ms=entry["since_ms"],
        segments=segments,
        fingerprint=None if fingerprint is None else str(fingerprint),
    )
