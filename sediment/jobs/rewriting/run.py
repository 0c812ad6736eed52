"""What the steps of a run share: its id, options, clock, Spark and reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from sediment.engine.config_definitions import DOUBLE_MAX
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.process.cancellation import cancel_when
from sediment.jobs.process.stderr_log import log_partition
from sediment.jobs.reporting.error_text import describe_lost_task
from sediment.jobs.reporting.run_report import LocatedReport, OutcomeReport, in_order
from sediment.jobs.reporting.stage_timer import StageTimer
from sediment.jobs.reporting.statuses import STOPPED
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.spark.session import encrypting_files, encrypts_files, spark_context
from sediment.jobs.spark.task_environment import RateLimit
from sediment.segment_io.format.names import new_run_id
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing


class Row(OutcomeReport, LocatedReport, Protocol):
    """Report of one partition, a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class Work(Protocol):
    """A partition that the run is going to rewrite."""

    @property
    def listing(self) -> LogListing: ...
    @property
    def may_change(self) -> bool: ...


Report = TypeVar("Report", bound=Row)


class Run(Generic[Report]):
    """What the steps of a run share; the stack releases its locks, tokens and Spark.

    `fs` is the driver's access to log directories.  `rows` are the reports so far, each logged when it is added; with
    `logs_at_end`, a report may change until the end, and is logged then.
    """

    def __init__(
        self,
        command: str,
        options: CommonOptions,
        stop: threading.Event | None,
        *,
        dry_run: bool,
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
        """Add the report of a partition."""
        if not self.logs_at_end:
            self.log(row)
        self.rows.append(row)

    def take_rows(self) -> list[Report]:
        """Return the reports so far, and forget them, because the caller will add other reports in their place."""
        rows, self.rows = self.rows, []
        return rows

    def log(self, row: Report) -> None:
        """Log the report of a partition."""
        log_partition(self.run_id, self.command, row)

    def seconds(self) -> float:
        """Return the wall time of the run so far."""
        return time.monotonic() - self._began

    def header(self, rows: Iterable[Report]) -> dict[str, Any]:
        """Return the fields that the report of every run has, with `rows` in order."""
        return {
            "run_id": self.run_id,
            "command": self.command,
            "now_ms": self.options.now_ms,
            "seconds": self.seconds(),
            "dry_run": self.dry_run,
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

    def rate_limit(
        self, sc: Any, directories: Iterable[SelectedDirectory], *, most_seconds: float | None = None
    ) -> RateLimit:
        """Return the limits for one executor: its share of the lowest rate that `directories` allow, and the deadline.

        `most_seconds` counts from the beginning of the run.
        """
        rates = [directory.settings.broker_value("log.cleaner.io.max.bytes.per.second") for directory in directories]
        rate = min((rate for rate in rates if isinstance(rate, float)), default=DOUBLE_MAX)
        return RateLimit(
            bytes_per_second=rate / _executors(sc) if rate < DOUBLE_MAX else None,
            throttle_name=f"sediment-{self.run_id}.throttle",
            deadline_s=None if most_seconds is None else time.time() - self.seconds() + most_seconds,
        )

    def why_lost(self, error: Exception | None, state: str) -> tuple[str, str]:
        """Return the reason code and text for a task without a result; `state` is the same as in `why_lost`."""
        return why_lost(self.stop, error, state)


def why_lost(stop: threading.Event, error: Exception | None, state: str) -> tuple[str, str]:
    """Return the reason code and text for a task without a result; `state` is a participle, such as "cleaned"."""
    if stop.is_set():
        return STOPPED, f"the run was stopped before this partition was {state}"
    return describe_lost_task(error)


def _executors(sc: Any) -> int:
    """Return the number of executors; a driver that runs tasks itself counts as one executor."""
    known = sc._jsc.sc().getExecutorMemoryStatus().size()
    return max(int(known) - 1, 1)
