"""Preparation of spans and blocks in a thread, while the caller works on earlier spans and blocks.

Invariants: items keep their order, and every error is raised in the caller.  One item is prepared at a time, so at most
two items are in memory: the caller's item and the next item.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LEAST_BYTES = 8 << 20
"""Minimum size of a log for which a thread reads ahead; for a smaller log, starting the thread would take too long."""

CHUNK_BYTES = 2 << 20
"""Size of a span in bytes; the Python code for a span takes about the same time for 2 MiB as for 1 MiB."""

_Item = TypeVar("_Item")


def ahead(items: Generator[_Item, None, None], size_bytes: int) -> Iterator[_Item]:
    """Yield the `items` of a log of `size_bytes`; for a large log, a thread prepares the next item in advance.

    Raises:
        Exception: every error that `items` raises.
    """
    if size_bytes < LEAST_BYTES:
        yield from items
        return
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="sediment-verify") as thread:
        try:
            prepared = thread.submit(next, items, end)
            while (item := prepared.result()) is not end:
                prepared = thread.submit(next, items, end)
                yield item  # type: ignore[misc]
        finally:
            thread.submit(items.close).result()
