"""Fuzzing that is small enough for every test run; `make fuzz` runs a hundred times as many batches."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.fuzz.campaign import MOST_RESIDENT_BYTES, FuzzFailureError, run
from tests.fuzz.mutator import ROOM_BYTES, mutate, seed_state
from tests.fuzz.seeds import pool_of, seed_batches

SEED = int(os.environ.get("SEDIMENT_FUZZ_SEED", "20260101"))
BATCHES = 100_000
BIG = int(os.environ.get("SEDIMENT_FUZZ_BATCHES", "10000000"))


def fuzz(batches, tmp_path, **options):
    saves = tmp_path / "saves"
    done = run(batches, SEED, saves, **options)
    assert done.batches == batches
    assert done.grown_bytes < MOST_RESIDENT_BYTES
    print(f"\nseed {SEED}: {done}")
    return done


def test_changed_batches_end_in_records_or_in_a_status(tmp_path):
    done = fuzz(BATCHES, tmp_path, python_batches=150, seconds=240)
    assert done.ways > 300
    assert done.compared == done.python_batches == BATCHES // 20_000 * 150
    assert {"columns: ok", "columns: CorruptBatchError", "validate: ok", "append: ok"} <= done.outcomes.keys()


@pytest.mark.fuzz
@pytest.mark.timeout(24 * 3600)
def test_ten_million_changed_batches_end_in_records_or_in_a_status(tmp_path):
    fuzz(BIG, tmp_path, python_batches=100, seconds=24 * 3600)


def test_the_same_seed_changes_the_same_way():
    pool = pool_of(seed_batches()[:50])

    def changed(number):
        out, state = np.zeros(ROOM_BYTES, dtype=np.uint8), np.ones(1, dtype=np.uint64)
        seed_state(state, SEED, number)
        size, _ = mutate(pool.data, pool.starts, pool.fields, pool.field_starts, out, state)
        return out[:size].tobytes()

    assert [changed(n) for n in range(200)] == [changed(n) for n in range(200)]
    assert len({changed(n) for n in range(200)}) > 190


def test_a_read_or_write_beyond_a_guard_page_kills_the_process():
    code = (
        "import ctypes, numpy; from tests.fuzz.guard_pages import GuardedBuffer; a = GuardedBuffer(100); "
        "a.bytes[99] = 1; "
        "at = a.bytes.ctypes.data + {}; ctypes.string_at(at, 1)"
    )
    died = [subprocess.run([sys.executable, "-c", code.format(at)], check=False).returncode for at in (99, 100, -4096)]
    assert died == [0, -signal.SIGSEGV, -signal.SIGSEGV]


def test_the_batch_that_killed_is_saved(tmp_path):
    with pytest.raises(FuzzFailureError, match=f"seed {SEED}, batch 77, [0-9]+ bytes saved as") as caught:
        run(1000, SEED, tmp_path, seconds=240, dies_at=77)
    assert "Segmentation fault" in str(caught.value)
    (saved,) = tmp_path.glob(f"fuzz-{SEED}-77.bin")
    assert saved.stat().st_size > 0
