"""Estimates of what a cleaning leaves, and the decisions made from them: strategy, free space, resources."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.compaction.strategy import Resources, Strategy, StrategyChoice, choose_strategy
from sediment.jobs.cleaning.options import CleaningTask
from sediment.segment_io.errors import CorruptBatchError, NoSpaceError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef

if TYPE_CHECKING:
    from sediment.compaction.config import CompactionConfig
    from sediment.compaction.estimate import Estimate
    from sediment.compaction.grouping import CleaningPlan
    from sediment.compaction.write_behind import WriteBehind

SAMPLE_BYTES = 32 << 20  # of a log too large to be read as a whole


def find_resources(sc: Any, all_bytes: int, *, asked: Strategy | None) -> Resources:
    """Return the resources of a run over `all_bytes` of log, on which the choice of a strategy depends.

    A task may hold its share of half of this host's memory; the executors' hosts are assumed to be equal to it.
    """
    slots = max(1, sc.defaultParallelism)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Resources(asked, slots, all_bytes, memory_bytes // 2 // slots)


def strategy_for(task: CleaningTask, plan: CleaningPlan, fs: Fs) -> StrategyChoice:
    """Return the strategy for the partition of `task`."""
    resources = replace(
        task.resources,
        task_memory_bytes=min(task.resources.task_memory_bytes, task.config.task_memory_bytes),
        key_equality=task.options.key_equality,
    )
    return choose_strategy(plan, resources, lambda: estimate_plan(plan, fs))


def estimate_plan(plan: CleaningPlan, fs: Fs) -> Estimate:
    """Return an estimate of what `plan` leaves, from a sample.

    Raises:
        CorruptBatchError: a log small enough to be read as a whole has a malformed batch.
    """
    segments = [segment for group in plan.groups for segment in group.segments]
    return estimate_segments(plan.view.listing.path, segments, plan.config, fs, now_ms=plan.now_ms)


def estimate_segments(
    directory: Path, segments: Sequence[SegmentRef], config: CompactionConfig, fs: Fs, *, now_ms: int
) -> Estimate:
    """Return an estimate of what cleaning `segments` leaves, from a sample of them.

    Raises:
        CorruptBatchError: a log small enough to be read as a whole has a malformed batch.
    """
    from sediment.compaction.estimate import collect_sample, estimate_cleaning
    from sediment.segment_io.partition.sample import sampled_batches

    sample = collect_sample(sampled_batches(directory, segments, fs, budget_bytes=SAMPLE_BYTES))
    log_bytes = sum(segment.log_bytes for segment in segments)
    return estimate_cleaning(sample, log_bytes, now_ms=now_ms, next_horizon_ms=config.next_horizon_ms(now_ms))


def check_headroom(plan: CleaningPlan, fs: Fs, writer: WriteBehind) -> None:
    """Check that the disk can hold the survivors: all groups are written before a commit frees their sources.

    Nothing is estimated if even a log that loses nothing would fit.  If an estimate is too low, the disk runs full
    during the cleaning, which is then undone.

    Raises:
        NoSpaceError: the disk is too full; nothing was changed.
    """
    listing = plan.view.listing
    needed = sum(group.log_bytes for group in plan.groups)
    if fs.free_bytes(listing.path) >= 2 * needed:
        return
    # Pending writes take their space first, or release it if they fail.
    writer.settle()
    free = fs.free_bytes(listing.path)
    if free >= needed:
        return
    try:
        needed = estimate_plan(plan, fs).log_bytes
    except CorruptBatchError:
        # The cleaning will find the batch again and handle it.
        return
    if free < needed:
        raise NoSpaceError(
            f"the disk has {free} bytes free and the survivors of the cleaning need about {needed}",
            partition=str(listing.partition),
            path=str(listing.path),
            advice="free some space and run again; nothing was changed",
        )
