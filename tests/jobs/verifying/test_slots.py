"""The slots that each pair of a run gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sediment.jobs.verify import with_slots
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.live_segments import live_segments
from sediment.segment_io.partition.sources import find_sources
from sediment.verification.comparison import Pair, PairSettings, Side


@pytest.mark.parametrize(
    ("megabytes", "slots", "expected"),
    [
        ((500,), 2, [2]),
        ((500, 500), 2, [1, 1]),
        ((500, 500, 500), 2, [1, 1, 1]),
        ((500, 1), 2, [2, 1]),
        ((500,), 1, [1]),
        ((600, 300), 8, [4, 3]),
        ((1, 1), 8, [1, 1]),
    ],
)
def test_a_large_partition_gets_the_slots_that_would_be_idle(tmp_path, megabytes, slots, expected):
    pairs = [sparse_pair(tmp_path / f"{number}-{size}" / "t-0", size << 20) for number, size in enumerate(megabytes)]
    assert [pair.threads for pair in with_slots(pairs, slots)] == expected


def sparse_pair(directory: Path, size_bytes: int) -> Pair:
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / f"{0:020d}.log", "wb") as log:
        log.truncate(size_bytes)
    (source,) = find_sources([directory], Fs())
    full = Side(source, live_segments(source, Fs()), PartitionCheckpoints())
    settings = PairSettings(0, False, None, 0, None, None, 1 << 20)
    return Pair("t-0", full, replace(full, segments=()), settings)
