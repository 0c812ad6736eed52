"""A run on 200 executors, calculated from measured times and from the tasks that the work queue would make.

    a task      processor time per GB of log, per partition, and per task (`make bench NAME=cluster`, `scale`)
    the driver  time per partition for listing and commit, and per task for its Spark job

Tasks and driver work at the same time, so a run takes the longer of the two.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measure import GIGABYTE, MEGABYTE, RESULTS
from benchmarks.reporting.pages import fill_page, markdown_table
from sediment.jobs.spark.live_slots import LiveSlots
from sediment.jobs.spark.work_queue import SharedItems

PAGE = RESULTS / "scale.md"
MARK = "executors"
EXECUTORS = 200
ROUNDS = 2  # of a pool on a cluster

TASK_SECONDS_PER_GB, TASK_SECONDS_PER_PARTITION, SECONDS_PER_TASK = 1.1, 0.0021, 0.1
DRIVER_SECONDS_PER_PARTITION, DRIVER_SECONDS_PER_TASK = 0.0024, 0.009

HEAD = ("data", "tasks", f"tasks, on {EXECUTORS} cores", "driver", "the longer time", "executors that keep it busy")
DATA = (
    (100_000, 10 * MEGABYTE),
    (100_000, 100 * MEGABYTE),
    (10_000, GIGABYTE),
    (1_000, 10 * GIGABYTE),
    (100_000, 10 * GIGABYTE),
    (1_000_000, GIGABYTE),
)


@dataclass(frozen=True)
class Calculated:
    """Tasks of a run, seconds of processor time of all tasks together, and seconds of the driver."""

    partitions: int
    log_bytes: int
    tasks: int

    @property
    def of_tasks(self) -> float:
        return (
            self.partitions * (self.log_bytes / GIGABYTE * TASK_SECONDS_PER_GB + TASK_SECONDS_PER_PARTITION)
            + self.tasks * SECONDS_PER_TASK
        )

    @property
    def of_driver(self) -> float:
        return self.partitions * DRIVER_SECONDS_PER_PARTITION + self.tasks * DRIVER_SECONDS_PER_TASK

    def cells(self) -> Sequence[str]:
        total = self.partitions * self.log_bytes / GIGABYTE / 1000
        size = f"{self.log_bytes // MEGABYTE} MB" if self.log_bytes < GIGABYTE else f"{self.log_bytes // GIGABYTE} GB"
        seconds = (self.of_tasks / EXECUTORS, self.of_driver)
        return (
            f"{self.partitions:,} partitions of {size}, {f'{total:g} TB' if total < 1000 else f'{total / 1000:g} PB'}",
            f"{self.tasks:,}",
            *(f"{each:,.0f} s" for each in (*seconds, max(seconds))),
            f"{self.of_tasks / self.of_driver:,.0f}",
        )


def calculated(partitions: int, log_bytes: int) -> Calculated:
    """Return the run over equal partitions whose keys fit the memory of a task."""
    slots = LiveSlots(EXECUTORS, executors=EXECUTORS)
    items = SharedItems(range(partitions), lambda _: log_bytes, ROUNDS)
    tasks = 0
    while items:
        items.take(slots)
        tasks += 1
    return Calculated(partitions, log_bytes, tasks)


def table() -> str:
    """Return the table of the page on scale."""
    return markdown_table(HEAD, [calculated(*each).cells() for each in DATA])


if __name__ == "__main__":
    fill_page(PAGE, MARK, table())
