"""Groups of commands, each of which is a module that is loaded only when the command is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sediment.jobs.command_line.configured_command import nearest_name
from sediment.jobs.command_line.examples import epilog

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Commands = Mapping[str, tuple[str, str]]
"""The module and a sentence of each command."""


class CommandGroup(click.Group):
    def __init__(self, *given: Any, sections: Mapping[str, Commands], **more: Any) -> None:
        super().__init__(*given, **more)
        self._sections = sections
        self._commands = {name: each for commands in sections.values() for name, each in commands.items()}

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._commands and not name.startswith("-") and not context.resilient_parsing:
            nearest = nearest_name(name, {each: each for each in self._commands})
            context.fail(f"No such command {name!r}.{f' Did you mean {nearest!r}?' if nearest else ''}")
        return super().resolve_command(context, args)

    def list_commands(self, _context: click.Context) -> list[str]:
        return sorted(self._commands)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in self._commands:
            return None
        command: click.Command = importlib.import_module(self._commands[name][0]).command
        command.epilog = command.epilog or epilog(name)
        return command

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, context, incomplete)
        return [
            CompletionItem(name, help=text)
            for name, (_, text) in sorted(self._commands.items())
            if name.startswith(incomplete)
        ]

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])
