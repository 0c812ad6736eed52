"""What a history server shows of commands: the names of their jobs, and what their tasks read, kept and dropped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sediment.jobs.spark.session import QUICK_JVM
from sediment.jobs.spark.task_figures import NAMES
from tests.jobs.erasing.erased_logs import STATED, make_logs
from tests.jobs.expiring.expired_logs import DAY_MS, make_log
from tests.jobs.spark.event_logs import Event, of_kind, read_events
from tests.jobs.spark.event_logs import settings as event_log_settings
from tests.segments import NOW_MS
from tests.waiting import LIMIT_SECONDS

# Several commands with one Spark, because each start takes seconds.
_RUN = """
import json, sys
from sediment.jobs.spark.session import spark_context
from tests.jobs.log_dirs import sediment

with spark_context("local[1]", "tests"):
    for arguments in json.loads(sys.argv[1]):
        outcome = sediment(*arguments)
        assert outcome.status == 0, outcome
        print(json.dumps(outcome.report))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> tuple[list[Event], list[Any]]:
    """Return the event log, and the reports of the commands."""
    top = tmp_path_factory.mktemp("names")
    logs, expired = make_logs(top / "logs"), top / "expired"
    make_log(expired, times_ms=(NOW_MS - 30 * DAY_MS, NOW_MS))
    (top / "keys.txt").write_text("a\n")
    (top / "events").mkdir()
    conf = {"spark.driver.extraJavaOptions": QUICK_JVM} | event_log_settings(top / "events")
    (top / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in conf.items()))
    json_at = ("--json", "--quiet", f"--now-ms={NOW_MS}")
    commands = [
        ["clone", logs, "--to", top / "clone", *json_at],
        ["erase", logs, f"--keys-file={top / 'keys.txt'}", "--yes", *json_at, *STATED],
        ["expire", expired, "--archive", top / "archive", "--broker-defaults", *json_at],
    ]
    done = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(commands, default=str)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "SPARK_CONF_DIR": str(top), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return read_events(top / "events"), [json.loads(line) for line in done.stdout.splitlines()]


def figures_by_name(events: list[Event]) -> dict[str, Counter[str]]:
    """Return the figures of all stages by the first word of the stage's name."""
    figures: dict[str, Counter[str]] = {}
    for event in of_kind(events, "StageCompleted"):
        stage = event["Stage Info"]
        of_name = figures.setdefault(stage["Stage Name"].split()[0], Counter())
        for accumulator in stage["Accumulables"]:
            if accumulator["Name"] in NAMES:
                of_name[accumulator["Name"]] += int(accumulator["Value"])
    return figures


def test_the_tasks_of_clone_erase_and_archive_show_what_they_did(found) -> None:
    events, (cloned, _erased, expired) = found
    figures = figures_by_name(events)
    cloned_bytes = sum(partition["bytes"] for partition in cloned["partitions"])
    assert figures["clone"]["bytes read"] == cloned_bytes
    assert figures["clone"]["bytes written"] >= cloned_bytes
    rewritten = figures["rewrite"]
    assert rewritten["bytes read"] > rewritten["bytes written"] > 0
    assert rewritten["records read"] == rewritten["records kept"] + rewritten["records dropped"] == 10
    assert rewritten["records dropped"] == 2  # of the log that is not compacted
    (archived,) = expired["partitions"]
    assert figures["archive"]["records kept"] == archived["messages_archived"] == 5
    assert figures["archive"]["bytes written"] > 0


def test_every_job_is_named_by_its_command_and_its_run(found) -> None:
    events, reports = found
    jobs = [event["Properties"] for event in of_kind(events, "JobStart")]
    assert {job["spark.jobGroup.id"] for job in jobs} == {report["run_id"] for report in reports}
    assert all(job["spark.jobGroup.id"] in job["spark.job.tags"].split(",") for job in jobs)
    tags = {job["spark.job.description"]: set(job["spark.job.tags"].split(",")) for job in jobs}
    for description in ("clone people-0", "rewrite segments of people-0"):
        assert "people-0" in tags[description]
