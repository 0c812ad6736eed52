"""The command line that a page shows: it does the same as the one that was given, and has no secret."""

from __future__ import annotations

import importlib
import shlex
from typing import Any

import click
import pytest

from sediment.jobs.cli import COMMANDS
from sediment.jobs.clone import CloneArguments
from sediment.jobs.command_line.calls import option_values
from sediment.jobs.command_line.click_options import CommandOption
from sediment.jobs.command_line.options import _given_options
from sediment.jobs.command_line.shared_options import GivenOptions
from sediment.jobs.command_line.units import ByteSize, Seconds
from sediment.jobs.reporting.html_page import make_page

_WITHOUT_PAGE = ("demo", "doctor", "dump", "history", "originals", "serve", "setup", "vacuum")


def command_of(name: str) -> click.Command:
    module = importlib.import_module(COMMANDS[name][0])
    return next(each for each in vars(module).values() if isinstance(each, click.Command) and each.name == name)


def options_of(command: click.Command) -> list[CommandOption]:
    """Return the options whose values a page may show."""
    return [each for each in command.params if isinstance(each, CommandOption) and not each.declared.is_secret]


def words_of(option: click.Option) -> list[list[str]]:
    """Return the ways to give an option: each flag, or values at the edges of its type."""
    name = max(option.opts, key=len)
    if option.is_flag:
        return [[each] for each in (*option.opts, *option.secondary_opts)]
    match option.type:
        case click.Choice(choices=choices):
            values = list(map(str, choices))
        case click.IntRange(min=least):
            values = [str(least or 0), str((least or 0) + 1)]
        case ByteSize():
            values = ["1MiB", "1048577"]
        case Seconds():
            values = ["90", "5m"]
        case click.types.IntParamType():
            values = ["0", "-1"]
        case click.Path():
            values = ["a b", "-x", "it's"]
        case _:
            values = ["a b", "-x", "", "it's"]
    return [[f"{name}={value}"] for value in values]


def values_of(command: click.Command, words: list[str]) -> dict[str, object]:
    return command.make_context(command.name, list(words), resilient_parsing=True).params


def shown(command: click.Command, options: tuple[tuple[str, str], ...], *log_dirs: str) -> list[str]:
    document: dict[str, Any] = {"command": command.name, "now_ms": 0, "partitions": []}
    return shlex.split(make_page(document, options=options, log_dirs=log_dirs).command_line)


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - set(_WITHOUT_PAGE)))
def test_the_shown_command_line_means_what_the_given_one_meant(name: str) -> None:
    command = command_of(name)
    for words in (words for each in options_of(command) for words in words_of(each)):
        context = command.make_context(name, [*words], resilient_parsing=True)
        _, _, *again = shown(command, _given_options(context))
        assert values_of(command, again) == context.params, (words, again)


def test_a_flag_that_is_off_is_shown_as_off() -> None:
    command = command_of("clone")
    words = ["srv", "--to", "cl1", "--no-hold", "--link", "--report", "clone.html"]
    context = command.make_context("clone", [*words], resilient_parsing=True)
    _, _, *again = shown(command, _given_options(context), "srv")
    assert "--no-hold" in again and "--hold" not in again
    assert values_of(command, again) == context.params


def test_keywords_that_turn_a_flag_off_or_are_zero_are_shown() -> None:
    keywords: dict[str, Any] = {each.keyword: () if each.multiple else None for each in options_of(command_of("clone"))}
    keywords |= {each.keyword: False for each in options_of(command_of("clone")) if each.is_flag}
    keywords |= {"log_dirs": (), "to": "x", "node_id": 0, "now_ms": 0}
    _, given = option_values((GivenOptions, CloneArguments), keywords)
    assert sorted(given) == [("--no-hold", ""), ("--node-id", "0"), ("--now-ms", "0"), ("--to", "x")]


def test_credentials_in_a_uri_are_not_shown() -> None:
    secret = "s3://KEY:hu/sh@bucket/x?token=hush"
    command = command_of("compact")
    context = command.make_context("compact", [secret, f"--output={secret}", "--set=a.password=hush"])
    page = make_page(
        {"command": "compact", "now_ms": 0, "error": "no", "partitions": []},
        options=_given_options(context),
        log_dirs=(secret,),
    )
    assert "s3://bucket/x" in page.command_line and page.directories == (("", "s3://bucket/x"),)
    assert "KEY" not in str(page) and "hu/sh" not in str(page) and "hush" not in str(page)
