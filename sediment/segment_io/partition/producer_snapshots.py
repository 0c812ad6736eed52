"""Producer snapshots: their format, and the choice of the snapshot to load (kafka-log 01 §8, 05 §6).

    snapshot     version i16 = 1 | crc u32 | count i32 | entries
    entry        producer id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32
                 | timestamp i64 | coordinator epoch i32 | first offset of the open transaction i64

`crc` is the CRC-32C of byte 6 to the end of the file.  A wrong `crc`, another version or too few bytes make a snapshot
corrupt.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import CorruptSnapshotError
from sediment.segment_io.format.layout import (
    NO_SEQUENCE,
    SNAPSHOT_CRC_START,
    SNAPSHOT_ENTRY_BYTES,
    SNAPSHOT_ENTRY_STRUCT,
    SNAPSHOT_HEADER_STRUCT,
    SNAPSHOT_VERSION,
)
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.producer_state import NO_OFFSET, ProducerEntry, ProducerState

_ADVICE = "delete the snapshot; the state is rebuilt from an older snapshot and the log"


def parse_snapshot(data: Buffer, *, path: str | None = None) -> tuple[ProducerEntry, ...]:
    view = memoryview(data).cast("B")
    try:
        version, crc, count = SNAPSHOT_HEADER_STRUCT.unpack_from(view)
    except struct.error as error:
        raise _corrupt_snapshot(f"snapshot of {len(view)} bytes has no header", path) from error
    if version != SNAPSHOT_VERSION:
        raise _corrupt_snapshot(f"snapshot has version {version}, not {SNAPSHOT_VERSION}", path)
    if crc != google_crc32c.value(bytes(view[SNAPSHOT_CRC_START:])):
        raise _corrupt_snapshot("snapshot fails its checksum", path)
    entries = view[SNAPSHOT_HEADER_STRUCT.size :]
    if not 0 <= count * SNAPSHOT_ENTRY_BYTES <= len(entries):
        raise _corrupt_snapshot(f"snapshot of {len(view)} bytes cannot contain {count} producers", path)
    return tuple(map(_entry, SNAPSHOT_ENTRY_STRUCT.iter_unpack(entries[: count * SNAPSHOT_ENTRY_BYTES])))


def _corrupt_snapshot(what: str, path: str | None) -> CorruptSnapshotError:
    return CorruptSnapshotError(what, path=path, advice=_ADVICE)


def _entry(fields: tuple[int, ...]) -> ProducerEntry:
    producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp_ms, coordinator_epoch, txn_first = fields
    if last_offset < 0:
        last_sequence, last_offset, offset_delta = NO_SEQUENCE, NO_OFFSET, 0
    return ProducerEntry(
        producer_id,
        epoch,
        last_sequence,
        last_offset,
        offset_delta,
        timestamp_ms,
        coordinator_epoch,
        max(txn_first, NO_OFFSET),
    )


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the content of a snapshot file with `entries`, sorted by producer id.

    Source: kafka-log 01 §8; in Kafka, the order does not matter.
    """
    body = [
        SNAPSHOT_ENTRY_STRUCT.pack(
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.offset_delta,
            entry.timestamp_ms,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )
        for entry in sorted(entries, key=lambda entry: entry.producer_id)
    ]
    unsigned = SNAPSHOT_HEADER_STRUCT.pack(SNAPSHOT_VERSION, 0, len(body)) + b"".join(body)
    crc = google_crc32c.value(unsigned[SNAPSHOT_CRC_START:])
    return SNAPSHOT_HEADER_STRUCT.pack(SNAPSHOT_VERSION, crc, len(body)) + unsigned[SNAPSHOT_HEADER_STRUCT.size :]


def snapshots_in_range(snapshots: Iterable[int], *, log_start_offset: int, log_end_offset: int) -> tuple[int, ...]:
    """Return the snapshots that a log with these ends may load, in ascending order; all other snapshots are stale.

    Source: kafka-log 04 §3.1, 05 §6 (truncateAndReload).
    """
    return tuple(sorted(offset for offset in snapshots if log_start_offset < offset <= log_end_offset))


def choose_snapshot(snapshots: Iterable[int], *, log_start_offset: int, log_end_offset: int) -> int | None:
    """Return the newest snapshot that may be loaded, or None.  If that snapshot is corrupt, call again without it."""
    usable = snapshots_in_range(snapshots, log_start_offset=log_start_offset, log_end_offset=log_end_offset)
    return usable[-1] if usable else None


@dataclass(frozen=True, slots=True)
class LoadedProducers:
    """The state from which a replay starts (at `state.end_offset`), and the corrupt snapshots that were skipped."""

    state: ProducerState
    corrupt_snapshots: tuple[int, ...]


def load_producer_state(
    fs: Fs,
    directory: Path,
    snapshots: Iterable[int],
    *,
    log_start_offset: int,
    log_end_offset: int,
    now_ms: int,
    expiration_ms: int | None,
) -> LoadedProducers:
    """Return the state of the newest readable snapshot in range, without expired producers.

    No file is removed.

    Source: kafka-log 05 §6.
    """
    untried = set(snapshots)
    corrupt: list[int] = []
    while True:
        offset = choose_snapshot(untried, log_start_offset=log_start_offset, log_end_offset=log_end_offset)
        if offset is None:
            return LoadedProducers(ProducerState.at(log_start_offset), tuple(corrupt))
        path = directory / segment_file_name(offset, SegmentFileKind.SNAPSHOT)
        try:
            entries = parse_snapshot(fs.read_bytes(path), path=str(path))
        except CorruptSnapshotError:
            untried.discard(offset)
            corrupt.append(offset)
            continue
        state = ProducerState.at(offset, entries).without_expired(now_ms, expiration_ms)
        return LoadedProducers(state, tuple(corrupt))
