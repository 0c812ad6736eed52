"""A limit on the disk bandwidth of cleaning: Kafka's throttle, shared by all processes of a run on one host.

Kafka's cleaner threads share one throttle and sleep while they hold its lock, so together they stay below the rate. The
tasks of Sediment are processes. So a small file stores the start of the window and the bytes that were counted in this
window. Each process locks the file while it counts.

Invariants: the rate may be exceeded within one check interval, but not over several intervals.

Source: kafka-log 02 §6.1 (throttle).
"""

from __future__ import annotations

import fcntl
import math
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sediment.segment_io.units import NS_PER_MS, NS_PER_SECOND

CHECK_INTERVAL_MS = 300

_LONGEST_SLEEP_SECONDS = 1e9  # used for a rate near zero, because operating systems limit the duration of a sleep

_STATE = struct.Struct("=qq")  # start of the window in ns of the system's monotonic clock, bytes observed in the window


class Throttle:
    """A limit of `bytes_per_second`; all throttles with the same `state` file share this limit.

    `clock_ns` must be the same for all processes on a host, like the monotonic clock; `sleep` takes seconds.
    """

    def __init__(
        self,
        state: Path,
        bytes_per_second: float,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock_ns = clock_ns
        self._sleep = sleep
        self._threads = threading.Lock()
        self._descriptor = os.open(state, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with self._threads, _Locked(self._descriptor):
            if os.fstat(self._descriptor).st_size < _STATE.size:
                self._store(clock_ns(), 0)

    def close(self) -> None:
        os.close(self._descriptor)

    def take(self, used_bytes: int, *, most_seconds: float = math.inf) -> None:
        """The sleep lasts at most `most_seconds`, for a caller with a deadline."""
        with self._threads, _Locked(self._descriptor):
            start_ns, observed = _STATE.unpack(os.pread(self._descriptor, _STATE.size, 0))
            observed += used_bytes
            elapsed_ns = self._clock_ns() - start_ns
            if elapsed_ns > CHECK_INTERVAL_MS * NS_PER_MS and observed > 0:
                wait_seconds = observed / self._bytes_per_second - elapsed_ns / NS_PER_SECOND
                if wait_seconds > 0:
                    self._sleep(min(wait_seconds, most_seconds, _LONGEST_SLEEP_SECONDS))
                start_ns, observed = self._clock_ns(), 0
            self._store(start_ns, observed)

    def _store(self, start_ns: int, observed_bytes: int) -> None:
        os.pwrite(self._descriptor, _STATE.pack(start_ns, observed_bytes), 0)


class _Locked:
    """A lock on an open file description, which excludes other processes and the other throttles of this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_error: object) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
