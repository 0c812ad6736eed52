"""The cleaner of an engine, which cleans the filthiest log in the engine's own process; the log stays open.

    1 grab     `log_cleaner_manager` chooses the filthiest log, which becomes InProgress
    2 clean    view, plan, clean_log into .part files, throttled; an abort stops it between two chunks
    3 commit   PartitionLog.replace_segments: directory.swap, under the log's lock for one group at a time
    4 finish   cleaner checkpoint (`cleaner_checkpoints`); the state is removed, or Paused after an abort
    5 delete   old segments of compacted logs, in the same thread and under the same states

Invariants: a partition has at most one cleaning at a time.  The checkpoint of a partition moves only after a committed
cleaning, or to the log start if the checkpoint was outside the log.  A cleaning that is not committed leaves no file.
After an error in one partition, the others are still cleaned.

Source: kafka-log 02 §1, §2, §9.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from sediment.compaction.cleanable_range import CleanableRange
from sediment.compaction.config import CompactionConfig
from sediment.compaction.grouping import plan_cleaning
from sediment.compaction.prepared_swap import PreparedSwap
from sediment.engine.directory.swap import discard_parts
from sediment.engine.directory.throttle import Throttle
from sediment.engine.live.broker_config import BrokerConfig
from sediment.engine.live.cleaner_config import dedupe_buffer_bytes_per_thread
from sediment.engine.live.cleaning_failures import CleanerOwner
from sediment.engine.live.log_cleaner_manager import LogCleanerManager, LogToClean
from sediment.engine.live.scheduler import Clock, Scheduler
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import (
    CleaningAbortedError,
    SedimentError,
)
from sediment.segment_io.format.names import TopicPartition, new_run_id
from sediment.segment_io.fs import Fs
from sediment.segment_io.units import NS_PER_MS

_LOGGER = logging.getLogger(__name__)

_UNLIMITED_BYTES_PER_SECOND = 1e18
_MS_PER_SECOND = 1000
_SLEEP_SLICE_MS = 100


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
        self._throttle_state = Path(tempfile.gettempdir()) / f"sediment-throttle-{self._run_id}"

    # -------------------------------------------------------------------------------------------------- running, ending
    def start(self) -> None:
        """Clean in the background, on `log.cleaner.threads` threads of the scheduler."""
        for number in range(self._config.log_cleaner_threads):
            name = f"kafka-log-cleaner-thread-{number}"
            self._scheduler.schedule_once(name, partial(self._work, name))

    def stop(self) -> None:
        """Start no further cleaning, and end each cleaning in progress at its next chunk."""
        self._stopping.set()

    def close(self) -> None:
        """Remove temporary files; call this after the scheduler was closed."""
        self._throttle_state.unlink(missing_ok=True)

    def _work(self, name: str) -> None:
        """Do one turn of a cleaner thread and schedule the next."""
        cleaned = False
        try:
            cleaned = self.clean_filthiest()
            self.delete_old_segments()
        finally:
            if not self._stopping.is_set():
                delay_ms = 0 if cleaned else self._config.log_cleaner_backoff_ms
                self._scheduler.schedule_once(name, partial(self._work, name), delay_ms=delay_ms)

    # --------------------------------------------------------------------------------------------------------- cleaning
    def clean_filthiest(self) -> bool:
        """Clean one log; return False if no log needs cleaning, or if the cleaning failed."""
        chosen = None if self._stopping.is_set() else self.manager.grab_filthiest()
        return chosen is not None and self.clean(chosen)

    def clean(self, chosen: LogToClean) -> bool:
        """Clean a log that `grab_filthiest` chose; its state is not InProgress afterwards."""
        next_dirty_offset = chosen.range.first_dirty_offset
        cleaned = False
        try:
            with self.manager.failures.isolating(chosen.log, chosen.directory):
                next_dirty_offset = self._clean(chosen).next_dirty_offset
                cleaned = True
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
            swap = clean_log(plan, _ThrottledFs(self._fs, pace), run_id=self._run_id, attempt=attempt, progress=pace)
            self._check_not_aborted(log.partition)
            # The commit deletes superseded records, so the records that supersede them must be durable first.
            log.flush(swap.next_dirty_offset)
            log.replace_segments(swap, before_group=chosen.directory.lock.check)
        return swap

    def _bounded(self, config: CompactionConfig, cleaned: CleanableRange) -> CompactionConfig:
        """Limit the offset map to the size for one cleaner thread, unless the topic has its own limit.

        A limited map needs a separate pass over the dirty range.  So the limit is not set if the range contains no more
        offsets than the map may contain keys.
        """
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
        """Return a function to call with the size of every read and write.

        The function stops an aborted cleaning, and sleeps to stay below the rate limit.
        """
        rate = self._config.log_cleaner_io_max_bytes_per_second
        if rate >= _UNLIMITED_BYTES_PER_SECOND:
            return lambda _bytes: self._check_not_aborted(partition)

        def sleep(seconds: float) -> None:
            end_ms = self._clock.monotonic_ms() + seconds * _MS_PER_SECOND
            while (left_ms := end_ms - self._clock.monotonic_ms()) > 0:
                self._check_not_aborted(partition)
                self._clock.sleep_ms(max(min(round(left_ms), _SLEEP_SLICE_MS), 1))

        throttle = Throttle(
            self._throttle_state, rate, clock_ns=lambda: self._clock.monotonic_ms() * NS_PER_MS, sleep=sleep
        )
        stack.callback(throttle.close)

        def pace(used_bytes: int) -> None:
            self._check_not_aborted(partition)
            throttle.take(used_bytes)

        return pace

    # -------------------------------------------------------------------------------------------------------- retention
    def delete_old_segments(self) -> int:
        """Delete segments past their retention limits in free compacted logs; return their number."""
        deleted = 0
        for log in self._owner.all_logs():
            if self._stopping.is_set():
                break
            if not self.manager.start_deletion(log):
                continue
            try:
                deleted += log.delete_old_segments()
            except SedimentError as error:
                if not (log.is_closed or log.is_offline):
                    raise
                _LOGGER.info("%s: %s", log.partition, error)
            finally:
                self.manager.states.finish(log.partition)
        return deleted


class _ThrottledFs(Fs):
    """The engine's filesystem for a cleaning; `pace` is called with the number of bytes before each write."""

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

    def read_bytes(self, path: Path) -> bytes:
        return self._inner.read_bytes(path)

    def open_to_read(self, path: Path) -> int:
        return self._inner.open_to_read(path)
