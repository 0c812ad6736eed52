"""A coverage-guided fuzzing campaign: a child process, which may crash, runs mutated batches through every decoder.

    python -m tests.fuzz.campaign --batches 10000000 --seed 1

The child keeps the current batch in a file, so that its parent can save a batch that killed it or made it hang.
Batches with a new outcome join the pool of batches to mutate.  Some batches with a good header go on through the
decoders written in Python: decompression, wrappers, columns, appends to a live log.  Some are compared with the plain
twin.  The same seed gives the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tests.fuzz.guard_pages import GuardedBuffer, saved
from tests.fuzz.mutator import MOST_BYTES, ROOM_BYTES

ROUND = 20_000
BUFFER_BYTES = ROOM_BYTES
LARGEST_POOL = 4000
ADDRESS_SPACE_BYTES = 8 << 30
MOST_RESIDENT_BYTES = 3 << 28  # beyond those of the process that started the campaign
"""Largest resident memory of decoding batches of a few kilobytes, beyond that of the imports."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """The result of a campaign; `ways` is the number of different outcomes of batches, `grown_bytes` the most memory
    that it took in addition to what its parent had."""

    batches: int
    python_batches: int
    compared: int
    ways: int
    seconds: float
    batches_per_second: float
    grown_bytes: int
    outcomes: dict[str, int]


class FuzzFailureError(AssertionError):
    """A decoder failed; the message has the seed, the number of the batch and the path of its bytes."""


def run(
    batches: int, seed: int, saves: Path, *, python_batches: int = 40, seconds: float = 3600, dies_at: int = -1
) -> Campaign:
    """Fuzz in a child process.

    `python_batches` is the number of batches of a round that the decoders in Python get.  At batch `dies_at` the
    process dies, as with a decoder that reads outside its buffer.

    Raises:
        FuzzFailureError: the child died, hung or found an error.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.campaign", "--child", str(folder)]
        command += [
            "--batches",
            str(batches),
            "--seed",
            str(seed),
            "--python-batches",
            str(python_batches),
            "--dies-at",
            str(dies_at),
        ]
        try:
            finished = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired as error:
            raise FuzzFailureError(f"a decoder hangs; {_kept(folder, saves, seed)}") from error
        if finished.returncode:
            raise FuzzFailureError(f"{finished.stderr[-4000:]}\n{_kept(folder, saves, seed)}")
    return Campaign(**json.loads(finished.stdout))


def _kept(folder: Path, saves: Path, seed: int) -> str:
    """Save the current batch; return its path and the seed as a clause."""
    try:
        number, size = np.frombuffer(saved(folder / "note", 16), dtype=np.int64).tolist()
        python_batches = folder / "python_batches"
        content = (
            python_batches.read_bytes()
            if python_batches.exists()
            else saved(folder / "buffer", BUFFER_BYTES)[:-64][-size:]
        )
    except (OSError, ValueError):
        return f"seed {seed}: it did not reach the first batch"
    saves.mkdir(parents=True, exist_ok=True)
    path = saves / f"fuzz-{seed}-{number}.bin"
    path.write_bytes(content)
    return f"seed {seed}, batch {number}, {len(content)} bytes saved as {path}"


# ---------------------------------------------------------------------------------------------------------- the child
def _fuzz(batches: int, seed: int, folder: Path, python_batches: int, dies_at: int) -> Campaign:
    from tests.fuzz.probe import BROKEN_TEXT, SIGNATURES, Bench, probe_many
    from tests.fuzz.python_decoders import PythonDecoders
    from tests.fuzz.seeds import pool_of, seed_batches

    faulthandler.enable()
    inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    note = GuardedBuffer(16, folder / "note").bytes.view(np.int64)
    bench = Bench(GuardedBuffer(BUFFER_BYTES, folder / "buffer"), note)
    known = seed_batches()
    pool = pool_of(known)
    seen = np.zeros(SIGNATURES, dtype=np.int64)
    good, good_ends = np.zeros(1 << 20, dtype=np.uint8), np.zeros(python_batches * 4, dtype=np.int64)
    fresh, fresh_ends = np.zeros(64 * MOST_BYTES, dtype=np.uint8), np.zeros(64, dtype=np.int64)
    inner = PythonDecoders(seed, folder / "python_batches")
    began = time.perf_counter()
    done = 0
    while done < batches:
        count, goods, freshes, broken = probe_many(
            seed,
            done,
            min(ROUND, batches - done, max(dies_at + 1 - done, 0) or ROUND),
            *(pool.data, pool.starts, pool.fields, pool.field_starts),
            *bench.arguments(),
            *(seen, note, good, good_ends, fresh, fresh_ends),
        )
        if broken:
            raise FuzzFailureError(f"{BROKEN_TEXT[broken]} (seed {seed}, batch {done + count})")
        if note[0] == dies_at:
            ctypes.string_at(0)
        inner.feed(_cut(good, good_ends, goods), python_batches)
        done += count
        new = _cut(fresh, fresh_ends, freshes)
        if new and len(known) < LARGEST_POOL:
            known += new
            pool = pool_of(known)
    seconds = time.perf_counter() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - inherited) * 1024
    return Campaign(
        batches=done,
        python_batches=inner.fed,
        compared=inner.compared,
        ways=int(np.count_nonzero(seen)),
        seconds=round(seconds, 2),
        batches_per_second=round(done / seconds, 1),
        grown_bytes=grown,
        outcomes=dict(inner.outcomes.most_common()),
    )


def _cut(data: np.ndarray, ends: np.ndarray, count: int) -> list[bytes]:
    starts = [0, *ends[: max(count - 1, 0)].tolist()]
    return [data[start:end].tobytes() for start, end in zip(starts, ends[:count].tolist(), strict=False)]


def main() -> None:
    """Run the command line: print a table of results, or fail with exit status 1."""
    parser = argparse.ArgumentParser(description="fuzz the decoders")
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python-batches", type=int, default=40)
    parser.add_argument("--saves", type=Path, default=Path(tempfile.gettempdir()) / "sediment-fuzz")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--dies-at", type=int, default=-1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        print(json.dumps(asdict(_fuzz(given.batches, given.seed, given.child, given.python_batches, given.dies_at))))
        return
    with contextlib.suppress(KeyboardInterrupt):
        result = run(given.batches, given.seed, given.saves, python_batches=given.python_batches, seconds=24 * 3600)
        print(f"seed {given.seed}", *(f"{name} {value}" for name, value in asdict(result).items()), sep="\n")


if __name__ == "__main__":
    main()
