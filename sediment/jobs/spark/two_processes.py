"""Many short items without Spark, on two cores: a forked process performs every second item.

1. This process performs the first item, and thus loads the modules that the items need.
2. A forked process performs every second one of the other items, and this process performs the rest.

If the forked process fails, this process performs its items.  The forked process ends before the last result is
yielded, or when the caller stops.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from sediment.jobs.spark.slots import available_slots
from sediment.jobs.spark.task_pool import Item, Result, TaskResult, run_here

LEAST_ITEMS = 64
"""With fewer items, starting a second process takes longer than it saves."""


def run_here_in_two(
    items: Sequence[Item], perform: Callable[[Item, str], Result]
) -> Iterator[TaskResult[Item, Result]]:
    """Perform `items` without Spark, as `run_here` does, but in any order and in up to two processes.

    `perform` must not change anything outside its process.
    """
    if len(items) < LEAST_ITEMS or not _may_fork():
        yield from run_here(items, perform)
        return
    yield from run_here(items[:1], perform)
    ours, others = items[1::2], items[2::2]
    reader, child = _fork(others, perform)
    try:
        with open(reader, "rb") as answers:
            yield from run_here(ours, perform)
            content = answers.read()
        found = pickle.loads(content) if content else run_here(others, perform)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    yield from found


def _may_fork() -> bool:
    """Return True if a second core is free for this process, and no other thread can hold a lock during a fork."""
    return hasattr(os, "fork") and threading.active_count() == 1 and available_slots() > 1


def _fork(items: Sequence[Item], perform: Callable[[Item, str], Result]) -> tuple[int, int]:
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return reader, child
    try:
        os.close(reader)
        content = pickle.dumps(list(run_here(items, perform)))
        with open(writer, "wb") as answers:
            answers.write(content)
    except BaseException:
        os._exit(1)
    os._exit(0)
