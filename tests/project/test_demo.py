"""`sediment demo`: its directory is like that of a stopped broker, so the commands shown work on it as they stand."""

from __future__ import annotations

import shlex
import sys
import tarfile
from pathlib import Path

import click
import pytest

import sediment as sediment_api
from sediment.jobs import demo
from sediment.jobs.cli import main
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.properties import parse_properties
from sediment.segment_io.fs import Fs
from sediment.server.live.owned_node import open_node
from tests.archives import unpack
from tests.demo import CASES, CORPUS
from tests.jobs.log_dirs import sediment

COMMANDS = [line for _, line in (*demo.STEPS, *demo.NEXT) if line.startswith("sediment ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("demo")
    demo.prepare(made)
    return made


def test_every_partition_is_cleanable_by_the_configs_in_the_metadata_log(folder: Path) -> None:
    planned = sediment_api.LogDirectories(config=folder / demo.PROPERTIES).plan()
    assert len(planned.partitions) == len(CASES)
    assert {each.status for each in planned.partitions} == {"cleanable"}


@pytest.mark.parametrize("case", CASES)
def test_the_partitions_are_those_that_kafka_wrote(folder: Path, tmp_path: Path, case: str) -> None:
    with tarfile.open(CORPUS / f"{case}.tar.xz") as archive:
        unpack(archive, tmp_path)
    written = {path.name: path.read_bytes() for path in (tmp_path / case / "before").iterdir()}
    partition = folder / demo.LOG_DIR / f"{case.replace('-', '_')}-0"
    held = {path.name: path.read_bytes() for path in partition.iterdir()}
    assert held.keys() - written.keys() <= {"partition.metadata"}
    assert {name: held[name] for name in written} == written


def test_prepare_says_where_the_directory_is_and_runs_nothing(tmp_path: Path) -> None:
    done = sediment("demo", tmp_path / "a b", "--prepare")
    assert (done.status, done.stderr) == (0, "")
    assert f"\n$ cd '{tmp_path / 'a b'}'\n" in done.stdout
    assert {path.name for path in (tmp_path / "a b").iterdir()} == {demo.LOG_DIR, demo.PROPERTIES}


def test_a_shell_that_does_not_find_the_command_is_told_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert "PATH" not in demo.introduction(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert f"$ PATH={Path(sys.executable).parent}:$PATH\n" in demo.introduction(tmp_path)


def test_a_directory_that_exists_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / demo.LOG_DIR).mkdir()
    done = sediment("demo", tmp_path, "--prepare")
    assert (done.status, done.stdout) == (2, "")
    assert f"{tmp_path / demo.LOG_DIR} exists; remove it, or give another DIR" in done.stderr


def test_the_settings_name_the_directory_whatever_its_path_is() -> None:
    for path in ("/a b/kafka-logs", "/ä\\n/#x", "/=:!/kafka-logs"):
        assert parse_properties(demo.properties_of(Path(path)).encode("latin-1"))["log.dirs"] == path
    with pytest.raises(UsageError, match="has a comma"):
        demo.prepare(Path("/tmp/a,b"))


def test_the_server_that_is_shown_opens_the_directory(folder: Path) -> None:
    (line,) = [line for line in COMMANDS if line.startswith("sediment serve ")]
    assert shlex.split(line)[2:] == [demo.LOG_DIR, "--read-only"]
    with pytest.raises(UsageError, match="add --read-only"):
        open_node([folder / demo.LOG_DIR], None, Fs())


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_shown_parse(line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    command = main.get_command(click.Context(main), name)
    assert command is not None
    command.make_context(name, arguments)
