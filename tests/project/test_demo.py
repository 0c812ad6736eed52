"""The demo's directory: like that of a stopped broker, so that the commands shown work on it without more options."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import sediment
from sediment.jobs.cli import main
from sediment.segment_io.errors import UsageError
from sediment.segment_io.fs import Fs
from sediment.server.live.owned_node import open_node
from tests import demo

COMMANDS = [line for _, line in (*demo.STEPS, *demo.NEXT) if line.startswith("sediment ")]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    demo.prepare(folder)
    return folder


def test_every_partition_is_cleanable_by_the_configs_in_the_metadata_log(scratch: Path) -> None:
    planned = sediment.LogDirectories(config=scratch / demo.PROPERTIES).plan()
    assert len(planned.partitions) == len(demo.CASES)
    assert {each.status for each in planned.partitions} == {"cleanable"}


def test_a_prepared_directory_is_never_replaced(scratch: Path) -> None:
    arguments = [sys.executable, "-m", "tests.demo", "--prepare", "--scratch", scratch]
    run = subprocess.run(arguments, check=False, capture_output=True, text=True)
    assert run.returncode == 2
    assert "kafka-logs exists; remove it" in run.stderr


def test_the_server_that_is_shown_opens_the_directory(scratch: Path) -> None:
    (line,) = [line for line in COMMANDS if line.startswith("sediment serve ")]
    assert shlex.split(line)[2:] == [demo.LOG_DIR, "--read-only"]
    with pytest.raises(UsageError, match="add --read-only"):
        open_node([scratch / demo.LOG_DIR], None, Fs())


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_shown_parse(line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    command = main.get_command(click.Context(main), name)
    assert command is not None
    command.make_context(name, arguments)
