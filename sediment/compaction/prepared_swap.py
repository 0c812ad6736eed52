"""The prepared swap and its JSON form: the files that a task wrote for `commit`, and the segments to replace.

Invariant: every file that a prepared swap names is written and synced, and still has its `.part` name.  Only one
attempt of a task uses this name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from sediment.segment_io.errors import CorruptDataError, SedimentError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import (
    PART_SUFFIX,
    DirectoryState,
    PartFile,
    PartSegment,
    TopicPartition,
    parse_partition_directory,
    parse_segment_file,
    segment_file_name,
)
from sediment.segment_io.partition.listing import SegmentRef

__all__ = [
    "CleanStats",
    "CleanedGroup",
    "PartFile",
    "PartSegment",
    "PreparedSwap",
    "UnreadableBatch",
    "swap_from_json",
    "swap_to_json",
]

_SCHEMA = 1
_Row = TypeVar("_Row", SegmentRef, "CleanStats")


@dataclass(frozen=True, slots=True)
class CleanStats:
    """The counts of one group.

    As in Kafka's cleaner, `messages_read` does not include the messages of batches that are dropped as a whole.

    `tombstones_waiting` counts the tombstones kept.  They expire between `first_horizon_ms` and `last_horizon_ms`.  If
    none of their batches has a delete horizon, `first_horizon_ms` is greater than `last_horizon_ms`.
    `batches_without_horizon` counts batches that got no horizon because delete.retention.ms is unknown.
    `records_without_key` counts the records dropped because they have no key (Kafka's invalidMessagesRead).
    """

    messages_read: int = 0
    messages_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    corrupt_batches: int = 0
    tombstones_waiting: int = 0
    first_horizon_ms: int = INT64_MAX
    last_horizon_ms: int = 0
    batches_without_horizon: int = 0
    batches_encoded: int = 0
    records_without_key: int = 0

    def __add__(self, other: CleanStats) -> CleanStats:
        return CleanStats(
            self.messages_read + other.messages_read,
            self.messages_written + other.messages_written,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.corrupt_batches + other.corrupt_batches,
            self.tombstones_waiting + other.tombstones_waiting,
            min(self.first_horizon_ms, other.first_horizon_ms),
            max(self.last_horizon_ms, other.last_horizon_ms),
            self.batches_without_horizon + other.batches_without_horizon,
            self.batches_encoded + other.batches_encoded,
            self.records_without_key + other.records_without_key,
        )


@dataclass(frozen=True, slots=True)
class UnreadableBatch:
    """Bytes of a segment that cannot be read as batches, and are copied unchanged; `what` is the reason.

    `offset` is the offset after the previous batch.
    """

    segment: int
    position: int
    size_bytes: int
    offset: int
    what: str


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """Source segments, and the parts that replace them; without `parts`, the sources are kept.

    Usually one new segment is enough.  Several are needed if the result does not fit into one segment file (2 GiB, or
    2^31 offsets).
    """

    sources: tuple[SegmentRef, ...]
    parts: tuple[PartSegment, ...]
    stats: CleanStats
    unreadable: tuple[UnreadableBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class PreparedSwap:
    """The input of a commit for one partition; groups are sorted by offset."""

    partition: TopicPartition
    directory: str
    groups: tuple[CleanedGroup, ...]
    next_dirty_offset: int

    def stats(self) -> CleanStats:
        return sum((group.stats for group in self.groups), CleanStats())

    def parts(self) -> tuple[PartFile, ...]:
        return tuple(part for group in self.groups for segment in group.parts for part in segment.files)


# ----------------------------------------------------------------------------------------------------------------- JSON
def swap_to_json(swap: PreparedSwap) -> str:
    groups = [
        {
            "sources": [asdict(source) for source in group.sources],
            "parts": [
                {"base_offset": segment.base_offset, "files": [asdict(part) for part in segment.files]}
                for segment in group.parts
            ],
            "stats": asdict(group.stats),
            "unreadable": [asdict(batch) for batch in group.unreadable],
        }
        for group in swap.groups
    ]
    return json.dumps(
        {
            "schema": _SCHEMA,
            "partition": str(swap.partition),
            "directory": swap.directory,
            "next_dirty_offset": swap.next_dirty_offset,
            "groups": groups,
        }
    )


def swap_from_json(content: str | bytes, *, path: str | None = None) -> PreparedSwap:
    """Parse the JSON of `swap_to_json`; check that the parts can be renamed only to segment files of their directory.

    The check does not prove that the content of the files is correct; `commit` compares names and sizes with the
    directory.
    """
    try:
        document = json.loads(content)
        _expect_keys(document, {"schema", "partition", "directory", "next_dirty_offset", "groups"})
        if document["schema"] != _SCHEMA:
            raise ValueError(f"schema {document['schema']!r} is not {_SCHEMA}")
        partition, state = parse_partition_directory(_text(document["partition"]))
        if state is not DirectoryState.LIVE:
            raise ValueError(f"{document['partition']!r} is not a live partition")
        return PreparedSwap(
            partition=partition,
            directory=_text(document["directory"]),
            groups=tuple(map(_group, _list(document["groups"]))),
            next_dirty_offset=_count(document["next_dirty_offset"]),
        )
    except (ValueError, RecursionError, SedimentError) as error:
        what = error.what if isinstance(error, SedimentError) else error
        raise CorruptDataError(
            f"this is not a prepared swap: {what}",
            path=path,
            advice="run `sediment compact --hand-off` again with the same version on both sides",
        ) from error


def _group(entry: Any) -> CleanedGroup:
    _expect_keys(entry, {"sources", "parts", "stats", "unreadable"})
    return CleanedGroup(
        sources=tuple(_row(SegmentRef, source) for source in _list(entry["sources"])),
        parts=tuple(map(_part_segment, _list(entry["parts"]))),
        stats=_row(CleanStats, entry["stats"]),
        unreadable=tuple(map(_unreadable, _list(entry["unreadable"]))),
    )


def _unreadable(entry: Any) -> UnreadableBatch:
    _expect_keys(entry, {field.name for field in fields(UnreadableBatch)})
    segment, position, size_bytes, offset = (
        _count(entry[name]) for name in ("segment", "position", "size_bytes", "offset")
    )
    return UnreadableBatch(segment, position, size_bytes, offset, _text(entry["what"]))


def _part_segment(entry: Any) -> PartSegment:
    _expect_keys(entry, {"base_offset", "files"})
    base_offset = _count(entry["base_offset"])
    return PartSegment(base_offset, tuple(_part_file(file, base_offset) for file in _list(entry["files"])))


def _part_file(entry: Any, base_offset: int) -> PartFile:
    _expect_keys(entry, {field.name for field in fields(PartFile)})
    part = PartFile(_text(entry["part_name"]), _text(entry["final_name"]), _count(entry["size_bytes"]))
    parsed = parse_segment_file(part.part_name)
    if (
        parsed is None
        or (parsed.state, parsed.base_offset) != (PART_SUFFIX, base_offset)
        or part.final_name != segment_file_name(base_offset, parsed.kind)
        or not part.part_name.startswith(part.final_name)
    ):
        raise ValueError(f"{part.part_name!r} cannot become {part.final_name!r}")
    return part


def _row(kind: type[_Row], entry: Any) -> _Row:
    _expect_keys(entry, {field.name for field in fields(kind)})
    optional = {field.name for field in fields(kind) if "None" in str(field.type)}
    values: dict[str, Any] = {
        key: None if value is None and key in optional else _count(value) for key, value in entry.items()
    }
    return kind(**values)


def _expect_keys(entry: Any, keys: set[str]) -> None:
    if not isinstance(entry, Mapping) or entry.keys() != keys:
        raise ValueError(f"expected an object with {', '.join(sorted(keys))}")


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise ValueError(f"{value!r} is not an offset, size or time")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list")
    return value
