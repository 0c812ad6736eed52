"""The log of a partition while an engine owns it: append, roll, flush, read, search, truncate, clean, close.

    open      engine.directory.loading.log_loader repairs the log after a stop and returns its state
    append    read_batches -> validate -> producers -> roll if necessary -> write -> producers, epochs, offsets
    read      the isolation gives the limit -> the segment -> a slice of its file

`PartitionLog` is the public class; the `log_*` modules do the work on the state in `local_log`.

Invariants
* Log start ≤ high watermark ≤ log end, and recovery point ≤ log end (`log_offsets`).
* An append is checked completely before anything changes; a refused append leaves no trace, not even a roll.
* The segments are sorted by base offset, and the last one is active; at least one exists.
* After a disk failure, the log is offline.  Nothing more is written, every call raises StorageError, and `on_failure`
  was called once.
* If the process may open no more files, a call raises OpenFilesLimitError before it changes anything.
* One lock per log serialises writers; the checksums of an append are verified before the lock is taken.
* A read finds its position under the lock and reads its bytes without the lock.  If a segment is deleted or replaced
  during the read, the read continues to the segment's end.
* Time comes from `clock`; background work goes through `scheduler`.
* `on_readable_change` is called after the log start or the high watermark has moved, and after the log was closed.  The
  thread that moved the offset makes this call, after it has released the log's lock.  The last stable offset moves only
  together with the log start or the high watermark.

Source: kafka-log 04, 05.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType

from sediment.compaction.prepared_swap import PreparedSwap
from sediment.engine.directory.delete_segments import mark_deleted, remove_deleted
from sediment.engine.directory.leader_epochs import Epochs, assign, end_offset_for, latest_epoch
from sediment.engine.directory.loading.load_state import LoadMode
from sediment.engine.directory.loading.log_loader import LoadedLog, load_log
from sediment.engine.directory.missing_records import (
    KnownOfLog,
    LogCut,
    SegmentEnd,
    missing_after_cut,
    missing_at_end,
)
from sediment.engine.live.log import (
    log_append,
    log_commit,
    log_flush,
    log_reader,
    log_retention,
    log_roll,
    log_truncation,
)
from sediment.engine.live.log.append_origin import AppendOrigin
from sediment.engine.live.log.fetched_data import FetchedData, Isolation, LogOffsetMetadata, TimestampOffsetEpoch
from sediment.engine.live.log.local_log import LocalLog, TaskScheduler
from sediment.engine.live.log.log_append import AppendInfo, AppendRequest
from sediment.engine.live.log.plain_append import AppendedRun, PlainAppends
from sediment.engine.live.log.producer_appends import UNKNOWN_TRANSACTION_VERSION, VerificationGuard
from sediment.engine.log_config import LogConfig
from sediment.retention.policy import SegmentState
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import (
    PARTITION_METADATA_FILE,
    DirectoryState,
    SegmentFileKind,
    TopicPartition,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import (
    PartitionCheckpoints,
    read_partition_metadata,
    write_partition_metadata,
)
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.partition.log_view import LogView
from sediment.segment_io.partition.producer_state import ProducerState, RememberedBatch
from sediment.segment_io.segment.append_run_kernels import RunRows

__all__ = ["AppendInfo", "AppendOrigin", "AppendedRun", "PartitionLog"]

_LOGGER = logging.getLogger(__name__)
_CLIENT, _REPLICATION = AppendOrigin.CLIENT, AppendOrigin.REPLICATION


def _ignore_failure(_log: PartitionLog, _error: OSError) -> None:
    return None


def ignore_change(_log: PartitionLog) -> None:
    """Do nothing after a change of the readable range."""


def _known(checkpoints: PartitionCheckpoints) -> KnownOfLog:
    return KnownOfLog(
        compacts=None,
        other_nodes=None,
        high_watermark=checkpoints.high_watermark,
        recovery_point=checkpoints.recovery_point,
        first_dirty=checkpoints.first_dirty,
    )


def _warn_of_cut(directory: Path, checkpoints: PartitionCheckpoints, cut: LogCut) -> None:
    """Say what a start is about to cut off, unless it is a torn batch that nobody knows of."""
    lost = missing_after_cut(cut, _known(checkpoints))
    if lost is not None:
        _LOGGER.warning("%s: %s", directory, lost)


def _warn_of_losses(loaded: LoadedLog, checkpoints: PartitionCheckpoints) -> None:
    """Say that a loaded log ends below its checkpoints; what was cut off has been said before."""
    ends = [SegmentEnd(segment.base_offset, segment.next_offset) for segment in loaded.segments]
    lost = None if loaded.cuts else missing_at_end(ends, _known(checkpoints), {})
    if lost is not None:
        _LOGGER.warning("%s: %s", loaded.path, lost)


class PartitionLog:
    """A live log, which `open` creates; as a context manager, it closes itself."""

    def __init__(
        self,
        loaded: LoadedLog,
        config: LogConfig,
        fs: Fs,
        *,
        clock: Callable[[], int],
        scheduler: TaskScheduler,
        on_failure: Callable[[PartitionLog, OSError], None],
        on_readable_change: Callable[[PartitionLog], None],
        random_jitter: Callable[[int], int],
        verify_transactions: bool,
        topic_id: str | None,
    ) -> None:
        self.partition = loaded.partition
        self.loaded = loaded
        self.topic_id = topic_id
        self._clock = clock
        self._fs = fs
        self._on_readable_change = on_readable_change
        self._log = LocalLog(
            loaded,
            config,
            fs,
            clock=clock,
            scheduler=scheduler,
            on_failure=lambda error: on_failure(self, error),
            random_jitter=random_jitter,
            verify_transactions=verify_transactions,
        )
        self._plain_appends = PlainAppends(self._log)
        self.lock = self._log.lock

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
        on_readable_change: Callable[[PartitionLog], None] = ignore_change,
        state: DirectoryState = DirectoryState.LIVE,
        random_jitter: Callable[[int], int] = random.randrange,
        verify_transactions: bool = True,
        topic_id: str | None = None,
        recovery_threads: int = 1,
    ) -> PartitionLog:
        """Load and repair the log in `directory`; the log directory's lock must be held.

        `clock` returns milliseconds since the epoch.  `on_failure` is called once with the OSError that takes the log
        offline.  `on_readable_change` is called as described in this module's invariants.  `random_jitter(n)` returns a
        random number from 0 to n - 1.  `verify_transactions` is the value of
        `transaction.partition.verification.enable`.  If partition.metadata is missing, it is created with `topic_id`.
        After a crash, `recovery_threads` threads verify segments.

        Raises:
            CorruptDataError, UnsupportedDataError, CorruptCheckpointError, OSError: see `load_log`.
            UsageError: partition.metadata has another topic id.

        Source: kafka-log 05 §2.
        """
        loaded = load_log(
            partition,
            directory,
            config,
            checkpoints,
            fs,
            now_ms=clock(),
            mode=LoadMode(
                directory_state=state,
                threads=recovery_threads,
                # The checkpoints are those of the log itself, not of its copies.
                on_cut=partial(_warn_of_cut, directory, checkpoints) if state is DirectoryState.LIVE else None,
            ),
        )
        if state is DirectoryState.LIVE:
            _warn_of_losses(loaded, checkpoints)
        known = read_partition_metadata(fs, directory / PARTITION_METADATA_FILE)
        if topic_id is not None and known is None:
            write_partition_metadata(fs, directory / PARTITION_METADATA_FILE, topic_id)
        elif topic_id is not None and known != topic_id:
            raise UsageError(
                f"the directory belongs to topic id {known}, not {topic_id}",
                partition=str(partition),
                path=str(directory),
                advice="a topic with the same name was deleted and created again; move the directory away",
            )
        return cls(
            loaded,
            config,
            fs,
            clock=clock,
            scheduler=scheduler,
            on_failure=on_failure,
            on_readable_change=on_readable_change,
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

    # ------------------------------------------------------------------------------------------------------------ state
    @property
    def directory(self) -> Path:
        """The partition's directory."""
        return self._log.directory

    @property
    def config(self) -> LogConfig:
        """The current config."""
        return self._log.config

    @property
    def is_offline(self) -> bool:
        """True after the disk failed."""
        return self._log.failure is not None

    @property
    def is_closed(self) -> bool:
        """True after `close`, `close_handlers` or `delete`."""
        return self._log.is_closed

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self._log.offsets.log_start

    @property
    def log_end_offset(self) -> int:
        """The next offset to be assigned."""
        return self._log.offsets.log_end

    @property
    def high_watermark(self) -> int:
        """The offset below which all records are fully replicated."""
        return self._log.offsets.high_watermark

    @property
    def recovery_point(self) -> int:
        """The offset below which all records are durable."""
        return self._log.offsets.recovery_point

    @property
    def last_flush_ms(self) -> int:
        """The time at which the last flush ended."""
        return self._log.last_flush_ms

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the first undecided transaction.

        A transaction is undecided if it is open, or if its marker is at or above the high watermark.  If that
        transaction began below the log start, the value is the base offset of the first batch that a read at the log
        start returns.
        """
        return log_reader.first_unstable_offset(self._log)

    @property
    def last_stable_offset(self) -> int:
        """The end offset for read_committed consumers."""
        return log_reader.last_stable_offset(self._log)

    @property
    def active_base_offset(self) -> int:
        """The base offset of the active segment."""
        return self._log.segments.active.base_offset

    @property
    def first_base_offset(self) -> int:
        """The base offset of the first segment."""
        with self.lock:
            return self._log.segments.first_base_offset

    @property
    def base_offsets(self) -> tuple[int, ...]:
        """The base offsets of the segments, in ascending order."""
        with self.lock:
            return self._log.segments.base_offsets

    @property
    def size_bytes(self) -> int:
        """Bytes of all `.log` files."""
        with self.lock:
            return self._log.segments.size_bytes

    @property
    def leader_epochs(self) -> Epochs:
        """The leader epochs, ascending."""
        return self._log.epochs

    @property
    def latest_epoch(self) -> int:
        """The last leader epoch; -1 if there is none."""
        return latest_epoch(self._log.epochs)

    @property
    def producers(self) -> ProducerState:
        """The producers at the log end; `completed` are transactions whose marker is at or above the high watermark."""
        with self.lock:
            return self._log.producers.state(self._log.offsets.log_end)

    def remembered_batches(self, producer_id: int) -> tuple[RememberedBatch, ...]:
        """Return the last batches of a producer, at most five, oldest first."""
        with self.lock:
            producer = self._log.producers.producer(producer_id)
            return () if producer is None else producer.batches

    def segments(self) -> tuple[SegmentRef, ...]:
        """Return the segments in their current state; their sizes exclude preallocated bytes of the active segment."""
        return log_reader.segment_refs(self._log)

    def segment_states(self) -> tuple[SegmentState, ...]:
        """Return the segments in the form that the retention policy reads."""
        with self._log.locked():
            return self._log.segments.states()

    def segment_bases_between(self, from_offset: int, to_offset: int) -> tuple[int, ...]:
        """Return the base offsets of the segments with offsets at or above `from_offset` and below `to_offset`.

        Raises:
            UsageError: `to_offset` is below `from_offset`.
        """
        if to_offset < from_offset:
            raise UsageError(f"offsets {from_offset} to {to_offset} are not a range", partition=str(self.partition))
        with self.lock:
            return tuple(segment.base_offset for segment in self._log.segments.between(from_offset, to_offset))

    def view(self, *, first_dirty_checkpoint: int | None, now_ms: int) -> LogView:
        """Return the view of the log that the rules of compaction use."""
        return log_reader.view(self._log, first_dirty_checkpoint=first_dirty_checkpoint, now_ms=now_ms)

    def update_config(self, config: LogConfig) -> None:
        """Replace the config; open segments keep their index sizes, index interval and jitter."""
        with self.lock:
            self._log.config = config
            self._log.producers.expiration_ms = config.compaction.producer_id_expiration_ms

    # ----------------------------------------------------------------------------------------------------------- append
    def append_as_leader(
        self,
        records: Buffer,
        leader_epoch: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        transaction_version: int = UNKNOWN_TRANSACTION_VERSION,
        verification_guard: VerificationGuard | None = None,
        only_quick: bool = False,
    ) -> AppendInfo:
        """Append a batch under the next offsets; `records` are not changed.

        A marker needs its `transaction_version`; the first batch of a transaction needs a guard from
        `maybe_start_transaction_verification`.  If the origin is RAFT_LEADER, the batches already have their offsets.
        With `only_quick`, a large batch is not appended, because others wait for this thread.

        Raises:
            RejectedAppendError: a batch or record may not be appended; nothing changed.
            CorruptBatchError: a batch fails its checksum or is malformed; nothing changed.
            StorageError: the disk failed.
            OpenFilesLimitError: the process may open no more files; nothing changed.
            LongWorkError: `only_quick` is True, and the batch is large; nothing changed.

        Source: kafka-log 04 §1 to §3.
        """
        if origin is _REPLICATION:
            raise UsageError("a leader does not append as a follower", partition=str(self.partition))
        if origin is _CLIENT:
            info = self._plain_appends.append(records, leader_epoch)
            if info is not None:
                return info
        request = AppendRequest(leader_epoch, origin, transaction_version, verification_guard, only_quick)
        return log_append.append(self._log, records, request)

    def append_run(self, address: int, rows: RunRows, count: int, leader_epoch: int) -> AppendedRun | None:
        """Append the batches of several requests of a client at once; see `PlainAppends.append_run`.

        If `append_as_leader` must decide on the first batch, append nothing and return None.

        Raises:
            StorageError: the disk failed.
            OpenFilesLimitError: the process may open no more files; nothing changed.
        """
        return self._plain_appends.append_run(address, rows, count, leader_epoch)

    def append_as_follower(self, records: Buffer, leader_epoch: int) -> AppendInfo:
        """Append batches that already have offsets, up to the first batch with a leader epoch above `leader_epoch`.

        Raises:
            UnexpectedAppendOffsetError: the batches begin below the log end offset, or span more than 2^31 offsets.
            RejectedAppendError, CorruptBatchError, StorageError: see `append_as_leader`.
        """
        request = AppendRequest(leader_epoch, AppendOrigin.REPLICATION, UNKNOWN_TRANSACTION_VERSION)
        return log_append.append(self._log, records, request)

    def maybe_start_transaction_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool = False
    ) -> VerificationGuard | None:
        """Return a guard for appending the first batch of a transaction; None if the transaction is already open.

        `sequence` is the batch's base sequence; `supports_epoch_bump` is True for a client with transaction version 2.

        Raises:
            InvalidProducerEpochError: a later epoch of that producer was seen.

        Source: kafka-log 04 §3.
        """
        with self._log.locked():
            return self._log.producers.start_verification(
                producer_id, sequence, epoch, supports_epoch_bump=supports_epoch_bump, now_ms=self._clock()
            )

    def remove_expired_producers(self) -> None:
        """Remove producers that were idle for `producer.id.expiration.ms`."""
        with self._log.locked():
            self._log.producers.remove_expired(self._clock())

    @property
    def producer_count(self) -> int:
        """Number of producers."""
        return len(self._log.producers)

    def forget_producers(self, count: int) -> None:
        """Remove the `count` producers that wrote least recently and have no open transaction."""
        with self._log.locked():
            self._log.producers.forget(count)

    def has_late_transaction(self) -> bool:
        """Return True if a transaction has been open longer than the largest allowed timeout."""
        with self.lock:
            return self._log.producers.has_late_transaction(self._clock(), self.config.transaction_max_timeout_ms)

    def store_state_of(self, other: PartitionLog) -> None:
        """Store the leader epochs and the producers of `other` durably; `other` has the same records.

        The caller holds the lock of `other`.

        Raises:
            StorageError: the disk failed.
        """
        with self._log.locked(), self._log.changing_files():
            self._log.put_epochs(other.leader_epochs)
            self._log.write_snapshot(self._log.offsets.log_end, synced=True, producers=other._log.producers)

    def use_producers_of(self, other: PartitionLog) -> None:
        """Use the producers of `other` from now on; `other` accepts no more appends; verification guards stay valid."""
        with self.lock:
            self._log.producers = other._log.producers

    # ---------------------------------------------------------------------------------------------------- leader epochs
    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """Record that leader epoch `epoch` begins at `start_offset`.

        Raises:
            UsageError: `epoch` or `start_offset` is negative.
        """
        if epoch < 0 or start_offset < 0:
            raise UsageError(f"leader epoch {epoch} cannot begin at {start_offset}", partition=str(self.partition))
        with self._log.locked(), self._log.changing_files():
            self._log.put_epochs(assign(self._log.epochs, epoch, start_offset))

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the last point up to which this log may agree with a log in `epoch`.

        Return (-1, -1) if such a point does not exist.

        Source: kafka-log 04 §4 (endOffsetFor).
        """
        with self.lock:
            entries, log_end_offset = self._log.epochs, self._log.offsets.log_end
        return end_offset_for(entries, epoch, log_end_offset)

    # --------------------------------------------------------------------------------------------------- roll and flush
    def roll(self, expected_next_offset: int | None = None) -> int:
        """Start a segment at the log end, or at `expected_next_offset` if it is higher.

        Return the segment's base offset.

        Raises:
            UsageError: a non-empty segment begins at that offset.

        Source: kafka-log 04 §6.
        """
        with self._log.locked(), self._log.changing_files():
            return log_roll.roll(self._log, 0 if expected_next_offset is None else expected_next_offset)

    def skip_to(self, offset: int) -> None:
        """Raise the log end to `offset` with an empty segment; the skipped offsets have no records.

        Raises:
            StorageError: the disk failed.
        """
        with self._log.locked(), self._log.changing_files():
            if offset > self._log.offsets.log_end:
                log_roll.roll(self._log, offset)
                self._log.offsets = self._log.offsets.appended_to(offset)

    def flush(self, up_to: int | None = None, *, force_last_segment: bool = False) -> None:
        """Make batches below `up_to` (by default the log end) durable, and raise the recovery point.

        With `force_last_segment`, also make an active segment without a batch durable.  Appends continue during the
        flush.

        Raises:
            StorageError: the disk failed.

        Source: kafka-log 04 §7.
        """
        log_flush.flush(self._log, up_to, force_last_segment=force_last_segment)

    def close_idle_files(self) -> None:
        """Close the files of segments that have not been used since the last call; the next use opens them again."""
        log_flush.close_idle_files(self._log)

    # ------------------------------------------------------------------------------------ high watermark and log start
    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark to `offset`, or to the nearest offset within the log; return the high watermark.

        The call can lower the high watermark.  After an append, call `maybe_increment_high_watermark`, which never
        lowers it.

        Source: Kafka's UnifiedLog.updateHighWatermark.
        """
        with self._announcing(), self.lock:
            self._log.set_high_watermark(offset)
            return self._log.offsets.high_watermark

    def maybe_increment_high_watermark(self, offset: int | None = None) -> bool:
        """Raise the high watermark to `offset`, by default the log end.

        Return False if it is already at `offset` or above.  The default is correct for a log without other replicas;
        any number of threads may append meanwhile.

        Raises:
            UsageError: `offset` is above the log end.
        """
        with self.lock:
            offsets = self._log.offsets
            wanted = offsets.log_end if offset is None else offset
            if wanted > offsets.log_end:
                raise UsageError(
                    f"high watermark {wanted} is above the log end offset {offsets.log_end}",
                    partition=str(self.partition),
                )
            risen = offsets.replicated_to(wanted)
            if risen is offsets:
                return False
            self._log.set_high_watermark(risen.high_watermark)
        self._on_readable_change(self)
        return True

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Raise the log start to `offset`; return False if it is already at `offset` or above.

        The files are kept until `delete_old_segments` deletes them.

        Raises:
            OffsetOutOfRangeError: `offset` is above the high watermark.

        Source: kafka-log 03 §4, 04 §4, §7.
        """
        with self._announcing():
            return log_retention.maybe_increment_log_start_offset(self._log, offset)

    def delete_records(self, before_offset: int) -> int:
        """Delete the records below `before_offset` (-1: the high watermark), as a DeleteRecords request does.

        Return the log start offset.

        Raises:
            InvalidTopicError: the topic is internal.
            PolicyViolationError: the topic is compacted only.
            OffsetOutOfRangeError: the offset is below -1 or above the high watermark.

        Source: kafka-log 03 §5.
        """
        with self._announcing():
            return log_retention.delete_records(self._log, before_offset)

    def delete_old_segments(self) -> int:
        """Delete the segments past their retention limits; return their number.

        Source: kafka-log 03 §2, §3.
        """
        with self._announcing():
            return log_retention.delete_old_segments(self._log)

    def delete_segments_below_log_start(self) -> int:
        """Delete the segments below the log start, regardless of retention limits; return their number.

        Source: kafka-log 03 §2, §3.
        """
        with self._announcing():
            return log_retention.delete_segments_below_log_start(self._log)

    # ------------------------------------------------------------------------------------------- truncate and replace
    def truncate_to(self, offset: int) -> bool:
        """Truncate the log to end at `offset`; return False if it already ends at `offset` or below.

        A batch that spans `offset` is removed completely.

        Raises:
            UsageError: `offset` is negative.
            StorageError: the disk failed.

        Source: kafka-log 04 §10.
        """
        if offset < 0:
            raise UsageError(f"a log cannot end at {offset}", partition=str(self.partition))
        with self._announcing(), self._log.locked(), self._log.changing_files():
            return log_truncation.truncate_to(self._log, offset)

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Delete all records and continue at `offset`; `log_start_offset` becomes the log start, by default `offset`.

        Raises:
            UsageError: `offset` is negative or below `log_start_offset`; nothing changed.
            StorageError: the disk failed.

        Source: kafka-log 04 §10.
        """
        if offset < 0:
            raise UsageError(f"a log cannot begin at {offset}", partition=str(self.partition))
        with self._announcing(), self._log.locked(), self._log.changing_files():
            log_truncation.truncate_fully(self._log, offset, log_start_offset)

    def replace_segments(self, swap: PreparedSwap, *, before_group: Callable[[], None] | None = None) -> None:
        """Commit a cleaning of this log: the parts of each group replace its sources.

        The lock is held for one group at a time, so appends and reads continue between two groups.  `before_group` is
        called without the lock.

        Raises:
            SourceChangedError, UsageError: as in `engine.directory.swap.commit`; the groups before the failed one stay
                committed.
            StorageError: the disk failed.

        Source: kafka-log 02 §8.1; Kafka's LocalLog.replaceSegments, which the cleaner calls for each group.
        """
        log_commit.replace_segments(self._log, swap, before_group)

    # ------------------------------------------------------------------------------------------------------------- read
    def read(
        self,
        start_offset: int,
        max_bytes: int,
        isolation: Isolation = Isolation.LOG_END,
        *,
        min_one_message: bool = False,
    ) -> FetchedData:
        """Return at most `max_bytes` from the segment that contains `start_offset`, or from the next segment with data.

        With `min_one_message`, the first batch is returned complete even if it is larger than `max_bytes`.

        Raises:
            OffsetOutOfRangeError: `start_offset` is outside the log.
            UsageError: `max_bytes` is negative.
            CorruptBatchError: the segment is corrupt.
            StorageError: the disk failed.

        Source: kafka-log 04 §8.
        """
        return log_reader.read(self._log, start_offset, max_bytes, isolation, min_one_message=min_one_message)

    def convert_to_offset_metadata(self, offset: int) -> LogOffsetMetadata:
        """Return the location of the first batch that ends at or above `offset`.

        Raises:
            OffsetOutOfRangeError: `offset` is outside the log.
        """
        return log_reader.offset_metadata(self._log, offset)

    def lookup_timestamp(self, target_ms: int, *, only_quick: bool = False) -> TimestampOffsetEpoch | None:
        """Return the first record at or after a time, or the offset for a constant such as EARLIEST_TIMESTAMP.

        Return None if no record is found.  With `only_quick`, no large batch is searched, because others wait for this
        thread.

        Raises:
            UsageError: the time is negative and not one of these constants.
            CorruptBatchError: the segment is corrupt.
            StorageError: the disk failed.
            LongWorkError: `only_quick` is True, and a large batch must be searched.

        Source: kafka-log 04 §9.
        """
        return log_reader.lookup_timestamp(self._log, target_ms, only_quick=only_quick)

    # -------------------------------------------------------------------------------------------------------------- end
    def go_offline(self, reason: str) -> None:
        """Refuse every further call with StorageError; `reason` is a clause in the text of the error.

        The call does not wait for a lock, so calls in progress continue.  `close_handlers` closes the files.
        """
        self._log.go_offline(reason)

    def close(self) -> None:
        """Close the files as for a clean stop: trim the indexes, and write a snapshot of the producers at the log end.

        Batches are not flushed.  For a clean stop, call `flush(force_last_segment=True)` first.  If the log is offline,
        only the files are closed.

        Raises:
            StorageError: the disk failed.

        Source: kafka-log 04 §3.1, §14.
        """
        if self.is_closed or self.is_offline:
            self.close_handlers()
            return
        with self._announcing(), self._log.locked():
            self._log.write_snapshot(self._log.offsets.log_end, synced=True)
            self._log.segments.active.become_inactive()
            for file in self._log.segments.active.files():
                file.sync()
            self._log.release()

    def close_handlers(self) -> None:
        """Close the files and write nothing."""
        with self._announcing(), self.lock:
            self._log.release()

    def rename_directory(self, directory: Path) -> None:
        """Rename the partition's directory within its log directory; open files stay open.  Not yet durable.

        Raises:
            StorageError: the disk failed.
        """
        with self._log.locked():
            self._fs.rename(self.directory, directory)
            self._log.directory = directory
            for segment in self._log.segments:
                segment.moved(directory)

    def delete(self) -> None:
        """Delete the log and its directory immediately.

        Raises:
            StorageError: the disk failed.

        Source: kafka-log 04 §13.
        """
        with self._announcing(), self._log.locked():
            self._log.release()
            mark_deleted(self.directory, self._log.segments.base_offsets, self._fs, kinds=tuple(SegmentFileKind))
            remove_deleted(self.directory, [entry.name for entry in self._fs.scan(self.directory)], self._fs)
            self._fs.remove_directory(self.directory)

    # --------------------------------------------------------------------------------------------------------- listener
    def announce_to(self, on_readable_change: Callable[[PartitionLog], None]) -> None:
        """Call `on_readable_change` now, and again after each change of the readable range."""
        self._on_readable_change = on_readable_change
        on_readable_change(self)

    @contextmanager
    def _announcing(self) -> Iterator[None]:
        """Call `on_readable_change` at the end of the block if the readable range has changed or the log was closed.

        The block may take the log's lock; the listener is called after the lock is released.
        """
        before = self._readable_state()
        try:
            yield
        finally:
            if self._readable_state() != before:
                self._on_readable_change(self)

    def _readable_state(self) -> tuple[int, int, bool]:
        offsets = self._log.offsets
        return offsets.log_start, offsets.high_watermark, self.is_closed
