"""Spans and blocks that a thread prepares while the caller works on earlier ones.

Invariants: items keep their order, and the caller gets every error.  One item is prepared at a time, so at most two
items are in use: the caller's, and the one in preparation.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LEAST_BYTES = 8 << 20
"""Size of a log from which a thread reads ahead; for a smaller log, its start would take too long."""

CHUNK_BYTES = 2 << 20
"""Bytes of a span; the Python code for a span takes about as long for 2 MiB as for 1 MiB."""

_Item = TypeVar("_Item")


def ahead(items: Generator[_Item, None, None], size_bytes: int) -> Iterator[_Item]:
    """Yield the `items` of a log of `size_bytes`; if it is large, a thread prepares the next while the caller uses one.

    Raises:
        Exception: every error of `items`.
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
