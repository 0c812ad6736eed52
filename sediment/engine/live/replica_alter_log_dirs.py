"""Moves of partitions to other log directories, in the background: first the copy, and then the switch.

    add        cleaning of the partition is paused, and the batches of its log are copied to the future log
    caught up  `replace` replaces the log with the future log
    ended      cleaning is resumed after the log was replaced, or after one of the two was deleted or went offline

The partitions that move to one directory take turns; in its turn, each copies one chunk. After an error, a move is
tried again; to cancel it, delete the future log.

Source: Kafka's ReplicaAlterLogDirsManager and ReplicaAlterLogDirsThread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from sediment.engine.live.future_log import CHUNK_BYTES, copy_next
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_manager import LogManager
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.units import MS_PER_SECOND

_LOGGER = logging.getLogger(__name__)

BACKOFF_MS = 1000
"""The time after which a move is tried again after an error; Kafka's default of `replica.fetch.backoff.ms`."""

_TASK = "replica-alter-log-dirs"


class _Move:
    def __init__(self, future: PartitionLog) -> None:
        self.future = future
        self.is_paused = False
        self.last_error = ""

    @property
    def partition(self) -> TopicPartition:
        return self.future.partition


class ReplicaAlterLogDirs:
    """The moves of the logs of `manager`; every method may be called from any thread."""

    def __init__(self, manager: LogManager, replace: Callable[[TopicPartition], object]) -> None:
        self._manager = manager
        self._replace = replace
        self._guard = threading.Lock()
        self._waiting: dict[Path, deque[_Move]] = {}
        self._free_at_ms = 0.0
        """The time on the monotonic clock at which the limit allows more bytes."""

    def add(self, future: PartitionLog) -> None:
        with self._guard:
            target = future.directory.parent
            is_first = target not in self._waiting
            self._waiting.setdefault(target, deque()).append(_Move(future))
        if is_first:
            self._schedule(target, 0)

    def _schedule(self, target: Path, delay_ms: int) -> None:
        self._manager.scheduler.schedule_once(_TASK, lambda: self._take_turn(target), delay_ms=delay_ms)

    def _take_turn(self, target: Path) -> None:
        with self._guard:
            move = self._waiting[target].popleft()
        delay_ms: int | None = BACKOFF_MS
        try:
            delay_ms = self._continue(move)
        except (SedimentError, OSError) as error:
            if str(error) != move.last_error:
                _LOGGER.error("%s could not be moved to %s yet: %s", move.partition, target, error)
            move.last_error = str(error)
        with self._guard:
            moves = self._waiting[target]
            if delay_ms is not None:
                moves.append(move)
            if not moves:
                del self._waiting[target]
                return
        self._schedule(target, delay_ms or 0)

    def _continue(self, move: _Move) -> int | None:
        current = self._manager.get_log(move.partition)
        if current is None or self._manager.get_future_log(move.partition) is not move.future:
            self._end(move)
            return None
        if not move.is_paused:
            self._manager.cleaner.manager.abort_and_pause(move.partition)
            move.is_paused = True
        rate = self._manager.config.replica_alter_log_dirs_io_max_bytes_per_second
        wait_ms = self._wait_ms(rate)
        if wait_ms:
            return wait_ms
        try:
            copied = copy_next(current, move.future, min(CHUNK_BYTES, rate))
        except SedimentError:
            if self._manager.get_future_log(move.partition) is move.future:
                raise
            copied = 1  # the move was cancelled during the copy
        if copied:
            self._count(copied, rate)
            return 0
        self._replace(move.partition)
        if self._manager.get_future_log(move.partition) is not move.future:
            self._end(move)
            return None
        return BACKOFF_MS

    def _wait_ms(self, rate: int) -> int:
        """Return the time until the limit allows more bytes; a limit of 0 never allows any."""
        if not rate:
            return BACKOFF_MS
        left_ms = self._free_at_ms - self._manager.clock.monotonic_ms()
        return min(max(int(left_ms), 0), BACKOFF_MS)

    def _count(self, copied: int, rate: int) -> None:
        with self._guard:
            now_ms = self._manager.clock.monotonic_ms()
            self._free_at_ms = max(self._free_at_ms, now_ms) + copied * MS_PER_SECOND / rate

    def _end(self, move: _Move) -> None:
        if move.is_paused:
            self._manager.cleaner.manager.resume([move.partition])
            move.is_paused = False
