"""Base class of both kinds of `compact` runs (in place, and to an output), and steps that other commands share.

Invariant: every selected partition has one report; the reports are ordered by log directory and name.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sediment.compaction.config import CompactionConfig
from sediment.engine.config_definitions import DOUBLE_MAX
from sediment.engine.directory.originals.kept_in import KeptIn
from sediment.jobs.cleaning.options import CleaningTask, CompactOptions
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.reporting.error_text import describe_lost_task
from sediment.jobs.reporting.run_report import CompactionRunReport, PartitionReport, in_order
from sediment.jobs.reporting.stage_timer import StageTimer
from sediment.jobs.reporting.statuses import STOPPED
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.spark.task_environment import RateLimit
from sediment.segment_io.errors import CorruptCheckpointError
from sediment.segment_io.format.names import CLEANER_FILE, LOCK_FILE, TopicPartition, new_run_id
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import update_offset_checkpoint, write_offset_checkpoint
from sediment.segment_io.partition.listing import LogListing


class CleaningRun(ABC):
    """Run of `compact` on the driver; its exit stack releases locks, tokens, scratch directories and Spark."""

    def __init__(self, options: CommonOptions, own: CompactOptions, stop: threading.Event, stack: ExitStack) -> None:
        self.run_id = new_run_id()
        self.timer = StageTimer()
        self._options = options
        self._own = own
        self._stop = stop
        self._stack = stack
        self._started = time.time()
        self.originals: KeptIn | None = None
        self.before: KeptIn | None = None
        self.catalogue: Path | None = None

    @abstractmethod
    def perform(self) -> list[PartitionReport]:
        """Return a report for every selected partition."""

    def concluded(self, reports: Sequence[PartitionReport]) -> list[PartitionReport]:
        """Return the final reports, after the run has released its resources."""
        return list(reports)

    def _task(self, directory: SelectedDirectory, listing: LogListing, config: CompactionConfig) -> CleaningTask:
        checkpoints = directory.checkpoints.of(listing.partition)
        return CleaningTask(listing, checkpoints, config, self._own, self._options.now_ms, self.run_id)

    def _rate_limit(self, sc: Any, directories: Iterable[SelectedDirectory]) -> RateLimit:
        """Return the limits of this run for one executor: its share of the lowest rate that `directories` allow."""
        seconds = self._own.max_seconds
        deadline_s = None if seconds is None else self._started + seconds
        return rate_limit(sc, self.run_id, directories, deadline_s=deadline_s)

    def _why_lost(self, error: Exception | None, state: str) -> tuple[str, str]:
        """Return the reason code and text for a task without a result; `state` is the same as in `why_lost`."""
        return why_lost(self._stop, error, state)


def why_lost(stop: threading.Event, error: Exception | None, state: str) -> tuple[str, str]:
    """Return the reason code and text for a task without a result; `state` is a participle, such as "cleaned"."""
    if stop.is_set():
        return STOPPED, f"the run was stopped before this partition was {state}"
    return describe_lost_task(error)


def rate_limit(
    sc: Any, run_id: str, directories: Iterable[SelectedDirectory], *, deadline_s: float | None = None
) -> RateLimit:
    """Return the limits of a run for one executor: its share of the lowest rate that `directories` allow."""
    rates = [directory.settings.broker_value("log.cleaner.io.max.bytes.per.second") for directory in directories]
    rate = min((rate for rate in rates if isinstance(rate, float)), default=DOUBLE_MAX)
    return RateLimit(
        bytes_per_second=rate / _executors(sc) if rate < DOUBLE_MAX else None,
        throttle_name=f"sediment-{run_id}.throttle",
        deadline_s=deadline_s,
    )


def update_cleaner_checkpoint(fs: Fs, log_dir: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Set `offsets` in the cleaner checkpoint; a malformed file counts as empty and is replaced, as in a broker."""
    path, like = log_dir / CLEANER_FILE, log_dir / LOCK_FILE
    try:
        update_offset_checkpoint(fs, path, offsets, like=like)
    except CorruptCheckpointError:
        write_offset_checkpoint(fs, path, offsets, like=like)


def perform_run(
    run_type: type[CleaningRun], options: CommonOptions, own: CompactOptions, stop: threading.Event
) -> CompactionRunReport:
    """Perform a run, release its resources, and return its report."""
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
        partitions=in_order(run.concluded(reports)),
        originals=None if run.originals is None else str(run.originals),
        catalogue=None if run.catalogue is None else str(run.catalogue),
        before=None if run.before is None else str(run.before),
        seconds_by_stage=run.timer.seconds(),
    )


def _executors(sc: Any) -> int:
    """Return the number of executors; a driver that runs tasks itself counts as one executor."""
    known = sc._jsc.sc().getExecutorMemoryStatus().size()
    return max(int(known) - 1, 1)
