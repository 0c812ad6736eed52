"""The table for people: a terminal of 80 columns gets names, findings and headings; a pipe gets everything."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from sediment.jobs.dump import command
from tests.archives import unpack
from tests.segments import batch_bytes, write_segment
from tests.server.groups.coordinator_logs import CoordinatorLogBuilder, offset_key, offset_value

KRAFT = Path(__file__).parents[2] / "data" / "kraft"
LONG = "payments.eu-central-1.settlement.events.v3"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    with tarfile.open(KRAFT / "log-dir.tar.gz") as archive:
        unpack(archive, tmp_path / "data")
    return tmp_path / "data"


def shown(*arguments: object, columns: int | None = 80) -> str:
    environment = {"COLUMNS": None if columns is None else str(columns)}
    result = CliRunner(env=environment).invoke(command, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    assert columns is None or all(len(line) <= columns for line in result.stdout.splitlines() if ";" not in line)
    return result.stdout


def test_a_terminal_lists_the_stated_configs_by_topic_and_counts_the_others(log_dir: Path) -> None:
    text = shown(log_dir, "--what", "topics")
    rows = [line.split() for line in text.splitlines() if line.startswith(" ")]
    assert {row[-1] for row in rows} == {
        "source",
        "DYNAMIC_TOPIC_CONFIG",
        "DYNAMIC_BROKER_CONFIG",
        "DYNAMIC_DEFAULT_BROKER_CONFIG",
    }
    assert all(row[0] != row[-1] for row in rows)
    headings = [line.partition(":")[0] for line in text.splitlines() if ", topic id " in line]
    assert headings == sorted(headings) and len(headings) > 1
    last = text.splitlines()[-1]
    assert last.endswith(
        "configs not stated; --config reads the broker's own file; a pipe, or --json, lists every config"
    )
    assert "NOT_STATED" in shown(log_dir, "--what", "topics", columns=None)
    assert "NOT_STATED" in shown(log_dir, "--what", "topics", "--columns", "key,source")


def test_a_terminal_lists_committed_offsets_by_group(tmp_path: Path) -> None:
    write_segment(tmp_path / f"{LONG}-0", 0, [batch_bytes(0, "abc")])
    log = CoordinatorLogBuilder(tmp_path)
    for group in ("writers", "readers"):
        log.add(offset_key(group, topic=LONG), offset_value(1))
    log.write()
    heading, names, _, row = shown(tmp_path, "--what", "groups").splitlines()[:4]
    assert heading == "readers: classic, 0 members"
    assert names.split()[:2] == ["partition", "committedOffset"] and names.split()[-1] == "lag"
    assert row.split()[:2] == [f"{LONG}-0", "1"] and row.split()[-1] == "2"
    assert "\nwriters: classic, 0 members\n" in shown(tmp_path, "--what", "groups")


def test_a_terminal_never_drops_the_name_of_a_partition(tmp_path: Path) -> None:
    write_segment(tmp_path / f"{LONG}-12", 0, [batch_bytes(0, "abc")])
    for what in ("batches", "segments", "records"):
        assert f"{LONG}-12" in shown(tmp_path, "--what", what)
    assert f" {LONG}         12 " in shown(tmp_path, "--what", "batches", columns=None)


def test_a_terminal_lists_only_index_files_with_a_problem(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abc")])
    write_segment(tmp_path / "t-0", 3)
    assert shown(tmp_path, "--what", "indexes").startswith("4 files without a problem; a pipe, or --json, lists ")
    assert "00000000000000000000.index" in shown(tmp_path, "--what", "indexes", columns=None)
