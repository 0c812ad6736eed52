"""File operations and limits of the tasks of a run.

Invariant: a task that outlives its run writes nothing, because every write checks the run's token.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from sediment.engine.directory.lock import check_run_token
from sediment.engine.directory.throttle import Throttle
from sediment.jobs.spark.live_slots import LiveSlots
from sediment.segment_io.buffers import Buffer, count_bytes
from sediment.segment_io.errors import LimitReachedError
from sediment.segment_io.fs import DryRunFs, Fs

OnBytes = Callable[[int], None]
"""Callback for the number of bytes just read or written; it waits for the throttle, and raises after the deadline."""

_WRITE_BYTES = 8 << 20  # number of bytes to write between two calls of the throttle


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Limits on the I/O rate and the time of tasks; None: no limit.

    `bytes_per_second` is the rate of the run, divided evenly among `executors`.  All tasks of one executor share its
    part through the file `throttle_name` in Spark's folder for the run.  `deadline_s` is in seconds since the epoch.
    """

    bytes_per_second: float | None = None
    throttle_name: str = ""
    deadline_s: float | None = None
    executors: int = 1

    def over(self, slots: LiveSlots) -> RateLimit:
        """Return the limits for a task that starts while `slots` are there."""
        return replace(self, executors=max(1, slots.executors))


NO_LIMIT = RateLimit()


class TaskOfRun(Protocol):
    @property
    def log_dir(self) -> Path: ...

    @property
    def run_id(self) -> str: ...

    @property
    def dry_run(self) -> bool: ...

    @property
    def rate_limit(self) -> RateLimit: ...


@contextmanager
def task_environment(task: TaskOfRun) -> Iterator[tuple[Fs, OnBytes]]:
    """Yield the file operations of a task, and the callback that it calls with the number of bytes that it read.

    Raises:
        SourceChangedError: another run works in the directory, or another disk is mounted there.
        LimitReachedError: the run's time limit has passed.
    """
    with throttled(task.rate_limit) as on_bytes:
        if task.dry_run:
            yield DryRunFs(), on_bytes
            return
        check_token = partial(check_run_token, task.log_dir, task.run_id)
        check_token()
        yield _RunFs(check_token, on_bytes), on_bytes


@contextmanager
def throttled(limit: RateLimit) -> Iterator[OnBytes]:
    """Yield a callback that throttles a task.

    After the deadline, this function and the callback raise `LimitReachedError`.
    """
    throttle = None
    if limit.bytes_per_second is not None:
        from pyspark import SparkFiles

        throttle = Throttle(
            Path(SparkFiles.getRootDirectory()) / limit.throttle_name, limit.bytes_per_second / limit.executors
        )

    def on_bytes(count: int) -> None:
        left_seconds = math.inf if limit.deadline_s is None else limit.deadline_s - time.time()
        if throttle is not None and left_seconds > 0:
            throttle.take(count, most_seconds=left_seconds)
        if limit.deadline_s is not None and time.time() >= limit.deadline_s:
            raise LimitReachedError("the time limit of --max-seconds has passed", advice="run again to continue")

    try:
        on_bytes(0)
        yield on_bytes
    finally:
        if throttle is not None:
            throttle.close()


class _RunFs(Fs):
    """File operations that write only while `check_token` finds the run's token."""

    def __init__(self, check_token: Callable[[], None], on_bytes: OnBytes) -> None:
        self._check_token = check_token
        self._on_bytes = on_bytes

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        self._check_token()
        return super().write_new(path, count_bytes(chunks, self._on_bytes, most_bytes=_WRITE_BYTES))
