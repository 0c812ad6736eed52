"""The cleaning of one partition in splits: the splits exchange hashes of keys, to find the survivors of each split.

    split 2   run 0 | run 1            newest first; a run lists the latest occurrences of a limited number of keys
    split 1   run 0
    split 0   run 0 | run 1 | run 2

For each key, a sweep must find out whether the key occurs again nearer to the log's end.  Within a run, the map of the
sweep shows whether it does.  If two runs contain the key, the newer run has the latest occurrence of the key, because
offsets increase.  A log whose offsets do not increase is not split.

1. `pack_run` packs a run into blobs, one or more for each range of hashes.
2. `fold_range` reads the blobs of one range, newest run first.  For each split, `fold_range` returns the numbers of the
   survivors: the records that no newer run supersedes.
3. `collect_survivors` joins the results for all ranges into the bitmap of one split.

Keys and values never leave their split.

Invariants
* The records of a split are numbered from its end.  Two sweeps of the same batches assign the same numbers;
  `SplitContents` proves that the batches are the same.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt

from sediment.compaction.grouping import SegmentGroup
from sediment.compaction.kernels.offset_map import (
    SET_SLOT_BYTES,
    OffsetMap,
    fill_slot,
    find_slot,
    headroom,
    prefetch_slot,
    range_of,
)
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.format.batch_rebuild import write_varlong
from sediment.segment_io.format.layout import MAX_VARLONG_BYTES
from sediment.segment_io.format.record_decoder import read_varlong

# Bytes of the map for each key: a slot has 16 bytes, and at least 3/8 of the slots are in use.
_MAPPED_KEY_BYTES = 43
_BLOB_HEAD = struct.Struct("<II")  # number of the blob in its run and range; number of its keys
_COUNT = struct.Struct("<Q")  # number of records in a result
_MOST_BLOB_KEYS = 1 << 16  # slightly more than 1 MiB
_PACKED_KEYS = 1 << 22  # Spark's shuffle keeps these in memory, about 70 MiB
_ROWS_A_RANGE, _MOST_ROWS = 10, 1000  # PySpark's partitionBy gathers this many rows before it writes any
_KEYS_AHEAD = 16
_LOW_HALF = np.uint64(0xFFFFFFFF)
_HALF_BITS = np.uint64(32)


class SplitNotApplicableError(Exception):
    """The log cannot be cleaned in these splits; if `needs_scan` is True, scan the log forward and try splits again.

    If `needs_scan` is False, one task must clean the whole log.
    """

    def __init__(self, needs_scan: bool) -> None:
        super().__init__(needs_scan)
        self.needs_scan = needs_scan


@dataclass(frozen=True, slots=True)
class Split:
    """All offsets of this split are below `end_offset`, the base offset of the next newer split.

    For the newest split, `end_offset` is None.
    """

    number: int
    groups: tuple[SegmentGroup, ...]
    end_offset: int | None

    @property
    def log_bytes(self) -> int:
        return sum(group.log_bytes for group in self.groups)


@dataclass(frozen=True, slots=True, order=True)
class RunNumber:
    """The position of a run among all runs of a partition; smaller is newer."""

    splits_above: int
    run: int


@dataclass(frozen=True, slots=True)
class SplitContents:
    """The number of records that a sweep of a split read, and a digest of all batches of the split.

    `without_key` has the number of records without a key in each group of the split.  Only the last run of the first
    sweep sets it, and it does not count when two sweeps are compared.
    """

    records: int
    digest: int
    without_key: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class KeyRun:
    """The latest occurrences of keys in one run, as columns of n keys.

    `hashes` is uint64[n, 2]; `mapped`, uint8[n], is 1 if the key entered the map; `numbers`, int64[n], are the record
    numbers.  `met` describes the part of the split that was swept so far.  The last run may be empty; for this run,
    `met` describes the whole split.
    """

    number: RunNumber
    hashes: npt.NDArray[np.uint64]
    mapped: npt.NDArray[np.uint8]
    numbers: npt.NDArray[np.int64]
    met: SplitContents


@dataclass(frozen=True, slots=True)
class SurvivorBitmap:
    """The survivors among the records of a split: bit n is 1 if record number n survives; `of` identifies the split."""

    bits: npt.NDArray[np.uint8]
    of: SplitContents


def cut_into_splits(groups: Sequence[SegmentGroup], splits: int) -> tuple[Split, ...]:
    """Return at most `splits` splits of about equal size, oldest first; no split is empty."""
    total_bytes = sum(group.log_bytes for group in groups)
    bounds = [0]
    taken_bytes = 0
    for index, group in enumerate(groups):
        # A group belongs to the split that contains the middle of the group.
        middle = taken_bytes + group.log_bytes / 2
        if index > bounds[-1] and len(bounds) < splits and middle * splits >= len(bounds) * total_bytes:
            bounds.append(index)
        taken_bytes += group.log_bytes
    return splits_at(groups, bounds[1:])


def splits_at(groups: Sequence[SegmentGroup], bounds: Sequence[int]) -> tuple[Split, ...]:
    edges = [0, *bounds, len(groups)]
    parts = [tuple(groups[start:end]) for start, end in pairwise(edges)]
    above = [*(part[0].base_offset for part in parts[1:]), None]
    return tuple(Split(number, part, end) for number, (part, end) in enumerate(zip(parts, above, strict=True)))


def ranges_for(keys: int, budget_bytes: int) -> int:
    """Return the number of hash ranges, a power of 2, into which `keys` keys are divided.

    `fold_range` then needs at most `budget_bytes` of memory for each range.
    """
    wanted = max(2, -(-keys * _MAPPED_KEY_BYTES // budget_bytes))
    return int(min(1 << (wanted - 1).bit_length(), 1 << 15))


# ------------------------------------------------------------------------------------------------- numbers of records
@kernel
def _write_steps(numbers: npt.NDArray[np.int64], previous: int, address: int) -> int:
    """Write the differences of successive `numbers` as varlongs at `address`; return the address after them."""
    for index in range(numbers.size):
        address = write_varlong(address, numbers[index] - previous)
        previous = numbers[index]
    return address


@kernel
def _read_steps(address: int, numbers: npt.NDArray[np.int64]) -> None:
    number = 0
    for index in range(numbers.size):
        step, address = read_varlong(address)
        number += step
        numbers[index] = number


def _steps(numbers: npt.NDArray[np.int64], previous: int = 0) -> bytes:
    target = np.empty(numbers.size * MAX_VARLONG_BYTES, dtype=np.uint8)
    start = target.ctypes.data
    return target[: _write_steps(numbers, previous, start) - start].tobytes()


def _numbers(steps: bytes, count: int) -> npt.NDArray[np.int64]:
    numbers = np.empty(count, dtype=np.int64)
    _read_steps(np.frombuffer(steps, dtype=np.uint8).ctypes.data, numbers)
    return numbers


# --------------------------------------------------------------------------------------------------------- packing runs
@kernel
def _sort_by_range(
    hashes: npt.NDArray[np.uint64],
    edges: npt.NDArray[np.int64],
    following: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
) -> None:
    """Sort the indexes of the keys by range into `order`; write the start of each range to `edges`, int64[ranges + 1].

    `edges` must be all zeros; `following`, int64[ranges], is working memory.
    """
    ranges = edges.size - 1
    for index in range(order.size):
        edges[range_of(hashes[index, 1], ranges) + 1] += 1
    for number in range(ranges):
        following[number] = edges[number]
        edges[number + 1] += edges[number]
    for index in range(order.size):
        number = range_of(hashes[index, 1], ranges)
        order[following[number]] = index
        following[number] += 1


def pack_run(run: KeyRun, ranges: int) -> Iterator[tuple[int, bytes]]:
    """Yield (range, blob) for each range of hashes that contains keys of the run; blobs keep the keys' order.

    A blob is little-endian.  It begins with two uint32: the number of the blob within the range, and the number of keys
    in the blob.  Then follow the hashes (16 bytes each), the mapped bits, and the steps.
    """
    keys_per_blob = _keys_per_blob(ranges)
    edges = np.zeros(ranges + 1, dtype=np.int64)
    order = np.empty(len(run.hashes), dtype=np.int64)
    _sort_by_range(run.hashes, edges, np.empty(ranges, dtype=np.int64), order)
    for number in range(ranges):
        for index, start in enumerate(range(edges[number], edges[number + 1], keys_per_blob)):
            chosen = order[start : min(start + keys_per_blob, edges[number + 1])]
            bits = np.packbits(run.mapped[chosen], bitorder="little")
            columns = (run.hashes[chosen].tobytes(), bits.tobytes(), _steps(run.numbers[chosen]))
            yield number, b"".join((_BLOB_HEAD.pack(index, chosen.size), *columns))


def _keys_per_blob(ranges: int) -> int:
    rows = min(_ROWS_A_RANGE * ranges, _MOST_ROWS)
    return min(_PACKED_KEYS // rows // 8 * 8, _MOST_BLOB_KEYS)


def _unpack(blob: bytes) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
    _, count = _BLOB_HEAD.unpack_from(blob)
    hashes = np.frombuffer(blob, dtype=np.uint64, count=2 * count, offset=_BLOB_HEAD.size).reshape(-1, 2)
    return hashes, np.frombuffer(blob, dtype=np.uint8, count=-(-count // 8), offset=_BLOB_HEAD.size + hashes.nbytes)


# ------------------------------------------------------------------------------------------------------------ the fold
@kernel
def _fold(
    hashes: npt.NDArray[np.uint64],
    mapped: npt.NDArray[np.uint8],
    part: int,
    parts: int,
    start: int,
    tables: npt.NDArray[np.int64],
    superseded: npt.NDArray[np.uint8],
) -> int:
    """Look up and map the keys of one blob, starting at index `start`, until the map is full.

    `superseded` receives a bit for each superseded key.  Return the index of the first key that was not processed.
    """
    room = headroom(tables)
    for index in range(start, hashes.shape[0]):
        if index + _KEYS_AHEAD < hashes.shape[0]:
            prefetch_slot(tables, SET_SLOT_BYTES, hashes[index + _KEYS_AHEAD, 0])
        low = hashes[index, 0]
        high = hashes[index, 1]
        if np.int64(((high & _LOW_HALF) * np.uint64(parts)) >> _HALF_BITS) != part:
            continue
        if room == 0:
            room = headroom(tables)
            if room == 0:
                return index
        found, address = find_slot(tables, SET_SLOT_BYTES, low, high)
        if found:
            superseded[index >> 3] |= np.uint8(1 << (index & 7))
        elif (mapped[index >> 3] >> (index & 7)) & 1:
            fill_slot(tables, address, low, high)
            room -= 1
    return int(hashes.shape[0])


@dataclass(frozen=True, slots=True, order=True)
class _SpilledBlob:
    number: RunNumber
    index: int
    keys: int
    position: int
    size_bytes: int

    @property
    def steps_start(self) -> int:
        return _BLOB_HEAD.size + 16 * self.keys + -(-self.keys // 8)


def fold_range(
    blobs: Iterable[tuple[RunNumber, bytes]], *, budget_bytes: int, scratch: str | None = None
) -> list[tuple[int, bytes]]:
    """Fold the blobs of one range, in any order; return (number of newer splits, packed survivors) for each split.

    Memory stays within `budget_bytes` plus the size of the results.
    """
    # If the blobs need more than half of the budget, they are spilled to a file in `scratch`.
    with tempfile.SpooledTemporaryFile(max_size=max(budget_bytes // 2, 1), dir=scratch) as spill:
        spilled: list[_SpilledBlob] = []
        for number, blob in blobs:
            index, count = _BLOB_HEAD.unpack_from(blob)
            spilled.append(_SpilledBlob(number, index, count, spill.tell(), len(blob)))
            spill.write(blob)
        spilled.sort()
        superseded = [np.zeros(-(-blob.keys // 8), dtype=np.uint8) for blob in spilled]
        keys = sum(blob.keys for blob in spilled)
        # If a map of the keys needs more than half of the budget, the blobs are read in several passes, and each pass
        # processes a part of the keys.
        parts = max(1, -(-keys * _MAPPED_KEY_BYTES // max(budget_bytes // 2, 1)))
        for part in range(parts):
            seen = OffsetMap(with_offsets=False)
            for entry, bits in zip(spilled, superseded, strict=True):
                spill.seek(entry.position)
                hashes, mapped = _unpack(spill.read(entry.size_bytes))
                done = 0
                while (done := int(_fold(hashes, mapped, part, parts, done, seen.tables, bits))) < entry.keys:
                    seen.reserve(1)
        answers = []
        for splits_above, of_split in groupby(
            zip(spilled, superseded, strict=True), key=lambda pair: pair[0].number.splits_above
        ):
            count, previous, steps = 0, 0, []
            for entry, bits in of_split:
                spill.seek(entry.position + entry.steps_start)
                numbers = _numbers(spill.read(entry.size_bytes - entry.steps_start), entry.keys)
                survivors = numbers[np.unpackbits(bits, count=entry.keys, bitorder="little") == 0]
                if survivors.size:
                    steps.append(_steps(survivors, previous))
                    count, previous = count + survivors.size, int(survivors[-1])
            answers.append((splits_above, _COUNT.pack(count) + b"".join(steps)))
    return answers


@kernel
def _mark(address: int, count: int, bits: npt.NDArray[np.uint8]) -> None:
    number = 0
    for _ in range(count):
        step, address = read_varlong(address)
        number += step
        bits[number >> 3] |= np.uint8(1 << (number & 7))


def collect_survivors(answers: Iterable[bytes], contents: SplitContents) -> SurvivorBitmap:
    bits = np.zeros(-(-contents.records // 8), dtype=np.uint8)
    for answer in answers:
        (count,) = _COUNT.unpack_from(answer)
        _mark(np.frombuffer(answer, dtype=np.uint8).ctypes.data + _COUNT.size, count, bits)
    return SurvivorBitmap(bits, contents)
