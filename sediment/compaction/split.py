"""One partition cut into splits: what splits tell each other of keys, and how it is folded.

    split 2   run 0 | run 1            newest first: a run is what a bounded map takes of a split's first sights
    split 1   run 0
    split 0   run 0 | run 1 | run 2

A sweep needs to know of a key only whether it entered the map nearer to the log's end.  Inside a run the sweep's own
map says so; across runs the order of the runs says it as well as offsets would, because offsets increase (a log in
which they do not is not split).  So a run tells, per range of hashes, the hashes that it saw for the first time (16
bytes), which of them entered the map (a bit) and where (the number of the record, as a step from the one before); the
fold of a range, newest run first, answers each split with the numbers of those that no newer run supersedes.  They are
its living records.  No key and no value leaves its split.

Invariants: pure but for the fold's spill file; records of a split are numbered from its end on, all of them, so that
two sweeps number them alike if they meet the same batches, which `SplitContents` tells.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from sediment.segment_io.format.decode import read_varlong
from sediment.segment_io.format.layout import MAX_VARLONG_BYTES
from sediment.segment_io.format.rebuild import write_varlong

# A key in the map: a slot of 16 bytes at a load of at least 3/8.
_MAPPED_KEY_BYTES = 43
_PIECE = struct.Struct("<II")  # of a blob: which piece of its run and range it is, and how many sights it holds
_COUNT = struct.Struct("<Q")  # of an answer: how many records it names
_LARGEST_PIECE = 1 << 16  # sights of a blob, little more than 1 MiB
_PACKED_SIGHTS = 1 << 22  # that Spark's shuffle gathers in memory, about 70 MiB
_ROWS_A_RANGE, _MOST_ROWS = 10, 1000  # as many rows does PySpark's partitionBy gather before it writes them
_SIGHTS_AHEAD = 16
_LOW_HALF = np.uint64(0xFFFFFFFF)
_HALF_BITS = np.uint64(32)


class SplitNotApplicableError(Exception):
    """The log cannot be cleaned in these splits; with `needs_walk` it can after a forward walk, else only whole."""

    def __init__(self, needs_walk: bool) -> None:
        super().__init__(needs_walk)
        self.needs_walk = needs_walk


@dataclass(frozen=True, slots=True)
class Split:
    """Neighbouring groups of one partition that one task sweeps.

    `end_offset` is the base offset of the split above it, None for the newest: no batch of this one may reach it.
    """

    number: int
    groups: tuple[SegmentGroup, ...]
    end_offset: int | None

    @property
    def log_bytes(self) -> int:
        """Sum of the `.log` sizes."""
        return sum(group.log_bytes for group in self.groups)


@dataclass(frozen=True, slots=True, order=True)
class RunNumber:
    """Where a run stands; smaller is newer."""

    splits_above: int
    run: int


@dataclass(frozen=True, slots=True)
class SplitContents:
    """What a sweep met in a split: how many records, and a digest of all batches."""

    records: int
    digest: int


@dataclass(frozen=True, slots=True)
class KeyRun:
    """First sights of one run: hashes, uint64[n, 2], whether each entered the map, uint8[n], and its record, int64[n].

    `met` is what the sweep had met when it told of the run: all of the split with the last one, which may be empty.
    """

    number: RunNumber
    sighted: npt.NDArray[np.uint64]
    mapped: npt.NDArray[np.uint8]
    places: npt.NDArray[np.int64]
    met: SplitContents


@dataclass(frozen=True, slots=True)
class SurvivorBitmap:
    """Which records of a split live: a bit for each of them, as they are numbered, and what they are records of."""

    bits: npt.NDArray[np.uint8]
    of: SplitContents


def cut_into_splits(groups: Sequence[SegmentGroup], splits: int) -> tuple[Split, ...]:
    """At most `splits` runs of neighbouring groups of about equal bytes, oldest first; none is empty."""
    total_bytes = sum(group.log_bytes for group in groups)
    bounds = [0]
    taken_bytes = 0
    for index, group in enumerate(groups):
        # A group goes where its middle lies.
        middle = taken_bytes + group.log_bytes / 2
        if index > bounds[-1] and len(bounds) < splits and middle * splits >= len(bounds) * total_bytes:
            bounds.append(index)
        taken_bytes += group.log_bytes
    return splits_at(groups, bounds[1:])


def splits_at(groups: Sequence[SegmentGroup], bounds: Sequence[int]) -> tuple[Split, ...]:
    """The splits that begin at group 0 and at each of `bounds`, ascending indexes of groups."""
    edges = [0, *bounds, len(groups)]
    parts = [tuple(groups[start:end]) for start, end in pairwise(edges)]
    above = [*(part[0].base_offset for part in parts[1:]), None]
    return tuple(Split(number, part, end) for number, (part, end) in enumerate(zip(parts, above, strict=True)))


def ranges_for(sights: int, budget_bytes: int) -> int:
    """How many ranges of hashes let the fold of `sights` first sights stay within `budget_bytes` each; a power of 2."""
    wanted = max(2, -(-sights * _MAPPED_KEY_BYTES // budget_bytes))
    return int(min(1 << (wanted - 1).bit_length(), 1 << 15))


# ------------------------------------------------------------------------------------------------- numbers of records
@kernel
def _write_steps(numbers: npt.NDArray[np.int64], previous: int, address: int) -> int:
    """Write ascending numbers as varlongs at `address`, each from the one before; returns the address behind them."""
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


# ------------------------------------------------------------------------------------------------------ what runs tell
@kernel
def _sort_by_range(
    sighted: npt.NDArray[np.uint64],
    edges: npt.NDArray[np.int64],
    following: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
) -> None:
    """Set `order` to the sights by range and then by age, `edges`, int64[ranges + 1], to where ranges begin in it.

    `edges` are zeros before; `following`, int64[ranges], is room to work in.
    """
    ranges = edges.size - 1
    for index in range(order.size):
        edges[range_of(sighted[index, 1], ranges) + 1] += 1
    for number in range(ranges):
        following[number] = edges[number]
        edges[number + 1] += edges[number]
    for index in range(order.size):
        number = range_of(sighted[index, 1], ranges)
        order[following[number]] = index
        following[number] += 1


def pack_run(run: KeyRun, ranges: int) -> Iterator[tuple[int, bytes]]:
    """(range, blob) for each range of hashes that the run has sights in, in pieces; they keep the sights' order.

    A blob is the number of the piece and of its sights (uint32 each), their hashes (16 bytes each), the mapped bits and
    the steps between their records, little-endian.
    """
    piece_sights = _piece_sights(ranges)
    edges = np.zeros(ranges + 1, dtype=np.int64)
    order = np.empty(len(run.sighted), dtype=np.int64)
    _sort_by_range(run.sighted, edges, np.empty(ranges, dtype=np.int64), order)
    for number in range(ranges):
        for piece, start in enumerate(range(edges[number], edges[number + 1], piece_sights)):
            chosen = order[start : min(start + piece_sights, edges[number + 1])]
            bits = np.packbits(run.mapped[chosen], bitorder="little")
            told = (run.sighted[chosen].tobytes(), bits.tobytes(), _steps(run.places[chosen]))
            yield number, b"".join((_PIECE.pack(piece, chosen.size), *told))


def _piece_sights(ranges: int) -> int:
    rows = min(_ROWS_A_RANGE * ranges, _MOST_ROWS)
    return min(_PACKED_SIGHTS // rows // 8 * 8, _LARGEST_PIECE)


def _unpack(blob: bytes) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
    _, count = _PIECE.unpack_from(blob)
    sighted = np.frombuffer(blob, dtype=np.uint64, count=2 * count, offset=_PIECE.size).reshape(-1, 2)
    return sighted, np.frombuffer(blob, dtype=np.uint8, count=-(-count // 8), offset=_PIECE.size + sighted.nbytes)


# ------------------------------------------------------------------------------------------------------------ the fold
@kernel
def _fold(
    sighted: npt.NDArray[np.uint64],
    mapped: npt.NDArray[np.uint8],
    part: int,
    parts: int,
    start: int,
    directory: npt.NDArray[np.int64],
    superseded: npt.NDArray[np.uint8],
) -> int:
    """Fold a run's sights of `part` of `parts` from `start` on, until the map is full; returns where it stopped."""
    room = headroom(directory)
    for index in range(start, sighted.shape[0]):
        if index + _SIGHTS_AHEAD < sighted.shape[0]:
            prefetch_slot(directory, SET_SLOT_BYTES, sighted[index + _SIGHTS_AHEAD, 0])
        low = sighted[index, 0]
        high = sighted[index, 1]
        if np.int64(((high & _LOW_HALF) * np.uint64(parts)) >> _HALF_BITS) != part:
            continue
        if room == 0:
            room = headroom(directory)
            if room == 0:
                return index
        found, address = find_slot(directory, SET_SLOT_BYTES, low, high)
        if found:
            superseded[index >> 3] |= np.uint8(1 << (index & 7))
        elif (mapped[index >> 3] >> (index & 7)) & 1:
            fill_slot(directory, address, low, high)
            room -= 1
    return int(sighted.shape[0])


