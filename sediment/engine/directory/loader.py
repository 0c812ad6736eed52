"""Loading a partition as a broker's start does, and repairing what a crash left (kafka-log 05 §2 to §6).

    finish_interrupted      leftovers of replacements and deletions                                    passes 1 to 3
    load segment files      orphans; a segment without its offset index is recovered                   pass 4
    recover the log         batches from the recovery point on are verified, what follows damage goes  §3, §4
    finish                  leader epochs, producer state and snapshots, log start                     §2, §6

Invariants
* Where a broker would cut the log because it does not trust it (at and above the recovery point after a stop that was
  not clean), the log is cut; where it trusts, nothing is cut but a tail that is no batch and hides none.  Damage found
  in a trusted part is reported.
* Every change leaves a directory that loads, by us and by a broker, and loading it again after a crash anywhere ends in
  the same directory: what follows a cut goes before the cut, a segment's offset index is put in place after all that
  its absence asks for.
* Nothing is taken from a clean-shutdown marker but what `checkpoints` says of it; markers and the checkpoint files of
  the log directory are the caller's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from sediment.engine.config import LogConfig
from sediment.engine.directory.leader_epochs import Epochs, assign, latest_epoch, truncate_from_end, truncate_from_start
from sediment.engine.directory.producer_snapshots import ProducerStateManager, ReplayedSegment, Snapshots
from sediment.engine.directory.split_segment import split_segment
from sediment.engine.directory.swap import Repair, finish_interrupted, mark_deleted
from sediment.segment_io.errors import (
    CorruptBatchError,
    CorruptCheckpointError,
    CorruptDataError,
    CorruptIndexError,
    IndexOffsetOverflowError,
    SourceChangedError,
    UnsupportedDataError,
)
from sediment.segment_io.format.checkpoints import format_leader_epochs
from sediment.segment_io.format.indexes import (
    AbortedTransaction,
    encode_transaction_index,
    parse_transaction_index,
)
from sediment.segment_io.format.layout import (
    INT32_MAX,
    INT64_MAX,
    MAX_SEGMENT_BYTES,
    NO_LEADER_EPOCH,
    OFFSET_ENTRY_BYTES,
    OFFSET_ENTRY_STRUCT,
    TIME_ENTRY_BYTES,
    TIME_ENTRY_STRUCT,
)
from sediment.segment_io.format.names import (
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    DirectoryState,
    SegmentFileKind,
    TopicPartition,
    parse_segment_file,
    part_file_name,
    segment_file_name,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_leader_epochs
from sediment.segment_io.partition.listing import SegmentRef, list_log
from sediment.segment_io.partition.log_dir import PartitionCheckpoints
from sediment.segment_io.partition.producer_state import ProducerState
from sediment.segment_io.segment.next_offset import batch_ends
from sediment.segment_io.segment.reader import Rows
from sediment.segment_io.segment.recovery_scan import SegmentScan, find_batches_after, scan_segment
from sediment.segment_io.units import NS_PER_MS

_COPIED_BYTES = 1 << 20
_LOG, _OFFSET_INDEX, _TIME_INDEX, _TRANSACTION_INDEX, _ = SegmentFileKind
_INDEX_KINDS = (_OFFSET_INDEX, _TIME_INDEX, _TRANSACTION_INDEX)
_MOST_BATCHES_AHEAD = 1 << 18

_Result = TypeVar("_Result")


# --------------------------------------------------------------------------------------------------------------- result
@dataclass(frozen=True, slots=True)
class LoadedSegment:
    """A segment of a loaded log, in Kafka's terms.

    `largest_timestamp_ms` is that of the last time index entry or, where that was rebuilt, of the batches; the file's
    modification time where there is none.
    """

    base_offset: int
    log_bytes: int
    offset_index_entries: int
    time_index_entries: int
    next_offset: int
    largest_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class LoadCorruption:
    """Bytes of a trusted segment that contradict their format, left as they are; `offset` is the last good one + 1."""

    name: str
    position: int
    offset: int
    what: str

    def __str__(self) -> str:
        return f"{self.name} is damaged at position {self.position} (offset {self.offset}): {self.what}"


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """A partition as a broker would have it after its start; offsets are absolute, ends exclusive.

    `high_watermark` is that of the checkpoint within the log, else the log start offset.  `recovery_point` is what the
    start leaves, which only a flush moves on.  `repairs` tell in order what was changed, `damage` what is wrong and was
    left alone.  Every batch from `verified_from_offset` on was verified, none where that is None.
    """

    partition: TopicPartition
    path: Path
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    recovery_point: int
    segments: tuple[LoadedSegment, ...]
    leader_epochs: Epochs
    producers: ProducerState
    aborted: tuple[AbortedTransaction, ...]
    repairs: tuple[Repair, ...]
    damage: tuple[LoadCorruption, ...]
    verified_from_offset: int | None

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is open or whose marker is not below the high watermark."""
        return self.producers.first_unstable_offset(self.high_watermark, log_start_offset=self.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Where readers of committed data stop."""
        return self.producers.last_stable_offset(self.high_watermark, log_start_offset=self.log_start_offset)


def load_log(
    partition: TopicPartition,
    directory: Path,
    config: LogConfig,
    checkpoints: PartitionCheckpoints,
    fs: Fs,
    *,
    now_ms: int,
    verify_trusted: bool = False,
    state: DirectoryState = DirectoryState.LIVE,
    threads: int = 1,
) -> LoadedLog:
    """Load the log in `directory` and repair it; the log directory's lock must be held.

    After a clean stop a broker reads hardly anything; with `verify_trusted` every batch is checked all the same.
    So many `threads` verify segments at once.  All that the result counts on is durable when it is returned.

    Raises:
        CorruptDataError: a broker would refuse to load this partition; what was repaired so far stays.
        UnsupportedDataError: a batch or index of a later version; nothing was cut.
        CorruptCheckpointError: the leader epochs are malformed.
        OSError: as the filesystem says.

    Source: kafka-log 05 §2.
    """
    return _Loading(partition, directory, config, checkpoints, fs, now_ms, verify_trusted, state, threads).load()


# -------------------------------------------------------------------------------------------------------------- loading
@dataclass(slots=True, eq=False)
class _Segment:
    """A segment as it is on disk now.

    `following_base_offset` is that of the next segment, None of the last; `scan` is what a recovery of these bytes
    found, None where there was none.
    """

    ref: SegmentRef
    following_base_offset: int | None
    scan: SegmentScan | None = None

    @property
    def base_offset(self) -> int:
        return self.ref.base_offset

    def name(self, kind: SegmentFileKind = _LOG) -> str:
        return segment_file_name(self.ref.base_offset, kind)


class _TooManyBatchesError(Exception):
    """A scan ahead of its turn would have to keep too much."""


@dataclass(frozen=True, slots=True, eq=False)
class _ScannedAhead:
    """A scan of a segment of which nothing before was known, and its batches of producers, BATCH_ROW tables."""

    scan: SegmentScan
    tables: tuple[Rows, ...]

    def behind(self, known_leader_epoch: int) -> SegmentScan:
        """The scan as it is when that leader epoch was seen before."""
        epochs = tuple(found for found in self.scan.leader_epochs if found[0] > known_leader_epoch)
        return replace(self.scan, leader_epochs=epochs)


class _Loading:
    """One start of one partition: what is known of it so far."""

    def __init__(
        self,
        partition: TopicPartition,
        directory: Path,
        config: LogConfig,
        checkpoints: PartitionCheckpoints,
        fs: Fs,
        now_ms: int,
        verify_trusted: bool,
        state: DirectoryState,
        threads: int,
    ) -> None:
        self.partition = partition
        self.directory = directory
        self.config = config.compaction
        self.is_clean = checkpoints.clean_shutdown
        self.log_start_checkpoint = checkpoints.log_start or 0
        self.recovery_point_checkpoint = checkpoints.recovery_point or 0
        self.high_watermark_checkpoint = checkpoints.high_watermark
        self.fs = fs
        self.now_ms = now_ms
        self.verify_trusted = verify_trusted
        self.state = state
        self.threads = threads
        self.segments: list[_Segment] = []
        self.epochs: Epochs = ()
        self.repairs: list[Repair] = []
        self.damage: list[LoadCorruption] = []
        self.verified_from_offset: int | None = None
        self.snapshots = Snapshots(directory, (), fs, like=self._like, repairs=self.repairs)
        self.snapshots_found: tuple[int, ...] = ()
        self._walked_ends: dict[tuple[int, int, int | None], tuple[int, int]] = {}

    def load(self) -> LoadedLog:
        self._check_names()
        self.epochs = read_leader_epochs(self.fs, self.directory / LEADER_EPOCH_FILE) or ()
        self.repairs += finish_interrupted(self.directory, self.fs)
        self._remove_temporary_files()
        if self.state is DirectoryState.DELETE:
            self._split_and_retry(self._load_segment_files)
            if not self.segments:
                self._create_segment(0)
            recovery_point, log_end_offset = 0, 0
        else:
            recovery_point, log_end_offset = self._split_and_retry(self._load_and_recover)
        log_start_offset = max(self.log_start_checkpoint, self.segments[0].base_offset)
        self._put_epochs(
            truncate_from_start(truncate_from_end(self.epochs, log_end_offset), self.log_start_checkpoint),
            # An idle leader has noted an epoch that begins at the log end.
            is_routine=truncate_from_end(self.epochs, log_end_offset + 1) == self.epochs,
        )
        manager = self._rebuild_producers(log_start_offset, log_end_offset)
        high_watermark = log_start_offset
        if self.high_watermark_checkpoint is not None:
            high_watermark = min(max(self.high_watermark_checkpoint, log_start_offset), log_end_offset)
        return LoadedLog(
            partition=self.partition,
            path=self.directory,
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            high_watermark=high_watermark,
            recovery_point=max(recovery_point, log_start_offset),
            segments=tuple(self._loaded(segment) for segment in self.segments),
            leader_epochs=self.epochs,
            producers=manager.state,
            aborted=tuple(entry for segment in self.segments for entry in self._aborted_in(segment)),
            repairs=tuple(self.repairs),
            damage=tuple(self.damage),
            verified_from_offset=self.verified_from_offset,
        )

    def _load_and_recover(self) -> tuple[int, int]:
        """(recovery point, log end offset)."""
        self.damage.clear()
        self._load_segment_files()
        bases = [segment.base_offset for segment in self.segments]
        first = 0 if self.is_clean and self.verify_trusted else self._unverified_from(bases)
        self.verified_from_offset = bases[first] if first < len(bases) else None
        if self.is_clean:
            self._check_trusted()
        else:
            self._recover_from(self.recovery_point_checkpoint)
        return self._settle_ends()

    # -------------------------------------------------------------------------------------------------------- the files
    def _path(self, segment: _Segment, kind: SegmentFileKind = _LOG) -> Path:
        return self.directory / segment.name(kind)

    def _check_names(self) -> None:
        """A broker does not load a directory with a log or index whose name says no offset, nor do we guess.

        An offset of more or fewer digits stands for the file of 20 digits, which is opened in its place.  Where that is
        missing a broker makes an empty segment; the log that is there is not passed over here.
        """
        found = self.fs.scan(self.directory)
        special = [entry.name for entry in found if not entry.is_file and not entry.is_directory]
        for name in (*special, *self.fs.broken_links(self.directory)):
            parsed = parse_segment_file(name)
            if parsed is not None and parsed.kind is _LOG and not parsed.state:
                raise CorruptDataError(
                    "a segment is no regular file, or a link that leads nowhere",
                    partition=str(self.partition),
                    path=str(self.directory / name),
                    advice="mount what it leads to, or move it out of the directory; a broker would leave a hole here",
                )
        entries = [entry for entry in found if entry.is_file]
        names = {entry.name for entry in entries}
        for entry in entries:
            kind = next((kind for kind in (_LOG, *_INDEX_KINDS) if entry.name.endswith(kind)), None)
            if kind is None:
                continue
            parsed = parse_segment_file(entry.name)
            if parsed is None and not _stands_for_another(entry.name, kind, names):
                raise CorruptDataError(
                    "the name of a segment file is no offset of 20 digits",
                    partition=str(self.partition),
                    path=str(self.directory / entry.name),
                    advice="a broker refuses to load this partition; move the file out of the directory",
                )
            if parsed is not None and kind is _LOG and entry.size_bytes > MAX_SEGMENT_BYTES:
                raise CorruptDataError(
                    f"a segment of {entry.size_bytes} bytes is larger than any that a broker opens",
                    partition=str(self.partition),
                    path=str(self.directory / entry.name),
                    advice="restore the segment from a replica or a backup",
                )

    def _remove_temporary_files(self) -> None:
        """What a crash left of our own rewriting of small files; a broker ignores it."""
        for entry in self.fs.scan(self.directory):
            target = entry.name.removesuffix(".tmp")
            if target != entry.name and (target == LEADER_EPOCH_FILE or parse_segment_file(target) is not None):
                self.fs.unlink(self.directory / entry.name)
                self.repairs.append(Repair("deleted", entry.name, "a crash left it half written"))

    def _put(self, segment: _Segment, kind: SegmentFileKind, content: bytes, why: str) -> None:
        """Make a file of the segment hold `content`, durably, and touch it only if it does not.

        An index of an active segment is preallocated: no more of it is read than `content` is long, and its zeros
        after that only where the filesystem has no hole.
        """
        path = self._path(segment, kind)
        entry = self.fs.entry(path)
        begins_so = entry is not None and self.fs.read_range(path, 0, len(content)) == content
        if entry is not None and begins_so and entry.size_bytes == len(content):
            self.fs.sync_file(path)
        else:
            is_trimmed = begins_so and self.fs.ends_in_zeros(path, len(content))
            self.fs.replace_file(path, content, like=self._path(segment))
            if entry is None:
                self.repairs.append(Repair("created", path.name, "it was missing"))
            elif is_trimmed:
                trimmed = f"trimmed to {len(content)} bytes"
                self.repairs.append(Repair(trimmed, path.name, "its entries end there", is_routine=True))
            else:
                self.repairs.append(Repair("rewritten", path.name, why))
        sizes = {
            _OFFSET_INDEX: "offset_index_bytes",
            _TIME_INDEX: "time_index_bytes",
            _TRANSACTION_INDEX: "transaction_index_bytes",
        }
        segment.ref = replace(segment.ref, **{sizes[kind]: len(content)})

    def _put_epochs(self, epochs: Epochs, *, is_routine: bool = False) -> None:
        """The leader epochs of the log, in the file too."""
        if epochs == self.epochs:
            return
        path = self.directory / LEADER_EPOCH_FILE
        self.fs.replace_file(path, format_leader_epochs(epochs), like=self._like())
        self.repairs.append(Repair("rewritten", path.name, "its epochs were not those of the log", is_routine))
        self.epochs = epochs

    def _like(self) -> Path:
        """A file whose owner, group and mode new files get; the directory where it holds none."""
        if self.segments:
            return self._path(self.segments[0])
        files = [entry.name for entry in self.fs.scan(self.directory) if entry.is_file]
        return self.directory / files[0] if files else self.directory

    def _create_segment(self, base_offset: int) -> None:
        path = self.directory / segment_file_name(base_offset, _LOG)
        like = self._like()
        for kind in (_TIME_INDEX, _OFFSET_INDEX, _LOG):
            new = self.directory / segment_file_name(base_offset, kind)
            self.fs.replace_file(new, b"", like=like)
        self.repairs.append(Repair("created", path.name, "the log had no segment"))
        mtime_ns = self._mtime_ns(path)
        self.segments.append(_Segment(SegmentRef(base_offset, 0, 0, 0, None, mtime_ns), None))

    def _mtime_ns(self, path: Path) -> int:
        entry = self.fs.entry(path)
        return 0 if entry is None else entry.mtime_ns

    # ----------------------------------------------------------------------------------------------------------- pass 4
    def _load_segment_files(self) -> None:
        """Take in the segments, ascending; one that lacks its offset index is recovered at once.

        So is one whose transaction index ends below its base.  Where the producers before it cannot be known yet,
        because a segment that is to be verified is damaged, it waits for its turn; a broker does not load such a log.

        Source: kafka-log 05 §2 pass 4.
        """
        listing = list_log(self.partition, self.directory, self.fs)
        self.segments = []
        self.snapshots_found = listing.snapshots
        self.snapshots = Snapshots(self.directory, listing.snapshots, self.fs, like=self._like, repairs=self.repairs)
        bases = [ref.base_offset for ref in listing.segments]
        unverified = self._unverified_from(bases)
        for place, ref in enumerate(listing.segments):
            segment = _Segment(ref, bases[place + 1] if place + 1 < len(bases) else None)
            reason = self._why_recover(segment)
            if reason is not None:
                try:
                    self._recover_segment(segment, cut=place >= unverified, reason=reason)
                except CorruptBatchError:
                    # Of a segment before it that is still to be verified; what that leaves of this one comes later.
                    if place <= unverified:
                        raise
            else:
                self._trim_indexes(segment)
                if ref.time_index_bytes is None:
                    self._put(segment, _TIME_INDEX, b"", "")
            self.segments.append(segment)

    def _why_recover(self, segment: _Segment) -> str | None:
        """Why a broker would recover this segment whatever the recovery point; None: it would not."""
        if segment.ref.offset_index_bytes is None:
            return "its segment had no offset index"
        path = self._path(segment, _TRANSACTION_INDEX)
        if segment.ref.transaction_index_bytes:
            try:
                parse_transaction_index(self.fs.read_bytes(path), path=str(path)).check(segment.base_offset)
            except CorruptIndexError as error:
                return error.what
        return None

    def _trim_indexes(self, segment: _Segment) -> None:
        """Cut what is no whole entry off the end of trusted indexes, as a broker does when it stops."""
        for kind, size_bytes, entry_bytes in (
            (_OFFSET_INDEX, segment.ref.offset_index_bytes, OFFSET_ENTRY_BYTES),
            (_TIME_INDEX, segment.ref.time_index_bytes, TIME_ENTRY_BYTES),
        ):
            if size_bytes is not None and size_bytes % entry_bytes:
                content = self.fs.read_bytes(self._path(segment, kind))
                whole_bytes = size_bytes - size_bytes % entry_bytes
                self._put(segment, kind, content[:whole_bytes], "what followed its last entry was none")

    def _unverified_from(self, base_offsets: list[int]) -> int:
        """Index of the first segment that a broker would verify: the one of the recovery point, after no clean stop."""
        if self.is_clean:
            return len(base_offsets)
        return max(bisect_right(base_offsets, self.recovery_point_checkpoint) - 1, 0)

    # --------------------------------------------------------------------------------------------------------- recovery
    def _recover_from(self, recovery_point: int) -> None:
        """Verify the segments from `recovery_point` on; behind the first damage nothing is left of the log.

        Source: kafka-log 05 §3.
        """
        first = self._unverified_from([segment.base_offset for segment in self.segments])
        unverified = self.segments[first:]
        threads = min(self.threads, len(unverified))
        with ThreadPoolExecutor(max(threads, 1), thread_name_prefix="sediment-verify") as pool:
            scans: deque[Future[_ScannedAhead | None]] = deque()
            for place, segment in enumerate(unverified):
                if threads > 1:
                    following = unverified[place + len(scans) : place + threads]
                    scans.extend(pool.submit(self._scan_ahead, one) for one in following)
                ahead = scans.popleft().result() if scans else None
                if self._recover_segment(segment, cut=True, reason="it did not match its log", ahead=ahead):
                    for scan in scans:
                        scan.cancel()
                    return

    def _scan_ahead(self, segment: _Segment) -> _ScannedAhead | None:
        """A scan whose batches of producers are kept; None where it has to be done in its turn.

        That is where it does not end well, or where too many batches would have to be kept.
        """
        tables: list[Rows] = []

        def keep(rows: Rows) -> None:
            if len(rows) + sum(map(len, tables)) > _MOST_BATCHES_AHEAD:
                raise _TooManyBatchesError
            tables.append(rows.copy())

        try:
            scan = self._scan(segment, keep, NO_LEADER_EPOCH, stop_if_offsets_go_back=True)
        except (CorruptDataError, UnsupportedDataError, _TooManyBatchesError):
            return None
        return _ScannedAhead(scan, tuple(tables))

    def _recover_segment(
        self, segment: _Segment, *, cut: bool, reason: str, ahead: _ScannedAhead | None = None
    ) -> bool:
        """Verify one segment and rebuild its indexes; whether something was cut off its end.

        With `cut` the log ends before the first bad batch: the loaded segments behind this one go first, so that a
        crash in between finds the damage again.  Without it only a tail is cut that loses no batch; other damage is
        left where it is, and the indexes end before it.

        Source: kafka-log 05 §4.
        """
        manager = self._manager()
        believed = self.snapshots.offsets()
        manager.rebuild(
            [self._replayed(other) for other in self.segments],
            self.log_start_checkpoint,
            segment.base_offset,
            reload_from_clean_shutdown=False,
        )
        manager.forget_completed()
        if ahead is None:
            scan = self._scan(segment, manager.replay_aborted, latest_epoch(self.epochs), stop_if_offsets_go_back=cut)
        else:
            scan = ahead.behind(latest_epoch(self.epochs))
            with self._of_this_partition():
                for rows in ahead.tables:
                    manager.replay_aborted(rows)
        is_damaged = scan.good_bytes < segment.ref.log_bytes
        cuts = is_damaged and (cut or self._is_torn_tail(segment, scan))
        if is_damaged and not cuts:
            self._note_damage(segment, scan)
            self.snapshots.believe_again(believed)
        else:
            epochs = self.epochs
            for epoch, start_offset in scan.leader_epochs:
                epochs = assign(epochs, epoch, start_offset)
            self._put_epochs(epochs)
            manager.map_end_offset = scan.producers_end_offset
            manager.take_snapshot()
        if cuts and cut and segment in self.segments:
            why = f"the log ends at offset {scan.next_offset}, in segment {segment.base_offset}"
            self._remove_segments(self.segments[self.segments.index(segment) + 1 :], why)
        aborted = encode_transaction_index(manager.state.aborted())
        if aborted or segment.ref.transaction_index_bytes is not None:
            self._put(segment, _TRANSACTION_INDEX, aborted, reason)
        self._put(segment, _TIME_INDEX, scan.time_index, reason)
        self._put(segment, _OFFSET_INDEX, scan.offset_index, reason)
        segment.scan = scan
        if cuts:
            self._cut(segment, scan)
        self.fs.sync_file(self._path(segment))
        return cuts

    def _scan(
        self,
        segment: _Segment,
        on_producer_batches: Callable[..., None] | None,
        known_leader_epoch: int,
        *,
        stop_if_offsets_go_back: bool,
    ) -> SegmentScan:
        with self._of_this_partition():
            return scan_segment(
                self._path(segment),
                segment.base_offset,
                segment.ref.log_bytes,
                index_interval_bytes=self.config.index_interval_bytes,
                segment_index_bytes=self.config.segment_index_bytes,
                known_leader_epoch=known_leader_epoch,
                stop_if_offsets_go_back=stop_if_offsets_go_back,
                on_producer_batches=on_producer_batches,
                fs=self.fs,
            )

    @contextmanager
    def _of_this_partition(self) -> Iterator[None]:
        try:
            yield
        except (CorruptBatchError, UnsupportedDataError) as error:
            error.partition = str(self.partition)
            raise

    def _cut(self, segment: _Segment, scan: SegmentScan) -> None:
        """Cut a log where its good batches end.

        In place: the bytes behind are what a crash tore, and a copy of those before could need a gigabyte that the
        disk does not have.  But a file that has another name too, in the BEFORE of a run, keeps its bytes there.
        """
        path, before = self._path(segment), segment.ref.log_bytes
        behind = find_batches_after(path, scan.good_bytes, before, scan.next_offset, self.fs)
        why = f"{scan.stop}; the log ends at offset {scan.next_offset}"
        if behind.good_batches:
            why += f", and {behind.good_batches} good batches behind, up to offset {behind.last_offset}, went with it"
        if path.stat().st_nlink > 1:
            self._replace_by_beginning(path, scan.good_bytes)
        else:
            self.fs.truncate(path, scan.good_bytes)
        self.repairs.append(Repair(f"cut from {before} to {scan.good_bytes} bytes", path.name, why))
        segment.ref = replace(segment.ref, log_bytes=scan.good_bytes, mtime_ns=self._mtime_ns(path))

    def _replace_by_beginning(self, path: Path, size_bytes: int) -> None:
        part = path.with_name(part_file_name(int(path.stem), SegmentFileKind.LOG, "recover", "0"))
        self.fs.unlink(part, missing_ok=True)
        self.fs.write_new(part, _beginning(path, size_bytes))
        self.fs.adopt_owner(part, path)
        self.fs.sync_file(part)
        self.fs.rename(part, path)
        self.fs.sync_directory(path.parent)

    def _remove_segments(self, doomed: list[_Segment], why: str) -> None:
        """Rename the files of segments to `.deleted`, the last segment first; the next start removes them.

        Their snapshots go too, unless recovery has taken one there.

        Source: kafka-log 05 §3 step 2.
        """
        descending = list(reversed(doomed))
        mark_deleted(self.directory, [segment.base_offset for segment in descending], self.fs)
        for segment in descending:
            self.segments.remove(segment)
            if segment.base_offset in self.snapshots_found:
                self.snapshots.drop(segment.base_offset, why)
            self.repairs.append(
                Repair(f"and its indexes renamed to .deleted, {segment.ref.log_bytes} bytes", segment.name(), why)
            )

    # ---------------------------------------------------------------------------------------------------------- trusted
    def _check_trusted(self) -> None:
        """After a clean stop: the end of the log always, every batch if asked for.

        Beyond a broker, which takes a torn last batch for the end of the segment before it and then appends behind it.
        """
        for segment in self.segments:
            if segment.scan is not None:
                continue
            is_last = segment.following_base_offset is None
            is_torn = is_last and self._walk_end(segment)[1] < segment.ref.log_bytes
            if not (is_torn or self.verify_trusted):
                continue
            try:
                scan = self._scan(segment, None, 0, stop_if_offsets_go_back=False)
            except IndexOffsetOverflowError as error:
                self._note_overflow(segment, error)
                continue
            if self._is_torn_tail(segment, scan):
                if is_last:
                    self._recover_segment(segment, cut=False, reason="it did not match its log")
                else:
                    self._cut(segment, scan)
                    self.fs.sync_file(self._path(segment))
            elif scan.good_bytes < segment.ref.log_bytes:
                self._note_damage(segment, scan)

    def _is_torn_tail(self, segment: _Segment, scan: SegmentScan) -> bool:
        """Whether what follows the good batches is no batch and hides none, so that cutting it off loses nothing.

        Of a segment with another behind it this holds only if that one goes on at the very next offset.
        """
        if not scan.is_torn or segment.following_base_offset not in (None, scan.next_offset):
            return False
        path = self._path(segment)
        return not find_batches_after(
            path, scan.good_bytes, segment.ref.log_bytes, scan.next_offset, self.fs
        ).good_batches

    def _note_damage(self, segment: _Segment, scan: SegmentScan) -> None:
        path = self._path(segment)
        behind = find_batches_after(path, scan.good_bytes, segment.ref.log_bytes, scan.next_offset, self.fs)
        what = f"{scan.stop}; {behind.good_batches} good batches follow in this segment"
        self.damage.append(LoadCorruption(segment.name(), scan.good_bytes, scan.next_offset, what))

    def _note_overflow(self, segment: _Segment, overflow: IndexOffsetOverflowError) -> None:
        self.damage.append(LoadCorruption(segment.name(), overflow.position or 0, overflow.offset or 0, overflow.what))

    def _walk_end(self, segment: _Segment) -> tuple[int, int]:
        """(offset behind the last whole batch, position behind it), from the last offset index entry on.

        From the segment's start where that entry does not hold.  Damage inside a batch does not matter: the offsets of
        what stays on disk must not be given out again.

        Source: kafka-log 05 §3 (readNextOffset).
        """
        state = segment.base_offset, segment.ref.log_bytes, segment.ref.offset_index_bytes
        if state not in self._walked_ends:
            self._walked_ends[state] = self._walk_to_end(segment)
        return self._walked_ends[state]

    def _walk_to_end(self, segment: _Segment) -> tuple[int, int]:
        position, offset = self._last_offset_entry(segment)
        for start, largest in ((position, offset), (0, None)):
            next_offset, end_position = None, start
            with suppress(CorruptBatchError):
                for last_offset, behind in batch_ends(
                    self._path(segment), self.fs, position=start, size_bytes=segment.ref.log_bytes
                ):
                    if next_offset is None and largest is not None and last_offset > largest:
                        break
                    if last_offset - segment.base_offset <= INT32_MAX:
                        next_offset = max(next_offset or 0, last_offset + 1)
                    end_position = behind
            if next_offset is not None and next_offset > segment.base_offset:
                return next_offset, end_position
        return segment.base_offset, 0

    def _last_offset_entry(self, segment: _Segment) -> tuple[int, int | None]:
        """(position, offset) of the last entry of the offset index; (0, None) where none can be right."""
        count = (segment.ref.offset_index_bytes or 0) // OFFSET_ENTRY_BYTES
        if not count:
            return 0, None
        path = self._path(segment, _OFFSET_INDEX)
        relative_offset, position = OFFSET_ENTRY_STRUCT.unpack(self._index_entry(path, count - 1, OFFSET_ENTRY_BYTES))
        if relative_offset <= 0 or not 0 < position < segment.ref.log_bytes:
            return 0, None
        return position, segment.base_offset + relative_offset

    # ------------------------------------------------------------------------------------------------------------- ends
    def _settle_ends(self) -> tuple[int, int]:
        """(recovery point, log end offset), with at least one segment.  Source: kafka-log 05 §3 steps 3 to 5."""
        if self.segments:
            log_end_offset, _ = self._end(self.segments[-1])
            if not self.segments[-1].base_offset <= log_end_offset <= INT64_MAX:
                raise CorruptDataError(
                    "the last batch has the largest offset that there is, and no offset follows it",
                    partition=str(self.partition),
                    path=str(self._path(self.segments[-1])),
                    advice="a broker would delete the whole log; move this segment out of the directory",
                )
            if log_end_offset >= self.log_start_checkpoint:
                if self.is_clean:
                    return log_end_offset, log_end_offset
                return min(self.recovery_point_checkpoint, log_end_offset), log_end_offset
            if self.is_clean and self.verify_trusted and any(segment.ref.log_bytes for segment in self.segments):
                raise CorruptCheckpointError(
                    f"the log start offset {self.log_start_checkpoint} is above the log end {log_end_offset}, and a "
                    "broker's start would delete every segment",
                    partition=str(self.partition),
                    path=str(self.directory.parent / LOG_START_FILE),
                    advice="restore the checkpoint that belongs to these segments, or remove the partition from it",
                )
            why = f"the log ends at {log_end_offset}, below its start at {self.log_start_checkpoint}"
            self._remove_segments(list(self.segments), why)
            self._put_epochs(())
            for offset in self.snapshots.offsets():
                self.snapshots.drop(offset, why)
        self._create_segment(self.log_start_checkpoint)
        return min(self.recovery_point_checkpoint, self.log_start_checkpoint), self.log_start_checkpoint

    def _end(self, segment: _Segment) -> tuple[int, int]:
        """(offset behind the last batch, position behind it), also behind damage that is left where it is."""
        if segment.scan is None:
            return self._walk_end(segment)
        next_offset, position = segment.scan.next_offset, segment.scan.good_bytes
        if position < segment.ref.log_bytes:
            walked_offset, walked_position = self._walk_end(segment)
            return max(next_offset, walked_offset), max(position, walked_position)
        return next_offset, position

    def _loaded(self, segment: _Segment) -> LoadedSegment:
        ref = segment.ref
        largest_ms = self._last_timestamp(segment) if segment.scan is None else segment.scan.largest_timestamp_ms
        return LoadedSegment(
            base_offset=ref.base_offset,
            log_bytes=ref.log_bytes,
            offset_index_entries=(ref.offset_index_bytes or 0) // OFFSET_ENTRY_BYTES,
            time_index_entries=(ref.time_index_bytes or 0) // TIME_ENTRY_BYTES,
            next_offset=self._end(segment)[0],
            largest_timestamp_ms=largest_ms if largest_ms >= 0 else ref.mtime_ns // NS_PER_MS,
        )

    def _last_timestamp(self, segment: _Segment) -> int:
        count = (segment.ref.time_index_bytes or 0) // TIME_ENTRY_BYTES
        if not count:
            return -1
        path = self._path(segment, _TIME_INDEX)
        return int(TIME_ENTRY_STRUCT.unpack(self._index_entry(path, count - 1, TIME_ENTRY_BYTES))[0])

    def _index_entry(self, path: Path, number: int, entry_bytes: int) -> bytes:
        entry = self.fs.read_range(path, number * entry_bytes, entry_bytes)
        if len(entry) < entry_bytes:
            raise SourceChangedError(
                "the index became shorter while it was read",
                path=str(path),
                position=number * entry_bytes,
                advice="another process writes to this directory; stop it and run again",
            )
        return entry

    def _aborted_in(self, segment: _Segment) -> tuple[AbortedTransaction, ...]:
        if not segment.ref.transaction_index_bytes:
            return ()
        path = self._path(segment, _TRANSACTION_INDEX)
        return parse_transaction_index(self.fs.read_bytes(path), path=str(path)).transactions()

    # -------------------------------------------------------------------------------------------------------- producers
    def _manager(self) -> ProducerStateManager:
        return ProducerStateManager(
            self.snapshots, now_ms=self.now_ms, expiration_ms=self.config.producer_id_expiration_ms
        )

    def _replayed(self, segment: _Segment) -> ReplayedSegment:
        return ReplayedSegment(segment.base_offset, self._path(segment), segment.ref.log_bytes, self.fs)

    def _rebuild_producers(self, log_start_offset: int, log_end_offset: int) -> ProducerStateManager:
        """The producers at the end of the log, with the snapshots that a start leaves.  Source: kafka-log 05 §2, §6."""
        manager = self._manager()
        manager.remove_stray_snapshots([segment.base_offset for segment in self.segments])
        *earlier, last = self.segments
        replayed_last = replace(self._replayed(last), log_bytes=self._end(last)[1])
        manager.rebuild(
            [*map(self._replayed, earlier), replayed_last],
            log_start_offset,
            log_end_offset,
            reload_from_clean_shutdown=self.is_clean,
        )
        self.snapshots.delete_dropped()
        return manager

    # ------------------------------------------------------------------------------------------------------------ split
    def _split_and_retry(self, step: Callable[[], _Result]) -> _Result:
        """`step`, again after each split of a segment whose offsets do not fit it.  Source: kafka-log 05 §2 pass 4."""
        found: set[tuple[int, int | None]] = set()
        while True:
            try:
                return step()
            except IndexOffsetOverflowError as error:
                name = parse_segment_file(Path(error.path or "").name)
                # A header may claim offsets that no segment holds: then splitting leaves the batch where it was.
                if name is None or (name.base_offset, error.offset) in found:
                    raise
                found.add((name.base_offset, error.offset))
                self.repairs.append(
                    split_segment(self.partition, self.directory, name.base_offset, error, self.config, self.fs)
                )


def _stands_for_another(name: str, kind: SegmentFileKind, names: set[str]) -> bool:
    """True of an offset that is not of 20 digits, if it is an index or the file of 20 digits is among `names`."""
    digits = name.removesuffix(kind)
    if not (digits.isascii() and digits.isdigit()) or int(digits) > INT64_MAX:
        return False
    return kind is not _LOG or segment_file_name(int(digits), kind) in names


def _beginning(path: Path, size_bytes: int) -> Iterator[bytes]:
    """The first `size_bytes` of a file, in pieces."""
    with path.open("rb") as file:
        while size_bytes > 0 and (piece := file.read(min(size_bytes, _COPIED_BYTES))):
            yield piece
            size_bytes -= len(piece)
