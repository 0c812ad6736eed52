"""Search for the records of a segment whose keys are in a set.

    keys      sorted bytes, one after another                     KeySet
    table     | hash of a key | its index in the set  |           24 bytes a slot, in the cleaner's offset map
    records   --decode--> hash --look up--> compare the bytes --> offset, index of the key

The search reads the segment once, checks every checksum, and uses the cleaner's kernels to decode and hash keys.
Control batches contain no data and are skipped.  Data of aborted transactions is included.

Invariant: a record is found only if its key equals a key in the set byte for byte; equal hashes are not enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.batch_decoder import decode_and_hash
from sediment.compaction.kernels.offset_map import OFFSET_SLOT_BYTES, OffsetMap, fill_slot, find_slot, normal
from sediment.compaction.kernels.registers import NEEDED, STATE_REGISTERS
from sediment.compaction.rewrite.key_set import KeySet
from sediment.compaction.rewrite.open_batches import BatchOpener, ChunkBatches
from sediment.compaction.rewrite.source_segment import Progress, SourceSegment
from sediment.compaction.rewrite.verdicts import ByteArray, Int64s
from sediment.compaction.source_errors import errors_of_partition
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import equal_bytes, load_i32, load_i64, store_i64
from sediment.segment_io.compiled.status import (
    BAD_RECORD_COUNT,
    DONE,
    NEEDS_PAYLOAD,
    NEEDS_RECORD_ROOM,
    NEEDS_TABLE_ROOM,
    OK,
)
from sediment.segment_io.errors import CorruptBatchError, UnsupportedDataError
from sediment.segment_io.format.compression.decompress_fast_path import NOT_DECOMPRESSED
from sediment.segment_io.format.hashing import draw_seed, hash_key, hash_secrets
from sediment.segment_io.format.layout import BASE_OFFSET, CONTROL_BIT, MAGIC_V2, MIN_RECORD_BYTES, RECORD_COUNT
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.format.record_decoder import KEY_BYTES, KEY_START, OFFSET_DELTA, RECORD_FIELDS, VALUE_BYTES
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.segment.reader import BatchSpan

_FIRST_ROWS = 4096
_ALL_ENTERED = -1


# --------------------------------------------------------------------------------------------------------------- values
@dataclass(frozen=True, slots=True, eq=False)
class KeyMatches:
    """`keys`, int64[n], has the index of each record's key in the set.

    `tombstones`, bool[n], is True for records without a value.  `scanned` is the number of data records in the segment.
    """

    offsets: Int64s
    keys: Int64s
    tombstones: npt.NDArray[np.bool_]
    scanned: int

    def __len__(self) -> int:
        return int(self.offsets.size)


# -------------------------------------------------------------------------------------------------------------- kernels
# registers besides NEEDED, which `decode_and_hash` sets
CURSOR = 0  # batches of the chunk that are processed
MATCHES = STATE_REGISTERS
SCANNED = STATE_REGISTERS + 1
_REGISTERS = STATE_REGISTERS + 2


class KeySetTable(NamedTuple):
    """A map from the hash of each key of a set to the key's index; `contents` is the address of the key bytes."""

    tables: Int64s
    contents: int
    edges: Int64s
    seed: np.uint64
    secrets: ByteArray


class MatchColumns(NamedTuple):
    """The columns of `KeyMatches`, with unused rows at the end."""

    offsets: Int64s
    keys: Int64s
    tombstones: npt.NDArray[np.bool_]


@kernel
def enter_keys(table: KeySetTable) -> int:
    """Add the keys of the set to the table, which must have enough room.

    Return the first key whose hash is already in the table, or -1.
    """
    for number in range(table.edges.size - 1):
        start = table.edges[number]
        low, high = hash_key(
            table.contents + start, table.edges[number + 1] - start, table.seed, np.int64(table.secrets.ctypes.data)
        )
        low = normal(low, high)
        found, slot = find_slot(table.tables, OFFSET_SLOT_BYTES, low, high)
        if found:
            return number
        fill_slot(table.tables, slot, low, high)
        store_i64(slot + 16, number)
    return _ALL_ENTERED


