"""Background tasks: when they run, in which order, and how a failing or slow task affects the others."""

from __future__ import annotations

import logging
import threading

import pytest

from sediment.engine.live.scheduler import Clock, Scheduler
from tests.clocks import ManualClock
from tests.waiting import LIMIT_SECONDS

DAY_MS = 86_400_000


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def scheduler(clock):
    scheduler = Scheduler(clock)
    yield scheduler
    scheduler.close()


def run_for(scheduler, clock, duration_ms, step_ms=1000):
    for _ in range(0, duration_ms, step_ms):
        clock.advance(step_ms)
        scheduler.run_due()


def test_a_task_runs_once_when_its_delay_is_over(scheduler, clock):
    runs = []
    scheduler.schedule_once("once", lambda: runs.append(clock.now_ms()), delay_ms=5000)
    start = clock.now_ms()
    run_for(scheduler, clock, 20_000)
    assert runs == [start + 5000]


def test_a_task_without_delay_waits_for_nobody(scheduler):
    runs = []
    scheduler.schedule_once("now", lambda: runs.append(1))
    assert runs == []
    scheduler.run_due()
    assert runs == [1]


def test_due_tasks_run_in_the_order_of_their_times_and_then_of_their_scheduling(scheduler, clock):
    runs = []
    for name, delay_ms in (("c", 300), ("a", 100), ("b", 100), ("d", 300)):
        scheduler.schedule_once(name, lambda name=name: runs.append(name), delay_ms=delay_ms)
    clock.advance(1000)
    scheduler.run_due()
    assert runs == ["a", "b", "c", "d"]


def test_a_periodic_task_runs_at_a_fixed_rate(scheduler, clock):
    runs = []
    start = clock.now_ms()
    scheduler.schedule_periodically("tick", lambda: runs.append(clock.now_ms() - start), period_ms=700, delay_ms=500)
    run_for(scheduler, clock, 3000, step_ms=100)
    assert runs == [500, 1200, 1900, 2600]


def test_runs_that_were_missed_are_not_made_up_for_and_the_rate_stays(scheduler, clock):
    runs = []
    start = clock.now_ms()
    scheduler.schedule_periodically("tick", lambda: runs.append(clock.now_ms() - start), period_ms=1000)
    clock.advance(5500)
    scheduler.run_due()
    run_for(scheduler, clock, 2000, step_ms=500)
    assert runs == [5500, 6000, 7000]


def test_a_period_that_never_comes_is_no_trouble(scheduler, clock):
    runs = []
    scheduler.schedule_periodically("never", lambda: runs.append(1), period_ms=2**63 - 1, delay_ms=30_000)
    run_for(scheduler, clock, 60_000)
    clock.advance(1000 * DAY_MS)
    scheduler.run_due()
    assert runs == [1]


def test_a_period_of_zero_is_one_millisecond(scheduler, clock):
    runs = []
    scheduler.schedule_periodically("busy", lambda: runs.append(1), period_ms=0)
    run_for(scheduler, clock, 3, step_ms=1)
    assert len(runs) == 3


def test_a_periodic_task_that_fails_is_told_of_and_runs_again(scheduler, clock, caplog):
    runs = []

    def fail():
        runs.append(1)
        raise OSError(5, "Input/output error")

    scheduler.schedule_periodically("kafka-log-retention", fail, period_ms=1000)
    with caplog.at_level(logging.ERROR):
        run_for(scheduler, clock, 2000)
    assert len(runs) == 2
    assert "kafka-log-retention failed: [Errno 5] Input/output error" in caplog.text


def test_a_cancelled_task_does_not_run_again(scheduler, clock):
    runs = []
    once = scheduler.schedule_once("once", lambda: runs.append("once"), delay_ms=1000)
    again = scheduler.schedule_periodically("again", lambda: runs.append("again"), period_ms=1000)
    scheduler.run_due()
    once.cancel()
    again.cancel()
    run_for(scheduler, clock, 5000)
    assert runs == ["again"]


def test_a_task_may_schedule_itself(scheduler, clock):
    runs = []

    def task():
        runs.append(clock.now_ms())
        if len(runs) < 3:
            scheduler.schedule_once("self", task)

    scheduler.schedule_once("self", task)
    scheduler.run_due()
    assert len(runs) == 3


def test_after_closing_nothing_runs_any_more(clock):
    scheduler = Scheduler(clock)
    runs = []
    scheduler.schedule_once("before", lambda: runs.append(1))
    scheduler.close()
    scheduler.schedule_once("after", lambda: runs.append(2))
    scheduler.run_due()
    assert runs == []


# --------------------------------------------------------------------------------------------------------- with threads
@pytest.fixture
def threaded():
    scheduler = Scheduler(Clock(), threads=2)
    yield scheduler
    scheduler.close()


def test_tasks_run_beside_each_other_on_threads(threaded):
    meeting = threading.Barrier(3)
    for name in ("one", "two"):
        threaded.schedule_once(name, lambda: meeting.wait(timeout=LIMIT_SECONDS))
    meeting.wait(timeout=LIMIT_SECONDS)


def test_a_task_never_runs_beside_itself(threaded):
    enough = threading.Event()
    running, together, runs = [], [], []

    def task():
        running.append(1)
        together.append(len(running))
        runs.append(1)
        if len(runs) >= 20:
            enough.set()
        running.pop()

    threaded.schedule_periodically("busy", task, period_ms=1)
    assert enough.wait(timeout=LIMIT_SECONDS)
    assert set(together) == {1}


def test_a_task_scheduled_while_the_scheduler_waits_does_not_wait_for_it(threaded):
    done = threading.Event()
    threaded.schedule_once("late", lambda: None, delay_ms=DAY_MS)
    threaded.schedule_once("now", done.set)
    assert done.wait(timeout=LIMIT_SECONDS)


def test_closing_waits_for_the_run_under_way():
    scheduler = Scheduler(Clock(), threads=1)
    begun, go_on, ended = threading.Event(), threading.Event(), []

    def task():
        begun.set()
        go_on.wait(timeout=LIMIT_SECONDS)
        ended.append(1)

    scheduler.schedule_once("slow", task)
    assert begun.wait(timeout=LIMIT_SECONDS)
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    go_on.set()
    closing.join(timeout=LIMIT_SECONDS)
    assert ended == [1]
