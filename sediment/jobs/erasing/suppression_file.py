"""The file of a suppression list (`compaction.rewrite.suppression`): read it with its secret, and add keys to it.

Invariants: keys are added but never removed.  One process at a time replaces the file, atomically.  Only the file's
owner can read the file.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sediment.compaction.rewrite.suppression import SuppressionList, format_suppression_list, parse_suppression_list
from sediment.jobs.command_line.declaration import File, option
from sediment.jobs.erasing.subjects import read_input, read_secret, write_private
from sediment.segment_io.errors import UsageError


@dataclass(frozen=True, slots=True)
class SuppressionOptions:
    """The options that give a suppression list; a command adds the effect of `--suppress`."""

    suppress: File | None
    secret_file: File | None = option(
        None, "With --suppress: read from this file the secret that `erase --suppress-out` used."
    )

    def value(self) -> SuppressionList | None:
        if (self.suppress is None) != (self.secret_file is None):
            raise UsageError("--suppress and --secret-file go together", advice="give both or neither")
        if self.suppress is None or self.secret_file is None:
            return None
        return read_suppression_list(self.suppress, self.secret_file)


def read_suppression_list(file: Path, secret_file: Path) -> SuppressionList:
    secret = read_secret(secret_file)
    return parse_suppression_list(read_input(file, "--suppress"), secret, path=str(file))


def check_suppression_file(file: Path, secret: bytes) -> None:
    _present(file, secret)


def add_to_suppression_list(file: Path, secret: bytes, topics: Iterable[str], keys: Iterable[bytes]) -> None:
    """Add `keys` to each of `topics` in `file`, durably; make the file if it is missing."""
    folder = os.open(file.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # another erasure may add to the same list
        suppressed = _present(file, secret).with_keys(topics, keys)
        write_private(file, [format_suppression_list(suppressed)])
    finally:
        os.close(folder)


def _present(file: Path, secret: bytes) -> SuppressionList:
    if not os.path.lexists(file):
        return SuppressionList(secret, {})
    if not file.is_file():  # a pipe would wait for a writer, and a dangling link may lead to a list that is not mounted
        raise UsageError(
            "--suppress-out is not a regular file", path=str(file), advice="name a file, or one that does not exist"
        )
    return parse_suppression_list(read_input(file, "--suppress-out"), secret, path=str(file))
