"""One changed batch through every compiled decoder, between guard pages, with a check of each result.

A probe returns a signature, a number below SIGNATURES for the outcome of the batch, or an error: a negative number, one
of the BROKEN_ constants.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import copy_bytes
from sediment.segment_io.compiled.padding import PADDING_BYTES
from sediment.segment_io.compiled.status import LEGACY_MAGIC, OK
from sediment.segment_io.format import batch_headers, batch_rebuild, legacy, record_decoder
from sediment.segment_io.format.batch_headers import BATCH_ROW
from sediment.segment_io.format.checksum import check_crc
from sediment.segment_io.format.hashing import hash_key, hash_secrets
from sediment.segment_io.format.layout import BATCH_HEADER_BYTES, CODEC_MASK, MIN_RECORD_BYTES
from sediment.segment_io.format.record_decoder import RECORD_FIELDS
from sediment.segment_io.segment.recovery_scan import verified_batch_at
from sediment.segment_io.segment.search import find_batch
from tests.fuzz.guard_pages import GuardedBuffer
from tests.fuzz.mutator import MOST_BYTES, ROOM_BYTES, below, mutate, seed_state

SIGNATURES = 1 << 16
MOST_RECORDS = MOST_BYTES // MIN_RECORD_BYTES + 1
HASH_SEED = 7

BROKEN_HEADER = -1
BROKEN_FIELD = -2
BROKEN_REBUILD = -3
BROKEN_COUNT = -4
BROKEN_CHECKSUM = -5
BROKEN_TEXT = {
    BROKEN_HEADER: "a header row contradicts the batch",
    BROKEN_FIELD: "a record's field lies outside its record",
    BROKEN_REBUILD: "a rebuilt batch cannot be read",
    BROKEN_COUNT: "more records than the bytes can hold",
    BROKEN_CHECKSUM: "decoders disagree about a checksum",
}


@kernel
def _probe_record(base: int, start: int, end: int, row: npt.NDArray[np.int64], secrets: int) -> bool:
    """Return True if the fields lie within their record and in order."""
    key_end = row[record_decoder.KEY_START] + max(row[record_decoder.KEY_BYTES], 0)
    value_end = row[record_decoder.VALUE_START] + max(row[record_decoder.VALUE_BYTES], 0)
    if not (
        start
        <= row[record_decoder.RECORD_START]
        <= row[record_decoder.KEY_START]
        <= key_end
        <= row[record_decoder.VALUE_START]
    ):
        return False
    if not (row[record_decoder.VALUE_START] <= value_end <= row[record_decoder.RECORD_END] <= end):
        return False
    if row[record_decoder.KEY_BYTES] >= 0:
        hash_key(base + row[record_decoder.KEY_START], row[record_decoder.KEY_BYTES], np.uint64(HASH_SEED), secrets)
    return True


@kernel
def _probe_rebuild(
    base: int, count: int, records: npt.NDArray[np.int64], kept: npt.NDArray[np.uint8], target: npt.NDArray[np.uint8],
    again: npt.NDArray[np.int64], payload_bytes: int,
) -> int:  # fmt: skip
    """Rebuild the batch at `base` from the kept records in a buffer of exactly its bound, and read it."""
    left = 0
    for index in range(count):
        left += kept[index]
    if left == 0:
        return 0
    batch_rebuild.pack_kept(records, count, kept)
    first, largest = batch_rebuild.kept_timestamps(base, records, left)
    size = BATCH_HEADER_BYTES + batch_rebuild.records_size(base, records, left, first)
    if size > batch_rebuild.rebuilt_bound(payload_bytes, count):
        return BROKEN_REBUILD
    start = target.ctypes.data + target.size - PADDING_BYTES - size
    end = batch_rebuild.write_records(start + BATCH_HEADER_BYTES, base, base, records, left, first)
    if end != start + size:
        return BROKEN_REBUILD
    batch_rebuild.write_header(start, base, size, left, first, largest, False)
    if check_crc(start, size) != OK or batch_headers.check_header(start, size) != OK:
        return BROKEN_REBUILD
    if record_decoder.decode_records(start, BATCH_HEADER_BYTES, size, left, again[again.shape[0] - left :]) != OK:
        return BROKEN_REBUILD
    return 1


@kernel
def probe(
    guarded: npt.NDArray[np.uint8],
    size: int,
    rows: npt.NDArray[np.void],
    records: npt.NDArray[np.int64],
    again: npt.NDArray[np.int64],
    target: npt.NDArray[np.uint8],
    kept: npt.NDArray[np.uint8],
    secrets: npt.NDArray[np.uint8],
) -> int:
    """Decode the batch that ends PADDING_BYTES before the guarded buffer does."""
    start = guarded.size - PADDING_BYTES - size
    base = guarded.ctypes.data + start
    status, filled, end, _ = batch_headers.read_headers(base, 0, size, 0, rows)
    verified, verified_bytes = verified_batch_at(base, 0, size)
    find_batch(base, size, 0, 5)
    find_batch(base, size, 1, 5)
    find_batch(base, size, 2, 5)
    outcome = status
    if filled > 0:
        row = rows[0]
        batch_bytes = row["size_bytes"]
        if batch_bytes < 26 or batch_bytes > size or end > size:
            return BROKEN_HEADER
        count = row["record_count"]
        if row["magic"] < 2:
            outcome = legacy.decode_entry(base, 0, batch_bytes, records[records.shape[0] - 1])
            if (legacy.check_legacy_crc(base, batch_bytes) == OK) != (verified == LEGACY_MAGIC):
                return BROKEN_CHECKSUM
            if outcome == OK:
                if not _probe_record(base, 0, batch_bytes, records[records.shape[0] - 1], secrets.ctypes.data):
                    return BROKEN_FIELD
                legacy.decode_entries(base, size, records)
        else:
            if row["last_offset"] < row["base_offset"] and row["base_offset"] < 2**62:
                return BROKEN_HEADER
            if (check_crc(base, batch_bytes) == OK) != (verified == OK):
                return BROKEN_CHECKSUM
            if row["attributes"] & CODEC_MASK == 0:
                if count < 0 or count * MIN_RECORD_BYTES > batch_bytes:
                    return BROKEN_COUNT
                mine = records[records.shape[0] - count :]
                outcome = record_decoder.decode_records(base, BATCH_HEADER_BYTES, batch_bytes, count, mine)
                if outcome == OK:
                    for index in range(count):
                        if not _probe_record(base, BATCH_HEADER_BYTES, batch_bytes, mine[index], secrets.ctypes.data):
                            return BROKEN_FIELD
                    payload_bytes = batch_bytes - BATCH_HEADER_BYTES
                    rebuilt = _probe_rebuild(base, count, mine, kept, target, again, payload_bytes)
                    if rebuilt < 0:
                        return rebuilt
        # The outcome: status of the header and the records, magic, codec and kind, number of records.
        outcome = 64 + outcome + 64 * (row["magic"] + 3 * (row["attributes"] & 0x3F))
        outcome = outcome * 4 + min(max(count, 0), 3)
        return min(outcome, SIGNATURES - 1)
    return 1 + status * 2 + (verified_bytes > size)


@kernel
def probe_many(
    seed: int,
    first: int,
    count: int,
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    fields: npt.NDArray[np.int64],
    field_starts: npt.NDArray[np.int64],
    scratch: npt.NDArray[np.uint8],
    guarded: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.void],
    records: npt.NDArray[np.int64],
    again: npt.NDArray[np.int64],
    target: npt.NDArray[np.uint8],
    kept: npt.NDArray[np.uint8],
    secrets: npt.NDArray[np.uint8],
    state: npt.NDArray[np.uint64],
    seen: npt.NDArray[np.int64],
    note: npt.NDArray[np.int64],
    good: npt.NDArray[np.uint8],
    good_ends: npt.NDArray[np.int64],
    fresh: npt.NDArray[np.uint8],
    fresh_ends: npt.NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Make and probe the batches first, first + 1, … of campaign `seed`.

    `note` holds the number and size of the batch at work, for the parent of a dead process.  Batches whose header and
    checksum are right are gathered in `good`, those of a signature not `seen` in `fresh`.

    Returns:
        (batches done, gathered in good, gathered in fresh, BROKEN_ or 0): fewer than `count` when something is broken.
    """
    goods = 0
    freshes = 0
    for number in range(first, first + count):
        seed_state(state, seed, number)
        size, _ = mutate(data, starts, fields, field_starts, scratch, state)
        begin = guarded.size - PADDING_BYTES - size
        note[0] = number
        note[1] = size
        if size:
            copy_bytes(guarded.ctypes.data + begin, scratch.ctypes.data, size)
        filler = np.uint8(255 if below(state, 2) else below(state, 256))
        for index in range(guarded.size - PADDING_BYTES, guarded.size):
            guarded[index] = filler
        for index in range(0, 16):
            kept[index] = below(state, 2)
        signature = probe(guarded, size, rows, records, again, target, kept, secrets)
        if signature < 0:
            return number - first, goods, freshes, signature
        if seen[signature] == 0 and freshes < fresh_ends.size:
            before = fresh_ends[freshes - 1] if freshes else 0
            if size > 17 and before + size <= fresh.size:
                for index in range(size):
                    fresh[before + index] = scratch[index]
                fresh_ends[freshes] = before + size
                freshes += 1
        seen[signature] += 1
        if signature >= 256 and goods < good_ends.size:
            before = good_ends[goods - 1] if goods else 0
            if before + size <= good.size:
                for index in range(size):
                    good[before + index] = scratch[index]
                good_ends[goods] = before + size
                goods += 1
    return count, goods, freshes, 0


class Bench:
    """The memory of a probe."""

    def __init__(self, guarded: GuardedBuffer, note: npt.NDArray[np.int64]) -> None:
        self.guarded = guarded
        self.note = note
        self._outputs = [GuardedBuffer(MOST_RECORDS * RECORD_FIELDS * 8) for _ in range(2)]
        self._target = GuardedBuffer(BATCH_HEADER_BYTES + MOST_BYTES + MOST_RECORDS * 16 + PADDING_BYTES)
        self.scratch = np.zeros(ROOM_BYTES, dtype=np.uint8)
        self.rows = np.zeros(1, dtype=BATCH_ROW)
        self.kept = np.ones(MOST_RECORDS, dtype=np.uint8)
        self.secrets = hash_secrets(HASH_SEED)
        self.state = np.ones(1, dtype=np.uint64)

    def arguments(self) -> tuple[npt.NDArray[np.generic], ...]:
        """Return the arguments of `probe_many` from `scratch` to `state`."""
        records, again = (output.bytes.view(np.int64).reshape(MOST_RECORDS, RECORD_FIELDS) for output in self._outputs)
        return (
            *(self.scratch, self.guarded.bytes, self.rows, records, again, self._target.bytes, self.kept),
            *(self.secrets, self.state),
        )
