"""`sediment history`: what a ledger holds, for people and for programs."""

from __future__ import annotations

import json

import pytest

from sediment.jobs import ledger
from sediment.jobs.report import COMPACTED, FAILED, PartitionReport, RunReport, report_json
from tests.jobs.log_dirs import sediment

NOW_MS = 1_700_000_000_000


def report(run_id, now_ms, *partitions, command="compact", dry_run=False):
    return report_json(RunReport(run_id, command, now_ms, 2.5, dry_run, partitions))


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger"
    good = [PartitionReport(f"orders-{n}", "/logs", COMPACTED, None, None, messages_read=9) for n in (0, 1)]
    bad = PartitionReport("users-0", "/logs", FAILED, "corrupt-batch", "a batch fails its CRC")
    ledger.append(report("first", NOW_MS, *good), str(path))
    ledger.append(report("third", NOW_MS + 120_000, *good, bad), str(path))
    ledger.append(report("second", NOW_MS + 60_000, good[0], dry_run=True), str(path))
    return path


def test_runs_are_shown_newest_first(path):
    outcome = sediment("history", path)
    assert outcome.status == 0
    lines = [line for line in outcome.stdout.splitlines() if "compact" in line]
    assert [line.split()[2] for line in lines] == ["third", "second", "first"]
    assert "2 compacted, 1 failed" in outcome.stdout
    assert "2023-11-14 22:13:20" in lines[2]
    assert "(dry)" in lines[1]
    assert [run["run_id"] for run in sediment("history", path, "--last", 2, "--json").report["runs"]] == [
        "third",
        "second",
    ]


def test_a_run_is_shown_with_its_partitions(path):
    outcome = sediment("history", path, "--run", "third")
    assert "users-0" in outcome.stdout
    assert "failed: corrupt-batch" in outcome.stdout
    assert "orders-1" in outcome.stdout
    [run] = sediment("history", path, "--run", "third", "--json").report["runs"]
    assert [partition["partition"] for partition in run["partitions"]] == ["orders-0", "orders-1", "users-0"]
    assert run["partitions"][2]["reason"] == "a batch fails its CRC"
    assert run["statuses"] == {"compacted": 2, "failed": 1}


def test_a_partition_is_shown_through_the_runs_that_had_it(path):
    runs = sediment("history", path, "--partition", "orders-1", "--json").report["runs"]
    assert [run["run_id"] for run in runs] == ["third", "first"]
    assert [[partition["partition"] for partition in run["partitions"]] for run in runs] == [["orders-1"]] * 2
    outcome = sediment("history", path, "--partition", "users-*")
    assert "third" in outcome.stdout
    assert "first" not in outcome.stdout


def test_a_report_is_replayed_from_a_file_once(path, tmp_path):
    file = tmp_path / "report.json"
    file.write_text(report("fourth", NOW_MS + 180_000))
    assert "added" in sediment("history", path, "--replay", file).stderr
    again = sediment("history", path, "--replay", file)
    assert "already" in again.stderr
    assert [run["run_id"] for run in sediment("history", path, "--json").report["runs"]].count("fourth") == 1


def test_a_replay_makes_the_ledger_where_there_is_none(tmp_path):
    file = tmp_path / "report.json"
    file.write_text(report("only", NOW_MS))
    outcome = sediment("history", tmp_path / "new", "--replay", file, "--json")
    assert [run["run_id"] for run in outcome.report["runs"]] == ["only"]


def refused(*arguments):
    outcome = sediment("history", *arguments)
    assert outcome.status == 2
    [line] = outcome.stderr.splitlines()
    assert line.startswith("sediment: ")
    return line


def test_bad_input_is_told_in_one_sentence(path, tmp_path):
    assert str(tmp_path / "none") in refused(tmp_path / "none")
    assert "holds no run nope" in refused(path, "--run", "nope")
    (tmp_path / "text").write_text("no report")
    assert str(tmp_path / "text") in refused(path, "--replay", tmp_path / "text")
    assert "No such file" in refused(path, "--replay", tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "not text" in refused(path, "--replay", tmp_path / "binary")
    (tmp_path / "array").write_text(json.dumps([1]))
    assert "not the JSON report of a run" in refused(path, "--replay", tmp_path / "array")
