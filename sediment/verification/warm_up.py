"""Warm-up: a comparison of a tiny log with an empty log compiles every kernel of the verification.

The tiny log consists of one of the `sample_batches`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.format.sample_batches import SAMPLE_BATCH
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.live_segments import live_segments
from sediment.segment_io.partition.sources import find_sources
from sediment.verification.comparison import Pair, PairSettings, Side, compare
from sediment.verification.key_table import KeyTable
from sediment.verification.record_kernels import REGISTERS, join_keys


def warm_up_verification() -> None:
    with tempfile.TemporaryDirectory(prefix="sediment-warm-up-") as folder:
        contents = {"1": SAMPLE_BATCH, "2": b""}
        sides = [_side(Path(folder) / name / "warm-up-0", content) for name, content in contents.items()]
        settings = PairSettings(0, False, None, 0, None, None, 1 << 20)
        for before, after in (sides, sides[::-1], [sides[0]] * 2):
            compare(Pair("warm-up-0", before, after, settings))
    slots = KeyTable(0, 0).slots
    join_keys(slots, slots, 0, np.zeros(REGISTERS, dtype=np.int64))


def _side(directory: Path, content: bytes) -> Side:
    directory.mkdir(parents=True)
    (directory / segment_file_name(0, SegmentFileKind.LOG)).write_bytes(content)
    fs = Fs()
    (source,) = find_sources([directory], fs)
    return Side(source, live_segments(source, fs), PartitionCheckpoints())
