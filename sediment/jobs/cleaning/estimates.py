"""Estimates of the bytes that survive cleaning, and the decisions that use them: strategy, free space, resources."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sediment.compaction.strategy import Resources, Strategy
from sediment.jobs.cleaning.options import CleaningTask
from sediment.jobs.spark.executor_memory import ExecutorMemory, Host, own_host, read_executor_memory, task_memory
from sediment.jobs.spark.live_slots import LiveSlots, is_local
from sediment.jobs.spark.slots import available_slots
from sediment.segment_io.errors import CorruptBatchError, NoSpaceError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.fs import Fs

if TYPE_CHECKING:
    from sediment.compaction.estimate import Estimate
    from sediment.compaction.grouping import CleaningPlan
    from sediment.compaction.write_behind import WriteBehind

_DRIVER_HEAP_BYTES = 1 << 30  # Spark's default
SAMPLE_BYTES = 32 << 20  # sample size for a log that is too large to be read as a whole


def find_resources(
    slots: LiveSlots | None, all_bytes: int, *, asked: Strategy | None, host: Host | None = None
) -> Resources:
    """Return the resources of a run over `all_bytes` of logs; the choice of a strategy depends on these resources.

    Without a SparkContext, these are the resources of Spark's default master, which uses all CPUs of this process.
    The memory of this host, or of its container, is shared like that of an executor whose heap is the driver's; but on
    a cluster, the memory is that of the task's executor, and no limit is set here.
    `host` is this host, if it is known.
    """
    if slots is not None and not slots.is_local:
        return Resources(asked, max(1, slots.tasks), all_bytes, INT64_MAX)
    tasks = available_slots() if slots is None else slots.tasks
    driver = ExecutorMemory(None, None, _DRIVER_HEAP_BYTES, tasks)
    return Resources(asked, tasks, all_bytes, task_memory(driver, replace(host or own_host(), cpus=tasks)).bytes)


@dataclass(frozen=True, slots=True)
class Shares:
    """What the run has for its tasks: each task gets its share by the slots at the time when it starts."""

    all_bytes: int
    asked: Strategy | None
    executor: ExecutorMemory | None
    host: Host = field(default_factory=own_host)  # read once, because a run may have many small partitions

    def given(self, task: CleaningTask, slots: LiveSlots) -> CleaningTask:
        """Return `task` with its share of the memory and of the I/O rate."""
        return replace(
            task,
            rate_limit=task.rate_limit.over(slots),
            resources=find_resources(slots, self.all_bytes, asked=self.asked, host=self.host),
            executor=None if self.executor is None else self.executor.at(slots),
        )


def shares(sc: Any, all_bytes: int, *, asked: Strategy | None) -> Shares:
    """Return what a run over `all_bytes` of logs has for its tasks on `sc`."""
    return Shares(all_bytes, asked, None if is_local(sc) else read_executor_memory(sc))


def task_resources(task: CleaningTask) -> Resources:
    """Return the resources of a task; on a cluster, call this on the task's executor.

    On a cluster, `sediment.task.memory.bytes` replaces the memory that the executor has for a task.  Elsewhere, it only
    lowers this memory.
    """
    resources = replace(task.resources, key_equality=task.options.key_equality)
    asked_bytes = task.config.task_memory_bytes
    if task.executor is None:
        return replace(resources, task_memory_bytes=min(resources.task_memory_bytes, asked_bytes))
    if asked_bytes < INT64_MAX:
        return replace(resources, task_memory_bytes=asked_bytes, memory_source="sediment.task.memory.bytes")
    memory = task_memory(task.executor, own_host())
    return replace(resources, task_memory_bytes=memory.bytes, memory_source=memory.source)


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
