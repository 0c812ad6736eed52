"""Re-encoding of a log in place, and by its twin beside it."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from sediment.compaction.config import CompactionConfig
from sediment.compaction.prepared_swap import PreparedSwap
from sediment.compaction.reencode.plan import Encoding, ReencodedSegment, plan_reencode
from sediment.compaction.reencode.segment_reencode import reencode_segment
from sediment.engine.directory.swap import commit
from sediment.segment_io.format.compression.batch_codecs import compress
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.log_view import LogView
from tests.rewrites import view_of
from tests.twin import reencode as twin


def random_encoding(seed: int) -> Encoding:
    """Return one of the encodings that a user may ask for."""
    pick = random.Random(f"encoding of {seed}")
    codec = pick.choice((None, 0, 1, 2, 3, 4, 4))
    levels = {1: (1, 9), 3: (9, 12), 4: (-5, 1, 6)}
    level = pick.choice((None, *levels.get(-1 if codec is None else codec, ())))
    batch_bytes = pick.choice((None, 400, 2000, 64 << 10))
    return Encoding(codec, level, 1000 if codec is None and batch_bytes is None else batch_bytes)


@dataclass(frozen=True, slots=True)
class Reencode:
    """The results of all tasks of a partition, ready to commit."""

    swap: PreparedSwap
    segments: tuple[ReencodedSegment, ...]


def reencode_log(view: LogView, encoding: Encoding, config: CompactionConfig, *, attempt: str = "0") -> Reencode:
    """Carry out the tasks of a partition one after another."""
    tasks = plan_reencode(view, encoding, config)
    done = tuple(reencode_segment(task, Fs(), Attempt("r", attempt)) for task in tasks)
    checkpoint = view.log_start_offset if view.first_dirty_checkpoint is None else view.first_dirty_checkpoint
    groups = tuple(segment.group for segment in done)
    return Reencode(PreparedSwap(view.listing.partition, str(view.listing.path), groups, checkpoint), done)


@dataclass(frozen=True, slots=True)
class BothReencodes:
    """The result in place, that of the twin in another directory, and the bound."""

    done: Reencode
    expected: Path
    bound: int


def reencode(directory: Path, encoding: Encoding, config: CompactionConfig | None = None) -> Reencode:
    """Re-encode the partition in `directory` and commit."""
    done = reencode_log(view_of(directory), encoding, config or CompactionConfig())
    commit(done.swap, Fs())
    return done


def reencode_both(
    directory: Path,
    encoding: Encoding,
    *,
    interval_bytes: int = 300,
    index_bytes: int = 10 << 20,
    max_message_bytes: int = 1500,
    checkpoints: PartitionCheckpoints | None = None,
) -> BothReencodes:
    """Re-encode the partition in `directory`, and with the twin a copy beside it."""
    expected = directory.with_name(f"{directory.name}-twin")
    shutil.copytree(directory, expected)
    view = view_of(directory, checkpoints)
    batch_bytes = encoding.batch_bytes
    wanted = twin.Encoding(
        encoding.codec,
        encoding.level is not None,
        None if batch_bytes is None else min(batch_bytes, max_message_bytes),
        max_message_bytes,
        lambda codec, records: compress(codec, records, level=encoding.level),
    )
    twin.reencode_directory(expected, wanted, bound=view.last_stable_offset, interval_bytes=interval_bytes)
    config = CompactionConfig(
        index_interval_bytes=interval_bytes, segment_index_bytes=index_bytes, max_message_bytes=max_message_bytes
    )
    done = reencode_log(view, encoding, config)
    commit(done.swap, Fs())
    return BothReencodes(done, expected, view.last_stable_offset)
