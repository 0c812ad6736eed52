"""A partition's log while an engine owns it: appended to, rolled, flushed, read, searched, cut, cleaned, closed.

    open      engine.loader repairs what a stop left and says what is there
    append    read_batches -> validate -> producers -> roll? -> write -> producers, epochs, offsets
    read      limit by isolation -> segment -> a slice of its file

Offsets: log start ≤ (recovery point, high watermark) ≤ log end, the next offset to be assigned.  What lies below the
recovery point is durable.  The last stable offset is the high watermark, or the first offset of an earlier transaction
that is undecided.

Invariants
* An append is checked as a whole before anything changes; one that is refused leaves no trace, not even a roll.
* The segments ascend and the last one is active; there is always one.
* After the disk failed once, the log is offline: nothing more is written, every call raises StorageError, and whoever
  opened the log was told.
* Where the process may open no more files, a call raises OpenFilesLimitError before it changes anything.
* One lock per log keeps writers apart; the checksums of an append are verified before it is taken.
* A read takes its place under the lock and its bytes without; a segment that is deleted or replaced meanwhile is read
  to the end.
* The time is that of `clock`; background work goes through `scheduler`.

Source: kafka-log 04, 05.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Protocol

from sediment.compaction.prepared_swap import CleanedGroup, PreparedSwap
from sediment.engine.config import LogConfig
from sediment.engine.directory.leader_epochs import (
    Epochs,
    assign,
    end_offset_for,
    latest_epoch,
    truncate_from_end,
    truncate_from_start,
    with_batches,
)
from sediment.engine.directory.loader import LoadedLog, load_log
from sediment.engine.directory.producer_snapshots import ProducerStateManager, ReplayedSegment, Snapshots
from sediment.engine.directory.swap import commit, mark_deleted, remove_deleted
from sediment.engine.live.fetch import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NOT_KNOWN,
    FetchedData,
    Isolation,
    LogOffsetMetadata,
    TimestampOffsetEpoch,
)
from sediment.engine.live.log_segments import LogSegments
from sediment.engine.live.open_files import SPARE_DESCRIPTORS, open_files_limit
from sediment.engine.live.producer_appends import (
    UNKNOWN_TRANSACTION_VERSION,
    LiveProducers,
    Update,
    VerificationGuard,
)
from sediment.engine.live.segment import FoundRecord, Segment
from sediment.engine.live.validation import AppendBuffers, AppendOrigin, Batches, BatchFields, read_batches, validate
from sediment.retention.policy import SegmentState, plan_retention
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import (
    CommitStateUnknownError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    RecordBatchTooLargeError,
    SedimentError,
    StorageError,
    UnexpectedAppendOffsetError,
    UsageError,
)
from sediment.segment_io.format import legacy
from sediment.segment_io.format.decode import OFFSET_DELTA
from sediment.segment_io.format.layout import (
    CODEC_NONE,
    INT32_MAX,
    INT64_MAX,
    MAGIC_V2,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
)
from sediment.segment_io.format.names import (
    INTERNAL_TOPICS,
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    DirectoryState,
    SegmentFileKind,
    TopicPartition,
    segment_file_name,
)
from sediment.segment_io.fs import Fs, OpenFile, is_out_of_descriptors
from sediment.segment_io.partition.checkpoint_files import (
    read_partition_metadata,
    write_leader_epochs,
    write_partition_metadata,
)
from sediment.segment_io.partition.listing import SegmentRef, list_log
from sediment.segment_io.partition.log_dir import PartitionCheckpoints
from sediment.segment_io.partition.log_view import LogView, SegmentTimes
from sediment.segment_io.partition.producer_state import NO_OFFSET, ProducerState, RememberedBatch, encode_snapshot

__all__ = ["AppendOrigin", "PartitionLog"]

HIGH_WATERMARK = -1
"""The offset that DeleteRecords gives for it."""

_SNAPSHOT = SegmentFileKind.SNAPSHOT
_ALL_KINDS = tuple(SegmentFileKind)
_HAND_OVER_SECONDS = 0.0005


class TaskScheduler(Protocol):
    """What a log asks of a scheduler; `engine.scheduler.Scheduler` is one."""

    def schedule_once(self, name: str, task: Callable[[], None], *, delay_ms: int = 0) -> object:
        """Run `task` in `delay_ms`."""
        ...


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """What became of an append; without batches the offsets are -1 and nothing changed.

    `first_offset` is also -1 if a follower appended a compressed message of magic 0 or 1, whose header gives only the
    last one, as in Kafka.  Of a duplicate the offsets and the timestamp are those under which it was appended before.
    """

    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    log_append_time_ms: int
    log_start_offset: int
    appended_bytes: int
    is_duplicate: bool = False


class _OfThread(threading.local):
    """Buffers of each thread that appends, whatever the log."""

    def __init__(self) -> None:
        self.buffers = AppendBuffers()


_OF_THREAD = _OfThread()


def _ignore_failure(_log: PartitionLog, _error: OSError) -> None:
    return None


class PartitionLog:
    """A live log; made by `open`.  A context manager that closes it."""

    def __init__(
        self,
        loaded: LoadedLog,
        config: LogConfig,
        fs: Fs,
        *,
        clock: Callable[[], int],
        scheduler: TaskScheduler,
        on_failure: Callable[[PartitionLog, OSError], None],
        random_jitter: Callable[[int], int],
        verify_transactions: bool,
        topic_id: str | None,
    ) -> None:
        self.partition = loaded.partition
        self.directory = loaded.path
        self.config = config
        self.loaded = loaded
        self.topic_id = topic_id
        self.lock = threading.RLock()
        self._fs = fs
        self._clock = clock
        self._scheduler = scheduler
        self._on_failure = on_failure
        self._random_jitter = random_jitter
        self._verify_transactions = verify_transactions
        self._failure: str | None = None
        self._closed = False
        self._cuts = 0
        now_ms = clock()
        self._segments = LogSegments(
            self._segment(found.base_offset, size_bytes=found.log_bytes, now_ms=now_ms) for found in loaded.segments
        )
        self._epochs = loaded.leader_epochs
        self._log_start_offset = loaded.log_start_offset
        self._log_end_offset = loaded.log_end_offset
        self._high_watermark = loaded.high_watermark
        self._recovery_point = loaded.recovery_point
        self._last_flush_ms = now_ms
        self._set_producers(loaded.producers)
        listing = list_log(self.partition, self.directory, fs)
        self._snapshots = set(listing.snapshots)
        self._last_snapshot_offset = max(self._snapshots, default=loaded.log_start_offset)
        active = self._segments.active
        active.reserve_indexes()
        if not active.size_bytes:
            active.preallocate(self._preallocated_bytes())
        active.close_idle(is_durable=True)

    @classmethod
    def open(
        cls,
        partition: TopicPartition,
        directory: Path,
        config: LogConfig,
        checkpoints: PartitionCheckpoints,
        fs: Fs,
        *,
        clock: Callable[[], int],
        scheduler: TaskScheduler,
        on_failure: Callable[[PartitionLog, OSError], None] = _ignore_failure,
        state: DirectoryState = DirectoryState.LIVE,
        random_jitter: Callable[[int], int] = random.randrange,
        verify_transactions: bool = True,
        topic_id: str | None = None,
        recovery_threads: int = 1,
    ) -> PartitionLog:
        """Load the log in `directory`, repair it and go on with it; the log directory's lock must be held.

        `clock` gives milliseconds since the epoch.  `on_failure` is told once of the OSError that takes the log
        offline.  `random_jitter(n)` draws from 0 … n - 1.  `verify_transactions` is
        `transaction.partition.verification.enable`.  A `topic_id` is written to partition.metadata where that has none.

        After a crash so many `recovery_threads` verify segments at once.

        Raises:
            CorruptDataError, UnsupportedDataError, CorruptCheckpointError, OSError: as `load_log`.
            UsageError: partition.metadata has another topic id.

        Source: kafka-log 05 §2.
        """
        loaded = load_log(
            partition, directory, config, checkpoints, fs, now_ms=clock(), state=state, threads=recovery_threads
        )
        known = read_partition_metadata(fs, directory / PARTITION_METADATA_FILE)
        if topic_id is not None and known is None:
            write_partition_metadata(fs, directory / PARTITION_METADATA_FILE, topic_id)
        elif topic_id is not None and known != topic_id:
            raise UsageError(
                f"the directory belongs to topic id {known}, not {topic_id}",
                partition=str(partition),
                path=str(directory),
                advice="a topic of the same name was deleted and created anew; move the directory away",
            )
        return cls(
            loaded,
            config,
            fs,
            clock=clock,
            scheduler=scheduler,
            on_failure=on_failure,
            random_jitter=random_jitter,
            verify_transactions=verify_transactions,
            topic_id=topic_id or known,
        )

    def __enter__(self) -> PartitionLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------------------ guard
    @contextmanager
    def _owned(self) -> Iterator[None]:
        """The lock of a usable log; an OSError inside takes the log offline."""
        with self.lock:
            self._check_usable()
            try:
                yield
            except OSError as error:
                self._fail(error)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """A change of several steps, for which the files it opens are within the limit of open files.

        Should they not be after all, because other threads took them meanwhile, the log goes offline, and its directory
        does not: what the change has done is not known.
        """
        self._fs.require_descriptors(SPARE_DESCRIPTORS)
        try:
            yield
        except OSError as error:
            if is_out_of_descriptors(error):
                self.go_offline(f"a change broke off because no more files could be opened: {error}")
            raise

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._offline_error(self._failure)
        if self._closed:
            raise UsageError("the log is closed", partition=str(self.partition), path=str(self.directory))

    def _fail(self, error: OSError) -> NoReturn:
        if is_out_of_descriptors(error):
            raise open_files_limit(error, str(self.partition)) from error
        is_first = self._failure is None
        self.go_offline(f"the disk failed: {error}")
        if is_first:
            self._on_failure(self, error)
        raise self._offline_error(f"the disk failed: {error}") from error

    def go_offline(self, reason: str) -> None:
        """Refuse every further call with StorageError; `reason` is a clause for its text.

        It waits for no lock: what is under way goes on.  `close_handlers` lets go of the files.
        """
        # Text alone: the traceback of an error would keep the files of its frames open.
        self._failure = self._failure or reason

    def _offline_error(self, reason: str) -> StorageError:
        return StorageError(
            f"the log is offline: {reason}",
            partition=str(self.partition),
            path=str(self.directory),
            advice="remove the cause and start again",
        )

    @property
    def is_offline(self) -> bool:
        """Whether the disk failed."""
        return self._failure is not None

    @property
    def is_closed(self) -> bool:
        """Whether `close`, `close_handlers` or `delete` was called."""
        return self._closed

    # ------------------------------------------------------------------------------------------------------------ state
    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The next offset to be assigned."""
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        """What is below is replicated as far as it has to be."""
        return self._high_watermark

    @property
    def recovery_point(self) -> int:
        """What is below is durable."""
        return self._recovery_point

    @property
    def last_flush_ms(self) -> int:
        """When the last flush ended."""
        return self._last_flush_ms

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is open or whose marker is not below the high watermark.

        Of one that began below the log start, that of the batch which a read of the log start finds.
        """
        with self.lock:
            unstable = self._producers.first_unstable_offset()
            if unstable is None or unstable >= self._log_start_offset:
                return unstable
            with self._owned():
                found = self._segments.find(self._log_start_offset)
            return self._log_start_offset if found is None else max(found[1].base_offset, self._log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Where readers of committed data stop.  Source: kafka-log 04 (offsets of a log)."""
        unstable = self.first_unstable_offset
        return self._high_watermark if unstable is None else min(unstable, self._high_watermark)

    @property
    def active_base_offset(self) -> int:
        """The base offset of the segment that is appended to."""
        return self._segments.active.base_offset

    @property
    def first_base_offset(self) -> int:
        """The base offset of the first segment."""
        with self.lock:
            return self._segments.first_base_offset

    @property
    def base_offsets(self) -> tuple[int, ...]:
        """The base offsets of the segments, ascending."""
        with self.lock:
            return self._segments.base_offsets

    @property
    def size_bytes(self) -> int:
        """Bytes of all `.log` files."""
        with self.lock:
            return self._segments.size_bytes

    @property
    def leader_epochs(self) -> Epochs:
        """The leader epochs, ascending."""
        return self._epochs

    @property
    def latest_epoch(self) -> int:
        """The last leader epoch, -1 where there is none."""
        return latest_epoch(self._epochs)

    @property
    def producers(self) -> ProducerState:
        """The producers at the log end; `completed` are transactions whose marker is not below the high watermark."""
        with self.lock:
            return self._producers.state(self._log_end_offset)

    def remembered_batches(self, producer_id: int) -> tuple[RememberedBatch, ...]:
        """The last batches of a producer, at most five, oldest first."""
        with self.lock:
            producer = self._producers.producer(producer_id)
            return () if producer is None else producer.batches

    def segments(self) -> tuple[SegmentRef, ...]:
        """The segments as their files are now; the active one counts what was written, not what was reserved."""
        with self._owned():
            found = list_log(self.partition, self.directory, self._fs).segments
            sizes = self._segments.sizes_bytes()
            return tuple(replace(ref, log_bytes=sizes[ref.base_offset]) for ref in found if ref.base_offset in sizes)

    def segment_states(self) -> tuple[SegmentState, ...]:
        """What retention looks at."""
        with self._owned():
            return self._segments.states()

    def segment_bases_between(self, from_offset: int, to_offset: int) -> tuple[int, ...]:
        """Bases of the segments from the one that holds `from_offset` to those that begin below `to_offset`.

        Raises:
            UsageError: `to_offset` is below `from_offset`.
        """
        if to_offset < from_offset:
            raise UsageError(f"offsets {from_offset} to {to_offset} are no range", partition=str(self.partition))
        with self.lock:
            return tuple(segment.base_offset for segment in self._segments.between(from_offset, to_offset))

    def view(self, *, first_dirty_checkpoint: int | None, now_ms: int) -> LogView:
        """The log as the rules of compaction look at it."""
        with self._owned():
            listing = list_log(self.partition, self.directory, self._fs)
            segments = list(self._segments)
            has_lag = self.config.compaction.max_compaction_lag_ms < INT64_MAX
            times = [
                SegmentTimes(
                    segment.largest_timestamp_ms,
                    segment.first_timestamp_ms() if has_lag and segment is not self._segments.active else NO_TIMESTAMP,
                )
                for segment in segments
            ]
            aborted = [entry for segment in segments for entry in segment.transaction_index.index().transactions()]
            producers = self._producers.state(self._log_end_offset)
            producers = producers.without_expired(now_ms, self._producers.expiration_ms)
            return LogView(
                listing=listing,
                segment_times=tuple(times),
                first_dirty_checkpoint=first_dirty_checkpoint,
                log_start_offset=self._log_start_offset,
                high_watermark=self._high_watermark,
                last_stable_offset=self.last_stable_offset,
                log_end_offset=self._log_end_offset,
                unverified_from_offset=None,
                producers=tuple(producers.entries.values()),
                aborted=tuple(sorted(aborted, key=lambda entry: entry.last_offset)),
            )

    def update_config(self, config: LogConfig) -> None:
        """Go on under another config; segments that are open keep index sizes, index interval and jitter."""
        with self.lock:
            self.config = config
            self._producers.expiration_ms = config.compaction.producer_id_expiration_ms

    # ----------------------------------------------------------------------------------------------------------- append
    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_version: int = UNKNOWN_TRANSACTION_VERSION,
        verification_guard: VerificationGuard | None = None,
    ) -> AppendInfo:
        """Append a batch under the next offsets; `records` are not changed.

        A marker needs its `transaction_version`; the first batch of a transaction a guard of
        `maybe_start_transaction_verification`.  RAFT_LEADER brings its own offsets.

        Raises:
            RejectedAppendError: a batch or record may not be appended; nothing has changed.
            CorruptBatchError: a batch fails its checksum or is malformed; nothing has changed.
            StorageError: the disk failed.
            OpenFilesLimitError: the process may open no more files; nothing has changed.

        Source: kafka-log 04 §1 to §3.
        """
        if origin is AppendOrigin.REPLICATION:
            raise UsageError("a leader does not append as a follower", partition=str(self.partition))
        return self._append(records, leader_epoch, origin, transaction_version, verification_guard)

    def append_as_follower(self, records: Buffer, leader_epoch: int) -> AppendInfo:
        """Append batches that bring their offsets, up to the first one of a leader epoch above `leader_epoch`.

        Raises:
            UnexpectedAppendOffsetError: they begin below the log end offset.
            RejectedAppendError, CorruptBatchError, StorageError: as `append_as_leader`.
        """
        return self._append(records, leader_epoch, AppendOrigin.REPLICATION, UNKNOWN_TRANSACTION_VERSION, None)

    def _append(
        self,
        records: Buffer,
        leader_epoch: int,
        origin: AppendOrigin,
        transaction_version: int,
        guard: VerificationGuard | None,
    ) -> AppendInfo:
        try:
            self._check_usable()
            buffers = _OF_THREAD.buffers
            # Without the lock: checksums are most of the work of a large append.
            batches = read_batches(
                records,
                buffers,
                origin=origin,
                leader_epoch=leader_epoch,
                max_message_bytes=self.config.compaction.max_message_bytes,
            )
            with self._owned():
                if not len(batches.rows):
                    return AppendInfo(-1, -1, NO_TIMESTAMP, NO_TIMESTAMP, self._log_start_offset, 0)
                now_ms = self._clock()
                append_time_ms = NO_TIMESTAMP
                if origin.assigns_offsets:
                    validated = validate(
                        batches,
                        buffers,
                        self.config,
                        first_offset=self._log_end_offset,
                        leader_epoch=leader_epoch,
                        origin=origin,
                        now_ms=now_ms,
                    )
                    batches, append_time_ms = validated.batches, validated.log_append_time_ms
                else:
                    self._check_given_offsets(batches)
                return self._write(batches, append_time_ms, now_ms, origin, transaction_version, guard)
        except SedimentError as error:
            error.partition = str(self.partition)
            raise

    def _check_given_offsets(self, batches: Batches) -> None:
        first = batches.first()
        if first.base_offset < self._log_end_offset:
            first_offset, last_offset = _first_offset(batches, first), int(batches.rows["last_offset"][-1])
            raise UnexpectedAppendOffsetError(
                f"batches at offsets {first_offset} to {last_offset} cannot follow the log end offset "
                f"{self._log_end_offset}",
                first_offset=first_offset,
                last_offset=last_offset,
                offset=first_offset,
                advice="truncate the log or fetch from its end",
            )

    def _write(
        self,
        batches: Batches,
        append_time_ms: int,
        now_ms: int,
        origin: AppendOrigin,
        transaction_version: int,
        guard: VerificationGuard | None,
    ) -> AppendInfo:
        """Append batches that have their offsets.  Source: kafka-log 04 §1 steps 5 to 13."""
        rows = batches.rows
        first_offset, last_offset, max_timestamp_ms, has_producer = batches.summary()
        if batches.size_bytes > self.config.compaction.segment_bytes:
            raise RecordBatchTooLargeError(
                f"an append of {batches.size_bytes} bytes is larger than segment.bytes, "
                f"{self.config.compaction.segment_bytes}",
                advice="append less at once",
            )
        epochs = with_batches(self._epochs, batches.rows)
        update = None
        if has_producer:
            with_producer = (
                fields for fields in batches.fields() if fields.producer_id >= 0 and fields.magic >= MAGIC_V2
            )
            update = self._producers.check(
                with_producer, origin=origin, guard=guard, transaction_version=transaction_version
            )
            if update.duplicate is not None:
                return self._duplicate(update.duplicate)
        rolls = self._segments.active.should_roll(
            self.config,
            append_bytes=batches.size_bytes,
            max_timestamp_ms=max_timestamp_ms,
            last_offset=last_offset,
            now_ms=now_ms,
        )
        end_offset = last_offset + 1
        flushes = end_offset - self._recovery_point >= self.config.flush_messages
        if rolls or flushes or epochs is not self._epochs or (update is not None and update.ended):
            with self._changing():
                if rolls:
                    self._roll(first_offset if rows["magic"][0] >= MAGIC_V2 else last_offset - INT32_MAX)
                self._put_epochs(epochs)
                self._store(batches, end_offset, update)
                if flushes:
                    self._flush(end_offset, force_last_segment=False)
        else:
            # Every file that this needs is open.
            self._store(batches, end_offset, update)
        return AppendInfo(
            first_offset if origin.assigns_offsets or _tells_first_offset(batches) else NO_OFFSET,
            last_offset,
            max_timestamp_ms if append_time_ms == NO_TIMESTAMP else append_time_ms,
            append_time_ms,
            self._log_start_offset,
            batches.size_bytes,
        )

    def _store(self, batches: Batches, end_offset: int, update: Update | None) -> None:
        self._segments.active.append(batches)
        self._log_end_offset = end_offset
        if update is not None:
            self._take_over(update)

    def _take_over(self, update: Update) -> None:
        aborted = self._producers.apply(update)
        if aborted:
            self._segments.add_aborted(aborted)

    def _duplicate(self, batch: RememberedBatch) -> AppendInfo:
        return AppendInfo(
            batch.first_offset,
            batch.last_offset,
            batch.timestamp_ms,
            NO_TIMESTAMP,
            self._log_start_offset,
            0,
            is_duplicate=True,
        )

    def maybe_start_transaction_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool = False
    ) -> VerificationGuard | None:
        """A guard to append the first batch of a transaction with; None where that transaction is open already.

        `sequence` is that of the batch, `supports_epoch_bump` says that the client knows transaction version 2.

        Raises:
            InvalidProducerEpochError: a later epoch of that producer was seen.

        Source: kafka-log 04 §3.
        """
        with self._owned():
            return self._producers.start_verification(
                producer_id, sequence, epoch, supports_epoch_bump=supports_epoch_bump, now_ms=self._clock()
            )

    # ---------------------------------------------------------------------------------------------------- leader epochs
    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """A leader of `epoch` begins at `start_offset`.

        Raises:
            UsageError: one of them is negative.
        """
        if epoch < 0 or start_offset < 0:
            raise UsageError(f"leader epoch {epoch} cannot begin at {start_offset}", partition=str(self.partition))
        with self._owned(), self._changing():
            self._put_epochs(assign(self._epochs, epoch, start_offset))

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) up to which a log of that leader epoch agrees with this one; (-1, -1) where none does.

        Source: kafka-log 04 §4 (endOffsetFor).
        """
        with self.lock:
            entries, log_end_offset = self._epochs, self._log_end_offset
        return end_offset_for(entries, epoch, log_end_offset)

    def _put_epochs(self, epochs: Epochs) -> None:
        if epochs != self._epochs:
            self._epochs = epochs
            write_leader_epochs(self._fs, self.directory / LEADER_EPOCH_FILE, epochs)

    # ------------------------------------------------------------------------------------------------------------- roll
    def roll(self, expected_next_offset: int | None = None) -> int:
        """Begin a new segment at the log end, or at `expected_next_offset` where that is above; returns its base.

        Raises:
            UsageError: a segment that is not empty begins there.

        Source: kafka-log 04 §6.
        """
        with self._owned(), self._changing():
            return self._roll(0 if expected_next_offset is None else expected_next_offset)

    def _roll(self, given_offset: int) -> int:
        base_offset = max(given_offset, self._log_end_offset)
        old = self._segments.active
        now_ms = self._clock()
        if base_offset == old.base_offset and not old.size_bytes:
            self._remove_segments([old.base_offset], snapshots=False)
        elif base_offset <= old.base_offset:
            raise UsageError(
                f"a segment cannot begin at {base_offset}, the active one begins at {old.base_offset}",
                partition=str(self.partition),
            )
        else:
            self._remove_stray_files(base_offset)
            old.become_inactive()
        segment = self._segment(base_offset, size_bytes=0, now_ms=now_ms, is_new=True)
        segment.create(like=self.directory, preallocated_bytes=self._preallocated_bytes())
        self._segments.add(segment)
        self._write_snapshot(base_offset, synced=False)
        self._scheduler.schedule_once("flush-log", lambda: self._flush_rolled(base_offset))
        return base_offset

    def _segment(self, base_offset: int, *, size_bytes: int, now_ms: int, is_new: bool = False) -> Segment:
        jitter_bound_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return Segment(
            self.directory,
            base_offset,
            self.config,
            self._fs,
            size_bytes=size_bytes,
            created_ms=now_ms,
            jitter_ms=self._random_jitter(jitter_bound_ms) if jitter_bound_ms > 0 else 0,
            is_new=is_new,
        )

    def _preallocated_bytes(self) -> int:
        return self.config.compaction.segment_bytes if self.config.preallocate else 0

    def _remove_stray_files(self, base_offset: int) -> None:
        for kind in _ALL_KINDS:
            if kind is not _SNAPSHOT:
                self._fs.unlink(self.directory / segment_file_name(base_offset, kind), missing_ok=True)

    def _flush_rolled(self, base_offset: int) -> None:
        """The background work of a roll: make the snapshot and what is below the new segment durable."""
        if self._closed or self._failure is not None:
            return
        try:
            with self._owned():
                snapshot = self.directory / segment_file_name(base_offset, _SNAPSHOT)
                if self._fs.exists(snapshot):
                    self._fs.sync_file(snapshot)
            self.flush(base_offset)
        except (StorageError, UsageError):
            # Whoever closed the log meanwhile has flushed it or wants it no more; a failed disk was told of.
            if not self._closed and self._failure is None:
                raise

    # -------------------------------------------------------------------------------------------------------- snapshots
    def _write_snapshot(self, offset: int, *, synced: bool) -> None:
        """A snapshot of the producers, who are those at `offset`, unless there is a later one.

        Source: kafka-log 04 §3.1.
        """
        if offset <= self._last_snapshot_offset:
            return
        path = self.directory / segment_file_name(offset, _SNAPSHOT)
        content = encode_snapshot(self._producers.entries())
        if synced:
            self._fs.replace_file(path, content, like=self._segments.active.path())
        else:
            self._fs.unlink(path, missing_ok=True)
            self._fs.write_new(path, [content])
            self._fs.adopt_owner(path, self._segments.active.path())
        self._snapshots.add(offset)
        self._last_snapshot_offset = offset

    # ------------------------------------------------------------------------------------------------------------ flush
    def flush(self, up_to: int | None = None, *, force_last_segment: bool = False) -> None:
        """Make what is below `up_to`, by default the log end, durable; the recovery point follows.

        With `force_last_segment` an active segment without a batch is made durable too.  Appends go on meanwhile.

        Raises:
            StorageError: the disk failed.

        Source: kafka-log 04 §7.
        """
        with self._owned():
            offset = self._log_end_offset if up_to is None else up_to
            files, needs_directory = self._unflushed(offset, force_last_segment)
            cuts = self._cuts
        if not files:
            return
        try:
            self._sync(files, needs_directory)
        except OSError as error:
            self._fail(error)
        with self.lock:
            if cuts == self._cuts:
                self._flushed(offset)

    def _flush(self, offset: int, *, force_last_segment: bool) -> None:
        files, needs_directory = self._unflushed(offset, force_last_segment)
        if files:
            self._sync(files, needs_directory)
            self._flushed(offset)

    def _unflushed(self, offset: int, force_last_segment: bool) -> tuple[list[OpenFile], bool]:
        """(files of the segments between the recovery point and `offset`, whether their names have to be synced)."""
        end_offset = offset + 1 if force_last_segment else offset
        if end_offset <= self._recovery_point:
            return [], False
        segments = self._segments.between(self._recovery_point, end_offset)
        has_new = any(segment.base_offset >= self._recovery_point for segment in segments)
        return [file for segment in segments for file in segment.files()], has_new

    def _sync(self, files: Sequence[OpenFile], needs_directory: bool) -> None:
        for file in files:
            file.sync()
        if needs_directory:
            # Under the lock the directory is neither renamed nor deleted.
            with self.lock:
                if not self._closed:
                    self._fs.sync_directory(self.directory)

    def _flushed(self, offset: int) -> None:
        self._recovery_point = max(self._recovery_point, offset)
        self._last_flush_ms = self._clock()

    def close_idle_files(self) -> None:
        """Give back the descriptors of segments that were not used since the last call; the next use opens them."""
        with self.lock:
            if self._closed or self._failure is not None:
                return
            end_offset = self._log_end_offset
            for segment in reversed(self._segments):
                segment.close_idle(is_durable=end_offset <= self._recovery_point)
                end_offset = segment.base_offset

    # --------------------------------------------------------------------------------------------------- high watermark
    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, within the log; returns it.

        This can lower it.  After an append `maybe_increment_high_watermark` is the one to call.

        Source: Kafka's UnifiedLog.updateHighWatermark.
        """
        with self.lock:
            self._high_watermark = min(max(offset, self._log_start_offset), self._log_end_offset)
            self._producers.on_high_watermark(self._high_watermark)
            return self._high_watermark

    def maybe_increment_high_watermark(self, offset: int | None = None) -> bool:
        """Raise the high watermark to `offset`, by default to the log end; False if it is there or above already.

        The default is right for a log without other replicas, and safe with any number of appending threads.

        Raises:
            UsageError: `offset` is above the log end.
        """
        with self.lock:
            wanted = self._log_end_offset if offset is None else offset
            if wanted > self._log_end_offset:
                raise UsageError(
                    f"high watermark {wanted} is above the log end offset {self._log_end_offset}",
                    partition=str(self.partition),
                )
            if wanted <= self._high_watermark:
                return False
            self.update_high_watermark(wanted)
            return True

    def _clamp_high_watermark(self) -> None:
        self.update_high_watermark(self._high_watermark)

    # -------------------------------------------------------------------------------------------------------- log start
    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Give up what is below `offset`; False where the log starts there or behind it already.

        The files stay until `delete_old_segments`.

        Raises:
            OffsetOutOfRangeError: `offset` is above the high watermark.

        Source: kafka-log 03 §5, 04 §4, §7.
        """
        with self._owned():
            if offset > self._high_watermark:
                raise OffsetOutOfRangeError(
                    f"the log cannot start at {offset}, above its high watermark {self._high_watermark}",
                    partition=str(self.partition),
                    offset=offset,
                )
            with self._changing():
                return self._increment_log_start_offset(offset)

    def delete_records(self, before_offset: int) -> int:
        """What an admin's DeleteRecords does: give up what is below `before_offset`, -1 for the high watermark.

        Returns the log start offset.

        Raises:
            InvalidTopicError: the topic belongs to the broker.
            PolicyViolationError: the topic is compacted and nothing else.
            OffsetOutOfRangeError: the offset is below -1 or above the high watermark.

        Source: kafka-log 03 §5.
        """
        if self.partition.topic in INTERNAL_TOPICS:
            raise InvalidTopicError("records of a topic of the broker cannot be deleted", partition=str(self.partition))
        with self._owned():
            if self.config.compacts and not self.config.retention.deletes:
                raise PolicyViolationError(
                    "records of a topic that is only compacted cannot be deleted",
                    partition=str(self.partition),
                    advice="write tombstones, or add delete to its cleanup.policy",
                )
            offset = self._high_watermark if before_offset == HIGH_WATERMARK else before_offset
            if offset < 0:
                raise self._out_of_range(offset)
            self.maybe_increment_log_start_offset(offset)
            return self._log_start_offset

    def _increment_log_start_offset(self, offset: int) -> bool:
        if offset <= self._log_start_offset:
            return False
        self._log_start_offset = offset
        self._recovery_point = max(self._recovery_point, offset)
        self._put_epochs(truncate_from_start(self._epochs, offset))
        self._producers.on_high_watermark(offset)
        return True

    # -------------------------------------------------------------------------------------------------------- retention
    def delete_old_segments(self) -> int:
        """Delete what retention lets go now; returns how many segments that were.

        Source: kafka-log 03 §2, §3.
        """
        with self._owned():
            plan = plan_retention(
                self._segments.states(),
                self.config.retention,
                log_start_offset=self._log_start_offset,
                high_watermark=self._high_watermark,
                log_end_offset=self._log_end_offset,
                now_ms=self._clock(),
            )
            doomed = [fate.segment.base_offset for fate in plan.deleted]
            if not doomed and not plan.rolls_active:
                return 0
            with self._changing():
                if plan.rolls_active:
                    self._roll(0)
                if doomed:
                    self._increment_log_start_offset(plan.log_start_offset)
                    self._remove_segments(doomed)
            return len(doomed)

    def _remove_segments(self, base_offsets: Sequence[int], *, snapshots: bool = True) -> None:
        """Take segments away and delete their files in a while.  Source: kafka-log 03 §3."""
        self._segments.remove(base_offsets)
        names = [*mark_deleted(self.directory, base_offsets, self._fs)]
        if snapshots:
            names += mark_deleted(self.directory, base_offsets, self._fs, kinds=(_SNAPSHOT,))
            self._snapshots.difference_update(base_offsets)
        self._scheduler.schedule_once(
            "delete-file", lambda: self._remove_deleted(names), delay_ms=self.config.file_delete_delay_ms
        )

    def _remove_deleted(self, names: Sequence[str]) -> None:
        try:
            remove_deleted(self.directory, names, self._fs)
        except OSError as error:
            if not self._closed:
                self._fail(error)

    # -------------------------------------------------------------------------------------------------------- producers
    def _set_producers(self, state: ProducerState) -> None:
        self._producers = LiveProducers(
            state,
            expiration_ms=self.config.compaction.producer_id_expiration_ms,
            verifies_transactions=self._verify_transactions,
        )
        self._producers.on_high_watermark(self._high_watermark)

    def remove_expired_producers(self) -> None:
        """Forget producers that were idle for `producer.id.expiration.ms`."""
        with self._owned():
            self._producers.remove_expired(self._clock())

    def has_late_transaction(self) -> bool:
        """Whether a transaction is open longer than any may be."""
        with self.lock:
            return self._producers.has_late_transaction(self._clock(), self.config.transaction_max_timeout_ms)

    # ------------------------------------------------------------------------------------------------------- truncation
    def truncate_to(self, offset: int) -> bool:
        """Cut the log so that it ends at `offset`; False where it ends there or below already.

        A batch that spans `offset` goes as a whole.

        Raises:
            UsageError: `offset` is negative.
            StorageError: the disk failed.

        Source: kafka-log 04 §10.
        """
        if offset < 0:
            raise UsageError(f"a log cannot end at {offset}", partition=str(self.partition))
        with self._owned(), self._changing():
            if offset >= self._log_end_offset:
                self._put_epochs(truncate_from_end(self._epochs, self._log_end_offset))
                return False
            self._cuts += 1
            if self._segments.first_base_offset > offset:
                self._truncate_fully(offset, None)
                return True
            doomed = [base for base in self._segments.base_offsets if base > offset]
            if doomed:
                self._remove_segments(doomed[::-1])
            self._segments.active.truncate_to(offset, now_ms=self._clock())
            self._log_end_offset = offset
            self._recovery_point = min(self._recovery_point, offset)
            self._put_epochs(truncate_from_end(self._epochs, offset))
            self._log_start_offset = min(self._log_start_offset, offset)
            self._rebuild_producers(offset)
            self._clamp_high_watermark()
            return True

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Delete everything; the log goes on at `offset` and starts at `log_start_offset`, by default there too.

        Raises:
            StorageError: the disk failed.

        Source: kafka-log 04 §10.
        """
        if offset < 0:
            raise UsageError(f"a log cannot begin at {offset}", partition=str(self.partition))
        with self._owned(), self._changing():
            self._cuts += 1
            self._truncate_fully(offset, log_start_offset)

    def _truncate_fully(self, offset: int, log_start_offset: int | None) -> None:
        now_ms = self._clock()
        gone = sorted(self._snapshots)
        self._remove_segments(self._segments.base_offsets[::-1], snapshots=False)
        for snapshot in gone:
            self._fs.unlink(self.directory / segment_file_name(snapshot, _SNAPSHOT), missing_ok=True)
        self._snapshots.clear()
        segment = self._segment(offset, size_bytes=0, now_ms=now_ms, is_new=True)
        segment.create(like=self.directory, preallocated_bytes=self._preallocated_bytes())
        segment.reserve_indexes()
        self._segments.add(segment)
        self._put_epochs(())
        self._log_start_offset = offset if log_start_offset is None else log_start_offset
        self._log_end_offset = offset
        self._recovery_point = min(self._recovery_point, offset)
        self._set_producers(ProducerState.at(offset))
        self._last_snapshot_offset = 0
        self._write_snapshot(offset, synced=True)
        self._clamp_high_watermark()

    def _rebuild_producers(self, end_offset: int) -> None:
        """The producers at `end_offset`, from snapshots and batches.  Source: kafka-log 05 §6."""
        found = list_log(self.partition, self.directory, self._fs).snapshots
        snapshots = Snapshots(self.directory, found, self._fs, like=self._segments.active.path, repairs=[])
        manager = ProducerStateManager(snapshots, now_ms=self._clock(), expiration_ms=self._producers.expiration_ms)
        manager.rebuild(
            [
                ReplayedSegment(segment.base_offset, segment.path(), segment.size_bytes, self._fs)
                for segment in self._segments
            ],
            self._log_start_offset,
            end_offset,
            reload_from_clean_shutdown=False,
        )
        snapshots.delete_dropped()
        self._snapshots = set(snapshots.offsets())
        self._last_snapshot_offset = max(self._snapshots, default=self._log_start_offset)
        self._set_producers(manager.state)

    # --------------------------------------------------------------------------------------------------------- cleaning
    def replace_segments(self, swap: PreparedSwap, *, before_group: Callable[[], None] | None = None) -> None:
        """Commit a cleaning of this log: the sources of each group give way to its parts.

        The lock is held for one group at a time, and `before_group` is called without it: appends and reads go on
        between two groups.

        Raises:
            SourceChangedError, UsageError: as `engine.swap.commit`; groups before that one are done.
            StorageError: the disk failed.

        Source: kafka-log 02 §8.1; Kafka's LocalLog.replaceSegments, which the cleaner calls for each group.
        """
        groups = iter([group for group in swap.groups if group.parts])
        replaced: CleanedGroup | None = None
        with ExitStack() as held:

            def next_group() -> None:
                nonlocal replaced
                if replaced is not None:
                    self._take_in(replaced)
                    held.close()
                    # A released lock is nobody's until a waiting thread has run.
                    time.sleep(_HAND_OVER_SECONDS)
                if before_group is not None:
                    before_group()
                held.enter_context(self._owned())
                self._fs.require_descriptors(SPARE_DESCRIPTORS)
                replaced = next(groups)

            with self._owned():
                self._check_replaceable(swap)
            try:
                commit(swap, self._fs, before_group=next_group)
            except CommitStateUnknownError as error:
                self.go_offline(f"the outcome of a commit is not known: {error}")
                raise
            except OSError as error:
                self._fail(error)
            if replaced is not None:
                self._take_in(replaced)

    def _check_replaceable(self, swap: PreparedSwap) -> None:
        active = self._segments.active.base_offset
        if any(source.base_offset >= active for group in swap.groups for source in group.sources):
            raise UsageError("the active segment of an open log cannot be replaced", partition=str(self.partition))

    def _take_in(self, group: CleanedGroup) -> None:
        """Take in the segments of a group that was replaced."""
        sources = {source.base_offset for source in group.sources}
        bases = {part.base_offset for part in group.parts}
        self._segments.replace(
            sources,
            [
                self._segment(part.base_offset, size_bytes=part.files[0].size_bytes, now_ms=self._clock())
                for part in group.parts
            ],
        )
        self._snapshots.difference_update(sources - bases)

    # ------------------------------------------------------------------------------------------------------------- read
    def read(
        self,
        start_offset: int,
        max_bytes: int,
        isolation: Isolation = Isolation.LOG_END,
        *,
        min_one_message: bool = False,
    ) -> FetchedData:
        """A slice of at most `max_bytes` of the segment that holds `start_offset`, or of the next one with data.

        With `min_one_message` the first batch is given whole whatever its size.

        Raises:
            OffsetOutOfRangeError: the log does not hold `start_offset`.
            UsageError: `max_bytes` is negative.
            CorruptBatchError: the segment is damaged.
            StorageError: the disk failed.

        Source: kafka-log 04 §8.
        """
        if max_bytes < 0:
            raise UsageError(f"a read of {max_bytes} bytes", partition=str(self.partition))
        with self._owned():
            if not self._log_start_offset <= start_offset <= self._log_end_offset:
                raise self._out_of_range(start_offset)
            limit = self._limit(isolation)
            wants_aborted = isolation is Isolation.TXN_COMMITTED
            if start_offset >= limit:
                return self._nothing(start_offset, wants_aborted)
            if start_offset < self._segments.first_base_offset:
                raise self._out_of_range(start_offset)
            place = self._segments.find(start_offset)
            if place is None:
                return self._nothing(self._log_end_offset, wants_aborted)
            segment, found = place
            end_position = self._end_position(segment, limit)
            start = LogOffsetMetadata(found.base_offset, segment.base_offset, found.position)
            most = max(max_bytes, found.size_bytes) if min_one_message else max_bytes
            size_bytes = max(min(end_position - found.position, most), 0)
            if most == 0:
                return FetchedData(start, 0, False, () if wants_aborted else None, None)
            aborted = None
            if wants_aborted:
                end = found.position + size_bytes
                aborted = self._segments.aborted(segment, start_offset, end, self._log_end_offset)
            file = segment.file if size_bytes else None
            return FetchedData(start, size_bytes, most < found.size_bytes, aborted, file)

    def _out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"the log holds offsets {self._log_start_offset} to {self._log_end_offset - 1}",
            partition=str(self.partition),
            offset=offset,
        )

    def _nothing(self, offset: int, wants_aborted: bool) -> FetchedData:
        return FetchedData(LogOffsetMetadata(offset), 0, False, () if wants_aborted else None, None)

    def _limit(self, isolation: Isolation) -> int:
        if isolation is Isolation.LOG_END:
            return self._log_end_offset
        return self._high_watermark if isolation is Isolation.HIGH_WATERMARK else self.last_stable_offset

    def _end_position(self, segment: Segment, limit: int) -> int:
        """Where a read that stops before offset `limit` ends in `segment`."""
        if limit >= self._log_end_offset:
            return segment.size_bytes
        found = segment.find(limit)
        return segment.size_bytes if found is None else found.position

    def convert_to_offset_metadata(self, offset: int) -> LogOffsetMetadata:
        """Where the batch that holds `offset`, or follows it, begins.

        Raises:
            OffsetOutOfRangeError: the log does not hold it.
        """
        with self._owned():
            if not self._log_start_offset <= offset <= self._log_end_offset:
                raise self._out_of_range(offset)
            place = None if offset == self._log_end_offset else self._segments.find(offset)
            if place is None:
                return LogOffsetMetadata(offset, self._segments.active.base_offset, self._segments.active.size_bytes)
            segment, found = place
            return LogOffsetMetadata(offset, segment.base_offset, found.position)

    def lookup_timestamp(self, target_ms: int) -> TimestampOffsetEpoch | None:
        """The first record at or behind a time, or what EARLIEST_TIMESTAMP and its like ask for; None: no such record.

        Raises:
            UsageError: a negative time that has no meaning.
            CorruptBatchError: the segment is damaged.
            StorageError: the disk failed.

        Source: kafka-log 04 §9.
        """
        with self._owned():
            if target_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
                first = self._epochs[0] if self._epochs else None
                known = first is not None and first.start_offset <= self._log_start_offset
                epoch = first.epoch if first is not None and known else NO_LEADER_EPOCH
                return TimestampOffsetEpoch(NO_TIMESTAMP, self._log_start_offset, epoch)
            if target_ms == LATEST_TIMESTAMP:
                return TimestampOffsetEpoch(NO_TIMESTAMP, self._log_end_offset, self.latest_epoch)
            if target_ms in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
                return TimestampOffsetEpoch(NO_TIMESTAMP, NOT_KNOWN, NO_LEADER_EPOCH)
            if target_ms == MAX_TIMESTAMP:
                return _found(self._segments.find_largest_timestamp())
            if target_ms < 0:
                raise UsageError(f"timestamp {target_ms} has no meaning", partition=str(self.partition))
            return _found(self._segments.find_timestamp(target_ms, self._log_start_offset))

    # -------------------------------------------------------------------------------------------------------------- end
    def close(self) -> None:
        """End the files as a clean stop leaves them: indexes trimmed, a snapshot of the producers at the log end.

        Batches are not flushed; `flush(force_last_segment=True)` comes before, where the stop is to be clean.  Of a log
        that is offline only the files are closed.

        Raises:
            StorageError: the disk failed.

        Source: kafka-log 04 §3.1, §14.
        """
        if self._closed or self._failure is not None:
            self.close_handlers()
            return
        with self._owned():
            self._write_snapshot(self._log_end_offset, synced=True)
            self._segments.active.become_inactive()
            for file in self._segments.active.files():
                file.sync()
            self._release()

    def close_handlers(self) -> None:
        """Let go of the files and write nothing."""
        with self.lock:
            self._release()

    def _release(self) -> None:
        self._segments.release()
        self._closed = True

    def rename_directory(self, directory: Path) -> None:
        """Rename the partition's directory within its log directory; open files stay open.

        Raises:
            StorageError: the disk failed.
        """
        with self._owned():
            self._fs.rename(self.directory, directory)
            self.directory = directory
            for segment in self._segments:
                segment.moved(directory)
            self._fs.sync_directory(directory.parent)

    def delete(self) -> None:
        """Delete the log and its directory, now.

        Raises:
            StorageError: the disk failed.

        Source: kafka-log 04 §13.
        """
        with self._owned():
            self._release()
            mark_deleted(self.directory, self._segments.base_offsets, self._fs, kinds=_ALL_KINDS)
            remove_deleted(self.directory, [entry.name for entry in self._fs.scan(self.directory)], self._fs)
            self._fs.remove_directory(self.directory)


def _tells_first_offset(batches: Batches) -> bool:
    """Return whether the first header has the first offset; a compressed message of magic 0 or 1 has the last."""
    return int(batches.rows["magic"][0]) >= MAGIC_V2 or batches.first().codec == CODEC_NONE


def _first_offset(batches: Batches, first: BatchFields) -> int:
    """The first offset of an append; that of a compressed message of magic 0 or 1 lies inside of it."""
    if _tells_first_offset(batches):
        return first.base_offset
    entry = batches.buffer[first.position : first.position + first.size_bytes].tobytes()
    return int(legacy.unwrap(entry, limit_bytes=INT32_MAX).records[0, OFFSET_DELTA])


def _found(record: FoundRecord | None) -> TimestampOffsetEpoch | None:
    return None if record is None else TimestampOffsetEpoch(record.timestamp_ms, record.offset, record.leader_epoch)
