"""Shell completion of paths and partition names.

The shell starts `sediment` after each Tab, so this module imports only modules that load fast.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def complete_path(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def complete_partition(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    from sediment.segment_io.format.names import by_number

    # While the value of an option is missing, click does not parse the arguments.
    given = (context.params.get(name) for name in ("given_log_dirs", "log_dirs", "paths"))
    directories = [*next(filter(None, given), ()), *context.args]
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
