"""Files that options name for reading."""

from __future__ import annotations

from pathlib import Path

from sediment.jobs.process.cancellation import interruptible
from sediment.segment_io import input_files
from sediment.segment_io.errors import UsageError

MOST_LIST_BYTES = 1 << 30
"""Largest size of a list that grows with the data: keys, suppressed keys, evidence, reports."""

MOST_TEXT_BYTES = 1 << 20
"""Largest size of what a person writes: a key in PEM, a secret, a condition, a settings file."""


def read_input_file(
    path: Path, most_bytes: int, what: str, *, advice: str | None = None, error_type: type[UsageError] = UsageError
) -> bytes:
    """Return the content as `segment_io.input_files` does; a signal ends the wait for the writer of a pipe.

    Raises:
        UsageError: as `error_type`: the file cannot be read, is neither a file nor a pipe, or has more than
            `most_bytes`.
    """
    with interruptible():
        return input_files.read_input_file(path, most_bytes, what, advice=advice, error_type=error_type)
