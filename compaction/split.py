"""One partition cut into splits: what splits tell each other of keys, and how it is folded.

    split 2   run 0 | run 1            newest first: a run is what a bounded map takes of a split's first sights
    split 1   run 0
    split 0   run 0 | run 1 | run 2

A sweep needs to know of a key only whether it entered the map nearer to the log's end.  Inside a run the sweep's own
map says so; across runs the order of the runs says it as well as offsets would, because offsets increase (a log in
which they do not is not split).  So a run tells, per range of hashes, the hashes that it saw for the first time (16
bytes) and which of them entered the map (a bit); the fold of a range, newest run first, answers with one bit each:
superseded by a newer run.  No key and no value leaves its split.

Invariants: pure but for the fold's spill file; runs and sights are numbered as `sight_chunk` and `sweep_chunk` meet
them, which is the same order, because both cut runs by the same rule.
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
from sediment.compaction.offset_map import SET_SLOT_BYTES, OffsetMap, fill_slot, find_slot, headroom, range_of
from sediment.segment_io.jit import kernel

# A key in the map: a slot of 16 bytes at a load of at least 3/8.
_MAPPED_KEY_BYTES = 43
_PIECE = struct.Struct("<II")  # of a blob: which piece of its run and range it is, and how many sights it holds
_COUNT = struct.Struct("<Q")  # of an answer: how many sights it is about
_LARGEST_PIECE = 1 << 16  # sights of a blob, about 1 MiB
_PACKED_SIGHTS = 1 << 22  # that Spark's shuffle gathers in memory, about 64 MiB
_ROWS_A_RANGE, _MOST_ROWS = 10, 1000  # as many rows does PySpark's partitionBy gather before it writes them
_LOW_HALF = np.uint64(0xFFFFFFFF)
_HALF_BITS = np.uint64(32)


class SplitDoesNotHoldError(Exception):
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
class SightRun:
    """First sights of one run: hashes, uint64[n, 2], and whether each entered the map, uint8[n]."""

    number: RunNumber
    sighted: npt.NDArray[np.uint64]
    mapped: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class RunVerdicts:
    """What the fold answers to one run: for each range of hashes the bits of its first sights, 1 for superseded.

    A range's bits begin at its `first_bits`, int64[ranges], in `superseded`; `sights`, int64[ranges], is their number.
    """

    superseded: npt.NDArray[np.uint8]
    first_bits: npt.NDArray[np.int64]
    sights: npt.NDArray[np.int64]

    @classmethod
    def none(cls, ranges: int) -> RunVerdicts:
        """The verdicts on a run without sights."""
        nothing = np.zeros(ranges, dtype=np.int64)
        return cls(np.zeros(0, dtype=np.uint8), nothing, nothing)


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


# ------------------------------------------------------------------------------------------------------ what runs tell
@kernel
def _ranges_of(sighted: npt.NDArray[np.uint64], ranges: int, found: npt.NDArray[np.uint16]) -> None:
    for index in range(found.size):
        found[index] = range_of(sighted[index, 1], ranges)


def pack_run(run: SightRun, ranges: int) -> Iterator[tuple[int, bytes]]:
    """(range, blob) for each range of hashes that the run has sights in, in pieces; they keep the sights' order.

    A blob is the number of the piece and of its sights (uint32 each), their hashes (16 bytes each) and the mapped bits,
    little-endian.  All pieces of a range but the last hold a multiple of 8 sights.
    """
    piece_sights = _piece_sights(ranges)
    found = np.zeros(len(run.sighted), dtype=np.uint16)
    _ranges_of(run.sighted, ranges, found)
    order = np.argsort(found, kind="stable")
    edges = np.searchsorted(found[order], np.arange(ranges + 1))
    for number in range(ranges):
        for piece, start in enumerate(range(edges[number], edges[number + 1], piece_sights)):
            chosen = order[start : min(start + piece_sights, edges[number + 1])]
            bits = np.packbits(run.mapped[chosen], bitorder="little")
            yield number, b"".join((_PIECE.pack(piece, chosen.size), run.sighted[chosen].tobytes(), bits.tobytes()))


def _piece_sights(ranges: int) -> int:
    rows = min(_ROWS_A_RANGE * ranges, _MOST_ROWS)
    return min(_PACKED_SIGHTS // rows // 8 * 8, _LARGEST_PIECE)


def _unpack(blob: bytes) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
    _, count = _PIECE.unpack_from(blob)
    sighted = np.frombuffer(blob, dtype=np.uint64, count=2 * count, offset=_PIECE.size).reshape(-1, 2)
    return sighted, np.frombuffer(blob, dtype=np.uint8, offset=_PIECE.size + sighted.nbytes)


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


def fold_range(
    blobs: Iterable[tuple[RunNumber, bytes]], *, budget_bytes: int, scratch: str | None = None
) -> list[tuple[RunNumber, bytes]]:
    """Answer each run of one range, given its blobs in any order: the number of its sights and their superseded bits.

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
        answers = [np.zeros(-(-piece.sights // 8), dtype=np.uint8) for piece in pieces]
        sights = sum(piece.sights for piece in pieces)
        parts = max(1, -(-sights * _MAPPED_KEY_BYTES // max(budget_bytes // 2, 1)))
        for part in range(parts):
            seen = OffsetMap(with_offsets=False)
            for piece, answer in zip(pieces, answers, strict=True):
                spill.seek(piece.position)
                sighted, mapped = _unpack(spill.read(piece.size_bytes))
                done = 0
                while (done := int(_fold(sighted, mapped, part, parts, done, seen.directory, answer))) < piece.sights:
                    seen.reserve(1)
    told = []
    for number, of_run in groupby(zip(pieces, answers, strict=True), key=lambda pair: pair[0].number):
        parts_of_run = list(of_run)
        count = _COUNT.pack(sum(piece.sights for piece, _ in parts_of_run))
        told.append((number, count + b"".join(answer.tobytes() for _, answer in parts_of_run)))
    return told


def collect_verdicts(answers: Iterable[tuple[int, RunNumber, bytes]], ranges: int) -> tuple[RunVerdicts, ...]:
    """The verdicts of one split's runs, newest first, from (range, run, answer) in any order."""
    by_run: dict[RunNumber, dict[int, bytes]] = {}
    for number, run, answer in answers:
        by_run.setdefault(run, {})[number] = answer
    verdicts = []
    for run in sorted(by_run):
        told = [by_run[run].get(number, b"") for number in range(ranges)]
        bits = [answer[_COUNT.size :] for answer in told]
        starts = np.cumsum([0, *map(len, bits)], dtype=np.int64)[:-1] * 8
        counts = [_COUNT.unpack_from(answer)[0] if answer else 0 for answer in told]
        superseded = np.frombuffer(b"".join(bits), dtype=np.uint8)
        verdicts.append(RunVerdicts(superseded, starts, np.array(counts, dtype=np.int64)))
    return tuple(verdicts)
