"""Files in a directory of originals, which may have been changed by hand: no link is followed, only files are opened.

A link in a directory of originals leads out of it: its target would be put into a log, or become part of a report.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sediment.engine.directory.originals.catalogue import OriginalFile, described
from sediment.segment_io.format.layout import (
    BASE_OFFSET,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    INT32_MAX,
    LEGACY_MIN_LENGTH,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_PREFIX_BYTES,
    MAGIC_V2,
)
from sediment.segment_io.format.names import parse_segment_file
from sediment.segment_io.fs import only_zeros, open_to_read


def regular_file(path: Path) -> os.stat_result | None:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def kept_files(folder: Path) -> dict[str, OriginalFile]:
    found = {}
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    for name in names:
        parsed = parse_segment_file(name)
        status = regular_file(folder / name)
        if parsed is not None and not parsed.state and status is not None:
            found[name] = described(name, status)
    return found


def foreign_entry(target: Path, run_id: str, partition: str, names: tuple[str, ...]) -> Path | None:
    folder = target / run_id
    for directory in (folder, folder / partition):
        if os.path.lexists(directory) and not stat.S_ISDIR(directory.lstat().st_mode):
            return directory
    paths = (folder / partition / name for name in names)
    return next((path for path in paths if os.path.lexists(path) and regular_file(path) is None), None)


def begins_with_batch(path: Path, base_offset: int) -> bool:
    descriptor = open_to_read(path, follow_links=False)
    try:
        size_bytes = os.fstat(descriptor).st_size
        header = os.pread(descriptor, BATCH_HEADER_BYTES, 0)
        if len(header) < MAGIC_PREFIX_BYTES or not any(header):
            return only_zeros(descriptor, 0, size_bytes)
    finally:
        os.close(descriptor)
    offset = int.from_bytes(header[BASE_OFFSET : BASE_OFFSET + 8], "big", signed=True)
    length = int.from_bytes(header[BATCH_LENGTH : BATCH_LENGTH + 4], "big", signed=True)
    least = LEGACY_MIN_LENGTH if header[MAGIC] < MAGIC_V2 else BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES
    return (
        header[MAGIC] <= MAGIC_V2
        and base_offset <= offset <= base_offset + INT32_MAX
        and least <= length <= size_bytes - LOG_OVERHEAD_BYTES
    )
