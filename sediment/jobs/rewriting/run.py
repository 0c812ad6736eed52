"""What the steps of a run share: its id, options, clock, Spark and reports; and the opening of a run in place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from sediment.engine.config_definitions import DOUBLE_MAX
from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.originals.backup_links import backup_directory, originals_directory
from sediment.engine.directory.originals.kept_in import KeptIn
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.delta_lake.paths import outside_log_dirs
from sediment.jobs.process.cancellation import cancel_when
from sediment.jobs.process.stderr_log import log_partition
from sediment.jobs.reporting.error_text import describe_lost_task
from sediment.jobs.reporting.run_report import PartitionOutcome, in_order
from sediment.jobs.reporting.stage_timer import StageTimer
from sediment.jobs.reporting.statuses import STOPPED
from sediment.jobs.settings.directories import SelectedDirectory, check_filesystem
from sediment.jobs.spark.session import encrypting_files, encrypts_files, spark_context
from sediment.jobs.spark.task_environment import RateLimit
from sediment.jobs.spark.task_pool import LEAST_ROUNDS, TaskResult, run_on_executors
from sediment.segment_io.format.names import new_run_id
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing


class Work(Protocol):
    @property
    def listing(self) -> LogListing: ...
    @property
    def may_change(self) -> bool: ...


Report = TypeVar("Report", bound=PartitionOutcome)
Read = TypeVar("Read")
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
PlaceOf = Callable[[Path], Path]


class Run(Generic[Report]):
    """What the steps of a run share; the stack releases its locks, tokens and Spark.

    `rows` are the reports so far, each logged when it is added; with `logs_at_end`, a report may change until the end,
    and is logged then.
    """

    def __init__(
        self,
        command: str,
        options: CommonOptions,
        stop: threading.Event | None,
        *,
        dry_run: bool = False,
        has_secrets: bool = False,
        logs_at_end: bool = False,
        fs: Fs | None = None,
    ) -> None:
        self.command = command
        self.options = options
        self.stop = stop or threading.Event()
        self.dry_run = dry_run
        self.has_secrets = has_secrets
        self.logs_at_end = logs_at_end
        self.run_id = new_run_id()
        self.timer = StageTimer()
        self.stack = ExitStack()
        self.fs = fs or Fs()
        self.rows: list[Report] = []
        self._began = time.monotonic()
        self._sc: Any = None

    def add(self, row: Report) -> None:
        if not self.logs_at_end:
            self.log(row)
        self.rows.append(row)

    def take_rows(self) -> list[Report]:
        """Return the reports so far, and forget them, because the caller will add other reports in their place."""
        rows, self.rows = self.rows, []
        return rows

    def log(self, row: Report) -> None:
        log_partition(self.run_id, self.command, row)

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def header(self, rows: Iterable[Report]) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "command": self.command,
            "now_ms": self.options.now_ms,
            "seconds": self.seconds(),
            "partitions": in_order(rows),
        }

    def spark(self) -> Any:
        """Return the SparkContext of the run, whose jobs end with the run.

        Raises:
            RunStopped: a signal arrived before Spark had started.
        """
        if self._sc is None:
            settings = encrypting_files if self.has_secrets else None
            name = f"sediment {self.command}"
            self._sc = self.stack.enter_context(spark_context(self.options.master, name, settings))
            self.stack.enter_context(cancel_when(self.stop, self._sc, self.run_id))
        return self._sc

    @property
    def has_spark(self) -> bool:
        """True if Spark has started, so tasks may have written."""
        return self._sc is not None

    @property
    def shows_secrets(self) -> bool:
        """True if what the run sends to its tasks lies in the clear in Spark's local directories."""
        return self.has_secrets and self._sc is not None and not encrypts_files(self._sc)

    def in_tasks(
        self,
        items: Sequence[Item],
        perform: Callable[[Item, str], Outcome],
        weight: Callable[[Item], int],
        *,
        least_rounds: int = LEAST_ROUNDS,
        **more: Any,
    ) -> Iterator[list[TaskResult[Item, Outcome]]]:
        return run_on_executors(
            self.spark(),
            items,
            perform,
            weight,
            group=self.run_id,
            least_rounds=least_rounds,
            is_stopped=self.stop.is_set,
            **more,
        )

    def rate_limit(self, directories: Iterable[SelectedDirectory], *, most_seconds: float | None = None) -> RateLimit:
        """Return the limits of the run: the lowest rate that `directories` allow, and the deadline.

        `most_seconds` counts from the beginning of the run.
        """
        rates = [directory.settings.broker_value("log.cleaner.io.max.bytes.per.second") for directory in directories]
        rate = min((rate for rate in rates if isinstance(rate, float)), default=DOUBLE_MAX)
        return RateLimit(
            bytes_per_second=rate if rate < DOUBLE_MAX else None,
            throttle_name=f"sediment-{self.run_id}.throttle",
            deadline_s=None if most_seconds is None else time.time() - self.seconds() + most_seconds,
        )

    def why_lost(self, error: Exception | None, state: str) -> tuple[str, str]:
        return why_lost(self.stop, error, state)


def why_lost(stop: threading.Event, error: Exception | None, state: str) -> tuple[str, str]:
    if stop.is_set():
        return STOPPED, f"the run was stopped before this partition was {state}"
    return describe_lost_task(error)


def read_locked(
    run: Run[Any],
    read: Callable[[], Read],
    check: Callable[[], None] | None = None,
    *,
    locked: Iterable[Path] | None = None,
    originals_of: PlaceOf | None = None,
    before_of: PlaceOf | None = None,
    allow_network: bool = True,
) -> tuple[Read, dict[Path, DirectoryLock]]:
    """Read what the run is about, lock the directories, and read again; return the second reading and the locks.

    A dry run reads once, and locks nothing.

    `locked` are the directories to lock, by default the log directories; the locks are held until the end of the run's
    stack.  Directories for kept files are created; at the end of the stack, those that are still empty are removed.
    """
    # The first reading, and `check` after it, find what is wrong before anything changes.
    found = read()
    if check is not None:
        check()
    if run.dry_run:
        return found, {}
    log_dirs, enter = run.options.log_dirs, run.stack.enter_context
    for path in log_dirs:
        check_filesystem(path, allow_network=allow_network)
    for path in log_dirs:
        if originals_of is not None:
            enter(originals_directory(originals_of(path), path, run.fs))
        if before_of is not None:
            enter(backup_directory(before_of(path), path, run.fs))
    locks = {path: enter(DirectoryLock(path)) for path in (log_dirs if locked is None else locked)}
    # A broker may have written files until it released the lock, so only the second reading counts.
    return read(), locks


def check_outside(kept: KeptIn | None, log_dirs: Iterable[Path]) -> None:
    if kept is not None:
        log_dirs = tuple(log_dirs)
        for path in log_dirs:
            outside_log_dirs(str(kept.of(path)), log_dirs)
