"""The ledger: each run is recorded once, even if it is repeated or interrupted, and errors never fail a run."""

from __future__ import annotations

import json
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from io import StringIO
from multiprocessing import get_context

import pytest
from deltalake import DeltaTable
from rich.console import Console

from sediment.jobs.delta_lake import ledger
from sediment.jobs.process import state_files
from sediment.jobs.reporting.run_report import COMPACTED, FAILED, CompactionRunReport, PartitionReport
from sediment.segment_io.errors import SedimentError, UsageError
from tests.jobs.log_dirs import make_log_dir, sediment, tree
from tests.segments import batch_bytes, write_segment

NOW_MS = 1_700_000_000_000


def report(run_id: str, *partitions: PartitionReport, dry_run: bool = False) -> str:
    return CompactionRunReport(
        run_id=run_id,
        command="compact",
        now_ms=NOW_MS,
        seconds=1.25,
        dry_run=dry_run,
        partitions=tuple(partitions),
    ).to_json()


def compacted(name: str, read: int = 10, written: int = 4) -> PartitionReport:
    return PartitionReport(
        name,
        "/logs",
        COMPACTED,
        None,
        None,
        strategy="whole",
        first_dirty_offset=0,
        next_dirty_offset=10,
        messages_read=read,
        messages_written=written,
        bytes_before=1000,
        bytes_after=400,
        segments_before=2,
        segments=(0, 7),
    )


def rows(path, name):
    return DeltaTable(f"{path}/{name}").to_pyarrow_table().to_pylist()


def test_a_run_is_a_row_of_runs_and_a_row_of_partitions_for_each(tmp_path):
    failed = PartitionReport("b-0", "/logs", FAILED, "corrupt-batch", "a batch fails its CRC")
    assert ledger.append(report("one", compacted("a-0"), compacted("a-1", 20, 5), failed), str(tmp_path))
    [run] = rows(tmp_path, "runs")
    assert (run["run_id"], run["command"], run["now_ms"], run["seconds"]) == ("one", "compact", NOW_MS, 1.25)
    assert run["log_dirs"] == ["/logs"]
    assert dict(run["statuses"]) == {"compacted": 2, "failed": 1}
    assert (run["messages_read"], run["messages_written"]) == (30, 9)
    assert (run["bytes_before"], run["bytes_after"]) == (2000, 800)
    partitions = {row["partition"]: row for row in rows(tmp_path, "partitions")}
    assert set(partitions) == {"a-0", "a-1", "b-0"}
    assert {row["run_id"] for row in partitions.values()} == {"one"}
    assert partitions["a-0"]["segments"] == [0, 7]
    assert partitions["b-0"]["reason"] == "a batch fails its CRC"
    assert partitions["b-0"]["first_dirty_offset"] is None


def test_a_run_appended_twice_is_there_once(tmp_path):
    given = report("one", compacted("a-0"))
    assert ledger.append(given, str(tmp_path))
    assert not ledger.append(given, str(tmp_path))
    assert ledger.append(report("two", compacted("a-0")), str(tmp_path))
    assert [row["run_id"] for row in rows(tmp_path, "runs")].count("one") == 1
    assert [row["run_id"] for row in rows(tmp_path, "partitions")].count("one") == 1


def test_a_run_interrupted_between_the_two_tables_is_completed(tmp_path, monkeypatch):
    given = report("one", compacted("a-0"))
    append_once = ledger._append_once

    def stop_before_runs(path, table, run_id):
        if path.endswith("/runs"):
            raise SedimentError("stopped")
        return append_once(path, table, run_id)

    monkeypatch.setattr(ledger, "_append_once", stop_before_runs)
    with pytest.raises(SedimentError):
        ledger.append(given, str(tmp_path))
    monkeypatch.undo()
    assert ledger.append(given, str(tmp_path))
    assert len(rows(tmp_path, "runs")) == len(rows(tmp_path, "partitions")) == 1


def append_run(path: str, run_id: str) -> bool:
    return ledger.append(report(run_id, compacted("a-0")), path)


