"""Checks of the names, types and sizes of segment files; if one fails, the load is refused (kafka-log 05 §2 pass 4).

The load refuses a log or index if its name is not an offset of 20 digits.  It also refuses a log above 2^31 - 1 bytes,
a special file and a dangling link.
"""

from __future__ import annotations

from pathlib import Path

from sediment.segment_io.errors import CorruptDataError
from sediment.segment_io.format.layout import INT64_MAX, MAX_SEGMENT_BYTES
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition, parse_segment_file, segment_file_name
from sediment.segment_io.fs import Fs

_INDEX_KINDS = (SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX, SegmentFileKind.TRANSACTION_INDEX)


def check_segment_files(partition: TopicPartition, path: Path, fs: Fs) -> None:
    """Refuse special files, oversized logs, and logs or indexes without an offset in their name, as a broker does.

    If a name does not have 20 digits, a broker ignores the file.  The broker looks for a file with 20 digits, and
    creates an empty segment if it finds none.  Sediment refuses the partition, so that no records are ignored.

    Raises:
        CorruptDataError: such a file exists.

    Source: kafka-log 05 §2 pass 4.
    """
    found = fs.scan(path)
    special = [entry.name for entry in found if not entry.is_file and not entry.is_directory]
    for name in (*special, *fs.broken_links(path)):
        parsed = parse_segment_file(name)
        if parsed is not None and parsed.kind is SegmentFileKind.LOG and not parsed.state:
            raise CorruptDataError(
                "a segment is not a regular file, or its link is dangling",
                partition=str(partition),
                path=str(path / name),
                advice="mount the target of the link, or move the entry away; a broker would start with a gap here",
            )
    entries = [entry for entry in found if entry.is_file]
    names = {entry.name for entry in entries}
    for entry in entries:
        kind = next((kind for kind in (SegmentFileKind.LOG, *_INDEX_KINDS) if entry.name.endswith(kind)), None)
        if kind is None:
            continue
        parsed = parse_segment_file(entry.name)
        if parsed is None and not _stands_for_another(entry.name, kind, names):
            raise CorruptDataError(
                "the name of a segment file is not an offset of 20 digits",
                partition=str(partition),
                path=str(path / entry.name),
                advice="a broker refuses to load this partition; move the file out of the directory",
            )
        if parsed is not None and kind is SegmentFileKind.LOG and entry.size_bytes > MAX_SEGMENT_BYTES:
            raise CorruptDataError(
                f"a segment of {entry.size_bytes} bytes is larger than any segment that a broker opens",
                partition=str(partition),
                path=str(path / entry.name),
                advice="restore the segment from a replica or a backup",
            )


def _stands_for_another(name: str, kind: SegmentFileKind, names: set[str]) -> bool:
    """Return True if `name` is an index, or if `names` contains a file with the same offset in 20 digits."""
    digits = name.removesuffix(kind)
    if not (digits.isascii() and digits.isdigit()) or int(digits) > INT64_MAX:
        return False
    return kind is not SegmentFileKind.LOG or segment_file_name(int(digits), kind) in names
