import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext

from sediment.jobs.spread import pack_by_weight, pack_in_order, spread


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


def test_in_order_small_neighbours_share_a_task_and_nothing_changes_places():
    mib = 1 << 20
    works = [*[1] * 20, 40 * mib, 30 * mib, 30 * mib, 500 * mib, 1]
    packed = pack_in_order(works, lambda work: work)
    assert [work for task in packed for work in task] == works
    assert [len(task) for task in packed] == [8, 8, 5, 2, 1, 1]
    assert pack_in_order([], lambda work: work) == []


def launched(_work, _attempt):
    """Spark counts the attempts of tasks in the order in which it launches them."""
    return TaskContext.get().taskAttemptId()


def test_in_order_the_first_begins_before_the_heaviest_at_the_end(sc):
    works = [3, *[1] * 60, 90]
    answers = [
        answer for task in spread(sc, works, launched, lambda work: work, group="g", in_order=True) for answer in task
    ]
    begun = {answer.work: answer.result for answer in answers}
    assert len(answers) == len(works)
    assert begun[3] < begun[90]
