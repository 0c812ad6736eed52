"""The mark file of a directory that `--keep-before` fills.

A run links only the partitions that it changes. If a partition has no links, its fingerprint shows the reason: the
partition never changed, or its links are missing.

Several runs may use the same directory, for example if the first run was interrupted. Then the mark has the clock of
the first run, which `verify` needs.

Format: one JSON object with `log_dir`, `partitions`, `now_ms` and `is_reused`; `partitions` has a fingerprint for each
partition name. Earlier versions wrote only the path, or no `now_ms`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sediment.segment_io.errors import NotALogDirectoryError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import PART_SUFFIX
from sediment.segment_io.fs import Fs, without_links
from sediment.segment_io.partition.sources import find_sources


@dataclass(frozen=True, slots=True)
class BeforeMark:
    """`now_ms` is the clock of the first run, or None if an earlier version of Sediment wrote the mark."""

    log_dir: str
    partitions: Mapping[str, str] = field(default_factory=dict)
    now_ms: int | None = None
    is_reused: bool = False

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def make_mark(log_dir: Path, now_ms: int, fs: Fs) -> BeforeMark:
    try:
        sources = find_sources([log_dir], fs)
    except NotALogDirectoryError:
        sources = ()
    prints = {source.directory.name: fingerprint(source.directory, fs) for source in sources}
    return BeforeMark(str(without_links(log_dir)), prints, now_ms)


def read_mark(path: Path, fs: Fs) -> BeforeMark | None:
    if not fs.exists(path):
        return None
    text = fs.read_bytes(path, follow_links=False).decode(errors="surrogateescape")
    try:
        fields = json.loads(text)
        log_dir, partitions, now_ms = fields["log_dir"], fields["partitions"], fields.get("now_ms")
    except (ValueError, KeyError, TypeError, RecursionError):
        return BeforeMark(text)
    if not isinstance(log_dir, str) or not isinstance(partitions, dict):
        return BeforeMark(text)
    is_time = type(now_ms) is int and 0 <= now_ms <= INT64_MAX
    return BeforeMark(log_dir, partitions, now_ms if is_time else None, bool(fields.get("is_reused")))


def fingerprint(directory: Path, fs: Fs) -> str:
    """A replaced file has a new inode, even if its size and time are the same.

    Uncommitted `.part` files are ignored.
    """
    files = [
        (entry.name, entry.size_bytes, (directory / entry.name).stat().st_ino, entry.mtime_ns)
        for entry in fs.scan(directory)
        if not entry.is_directory and not entry.name.endswith(PART_SUFFIX)
    ]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()
