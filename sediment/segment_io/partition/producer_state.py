"""Producer state: snapshot files, and replay as a fold over batch headers (kafka-log 01 §8, 04 §3, 05 §6).

    snapshot     version i16 = 1 | crc u32 | count i32 | entries
    entry        producer id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32
                 | timestamp i64 | coordinator epoch i32 | first offset of the open transaction i64
    `crc` is CRC-32C over byte 6 to the end of the file.

Replay follows Kafka's rules for batches of a log (origin REPLICATION): sequences and epochs are not checked, because
the leader checked them at the append.

Invariants: a state is a value, and `replay` returns a new one.  It reflects every batch below its `end_offset` and none
above.  A producer has at most one open transaction, which its entry holds.  A snapshot holds one batch of each
producer; a replay remembers up to five, because a client may send as many again.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import crc32c
import numpy as np
import numpy.typing as npt

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.compiled.status import NO_MARKER, OK
from sediment.segment_io.errors import CorruptBatchError, CorruptSnapshotError
from sediment.segment_io.format.indexes import AbortedTransaction
from sediment.segment_io.format.layout import (
    FIRST_MAGIC_WITH_PRODUCERS,
    INT32_MAX,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    SNAPSHOT_CRC_START,
    SNAPSHOT_ENTRY_BYTES,
    SNAPSHOT_ENTRY_STRUCT,
    SNAPSHOT_HEADER_STRUCT,
    SNAPSHOT_VERSION,
)
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.fs import Fs

NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1


@dataclass(frozen=True, slots=True)
class RememberedBatch:
    """Data batch of a producer: its last sequence and offset, and their distance to its first ones."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        """Sequence of the first record.  Source: kafka-log 01 §3.3 (decrementSequence)."""
        if self.last_sequence < self.offset_delta:
            return INT32_MAX - (self.offset_delta - self.last_sequence) + 1
        return self.last_sequence - self.offset_delta

    @property
    def first_offset(self) -> int:
        """Base offset of the batch when it was appended."""
        return self.last_offset - self.offset_delta


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """State of one producer, with the fields of a snapshot entry.

    `last_sequence`, `last_offset` and `offset_delta` are those of its last data batch; −1, −1 and 0 without one.
    `timestamp_ms` is the largest of that batch, or that of the last marker.  `current_txn_first_offset` is −1 without
    an open transaction.
    """

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_sequence: int = NO_SEQUENCE
    last_offset: int = NO_OFFSET
    offset_delta: int = 0
    timestamp_ms: int = NO_TIMESTAMP
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    current_txn_first_offset: int = NO_OFFSET

    @property
    def has_open_transaction(self) -> bool:
        """True if there is data of a transaction and no marker for it."""
        return self.current_txn_first_offset >= 0

    @property
    def batches(self) -> tuple[RememberedBatch, ...]:
        """Batch that a snapshot holds; empty without data under this epoch."""
        if self.last_offset < 0:
            return ()
        return (RememberedBatch(self.last_sequence, self.last_offset, self.offset_delta, self.timestamp_ms),)

    def is_expired(self, now_ms: int, expiration_ms: int | None) -> bool:
        """Return True if the producer was idle for `expiration_ms` or longer and has no open transaction.

        With `expiration_ms` None no producer expires.

        Source: kafka-log 04 §3.
        """
        if expiration_ms is None:
            return False
        return not self.has_open_transaction and now_ms - self.timestamp_ms >= expiration_ms


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """Transaction with its marker at `last_offset`.

    `last_stable_offset` is that of the log at the marker: the first offset of the earliest other open transaction, else
    the offset after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    last_stable_offset: int


# --------------------------------------------------------------------------------------------------------- snapshots

_SNAPSHOT_ADVICE = "delete the snapshot; the state is rebuilt from an older one and the log"


