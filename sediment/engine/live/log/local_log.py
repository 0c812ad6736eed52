"""The state of a live log that its operations share: files, offsets, leader epochs and producers, under one lock.

    log_append        validate and write batches
    log_roll          start a segment
    log_flush         make segments durable
    log_truncation    truncate the log or empty it
    log_retention     raise the log start, delete old segments
    log_reader        read batches, look up offsets
    log_commit        replaceSegments: commit a cleaning, by `directory.swap`
    remove_segments   rename files to .deleted, unlink them after file.delete.delay.ms
    add_segment       create an empty segment; with preallocate, its `.log` has segment.bytes bytes
    put_epochs        replace leader-epoch-checkpoint at once
    write_snapshot    producer snapshot at a roll, a truncation and a close

Invariants
* The state changes only under `lock`.  `locked` takes the lock and checks that the log is usable.
* After a disk failure the log is offline: every call raises StorageError, and `on_failure` was called once.
* The offsets of producer snapshots ascend in the order in which they are written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, Protocol

from sediment.engine.directory.delete_segments import mark_deleted, remove_deleted
from sediment.engine.directory.leader_epochs import Epochs, truncate_from_start
from sediment.engine.directory.loading.log_loader import LoadedLog
from sediment.engine.directory.producer_state_manager import needs_snapshot
from sediment.engine.live.log.log_offsets import LogOffsets
from sediment.engine.live.log.log_segments import LogSegments
from sediment.engine.live.log.producer_appends import LogProducers
from sediment.engine.live.log.segment import Segment
from sediment.engine.live.open_files import SPARE_DESCRIPTORS, open_files_limit
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import OffsetOutOfRangeError, StorageError, UsageError
from sediment.segment_io.format.names import LEADER_EPOCH_FILE, SegmentFileKind, segment_file_name
from sediment.segment_io.fs import Fs, is_out_of_descriptors
from sediment.segment_io.partition.checkpoint_files import write_leader_epochs
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.producer_snapshots import encode_snapshot
from sediment.segment_io.partition.producer_state import ProducerState

_SNAPSHOT = SegmentFileKind.SNAPSHOT


class TaskScheduler(Protocol):
    def schedule_once(self, name: str, task: Callable[[], None], *, delay_ms: int = 0) -> object: ...


class LocalLog:
    """`on_failure` is called with the OSError that takes the log offline.

    `random_jitter(n)` returns a random number for the jitter of a new segment (`LogConfig.random_segment_jitter_ms`).
    """

    def __init__(
        self,
        loaded: LoadedLog,
        config: LogConfig,
        fs: Fs,
        *,
        clock: Callable[[], int],
        scheduler: TaskScheduler,
        on_failure: Callable[[OSError], None],
        random_jitter: Callable[[int], int],
        verify_transactions: bool,
    ) -> None:
        self.partition = loaded.partition
        self.directory = loaded.path
        self.config = config
        self.fs = fs
        self.clock = clock
        self.scheduler = scheduler
        self.lock = threading.RLock()
        self.failure: str | None = None
        self.is_closed = False
        self.truncations = 0
        """The number of truncations; a flush that began before a truncation does not change the recovery point."""
        self._on_failure = on_failure
        self._random_jitter = random_jitter
        self._verify_transactions = verify_transactions
        now_ms = clock()
        self.segments = LogSegments(
            self.segment(found.base_offset, size_bytes=found.log_bytes, now_ms=now_ms) for found in loaded.segments
        )
        self.epochs = loaded.leader_epochs
        # A log that is being deleted is loaded with a log end of 0, even if its log start is higher.
        log_end = max(loaded.log_end_offset, loaded.log_start_offset)
        self.offsets = LogOffsets.within(loaded.log_start_offset, loaded.high_watermark, loaded.recovery_point, log_end)
        self.last_flush_ms = now_ms
        self.set_producers(loaded.producers)
        self.set_snapshots(list_log(self.partition, self.directory, fs).snapshots)
        active = self.segments.active
        active.reserve_indexes()
        if not active.size_bytes:
            active.preallocate(self._preallocated_bytes())
        active.close_idle(is_durable=True)

    # ------------------------------------------------------------------------------------------------------------ guard
    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of a usable log; an OSError in the block takes the log offline."""
        with self.lock:
            self.check_usable()
            try:
                yield
            except OSError as error:
                self.fail(error)

    @contextmanager
    def changing_files(self) -> Iterator[None]:
        """Hold the lock for a change of several steps; first check that the process may open the files of the change.

        If other threads use up the descriptors during the change, the log goes offline, because the state of its files
        is then unknown.  The log directory stays online.
        """
        self.fs.require_descriptors(SPARE_DESCRIPTORS)
        try:
            yield
        except OSError as error:
            if is_out_of_descriptors(error):
                self.go_offline(f"a change was interrupted because no more files could be opened: {error}")
            raise

    def check_usable(self) -> None:
        if self.failure is not None:
            raise self._offline_error(self.failure)
        if self.is_closed:
            raise UsageError("the log is closed", partition=str(self.partition), path=str(self.directory))

    def fail(self, error: OSError) -> NoReturn:
        if is_out_of_descriptors(error):
            raise open_files_limit(error, str(self.partition)) from error
        is_first = self.failure is None
        self.go_offline(f"the disk failed: {error}")
        if is_first:
            self._on_failure(error)
        raise self._offline_error(f"the disk failed: {error}") from error

    def go_offline(self, reason: str) -> None:
        """Refuse every further call with StorageError; keep the reason of an earlier call; do not wait for a lock."""
        # Only the text is stored: the traceback of an error would keep its frames alive, and their files open.
        self.failure = self.failure or reason

    def _offline_error(self, reason: str) -> StorageError:
        return StorageError(
            f"the log is offline: {reason}",
            partition=str(self.partition),
            path=str(self.directory),
            advice="remove the cause and start again",
        )

    def out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"the log contains offsets {self.offsets.log_start} to {self.offsets.log_end - 1}",
            partition=str(self.partition),
            offset=offset,
        )

    # ---------------------------------------------------------------------------------------------------------- offsets
    def set_high_watermark(self, offset: int) -> None:
        """Set the high watermark to `offset`, or to the nearest offset within the log."""
        self.offsets = self.offsets.with_high_watermark(offset)
        self.producers.on_high_watermark(self.offsets.high_watermark)

    def start_at(self, offset: int) -> bool:
        offsets = self.offsets.started_at(offset)
        if offsets is self.offsets:
            return False
        self.offsets = offsets
        self.put_epochs(truncate_from_start(self.epochs, offset))
        self.producers.on_high_watermark(offset)
        return True

    def put_epochs(self, epochs: Epochs) -> None:
        if epochs != self.epochs:
            self.epochs = epochs
            like = self.segments.active.path()
            write_leader_epochs(self.fs, self.directory / LEADER_EPOCH_FILE, epochs, like=like)

    # --------------------------------------------------------------------------------------------------------- segments
    def segment(self, base_offset: int, *, size_bytes: int, now_ms: int, is_new: bool = False) -> Segment:
        return Segment(
            self.directory,
            base_offset,
            self.config,
            self.fs,
            size_bytes=size_bytes,
            created_ms=now_ms,
            jitter_ms=self.config.random_segment_jitter_ms(self._random_jitter),
            is_new=is_new,
        )

    def add_segment(self, base_offset: int) -> Segment:
        segment = self.segment(base_offset, size_bytes=0, now_ms=self.clock(), is_new=True)
        is_first = not self.segments.base_offsets or self.segments.active.base_offset == base_offset
        like = self.directory if is_first else self.segments.active.path()
        segment.create(like=like, preallocated_bytes=self._preallocated_bytes())
        self.segments.add(segment)
        return segment

    def _preallocated_bytes(self) -> int:
        return self.config.compaction.segment_bytes if self.config.preallocate else 0

    def remove_segments(self, base_offsets: Sequence[int], *, snapshots: bool = True) -> None:
        """Source: kafka-log 03 §3."""
        self.segments.remove(base_offsets)
        names = [*mark_deleted(self.directory, base_offsets, self.fs)]
        if snapshots:
            names += mark_deleted(self.directory, base_offsets, self.fs, kinds=(_SNAPSHOT,))
            self.snapshots.difference_update(base_offsets)
        self.scheduler.schedule_once(
            "delete-file", lambda: self._remove_deleted(names), delay_ms=self.config.file_delete_delay_ms
        )

    def _remove_deleted(self, names: Sequence[str]) -> None:
        try:
            remove_deleted(self.directory, names, self.fs)
        except OSError as error:
            if not self.is_closed:
                self.fail(error)

    def release(self) -> None:
        self.segments.release()
        self.is_closed = True

    # -------------------------------------------------------------------------------------------------------- producers
    def set_producers(self, state: ProducerState) -> None:
        self.producers = LogProducers(
            state,
            expiration_ms=self.config.compaction.producer_id_expiration_ms,
            verifies_transactions=self._verify_transactions,
        )
        self.producers.on_high_watermark(self.offsets.high_watermark)

    def set_snapshots(self, offsets: Sequence[int]) -> None:
        self.snapshots = set(offsets)
        self.last_snapshot_offset = max(self.snapshots, default=self.offsets.log_start)

    def write_snapshot(self, offset: int, *, synced: bool, producers: LogProducers | None = None) -> None:
        """Write a snapshot of `producers` (by default the log's) at `offset`, if `needs_snapshot` returns True."""
        if not needs_snapshot(offset, self.last_snapshot_offset):
            return
        path = self.directory / segment_file_name(offset, _SNAPSHOT)
        content = encode_snapshot((producers or self.producers).entries())
        if synced:
            self.fs.replace_file(path, content, like=self.segments.active.path())
        else:
            self.fs.unlink(path, missing_ok=True)
            self.fs.write_new(path, [content])
            self.fs.adopt_owner(path, self.segments.active.path())
        self.snapshots.add(offset)
        self.last_snapshot_offset = offset
