"""The end of a log that no broker uses: cut the log at an offset or a time, and end its open transactions.

    1. cut       the log then ends at the offset; if a batch spans the offset, its records below the offset are kept,
                 but a message of magic 0 or 1 is dropped entirely
    2. markers   each open transaction gets a COMMIT marker if its coordinator had decided to commit, otherwise ABORT

A cut at a timestamp ends the log before its first record with a later timestamp. `kafka-consumer-groups --to-datetime`
finds the same record if it searches from the next millisecond.

Both steps use the live log, so that segments, indexes, leader epochs and producers stay consistent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import google_crc32c
import numpy as np

from sediment.engine.live.log.partition_log import AppendOrigin, PartitionLog
from sediment.engine.log_config import LogConfig
from sediment.segment_io.compiled.padding import padded_copy
from sediment.segment_io.compiled.status import BAD_RECORD_COUNT, OK
from sediment.segment_io.errors import CorruptBatchError, UsageError
from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.format.batch_headers import STATUS_TEXT
from sediment.segment_io.format.compression.batch_codecs import compress, decompress
from sediment.segment_io.format.control_records import marker_key_value
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BATCH_HEADER_BYTES,
    BATCH_STRUCT,
    CODEC_MASK,
    CRC,
    INT32_MAX,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_V2,
    MIN_RECORD_BYTES,
    TIMESTAMP_TYPE_BIT,
)
from sediment.segment_io.format.names import (
    INDEX_KINDS,
    SegmentFileKind,
    TopicPartition,
    parse_segment_file,
    segment_file_name,
)
from sediment.segment_io.format.record_decoder import (
    OFFSET_DELTA,
    RECORD_END,
    RECORD_FIELDS,
    TIMESTAMP_DELTA,
    decode_records,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.producer_state import ProducerEntry
from sediment.segment_io.segment.reader import HeaderScan

_TRANSACTION_VERSION = 0  # a marker with the producer's own epoch


class AtOnce:
    """A scheduler that runs every task immediately; files need no delay before removal, because no reader uses them."""

    def schedule_once(self, _name: str, task: Callable[[], None], *, delay_ms: int = 0) -> None:
        task()


def change_end(
    partition: TopicPartition,
    directory: Path,
    config: LogConfig,
    checkpoints: PartitionCheckpoints,
    fs: Fs,
    *,
    now_ms: int,
    until_offset: int | None = None,
    until_ms: int | None = None,
    ends_transactions: bool = False,
    committing: frozenset[int] = frozenset(),
) -> int:
    """`committing` are the producers whose coordinator had decided to commit."""
    ended = 0
    with _opened(partition, directory, config, checkpoints, fs, now_ms) as log:
        if until_ms is not None:
            found = log.lookup_timestamp(until_ms + 1)
            until_offset = None if found is None else found.offset
        if until_offset is not None and until_offset < log.log_end_offset:
            _cut(log, until_offset, fs)
        if ends_transactions:
            for entry in _open_transactions(log):
                _append_marker(log, entry, is_commit=entry.producer_id in committing, now_ms=now_ms)
                ended += 1
        log.flush(force_last_segment=True)
    return ended


def abort_transactions(
    partition: TopicPartition,
    directory: Path,
    config: LogConfig,
    checkpoints: PartitionCheckpoints,
    fs: Fs,
    *,
    now_ms: int,
    producer_ids: frozenset[int],
) -> dict[int, int]:
    # The markers are in a new segment, so that no existing `.log` changes, and the log is as before without the
    # segment.
    _unshare_active_segment(directory, fs)
    with _opened(partition, directory, config, checkpoints, fs, now_ms) as log:
        entries = [entry for entry in _open_transactions(log) if entry.producer_id in producer_ids]
        base_offset = log.roll()
        found = {entry.producer_id: _append_marker(log, entry, is_commit=False, now_ms=now_ms) for entry in entries}
        log.flush(force_last_segment=True)
    _adopt_owner_from(base_offset, directory, fs)
    return found


def _opened(
    partition: TopicPartition,
    directory: Path,
    config: LogConfig,
    checkpoints: PartitionCheckpoints,
    fs: Fs,
    now_ms: int,
) -> PartitionLog:
    return PartitionLog.open(
        partition,
        directory,
        config,
        checkpoints,
        fs,
        clock=lambda: now_ms,
        scheduler=AtOnce(),
        verify_transactions=False,
    )


def _open_transactions(log: PartitionLog) -> list[ProducerEntry]:
    found = (entry for entry in log.producers.entries.values() if entry.has_open_transaction)
    return sorted(found, key=lambda entry: entry.current_txn_first_offset)


def _unshare_active_segment(directory: Path, fs: Fs) -> None:
    """Replace each index of the last segment that has another link, such as a backup's, by a copy.

    An open log changes these files in place.
    """
    files = [file for file in (parse_segment_file(entry.name) for entry in fs.scan(directory)) if file]
    last = max((file.base_offset for file in files if file.kind is SegmentFileKind.LOG and not file.state), default=-1)
    for kind in INDEX_KINDS:
        path = directory / segment_file_name(last, kind)
        if last >= 0 and fs.exists(path) and fs.has_other_names(path):
            fs.replace_file(path, fs.read_bytes(path))


def _adopt_owner_from(base_offset: int, directory: Path, fs: Fs) -> None:
    files = [(directory / entry.name, parse_segment_file(entry.name)) for entry in fs.scan(directory)]
    parsed = [(path, file) for path, file in files if file is not None]
    logs = (path for path, file in parsed if file.kind is SegmentFileKind.LOG and file.base_offset < base_offset)
    model = max(logs, default=directory)
    for path, file in parsed:
        if file.base_offset >= base_offset:
            fs.adopt_owner(path, model)


# ------------------------------------------------------------------------------------------------------------------ cut
def _cut(log: PartitionLog, offset: int, fs: Fs) -> None:
    if offset < log.log_start_offset:
        raise UsageError(
            f"offset {offset} is below the log start offset {log.log_start_offset}",
            partition=str(log.partition),
            advice="cut at an offset that is still in the log",
        )
    spanning = _spanning_batch(log, offset, fs)
    if spanning is None:
        log.truncate_to(offset)
        return
    base_offset, content = spanning
    log.truncate_to(base_offset)
    if content[MAGIC] >= MAGIC_V2:
        head = batch_head(content, offset, log.config.compaction.max_decompressed_batch_bytes)
        log.append_as_follower(head, INT32_MAX)


def _spanning_batch(log: PartitionLog, offset: int, fs: Fs) -> tuple[int, bytes] | None:
    base = max((each for each in log.base_offsets if each <= offset), default=log.first_base_offset)
    path = log.directory / segment_file_name(base, SegmentFileKind.LOG)
    for rows in HeaderScan(path):
        reaching = np.flatnonzero(rows["last_offset"] >= offset)
        if not reaching.size:
            continue
        row = rows[reaching[0]]
        if int(row["base_offset"]) >= offset:
            return None
        content = fs.read_range(path, int(row["position"]), int(row["size_bytes"]))
        return int(row["base_offset"]), content
    return None


def batch_head(content: bytes, end_offset: int, limit_bytes: int) -> bytes:
    (
        base_offset,
        _,
        leader_epoch,
        magic,
        _,
        attributes,
        _,
        base_timestamp_ms,
        largest_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = BATCH_STRUCT.unpack_from(content)
    codec = attributes & CODEC_MASK
    payload = bytes(decompress(codec, content[BATCH_HEADER_BYTES:], limit_bytes=limit_bytes))
    if record_count * MIN_RECORD_BYTES > len(payload):
        raise CorruptBatchError(STATUS_TEXT[BAD_RECORD_COUNT], offset=base_offset)
    rows = np.zeros((record_count, RECORD_FIELDS), dtype=np.int64)
    padded = padded_copy(payload)
    status = decode_records(padded.ctypes.data, 0, len(payload), len(rows), rows)
    if status != OK:
        raise CorruptBatchError(STATUS_TEXT[status], offset=base_offset)
    count = int(np.count_nonzero(base_offset + rows[:, OFFSET_DELTA] < end_offset))
    kept = bytes(compress(codec, payload[: int(rows[count - 1, RECORD_END])])) if count else b""
    if not attributes & TIMESTAMP_TYPE_BIT:
        largest_ms = base_timestamp_ms + int(rows[:count, TIMESTAMP_DELTA].max(initial=0))
    head = BATCH_STRUCT.pack(
        base_offset,
        BATCH_HEADER_BYTES + len(kept) - LOG_OVERHEAD_BYTES,
        leader_epoch,
        magic,
        0,
        attributes,
        end_offset - 1 - base_offset,
        base_timestamp_ms,
        largest_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    made = bytearray(head + kept)
    made[CRC : CRC + 4] = google_crc32c.value(bytes(made[ATTRIBUTES:])).to_bytes(4, "big")
    return bytes(made)


# -------------------------------------------------------------------------------------------------------------- markers
def _append_marker(log: PartitionLog, entry: ProducerEntry, *, is_commit: bool, now_ms: int) -> int:
    record = NewRecord(now_ms, *marker_key_value(max(entry.coordinator_epoch, 0), is_commit=is_commit))
    head = BatchHead(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        is_transactional=True,
        is_control=True,
    )
    return log.append_as_leader(
        build_batch([record], head),
        max(log.latest_epoch, 0),
        origin=AppendOrigin.COORDINATOR,
        transaction_version=_TRANSACTION_VERSION,
    ).last_offset
