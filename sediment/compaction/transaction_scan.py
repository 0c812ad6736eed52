"""The forward scan of a partition with control or transactional batches; it reads only headers and control keys.

The scan finds verified chunk boundaries, flags for each batch, and the surviving entries of the transaction index
(kafka-log 02 §7).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sediment.compaction.chunk_reader import ByteArray, ChunkBoundaries, Progress, boundaries_between
from sediment.compaction.grouping import CleaningPlan
from sediment.compaction.kernels.cleaned_transaction_metadata import DISCARD, UNMAPPED, TransactionScan
from sediment.compaction.kernels.fill_map import start_position
from sediment.segment_io.errors import RESTORE_OR_LEAVE_OUT, CorruptBatchError, CorruptIndexError
from sediment.segment_io.format.layout import CONTROL_BIT
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.format.offset_index import parse_offset_index
from sediment.segment_io.format.transaction_index import AbortedTxn
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.segment.reader import HeaderScan


def aborted_of_round(plan: CleaningPlan) -> tuple[AbortedTxn, ...]:
    """Return the aborted transactions that begin below the end of the plan's range.

    Their markers may be anywhere in the log.

    Source: kafka-log 02 §4.2, §6 step 3a.
    """
    return tuple(entry for entry in plan.view.aborted if entry.first_offset < plan.range.first_uncleanable_offset)


def scan_segments(plan: CleaningPlan, fs: Fs, progress: Progress) -> dict[int, ChunkBoundaries]:
    """Return chunk boundaries, batch flags and surviving transaction index entries of the plan's segments.

    The keys of the result are base offsets of segments.
    """
    directory, log_start_offset = plan.view.listing.path, plan.view.log_start_offset
    dirty_from = _mapped_position(plan, fs)
    mapped = max(plan.dirty_base_offset, log_start_offset)
    aborted = aborted_of_round(plan)
    filtering = TransactionScan(aborted)
    mapping = TransactionScan(entry for entry in aborted if entry.last_offset >= mapped)
    boundaries = {}
    for segment in plan.segments:
        mapped_from = dirty_from if segment.base_offset == plan.dirty_base_offset else 0
        in_map = mapping if segment.base_offset >= plan.dirty_base_offset else None
        boundaries[segment.base_offset] = _scan_segment(
            directory, segment, filtering, in_map, mapped_from, log_start_offset, fs, progress
        )
    return boundaries


def _mapped_position(plan: CleaningPlan, fs: Fs) -> int:
    """Return the position in the first dirty segment at which the state machine for the offset map starts.

    Without an offset index, the position is 0.
    """
    base_offset = plan.dirty_base_offset
    if not any(segment.base_offset == base_offset and segment.offset_index_bytes for segment in plan.segments):
        return 0
    content = fs.read_bytes(plan.view.listing.path / segment_file_name(base_offset, SegmentFileKind.OFFSET_INDEX))
    # Kafka starts to fill its map at the same position (`fill_map.start_position`).
    return start_position(parse_offset_index(content, base_offset), plan.range.first_dirty_offset)


def _scan_segment(
    directory: Path,
    segment: SegmentRef,
    filtering: TransactionScan,
    mapping: TransactionScan | None,
    mapped_from: int,
    log_start_offset: int,
    fs: Fs,
    progress: Progress,
) -> ChunkBoundaries:
    path = directory / segment_file_name(segment.base_offset, SegmentFileKind.LOG)
    headers = HeaderScan(path, size_bytes=segment.log_bytes, fs=fs)
    batch_flags: list[ByteArray] = []
    kept_aborts: list[AbortedTxn] = []
    positions, ordinals = [0], [0]
    batches = 0
    for rows in headers:
        progress(int(rows["size_bytes"].sum()))
        flags, kept, contradicted = filtering.classify(rows)
        # A broker's cleaner drops transaction index entries below the log start offset, but keeps the data of their
        # transactions.
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
            advice=RESTORE_OR_LEAVE_OUT,
        )
    every = np.concatenate(batch_flags) if batch_flags else np.zeros(0, dtype=np.uint8)
    return ChunkBoundaries(
        np.array([*positions, segment.log_bytes], dtype=np.int64),
        np.array([*ordinals, batches], dtype=np.int64),
        every,
        tuple(kept_aborts),
    )


def _contradiction(path: Path, marker: np.void) -> CorruptIndexError:
    # Without this error, the cleaner could keep aborted records as the latest values, or drop committed records.
    return CorruptIndexError(
        f"a transaction marker of producer {marker['producer_id']} contradicts the transaction index",
        path=str(path),
        position=int(marker["position"]),
        offset=int(marker["last_offset"]),
        advice="restore the .txnindex file of this segment from a replica or a backup, or move the segment's .index "
        "out of the directory and run `sediment recover`, which rebuilds both files",
    )
