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
