"""The sources that paths name: the partitions of a log directory, one partition, or one segment.

Only names are read; no file is opened.  The path of a log directory selects all live partitions in it.  The metadata
log, and directories with the suffix `-delete`, `-stray` or `-future`, are read only if a path names them.

Invariant: a source is a partition directory that exists.  If `base_offset` is set, the source is only one segment of
this directory.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.errors import NotALogDirectoryError, UsageError
from sediment.segment_io.format.names import (
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    SegmentFileKind,
    TopicPartition,
    by_number,
    parse_partition_directory,
    parse_segment_file,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import LOG_DIRECTORY_FILES
from sediment.segment_io.partition.partition_directories import find_live_partitions
from sediment.segment_io.printable import encodable

UNNUMBERED = -1

_PARTITION_FILES = frozenset({LEADER_EPOCH_FILE, PARTITION_METADATA_FILE})
_WHAT_TO_NAME = "name a log directory, the directory of a partition in it, or a segment file"


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """A partition directory; with `base_offset`, only one of its segments, whose `.log` is `log_name`.

    If a directory is not named topic-N, its whole name becomes the topic, and the partition is UNNUMBERED.  `named` is
    the kind of file that the path names, or None for a directory.
    """

    partition: TopicPartition
    directory: Path
    base_offset: int | None = None
    log_name: str | None = None
    named: SegmentFileKind | None = None


def find_sources(paths: Sequence[str | Path], fs: Fs) -> tuple[Source, ...]:
    """Return the sources that `paths` name, without duplicates; sources of a path are in numeric order (`t-2`, `t-10`).

    Paths may be `file:` URIs and may be globs.
    """
    if not paths:
        raise UsageError("no path is given", advice=_WHAT_TO_NAME)
    found: dict[Source, None] = {}
    for path in _expanded(paths):
        for source in _sources(path, fs):
            found[source] = None
    return tuple(found)


def find_log_dirs(paths: Sequence[str | Path], fs: Fs) -> tuple[Path, ...]:
    found: dict[Path, None] = {}
    for path in _expanded(paths):
        sources = _sources(path, fs)
        log_dirs = [source.directory.parent for source in sources] or [Path(os.path.abspath(path))]  # noqa: PTH100
        found.update(dict.fromkeys(log_dirs))
    return tuple(found)


def _expanded(paths: Sequence[str | Path]) -> Iterable[Path]:
    for given in paths:
        text = _local(str(given))
        if Path(text).exists() or not glob.has_magic(text):
            yield Path(text)
            continue
        matches = sorted(glob.glob(text), key=by_number)  # noqa: PTH207 - Path.glob takes no absolute pattern
        if not matches:
            raise UsageError("no path matches the pattern", path=text, advice=_WHAT_TO_NAME)
        # A broad pattern also matches the checkpoint files of a log directory; these files are an error only if nothing
        # else matches.
        likely = [match for match in matches if Path(match).is_dir() or parse_segment_file(Path(match).name)]
        yield from map(Path, likely or matches)


def _local(path: str) -> str:
    scheme, separator, rest = path.partition(":")
    if not separator or "/" in scheme or (len(scheme) < 2):
        return path
    if scheme != "file":
        raise UsageError(f"{scheme}: paths cannot be read", path=path, advice="copy the directory to a local disk")
    return "/" + rest.lstrip("/")


def _sources(path: Path, fs: Fs) -> Sequence[Source]:
    if not fs.exists(path):
        raise NotALogDirectoryError("no such file or directory", path=str(path), advice=_WHAT_TO_NAME)
    path = Path(os.path.abspath(path))  # noqa: PTH100 - links are kept, because only the link may have the partition's name
    if not fs.is_directory(path):
        return [_segment(path)]
    entries = fs.scan(path)
    names = {entry.name for entry in entries}
    if any(entry.is_file and parse_segment_file(entry.name) for entry in entries):
        return [Source(partition_of(path), path)]
    partitions = find_live_partitions(path, (entry.name for entry in entries if entry.is_directory))
    if partitions:
        in_order = sorted(partitions, key=lambda partition: by_number(str(partition)))
        return [Source(partition, path / str(partition)) for partition in in_order]
    if names & _PARTITION_FILES:
        return [Source(partition_of(path), path)]
    if names & LOG_DIRECTORY_FILES:
        return []
    raise NotALogDirectoryError(
        "the directory is empty" if not entries else "the directory contains neither segments nor partitions of a log",
        path=str(path),
        advice=_WHAT_TO_NAME,
    )


def _segment(path: Path) -> Source:
    parsed = parse_segment_file(path.name)
    if parsed is None:
        raise NotALogDirectoryError("the file name is not that of a segment file", path=str(path), advice=_WHAT_TO_NAME)
    log_name = path.name if parsed.kind is SegmentFileKind.LOG else None
    return Source(partition_of(path.parent), path.parent, parsed.base_offset, log_name, parsed.kind)


def partition_of(directory: Path) -> TopicPartition:
    """Bytes that are not UTF-8 are escaped, because a table cannot contain them."""
    try:
        return parse_partition_directory(directory.name)[0]
    except UsageError:
        return TopicPartition(encodable(directory.name), UNNUMBERED)
