"""Items that threads perform while the caller takes the results in their order."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from sediment.verification.threads import in_threads


def test_results_keep_the_order_of_the_items_and_items_run_at_the_same_time():
    both = threading.Barrier(2, timeout=60)

    def perform(item, stop):
        if item < 2:
            both.wait()
        return item, stop.is_set()

    assert list(in_threads(perform, range(20), 2)) == [(item, False) for item in range(20)]


def test_an_error_stops_the_other_items():
    performed = []

    def perform(item, stop):
        performed.append(item)
        if item == 1:
            raise OSError("gone")
        return stop.wait(60) if item == 2 else item

    found = []
    with pytest.raises(OSError, match="gone"), closing(in_threads(perform, range(100), 2)) as results:
        found.extend(results)
    assert found in ([], [0])
    assert max(performed) < 99


def test_a_caller_that_leaves_ends_all_threads():
    def perform(item, stop):
        return item if item == 0 else stop.wait(60)

    with closing(in_threads(perform, range(100), 2)) as results:
        assert next(results) == 0
    assert not [each for each in threading.enumerate() if each.name.startswith("sediment-verify")]