@dataclass(frozen=True, slots=True, order=True)
class _Piece:
    """A blob that waits to be folded: `number` and `piece` say where it stands, `position` where it was put."""

    number: RunNumber
    piece: int
    sights: int
    position: int
    size_bytes: int

    @property
    def places_byte(self) -> int:
        """Where in the blob the steps between its records begin."""
        return _PIECE.size + 16 * self.sights + -(-self.sights // 8)


def fold_range(
    blobs: Iterable[tuple[RunNumber, bytes]], *, budget_bytes: int, scratch: str | None = None
) -> list[tuple[int, bytes]]:
    """Answer each split of one range, given its blobs in any order: (splits above it, its living records).

    Memory stays within `budget_bytes` and the answers: more blobs than half of it go to a file in `scratch`, and more
    keys are folded in several passes over it.
    """
    with tempfile.SpooledTemporaryFile(max_size=max(budget_bytes // 2, 1), dir=scratch) as spill:
        pieces: list[_Piece] = []
        for number, blob in blobs:
            piece, count = _PIECE.unpack_from(blob)
            pieces.append(_Piece(number, piece, count, spill.tell(), len(blob)))
            spill.write(blob)
        pieces.sort()
        superseded = [np.zeros(-(-piece.sights // 8), dtype=np.uint8) for piece in pieces]
        sights = sum(piece.sights for piece in pieces)
        parts = max(1, -(-sights * _MAPPED_KEY_BYTES // max(budget_bytes // 2, 1)))
        for part in range(parts):
            seen = OffsetMap(with_offsets=False)
            for piece, bits in zip(pieces, superseded, strict=True):
                spill.seek(piece.position)
                sighted, mapped = _unpack(spill.read(piece.size_bytes))
                done = 0
                while (done := int(_fold(sighted, mapped, part, parts, done, seen.directory, bits))) < piece.sights:
                    seen.reserve(1)
        told = []
        for splits_above, of_split in groupby(
            zip(pieces, superseded, strict=True), key=lambda pair: pair[0].number.splits_above
        ):
            count, previous, answer = 0, 0, []
            for piece, bits in of_split:
                spill.seek(piece.position + piece.places_byte)
                places = _numbers(spill.read(piece.size_bytes - piece.places_byte), piece.sights)
                living = places[np.unpackbits(bits, count=piece.sights, bitorder="little") == 0]
                if living.size:
                    answer.append(_steps(living, previous))
                    count, previous = count + living.size, int(living[-1])
            told.append((splits_above, _COUNT.pack(count) + b"".join(answer)))
    return told


@kernel
def _mark(address: int, count: int, bits: npt.NDArray[np.uint8]) -> None:
    number = 0
    for _ in range(count):
        step, address = read_varlong(address)
        number += step
        bits[number >> 3] |= np.uint8(1 << (number & 7))


def collect_survivors(answers: Iterable[bytes], contents: SplitContents) -> SurvivorBitmap:
    """The living records of one split, from what the folds of all ranges answered it."""
    bits = np.zeros(-(-contents.records // 8), dtype=np.uint8)
    for answer in answers:
        (count,) = _COUNT.unpack_from(answer)
        _mark(np.frombuffer(answer, dtype=np.uint8).ctypes.data + _COUNT.size, count, bits)
    return SurvivorBitmap(bits, contents)
