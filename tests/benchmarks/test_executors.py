"""The arithmetic for 200 executors: the page says what the work queue would do today."""

from __future__ import annotations

from benchmarks import executors


def test_the_page_on_scale_has_the_tasks_that_the_work_queue_makes() -> None:
    assert f"<!-- {executors.MARK} -->\n\n{executors.table()}\n" in executors.PAGE.read_text()


def test_the_calculation_has_the_rounds_of_a_pool_on_a_cluster() -> None:
    from sediment.jobs.spark import work_queue

    assert work_queue._LEAST_ROUNDS == executors.ROUNDS