def parse_snapshot(data: Buffer, *, path: str | None = None) -> tuple[ProducerEntry, ...]:
    """Return the entries of a producer snapshot, in file order.

    Raises:
        CorruptSnapshotError: too short for its count, an unknown version, or a wrong checksum.

    Source: kafka-log 01 §8.
    """
    view = memoryview(data).cast("B")
    try:
        version, crc, count = SNAPSHOT_HEADER_STRUCT.unpack_from(view)
    except struct.error as error:
        raise _corrupt_snapshot(f"snapshot of {len(view)} bytes has no header", path) from error
    if version != SNAPSHOT_VERSION:
        raise _corrupt_snapshot(f"snapshot has version {version}, not {SNAPSHOT_VERSION}", path)
    if crc != crc32c.crc32c(view[SNAPSHOT_CRC_START:]):
        raise _corrupt_snapshot("snapshot fails its checksum", path)
    entries = view[SNAPSHOT_HEADER_STRUCT.size :]
    if not 0 <= count * SNAPSHOT_ENTRY_BYTES <= len(entries):
        raise _corrupt_snapshot(f"snapshot of {len(view)} bytes cannot hold {count} producers", path)
    return tuple(map(_entry, SNAPSHOT_ENTRY_STRUCT.iter_unpack(entries[: count * SNAPSHOT_ENTRY_BYTES])))


def _corrupt_snapshot(what: str, path: str | None) -> CorruptSnapshotError:
    return CorruptSnapshotError(what, path=path, advice=_SNAPSHOT_ADVICE)


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
    """Return the content of a snapshot file of `entries`, by ascending producer id.

    Source: kafka-log 01 §8, which gives the order no meaning.
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
    crc = crc32c.crc32c(unsigned[SNAPSHOT_CRC_START:])
    return SNAPSHOT_HEADER_STRUCT.pack(SNAPSHOT_VERSION, crc, len(body)) + unsigned[SNAPSHOT_HEADER_STRUCT.size :]


def snapshots_in_range(snapshots: Iterable[int], *, log_start_offset: int, log_end_offset: int) -> tuple[int, ...]:
    """Return the snapshots that may be loaded for a log with these ends, ascending; the others are stale.

    Source: kafka-log 04 §3.1, 05 §6 (truncateAndReload): above the log start offset and not above the log end offset.
    """
    return tuple(sorted(offset for offset in snapshots if log_start_offset < offset <= log_end_offset))


def choose_snapshot(snapshots: Iterable[int], *, log_start_offset: int, log_end_offset: int) -> int | None:
    """Return the newest snapshot that may be loaded, None without one; if it is corrupt, call again without it."""
    usable = snapshots_in_range(snapshots, log_start_offset=log_start_offset, log_end_offset=log_end_offset)
    return usable[-1] if usable else None


def stray_snapshots(snapshots: Iterable[int], segment_base_offsets: Collection[int]) -> tuple[int, ...]:
    """Return the snapshots that a loader removes because no segment begins at their offset, ascending.

    The largest stray stays if it is not below the last segment's base: a clean stop wrote it at the log end.

    Source: kafka-log 05 §6 (removeStraySnapshots).
    """
    strays = sorted(set(snapshots) - set(segment_base_offsets))
    if strays and strays[-1] >= max(segment_base_offsets, default=strays[-1]):
        strays.pop()
    return tuple(strays)


# ------------------------------------------------------------------------------------------------------------- state


@dataclass(frozen=True, slots=True)
class ProducerState:
    """Producers of a log below `end_offset`, by id, and the transactions that ended in the replay.

    `completed` is in marker order.  `remembered` holds the last batches of each producer with more than one replayed
    batch: at most five of its current epoch, oldest first.
    """

    end_offset: int
    entries: Mapping[int, ProducerEntry]
    completed: tuple[CompletedTransaction, ...] = ()
    remembered: Mapping[int, tuple[RememberedBatch, ...]] = field(default_factory=dict)

    @classmethod
    def at(cls, end_offset: int, entries: Iterable[ProducerEntry] = ()) -> ProducerState:
        """Return the state of a snapshot at `end_offset`; without entries, that of a log that begins there."""
        return cls(end_offset, {entry.producer_id: entry for entry in entries})

    def batches(self, producer_id: int) -> tuple[RememberedBatch, ...]:
        """Return the batches of a producer that are recognised as duplicates, oldest first."""
        entry = self.entries.get(producer_id)
        return self.remembered.get(producer_id, () if entry is None else entry.batches)

    def first_undecided_offset(self) -> int | None:
        """Return the first offset of the earliest open transaction; None without one."""
        return min(
            (entry.current_txn_first_offset for entry in self.entries.values() if entry.has_open_transaction),
            default=None,
        )

    def first_unstable_offset(self, high_watermark: int, *, log_start_offset: int = 0) -> int | None:
        """Return the lowest first offset of a transaction that is open or has its marker at or above `high_watermark`.

        Source: kafka-log 04 §3: never below the log start offset.
        """
        unreplicated = [txn.first_offset for txn in self.completed if txn.last_offset >= high_watermark]
        undecided = self.first_undecided_offset()
        candidates = unreplicated if undecided is None else [*unreplicated, undecided]
        return max(min(candidates), log_start_offset) if candidates else None

    def last_stable_offset(self, high_watermark: int, *, log_start_offset: int = 0) -> int:
        """Return the offset at which READ_COMMITTED ends.

        Source: kafka-log 04 §0.
        """
        unstable = self.first_unstable_offset(high_watermark, log_start_offset=log_start_offset)
        return high_watermark if unstable is None else min(unstable, high_watermark)

    def aborted(self) -> tuple[AbortedTransaction, ...]:
        """Return a transaction index entry for each aborted transaction; it belongs to the segment of its marker."""
        return tuple(
            AbortedTransaction(txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset)
            for txn in self.completed
            if txn.is_aborted
        )

    def without_expired(self, now_ms: int, expiration_ms: int | None) -> ProducerState:
        """Return the state without expired producers, as a broker loads a snapshot; with None none expires."""
        kept = {key: entry for key, entry in self.entries.items() if not entry.is_expired(now_ms, expiration_ms)}
        remembered = {key: self.remembered[key] for key in kept.keys() & self.remembered.keys()}
        return replace(self, entries=kept, remembered=remembered)


@dataclass(frozen=True, slots=True)
class LoadedProducers:
    """State to replay the log on, from `state.end_offset`, and the corrupt snapshots that were skipped."""

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
    """Return the state of the newest readable snapshot in range, without expired producers; an empty one without it.

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


