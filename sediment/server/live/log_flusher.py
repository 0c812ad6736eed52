"""LogFlusher: threads that make appends durable, with one flush of a log for all producers that wait for it.

If a log gets further appends while it is being flushed, the next flush covers all of them. So the high watermark
follows the disk, as it follows the slowest replica in a cluster.

A flush that begins after `request` covers the append.

Source: Kafka's Partition.maybeIncrementLeaderHW, with the disk instead of the other replicas.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sediment.engine.live.log.partition_log import PartitionLog
from sediment.segment_io.errors import SedimentError

_LOGGER = logging.getLogger(__name__)


class LogFlusher:
    """A pool of `threads` threads that flush logs; `on_failure` is called with a log that could not be flushed."""

    def __init__(self, threads: int, on_failure: Callable[[PartitionLog], object]) -> None:
        self._on_failure = on_failure
        self._requested: dict[PartitionLog, None] = {}
        self._being_flushed: set[PartitionLog] = set()
        self._changed = threading.Condition()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"log-flusher-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def request(self, log: PartitionLog) -> None:
        with self._changed:
            self._requested[log] = None
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (log := self._take()) is not None:
            try:
                flush_and_replicate(log)
            except SedimentError as error:
                if not log.is_closed:  # a closed log was deleted, or replaced by a flushed log
                    _LOGGER.error("%s could not be flushed: %s", log.partition, error)
                self._on_failure(log)
            except Exception:
                # The thread continues, because other logs wait for it.
                _LOGGER.exception("%s could not be flushed", log.partition)
            finally:
                with self._changed:
                    self._being_flushed.discard(log)
                    self._changed.notify()

    def _take(self) -> PartitionLog | None:
        with self._changed:
            while True:
                log = next((each for each in self._requested if each not in self._being_flushed), None)
                if log is not None:
                    del self._requested[log]
                    self._being_flushed.add(log)
                    return log
                if self._is_closed and not self._requested:
                    return None
                self._changed.wait()


def flush_and_replicate(log: PartitionLog) -> None:
    log.flush()
    log.maybe_increment_high_watermark(min(log.recovery_point, log.log_end_offset))
