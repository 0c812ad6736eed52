"""Start and end offsets of partitions, computed from the positions in the options.

A position is one of these:

* An offset.
* `earliest`: the first offset in the files.
* `latest`: the log end, or the last stable offset for READ_COMMITTED.
* A timestamp: the offset of the first record with this timestamp or a later one.

Invariant: with `fails_on_data_loss`, an offset that is not in the log is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sediment.jobs.data_source.kafka_options import EARLIEST_OFFSET, LATEST_OFFSET, KafkaOptions, Positions
from sediment.jobs.data_source.options import SourceOptions
from sediment.segment_io.errors import OffsetOutOfRangeError, UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import ALL, Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.log_ends import end_offset, first_offset
from sediment.segment_io.tables.readers import first_offset_since
from sediment.segment_io.tables.schema import TableRequest


def batch_bounds(options: SourceOptions, sources: Sequence[Source], fs: Fs) -> Mapping[Source, Bounds]:
    """Return the offsets that a batch query reads from each source; empty if no option sets a start or an end.

    Raises:
        OffsetOutOfRangeError: an offset is not in the log, and `failOnDataLoss` is true.
    """
    kafka = options.kafka
    if kafka.start is None and kafka.end is None:
        return {}
    partitions = {source.partition for source in sources}
    for positions in filter(None, (kafka.start, kafka.end)):
        positions.check_covers(partitions)
    return {
        source: Bounds(
            first_offset=_start(kafka, options.request, source, fs), end_offset=_end(kafka, options.request, source, fs)
        )
        for source in sources
    }


def stream_starts(options: SourceOptions, sources: Mapping[str, Source], fs: Fs) -> dict[str, int]:
    """Return the first offsets of a new stream, by topic-partition.

    A partition without an entry starts at its beginning.
    """
    kafka = options.kafka
    if kafka.start is None:
        return {}
    kafka.start.check_covers({source.partition for source in sources.values()})
    starts = {name: _start(kafka, options.request, source, fs) for name, source in sources.items()}
    return {name: offset for name, offset in starts.items() if offset != ALL.first_offset}


def _start(kafka: KafkaOptions, request: TableRequest, source: Source, fs: Fs) -> int:
    positions = kafka.start
    if positions is None:
        return ALL.first_offset
    position = positions.of(source.partition)
    if not positions.are_times:
        return _checked(kafka, positions, request, source, fs)
    found = first_offset_since(request, source, position, fs)
    if found is not None:
        return found
    if kafka.is_latest_without_record:
        return end_offset(request.isolation, source, fs)
    raise UsageError(
        f"{positions.option} is {position}, and no record has this timestamp or a later one",
        partition=str(source.partition),
        advice="give an earlier time, or set startingOffsetsByTimestampStrategy to latest",
    )


def _end(kafka: KafkaOptions, request: TableRequest, source: Source, fs: Fs) -> int:
    positions = kafka.end
    if positions is None:
        return ALL.end_offset
    if not positions.are_times:
        return _checked(kafka, positions, request, source, fs)
    found = first_offset_since(request, source, positions.of(source.partition), fs)
    return ALL.end_offset if found is None else found


def _checked(kafka: KafkaOptions, positions: Positions, request: TableRequest, source: Source, fs: Fs) -> int:
    offset = positions.of(source.partition)
    if offset == EARLIEST_OFFSET:
        return ALL.first_offset
    if offset == LATEST_OFFSET:
        return end_offset(request.isolation, source, fs)
    if kafka.fails_on_data_loss:
        whole = replace(source, base_offset=None, log_name=None, named=None)
        first, end = first_offset(whole, fs), end_offset(request.isolation, whole, fs)
        if not first <= offset <= end:
            raise OffsetOutOfRangeError(
                f"{positions.option} is {offset}, but the log contains the offsets from {first} up to but not "
                f"including {end}",
                partition=str(source.partition),
                advice="give an offset in this range, or set failOnDataLoss to false",
            )
    return offset
