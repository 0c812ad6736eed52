import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.jobs.spread import pack_by_weight, spread


@given(st.lists(st.integers(0, 1000), max_size=60), st.integers(1, 12))
def test_packing_keeps_every_piece_and_stays_balanced(weights, tasks):
    packed = pack_by_weight(weights, lambda weight: weight, tasks)
    assert sorted(weight for task in packed for weight in task) == sorted(weights)
    assert len(packed) == min(tasks, len(weights))
    totals = [sum(task) for task in packed]
    assert totals == sorted(totals, reverse=True)
    if totals:
        assert max(totals) - min(totals) <= max(weights) + len(weights)


def double(work, attempt):
    assert attempt
    if work == 13:
        raise ValueError("unlucky")
    return 2 * work


def test_every_piece_is_answered_once_with_its_own_result(sc):
    answers = [answer for task in spread(sc, range(40, 100), double, lambda work: work, group="g") for answer in task]
    assert sorted((answer.work, answer.result) for answer in answers) == [(n, 2 * n) for n in range(40, 100)]


def test_a_task_that_spark_gives_up_on_answers_with_the_error(sc):
    (answers,) = spread(sc, [13], double, lambda work: work, group="g")
    assert answers[0].result is None
    assert "unlucky" in str(answers[0].error)


def test_nothing_to_do_starts_nothing(sc):
    assert list(spread(sc, [], double, lambda work: work, group="g")) == []


@pytest.mark.parametrize("tasks", [1, 3])
def test_the_heaviest_goes_first(tasks):
    packed = pack_by_weight([1, 9, 5, 7], lambda weight: weight, tasks)
    assert packed[0][0] == 9


def when_begun(work, _attempt):
    return time.monotonic_ns()


def test_in_order_each_piece_is_a_task_of_its_own_and_the_first_begins_long_before_the_heaviest_at_the_end(sc):
    works = [3, 50, 1, 40, 2, 30, 4, 20, 5, 10, 6, 90]
    answers = list(spread(sc, works, when_begun, lambda work: work, group="g", in_order=True))
    assert [len(task) for task in answers] == [1] * len(works)
    begun = {answer.work: answer.result for (answer,) in answers}
    assert begun[3] < begun[90]
