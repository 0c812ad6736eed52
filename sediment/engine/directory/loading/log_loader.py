"""Loading a partition as a broker does at its start, and repairing the effects of a crash (kafka-log 05 §2 to §6).

    1  finish_interrupted    complete or undo interrupted replacements and deletions, remove   passes 1 to 4
                             indexes without a log
    2  load segment files    refuse bad names (`_check_segment_files`); recover segments         pass 4
                             without an offset index or with a corrupt transaction index
    3  recover               verify the recovery point's segment and all later ones; cut       §3, §4
                             after the last good batch (`log_recovery`, `segment_recovery`)
    4  settle ends           set the log end and the recovery point; create a segment if       §3
                             there is none
    5  finish                set leader epochs, producer state and snapshots, log start, and   §2, §6
                             the high watermark from its checkpoint, within the log

If offsets do not fit into a segment, `split_segment` splits it, and step 2 runs again. A folder that ends in -delete is
not recovered.

After a load, every index is trimmed to its entries.

Invariants
* After an unclean stop, the log may be cut at or above the recovery point, as a broker would cut it.  In a trusted part
  of the log, only a tail without a batch is cut off; other corruption is reported.
* After every change, Sediment and a broker can load the directory.  After a crash at any step, another load leads to
  the same result.  Therefore later segments are removed before a segment is cut, and the offset index of a segment is
  written last.
* `checkpoints` shows whether the stop was clean; only the caller writes the clean-shutdown marker and the checkpoint
  files of the log directory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from sediment.engine.directory.leader_epochs import Epochs, truncate_from_end, truncate_from_start
from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.loading.load_state import (
    LoadCorruption,
    LoadingSegment,
    LoadMode,
    LoadState,
    RepeatedBatches,
    end_of,
)
from sediment.engine.directory.loading.log_recovery import (
    check_trusted,
    recover_unverified,
    settle_ends,
    unverified_from,
)
from sediment.engine.directory.loading.segment_recovery import recover_segment
from sediment.engine.directory.loading.split_segment import split_segment
from sediment.engine.directory.missing_records import LogCut
from sediment.engine.directory.producer_state_manager import ProducerStateManager, Snapshots
from sediment.engine.directory.repair import Repair
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import (
    CorruptBatchError,
    CorruptDataError,
    CorruptIndexError,
    IndexOffsetOverflowError,
)
from sediment.segment_io.format.index_sanity import check_last_offsets
from sediment.segment_io.format.layout import (
    INT64_MAX,
    MAX_SEGMENT_BYTES,
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    TIME_ENTRY_STRUCT,
)
from sediment.segment_io.format.names import (
    INDEX_KINDS,
    LEADER_EPOCH_FILE,
    DirectoryState,
    SegmentFileKind,
    TopicPartition,
    parse_segment_file,
    segment_file_name,
)
from sediment.segment_io.format.transaction_index import AbortedTxn, parse_transaction_index
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints, read_leader_epochs
from sediment.segment_io.partition.listing import check_segments_are_files, list_log
from sediment.segment_io.partition.log_view import largest_timestamp_or_mtime_ms
from sediment.segment_io.partition.producer_state import ProducerState
from sediment.segment_io.partition.segment_end import index_entry

_Result = TypeVar("_Result")


# --------------------------------------------------------------------------------------------------------------- result
@dataclass(frozen=True, slots=True)
class LoadedSegment:
    """`largest_timestamp_ms` comes from the last time index entry, or from the batches if the index was rebuilt.

    If no record has a timestamp, the value is the file's modification time.
    """

    base_offset: int
    log_bytes: int
    offset_index_entries: int
    time_index_entries: int
    next_offset: int
    largest_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class LoadedLog:
    # `high_watermark` comes from the checkpoint, limited to the log's range; without a checkpoint it is the log start
    # offset. `recovery_point` is the recovery point after the start; only a flush raises it. Every batch at or after
    # `verified_from_offset` was verified; None means that no batch was verified. `cuts` are the ends of segments that
    # the load has cut off. `repeated` lists verified segments with offsets that occur twice.

    partition: TopicPartition
    path: Path
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    recovery_point: int
    segments: tuple[LoadedSegment, ...]
    leader_epochs: Epochs
    producers: ProducerState
    aborted: tuple[AbortedTxn, ...]
    repairs: tuple[Repair, ...]
    damage: tuple[LoadCorruption, ...]
    verified_from_offset: int | None
    cuts: tuple[LogCut, ...]
    repeated: tuple[RepeatedBatches, ...]

    @property
    def first_unstable_offset(self) -> int | None:
        return self.producers.first_unstable_offset(self.high_watermark, log_start_offset=self.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        return self.producers.last_stable_offset(self.high_watermark, log_start_offset=self.log_start_offset)


def load_log(
    partition: TopicPartition,
    directory: Path,
    config: LogConfig,
    checkpoints: PartitionCheckpoints,
    fs: Fs,
    *,
    now_ms: int,
    mode: LoadMode | None = None,
) -> LoadedLog:
    """Load the log in `directory` and repair it; the log directory's lock must be held.

    The returned state is durable.

    Source: kafka-log 05 §2.
    """
    return _load(LoadState(partition, directory, config, checkpoints, fs, now_ms=now_ms, mode=mode or LoadMode()))


# -------------------------------------------------------------------------------------------------------------- loading
def _load(state: LoadState) -> LoadedLog:
    _check_segment_files(state.partition, state.directory, state.fs)
    state.epochs = read_leader_epochs(state.fs, state.directory / LEADER_EPOCH_FILE) or ()
    state.repairs += finish_interrupted(state.directory, state.fs)
    _remove_temporary_files(state)
    if state.directory_state is DirectoryState.DELETE:
        _split_and_retry(state, partial(_load_segment_files, state))
        if not state.segments:
            state.create_segment(0)
        recovery_point, log_end_offset = 0, 0
    else:
        recovery_point, log_end_offset = _split_and_retry(state, partial(_load_and_recover, state))
    log_start_offset = max(state.log_start_checkpoint, state.segments[0].base_offset)
    state.put_epochs(
        truncate_from_start(truncate_from_end(state.epochs, log_end_offset), state.log_start_checkpoint),
        # A leader that has appended nothing still records an epoch, which begins at the log end.
        is_routine=truncate_from_end(state.epochs, log_end_offset + 1) == state.epochs,
    )
    manager = _rebuild_producers(state, log_start_offset, log_end_offset)
    high_watermark = log_start_offset
    if state.high_watermark_checkpoint is not None:
        high_watermark = min(max(state.high_watermark_checkpoint, log_start_offset), log_end_offset)
    return LoadedLog(
        partition=state.partition,
        path=state.directory,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        high_watermark=high_watermark,
        recovery_point=max(recovery_point, log_start_offset),
        segments=tuple(_loaded(state, segment) for segment in state.segments),
        leader_epochs=state.epochs,
        producers=manager.state,
        aborted=tuple(entry for segment in state.segments for entry in _aborted_in(state, segment)),
        repairs=tuple(state.repairs),
        damage=tuple(state.corruption),
        verified_from_offset=state.verified_from_offset,
        cuts=tuple(state.cuts[name] for name in sorted(state.cuts)),
        repeated=tuple(state.repeated[name] for name in sorted(state.repeated)),
    )


def _load_and_recover(state: LoadState) -> tuple[int, int]:
    state.corruption.clear()
    _load_segment_files(state)
    bases = [segment.base_offset for segment in state.segments]
    first = 0 if state.is_clean and state.verify_trusted else unverified_from(state, bases)
    state.verified_from_offset = bases[first] if first < len(bases) else None
    if state.is_clean:
        check_trusted(state)
    else:
        recover_unverified(state)
    return settle_ends(state)


def _remove_temporary_files(state: LoadState) -> None:
    for entry in state.fs.scan(state.directory):
        target = entry.name.removesuffix(".tmp")
        if target != entry.name and (target == LEADER_EPOCH_FILE or parse_segment_file(target) is not None):
            state.fs.unlink(state.directory / entry.name)
            state.repairs.append(Repair("deleted", entry.name, "a crash interrupted its write"))


def _load_segment_files(state: LoadState) -> None:
    """List the segments in ascending order; recover a segment immediately if its offset index is missing.

    A segment is also recovered immediately if its transaction index ends below the segment's base offset.
    The recovery of a segment needs the producers of all earlier segments. If an earlier segment is corrupt and not
    verified yet, this recovery is postponed. A broker does not load such a log.
    """
    listing = list_log(state.partition, state.directory, state.fs)
    state.segments = []
    state.snapshots_found = listing.snapshots
    state.snapshots = Snapshots(state.directory, listing.snapshots, state.fs, like=state.like, repairs=state.repairs)
    bases = [ref.base_offset for ref in listing.segments]
    unverified = unverified_from(state, bases)
    for index, ref in enumerate(listing.segments):
        segment = LoadingSegment(ref, bases[index + 1] if index + 1 < len(bases) else None)
        reason = _why_recover(state, segment)
        if reason is not None:
            try:
                recover_segment(state, segment, cut=index >= unverified, reason=reason)
            except CorruptBatchError:
                # Earlier segments are not verified yet; if one of them is corrupt, all segments after it are removed.
                if index <= unverified:
                    raise
        else:
            _trim_indexes(state, segment)
            if ref.time_index_bytes is None:
                state.put(segment, SegmentFileKind.TIME_INDEX, b"", "")
        state.segments.append(segment)


def _why_recover(state: LoadState, segment: LoadingSegment) -> str | None:
    if segment.ref.offset_index_bytes is None:
        return "the segment had no offset index"
    path = state.path(segment, SegmentFileKind.TRANSACTION_INDEX)
    if segment.ref.has_endless_transaction_index:
        return "the transaction index has more entries than the log has batches"
    if segment.ref.transaction_index_bytes:
        try:
            index = parse_transaction_index(state.fs.read_bytes(path), path=str(path))
            check_last_offsets(index.last_offsets, segment.base_offset)
        except CorruptIndexError as error:
            return error.what
    return None


def _trim_indexes(state: LoadState, segment: LoadingSegment) -> None:
    for kind, size_bytes, entry_bytes in (
        (SegmentFileKind.OFFSET_INDEX, segment.ref.offset_index_bytes, OFFSET_ENTRY_BYTES),
        (SegmentFileKind.TIME_INDEX, segment.ref.time_index_bytes, TIME_ENTRY_BYTES),
    ):
        if size_bytes is not None and size_bytes % entry_bytes:
            content = state.fs.read_bytes(state.path(segment, kind))
            whole_bytes = size_bytes - size_bytes % entry_bytes
            state.put(segment, kind, content[:whole_bytes], "its last entry was incomplete")


def _loaded(state: LoadState, segment: LoadingSegment) -> LoadedSegment:
    ref = segment.ref
    largest_ms = _last_timestamp(state, segment) if segment.scan is None else segment.scan.largest_timestamp_ms
    return LoadedSegment(
        base_offset=ref.base_offset,
        log_bytes=ref.log_bytes,
        offset_index_entries=(ref.offset_index_bytes or 0) // OFFSET_ENTRY_BYTES,
        time_index_entries=(ref.time_index_bytes or 0) // TIME_ENTRY_BYTES,
        next_offset=end_of(state, segment)[0],
        largest_timestamp_ms=largest_timestamp_or_mtime_ms(largest_ms, ref.mtime_ns),
    )


def _last_timestamp(state: LoadState, segment: LoadingSegment) -> int:
    count = (segment.ref.time_index_bytes or 0) // TIME_ENTRY_BYTES
    if not count:
        return -1
    path = state.path(segment, SegmentFileKind.TIME_INDEX)
    return int(TIME_ENTRY_STRUCT.unpack(index_entry(path, count - 1, TIME_ENTRY_BYTES, state.fs))[0])


def _aborted_in(state: LoadState, segment: LoadingSegment) -> tuple[AbortedTxn, ...]:
    if not segment.ref.transaction_index_bytes:
        return ()
    path = state.path(segment, SegmentFileKind.TRANSACTION_INDEX)
    return parse_transaction_index(state.fs.read_bytes(path), path=str(path)).transactions()


def _rebuild_producers(state: LoadState, log_start_offset: int, log_end_offset: int) -> ProducerStateManager:
    """Source: kafka-log 05 §2, §6."""
    manager = state.producer_manager()
    manager.remove_stray_snapshots([segment.base_offset for segment in state.segments])
    *earlier, last = state.segments
    replayed_last = replace(state.replayed(last), log_bytes=end_of(state, last)[1])
    manager.rebuild(
        [*map(state.replayed, earlier), replayed_last],
        log_start_offset,
        log_end_offset,
        reload_from_clean_shutdown=state.is_clean,
    )
    state.snapshots.delete_dropped()
    return manager


def _split_and_retry(state: LoadState, step: Callable[[], _Result]) -> _Result:
    found: set[tuple[int, int | None]] = set()
    while True:
        try:
            return step()
        except IndexOffsetOverflowError as error:
            name = parse_segment_file(Path(error.path or "").name)
            # A split cannot help if the offsets in the header of a batch fit into no segment.
            if name is None or (name.base_offset, error.offset) in found:
                raise
            found.add((name.base_offset, error.offset))
            state.repairs.append(
                split_segment(state.partition, state.directory, name.base_offset, error, state.config, state.fs)
            )


def _check_segment_files(partition: TopicPartition, path: Path, fs: Fs) -> None:
    """Refuse special files, oversized logs, and logs or indexes without an offset in their name, as a broker does.

    If a name does not have 20 digits, a broker ignores the file.  The broker looks for a file with 20 digits, and
    creates an empty segment if it finds none.  Sediment refuses the partition, so that no records are ignored.

    Raises:
        CorruptDataError: such a file exists.

    Source: kafka-log 05 §2 pass 4.
    """
    check_segments_are_files(partition, path, fs)
    entries = [entry for entry in fs.scan(path) if entry.is_file]
    names = {entry.name for entry in entries}
    for entry in entries:
        kind = next((kind for kind in (SegmentFileKind.LOG, *INDEX_KINDS) if entry.name.endswith(kind)), None)
        if kind is None:
            continue
        parsed = parse_segment_file(entry.name)
        if parsed is None and not _stands_for_another(entry.name, kind, names):
            raise CorruptDataError(
                "the name of a segment file is not an offset of 20 digits",
                partition=str(partition),
                path=str(path / entry.name),
                advice="a broker refuses to load this partition; move the file out of the directory",
            )
        if parsed is not None and kind is SegmentFileKind.LOG and entry.size_bytes > MAX_SEGMENT_BYTES:
            raise CorruptDataError(
                f"a segment of {entry.size_bytes} bytes is larger than any segment that a broker opens",
                partition=str(partition),
                path=str(path / entry.name),
                advice="restore the segment from a replica or a backup",
            )


def _stands_for_another(name: str, kind: SegmentFileKind, names: set[str]) -> bool:
    digits = name.removesuffix(kind)
    if not (digits.isascii() and digits.isdigit()) or int(digits) > INT64_MAX:
        return False
    return kind is not SegmentFileKind.LOG or segment_file_name(int(digits), kind) in names