@kernel
def match_keys(
    batches: ChunkBatches,
    table: KeySetTable,
    records: Int64s,
    hashes: npt.NDArray[np.uint64],
    matches: MatchColumns,
    state: Int64s,
) -> int:
    """Search the wanted batches at and after CURSOR, and append to `matches` the records whose keys are in the table.

    `records`, int64[n, RECORD_FIELDS], and `hashes`, uint64[n, 2], are working memory.  Return DONE, a request for a
    payload or room, or a decoder's status.  A request or a decoder's status concerns the batch at CURSOR, which the
    kernel has not processed yet.
    """
    while state[CURSOR] < batches.headers.size:
        ordinal = state[CURSOR]
        if batches.wanted[ordinal]:
            address, payload_bytes = batches.payloads[ordinal, 0], batches.payloads[ordinal, 1]
            if payload_bytes == NOT_DECOMPRESSED:
                return NEEDS_PAYLOAD
            count = load_i32(batches.headers[ordinal] + RECORD_COUNT)
            if count * MIN_RECORD_BYTES > payload_bytes:
                return BAD_RECORD_COUNT
            if matches.offsets.size - state[MATCHES] < count:
                state[NEEDED] = state[MATCHES] + count
                return NEEDS_TABLE_ROOM
            status = decode_and_hash(
                address,
                payload_bytes,
                count,
                0,
                count,
                OFFSET_SLOT_BYTES,
                table.seed,
                np.int64(table.secrets.ctypes.data),
                table.tables,
                records,
                hashes,
                state,
            )
            if status != OK:
                return status
            base_offset = load_i64(batches.headers[ordinal] + BASE_OFFSET)
            for index in range(count):
                length = records[index, KEY_BYTES]
                if length < 0:
                    continue
                found, slot = find_slot(table.tables, OFFSET_SLOT_BYTES, hashes[index, 0], hashes[index, 1])
                if not found:
                    continue
                number = load_i64(slot + 16)
                start = table.edges[number]
                if table.edges[number + 1] - start != length:
                    continue
                if equal_bytes(table.contents + start, address + records[index, KEY_START], length):
                    row = state[MATCHES]
                    matches.offsets[row] = base_offset + records[index, OFFSET_DELTA]
                    matches.keys[row] = number
                    matches.tombstones[row] = records[index, VALUE_BYTES] < 0
                    state[MATCHES] = row + 1
            state[SCANNED] += count
        state[CURSOR] = ordinal + 1
    return DONE


# --------------------------------------------------------------------------------------------------------------- search
def find_key_matches(
    partition: TopicPartition,
    directory: Path,
    segment: SegmentRef,
    end_offset: int,
    keys: KeySet,
    fs: Fs,
    *,
    limit_bytes: int,
    progress: Progress | None = None,
) -> KeyMatches:
    with ExitStack() as stack, errors_of_partition(partition):
        source = SourceSegment(directory, segment, end_offset, fs, stack, progress)
        search = KeySearch(source, keys, limit_bytes)
        for span in source.checked_spans(zeros_may_follow=True):
            search.add(span)
        return search.matches()


class KeySearch:
    """The search in the chunks of one segment; compressed records of a batch may expand to `limit_bytes`."""

    def __init__(self, source: SourceSegment, keys: KeySet, limit_bytes: int) -> None:
        self._source = source
        self._opener = BatchOpener(limit_bytes)
        # These references keep the memory of the table alive.
        self._keys = keys
        self._map, self._table = _table_of(keys)
        self._state = np.zeros(_REGISTERS, dtype=np.int64)
        self._reserve_records(_FIRST_ROWS)
        self._matches = _columns_of(_FIRST_ROWS)

    def matches(self) -> KeyMatches:
        found = int(self._state[MATCHES])
        offsets, keys, tombstones = self._matches
        return KeyMatches(offsets[:found], keys[:found], tombstones[:found], int(self._state[SCANNED]))

    def add(self, span: BatchSpan) -> Int64s:
        rows, state, before = span.rows, self._state, int(self._state[MATCHES])
        is_control = (rows["magic"] >= MAGIC_V2) & (rows["attributes"] & CONTROL_BIT != 0)
        batches = self._opener.begin(span, (rows["record_count"] != 0) & ~is_control)
        state[CURSOR] = 0
        for status, ordinal in self._requests(batches):
            if status == NEEDS_PAYLOAD:
                try:
                    self._opener.open_batch(ordinal)
                except (CorruptBatchError, UnsupportedDataError) as error:
                    self._source.locate(error, span, ordinal)
                    raise
            elif status == NEEDS_RECORD_ROOM:
                self._reserve_records(int(state[NEEDED]))
            elif status == NEEDS_TABLE_ROOM:
                self._reserve_matches(int(state[NEEDED]))
            else:
                raise self._source.error(status, span, ordinal)
        return self._matches.offsets[before : int(state[MATCHES])]

    def _requests(self, batches: ChunkBatches) -> Iterator[tuple[int, int]]:
        while True:
            status = match_keys(batches, self._table, self._records, self._hashes, self._matches, self._state)
            if status == DONE:
                return
            yield status, int(self._state[CURSOR])

    def _reserve_records(self, count: int) -> None:
        count = 1 << (count - 1).bit_length()
        self._records = np.zeros((count, RECORD_FIELDS), dtype=np.int64)
        self._hashes = np.zeros((count, 2), dtype=np.uint64)

    def _reserve_matches(self, count: int) -> None:
        larger = _columns_of(2 * count)
        for column, target in zip(self._matches, larger, strict=True):
            target[: column.size] = column
        self._matches = larger


def _columns_of(rows: int) -> MatchColumns:
    return MatchColumns(np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.bool_))


def _table_of(keys: KeySet) -> tuple[OffsetMap, KeySetTable]:
    """Return the table of a set; try new seeds until all keys have different hashes."""
    while True:
        seed = draw_seed()
        slots = OffsetMap(with_offsets=True)
        slots.reserve(len(keys))
        table = KeySetTable(slots.tables, keys.contents.ctypes.data, keys.edges, np.uint64(seed), hash_secrets(seed))
        if enter_keys(table) == _ALL_ENTERED:
            return slots, table
