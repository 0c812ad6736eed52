"""The forward scan of a partition with control or transactional batches: headers and control keys only.

It finds everything that a backward sweep cannot find itself: verified chunk boundaries, flags for each batch, and the
surviving entries of the transaction index (kafka-log 02 §7).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sediment.compaction.chunk_reader import ByteArray, ChunkBoundaries, Progress, boundaries_between
from sediment.compaction.grouping import CleaningPlan
from sediment.compaction.kernels.transactions import DISCARD, UNMAPPED, TransactionScan
from sediment.segment_io.errors import CorruptBatchError, CorruptIndexError
from sediment.segment_io.format.indexes import AbortedTransaction, parse_offset_index
from sediment.segment_io.format.layout import CONTROL_BIT
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.segment.reader import HeaderScan


def may_hold_transactions(plan: CleaningPlan) -> bool:
    """Return True if an index or a snapshot mentions transactions; those in the log itself are found by the sweep."""
    return (
        bool(plan.aborted)
        or any(segment.transaction_index_bytes for segment in plan.view.listing.segments)
        or any(entry.coordinator_epoch >= 0 or entry.current_txn_first_offset >= 0 for entry in plan.view.producers)
    )


def dirty_base(segments: Sequence[SegmentRef], first_dirty_offset: int) -> int:
    """Return the base offset of the segment that contains the first dirty offset."""
    return max((s.base_offset for s in segments if s.base_offset <= first_dirty_offset), default=0)


def scan_segments(
    plan: CleaningPlan, segments: Sequence[SegmentRef], fs: Fs, progress: Progress
) -> dict[int, ChunkBoundaries]:
    """Return chunk boundaries, batch flags and surviving transaction index entries of every segment, by base offset.

    Raises:
        CorruptBatchError: a header is malformed, or a segment ends inside a batch.
        CorruptIndexError: the transaction index contradicts a marker.
    """
    directory, first_dirty = plan.view.listing.path, plan.range.first_dirty_offset
    base = dirty_base(segments, first_dirty)
    filtering = TransactionScan(plan.aborted)
    mapped = max(base, plan.view.log_start_offset)
    mapping = TransactionScan(entry for entry in plan.aborted if entry.last_offset >= mapped)
    boundaries = {}
    for segment in segments:
        # Kafka's second state begins at the position that the offset index gives for the first dirty offset, not at the
        # segment's first batch.  It knows a transaction whose marker lies between the two only from the index entry.
        mapped_from = _position_of(first_dirty, segment, directory, fs) if segment.base_offset == base else 0
        in_map = mapping if segment.base_offset >= base else None
        boundaries[segment.base_offset] = _scan_segment(
            directory, segment, filtering, in_map, mapped_from, plan.view.log_start_offset, progress
        )
    return boundaries


def _position_of(offset: int, segment: SegmentRef, directory: Path, fs: Fs) -> int:
    """Return the position that the offset index of `segment` gives for `offset`."""
    if not segment.offset_index_bytes:
        return 0
    name = segment_file_name(segment.base_offset, SegmentFileKind.OFFSET_INDEX)
    return parse_offset_index(fs.read_bytes(directory / name), segment.base_offset).lookup(offset).position


def _scan_segment(
    directory: Path,
    segment: SegmentRef,
    filtering: TransactionScan,
    mapping: TransactionScan | None,
    mapped_from: int,
    log_start_offset: int,
    progress: Progress,
) -> ChunkBoundaries:
    path = directory / segment_file_name(segment.base_offset, SegmentFileKind.LOG)
    headers = HeaderScan(path, size_bytes=segment.log_bytes)
    batch_flags: list[ByteArray] = []
    kept_aborts: list[AbortedTransaction] = []
    positions, ordinals = [0], [0]
    batches = 0
    for rows in headers:
        progress(int(rows["size_bytes"].sum()))
        flags, kept, contradicted = filtering.classify(rows)
        # Below the log start a broker's cleaner drops index entries of data that it keeps.
        if contradicted >= 0 and rows[contradicted]["last_offset"] >= log_start_offset:
            raise _contradiction(path, rows[contradicted])
        if mapping is not None:
            mapped = rows["position"] >= mapped_from
            aborted, _, _ = mapping.classify(rows[mapped])
            data = (rows["attributes"][mapped] & CONTROL_BIT) == 0
            flags[np.flatnonzero(mapped)[(aborted & DISCARD != 0) & data]] |= UNMAPPED
        batch_flags.append(flags)
        kept_aborts.extend(kept)
        for index in boundaries_between(rows["position"], positions[-1]):
            positions.append(int(rows["position"][index]))
            ordinals.append(batches + int(index))
        batches += len(rows)
    if headers.end_position != segment.log_bytes:
        raise CorruptBatchError(
            "the segment ends inside a batch",
            path=str(path),
            position=headers.end_position,
            offset=segment.base_offset,
            advice="restore the segment from a replica or a backup, or leave this partition out",
        )
    every = np.concatenate(batch_flags) if batch_flags else np.zeros(0, dtype=np.uint8)
    return ChunkBoundaries(
        np.array([*positions, segment.log_bytes], dtype=np.int64),
        np.array([*ordinals, batches], dtype=np.int64),
        every,
        tuple(kept_aborts),
    )


def _contradiction(path: Path, marker: np.void) -> CorruptIndexError:
    """Return the error of a marker that the transaction index contradicts.

    If it were ignored, a cleaning would keep aborted records as latest values, or drop committed records as aborted.
    """
    return CorruptIndexError(
        f"a transaction marker of producer {marker['producer_id']} contradicts the transaction index",
        path=str(path),
        position=int(marker["position"]),
        offset=int(marker["last_offset"]),
        advice="restore the .txnindex file of this segment from a replica or a backup, or move its .index out of the "
        "directory and run `sediment recover`, which rebuilds both",
    )
