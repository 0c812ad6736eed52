"""Estimates of the bytes that survive cleaning, and the decisions that use them: strategy, free space, resources."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sediment.compaction.strategy import Resources, Strategy, StrategyChoice, choose_strategy
from sediment.jobs.cleaning.options import CleaningTask
from sediment.jobs.spark.slots import available_slots
from sediment.segment_io.errors import CorruptBatchError, NoSpaceError
from sediment.segment_io.fs import Fs

if TYPE_CHECKING:
    from sediment.compaction.estimate import Estimate
    from sediment.compaction.grouping import CleaningPlan
    from sediment.compaction.write_behind import WriteBehind

SAMPLE_BYTES = 32 << 20  # sample size for a log that is too large to be read as a whole


def find_resources(sc: Any | None, all_bytes: int, *, asked: Strategy | None) -> Resources:
    """Return the resources of a run over `all_bytes` of logs; the choice of a strategy depends on these resources.

    Without a SparkContext, these are the resources of Spark's default master, which uses all CPUs of this process.
    """
    slots = available_slots() if sc is None else max(1, sc.defaultParallelism)
    # Half of this host's memory is divided evenly among the tasks that run at the same time.  The hosts of the
    # executors are assumed to have as much memory as this host.
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Resources(asked, slots, all_bytes, memory_bytes // 2 // slots)


def strategy_for(task: CleaningTask, plan: CleaningPlan, estimate: Callable[[], Estimate]) -> StrategyChoice:
    resources = replace(
        task.resources,
        task_memory_bytes=min(task.resources.task_memory_bytes, task.config.task_memory_bytes),
        key_equality=task.options.key_equality,
    )
    return choose_strategy(plan, resources, estimate)


def check_headroom(plan: CleaningPlan, fs: Fs, writer: WriteBehind, estimate: Callable[[], Estimate]) -> None:
    """Check that the survivors fit on the disk, because all groups are written before a commit frees their sources."""
    listing = plan.view.listing
    needed = plan.log_bytes
    if fs.free_bytes(listing.path) >= 2 * needed:
        return
    # Wait for pending writes first: until they finish or fail, the free space is not known.
    writer.settle()
    free = fs.free_bytes(listing.path)
    if free >= needed:
        return
    try:
        # If the estimate is too low, the disk fills up while the log is cleaned, and nothing is committed.
        needed = estimate().log_bytes
    except CorruptBatchError:
        # Ignore the corrupt batch here: the cleaning finds and handles it.
        return
    if free < needed:
        raise NoSpaceError(
            f"the disk has {free} bytes free and the surviving records need about {needed}",
            partition=str(listing.partition),
            path=str(listing.path),
            advice="free some space, for example with `sediment expire`, and run again; nothing was changed",
        )
