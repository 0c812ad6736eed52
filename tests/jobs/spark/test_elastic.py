"""A pool keeps the slots of a cluster busy that come after the run has started, by Spark's own event log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sediment.jobs.spark.session import QUICK_JVM
from tests.jobs.spark.event_logs import of_kind, read_events
from tests.jobs.spark.event_logs import settings as event_log_settings
from tests.jobs.spark.test_clusters import standalone
from tests.waiting import LIMIT_SECONDS

ITEMS, ITEM_SECONDS = 64, 2.0
LATE_SECONDS, SETTLE_SECONDS = 10.0, 5.0

_RUN = """
import sys, time
from pyspark import SparkConf, SparkContext
from sediment.jobs.spark.job_names import titled
from sediment.jobs.spark.task_pool import run_on_executors

def rest(work, attempt):
    time.sleep(float(sys_argv[2]))
    return work

sys_argv = sys.argv[1:]
settings = dict(pair.split("=", 1) for pair in sys_argv[3:])
sc = SparkContext(conf=SparkConf().setMaster(sys_argv[0]).setAll(settings.items()))
print("started", flush=True)
title = titled("clean", lambda number: f"orders-{number}")
tasks = list(run_on_executors(sc, range(int(sys_argv[1])), rest, lambda _: 1 << 28, group="run", title=title))
answers = [answer for task in tasks for answer in task]
assert [answer.error for answer in answers if answer.error is not None] == []
assert sorted(answer.result for answer in answers) == list(range(int(sys_argv[1])))
sc.stop()
"""

_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}
_DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "4",
    "spark.executor.cores": "2",
}


@dataclass(frozen=True, slots=True)
class Span:
    """Something that an executor did, or a slot that it had, from one time to another, in ms."""

    executor: str
    start_ms: float
    end_ms: float

    def within(self, start_ms: float, end_ms: float) -> float:
        return max(0.0, min(self.end_ms, end_ms) - max(self.start_ms, start_ms))


def busy_share(events: Iterable[dict[str, Any]]) -> tuple[float, int]:
    """Return the busy share of the slots, and their number.

    A slot counts from some seconds after its executor was added, until nine tenths of the work are done.
    """
    added: dict[str, tuple[float, int]] = {}
    removed: dict[str, float] = {}
    tasks: list[Span] = []
    for event in events:
        kind = event["Event"]
        if kind == "SparkListenerExecutorAdded":
            added[event["Executor ID"]] = event["Timestamp"], event["Executor Info"]["Total Cores"]
        elif kind == "SparkListenerExecutorRemoved":
            removed[event["Executor ID"]] = event["Timestamp"]
        elif kind == "SparkListenerTaskEnd":
            info = event["Task Info"]
            tasks.append(Span(info["Executor ID"], info["Launch Time"], info["Finish Time"]))
    tasks.sort(key=lambda task: task.end_ms)
    left_ms = 0.9 * sum(task.end_ms - task.start_ms for task in tasks)
    until_ms = 0.0
    for task in tasks:
        left_ms -= task.end_ms - task.start_ms
        until_ms = task.end_ms
        if left_ms <= 0:
            break
    had_ms = busy_ms = 0.0
    for executor, (since_ms, cores) in added.items():
        start_ms = since_ms + 1000 * SETTLE_SECONDS
        end_ms = min(until_ms, removed.get(executor, until_ms))
        had_ms += cores * max(0.0, end_ms - start_ms)
        busy_ms += sum(task.within(start_ms, end_ms) for task in tasks if task.executor == executor)
    return busy_ms / had_ms, sum(cores for _, cores in added.values())


@pytest.mark.parametrize("more", [{}, _DYNAMIC], ids=["late executors", "dynamic allocation"])
def test_slots_that_come_later_are_busy_soon(tmp_path: Path, more: dict[str, str]) -> None:
    log = tmp_path / "events"
    log.mkdir()
    settings = _SETTINGS | more | event_log_settings(log)
    with standalone(tmp_path) as cluster:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", _RUN, cluster.url, str(ITEMS), str(ITEM_SECONDS)),
                *(f"{key}={value}" for key, value in settings.items()),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n", process.communicate()
            time.sleep(LATE_SECONDS)
            for host in ("127.0.0.1", "127.0.0.2"):
                cluster.add_worker(host, 4)
            _, stderr = process.communicate(timeout=2 * LIMIT_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 0, stderr
    events = read_events(log)
    share, slots = busy_share(events)
    assert slots == 8
    assert share >= 0.9
    jobs = of_kind(events, "JobStart")
    names = {event["Properties"]["spark.job.description"] for event in jobs}
    assert names == {event["Stage Infos"][-1]["Stage Name"] for event in jobs}
    assert all(name.startswith("clean orders-") or name == "wait for executors" for name in names)
