"""Shell completion: the script that `sediment setup completion SHELL` prints.

The shell starts `sediment` after each Tab, so this module imports only modules that load fast.
"""

from __future__ import annotations

from typing import Any

import click

from sediment.jobs.command_line.configured_command import ConfiguredCommand

PROGRAM = "sediment"
VARIABLE = "_SEDIMENT_COMPLETE"
SHELLS = ("bash", "fish", "zsh")


@click.command("completion", cls=ConfiguredCommand)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that lets the shell complete commands, options, directories and partitions."""
    from click.shell_completion import get_completion_class

    completing = get_completion_class(shell)
    assert completing is not None
    main: Any = context.find_root().command
    # Imported late, because a completion after a Tab does not need these modules.
    from sediment.jobs.command_line.exit_status import errors_as_exit_status
    from sediment.jobs.process.standard_output import write_result

    with errors_as_exit_status():
        write_result(completing(main, {}, PROGRAM, VARIABLE).source() + "\n")
