"""The end of a cloned log: a cut at an offset or a time, and markers for transactions that have no coordinator.

    1. cut       the log ends at the offset; of a batch that spans it, the records below stay
    2. markers   each open transaction gets ABORT, or COMMIT if its coordinator had decided so

A cut at a time ends the log before its first record with a later timestamp, control records included, as
`kafka-consumer-groups --to-datetime` finds it.

Both go through the live log, so that segments, indexes, leader epochs and producers stay consistent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import crc32c
import numpy as np

from sediment.compaction.rewrite.batch_rewrite import rewrite_batch
from sediment.compaction.rewrite.verdicts import Action, Verdict, Verdicts
from sediment.engine.config import LogConfig
from sediment.engine.live.log.partition_log import AppendOrigin, PartitionLog
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_KEY_STRUCT,
    CRC,
    END_TXN_MARKER_STRUCT,
    INT32_MAX,
    LAST_OFFSET_DELTA,
)
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.log_dir_checkpoints import PartitionCheckpoints
from sediment.segment_io.partition.producer_state import ProducerEntry
from sediment.segment_io.segment.reader import HeaderScan

_MARKER_VERSION = 0
_TRANSACTION_VERSION = 0  # of a marker with the producer's own epoch


class _AtOnce:
    """A scheduler that performs every task at once: no reader needs the files that a log removes."""

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
    """Cut the log in `directory` and end its open transactions; return the number of transactions ended.

    `committing` are the producers whose coordinator has decided to commit.

    Raises:
        UsageError: the offset is below the log start offset.
        CorruptDataError: a batch cannot be read.
        StorageError, OSError: the disk failed.
    """
    ended = 0
    with PartitionLog.open(
        partition,
        directory,
        config,
        checkpoints,
        fs,
        clock=lambda: now_ms,
        scheduler=_AtOnce(),
        verify_transactions=False,
    ) as log:
        if until_ms is not None:
            found = log.lookup_timestamp(until_ms + 1)
            until_offset = None if found is None else found.offset
        if until_offset is not None and until_offset < log.log_end_offset:
            _cut(log, until_offset, fs)
        if ends_transactions:
            for entry in sorted(log.producers.entries.values(), key=lambda entry: entry.current_txn_first_offset):
                if entry.has_open_transaction:
                    _append_marker(log, entry, is_commit=entry.producer_id in committing, now_ms=now_ms)
                    ended += 1
        log.flush(force_last_segment=True)
    return ended


# ------------------------------------------------------------------------------------------------------------------ cut
def _cut(log: PartitionLog, offset: int, fs: Fs) -> None:
    if offset < log.log_start_offset:
        raise UsageError(
            f"offset {offset} is below the log start offset {log.log_start_offset}",
            partition=str(log.partition),
            advice="cut at an offset that the log still has",
        )
    spanning = _spanning_batch(log, offset, fs)
    if spanning is None:
        log.truncate_to(offset)
        return
    base_offset, content, last_offset = spanning
    log.truncate_to(base_offset)
    head = batch_head(content, offset, last_offset, log.config.compaction.max_decompressed_batch_bytes)
    log.append_as_follower(head, INT32_MAX)


def _spanning_batch(log: PartitionLog, offset: int, fs: Fs) -> tuple[int, bytes, int] | None:
    """Return base offset, bytes and last offset of the batch that begins below `offset` and ends at or above it."""
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
        return int(row["base_offset"]), content, int(row["last_offset"])
    return None


def batch_head(content: bytes, end_offset: int, last_offset: int, limit_bytes: int) -> bytes:
    """Return a batch without its records at or above `end_offset`, which its header does not span any more.

    Raises:
        CorruptBatchError: the records cannot be decoded.
    """
    verdicts = Verdicts.of(Verdict(offset, Action.DROP) for offset in range(end_offset, last_offset + 1))
    batch = np.frombuffer(content, dtype=np.uint8)
    kept = rewrite_batch(batch, verdicts, keeps_header=True, limit_bytes=limit_bytes).content
    head = bytearray(content if kept is None else kept.tobytes())
    base_offset = int.from_bytes(head[:8], "big")
    head[LAST_OFFSET_DELTA : LAST_OFFSET_DELTA + 4] = (end_offset - 1 - base_offset).to_bytes(4, "big")
    head[CRC : CRC + 4] = crc32c.crc32c(bytes(head[ATTRIBUTES:])).to_bytes(4, "big")
    return bytes(head)


# -------------------------------------------------------------------------------------------------------------- markers
def _append_marker(log: PartitionLog, entry: ProducerEntry, *, is_commit: bool, now_ms: int) -> None:
    kind = CONTROL_COMMIT if is_commit else CONTROL_ABORT
    record = NewRecord(
        now_ms,
        CONTROL_KEY_STRUCT.pack(_MARKER_VERSION, kind),
        END_TXN_MARKER_STRUCT.pack(_MARKER_VERSION, max(entry.coordinator_epoch, 0)),
    )
    head = BatchHead(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        is_transactional=True,
        is_control=True,
    )
    log.append_as_leader(
        build_batch([record], head),
        max(log.latest_epoch, 0),
        origin=AppendOrigin.COORDINATOR,
        transaction_version=_TRANSACTION_VERSION,
    )
