"""The report of a real command, found in its output, and the summary and error text that a task gets from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sediment.airflow.arguments import command_arguments
from sediment.airflow.outcome import (
    BAD_STATUSES,
    MAX_FAILURES,
    UNSTATED_CODES,
    OutputReader,
    failure_text,
    lines,
    summary,
)
from sediment.jobs.cli import main
from sediment.jobs.reporting import run_report
from tests.jobs.log_dirs import make_log_dir
from tests.segments import NOW_MS, batch_bytes, write_segment


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    write_segment(tmp_path / "source", 0, [batch_bytes(0)])
    write_segment(tmp_path / "source", 1)
    return make_log_dir(tmp_path / "logs", {"old-0": tmp_path / "source", "unstated-0": tmp_path / "source"})


def read(*given: object, **options: object) -> tuple[OutputReader, list[str], int]:
    """Run a command with the arguments of its operator; return its output as spark-submit has it."""
    command, *log_dirs = given
    arguments = command_arguments(str(command), log_dirs, options)
    done = CliRunner().invoke(main, [*arguments, "--json", "--log-format=json"])
    reader = OutputReader()
    return reader, list(reader.other_lines(f"{done.stderr}{done.stdout}".splitlines(keepends=True))), done.exit_code


def expire(log_dir: Path, **options: object) -> OutputReader:
    settings = {"old:cleanup.policy": "delete", "old:retention.ms": 1}
    return read("expire", log_dir, settings=settings, now_ms=NOW_MS * 2, yes=True, **options)[0]


def test_the_statuses_and_codes_are_those_of_the_commands() -> None:
    assert BAD_STATUSES == run_report.BAD_STATUSES
    assert UNSTATED_CODES == run_report.UNSTATED_CODES


def test_a_summary_has_the_figures_and_the_paths_but_no_partitions(log_dir: Path) -> None:
    reader = expire(log_dir)
    assert reader.report is not None and json.loads(reader.report_text) == reader.report
    found = summary(reader.report, fail_on_unknown=False, outputs={"report": "/r.html", "metrics": None})
    old = next(each for each in reader.report["partitions"] if each["partition"] == "old-0")
    size = next(each for each in reader.report["partitions"] if each["partition"] == "unstated-0")["bytes_before"]
    assert found["partitions"] == {"expired": 1, "skipped": 1}
    assert (found["command"], found["dry_run"], found["report"]) == ("expire", False, "/r.html")
    assert found["unknown"] == {"policy-unknown": {"partitions": 1, "bytes": size}}
    assert found["bytes_before"] - found["bytes_after"] == old["bytes_before"] - old["bytes_after"] > 0
    assert found["segments_deleted"] == len(old["deleted_segments"]) > 0
    assert (found["failed"], found["failures"]) == (0, [])
    assert "metrics" not in found
    json.dumps(found)


def test_an_unstated_setting_fails_only_if_it_is_asked_to(log_dir: Path) -> None:
    reader = expire(log_dir, fail_on_unknown=True)
    assert reader.report is not None
    found = summary(reader.report, fail_on_unknown=True, outputs={})
    assert found["failed"] == 1
    text = failure_text(found, reader.errors, 1)
    assert text.startswith("1 of 2 partitions failed in expire: unstated-0 in ")
    assert "cleanup.policy" in text


def test_wrong_use_has_no_report_but_the_sentence_of_the_command(tmp_path: Path) -> None:
    reader, _, code = read("expire", tmp_path / "missing")
    assert (code, reader.report) == (2, None)
    assert str(tmp_path / "missing") in failure_text(None, reader.errors, code)


def test_other_lines_of_the_output_stay_in_the_log() -> None:
    reader = OutputReader()
    output = ["WARN plain text\n", "{broken\n", "[1]\n", '{"level": "ERROR", "message": "no space"}\n', "{}\n"]
    assert list(reader.other_lines(output)) == output
    assert (reader.report, reader.errors) == (None, ["no space"])
    assert failure_text(None, [], 137) == "the command ended with exit status 137; read its output above"


def test_a_summary_stays_small_if_every_partition_fails() -> None:
    partitions = [
        {"partition": f"t-{number}", "log_dir": "/a", "status": "failed", "reason_code": "x", "reason": "no space"}
        for number in range(5000)
    ]
    report = {"command": "compact", "run_id": "r", "now_ms": 1, "seconds": 2.0, "partitions": partitions}
    found = summary(report, fail_on_unknown=False, outputs={})
    assert (found["failed"], len(found["failures"])) == (5000, MAX_FAILURES)
    assert len(json.dumps(found)) < 5000
    assert failure_text(found, [], 1).endswith(f"and {5000 - MAX_FAILURES} more")


def test_the_log_of_a_task_has_the_partitions_with_a_result(log_dir: Path) -> None:
    reader = expire(log_dir)
    assert reader.report is not None
    first, last = lines(reader.report)
    assert first.startswith(f"old-0 in {log_dir} expired, ")
    assert last.endswith(": 1 expired, 1 skipped")
