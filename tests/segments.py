"""Small real segments for tests: batches with right checksums, and files with the indexes that Kafka would write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sediment.segment_io.format import transaction_index
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition import producer_state
from sediment.segment_io.partition.listing import LogListing, SegmentRef
from sediment.segment_io.partition.log_view import LogView, SegmentTimes
from tests.twin.batches import ControlType, Record, encode_batch, encode_marker
from tests.twin.indexes import AbortedTransaction, build_indexes, encode_transaction_index
from tests.twin.segments import file_batches
from tests.twin.snapshots import ProducerEntry, encode_snapshot

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT
NOW_MS = 1_700_000_000_000


def batch_bytes(
    base_offset: int,
    keys: str = "k",
    *,
    value: bytes | None = b"value",
    timestamp: int = NOW_MS,
    producer_id: int = -1,
    producer_epoch: int = 0,
    sequence: int = 0,
    transactional: bool = False,
    codec: int = 0,
) -> bytes:
    """Return an uncompressed batch at `base_offset`, one record for each character of `keys`, all of one timestamp."""
    records = [Record(base_offset + delta, timestamp, key.encode(), value) for delta, key in enumerate(keys)]
    return encode_batch(
        records,
        base_offset=base_offset,
        leader_epoch=0,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch if producer_id >= 0 else -1,
        base_sequence=sequence if producer_id >= 0 else -1,
        transactional=transactional,
    )


def marker_bytes(
    offset: int, control_type: ControlType, *, producer_id: int, producer_epoch: int = 0, timestamp: int = NOW_MS
) -> bytes:
    """Return a transaction marker, 78 bytes."""
    return encode_marker(
        control_type,
        offset=offset,
        timestamp=timestamp,
        leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        coordinator_epoch=0,
    )


def write_segment(
    directory: Path,
    base_offset: int,
    batches: Sequence[bytes] = (),
    *,
    aborted: Sequence[AbortedTransaction] = (),
    index_interval_bytes: int = 4096,
    preallocated_index_bytes: int = 0,
    mtime_ms: int = NOW_MS,
) -> Path:
    """Write a segment with its indexes, and a transaction index if there are `aborted`; returns the `.log`.

    `preallocated_index_bytes` fills offset and time index with zeros to that length, as an active segment's are.
    """
    directory.mkdir(parents=True, exist_ok=True)
    content = b"".join(batches)
    offset_index, time_index = build_indexes(
        (batch for _position, batch in file_batches(content)), base_offset, interval_bytes=index_interval_bytes
    )
    files = {
        ".log": content,
        ".index": offset_index.ljust(preallocated_index_bytes // 8 * 8, b"\0"),
        ".timeindex": time_index.ljust(preallocated_index_bytes // 12 * 12, b"\0"),
    }
    if aborted:
        files[".txnindex"] = encode_transaction_index(aborted)
    for suffix, data in files.items():
        path = directory / f"{base_offset:020d}{suffix}"
        path.write_bytes(data)
        os.utime(path, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))
    return directory / f"{base_offset:020d}.log"


def write_snapshot(directory: Path, offset: int, entries: Sequence[ProducerEntry] = ()) -> Path:
    """Write a producer snapshot; returns its path."""
    path = directory / f"{offset:020d}.snapshot"
    path.write_bytes(encode_snapshot({entry.producer_id: entry for entry in entries}))
    return path


def log_view(
    segments: Sequence[tuple[int, int] | tuple[int, int, int]],
    *,
    end: int,
    first_batch_ms: Sequence[int] = (),
    checkpoint: int | None = None,
    start: int | None = None,
    high_watermark: int | None = -1,
    last_stable: int | None = None,
    unverified_from: int | None = None,
    aborted: Sequence[transaction_index.AbortedTxn] = (),
    producers: Sequence[producer_state.ProducerEntry] = (),
) -> LogView:
    """Return a view of a log that exists only on paper, for rules that are pure.

    `segments` are (base offset, bytes) or (base offset, bytes, largest timestamp), the last one active; `end` is the
    log end offset, and the high watermark unless that is given.
    """
    refs = tuple(SegmentRef(base, size, 0, 0, None, 0) for base, size, *_ in segments)
    largest_ms = [times[0] if times else NOW_MS for _, _, *times in segments]
    firsts_ms = [*first_batch_ms, *[-1] * (len(segments) - len(first_batch_ms))]
    start = (segments[0][0] if segments else 0) if start is None else start
    high_watermark = end if high_watermark == -1 else high_watermark
    return LogView(
        listing=LogListing(TopicPartition("t", 0), Path("t-0"), refs, (), ()),
        segment_times=tuple(SegmentTimes(*pair) for pair in zip(largest_ms, firsts_ms, strict=True)),
        first_dirty_checkpoint=checkpoint,
        log_start_offset=start,
        high_watermark=high_watermark,
        last_stable_offset=next(offset for offset in (last_stable, high_watermark, start) if offset is not None),
        log_end_offset=end,
        unverified_from_offset=unverified_from,
        producers=tuple(producers),
        aborted=tuple(aborted),
    )
