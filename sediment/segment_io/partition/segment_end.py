"""The end of a segment or log as a broker finds it: from the last offset index entry on, by the headers of batches.

Source: Kafka's LogSegment.readNextOffset (kafka-log 05 §3).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.errors import CorruptBatchError, SourceChangedError
from sediment.segment_io.format.layout import INT32_MAX, OFFSET_ENTRY_BYTES, OFFSET_ENTRY_STRUCT
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.index_files import read_last_entry
from sediment.segment_io.partition.listing import SegmentRef, list_log
from sediment.segment_io.segment.batch_boundaries import batch_ends


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The offset after the last complete batch of a log; `is_torn` is True if bytes without a whole batch follow."""

    next_offset: int
    is_torn: bool


def find_log_end(partition: TopicPartition, directory: Path, fs: Fs) -> LogEnd:
    segments = list_log(partition, directory, fs).segments
    if not segments:
        return LogEnd(0, is_torn=False)
    next_offset, position = find_segment_end(directory, segments[-1], fs)
    return LogEnd(next_offset, position < segments[-1].log_bytes)


def find_segment_end(directory: Path, segment: SegmentRef, fs: Fs) -> tuple[int, int]:
    """Return (next offset, end position) of the last complete batch; a segment without a batch ends at its base offset.

    Corruption inside a batch is ignored, because the batch's offsets must not be assigned again.
    """
    position, offset = _last_offset_entry(directory, segment, fs)
    log = directory / segment_file_name(segment.base_offset, SegmentFileKind.LOG)
    # If the last offset index entry is wrong, the search begins at the segment's start.
    for start, largest in ((position, offset), (0, None)):
        next_offset, end_position = None, start
        with suppress(CorruptBatchError):
            for last_offset, batch_end in batch_ends(log, fs, position=start, size_bytes=segment.log_bytes):
                if next_offset is None and largest is not None and last_offset > largest:
                    break
                if last_offset - segment.base_offset <= INT32_MAX:
                    next_offset = max(next_offset or 0, last_offset + 1)
                end_position = batch_end
        if next_offset is not None and next_offset > segment.base_offset:
            return next_offset, end_position
    return segment.base_offset, 0


def _last_offset_entry(directory: Path, segment: SegmentRef, fs: Fs) -> tuple[int, int | None]:
    count = (segment.offset_index_bytes or 0) // OFFSET_ENTRY_BYTES
    if not count:
        return 0, None
    path = directory / segment_file_name(segment.base_offset, SegmentFileKind.OFFSET_INDEX)
    entry: bytes | None = index_entry(path, count - 1, OFFSET_ENTRY_BYTES, fs)
    if entry is not None and not any(entry):
        entry = read_last_entry(path, OFFSET_ENTRY_BYTES, fs)  # a preallocated index ends with zeros
    relative_offset, position = (0, 0) if entry is None else OFFSET_ENTRY_STRUCT.unpack(entry)
    if relative_offset <= 0 or not 0 < position < segment.log_bytes:
        return 0, None
    return position, segment.base_offset + relative_offset


def index_entry(path: Path, number: int, entry_bytes: int, fs: Fs) -> bytes:
    entry = fs.read_range(path, number * entry_bytes, entry_bytes)
    if len(entry) < entry_bytes:
        raise SourceChangedError(
            "the index became shorter while it was read",
            path=str(path),
            position=number * entry_bytes,
            advice="another process writes to this directory; stop it and run again",
        )
    return entry
