"""Writes during a sweep: they are in order, one output at a time, and errors are in the futures."""

import threading
import weakref
from functools import partial

import pytest

from sediment.compaction.write_behind import WriteBehind


def test_writes_happen_in_order_and_one_is_handed_over_only_when_the_one_before_is_done():
    done: list[int] = []
    may_end = threading.Event()

    def slow() -> int:
        may_end.wait()
        done.append(0)
        return 0

    with WriteBehind() as writer:
        first = writer.submit(slow)
        assert not first.done(), "the only write delays no other"
        threading.Timer(0.05, may_end.set).start()
        later = [writer.submit(lambda n=n: done.append(n)) for n in (1, 2)]
        assert first.done() and later[0].done()
    assert first.result() == 0
    assert done == [0, 1, 2]


def test_a_failed_write_raises_in_its_own_future_only():
    def fail() -> None:
        raise OSError("full")

    with WriteBehind() as writer:
        failed = writer.submit(fail)
        other = writer.submit(lambda: 7)
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
        failed = writer.submit(partial(write, output))
        writer.settle()
        del output
        assert isinstance(failed.exception(), OSError)
        assert alive() is None
