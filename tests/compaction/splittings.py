"""Cleanings of a partition in splits, as tasks do them, against a whole cleaning."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sediment.compaction.clean_log import SplitWork, clean_log, clean_split, collect_split_keys, scan_log
from sediment.compaction.cleanable_range import cleanable_range
from sediment.compaction.grouping import CleaningPlan, plan_cleaning
from sediment.compaction.partition_splits import (
    KeyRun,
    RunNumber,
    Split,
    SplitContents,
    SurvivorBitmap,
    collect_survivors,
    fold_range,
    pack_run,
    splits_at,
)
from sediment.compaction.prepared_swap import CleanedGroup
from sediment.compaction.reencode.plan import Encoding
from sediment.segment_io.errors import SourceChangedError
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import open_view
from tests.compaction.cleanings import PARTITION, Round, batch_of
from tests.logs import START_MS

EMPTY = SplitContents(0, 0)
NOTHING = SurvivorBitmap(np.zeros(0, dtype=np.uint8), EMPTY)


@dataclass(frozen=True, slots=True)
class Splitting:
    """The parameters of a split cleaning: bounds of groups, keys of a run, ranges of hashes, bytes for a fold."""

    bounds: tuple[int, ...] = ()
    run_limit: int = 1 << 20
    ranges: int = 2
    budget_bytes: int = 1 << 30
    scanned: bool = False


def plan_of(directory: Path, given: Round) -> CleaningPlan | None:
    fs, config = Fs(), given.config()
    view = open_view(
        list_log(PARTITION, directory, fs),
        PartitionCheckpoints(first_dirty=given.dirty),
        fs,
        now_ms=given.now_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
    )
    cleanable = cleanable_range(view, config, now_ms=given.now_ms, force=True)
    return None if cleanable.blocked_by else plan_cleaning(view, cleanable, config, now_ms=given.now_ms)


def clean_in_splits(
    plan: CleaningPlan, splitting: Splitting, encoding: Encoding | None = None
) -> tuple[CleanedGroup, ...]:
    """Clean as the Spark job does, with its shuffles between the three steps in this process."""
    fs = Fs()
    splits = splits_at(plan.groups, splitting.bounds)
    boundaries = scan_log(plan, fs, only_if_needed=not splitting.scanned)
    work = SplitWork(
        plan, boundaries, seed=7, run_limit=splitting.run_limit, ranges=splitting.ranges, encoding=encoding
    )
    by_range: dict[int, list[tuple[RunNumber, bytes]]] = {}
    met: dict[int, SplitContents] = {}
    for split in splits:
        for run in collect_split_keys(work, split, len(splits), fs):
            met[split.number] = run.met
            for number, blob in pack_run(run, splitting.ranges):
                by_range.setdefault(number, []).append((run.number, blob))
    answers: dict[int, list[bytes]] = {split.number: [] for split in splits}
    for blobs in by_range.values():
        for splits_above, answer in fold_range(blobs, budget_bytes=splitting.budget_bytes):
            answers[len(splits) - 1 - splits_above].append(answer)
    groups: list[CleanedGroup] = []
    for split in splits:
        survivors = collect_survivors(answers[split.number], met[split.number])
        groups.extend(clean_split(work, split, survivors, fs, Attempt("split", "0")))
    return tuple(groups)


def survivors_of(work: SplitWork, split: Split) -> SurvivorBitmap:
    """Return the survivors that the folds give for the only split of a log."""
    runs = list(collect_split_keys(work, split, 1, Fs()))
    blobs = [(number, (run.number, blob)) for run in runs for number, blob in pack_run(run, work.ranges)]
    answers = [
        answer
        for which in range(work.ranges)
        for _, answer in fold_range((blob for number, blob in blobs if number == which), budget_bytes=1 << 30)
    ]
    return collect_survivors(answers, runs[-1].met)


def contents(directory: Path, groups: tuple[CleanedGroup, ...]) -> list[dict[str, bytes]]:
    """Return the new files of each group by final name; empty for a group that stays."""
    return [
        {file.final_name: (directory / file.part_name).read_bytes() for part in group.parts for file in part.files}
        for group in groups
    ]


def assert_same_as_whole(directory: Path, plan: CleaningPlan, splitting: Splitting) -> None:
    whole = clean_log(plan, Fs(), Attempt("whole", "0"))
    groups = clean_in_splits(plan, splitting)
    assert [group.sources for group in groups] == [group.sources for group in whole.groups]
    assert [group.stats for group in groups] == [group.stats for group in whole.groups]
    assert contents(directory, groups) == contents(directory, whole.groups)
    for part in directory.glob("*.part"):
        part.unlink()


def one_split(directory: Path, given: Round) -> list[KeyRun]:
    plan = plan_of(directory, given)
    assert plan is not None
    work = SplitWork(plan, {}, seed=7, run_limit=100, ranges=2)
    return list(collect_split_keys(work, splits_at(plan.groups, ())[0], 1, Fs()))


def four_segments() -> dict[int, list[bytes]]:
    return {10 * n: [batch_of(10 * n + m, b"k") for m in range(10)] for n in range(4)}


def assert_another_content_is_noticed(directory: Path, base_offset: int, content: bytes) -> None:
    """Change the segment at `base_offset` between two sweeps, and keep its size and time; the second must fail."""
    plan = plan_of(directory, Round(START_MS + 1_000_000, segment_bytes=800))
    assert plan is not None
    work = SplitWork(plan, {}, seed=7, run_limit=100, ranges=2)
    (split,) = splits_at(plan.groups, ())
    survivors = survivors_of(work, split)
    changed = directory / f"{base_offset:020d}.log"
    stamp = changed.stat()
    assert len(content) == stamp.st_size
    changed.write_bytes(content)
    os.utime(changed, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(SourceChangedError, match="earlier sweep"):
        clean_split(work, split, survivors, Fs(), Attempt("r", "0"))
    assert not list(directory.glob("*.part"))
