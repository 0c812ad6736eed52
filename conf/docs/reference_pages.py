"""Reference pages that are generated from the code: options of the commands, columns of tables, names in Python."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

import sediment
from sediment.jobs import setup
from sediment.jobs.cli import COMMANDS, main
from sediment.jobs.command_line.examples import EXAMPLES
from sediment.segment_io.tables.schema import ON_REQUEST_COLUMNS, TABLES

OPTIONS = "reference/options.md"
COLUMNS = "reference/columns.md"
API = "reference/api.md"


def options_page() -> str:
    """Return a page with the usage, options and examples of each command."""
    text = [
        "# Options of each command",
        "",
        "This is the output of `sediment NAME --help` as a page. [Commands](commands.md) explains the options, the",
        "exit statuses and the JSON.",
        "",
    ]
    for name in (*sorted(COMMANDS.keys() - {"setup"}), *(f"setup {name}" for name in setup.COMMANDS)):
        text += [*_command(name), ""]
    return "\n".join(text)


def _command(name: str) -> Iterator[str]:
    command: click.Command | None = main
    for word in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    context = click.Context(command, info_name=f"sediment {name}")
    yield f"## {name}"
    yield ""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield _text(" ".join(paragraph.split()))
        yield ""
    yield f"```text\n{context.command.get_usage(context).removeprefix('Usage: ')}\n```"
    yield ""
    yield "| option | meaning |"
    yield "| --- | --- |"
    for parameter in command.get_params(context):
        row = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if row:
            option, text = (" ".join(cell.split()) for cell in row)
            yield f"| `{option}` | {_text(text)} |"
    for purpose, line in EXAMPLES.get(name.split()[-1], ()):
        yield f"\n{_text(purpose.capitalize())}:\n\n```sh\n{line}\n```"


def _text(text: str) -> str:
    """Return plain text as Markdown."""
    for mark in ("\\", "*", "_", "<", "[", "|"):
        text = text.replace(mark, f"&#{ord(mark)};")
    return text


def columns_page() -> str:
    """Return a page with the columns of each table of `kafka-log` and `dump`."""
    text = ["# Columns of each table", "", "[Tables](../query/tables.md#tables) says what a row of each table is.", ""]
    for name, columns in TABLES.items():
        text += [f"## {name}", "", "| column | type | meaning |", "| --- | --- | --- |"]
        text += [f"| `{column.name}` | {column.kind} | {_text(column.meaning)} |" for column in columns]
        text += [
            f"| `{column.name}` | {column.kind} | {_text(column.meaning)}; only on request |"
            for column in ON_REQUEST_COLUMNS.get(name, ())
        ]
        text.append("")
    return "\n".join(text)


def api_page() -> str:
    """Return a page for mkdocstrings with every public name of the package."""
    names = [name for name in sediment.__all__ if not name.startswith("_")]
    errors = [name for name in names if name.endswith("Error") or name in ("PartitionFailure", "RunStopped")]
    results = [name for name in names if name[0].isupper() and name not in (*errors, "LogDirectories")]
    functions = [name for name in names if name[0].islower() and name != "records"]
    text = [
        "# Python API",
        "",
        "Every public name, from its docstring. [Python](python.md) shows how to use them, and",
        "[options](options.md) has the meaning of each keyword.",
        "",
        "## Log directories",
        "",
        *_documented(["LogDirectories"]),
        "## Functions",
        "",
        *_documented(functions),
        "## Results",
        "",
        *_documented(results),
        "## Errors",
        "",
        *_documented(errors),
        "## Records",
        "",
        "Names of `sediment.records`; [Records](records.md) shows how to use them.",
        "",
        *_documented([f"records.{name}" for name in sediment.records.__all__]),
    ]
    return "\n".join(text)


def _documented(names: list[str]) -> Iterator[str]:
    for name in names:
        yield f"::: sediment.{name}"
        yield ""
