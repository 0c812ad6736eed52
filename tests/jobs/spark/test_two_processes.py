"""Items in two processes have the results that one process gives, whatever happens to the second process."""

import os
import threading

import pytest

from sediment.jobs.spark import two_processes
from sediment.jobs.spark.task_pool import run_here
from sediment.jobs.spark.two_processes import LEAST_ITEMS, run_here_in_two

HERE = os.getpid()


@pytest.fixture(autouse=True)
def two_slots(monkeypatch):
    monkeypatch.setattr(two_processes, "available_slots", lambda: 2)


@pytest.fixture
def alone(monkeypatch):
    """The test's process forks, although a SparkSession of other tests may have threads in it."""
    monkeypatch.setattr(two_processes, "_may_fork", lambda: True)


def double(item, _attempt):
    if item % 10 == 3:
        raise ValueError(f"unlucky {item}")
    return 2 * item, os.getpid()


def doubled(found):
    return sorted((each.item, each.result and each.result[0], str(each.error)) for each in found)


def processes(found):
    return {each.result[1] for each in found if each.result is not None}


@pytest.mark.parametrize(("count", "expected"), [(0, 0), (LEAST_ITEMS - 1, 1), (LEAST_ITEMS, 2), (201, 2)])
@pytest.mark.usefixtures("alone")
def test_every_item_has_its_result_and_many_items_take_two_processes(count, expected):
    found = list(run_here_in_two(range(count), double))
    assert doubled(found) == doubled(run_here(range(count), double))
    assert len(processes(found)) == expected


@pytest.mark.usefixtures("alone")
def test_results_larger_than_a_pipe_arrive():
    found = list(run_here_in_two(range(100), lambda item, _attempt: bytes([item]) * 50_000))
    assert {each.item: each.result for each in found} == {item: bytes([item]) * 50_000 for item in range(100)}


def dies_elsewhere(item, _attempt):
    if os.getpid() != HERE and item > 50:
        os._exit(9)
    return 2 * item, os.getpid()


def unreadable_elsewhere(item, _attempt):
    return 2 * item, os.getpid(), None if os.getpid() == HERE else threading.Lock()


@pytest.mark.parametrize("perform", [dies_elsewhere, unreadable_elsewhere])
@pytest.mark.usefixtures("alone")
def test_the_items_of_a_process_that_fails_are_performed_here(perform):
    found = list(run_here_in_two(range(100), perform))
    assert sorted((each.item, each.result[0]) for each in found) == [(item, 2 * item) for item in range(100)]
    assert processes(found) == {HERE}


def waits_elsewhere(_item, _attempt):
    if os.getpid() != HERE:
        threading.Event().wait()


@pytest.mark.usefixtures("alone")
def test_the_second_process_ends_when_the_caller_stops(monkeypatch):
    children = []
    fork = two_processes._fork
    monkeypatch.setattr(two_processes, "_fork", lambda *items: children.append(fork(*items)) or children[-1])
    found = run_here_in_two(range(100), waits_elsewhere)
    next(found), next(found)
    found.close()
    ((_, child),) = children
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_with_one_slot_one_process_does_all(monkeypatch):
    monkeypatch.setattr(two_processes, "available_slots", lambda: 1)
    assert processes(run_here_in_two(range(100), double)) == {HERE}


def test_beside_other_threads_one_process_does_all():
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert processes(run_here_in_two(range(100), double)) == {HERE}
    finally:
        over.set()
        thread.join()
