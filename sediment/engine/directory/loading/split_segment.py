"""The split of a segment whose offsets span more than 2^31; brokers before 2.1 could write such segments (02 §8.2).

The new segments keep the modification time and the transaction index entries of the old one; Kafka loses these entries.

A segment is split only if its offsets ascend and end before the next segment. No checksum covers an offset, so one
flipped bit can look like an overflow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from sediment.compaction.config import CompactionConfig
from sediment.compaction.prepared_swap import CleanedGroup, CleanStats, PartSegment, PreparedSwap
from sediment.engine.directory.repair import Repair
from sediment.engine.directory.swap import commit
from sediment.segment_io.errors import CorruptBatchError, IndexOffsetOverflowError, UnsupportedDataError
from sediment.segment_io.format.layout import FIRST_MAGIC_WITH_PRODUCERS
from sediment.segment_io.format.names import Attempt, SegmentFileKind, TopicPartition, segment_file_name
from sediment.segment_io.format.transaction_index import AbortedTxn, parse_transaction_index
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef, list_log
from sediment.segment_io.segment.reader import HeaderScan, Rows
from sediment.segment_io.segment.writer import PartFiles, SegmentImage, lay_out_segments, write_segment

_RUN = "split"


def split_segment(
    partition: TopicPartition,
    directory: Path,
    base_offset: int,
    overflow: IndexOffsetOverflowError,
    config: CompactionConfig,
    fs: Fs,
) -> Repair:
    """Replace the segment at `base_offset` by as many segments as its offsets need; the directory's lock must be held.

    The whole segment is read into memory, which is acceptable because such segments are rare.

    Source: kafka-log 02 §8.2.
    """
    source, *following = (ref for ref in list_log(partition, directory, fs).segments if ref.base_offset >= base_offset)
    path = directory / segment_file_name(base_offset, SegmentFileKind.LOG)
    if following and (overflow.offset or 0) >= following[0].base_offset:
        what = f"a batch is past the next segment's base offset {following[0].base_offset}"
        raise _no_overflow(partition, path, overflow, what) from overflow
    batch_bytes = _check_batches(partition, path, source, overflow, fs)
    images = _images(path, source, batch_bytes, _aborted(directory, source, fs), config, fs)
    files = PartFiles(directory, path, source.mtime_ns, Attempt(_RUN, str(base_offset)), fs)
    parts = tuple(
        PartSegment(
            image.base_offset,
            write_segment(image, files),
        )
        for image in images
    )
    commit(PreparedSwap(partition, str(directory), (CleanedGroup((source,), parts, CleanStats()),), base_offset), fs)
    bases = ", ".join(str(image.base_offset) for image in images)
    return Repair(f"split into segments {bases}", path.name, "its offsets span more than 2^31")


def _no_overflow(
    partition: TopicPartition, path: Path, overflow: IndexOffsetOverflowError, what: str
) -> CorruptBatchError:
    return CorruptBatchError(
        what,
        partition=str(partition),
        path=str(path),
        position=overflow.position,
        offset=overflow.offset,
        advice="restore the segment from a replica or a backup; nothing was cut off",
    )


def _check_batches(
    partition: TopicPartition, path: Path, source: SegmentRef, overflow: IndexOffsetOverflowError, fs: Fs
) -> int:
    scan = HeaderScan(path, size_bytes=source.log_bytes, fs=fs)
    last_offset = source.base_offset - 1
    for rows in _whole_batches(scan):
        if (rows["magic"] < FIRST_MAGIC_WITH_PRODUCERS).any():
            raise UnsupportedDataError(
                "a segment of message format v0 or v1 has offsets more than 2^31 apart",
                partition=str(partition),
                path=str(path),
                advice="let a broker start on the directory once",
            )
        ends = np.concatenate([[last_offset], rows["last_offset"]])
        if (rows["base_offset"] <= ends[:-1]).any():
            what = "the offset of a batch is far above the offsets around it"
            raise _no_overflow(partition, path, overflow, what) from overflow
        last_offset = int(ends[-1])
    return scan.end_position


def _whole_batches(scan: HeaderScan) -> Iterator[Rows]:
    # The tail becomes part of the last new segment, where recovery cuts it off.
    with suppress(CorruptBatchError):
        yield from scan


def _images(
    path: Path,
    source: SegmentRef,
    batch_bytes: int,
    aborted: tuple[AbortedTxn, ...],
    config: CompactionConfig,
    fs: Fs,
) -> tuple[SegmentImage, ...]:
    content = np.frombuffer(fs.read_bytes(path), dtype=np.uint8)
    *images, last = lay_out_segments(
        content[:batch_bytes],
        source.base_offset,
        aborted,
        index_interval_bytes=config.index_interval_bytes,
        segment_index_bytes=config.segment_index_bytes,
    )
    return (*images, replace(last, log=content[batch_bytes - last.log.size :]))


def _aborted(directory: Path, source: SegmentRef, fs: Fs) -> tuple[AbortedTxn, ...]:
    if not source.transaction_index_bytes:
        return ()
    path = directory / segment_file_name(source.base_offset, SegmentFileKind.TRANSACTION_INDEX)
    return parse_transaction_index(fs.read_bytes(path), path=str(path)).transactions()
