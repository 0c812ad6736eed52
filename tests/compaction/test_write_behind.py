"""Writes during a sweep: a large output is written alone, small ones together, and errors are in the futures."""

import threading
import weakref
from functools import partial

import pytest

from sediment.compaction.write_behind import MOST_WRITES, SMALL_BYTES, WriteBehind


def test_large_writes_happen_in_order_and_one_is_handed_over_only_when_the_one_before_is_done():
    done: list[int] = []
    may_end = threading.Event()

    def slow() -> int:
        may_end.wait()
        done.append(0)
        return 0

    with WriteBehind() as writer:
        first = writer.submit(slow, 1)
        assert not first.done(), "the only write delays no other"
        threading.Timer(0.05, may_end.set).start()
        later = [writer.submit(lambda n=n: done.append(n), SMALL_BYTES) for n in (1, 2)]
        assert first.done() and later[0].done()
    assert first.result() == 0
    assert done == [0, 1, 2]


@pytest.mark.parametrize(
    ("size_bytes", "together"),
    [(1, MOST_WRITES), (SMALL_BYTES // MOST_WRITES, MOST_WRITES), (SMALL_BYTES // 3, 3), (SMALL_BYTES // 2 + 1, 1)],
)
def test_small_outputs_are_written_at_the_same_time_within_a_limit_of_bytes_and_number(size_bytes, together):
    barrier = threading.Barrier(together)
    running, most, lock = 0, 0, threading.Lock()

    def write() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        barrier.wait(timeout=30)
        with lock:
            running -= 1

    with WriteBehind() as writer:
        done = [writer.submit(write, size_bytes) for _ in range(2 * together)]
    assert all(each.exception() is None for each in done)
    assert most == together


def test_a_failed_write_raises_in_its_own_future_only():
    def fail() -> None:
        raise OSError("full")

    with WriteBehind() as writer:
        failed = writer.submit(fail, 1)
        other = writer.submit(lambda: 7, 1)
        writer.settle()
        assert other.done()
    assert other.result() == 7
    with pytest.raises(OSError, match="full"):
        failed.result()


class Output:
    """Something large."""


def test_a_failed_write_does_not_keep_its_output_alive():
    output = Output()
    alive = weakref.ref(output)

    def write(held: Output) -> None:
        raise OSError(str(held))

    with WriteBehind() as writer:
        failed = writer.submit(partial(write, output), 1)
        writer.settle()
        del output
        assert isinstance(failed.exception(), OSError)
        assert alive() is None
