"""Memory that a task may use on a cluster: its share of what its own executor has for Python.

    spark.executor.pyspark.memory   if it is set
    spark.executor.memoryOverhead   on YARN, whose containers have the heap and this overhead
    the container or host           otherwise: its cgroup's limit or its memory, without the heaps of the executors that
                                    its CPUs allow

Half of it is divided among the task slots; the other half is for buffers, the page cache and the JVM.  The driver knows
the settings, and the task finds the limits of the host that it runs on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sediment.jobs.spark.cgroups import CGROUPS, OWN_CGROUPS, own_folders, read_text
from sediment.jobs.spark.live_slots import LiveSlots
from sediment.jobs.spark.slots import available_slots

_LEAST_BYTES = 16 << 20  # for the keys of a small log; splits need no less
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ExecutorMemory:
    """What the driver knows about the memory of an executor.

    `python_bytes` is all that its Python workers may use together, None without a setting.  `overhead_bytes` is None
    unless the cluster limits it.  `heap_bytes` includes memory outside the heap that Spark manages.
    """

    python_bytes: int | None
    overhead_bytes: int | None
    heap_bytes: int
    tasks: int = 1
    executors_on_host: int = 1

    def at(self, slots: LiveSlots) -> ExecutorMemory:
        """Return the same memory for the executors of `slots`."""
        return replace(self, tasks=slots.of_executor, executors_on_host=slots.executors_on_host)


@dataclass(frozen=True, slots=True)
class TaskMemory:
    """Memory that one task may use, and where this figure is from, for a reader of a plan."""

    bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Host:
    """What the host, or the container, of an executor has."""

    memory_bytes: int
    cpus: int


def task_memory(executor: ExecutorMemory, host: Host) -> TaskMemory:
    """Return the memory of a task of an executor that runs on `host`."""
    over = f"over {executor.tasks} task slots of an executor"
    if executor.python_bytes is not None:
        return _half(executor.python_bytes, executor.tasks, f"spark.executor.pyspark.memory {over}")
    if executor.overhead_bytes is not None:
        return _half(executor.overhead_bytes, executor.tasks, f"spark.executor.memoryOverhead {over}")
    # Executors that will register later also need their share, so the CPUs count, and not only the executors of now.
    on_host = max(executor.executors_on_host, host.cpus // executor.tasks)
    beside_bytes = host.memory_bytes - on_host * executor.heap_bytes
    if on_host > 1:
        over += f", {on_host} of them on a host of {host.cpus} CPUs"
    what = f"the executor's host or container beside {executor.heap_bytes} bytes of heap, {over}"
    return _half(beside_bytes, executor.tasks * on_host, what)


def _half(all_bytes: int, tasks: int, what: str) -> TaskMemory:
    return TaskMemory(max(all_bytes // 2 // tasks, _LEAST_BYTES), f"half of the {max(all_bytes, 0)} bytes of {what}")


def own_host(cgroups: Path = CGROUPS, own_cgroups: Path = OWN_CGROUPS) -> Host:
    """Return the memory and the CPUs of this host, or less if a cgroup of this process limits them."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for folder, is_first_version in own_folders("memory", cgroups, own_cgroups):
        limit = read_text(folder / ("memory.limit_in_bytes" if is_first_version else "memory.max")).strip()
        if limit.isdecimal():
            limits.append(int(limit))
    return Host(min(limits), available_slots(cgroups, own_cgroups))


def read_executor_memory(sc: Any) -> ExecutorMemory:
    """Return what the settings of a cluster say about its executors."""
    settings = sc._jsc.sc().conf()

    def size_bytes(key: str, default: str) -> int:
        return int(settings.getSizeAsMb(key, default)) * _MIB

    heap_bytes = size_bytes("spark.executor.memory", "1g")
    overhead_bytes = None
    if str(sc.master).startswith("yarn"):
        factor = float(settings.getDouble("spark.executor.memoryOverheadFactor", 0.1))
        least_bytes = max(int(heap_bytes * factor), size_bytes("spark.executor.minMemoryOverhead", "384m"))
        overhead_bytes = size_bytes("spark.executor.memoryOverhead", f"{least_bytes // _MIB}m")
    if settings.getBoolean("spark.memory.offHeap.enabled", False):
        heap_bytes += int(settings.getSizeAsBytes("spark.memory.offHeap.size", "0"))
    return ExecutorMemory(size_bytes("spark.executor.pyspark.memory", "0") or None, overhead_bytes, heap_bytes)
