"""The options that commands share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.corpus import load_case
from tests.jobs.log_dirs import make_log_dir, sediment
from tests.segments import batch_bytes, write_segment


def test_a_relative_log_directory_is_the_same_to_tasks_with_another_working_directory(tmp_path, monkeypatch):
    case = load_case("plain", tmp_path)
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": case.before})
    monkeypatch.chdir(tmp_path)
    outcome = sediment("compact", "logs", "--dry-run", "--json", "--set=plain:cleanup.policy=compact")
    assert outcome.partitions()["plain-0"]["log_dir"] == str(log_dir)


@pytest.mark.parametrize(
    "command", [("erase", "--keys-file=keys", "--output=out"), ("compact", "--output=out"), ("clone", "--to=out")]
)
@pytest.mark.parametrize("option", ["--ledger", "--report", "--metrics"])
def test_no_output_of_a_run_is_inside_a_log_directory_that_a_file_uri_names(tmp_path, monkeypatch, command, option):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").write_text("k")
    write_segment(tmp_path / "lögs" / "t-0", 0, [batch_bytes(0, "k")])
    outcome = sediment(*command, (tmp_path / "lögs").as_uri(), f"{option}=lögs/run")
    assert outcome.status == 2 and "log directory" in outcome.stderr
    assert [path.name for path in (tmp_path / "lögs").iterdir()] == ["t-0"]


@pytest.mark.parametrize("command", ["plan", "compact", "expire", "recover", "snapshot"])
@pytest.mark.parametrize("now_ms", [-1, 1 << 63, 10**30])
def test_a_clock_outside_of_64_bits_is_wrong_use(tmp_path, command, now_ms):
    more = ["--to=table"] if command == "snapshot" else []
    outcome = sediment(command, tmp_path, f"--now-ms={now_ms}", *more)
    assert outcome.status == 2 and "--now-ms" in outcome.stderr


@pytest.mark.parametrize(
    "command", [("compact",), ("expire",), ("recover",), ("snapshot", "--to=table")], ids=lambda command: command[0]
)
def test_a_run_that_ends_without_a_result_has_its_page_and_metrics(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    outcome = sediment(*command, tmp_path / "none", "--report=run.html", "--metrics=run.prom")
    assert outcome.status == 2
    assert "no such directory" in (tmp_path / "run.html").read_text()
    assert (tmp_path / "run.prom").is_file()


# ---------------------------------------------------------------------------------------------------------- unexpected
_FAULTY = """
import sys
from sediment.jobs import recover
def fail(*_, **__):
    raise {error}
recover.recover = fail
from sediment.jobs.cli import main
main()
"""


def faulty(error: str, log_dir: Path, *options: object, traceback: str = "") -> subprocess.CompletedProcess[str]:
    state = log_dir.parent / "state"
    return subprocess.run(
        [sys.executable, "-c", _FAULTY.format(error=error), "recover", log_dir, *map(str, options)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SEDIMENT_TRACEBACK": traceback, "XDG_STATE_HOME": str(state)},
    )


def test_a_fault_is_one_sentence_and_its_trace_is_kept(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {}, dirty={"t-0": 1})
    done = faulty("ZeroDivisionError('by nothing')", log_dir, f"--report={tmp_path}/run.html")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert done.stderr.startswith(
        "sediment: Sediment failed: ZeroDivisionError: by nothing; this is a bug in Sediment or Spark"
    )
    (trace,) = (tmp_path / "state").rglob("*.txt")
    assert str(trace) in done.stderr
    assert "in fail" in trace.read_text() and "ZeroDivisionError" in trace.read_text()
    assert "ZeroDivisionError" in (tmp_path / "run.html").read_text()


def test_developers_see_the_trace_of_a_fault(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {}, dirty={"t-0": 1})
    done = faulty("ZeroDivisionError", log_dir, traceback="1")
    assert done.returncode == 1
    assert "in fail" in done.stderr


def test_a_fault_is_one_line_of_json_with_its_trace(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {}, dirty={"t-0": 1})
    done = faulty("ZeroDivisionError", log_dir, "--log-format=json")
    (line,) = map(json.loads, done.stderr.splitlines())
    assert (done.returncode, line["level"], line["reason_code"]) == (1, "CRITICAL", "fault")
    assert "in fail" in line["exc_info"]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("MemoryError", "there is not enough memory; free some and run again"),
        (
            "OSError(24, 'Too many', 'x')",
            "too many open files (x); raise the limit, for example: ulimit -n 65536",
        ),
        (
            "OSError(28, 'No space left on device')",
            "the disk is full; free some space and run again (`sediment expire` needs none)",
        ),
        ("KeyboardInterrupt", "the run was stopped before it was done; run again"),
    ],
)
def test_what_the_machine_lacks_is_one_sentence_and_no_fault(tmp_path, error, sentence):
    log_dir = make_log_dir(tmp_path / "logs", {}, dirty={"t-0": 1})
    done = faulty(error, log_dir)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"sediment: {sentence}\n")


def test_json_lines_are_the_run_and_then_each_partition_of_the_one_object(tmp_path):
    log_dir = tmp_path / "logs"
    for number in range(3):
        write_segment(log_dir / f"t-{number}", 0, [batch_bytes(0, "k")])
    options = ("plan", log_dir, "--now-ms=1000", "--set=cleanup.policy=compact")
    whole, lines = sediment(*options, "--json"), sediment(*options, "--json-lines")
    run, *partitions = map(json.loads, lines.stdout.splitlines())
    expected = json.loads(whole.stdout)
    assert [each["partition"] for each in partitions] == ["t-0", "t-1", "t-2"]
    assert partitions == expected.pop("partitions")
    varies = ("run_id", "seconds", "seconds_by_stage")
    assert {name: value for name, value in run.items() if name not in varies} == {
        name: value for name, value in expected.items() if name not in varies
    }
    assert lines.status == whole.status
