"""Shell completion: the script that `sediment completion SHELL` prints, and the candidates for arguments.

The shell starts `sediment` at each Tab, so this module imports only modules that load fast.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sediment.jobs.command_line.configured_command import ConfiguredCommand

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PROGRAM = "sediment"
VARIABLE = "_SEDIMENT_COMPLETE"
SHELLS = ("bash", "fish", "zsh")


def complete_partition(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the partitions that begin with `incomplete` in the directories on the command line, ordered by number."""
    from sediment.segment_io.format.names import by_number

    # While the value of an option is missing, click does not parse the arguments.
    directories = [*(context.params.get("log_dirs") or context.params.get("paths") or ()), *context.args]
    names = {name for directory in directories for name in _partitions(Path(str(directory)).expanduser())}
    return sorted((name for name in names if name.startswith(incomplete)), key=by_number)


def complete_path(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete files and directories as the shell itself does."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


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


@click.command("completion", cls=ConfiguredCommand)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that lets SHELL complete commands, options, directories and partitions."""
    from click.shell_completion import get_completion_class

    completing = get_completion_class(shell)
    assert completing is not None
    main: Any = context.find_root().command
    # Imported late, because a completion at a Tab does not need these modules.
    from sediment.jobs.command_line.exit_status import errors_as_exit_status
    from sediment.jobs.command_line.standard_output import write_result

    with errors_as_exit_status():
        write_result(completing(main, {}, PROGRAM, VARIABLE).source() + "\n")
