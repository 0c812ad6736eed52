"""A directory of links, in which a dry run does for real what it would do to the files.

Renaming, removing and replacing a link leave the file behind it alone, so that a dry run takes the same path through
the same code as a real one and needs no right to write to the files.

Invariant: nothing outside the shadow changes.  A cut is not carried out: whoever cuts knows the size, and reads no
further.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sediment.segment_io.fs import Fs


class OverlayFs(Fs):
    """The local filesystem for work in a shadow: what would reach through a link is left out."""

    def truncate(self, path: Path, size_bytes: int) -> None:
        """Leave the file behind the link as it is."""

    def sync_file(self, path: Path) -> None:
        """Nothing here has to last."""

    def sync_directory(self, path: Path) -> None:
        """Nothing here has to last."""

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None:
        """Leave the file behind the link as it is."""

    def adopt_owner(self, path: Path, like: Path) -> None:
        """Files of a shadow belong to whoever made it."""


@contextmanager
def overlay_of(directory: Path) -> Iterator[Path]:
    """A temporary directory of the same name with a link to each file of `directory`; it goes when the block ends.

    Directories are there without what they hold, and links that lead nowhere as they are.
    """
    with tempfile.TemporaryDirectory(prefix="sediment-") as scratch:
        shadow = Path(scratch) / directory.name
        shadow.mkdir()
        for entry in Fs().scan(directory):
            if entry.is_directory:
                (shadow / entry.name).mkdir()
            else:
                (shadow / entry.name).symlink_to((directory / entry.name).resolve())
        for name in Fs().broken_links(directory):
            (shadow / name).symlink_to((directory / name).readlink())
        yield shadow