# ------------------------------------------------------------------------------------------------------------ replay

_LOG_ADVICE = "restore the partition from a replica or a backup, or leave it out"


def replay(state: ProducerState, table: npt.NDArray[np.void], *, only_aborted: bool = False) -> ProducerState:
    """Return `state` after the batches of `table`, rows of `decode.BATCH_ROW` in log order from `state.end_offset` on.

    Batches without a producer only move the end offset.  With `only_aborted`, `completed` leaves out committed
    transactions, which the rebuild of a transaction index does not need.

    Raises:
        CorruptBatchError: a batch is outside its producer's open transaction, or a control record of a producer is not
            a transaction marker; a broker does not load such a log either.

    Source: kafka-log 04 §3 (origin REPLICATION), 04 §1 step 10, 05 §4.
    """
    if not len(table):
        return state
    end_offset = int(table["last_offset"][-1]) + 1
    has_producer = (table["producer_id"] >= 0) & (table["magic"] >= FIRST_MAGIC_WITH_PRODUCERS)
    rows = table if has_producer.all() else table[has_producer]
    if not len(rows):
        return replace(state, end_offset=end_offset)
    return _replayed(state, rows, end_offset, only_aborted)


def _replayed(state: ProducerState, rows: npt.NDArray[np.void], end_offset: int, only_aborted: bool) -> ProducerState:
    from sediment.segment_io.partition import producer_replay as kernels

    opened = sorted(
        (entry.current_txn_first_offset, key) for key, entry in state.entries.items() if entry.has_open_transaction
    )
    known = np.array([key for _, key in opened], dtype=np.int64)
    ids, rows_of_ids = np.unique(np.concatenate([known, rows["producer_id"]]), return_inverse=True)
    entries = [state.entries.get(key) or ProducerEntry(key) for key in ids.tolist()]
    table = np.array([_table_row(entry) for entry in entries], dtype=np.int64)
    queue = np.zeros((len(opened) + len(rows), 2), dtype=np.int64)
    queue[: len(opened), 0] = [first_offset for first_offset, _ in opened]
    queue[: len(opened), 1] = rows_of_ids[: len(opened)]
    completed = np.empty((len(rows), kernels.COMPLETED_FIELDS), dtype=np.int64)
    known_rows = [_remembered_row(state.batches(key), kernels.REMEMBERED_FIELDS) for key in ids.tolist()]
    remembered = np.array(known_rows, dtype=np.int64)
    slots = rows_of_ids[len(opened) :].astype(np.int64)
    status, failed, ended = kernels.fold_rows(rows, slots, table, queue, len(opened), completed, remembered)
    if status != OK:
        raise _not_replayable(rows[failed], int(table[slots[failed], kernels.TXN_FIRST_OFFSET]), status == NO_MARKER)
    changed = {key: ProducerEntry(key, *fields) for key, fields in zip(ids.tolist(), table.tolist(), strict=True)}
    completed = completed[:ended]
    if only_aborted:
        completed = completed[completed[:, kernels.IS_ABORTED] != 0]
    done = [
        CompletedTransaction(int(ids[slot]), first_offset, last_offset, bool(is_aborted), stable)
        for slot, first_offset, last_offset, is_aborted, stable in completed.tolist()
    ]
    batches = dict(state.remembered)
    for key, row in zip(ids.tolist(), remembered.tolist(), strict=True):
        found = tuple(RememberedBatch(*row[at : at + kernels.BATCH_FIELDS]) for at in kernels.batch_positions(row[0]))
        if found == changed[key].batches:
            batches.pop(key, None)
        else:
            batches[key] = found
    return ProducerState(end_offset, {**state.entries, **changed}, (*state.completed, *done), batches)


