"""The throttle's windows and sleeps, which equal those of Kafka's Throttler, in one process and in several."""

import multiprocessing
import threading
import time

import pytest

from sediment.engine.directory.throttle import Throttle

MS = 1_000_000


class Clock:
    """A clock that only sleeping and `advance_ms` move."""

    def __init__(self):
        self.now_ns = 5_000 * MS
        self.slept_seconds = []

    def ns(self):
        return self.now_ns

    def sleep(self, seconds):
        self.slept_seconds.append(round(seconds, 6))
        self.now_ns += round(seconds * 1e9)

    def advance_ms(self, ms):
        self.now_ns += ms * MS


@pytest.fixture
def clock():
    return Clock()


def throttle(tmp_path, clock, rate):
    return Throttle(tmp_path / "state", rate, clock_ns=clock.ns, sleep=clock.sleep)


def test_nothing_waits_within_the_check_interval(tmp_path, clock):
    limited = throttle(tmp_path, clock, 1000)
    clock.advance_ms(300)
    limited.take(1_000_000)
    assert clock.slept_seconds == []


def test_a_window_above_the_rate_is_slept_out_and_a_new_one_begins(tmp_path, clock):
    limited = throttle(tmp_path, clock, 1000)
    limited.take(500)
    clock.advance_ms(400)
    limited.take(500)
    assert clock.slept_seconds == [0.6], "1000 bytes take a second, of which 400 ms are over"
    clock.advance_ms(301)
    limited.take(301)
    assert clock.slept_seconds == [0.6], "the new window keeps to the rate"


def test_a_rate_that_was_kept_waits_for_nothing_and_saves_nothing(tmp_path, clock):
    limited = throttle(tmp_path, clock, 1000)
    clock.advance_ms(10_000)
    limited.take(1)
    clock.advance_ms(301)
    limited.take(1000)
    assert clock.slept_seconds == [0.699], "ten idle seconds give no credit"


def test_all_who_name_the_same_file_share_one_rate(tmp_path, clock):
    first, second = throttle(tmp_path, clock, 1000), throttle(tmp_path, clock, 1000)
    first.take(600)
    clock.advance_ms(400)
    second.take(600)
    assert clock.slept_seconds == [0.8]


def _use(path, rate, count, size):
    limited = Throttle(path, rate)
    for _ in range(count):
        limited.take(size)
        time.sleep(0.01)


def test_processes_together_keep_to_the_rate(tmp_path):
    started = time.monotonic()
    rate, count, size = 1_000_000, 50, 10_000
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_use, args=(tmp_path / "state", rate, count, size)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    # What is taken after the last window ended needs no sleep: at most the bytes of one check interval without limit.
    assert time.monotonic() - started > 0.6


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-9])
def test_a_rate_next_to_nothing_sleeps_as_long_as_a_sleep_can_be(tmp_path, clock, rate):
    limited = throttle(tmp_path, clock, rate)
    clock.advance_ms(301)
    limited.take(1_000_000)
    (slept_seconds,) = clock.slept_seconds
    assert 1e9 <= slept_seconds <= threading.TIMEOUT_MAX


def test_a_state_file_that_is_a_link_is_refused(tmp_path, clock):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "state").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="symbolic links"):
        throttle(tmp_path, clock, 1000)
    assert (tmp_path / "file").read_bytes() == b"content"
