"""Base of the runs of `compact` on the driver: in place, and to an output.

Invariant: every selected partition has one report, in the order of log directories and names.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from sediment.compaction.config import CompactionConfig
from sediment.engine.config_keys import DOUBLE_MAX
from sediment.jobs.cleaning.options import CleaningTask, CompactOptions, RateLimit
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.reporting.error_text import describe_lost_task
from sediment.jobs.reporting.run_report import CompactionRunReport, PartitionReport, in_order
from sediment.jobs.reporting.stage_timer import StageTimer
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.format.names import new_run_id
from sediment.segment_io.partition.listing import LogListing

STOPPED = "stopped"


class CleaningRun(ABC):
    """Run of `compact` on the driver; the stack closes locks, tokens, scratch directories and Spark."""

    def __init__(self, options: CommonOptions, own: CompactOptions, stop: threading.Event, stack: ExitStack) -> None:
        self.run_id = new_run_id()
        self.timer = StageTimer()
        self._options = options
        self._own = own
        self._stop = stop
        self._stack = stack
        self._started = time.time()

    @abstractmethod
    def perform(self) -> list[PartitionReport]:
        """Return a report for every selected partition."""

    def _task(self, directory: SelectedDirectory, listing: LogListing, config: CompactionConfig) -> CleaningTask:
        checkpoints = directory.checkpoints.of(listing.partition)
        return CleaningTask(listing, checkpoints, config, self._own, self._options.now_ms, self.run_id)

    def _rate_limit(self, sc: Any, directories: Iterable[SelectedDirectory]) -> RateLimit:
        """Return the limits of this run for one executor: its share of the lowest rate of `directories`."""
        rates = [directory.settings.broker_value("log.cleaner.io.max.bytes.per.second") for directory in directories]
        rate = min((rate for rate in rates if isinstance(rate, float)), default=DOUBLE_MAX)
        seconds = self._own.max_seconds
        return RateLimit(
            bytes_per_second=rate / _executors(sc) if rate < DOUBLE_MAX else None,
            throttle_name=f"sediment-{self.run_id}.throttle",
            deadline_s=None if seconds is None else self._started + seconds,
        )

    def _why_lost(self, error: Exception | None, state: str) -> tuple[str, str]:
        """Return the reason code and text for a task without result; `state` is the one that a stop prevented."""
        if self._stop.is_set():
            return STOPPED, f"the run was stopped before this partition was {state}"
        return describe_lost_task(error)


def perform_run(
    run_type: type[CleaningRun], options: CommonOptions, own: CompactOptions, stop: threading.Event
) -> CompactionRunReport:
    """Return the report of a run, once it has released everything that it held."""
    started = time.monotonic()
    with ExitStack() as stack:
        run = run_type(options, own, stop, stack)
        reports = run.perform()
    return CompactionRunReport(
        run_id=run.run_id,
        command="compact",
        now_ms=options.now_ms,
        seconds=time.monotonic() - started,
        dry_run=own.dry_run,
        partitions=in_order(reports),
        seconds_by_stage=run.timer.seconds(),
    )


def _executors(sc: Any) -> int:
    """Return the number of executors; a driver that runs tasks itself counts as one."""
    known = sc._jsc.sc().getExecutorMemoryStatus().size()
    return max(int(known) - 1, 1)
