"""Figures beside the results of tasks; `test_clusters` reads them from the event log of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sediment.jobs.spark import task_figures
from sediment.jobs.spark.task_figures import Counted, Figures, collect, start_counting, stop_counting
from sediment.jobs.spark.task_pool import run_on_executors

JAR = "sediment-task-figures.jar"


@pytest.fixture
def counted(sc, monkeypatch):
    """The context of the tests, counted as one whose UI is on."""
    monkeypatch.setattr(sc, "getConf", lambda: {"spark.ui.enabled": "true"})
    start_counting(sc)
    yield sc
    stop_counting(sc)
    task_figures._remove_jar(sc, JAR)


def accumulators(sc) -> int:
    """Return the number that Spark gives to its next accumulator."""
    return int(sc._jsc.sc().longAccumulator().id())


def has_jar(sc) -> bool:
    return JAR in str(sc._jsc.sc().listJars().mkString(" "))


def repeat(number: int, _attempt: str) -> str:
    return "ü" * number


def length(_number: int, result: str) -> Figures:
    return Figures(records_read=len(result))


def test_counted_tasks_give_the_same_results(counted) -> None:
    numbers = [0, 1, 1000, 1 << 20]
    tasks = run_on_executors(counted, numbers, repeat, lambda _: 1, group="g", figures=length)
    before = accumulators(counted)
    answers = [answer for task in tasks for answer in task]
    assert accumulators(counted) > before + len(task_figures.NAMES)
    assert {answer.item: answer.result for answer in answers} == {number: "ü" * number for number in numbers}


def test_an_error_of_a_counted_task_is_that_of_its_item(counted) -> None:
    (answers,) = run_on_executors(counted, [-1], lambda *_: 1 // 0, lambda _: 1, group="g", figures=length)
    assert "ZeroDivisionError" in str(answers[0].error)


def joined(index: int, rows: Iterator[tuple[int, str]]) -> Iterator[str]:
    found = sorted(row for _, row in rows)
    if found:
        yield f"{index}: {' '.join(found)}"


def nothing(_result: object) -> Figures:
    return Figures()


def test_a_stage_after_a_shuffle_is_counted_too(counted) -> None:
    shuffled = counted.parallelize([(0, "a"), (1, "b"), (0, "c")], 3).partitionBy(3, partitionFunc=int)
    results = collect(counted, shuffled.mapPartitionsWithIndex, joined, Counted(joined, nothing))
    assert results == ["0: a c", "1: b"]


def test_where_nobody_sees_the_figures_nothing_is_counted(sc) -> None:
    start_counting(sc)  # a local run, without UI and event log
    assert sc not in task_figures._counters
    assert collect(sc, sc.parallelize([1, 2], 1).mapPartitions, list, Counted(list, nothing)) == [1, 2]


def test_an_executor_that_cannot_fetch_the_jar_runs_its_tasks_without_figures(counted, caplog) -> None:
    rows = counted.parallelize([1, 2], 1)
    jar = Path(counted._temp_dir) / JAR
    function_maker = task_figures._function_maker

    def removed_from_the_driver(sc):
        try:
            return function_maker(sc)
        finally:
            jar.unlink()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_figures, "_function_maker", removed_from_the_driver)
        for _ in range(2):
            assert collect(counted, rows.mapPartitions, list, Counted(list, nothing)) == [1, 2]
    (warning,) = caplog.records
    assert f"executors cannot fetch {JAR}" in warning.getMessage()
    assert not has_jar(counted)
    assert rows.collect() == [1, 2]


def test_nothing_is_compiled_before_the_first_job(counted) -> None:
    assert not has_jar(counted)
    assert collect(counted, counted.parallelize([1], 1).mapPartitions, list, Counted(list, nothing)) == [1]
    assert has_jar(counted)


def test_a_context_that_cannot_count_runs_without_figures(sc, monkeypatch) -> None:
    monkeypatch.setattr(sc, "getConf", lambda: {"spark.eventLog.enabled": "true"})
    monkeypatch.setattr(task_figures, "_SOURCE", Path("no-such-source"))
    start_counting(sc)
    try:
        assert collect(sc, sc.parallelize([1, 2], 1).mapPartitions, list, Counted(list, nothing)) == [1, 2]
    finally:
        stop_counting(sc)
