"""Calls overlap only if they wait; the results stay in order."""

from __future__ import annotations

import threading
import time

import pytest

from sediment.jobs.process.overlapped import overlapped


def test_calls_that_wait_overlap_and_their_results_stay_in_order() -> None:
    together = threading.Barrier(4, timeout=20)

    def wait(number: int) -> int:
        if number < 64:
            time.sleep(0.002)
        elif number < 68:
            together.wait()  # returns only when four calls are here at once
        return number

    assert list(overlapped(wait, range(200))) == list(range(200))


def test_calls_that_do_not_wait_run_in_the_thread_of_the_caller() -> None:
    threads = set(overlapped(lambda _: threading.current_thread(), range(3000)))
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize("count", [0, 1, 64, 65])
def test_every_number_of_items_is_performed(count: int) -> None:
    assert list(overlapped(lambda number: -number, range(count))) == [-number for number in range(count)]