def test_runs_that_end_at_the_same_time_are_all_there_and_each_once(tmp_path):
    run_ids = ["same", "same", "same", "other-1", "other-2", "same"] * 3
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        added = list(pool.map(append_run, [str(tmp_path)] * len(run_ids), run_ids))
    # Of two that bring the same run one may add its row of `runs` and the other its partitions.
    assert 3 <= sum(added) <= 6
    for table in ("runs", "partitions"):
        assert sorted(row["run_id"] for row in rows(tmp_path, table)) == ["other-1", "other-2", "same"]


def test_what_has_no_column_is_kept_as_json(tmp_path):
    document = json.loads(report("one", compacted("a-0")))
    document["clean_directories"] = ["/logs"]
    document["partitions"][0]["log_end_offset"] = 12
    ledger.append(json.dumps(document), str(tmp_path))
    assert json.loads(rows(tmp_path, "runs")[0]["other"])["clean_directories"] == ["/logs"]
    assert json.loads(rows(tmp_path, "partitions")[0]["other"])["log_end_offset"] == 12


def test_a_run_of_no_partition_is_a_run(tmp_path):
    ledger.append(report("empty", dry_run=True), str(tmp_path))
    [run] = rows(tmp_path, "runs")
    assert run["dry_run"]
    assert rows(tmp_path, "partitions") == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2, "run_id": "x", "partitions": []}', "null", "no json"])
def test_text_that_is_not_a_report_is_refused(tmp_path, text):
    with pytest.raises(UsageError, match="not the JSON report of a run"):
        ledger.append(text, str(tmp_path))
    assert not (tmp_path / "runs").exists()


# ------------------------------------------------------------------------------------------------ never in the way
def recorded(given, path):
    told = StringIO()
    held = ledger.record(given, str(path), Console(file=told, width=1000))
    return held, told.getvalue()


def test_an_unwritable_ledger_is_reported_and_the_run_can_be_replayed(tmp_path, monkeypatch):
    monkeypatch.setattr(state_files.platformdirs, "user_state_path", lambda name: tmp_path / "state")
    (tmp_path / "ledger").write_text("a file where the directory is to be")
    given = report("one", compacted("a-0"))
    held, told = recorded(given, tmp_path / "ledger")
    assert not held
    assert "the run is done but not in the ledger" in told
    saved = tmp_path / "state" / "unrecorded-runs" / "one.json"
    assert f"sediment history {tmp_path / 'ledger'} --replay {saved}" in told
    (tmp_path / "ledger").unlink()
    for _ in range(2):
        assert sediment("history", tmp_path / "ledger", "--replay", saved, "--json").status == 0
    assert [row["run_id"] for row in rows(tmp_path / "ledger", "runs")] == ["one"]


class Panic(BaseException):
    """Stand-in for a panic of the compiled writer, which derives from BaseException."""


@pytest.mark.parametrize("error", [Panic("poisoned"), RuntimeError("whatever"), MemoryError()])
def test_no_failure_of_the_ledger_fails_the_run(tmp_path, monkeypatch, error):
    monkeypatch.setattr(state_files.platformdirs, "user_state_path", lambda name: tmp_path / "state")

    def fail(*_arguments):
        raise error

    monkeypatch.setattr(ledger, "append", fail)
    held, told = recorded(report("one"), tmp_path)
    assert not held
    assert str(error) in told


def test_the_report_itself_is_printed_if_no_file_can_be_saved(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(state_files.platformdirs, "user_state_path", lambda name: tmp_path / "file")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "file"))
    given = report("one", compacted("a-0"))
    _, told = recorded(given, tmp_path / "file" / "ledger")
    assert given in told


@pytest.fixture
def log_dir(tmp_path):
    write_segment(tmp_path / "logs" / "a-0", 0, [batch_bytes(0, "aab")])
    write_segment(tmp_path / "logs" / "a-0", 3, [batch_bytes(3, "a")])
    return make_log_dir(tmp_path / "data", {"a-0": tmp_path / "logs" / "a-0"})


@pytest.mark.parametrize(
    "arguments", [("compact", "--set=a:cleanup.policy=compact"), ("recover",), ("expire",), ("plan",)]
)
def test_every_job_appends_its_run_and_the_ledger_holds_what_the_job_reported(arguments, log_dir, tmp_path):
    name, *own = arguments
    outcome = sediment(name, log_dir, *own, "--json", f"--now-ms={NOW_MS}", "--ledger", tmp_path / "ledger")
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    [run] = rows(tmp_path / "ledger", "runs")
    assert (run["run_id"], run["command"]) == (outcome.report["run_id"], name)
    [partition] = rows(tmp_path / "ledger", "partitions")
    [reported] = outcome.report["partitions"]
    other = json.loads(partition["other"] or "{}")
    held = {**partition, **other, "segments": other.get("segment_details", partition["segments"])}
    assert {key: held[key] for key in reported} == reported
    assert partition["segments"] == (None if name == "plan" else [0, 3])


