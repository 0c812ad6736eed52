"""Threads that share the work of one comparison; compiled loops and reads do not hold the interpreter lock.

Invariants: results keep the order of their items, and every error is raised in the caller.  No thread is still running
when the caller stops.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_threads(
    perform: Callable[[_Item, Event], _Result], items: Sequence[_Item], threads: int
) -> Generator[_Result, None, None]:
    """Yield `perform(item, stop)` for each item; several threads perform the items.

    If the caller stops or an item fails, `stop` is set, so that the items in progress can end early; the other items
    are not performed.
    """
    stop = Event()
    with ThreadPoolExecutor(threads, thread_name_prefix="sediment-verify") as pool:
        waiting = deque(pool.submit(perform, item, stop) for item in items)
        try:
            while waiting:
                yield waiting.popleft().result()
        finally:
            stop.set()
            for each in waiting:
                each.cancel()
