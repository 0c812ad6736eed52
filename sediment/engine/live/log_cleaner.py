"""The cleaner of an engine; it cleans the filthiest log in the engine's own process, and the log stays open.

    1 grab     `log_cleaner_manager` chooses the filthiest log, which becomes InProgress
    2 clean    make a view and a plan; `clean_log` writes .part files, throttled; an abort stops it between two chunks
    3 commit   PartitionLog.replace_segments calls directory.swap, under the log's lock for one group at a time
    4 finish   the cleaner checkpoint is set (`cleaner_checkpoints`); the state is removed, or is Paused after an abort
    5 delete   old segments of compacted logs are deleted, in the same thread and under the same states
    6 wait     if nothing was cleaned, the thread waits log.cleaner.backoff.ms

`log_manager` starts the threads, unless log.cleaner.enable is false.  log.cleaner.io.buffer.size has no effect.

Invariants: a partition has at most one cleaning at a time. The checkpoint of a partition moves only after a committed
cleaning. But a checkpoint outside the log moves to the log start at once.

Source: kafka-log 02 §1, §2, §9.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

from sediment.compaction.cleanable_range import CleanableRange
from sediment.compaction.config import CompactionConfig, dedupe_buffer_bytes_per_thread
from sediment.compaction.grouping import plan_cleaning
from sediment.compaction.prepared_swap import PreparedSwap
from sediment.engine.directory.swap import discard_parts
from sediment.engine.directory.throttle import Throttle
from sediment.engine.live.broker_config import BrokerConfig
from sediment.engine.live.cleaning_failures import CleanerOwner
from sediment.engine.live.log_cleaner_manager import LogCleanerManager, LogToClean
from sediment.engine.live.scheduler import Clock, Scheduler
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import (
    CleaningAbortedError,
    SedimentError,
)
from sediment.segment_io.format.names import Attempt, TopicPartition, new_run_id
from sediment.segment_io.fs import Fs
from sediment.segment_io.units import MS_PER_SECOND, NS_PER_MS

_LOGGER = logging.getLogger(__name__)

_UNLIMITED_BYTES_PER_SECOND = 1e18
_SLEEP_SLICE_MS = 100


@dataclass(frozen=True, slots=True)
class LastCleaning:
    """The last cleaning that was committed (Kafka's CleanerStats); zeros before the first cleaning."""

    duration_ms: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @classmethod
    def of(cls, swap: PreparedSwap, duration_ms: int) -> LastCleaning:
        stats = swap.stats()
        return cls(duration_ms, stats.bytes_read, stats.bytes_written)

    @property
    def recopy_percent(self) -> int:
        """The written bytes as a percentage of the bytes read (Kafka's cleaner-recopy-percent)."""
        return 100 * self.bytes_written // max(self.bytes_read, 1)


class LogCleaner:
    """The cleaner of the logs of `owner`; every method may be called from any thread."""

    def __init__(self, owner: CleanerOwner, config: BrokerConfig, fs: Fs, clock: Clock, scheduler: Scheduler) -> None:
        self.manager = LogCleanerManager(owner, fs, clock)
        self._owner = owner
        self._config = config
        self._fs = fs
        self._clock = clock
        self._scheduler = scheduler
        self._run_id = new_run_id()
        self._attempts = count()
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        self._threads: set[int] | None = None
        self.last_cleaning = LastCleaning()
        self._throttle_state: Path | None = None

    # -------------------------------------------------------------------------------------------------- running, ending
    def start(self) -> None:
        self._start_threads()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Change the keys of the cleaner; a cleaning in progress keeps its offset map."""
        self._config = config
        if self._threads is not None:
            self._start_threads()

    def _start_threads(self) -> None:
        with self._guard:
            running = self._threads if self._threads is not None else set()
            missing = [number for number in range(self._config.log_cleaner_threads) if number not in running]
            self._threads = running.union(missing)
        for number in missing:
            self._schedule(number)

    def _schedule(self, number: int, delay_ms: int = 0) -> None:
        name = f"kafka-log-cleaner-thread-{number}"
        self._scheduler.schedule_once(name, partial(self._work, number), delay_ms=delay_ms)

    def _ends(self, number: int) -> bool:
        with self._guard:
            ends = self._stopping.is_set() or number >= self._config.log_cleaner_threads
            if ends and self._threads is not None:
                self._threads.discard(number)
            return ends

    def stop(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        """Remove temporary files; call this after the scheduler was closed."""
        if self._throttle_state is not None:
            self._throttle_state.unlink(missing_ok=True)

    def _work(self, number: int) -> None:
        if self._ends(number):
            return
        cleaned = False
        try:
            cleaned = self.clean_filthiest()
            self.delete_old_segments()
        finally:
            if not self._ends(number):
                self._schedule(number, 0 if cleaned else self._config.log_cleaner_backoff_ms)

    # --------------------------------------------------------------------------------------------------------- cleaning
    def clean_filthiest(self) -> bool:
        chosen = None if self._stopping.is_set() else self.manager.grab_filthiest()
        return chosen is not None and self.clean(chosen)

    def clean(self, chosen: LogToClean) -> bool:
        next_dirty_offset = chosen.range.first_dirty_offset
        cleaned = False
        started_ms = self._clock.now_ms()
        try:
            with self.manager.failures.isolating(chosen.log, chosen.directory):
                swap = self._clean(chosen)
                next_dirty_offset = swap.next_dirty_offset
                cleaned = True
                self.last_cleaning = LastCleaning.of(swap, self._clock.now_ms() - started_ms)
        finally:
            self._finish(chosen, next_dirty_offset)
        return cleaned

    def _clean(self, chosen: LogToClean) -> PreparedSwap:
        from sediment.compaction.clean_log import clean_log  # imported late, because it compiles kernels

        log, attempt = chosen.log, str(next(self._attempts))
        config = self._bounded(log.config.compaction, chosen.range)
        plan = plan_cleaning(chosen.view, chosen.range, config, now_ms=self._clock.now_ms())
        with ExitStack() as stack:
            stack.callback(discard_parts, log.directory, self._run_id, self._fs, attempt=attempt)
            pace = self._pace(log.partition, stack)
            swap = clean_log(plan, _ThrottledFs(self._fs, pace), Attempt(self._run_id, attempt, pace))
            self._check_not_aborted(log.partition)
            # The commit deletes superseded records.  So the records that supersede them must be durable before the
            # commit.
            log.flush(swap.next_dirty_offset)
            log.replace_segments(swap, before_group=chosen.directory.lock.check)
        if dropped := swap.stats().records_without_key:
            _LOGGER.warning("%s: dropped %d invalid messages (records without a key)", log.partition, dropped)
        return swap

    def _bounded(self, config: CompactionConfig, cleaned: CleanableRange) -> CompactionConfig:
        # A limited map needs a separate pass over the dirty range. So the limit is not set if the number of offsets in
        # the range is at most the number of keys that fit into the map.
        dirty_offsets = cleaned.first_uncleanable_offset - cleaned.first_dirty_offset
        if config.dedupe_buffer_bytes is not None or dirty_offsets <= self._config.offset_map_keys:
            return config
        return replace(
            config,
            dedupe_buffer_bytes=dedupe_buffer_bytes_per_thread(
                self._config.log_cleaner_dedupe_buffer_size, self._config.log_cleaner_threads
            ),
            dedupe_load_factor=self._config.log_cleaner_io_buffer_load_factor,
        )

    def _finish(self, chosen: LogToClean, next_dirty_offset: int) -> None:
        write = partial(self.manager.checkpoints.update, chosen.directory, chosen.log.partition, next_dirty_offset)
        with self.manager.failures.failing(chosen.directory):
            self.manager.states.finish(chosen.log.partition, write)

    def _check_not_aborted(self, partition: TopicPartition) -> None:
        if self._stopping.is_set():
            raise CleaningAbortedError("the engine is stopping", partition=str(partition))
        self.manager.states.check_not_aborted(partition)

    def _pace(self, partition: TopicPartition, stack: ExitStack) -> Callable[[int], None]:
        """Return a function that the caller must call with the size of every read and write.

        The function stops an aborted cleaning, and sleeps to stay below the rate limit.
        """
        rate = self._config.log_cleaner_io_max_bytes_per_second

        def sleep(seconds: float) -> None:
            end_ms = self._clock.monotonic_ms() + seconds * MS_PER_SECOND
            while (left_ms := end_ms - self._clock.monotonic_ms()) > 0:
                self._check_not_aborted(partition)
                if self._config.log_cleaner_io_max_bytes_per_second != rate:
                    return
                self._clock.sleep_ms(max(min(round(left_ms), _SLEEP_SLICE_MS), 1))

        def start(bytes_per_second: float) -> Throttle | None:
            if bytes_per_second >= _UNLIMITED_BYTES_PER_SECOND:
                return None
            throttle = Throttle(self._state_of_throttle(), bytes_per_second, clock_ns=self._monotonic_ns, sleep=sleep)
            stack.callback(throttle.close)
            return throttle

        throttle = start(rate)

        def pace(used_bytes: int) -> None:
            nonlocal rate, throttle
            self._check_not_aborted(partition)
            if self._config.log_cleaner_io_max_bytes_per_second != rate:
                rate = self._config.log_cleaner_io_max_bytes_per_second
                throttle = start(rate)
            if throttle is not None:
                throttle.take(used_bytes)

        return pace

    def _state_of_throttle(self) -> Path:
        with self._guard:
            if self._throttle_state is None:
                descriptor, name = tempfile.mkstemp(prefix="sediment-throttle-")
                os.close(descriptor)
                self._throttle_state = Path(name)
            return self._throttle_state

    def _monotonic_ns(self) -> int:
        return self._clock.monotonic_ms() * NS_PER_MS

    # -------------------------------------------------------------------------------------------------------- retention
    def delete_old_segments(self) -> int:
        deleted = 0
        for log in self._owner.all_logs():
            if self._stopping.is_set():
                break
            if not self.manager.start_deletion(log):
                continue
            try:
                deleted += log.delete_old_segments()
            except SedimentError as error:
                is_gone = log.is_closed or log.is_offline
                _LOGGER.log(logging.INFO if is_gone else logging.ERROR, "retention of %s: %s", log.partition, error)
            finally:
                self.manager.states.finish(log.partition)
        return deleted


class _ThrottledFs(Fs):
    """The engine's filesystem for a cleaning; before each write, `pace` is called with the number of bytes."""

    def __init__(self, fs: Fs, pace: Callable[[int], None]) -> None:
        self._inner = fs
        self._pace = pace

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        def throttled() -> Iterator[Buffer]:
            for chunk in chunks:
                self._pace(memoryview(chunk).nbytes)
                yield chunk

        return self._inner.write_new(path, throttled())

    def sync_file(self, path: Path) -> None:
        self._inner.sync_file(path)

    def sync_directory(self, path: Path) -> None:
        self._inner.sync_directory(path)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        self._inner.unlink(path, missing_ok=missing_ok)

    def set_mtime_ns(self, path: Path, mtime_ns: int) -> None:
        self._inner.set_mtime_ns(path, mtime_ns)

    def adopt_owner(self, path: Path, like: Path) -> None:
        self._inner.adopt_owner(path, like)

    def read_bytes(self, path: Path, *, follow_links: bool = True) -> bytes:
        return self._inner.read_bytes(path, follow_links=follow_links)

    def open_to_read(self, path: Path) -> int:
        return self._inner.open_to_read(path)