def test_a_ledger_that_broke_while_the_job_ran_changes_nothing_of_the_job(log_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(state_files.platformdirs, "user_state_path", lambda name: tmp_path / "state")
    monkeypatch.setattr(ledger, "check", lambda path, log_dirs: None)
    (tmp_path / "ledger").write_text("a file where the directory is to be")
    outcome = sediment("recover", log_dir, "--json", "--quiet", "--ledger", tmp_path / "ledger")
    assert outcome.status == 0
    assert outcome.partitions()["a-0"]["status"] == "recovered"
    assert "the run is done but not in the ledger" in outcome.stderr
    [saved] = (tmp_path / "state" / "unrecorded-runs").iterdir()
    (tmp_path / "ledger").unlink()
    assert sediment("history", tmp_path / "ledger", "--replay", saved).status == 0
    assert [row["run_id"] for row in rows(tmp_path / "ledger", "runs")] == [outcome.report["run_id"]]


def test_an_impossible_ledger_path_is_reported_before_the_job_begins(log_dir):
    before = tree(log_dir)
    outcome = sediment("recover", log_dir, "--ledger", log_dir / "ledger")
    assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
    assert tree(log_dir) == before


# ---------------------------------------------------------------------------------------------------------- beforehand
def test_a_path_for_a_ledger_is_one_that_holds_nothing_else(tmp_path):
    log_dir = tmp_path / "logs"
    log_dir.mkdir()
    ledger.check(str(tmp_path / "new"), [log_dir])
    ledger.append(report("one"), str(tmp_path / "new"))
    ledger.check(str(tmp_path / "new"), [log_dir])
    with pytest.raises(UsageError, match="outside"):
        ledger.check(str(log_dir / "ledger"), [log_dir])
    with pytest.raises(UsageError, match="this path is one Delta table"):
        ledger.check(str(tmp_path / "new" / "runs"), [log_dir])
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="a ledger is a directory"):
        ledger.check(str(tmp_path / "file"), [log_dir])
    (tmp_path / "other" / "runs").mkdir(parents=True)
    (tmp_path / "other" / "runs" / "file").write_text("x")
    with pytest.raises(UsageError, match="not a Delta table"):
        ledger.check(str(tmp_path / "other"), [log_dir])
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "foreign" / "runs"), pa.table({"x": [1]}))
    with pytest.raises(UsageError, match="does not belong to a ledger"):
        ledger.check(str(tmp_path / "foreign"), [log_dir])


def test_without_its_package_a_ledger_is_refused_with_the_command_that_brings_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(UsageError, match="pip install delta-spark=="):
        ledger.check(str(tmp_path), [])
    with pytest.raises(UsageError, match="deltalake"):
        ledger.append(report("one"), str(tmp_path))
    held, told = recorded(report("one"), tmp_path)
    assert not held
    assert "pip install" in told


# -------------------------------------------------------------------------------------------------------------- readers
@pytest.mark.delta
def test_spark_reads_the_ledger(sc, tmp_path):
    from chispa import assert_df_equality

    from tests.jobs.snapshots import session_with_delta

    ledger.append(report("one", compacted("a-0"), compacted("a-1")), str(tmp_path))
    with session_with_delta() as spark:
        runs = spark.read.format("delta").load(str(tmp_path / "runs"))
        partitions = spark.read.format("delta").load(str(tmp_path / "partitions"))
        found = (
            partitions.alias("p")
            .join(runs.alias("r"), "run_id")
            .where("r.statuses['compacted'] = 2")
            .selectExpr("run_id", "p.partition", "p.segments", "p.bytes_after")
        )
        expected = spark.createDataFrame(
            [("one", "a-0", [0, 7], 400), ("one", "a-1", [0, 7], 400)],
            "run_id string, partition string, segments array<long>, bytes_after long",
        )
        assert_df_equality(found, expected, ignore_row_order=True, ignore_nullable=True)
