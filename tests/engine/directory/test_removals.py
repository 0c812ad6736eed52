"""Removals in the background: order, errors and the end."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from sediment.engine.directory.removals import Removals, wait_for_all
from sediment.segment_io.errors import SedimentError
from tests.waiting import wait_until


def _fail(text: str) -> None:
    raise OSError(text)


def _described(error: Exception) -> SedimentError:
    return SedimentError(f"described: {error}")


def test_submit_does_not_wait_and_finish_does() -> None:
    may_end, ended = threading.Event(), []
    removals = Removals()

    def remove() -> None:
        assert may_end.wait(timeout=60)
        ended.append(True)

    for _ in range(4):
        removals.submit(Path("t-0"), remove, _described)
    assert not ended
    may_end.set()
    assert removals.finish() == {}
    assert len(ended) == 4


def test_submit_waits_while_too_many_removals_are_not_done() -> None:
    may_end, done = threading.Event(), []
    removals = Removals()

    def remove() -> None:
        assert may_end.wait(timeout=60)
        done.append(True)

    submitted = [0]

    def submit_many() -> None:
        for _ in range(200):
            removals.submit(Path("t-0"), remove, _described)
            submitted[0] += 1

    thread = threading.Thread(target=submit_many)
    thread.start()
    wait_until(lambda: submitted[0] == 10)
    thread.join(timeout=0.2)
    assert submitted[0] == 10 and not done
    may_end.set()
    thread.join(timeout=60)
    assert removals.finish() == {}
    assert len(done) == 200


def test_failed_removals_leave_room_for_others_and_the_first_failure_is_kept() -> None:
    removals = Removals()
    done: list[bool] = []
    for number in range(50):
        removals.submit(Path("t-0"), partial(_fail, str(number)), _described)
        removals.submit(Path("t-1"), partial(done.append, True), _described)
    failed = removals.finish()
    assert {str(path): error.what for path, error in failed.items()} == {"t-0": "described: 0"}
    assert len(done) == 50


def test_a_submission_that_fails_takes_no_room() -> None:
    removals = Removals()
    removals.finish()
    for _ in range(20):
        with pytest.raises(RuntimeError):
            removals.submit(Path("t-0"), lambda: None, _described)


def test_finish_returns_the_first_error_of_each_directory_and_the_other_removals_are_done() -> None:
    done: list[str] = []
    removals = Removals()
    for directory, remove in (
        ("t-0", partial(done.append, "t-0")),
        ("t-1", partial(_fail, "first")),
        ("t-1", partial(_fail, "second")),
        ("t-1", partial(done.append, "t-1")),
        ("t-2", partial(_fail, "other")),
    ):
        removals.submit(Path(directory), remove, _described)
    failed = removals.finish()
    assert {str(path): error.what for path, error in failed.items()} == {
        "t-1": "described: first",
        "t-2": "described: other",
    }
    assert sorted(done) == ["t-0", "t-1"]
    assert removals.finish().keys() == failed.keys()


def test_nothing_can_be_submitted_after_the_end() -> None:
    removals = Removals()
    removals.finish()
    with pytest.raises(RuntimeError):
        removals.submit(Path("t-0"), lambda: None, _described)


def _interrupt() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_a_signal_ends_the_wait_only_after_the_last_removal() -> None:
    may_end, ended = threading.Event(), []
    removals = Removals()

    def remove() -> None:
        assert may_end.wait(timeout=60)
        ended.append(True)

    removals.submit(Path("t-0"), remove, _described)
    threading.Timer(0.2, _interrupt).start()
    threading.Timer(0.6, may_end.set).start()
    with pytest.raises(KeyboardInterrupt):
        removals.finish()
    assert ended


def test_each_signal_is_passed_on_and_work_that_can_stop_ends_sooner() -> None:
    signals: list[bool] = []
    stop = threading.Event()

    def on_signal() -> None:
        signals.append(True)
        if len(signals) == 2:
            stop.set()
        else:
            threading.Timer(0.1, _interrupt).start()

    with ThreadPoolExecutor(1) as threads:
        work = threads.submit(stop.wait, 60)
        threading.Timer(0.1, _interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            wait_for_all([work], on_signal)
    assert work.result() and len(signals) == 2