def _remembered_row(batches: tuple[RememberedBatch, ...], fields: int) -> list[int]:
    """Return a row of the kernel's `remembered`, which has `fields` columns."""
    row = [len(batches)]
    for batch in batches:
        row += (batch.last_sequence, batch.last_offset, batch.offset_delta, batch.timestamp_ms)
    return row + [0] * (fields - len(row))


def _table_row(entry: ProducerEntry) -> tuple[int, ...]:
    """Return a row of the kernel's `table`: the fields of an entry in their order."""
    return (
        entry.producer_epoch,
        entry.last_sequence,
        entry.last_offset,
        entry.offset_delta,
        entry.timestamp_ms,
        entry.coordinator_epoch,
        entry.current_txn_first_offset,
    )


def _not_replayable(row: np.void, txn_first_offset: int, is_marker: bool) -> CorruptBatchError:
    producer_id = int(row["producer_id"])
    what = f"batch of producer {producer_id} is outside the transaction it opened at {txn_first_offset}"
    if is_marker:
        kind = int(row["control_type"])
        what = f"control record of producer {producer_id} has type {kind}, which is not a transaction marker"
    return CorruptBatchError(what, offset=int(row["base_offset"]), advice=_LOG_ADVICE)


def last_sequence(base_sequence: int, offset_delta: int) -> int:
    """Return the sequence `offset_delta` after `base_sequence`; sequences wrap to 0 after 2^31 − 1.

    Source: kafka-log 01 §3.3.
    """
    return NO_SEQUENCE if base_sequence == NO_SEQUENCE else (base_sequence + offset_delta) & INT32_MAX
