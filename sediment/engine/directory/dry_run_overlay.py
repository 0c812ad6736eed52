"""A temporary directory of links, in which a dry run makes the changes of a real run.

Renaming, removing or replacing a link does not change its target. So a dry run executes the same code as a real run,
and needs no permission to write to the files.

A truncation does not change the file; the caller knows the new size and does not read past it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sediment.segment_io.fs import Fs, without_links


class OverlayFs(Fs):
    """The local filesystem for an overlay; if an operation would change the target of a link, it does nothing."""

    def truncate(self, path: Path, size_bytes: int) -> None: ...
    def has_other_names(self, path: Path) -> bool:
        """Return False: `truncate` changes nothing, and a copy would need space."""
        return False

    def sync_file(self, path: Path) -> None: ...
    def sync_directory(self, path: Path) -> None: ...
    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None: ...
    def adopt_owner(self, path: Path, like: Path) -> None: ...
    def set_mode(self, path: Path, mode: int) -> None: ...


@contextmanager
def overlay_of(directory: Path) -> Iterator[Path]:
    """Sub-directories of the overlay are empty, and dangling links are copied unchanged."""
    with tempfile.TemporaryDirectory(prefix="sediment-") as scratch:
        overlay = Path(scratch) / directory.name
        overlay.mkdir()
        for entry in Fs().scan(directory):
            if entry.is_directory:
                (overlay / entry.name).mkdir()
            else:
                (overlay / entry.name).symlink_to(without_links(directory / entry.name))
        for name in Fs().broken_links(directory):
            (overlay / name).symlink_to((directory / name).readlink())
        yield overlay
