"""Timer and delayed operations: order, cancellation, and completion exactly once."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Hashable

from sediment.server.delayed import DelayedOperations, Timer

_MS = 1_000_000


class StillClock:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


class Waiting:
    """An operation that completes once `ready` is set, and counts how it ended."""

    def __init__(self) -> None:
        self.ready = False
        self.completed = 0
        self.expired = 0

    def try_complete(self, changed: Collection[Hashable] | None) -> bool:
        self.completed += self.ready
        return self.ready

    def expire(self) -> None:
        self.expired += 1


def still_timer() -> tuple[Timer, StillClock]:
    clock = StillClock()
    return Timer(clock, name=None), clock


def test_callbacks_run_in_the_order_of_their_times_and_then_of_their_arrival():
    timer, clock = still_timer()
    ran: list[str] = []
    for name, delay_ms in (("late", 20), ("first", 10), ("second", 10), ("never", 21)):
        timer.after(delay_ms, lambda name=name: ran.append(name))
    clock.ns = 9 * _MS
    timer.run_due()
    assert ran == []
    clock.ns = 20 * _MS
    timer.run_due()
    assert ran == ["first", "second", "late"]


def test_a_cancelled_callback_does_not_run_and_does_not_stay_in_memory():
    timer, clock = still_timer()
    ran: list[int] = []
    entries = [timer.after(1000, lambda number=number: ran.append(number)) for number in range(5000)]
    for entry in entries[1:]:
        entry.cancel()
        entry.cancel()
    assert len(timer._heap) < 3000
    clock.ns = 1000 * _MS
    timer.run_due()
    assert ran == [0]
    assert not entries[0].is_pending


def test_a_callback_that_fails_does_not_keep_the_next_from_running(caplog):
    timer, _ = still_timer()
    ran: list[str] = []
    timer.after(0, lambda: 1 / 0)
    timer.after(0, lambda: ran.append("next"))
    timer.run_due()
    assert ran == ["next"]
    assert "a delayed callback failed" in caplog.text


def test_the_thread_of_a_timer_runs_an_earlier_callback_that_arrives_later():
    timer = Timer()
    ran = threading.Event()
    timer.after(60_000, lambda: None)
    timer.after(1, ran.set)
    assert ran.wait(60)
    timer.close()


def test_nothing_runs_after_close():
    timer = Timer()
    ran = threading.Event()
    timer.after(30, ran.set)
    timer.close()
    assert not ran.wait(0.06)


def test_an_operation_that_is_ready_is_not_watched():
    timer, _ = still_timer()
    operations, waiting = DelayedOperations(timer), Waiting()
    waiting.ready = True
    assert operations.watch(waiting, ["a"], 1000)
    assert (waiting.completed, len(operations)) == (1, 0)


def test_without_a_timeout_an_operation_expires_at_once():
    timer, _ = still_timer()
    operations, waiting = DelayedOperations(timer), Waiting()
    assert operations.watch(waiting, ["a"], 0)
    assert (waiting.completed, waiting.expired, len(operations)) == (0, 1, 0)


def test_an_event_completes_only_the_operations_under_its_key():
    timer, clock = still_timer()
    operations = DelayedOperations(timer)
    both, other = Waiting(), Waiting()
    assert not operations.watch(both, ["a", "b"], 1000)
    assert not operations.watch(other, ["c"], 1000)
    assert operations.check("b") == 0
    both.ready = other.ready = True
    assert operations.check("b") == 1
    assert operations.check("a") == 0
    assert len(operations) == 1
    clock.ns = 1000 * _MS
    timer.run_due()
    assert (both.completed, both.expired) == (1, 0)
    assert (other.completed, other.expired) == (0, 1)
    assert len(operations) == 0


def test_all_operations_can_be_expired():
    timer, _ = still_timer()
    operations = DelayedOperations(timer)
    waiting = [Waiting() for _ in range(3)]
    for each in waiting:
        operations.watch(each, ["a", "b"], 1000)
    operations.expire_all()
    assert [each.expired for each in waiting] == [1, 1, 1]
    assert len(operations) == 0


def test_after_close_an_operation_expires_as_soon_as_it_is_watched():
    timer, _ = still_timer()
    operations = DelayedOperations(timer)
    before, ready, after = (Waiting() for _ in range(3))
    ready.ready = True
    operations.watch(before, ["a"], 1000)
    operations.close()
    assert operations.watch(ready, ["a"], 1000)
    assert operations.watch(after, ["a"], 1000)
    assert [(each.completed, each.expired) for each in (before, ready, after)] == [(0, 1), (1, 0), (0, 1)]
    assert len(operations) == 0


def test_an_operation_is_told_which_keys_were_checked():
    timer, _ = still_timer()
    operations = DelayedOperations(timer)
    told: list[Collection[Hashable] | None] = []

    class Noting(Waiting):
        def try_complete(self, changed: Collection[Hashable] | None) -> bool:
            told.append(changed)
            if len(told) == 3:  # another thread cannot try meanwhile, but its key is not lost
                assert operations.check("a") == 0
            return super().try_complete(changed)

    operations.watch(Noting(), ["a", "b"], 60_000)
    operations.check("b")
    operations.check("c")
    operations.check("b")
    assert told == [None, None, {"b"}, {"a"}, {"b"}]


class Contended:
    """An operation of many threads: complete once the counter that they raise reaches its goal."""

    def __init__(self, goal: int) -> None:
        self.goal = goal
        self.reached = 0
        self.outcomes = 0
        self.running = 0

    def try_complete(self, changed: Collection[Hashable] | None) -> bool:
        self.running += 1
        assert self.running == 1, "two attempts at once"
        done = self.reached >= self.goal
        time.sleep(0)
        self.outcomes += done
        self.running -= 1
        return done

    def expire(self) -> None:
        assert self.running == 0
        self.outcomes += 1


def test_no_event_is_missed_and_none_counts_twice_with_many_threads():
    timer = Timer()
    operations = DelayedOperations(timer)
    for _ in range(50):
        operation = Contended(goal=4)
        guard = threading.Lock()

        def raise_and_check(operation: Contended = operation, guard: threading.Lock = guard) -> None:
            with guard:
                operation.reached += 1
            operations.check("a")

        threads = [threading.Thread(target=raise_and_check) for _ in range(4)]
        for thread in threads[:2]:
            thread.start()
        operations.watch(operation, ["a"], 60_000)
        for thread in threads[2:]:
            thread.start()
        for thread in threads:
            thread.join()
        assert operation.outcomes == 1
        assert len(operations) == 0
    timer.close()


def test_a_check_from_within_a_lock_that_an_attempt_needs_does_not_wait():
    timer, _ = still_timer()
    operations = DelayedOperations(timer)
    group, entered, leave = threading.Lock(), threading.Event(), threading.Event()

    class NeedsTheGroup(Waiting):
        def try_complete(self, changed: Collection[Hashable] | None) -> bool:
            if self.ready:
                entered.set()
                with group:
                    leave.wait(60)
            return super().try_complete(changed)

    waiting = NeedsTheGroup()
    operations.watch(waiting, ["a"], 1000)
    with group:
        waiting.ready = True
        other = threading.Thread(target=operations.check, args=("a",))
        other.start()
        assert entered.wait(60)
        assert operations.check("a") == 0
        leave.set()
    other.join(60)
    assert waiting.completed == 1
