"""Shell completion of partition names.

The shell starts `sediment` after each Tab, so this module imports only modules that load fast.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click


def complete_partition(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the partitions in the given directories whose names begin with `incomplete`, ordered by number."""
    from sediment.segment_io.format.names import by_number

    # While the value of an option is missing, click does not parse the arguments.
    directories = [*(context.params.get("log_dirs") or context.params.get("paths") or ()), *context.args]
    names = {name for directory in directories for name in _partitions(Path(str(directory)).expanduser())}
    return sorted((name for name in names if name.startswith(incomplete)), key=by_number)


def _partitions(directory: Path) -> Iterator[str]:
    from sediment.segment_io.errors import UsageError
    from sediment.segment_io.format.names import DirectoryState, parse_partition_directory
    from sediment.segment_io.fs import Fs

    with contextlib.suppress(OSError):
        for entry in Fs().scan(directory):
            if entry.is_directory:
                with contextlib.suppress(UsageError):
                    if parse_partition_directory(entry.name)[1] is DirectoryState.LIVE:
                        yield entry.name
