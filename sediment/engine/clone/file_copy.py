"""Copying the files of one stopped partition into a new directory.

    closed segment's .log        linked or copied
    active segment, indexes      copied: a broker writes into these files
    .swap, .cleaned              copied, so that loading the copy finishes or undoes the replacement
    .deleted, .part              left behind

After an unclean stop, the indexes of the active segment may be preallocated.  They are left behind too: loading
rebuilds them.

Invariant: the source is not written, and its files are those that were listed, with the same sizes at the end.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from sediment.engine.clone.options import LinkMode
from sediment.engine.directory.output import file_chunks
from sediment.segment_io.errors import SourceChangedError
from sediment.segment_io.format.names import (
    DELETED_SUFFIX,
    LEADER_EPOCH_FILE,
    PART_SUFFIX,
    SegmentFileKind,
    parse_segment_file,
)
from sediment.segment_io.fs import FileEntry, Fs

_INDEXES = (SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX)
_LEFT_BEHIND = (DELETED_SUFFIX, PART_SUFFIX)


def copy_partition(
    source: Path, target: Path, fs: Fs, *, link: LinkMode, linkable_end: int, is_clean: bool
) -> dict[str, FileEntry]:
    """Copy the files of the partition in `source` into the empty directory `target`; return the entries copied.

    With hard links, only segments that end at or below the offset `linkable_end` are linked.  `is_clean` is True if
    the indexes of the active segment are as a clean stop leaves them.

    Raises:
        SourceChangedError: a file vanished or changed while it was copied.
        OSError: the disk failed.
    """
    entries = {entry.name: entry for entry in fs.scan(source) if entry.is_file and _is_copied(entry.name)}
    bases = sorted(
        parsed.base_offset
        for name in entries
        if (parsed := parse_segment_file(name)) and parsed.kind is SegmentFileKind.LOG and not parsed.state
    )
    following = dict(pairwise(bases))
    for name, entry in list(entries.items()):
        parsed = parse_segment_file(name)
        if parsed is not None and not parsed.state:
            is_active = bool(bases) and parsed.base_offset == bases[-1]
            if is_active and parsed.kind in _INDEXES and not is_clean:
                del entries[name]
                continue
            end = following.get(parsed.base_offset)
            if link is LinkMode.HARD and parsed.kind is SegmentFileKind.LOG and end is not None and end <= linkable_end:
                fs.link((source / name).resolve(), target / name)
                continue
        _copy(source / name, target / name, entry, fs)
    check_unchanged(source, entries, fs)
    return entries


def check_unchanged(source: Path, entries: dict[str, FileEntry], fs: Fs) -> None:
    """Check that the files in `source` are still as in `entries`.

    Raises:
        SourceChangedError: one of them is gone or has another size or modification time.
    """
    now = {entry.name: entry for entry in fs.scan(source)}
    for name, entry in entries.items():
        if now.get(name) != entry:
            raise SourceChangedError(
                "the file changed or vanished while the partition was cloned",
                path=str(source / name),
                advice="stop the broker, or clone a snapshot or a copy; a clone takes no lock on its source",
            )


def _is_copied(name: str) -> bool:
    parsed = parse_segment_file(name)
    return name == LEADER_EPOCH_FILE if parsed is None else parsed.state not in _LEFT_BEHIND


def _copy(source: Path, target: Path, entry: FileEntry, fs: Fs) -> None:
    try:
        fs.write_new(target, file_chunks(source, entry.size_bytes))
    except FileNotFoundError as error:
        raise SourceChangedError(
            "a file of the partition went away while it was copied",
            path=str(source),
            advice="stop the broker, or clone a snapshot or a copy",
        ) from error
    fs.set_mtime_ns(target, entry.mtime_ns)
