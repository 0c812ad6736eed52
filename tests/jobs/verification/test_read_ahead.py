"""Items that a thread prepares while the caller works on earlier ones."""

from __future__ import annotations

import threading
from itertools import islice

import pytest

from sediment.jobs.verification.read_ahead import LEAST_BYTES, ahead


class Items:
    """A source that notes its threads, how far it got and whether it was closed."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.threads: set[int] = set()
        self.made = 0
        self.is_closed = False
        self._count, self._error = count, error

    def run(self):
        try:
            for number in range(self._count):
                self.threads.add(threading.get_ident())
                self.made = number + 1
                yield number
            if self._error is not None:
                raise self._error
        finally:
            self.is_closed = True


@pytest.mark.parametrize(("size_bytes", "is_threaded"), [(LEAST_BYTES - 1, False), (LEAST_BYTES, True)])
def test_items_keep_their_order_and_a_thread_prepares_those_of_a_large_log(size_bytes, is_threaded):
    items = Items(100)
    assert list(ahead(items.run(), size_bytes)) == list(range(100))
    assert items.is_closed and len(items.threads) == 1
    assert (threading.get_ident() not in items.threads) == is_threaded


@pytest.mark.parametrize("size_bytes", [0, LEAST_BYTES])
def test_an_error_follows_the_items_before_it(size_bytes):
    found = []
    with pytest.raises(OSError, match="gone"):
        for item in ahead(Items(3, OSError("gone")).run(), size_bytes):
            found.append(item)
    assert found == [0, 1, 2]


def test_at_most_one_item_is_prepared_and_leaving_closes_the_source():
    items = Items(100)
    taken = ahead(items.run(), LEAST_BYTES)
    assert list(islice(taken, 3)) == [0, 1, 2]
    taken.close()
    assert items.is_closed and items.made <= 4
