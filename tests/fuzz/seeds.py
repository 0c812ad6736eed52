"""Batches that fuzzing starts from, of every codec and magic, with the places of their fields.

They come from the segments that Kafka wrote and from random logs of the plain twin.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.corpus import cleaning_cases, load_case
from tests.logs import LogShape, write_random_log
from tests.twin.errors import TwinError
from tests.twin.segments import file_batches, list_segments
from tests.twin.varints import decode_varint

VARINT = 0  # the width of a field that is one
LARGEST_SEED_BYTES = 2000
_HEADER_FIELDS = (
    *((0, 8), (8, 4), (12, 4), (16, 1), (17, 4), (21, 2), (22, 1), (23, 4), (27, 8), (35, 8)),
    *((43, 8), (51, 2), (53, 4), (57, 4)),
)
_LEGACY_FIELDS = ((0, 8), (8, 4), (12, 4), (16, 1), (17, 1))


@dataclass(frozen=True, slots=True)
class Pool:
    """Batch n is data[starts[n]:starts[n + 1]], and its fields fields[field_starts[n]:field_starts[n + 1]].

    A field is (position in the batch, width in bytes or VARINT).
    """

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    fields: npt.NDArray[np.int64]
    field_starts: npt.NDArray[np.int64]


def pool_of(batches: Sequence[bytes]) -> Pool:
    places = [list(_fields(batch)) for batch in batches]
    return Pool(
        np.frombuffer(b"".join(batches), dtype=np.uint8).copy(),
        np.cumsum([0, *map(len, batches)]).astype(np.int64),
        np.array([place for found in places for place in found], dtype=np.int64),
        np.cumsum([0, *map(len, places)]).astype(np.int64),
    )


def _fields(batch: bytes) -> Iterable[tuple[int, int]]:
    if batch[16] < 2:
        yield from _LEGACY_FIELDS
        at = 18
        if batch[16] == 1:
            yield 18, 8
            at = 26
        for _ in range(2):
            if at + 4 <= len(batch):
                yield at, 4
                at += 4 + max(int.from_bytes(batch[at : at + 4], "big", signed=True), 0)
        return
    yield from _HEADER_FIELDS
    if len(batch) > 22 and not batch[22] & 7:
        yield from _record_fields(batch)


def _record_fields(batch: bytes) -> Iterable[tuple[int, int]]:
    """Yield the varints of the records, as far as they can be followed."""
    at = 61

    def varint() -> int:
        nonlocal at
        value, at = decode_varint(batch, at)
        return value

    try:
        while at < len(batch):
            yield at, VARINT
            end = varint() + at
            yield at, 1
            at += 1
            yield at, VARINT
            while batch[at] > 127:
                at += 1
            at += 1
            yield at, VARINT
            varint()
            for _ in range(2):
                yield at, VARINT
                at += max(varint(), 0)
            yield at, VARINT
            for _ in range(min(2 * varint(), 64)):
                yield at, VARINT
                at += max(varint(), 0)
            at = max(end, at)
    except (TwinError, IndexError):
        return


def seed_batches() -> list[bytes]:
    """Return the same ones, in the same order, every time."""
    found: dict[bytes, None] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in cleaning_cases(magic2_only=False):
            for given in load_case(name, Path(folder) / name).rounds[:1]:
                found |= dict.fromkeys(_batches_of(given.before, most=12))
        for seed in range(8):
            magics = (0, 1, 2) if seed % 2 else (2,)
            shape = LogShape(batches=40, codecs=(0, 0, 0, 1, 2, 3, 4), magics=magics, headers=0.4)
            write_random_log(Path(folder) / f"random-{seed}", seed, shape)
            found |= dict.fromkeys(_batches_of(Path(folder) / f"random-{seed}", most=40))
    return list(found)


def _batches_of(directory: Path, most: int) -> list[bytes]:
    batches = [batch.data for segment in list_segments(directory) for _, batch in file_batches(segment.read(".log"))]
    return [data for data in batches if len(data) <= LARGEST_SEED_BYTES][:: max(len(batches) // most, 1)][:most]
