"""Fuzzing of the protocol's decoders at the size that every test run affords; `make fuzz` does 500 times as much."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.protocol_frames import run

SEED = int(os.environ.get("SEDIMENT_FUZZ_SEED", "20260101"))
FRAMES = 20_000
BIG = int(os.environ.get("SEDIMENT_FUZZ_FRAMES", "10000000"))


def test_mutated_frames_are_decoded_or_refused():
    done = run(FRAMES, SEED)
    assert min(done.decoded, done.refused) > FRAMES / 50


@pytest.mark.fuzz
@pytest.mark.timeout(24 * 3600)
def test_ten_million_mutated_frames_are_decoded_or_refused():
    done = run(BIG, SEED)
    print(f"\nseed {SEED}: {done}")
    assert done.frames == BIG
