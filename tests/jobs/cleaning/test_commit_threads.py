import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sediment.engine.directory.lockstep import Steps
from sediment.jobs.cleaning.commit_threads import CommitThreads

LIMIT_SECONDS = 30


@contextmanager
def ending(given: CommitThreads) -> Iterator[CommitThreads]:
    yield given
    given.finish_commits()
    given.finish_removals()


def commit_of(number: int, threads: set[str]) -> Steps[int]:
    for _ in range(3):
        threads.add(threading.current_thread().name)
        yield lambda: None
    return number


@pytest.mark.parametrize("in_lockstep", [True, False])
def test_outcomes_have_the_order_of_the_commits(in_lockstep: bool):
    with ending(CommitThreads(threading.Event(), in_lockstep=in_lockstep)) as commits:
        assert commits.perform_all([commit_of(n, set()) for n in range(40)]) == list(range(40))
        assert commits.perform_all([]) == []


def test_one_thread_does_the_steps_of_commits_in_lockstep():
    with ending(CommitThreads(threading.Event(), in_lockstep=True)) as commits:
        threads: set[str] = set()
        commits.perform_all([commit_of(n, threads) for n in range(16)])
        assert len(threads) == 1


@pytest.mark.parametrize("in_lockstep", [True, False])
def test_waits_of_16_commits_overlap(in_lockstep: bool):
    together = threading.Barrier(16, timeout=LIMIT_SECONDS)

    def waiting() -> Steps[None]:
        yield together.wait

    with ending(CommitThreads(threading.Event(), in_lockstep=in_lockstep)) as commits:
        assert commits.perform_all([waiting() for _ in range(32)]) == [None] * 32


def test_steps_on_a_network_filesystem_overlap_too():
    together = threading.Barrier(16, timeout=LIMIT_SECONDS)

    def renaming() -> Steps[None]:
        together.wait()
        yield lambda: None

    with ending(CommitThreads(threading.Event(), in_lockstep=False)) as commits:
        assert commits.perform_all([renaming() for _ in range(16)]) == [None] * 16


@pytest.mark.parametrize("in_lockstep", [True, False])
def test_an_interrupted_run_stops_and_waits_for_its_commits(in_lockstep: bool):
    stop, begun = threading.Event(), threading.Semaphore(0)
    given = CommitThreads(stop, in_lockstep=in_lockstep)
    ended: list[bool] = []

    def until_stopped() -> None:
        begun.release()
        assert stop.wait(LIMIT_SECONDS)

    def commit() -> Steps[None]:
        yield until_stopped
        yield lambda: None
        ended.append(True)

    caller = threading.Thread(target=given.perform_all, args=([commit(), commit()],))
    caller.start()
    for _ in range(2):
        assert begun.acquire(timeout=LIMIT_SECONDS)
    given.finish_commits()
    assert ended == [True, True]
    caller.join()
    given.finish_removals()


def test_commits_go_on_without_threads(monkeypatch: pytest.MonkeyPatch):
    """The interpreter refuses threads when it ends, and the system when a process has too many."""
    given = CommitThreads(threading.Event(), in_lockstep=True)
    performed: list[str] = []

    def refuse(_wait: Callable[[], object], *_: object) -> None:
        raise RuntimeError("can't start new thread")

    def commit(name: str) -> Steps[str]:
        monkeypatch.setattr(given._pool, "submit", refuse)
        for number in range(3):
            performed.append(f"{name}{number}")
            yield lambda number=number: performed.append(f"wait {name}{number}")
        return name

    assert given.perform_all([commit("a"), commit("b")]) == ["a", "b"]
    assert performed[:4] == ["a0", "b0", "wait a0", "wait b0"]
    assert performed[-2:] == ["wait a2", "wait b2"]
    monkeypatch.undo()
    given.finish_commits()
    given.finish_removals()


def test_what_has_not_begun_at_an_interruption_does_not_begin(monkeypatch: pytest.MonkeyPatch):
    given = CommitThreads(threading.Event(), in_lockstep=True)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(given._pool, "submit", interrupt)
    threads: set[str] = set()
    with pytest.raises(KeyboardInterrupt):
        given.perform_all([commit_of(0, threads)])
    given.finish_commits()
    given.finish_removals()
    assert not threads
