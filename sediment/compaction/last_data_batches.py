"""The last data batches of producers whose snapshot names a marker in their place.

Kafka 0.11 stores the offset of a producer's last marker as the producer's last offset, and the sequence of its last
data batch.  Newer versions store the offset of that batch.  The batch must keep its header, because otherwise a replica
that rebuilds its producers from the log knows the epoch but no sequence, and refuses the producer's next batch with
OutOfOrderSequenceException.  Kafka 0.11's cleaner finds the batch by its sequence; newer cleaners look for a batch that
ends at the marker, and drop the data batch.

Source: Kafka 0.11.0.3, ProducerAppendInfo.appendEndTxnMarker, LogCleaner.cleanInto; Kafka 2.8.2 and 4.2.0, LogCleaner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from sediment.segment_io.errors import CorruptBatchError, SedimentError
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    BATCH_STRUCT,
    CONTROL_BIT,
    FIRST_MAGIC_WITH_PRODUCERS,
    NO_SEQUENCE,
)
from sediment.segment_io.format.names import SegmentFileKind
from sediment.segment_io.format.offset_index import parse_offset_index
from sediment.segment_io.fs import Fs, ReadableFile
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.partition.log_view import LogView
from sediment.segment_io.partition.producer_state import ProducerEntry, last_sequence
from sediment.segment_io.segment.reader import HeaderScan
from sediment.segment_io.segment.search import BY_LAST_OFFSET, find_in_file


def with_data_offsets(view: LogView, fs: Fs) -> tuple[ProducerEntry, ...]:
    """Return the producers of `view`; entries that name a marker name the producer's last data batch instead.

    If that batch is not in the log any more, or cannot be read, the entry stays as it is.
    """
    of_markers = {entry.producer_id: entry for entry in _of_markers(view, fs)}
    if not of_markers:
        return view.producers
    found = {entry.producer_id: entry for entry in _of_data(view, of_markers, fs)}
    return tuple(found.get(entry.producer_id, entry) for entry in view.producers)


def may_name_marker(entry: ProducerEntry) -> bool:
    """Return False if the last offset of an entry is surely that of a data batch, or if there is none."""
    return (
        # A snapshot of 0.11 looks like any other.  In it, an entry that names a marker has a coordinator epoch, a
        # sequence, no open transaction, and the offset delta 0; the batch at such an entry's last offset shows what it
        # names.
        entry.coordinator_epoch >= 0
        and entry.last_offset >= 0
        and entry.last_sequence != NO_SEQUENCE
        and entry.offset_delta == 0
        and not entry.has_open_transaction
    )


def _of_markers(view: LogView, fs: Fs) -> Iterator[ProducerEntry]:
    waiting = sorted(filter(may_name_marker, view.producers), key=lambda entry: entry.last_offset)
    for segment, end_offset in _with_ends(view.listing.segments):
        here = [entry for entry in waiting if segment.base_offset <= entry.last_offset < end_offset]
        if not here:
            continue
        index = b""
        if segment.offset_index_bytes:
            index = fs.read_bytes(view.listing.file(segment, SegmentFileKind.OFFSET_INDEX))
        positions = parse_offset_index(index, segment.base_offset, preallocated=True)
        file = fs.open_readable(view.listing.file(segment, SegmentFileKind.LOG))
        try:
            for entry in here:
                start = positions.lookup(entry.last_offset).position
                if _is_marker(file, segment, start, entry):
                    yield entry
        finally:
            file.close()


def _with_ends(segments: Iterable[SegmentRef]) -> Iterator[tuple[SegmentRef, float]]:
    segments = list(segments)
    ends = [segment.base_offset for segment in segments[1:]]
    yield from zip(segments, [*ends, float("inf")], strict=True)


def _is_marker(file: ReadableFile, segment: SegmentRef, start: int, entry: ProducerEntry) -> bool:
    for position in dict.fromkeys((start, 0)):  # an index entry may be wrong
        try:
            found = find_in_file(file, position, segment.log_bytes, BY_LAST_OFFSET, entry.last_offset)
        except CorruptBatchError:
            continue
        if found is None:
            continue
        if found.base_offset != entry.last_offset or found.size_bytes < BATCH_HEADER_BYTES:
            return False
        head = BATCH_STRUCT.unpack(file.read(found.position, BATCH_HEADER_BYTES))
        magic, attributes, producer_id = head[3], head[5], head[9]
        is_control = magic >= FIRST_MAGIC_WITH_PRODUCERS and attributes & CONTROL_BIT != 0
        return bool(is_control and producer_id == entry.producer_id)
    return False


def _of_data(view: LogView, waiting: dict[int, ProducerEntry], fs: Fs) -> Iterator[ProducerEntry]:
    left = dict(waiting)
    for segment in reversed(view.listing.segments):
        if not left:
            return
        found: dict[int, ProducerEntry] = {}
        path = view.listing.file(segment, SegmentFileKind.LOG)
        try:
            for rows in HeaderScan(path, size_bytes=segment.log_bytes, fs=fs):
                data = (rows["magic"] >= FIRST_MAGIC_WITH_PRODUCERS) & (rows["attributes"] & CONTROL_BIT == 0)
                data &= np.isin(rows["producer_id"], list(left))
                # In reversed order, the first batch of a producer is the producer's last batch.
                newest_first = rows[data][::-1]
                for at in np.unique(newest_first["producer_id"], return_index=True)[1].tolist():
                    row = newest_first[at]
                    entry, offset = left[int(row["producer_id"])], int(row["last_offset"])
                    delta = offset - int(row["base_offset"])
                    is_last = (
                        offset < entry.last_offset
                        and row["producer_epoch"] == entry.producer_epoch
                        and last_sequence(int(row["base_sequence"]), delta) == entry.last_sequence
                    )
                    if is_last:
                        found[entry.producer_id] = replace(entry, last_offset=offset, offset_delta=delta)
        except SedimentError:
            pass  # the cleaning will report the batch
        for producer_id, entry in found.items():
            del left[producer_id]
            yield entry
