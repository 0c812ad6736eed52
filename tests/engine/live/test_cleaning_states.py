"""The cleaning states, and how a thread that waits for the end of a cleaning is woken."""

from __future__ import annotations

import threading

import pytest

from sediment.engine.live.cleaning_states import Aborted, CleaningStates, InProgress, Paused
from sediment.segment_io.errors import CleaningAbortedError, UsageError
from sediment.segment_io.format.names import TopicPartition
from tests.waiting import LIMIT_SECONDS

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def states():
    return CleaningStates()


def abort_in_a_thread(states):
    """Start a thread that aborts and pauses T0; return it when the state is Aborted."""
    thread = threading.Thread(target=states.abort_and_pause, args=(T0,))
    thread.start()
    while not isinstance(states.of(T0), Aborted):
        assert thread.is_alive()
    return thread


def test_what_is_in_progress_or_paused_is_not_started_again(states):
    assert states.start(T0)
    assert states.of(T0) == InProgress()
    assert not states.start(T0)
    assert states.start(T1)
    states.finish(T0)
    states.abort_and_pause(T0)
    assert not states.start(T0)


@pytest.mark.parametrize("pauses", [0, 1])
def test_cm_14_nothing_is_finished_that_was_not_begun(states, pauses):
    for _ in range(pauses):
        states.abort_and_pause(T0)
    before = states.of(T0)
    with pytest.raises(UsageError, match=r"finished while its state is .*partition t-0"):
        states.finish(T0, pytest.fail)
    assert states.of(T0) == before


def test_cm_14_what_is_in_progress_writes_its_checkpoint_and_is_free(states):
    written = []
    states.start(T0)
    assert states.finish(T0, lambda: written.append(states.of(T0)))
    assert written == [InProgress()]
    assert states.of(T0) is None


def test_cm_14_what_was_aborted_writes_no_checkpoint_and_is_paused(states):
    states.start(T0)
    waiting = abort_in_a_thread(states)
    assert not states.finish(T0, pytest.fail)
    waiting.join(timeout=LIMIT_SECONDS)
    assert states.of(T0) == Paused(1)


def test_cm_15_a_deletion_ends_like_a_cleaning(states):
    states.start(T0)
    assert states.finish(T0)
    assert states.of(T0) is None
    states.start(T0)
    waiting = abort_in_a_thread(states)
    assert not states.finish(T0)
    waiting.join(timeout=LIMIT_SECONDS)
    assert states.of(T0) == Paused(1)


def test_cm_16_pauses_are_counted(states):
    states.abort_and_pause(T0)
    states.abort_and_pause(T0)
    assert states.of(T0) == Paused(2)
    states.resume(T0)
    assert states.of(T0) == Paused(1)
    states.resume(T0)
    assert states.of(T0) is None
    with pytest.raises(UsageError, match="resumed"):
        states.resume(T0)


def test_what_is_in_progress_cannot_be_resumed_nor_aborted_twice(states):
    states.start(T0)
    with pytest.raises(UsageError, match="resumed"):
        states.resume(T0)
    waiting = abort_in_a_thread(states)
    with pytest.raises(UsageError, match="resumed"):
        states.resume(T0)
    with pytest.raises(UsageError, match="aborted"):
        states.abort_and_pause(T0)
    states.finish(T0)
    waiting.join(timeout=LIMIT_SECONDS)


def test_a_cleaning_learns_between_its_steps_that_it_is_to_stop(states):
    states.check_not_aborted(T0)
    states.start(T0)
    states.check_not_aborted(T0)
    waiting = abort_in_a_thread(states)
    with pytest.raises(CleaningAbortedError, match="partition t-0"):
        states.check_not_aborted(T0)
    states.finish(T0)
    waiting.join(timeout=LIMIT_SECONDS)
    states.check_not_aborted(T0)


def test_an_abort_waits_until_the_cleaning_has_ended(states):
    states.start(T0)
    order = []

    def abort():
        states.abort_and_pause(T0)
        order.append("paused")

    thread = threading.Thread(target=abort)
    thread.start()
    while not isinstance(states.of(T0), Aborted):
        pass
    order.append("cleaning ends")
    states.finish(T0)
    thread.join(timeout=LIMIT_SECONDS)
    assert order == ["cleaning ends", "paused"]


def test_only_what_is_free_is_paused_for_retention(states):
    t2 = TopicPartition("t", 2)
    states.start(T0)
    states.abort_and_pause(T1)
    assert states.pause_free([T0, T1, t2]) == [t2]
    assert (states.of(T0), states.of(T1), states.of(t2)) == (InProgress(), Paused(1), Paused(1))


def test_a_checkpoint_that_cannot_be_written_leaves_the_partition_free(states):
    def fail():
        raise OSError(5, "Input/output error")

    states.start(T0)
    with pytest.raises(OSError, match="Input/output"):
        states.finish(T0, fail)
    assert states.of(T0) is None
