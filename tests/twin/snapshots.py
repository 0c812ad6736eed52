"""Producer state: snapshot files (kafka-log 01 §8), and replay as a fold over batches (04 §3, origin replication).

Of a producer's up to five batches only the last one is kept, which is what a snapshot stores.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from pathlib import Path

from tests.twin.batches import ControlType, crc32c_of, parse_end_transaction_marker
from tests.twin.errors import CorruptSnapshotError, IllegalStateError, InvalidRecordError
from tests.twin.indexes import AbortedTransaction
from tests.twin.segments import SNAPSHOT, AnyBatch, list_segments, list_snapshots

_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_START = 6
VERSION = 1
DEFAULT_EXPIRATION_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """State of one producer; -1 means unknown or none, as in the file."""

    producer_id: int
    epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    timestamp: int = -1
    coordinator_epoch: int = -1
    transaction_first_offset: int = -1

    def with_epoch(self, epoch: int) -> ProducerEntry:
        """Return the entry under `epoch`; another epoch than before forgets the last batch."""
        if epoch == self.epoch:
            return self
        return replace(self, epoch=epoch, last_sequence=-1, last_offset=-1, offset_delta=0)

    def is_expired(self, now_ms: int, expiration_ms: int | None) -> bool:
        """Return True if no transaction is open and the last append is `expiration_ms` old; None: it never is."""
        if expiration_ms is None:
            return False
        return self.transaction_first_offset < 0 and now_ms - self.timestamp >= expiration_ms


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction that held data, ended by the marker at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


def parse_snapshot(data: bytes) -> dict[int, ProducerEntry]:
    """Entries by producer id.

    Raises:
        CorruptSnapshotError: another version, a wrong checksum, a length that contradicts the count.
    """
    if len(data) < _HEADER.size:
        raise CorruptSnapshotError(f"snapshot of {len(data)} bytes")
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptSnapshotError(f"snapshot of version {version}")
    if crc != crc32c_of(data[_CRC_START:]):
        raise CorruptSnapshotError("snapshot checksum mismatch")
    if count < 0 or _HEADER.size + count * _ENTRY.size > len(data):
        raise CorruptSnapshotError(f"{count} producers in {len(data)} bytes")
    entries = (ProducerEntry(*_ENTRY.unpack_from(data, _HEADER.size + index * _ENTRY.size)) for index in range(count))
    return {entry.producer_id: entry for entry in entries}


def encode_snapshot(entries: dict[int, ProducerEntry]) -> bytes:
    """Bytes of a snapshot, entries in the order of the dict."""
    body = struct.pack(">i", len(entries)) + b"".join(
        _ENTRY.pack(
            entry.producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.offset_delta,
            entry.timestamp,
            entry.coordinator_epoch,
            entry.transaction_first_offset,
        )
        for entry in entries.values()
    )
    return struct.pack(">hI", VERSION, crc32c_of(body)) + body


class ProducerStates:
    """The fold: feed it batches in log order; `entries` is the state behind the last one."""

    def __init__(self, entries: dict[int, ProducerEntry] | None = None) -> None:
        self.entries = dict(entries or {})

    def fold(self, batch: AnyBatch) -> CompletedTransaction | None:
        """Take one batch into the state; the transaction that it completes, if any.

        Raises:
            InvalidRecordError: a control batch with a producer that is no transaction marker.
            IllegalStateError: a non-transactional batch inside of its producer's transaction.
        """
        if batch.producer_id < 0:
            return None
        entry = self.entries.get(batch.producer_id, ProducerEntry(batch.producer_id))
        if batch.is_control:
            return self._fold_marker(entry, batch)
        if entry.transaction_first_offset >= 0 and not batch.is_transactional:
            raise IllegalStateError(f"batch {batch.base_offset} is not transactional inside of a transaction")
        opens = batch.is_transactional and entry.transaction_first_offset < 0
        self.entries[batch.producer_id] = replace(
            entry,
            epoch=batch.producer_epoch,
            last_sequence=batch.last_sequence,
            last_offset=batch.last_offset,
            offset_delta=batch.last_offset - batch.base_offset,
            timestamp=batch.max_timestamp,
            transaction_first_offset=batch.base_offset if opens else entry.transaction_first_offset,
        )
        return None

    def _fold_marker(self, entry: ProducerEntry, batch: AnyBatch) -> CompletedTransaction | None:
        records = batch.records()
        if not records:
            return None
        control_type = batch.control_type()
        if control_type not in (ControlType.ABORT, ControlType.COMMIT):
            raise InvalidRecordError(f"control batch {batch.base_offset} with a producer is no transaction marker")
        self.entries[batch.producer_id] = replace(
            entry.with_epoch(batch.producer_epoch),
            timestamp=records[0].timestamp,
            coordinator_epoch=parse_end_transaction_marker(records[0].value),
            transaction_first_offset=-1,
        )
        if entry.transaction_first_offset < 0:
            return None
        return CompletedTransaction(
            batch.producer_id,
            entry.transaction_first_offset,
            batch.base_offset,
            control_type is ControlType.ABORT,
        )

    def aborted(self, completed: CompletedTransaction) -> AbortedTransaction:
        """Return the transaction index entry of a transaction that was just completed by an ABORT."""
        return AbortedTransaction(
            completed.producer_id,
            completed.first_offset,
            completed.last_offset,
            min(self.open_transactions(), default=completed.last_offset + 1),
        )

    def open_transactions(self) -> list[int]:
        """First offsets of the open transactions."""
        return [
            entry.transaction_first_offset for entry in self.entries.values() if entry.transaction_first_offset >= 0
        ]

    def expire(self, now_ms: int, expiration_ms: int | None = DEFAULT_EXPIRATION_MS) -> None:
        """Forget the producers that are expired at `now_ms`."""
        self.entries = {
            producer_id: entry
            for producer_id, entry in self.entries.items()
            if not entry.is_expired(now_ms, expiration_ms)
        }


def load_producers(
    directory: Path, *, now_ms: int, expiration_ms: int | None = DEFAULT_EXPIRATION_MS, log_start_offset: int = 0
) -> ProducerStates:
    """Return the state at the log end from the newest readable snapshot and later batches, without expired producers.

    Snapshots at or below `log_start_offset`, or beyond the log's end, do not count (05 §6).
    """
    segments = list_segments(directory)
    end_offset = segments[-1].next_offset() if segments else 0
    start, states = log_start_offset, ProducerStates()
    for offset in reversed(list_snapshots(directory)):
        if not log_start_offset < offset <= end_offset:
            continue
        try:
            states = ProducerStates(parse_snapshot((directory / f"{offset:020d}{SNAPSHOT}").read_bytes()))
        except CorruptSnapshotError:
            continue
        start = offset
        break
    states.expire(now_ms, expiration_ms)
    for segment in segments:
        for _position, batch in segment.batches():
            if batch.last_offset >= start:
                states.fold(batch)
    states.expire(now_ms, expiration_ms)
    return states
