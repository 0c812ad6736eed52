"""Partition directories, and the small files beside segments, mutated at random from a seed."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np

from sediment.segment_io.format.names import TopicPartition
from tests.fuzz.mutator import ROOM_BYTES, mutate, seed_state
from tests.fuzz.seeds import pool_of
from tests.logs import START_MS, LogShape, write_random_log
from tests.twin.segments import file_batches

PARTITION = TopicPartition("t", 0)
NOW_MS = START_MS + 3_600_000


def corrupted_log(directory: Path, seed: int) -> Path:
    """Return a random log of which `corrupt` changed some files; every third one has messages of the old formats."""
    magics = (0, 1, 2) if seed % 3 == 0 else (2,)
    write_random_log(directory, seed % 7, LogShape(batches=30, codecs=(0, 0, 1, 2, 3, 4), magics=magics))
    corrupt(directory, seed)
    return directory


def changed_batch(batches: list[bytes], seed: int, number: int) -> bytes:
    """Return one of `batches`, mutated as in a campaign."""
    out, state = np.zeros(ROOM_BYTES, dtype=np.uint8), np.ones(1, dtype=np.uint64)
    pool = pool_of(batches)
    seed_state(state, seed, number)
    size, _ = mutate(pool.data, pool.starts, pool.fields, pool.field_starts, out, state)
    return out[:size].tobytes()


def flipped(content: bytes, chance: random.Random) -> bytes:
    """Change, insert or remove one to six bytes or numbers."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 6)):
        kind = chance.randrange(4)
        at = chance.randrange(len(changed)) if changed else 0
        if kind == 0 and changed:
            changed[at] = chance.randrange(256)
        elif kind == 1:
            changed[at:at] = chance.choice([struct.pack(">q", chance.choice([-1, 2**63 - 1, -(2**63), 0])), b"9" * 30])
        elif kind == 2:
            del changed[at : at + chance.randrange(30)]
        elif changed:
            changed[at : at + 4] = struct.pack(">i", chance.choice([-1, 2**31 - 1, -(2**31), 1 << 20]))
    return bytes(changed)


def corrupt(directory: Path, seed: int) -> None:
    """Change one to three files of the directory."""
    chance = random.Random(seed)
    paths = sorted(path for path in directory.iterdir() if path.is_file())
    for path in chance.sample(paths, min(len(paths), chance.randint(1, 3))):
        content = path.read_bytes()
        batches = [batch.data for _, batch in file_batches(content)] if path.suffix == ".log" else []
        if batches and chance.random() < 0.9:
            for _ in range(chance.randint(1, 3)):
                at = chance.randrange(len(batches))
                new = changed_batch(batches, seed, chance.randrange(1 << 30))
                if len(new) > 17:
                    batches[at : at + 1] = [new]
                    batches = [batch for batch in batches if len(batch) > 22]
            path.write_bytes(b"".join(batches))
        else:
            path.write_bytes(flipped(content, chance))
