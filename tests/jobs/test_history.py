"""`sediment history`: the content of a ledger, for people and for programs."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pyarrow as pa
import pytest

from sediment.jobs.delta_lake import ledger, paths
from sediment.jobs.reporting.run_report import (
    COMPACTED,
    FAILED,
    CompactionRunReport,
    PartitionReport,
)
from sediment.jobs.snapshotting.report import REFRESHED, PartitionSnapshot, SnapshotReport
from tests.jobs.log_dirs import make_log_dir, sediment
from tests.segments import batch_bytes, write_segment

NOW_MS = 1_700_000_000_000


def report(run_id, now_ms, *partitions, command="compact", dry_run=False):
    return CompactionRunReport(
        run_id=run_id, command=command, now_ms=now_ms, seconds=2.5, dry_run=dry_run, partitions=partitions
    ).to_json()


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
    assert outcome.stdout.splitlines()[-1] == "3 runs in the ledger; 1 with failed partitions"
    few = sediment("history", path, "--last", 2).stdout.splitlines()[-1]
    assert few == "the last 2 runs of 3 in the ledger (--last N reads more); 1 with failed partitions"
    assert [run["run_id"] for run in sediment("history", path, "--last", 2, "--json").report["runs"]] == [
        "third",
        "second",
    ]


def test_a_run_is_shown_with_its_partitions(path):
    outcome = sediment("history", path, "--run", "third")
    assert "users-0" in outcome.stdout
    assert "failed: corrupt-batch" in outcome.stdout
    assert "orders-1" in outcome.stdout
    assert outcome.stdout.splitlines()[-1] == "2 compacted, 1 failed; 0 B (run third)"
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
    assert outcome.stdout.splitlines()[-1] == "1 failed; 0 B; in 1 run of 3 runs in the ledger"


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


def test_bad_input_is_reported_in_one_line(path, tmp_path):
    assert str(tmp_path / "none") in refused(tmp_path / "none")
    assert "run nope is not in the ledger" in refused(path, "--run", "nope")
    (tmp_path / "text").write_text("no report")
    assert str(tmp_path / "text") in refused(path, "--replay", tmp_path / "text")
    assert "No such file" in refused(path, "--replay", tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "not text" in refused(path, "--replay", tmp_path / "binary")
    (tmp_path / "array").write_text(json.dumps([1]))
    assert "not the JSON report of a run" in refused(path, "--replay", tmp_path / "array")


COMMANDS = ("plan", "compact", "compact --output", "verify", "expire", "recover", "snapshot")


@pytest.fixture(scope="module")
def of_every_command(tmp_path_factory, sc):
    """Write a ledger with a run of every command that writes there, by the commands themselves if they need no JARs."""
    top = tmp_path_factory.mktemp("runs")
    path = top / "ledger"
    for base in (0, 20):
        write_segment(top / "source", base, [batch_bytes(n, "ab"[n % 2]) for n in range(base, base + 20)])
    before, logs = (make_log_dir(top / name, {"t-0": top / "source"}) for name in ("before", "logs"))
    options = ("--set=t:cleanup.policy=compact", "--ledger", path, "--json")
    for name, *arguments in (
        ("plan", logs),
        ("compact", logs, "--force"),
        ("compact", before, "--force", "--output", top / "output"),
        ("verify", before, logs),
        ("expire", logs, "--dry-run"),
        ("recover", logs),
    ):
        assert sediment(name, *arguments, *options).status == 0
    one = PartitionSnapshot("t-0", str(logs), REFRESHED)
    made = SnapshotReport(
        run_id="of-snapshot",
        command="snapshot",
        now_ms=NOW_MS,
        seconds=1.0,
        to="/snapshot",
        version=1,
        rows_inserted=2,
        rows_updated=0,
        rows_deleted=0,
        partitions=(one,),
    )
    ledger.append(made.to_json(), str(path))
    return path


@pytest.mark.parametrize("arguments", [(), ("--partition", "t-0"), ("--partition", "t-*"), ("--partition", "x")])
def test_a_ledger_with_runs_of_every_command_is_shown(of_every_command, arguments):
    runs = sediment("history", of_every_command, "--json", *arguments).report["runs"]
    shown = sediment("history", of_every_command, *arguments)
    assert shown.status == 0
    if "x" in arguments:
        assert runs == []
        return
    assert sorted(run["command"] for run in runs) == sorted(command.split()[0] for command in COMMANDS)
    assert [[partition["partition"] for partition in run["partitions"]] for run in runs] == [["t-0"]] * len(runs)
    assert all(run["run_id"] in shown.stdout for run in runs)
    for run in runs:
        one = sediment("history", of_every_command, "--run", run["run_id"])
        assert one.status == 0 and "t-0" in one.stdout


def test_no_thread_of_arrow_holds_a_python_file_of_a_ledger_on_this_machine(path, monkeypatch):
    """Check it, because such a thread aborts the process when the interpreter ends."""

    def refuse(*_):
        raise AssertionError("a Python file goes to Arrow's threads")

    monkeypatch.setattr("deltalake.fs.DeltaStorageHandler.open_input_file", refuse)
    monkeypatch.chdir(path.parent)
    for place in (path, path.name, f"./{path.name}/", path.as_uri()):
        assert len(sediment("history", place, "--json").report["runs"]) == 3


def test_a_ledger_can_be_named_by_a_uri(path):
    assert len(sediment("history", path.as_uri(), "--json").report["runs"]) == 3


def test_a_ledger_at_a_uri_is_read_in_the_thread_of_the_command(path, monkeypatch):
    """A `file://` URI that is not taken for a local path stands for a URI of any scheme."""
    expected = sediment("history", path, "--json").report["runs"]
    threads = set()

    class Recorded:
        def __init__(self, file):
            self._file = file

        def __getattr__(self, name):
            threads.add(threading.get_ident())
            return getattr(self._file, name)

    def opened(handler, path):
        return pa.PythonFile(Recorded(handler._handler.open_input_file(path)), mode="r")

    monkeypatch.setattr(paths, "local_directory", lambda _: None)
    monkeypatch.setattr("deltalake.fs.DeltaStorageHandler.open_input_file", opened)
    assert sediment("history", path.as_uri(), "--json").report["runs"] == expected
    assert threads == {threading.get_ident()}


@pytest.mark.fuzz
def test_a_ledger_at_a_uri_never_aborts_the_command(path):
    """An Arrow thread that holds a Python file when the interpreter ends aborts about one command in ten."""
    command = [sys.executable, "-m", "sediment.jobs.history", path.as_uri(), "--json"]
    for _ in range(25):
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_rows_that_lack_what_commands_fill_in_are_shown(tmp_path):
    path = tmp_path / "ledger"
    bare = {"schema": 1, "command": "verify", "run_id": "bare", "now_ms": 2**62, "partitions": [{"status": "wrong"}]}
    ledger.append(json.dumps(bare), str(path))
    ledger.append(report("known", NOW_MS, PartitionReport("t-0", "/logs", COMPACTED, None, None)), str(path))
    odd = PartitionReport("[/x]:fire:-0", "/l\udcffgs", FAILED, "[red]", None)
    ledger.append(report("odd", NOW_MS, odd), str(path))
    for arguments in ((), ("--partition", "*"), ("--run", "bare"), ("--run", "odd"), ("--json",)):
        outcome = sediment("history", path, *arguments)
        assert outcome.status == 0
        assert outcome.stdout
    shown = sediment("history", path, "--run", "odd").stdout
    assert "[/x]:fire:-0" in shown and "[red]" in shown
    (run,) = (run for run in sediment("history", path, "--json").report["runs"] if run["run_id"] == "odd")
    assert run["partitions"][0]["log_dir"] == r"/l\udcffgs"


def test_a_report_without_a_time_is_refused(tmp_path):
    file = tmp_path / "report.json"
    file.write_text(report("only", NOW_MS).replace(str(NOW_MS), "null"))
    assert "not the JSON report of a run" in refused(tmp_path / "new", "--replay", file)
