"""The state that the steps of one load of a partition share: segments, leader epochs, snapshots, repairs.

Invariants: every change of a file is durable when its method returns, and is listed in `repairs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import overload

from sediment.engine.directory.delete_segments import mark_deleted
from sediment.engine.directory.leader_epochs import Epochs
from sediment.engine.directory.missing_records import LogCut
from sediment.engine.directory.producer_state_manager import ProducerStateManager, ReplayedSegment, Snapshots
from sediment.engine.directory.repair import Repair
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import CorruptBatchError, UnsupportedDataError
from sediment.segment_io.format.checkpoints import format_leader_epochs
from sediment.segment_io.format.names import (
    LEADER_EPOCH_FILE,
    DirectoryState,
    SegmentFileKind,
    TopicPartition,
    segment_file_name,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.partition.segment_end import find_segment_end
from sediment.segment_io.segment.recovery_scan import RepeatedOffsets, SegmentScan, scan_segment

_LOG, _OFFSET_INDEX, _TIME_INDEX, _TRANSACTION_INDEX, _ = SegmentFileKind


@dataclass(frozen=True, slots=True)
class LoadCorruption:
    """Corrupt bytes that a load found in a trusted segment and left unchanged.

    `offset` is the offset after the last good batch that precedes these bytes.
    """

    name: str
    position: int
    offset: int
    what: str

    def __str__(self) -> str:
        return f"{self.name} is damaged at position {self.position} (offset {self.offset}): {self.what}"


@dataclass(frozen=True, slots=True)
class RepeatedBatches:
    name: str
    repeated: RepeatedOffsets


@dataclass(slots=True, eq=False)
class LoadingSegment:
    ref: SegmentRef
    following_base_offset: int | None
    scan: SegmentScan | None = None

    @property
    def base_offset(self) -> int:
        return self.ref.base_offset

    def name(self, kind: SegmentFileKind = _LOG) -> str:
        return segment_file_name(self.ref.base_offset, kind)


class _ReplayedSegments(Sequence[ReplayedSegment]):
    """The segments of a load in the form that a replay of producers reads; each is made when it is asked for.

    The recovery of a log with thousands of segments asks for a few of them at each segment.
    """

    def __init__(self, state: LoadState) -> None:
        self._state = state

    def __len__(self) -> int:
        return len(self._state.segments)

    @overload
    def __getitem__(self, index: int) -> ReplayedSegment: ...

    @overload
    def __getitem__(self, index: slice) -> list[ReplayedSegment]: ...

    def __getitem__(self, index: int | slice) -> ReplayedSegment | list[ReplayedSegment]:
        if isinstance(index, slice):
            return [self._state.replayed(segment) for segment in self._state.segments[index]]
        return self._state.replayed(self._state.segments[index])


@dataclass(frozen=True, slots=True)
class LoadMode:
    """What a load does besides the repairs of a broker's start.

    After a clean stop, a broker reads only a few batches; with `verify_trusted`, every batch is checked.  Up to
    `threads` segments are verified in parallel.  `on_cut` is called before the end of the log is cut off; if it raises,
    no log is cut.  Each repair is added to `repairs` when it is made, so that they are known after an error, too.
    """

    verify_trusted: bool = False
    directory_state: DirectoryState = DirectoryState.LIVE
    threads: int = 1
    on_cut: Callable[[LogCut], None] | None = None
    repairs: list[Repair] = field(default_factory=list)


class LoadState:
    def __init__(
        self,
        partition: TopicPartition,
        directory: Path,
        config: LogConfig,
        checkpoints: PartitionCheckpoints,
        fs: Fs,
        *,
        now_ms: int,
        mode: LoadMode,
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
        self.verify_trusted = mode.verify_trusted
        self.directory_state = mode.directory_state
        self.threads = mode.threads
        self.on_cut = mode.on_cut
        self.segments: list[LoadingSegment] = []
        self.epochs: Epochs = ()
        self.repairs = mode.repairs
        self.corruption: list[LoadCorruption] = []
        self.cuts: dict[str, LogCut] = {}
        self.repeated: dict[str, RepeatedBatches] = {}
        self.verified_from_offset: int | None = None
        self.snapshots = Snapshots(directory, (), fs, like=self.like, repairs=self.repairs)
        self.snapshots_found: tuple[int, ...] = ()
        self.segment_ends: dict[tuple[int, int, int | None], tuple[int, int]] = {}
        """(next offset, end position), keyed by (base offset, bytes of the log, bytes of the offset index)."""

    def path(self, segment: LoadingSegment, kind: SegmentFileKind = _LOG) -> Path:
        return self.directory / segment.name(kind)

    def put(self, segment: LoadingSegment, kind: SegmentFileKind, content: bytes, why: str) -> None:
        """An index of the active segment is preallocated, so the file may be longer than `content`.

        Only the beginning is compared with `content`; the rest is checked for zeros, without reading holes.
        """
        path = self.path(segment, kind)
        entry = self.fs.entry(path)
        begins_so = entry is not None and self.fs.read_range(path, 0, len(content)) == content
        if entry is not None and begins_so and entry.size_bytes == len(content):
            self.fs.sync_file(path)
        else:
            is_trimmed = begins_so and self.fs.ends_in_zeros(path, len(content))
            self.fs.replace_file(path, content, like=self.path(segment))
            if entry is None:
                self.repairs.append(Repair("created", path.name, "it was missing"))
            elif is_trimmed:
                trimmed = f"trimmed to {len(content)} bytes"
                self.repairs.append(Repair(trimmed, path.name, "it has no entries after that size", is_routine=True))
            else:
                self.repairs.append(Repair("rewritten", path.name, why))
        sizes = {
            _OFFSET_INDEX: "offset_index_bytes",
            _TIME_INDEX: "time_index_bytes",
            _TRANSACTION_INDEX: "transaction_index_bytes",
        }
        segment.ref = replace(segment.ref, **{sizes[kind]: len(content)})

    def put_epochs(self, epochs: Epochs, *, is_routine: bool = False) -> None:
        if epochs == self.epochs:
            return
        path = self.directory / LEADER_EPOCH_FILE
        self.fs.replace_file(path, format_leader_epochs(epochs), like=self.like())
        self.repairs.append(Repair("rewritten", path.name, "its epochs did not match the log", is_routine))
        self.epochs = epochs

    def like(self) -> Path:
        """Return the path whose owner, group and mode new files get.

        It is the path of a file in the directory, or of the directory itself if it contains no file.
        """
        if self.segments:
            return self.path(self.segments[0])
        files = [entry.name for entry in self.fs.scan(self.directory) if entry.is_file]
        return self.directory / files[0] if files else self.directory

    def create_segment(self, base_offset: int) -> None:
        path = self.directory / segment_file_name(base_offset, _LOG)
        like = self.like()
        for kind in (_TIME_INDEX, _OFFSET_INDEX, _LOG):
            new = self.directory / segment_file_name(base_offset, kind)
            self.fs.replace_file(new, b"", like=like)
        self.repairs.append(Repair("created", path.name, "the log had no segment"))
        mtime_ns = self.mtime_ns(path)
        self.segments.append(LoadingSegment(SegmentRef(base_offset, 0, 0, 0, None, mtime_ns), None))

    def mtime_ns(self, path: Path) -> int:
        entry = self.fs.entry(path)
        return 0 if entry is None else entry.mtime_ns

    def remove_segments(self, removed: list[LoadingSegment], why: str) -> None:
        """Rename the files of segments to `.deleted`, the last segment first; the next start removes them.

        Their producer snapshots are also dropped, unless this recovery wrote them.

        Source: kafka-log 05 §3 step 2.
        """
        descending = list(reversed(removed))
        mark_deleted(self.directory, [segment.base_offset for segment in descending], self.fs)
        for segment in descending:
            self.segments.remove(segment)
            if segment.base_offset in self.snapshots_found:
                self.snapshots.drop(segment.base_offset, why)
            self.repairs.append(
                Repair(f"renamed to .deleted with its indexes, {segment.ref.log_bytes} bytes", segment.name(), why)
            )

    def producer_manager(self) -> ProducerStateManager:
        return ProducerStateManager(
            self.snapshots, now_ms=self.now_ms, expiration_ms=self.config.producer_id_expiration_ms
        )

    def all_replayed(self) -> Sequence[ReplayedSegment]:
        return _ReplayedSegments(self)

    def replayed(self, segment: LoadingSegment) -> ReplayedSegment:
        return ReplayedSegment(segment.base_offset, self.path(segment), segment.ref.log_bytes, self.fs)

    @contextmanager
    def naming_partition(self) -> Iterator[None]:
        try:
            yield
        except (CorruptBatchError, UnsupportedDataError) as error:
            error.partition = str(self.partition)
            raise

    def scan(
        self,
        segment: LoadingSegment,
        on_producer_batches: Callable[..., None] | None,
        known_leader_epoch: int,
        *,
        stop_if_offsets_go_back: bool,
    ) -> SegmentScan:
        with self.naming_partition():
            scan = scan_segment(
                self.path(segment),
                segment.base_offset,
                segment.ref.log_bytes,
                index_interval_bytes=self.config.index_interval_bytes,
                segment_index_bytes=self.config.segment_index_bytes,
                known_leader_epoch=known_leader_epoch,
                stop_if_offsets_go_back=stop_if_offsets_go_back,
                on_producer_batches=on_producer_batches,
                fs=self.fs,
            )
        if scan.repeated is not None:
            self.repeated[segment.name()] = RepeatedBatches(segment.name(), scan.repeated)
        return scan


def end_by_headers(state: LoadState, segment: LoadingSegment) -> tuple[int, int]:
    """Return (next offset, end position) of the last complete batch, as `find_segment_end` finds it.

    Source: kafka-log 05 §3 (readNextOffset).
    """
    key = segment.base_offset, segment.ref.log_bytes, segment.ref.offset_index_bytes
    if key not in state.segment_ends:
        state.segment_ends[key] = find_segment_end(state.directory, segment.ref, state.fs)
    return state.segment_ends[key]


def end_of(state: LoadState, segment: LoadingSegment) -> tuple[int, int]:
    if segment.scan is None:
        return end_by_headers(state, segment)
    next_offset, position = segment.scan.next_offset, segment.scan.good_bytes
    if position < segment.ref.log_bytes:
        found_offset, found_position = end_by_headers(state, segment)
        return max(next_offset, found_offset), max(position, found_position)
    return next_offset, position
