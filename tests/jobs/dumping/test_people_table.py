"""The table for people: a terminal of 80 columns gets names, findings and headings; a pipe gets everything."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.archives import unpack
from tests.jobs.log_dirs import sediment, sediment_on_terminal
from tests.segments import batch_bytes, write_segment
from tests.server.groups.coordinator_logs import CoordinatorLogBuilder, group_key, group_value, offset_key, offset_value

KRAFT = Path(__file__).parents[2] / "data" / "kraft"
LONG = "payments.eu-central-1.settlement.events.v3"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    with tarfile.open(KRAFT / "log-dir.tar.gz") as archive:
        unpack(archive, tmp_path / "data")
    return tmp_path / "data"


def shown(*arguments: object, columns: int | None = 80) -> str:
    """Return the text of `dump` on a terminal with `columns`, or in a pipe if they are None."""
    done = (
        sediment("dump", *arguments) if columns is None else sediment_on_terminal("dump", *arguments, columns=columns)
    )
    assert done.status == 0, done.stderr
    assert columns is None or all(len(line) <= columns for line in done.stdout.splitlines() if ";" not in line)
    return done.stdout


def test_a_variable_that_asks_for_colours_leaves_out_no_row_in_a_pipe(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = shown(log_dir, "--what", "topics", columns=None)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert shown(log_dir, "--what", "topics", columns=None) == pipe


def add_group(log: CoordinatorLogBuilder, group: str, *topics: str) -> None:
    for topic in topics:
        log.add(offset_key(group, topic=topic), offset_value(1))


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
    counted = "4 files without a problem not shown; use a pipe or --json to list "
    assert shown(tmp_path, "--what", "indexes").startswith(counted)
    assert "00000000000000000000.index" in shown(tmp_path, "--what", "indexes", columns=None)


def test_a_terminal_counts_many_empty_partitions_in_one_line_and_a_pipe_lists_them(tmp_path: Path) -> None:
    write_segment(tmp_path / "full-0", 0, [batch_bytes(0, "abc")])
    write_segment(tmp_path / "full-0", 3)
    for number in range(10):
        write_segment(tmp_path / f"empty-{number}", number)
    few = shown(tmp_path)
    assert few.count(" empty-") == 10 and "without records" not in few
    for number in range(10, 300):
        write_segment(tmp_path / f"empty-{number}", number)
    lines = shown(tmp_path).splitlines()
    assert [line.split()[:2] for line in lines[2:4]] == [["full-0", "0"], ["full-0", "3"]]
    assert lines[-1] == "300 partitions without records not shown; use a pipe or --json to list them"
    assert not any(line.startswith(" empty-") for line in lines)
    assert shown(tmp_path, "--limit", 12).splitlines()[-1] == lines[-1]
    assert shown(tmp_path, "--limit", 0, columns=None).count(" empty ") == 300
    assert shown(tmp_path, "--columns", "topic,partition,size", "--limit", 0).count(" empty ") == 300


def test_a_limit_counts_headings_and_the_counts_below_the_table_go_on(tmp_path: Path, log_dir: Path) -> None:
    log = CoordinatorLogBuilder(tmp_path)
    for number in range(5):
        add_group(log, f"g-{number}", LONG)
    log.write()
    text = shown(tmp_path, "--what", "groups", "--limit", 3)
    assert [line.partition(":")[0] for line in text.splitlines() if line.startswith("g-")] == ["g-0", "g-1"]
    assert text.count(f" {LONG}-0 ") == 1

    def not_stated(*arguments: object) -> str:
        return shown(log_dir, "--what", "topics", *arguments).splitlines()[-1]

    assert not_stated("--limit", 2) == not_stated("--limit", 0)


def test_groups_without_offsets_count_against_the_limit(tmp_path: Path) -> None:
    log = CoordinatorLogBuilder(tmp_path)
    for number in range(5):
        log.add(group_key(f"g-{number}"), group_value())
    log.write()
    done = sediment_on_terminal("dump", tmp_path, "--what", "groups", "--limit", 2)
    assert [line.partition(":")[0] for line in done.stdout.splitlines() if line] == ["g-0", "g-1"]
    assert "g-4" in sediment_on_terminal("dump", tmp_path, "--what", "groups", "--limit", 5).stdout


def test_sections_share_widths_and_one_line_names_the_missing_columns(tmp_path: Path) -> None:
    log = CoordinatorLogBuilder(tmp_path)
    add_group(log, "g-10", "short")
    add_group(log, "g-2", LONG)
    log.write()
    lines = shown(tmp_path, "--what", "groups", columns=70).splitlines()
    assert [line.partition(":")[0] for line in lines if line.startswith("g-")] == ["g-2", "g-10"]
    assert len({line for line in lines if line.startswith(" partition")}) == 1
    assert [number for number, line in enumerate(lines) if line.startswith("no room for ")] == [len(lines) - 1]


def test_a_file_outside_a_partition_directory_has_no_number(tmp_path: Path) -> None:
    log = write_segment(tmp_path / "loose", 0, [batch_bytes(0, "abc")])
    assert " loose " in shown(log, "--what", "records") and "--1" not in shown(log, "--what", "records")


def test_a_pipe_with_a_width_lists_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abc")])
    write_segment(tmp_path / "t-0", 3)
    monkeypatch.setenv("COLUMNS", "80")
    assert "00000000000000000000.index" in shown(tmp_path, "--what", "indexes", columns=None)


def test_a_terminal_says_that_a_table_has_no_rows_and_a_pipe_keeps_the_head(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abc")])
    assert shown(tmp_path / "t-0", "--what", "transactions") == "no transactions\n"
    assert shown(tmp_path / "t-0", "--what", "open_transactions") == "no open transactions\n"
    assert shown(tmp_path / "t-0", "--offsets", "5:", "--what", "records") == "no records\n"
    assert shown(tmp_path / "t-0", "--what", "transactions", columns=None).split()[:2] == ["topic", "partition"]
