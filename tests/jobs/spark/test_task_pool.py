import os
import subprocess
import sys
import threading
import time
from itertools import accumulate

import pytest
from pyspark import TaskContext

from sediment.jobs.spark import task_pool
from sediment.jobs.spark.task_pool import (
    NotStartedError,
    Pending,
    run_here,
    run_on_executors,
    run_pending,
)

GIB = 1 << 30


def double(work, attempt):
    assert attempt
    if work == 13:
        raise ValueError("unlucky")
    return 2 * work


def test_every_piece_is_answered_once_with_its_own_result(sc):
    answers = [
        answer for task in run_on_executors(sc, range(40, 100), double, lambda work: work, group="g") for answer in task
    ]
    assert sorted((answer.item, answer.result) for answer in answers) == [(n, 2 * n) for n in range(40, 100)]


def test_a_task_that_spark_gives_up_on_answers_with_the_error(sc):
    (answers,) = run_on_executors(sc, [13], double, lambda work: work, group="g")
    assert answers[0].result is None
    assert "unlucky" in str(answers[0].error)


def test_without_spark_an_item_that_fails_answers_with_its_error_and_the_others_with_their_results():
    answers = list(run_here([12, 13, 14], double))
    assert [answer.result for answer in answers] == [24, None, 28]
    assert [type(answer.error) for answer in answers] == [type(None), ValueError, type(None)]


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_a_system_that_allows_few_threads_runs_every_item_on_them(sc, monkeypatch, allowed):
    left = iter(range(allowed))
    start = threading.Thread.start

    def limited(thread):
        if thread.name == "sediment-task" and next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    tasks = run_on_executors(sc, range(40, 60), double, lambda _: 1 << 30, group="g")
    if allowed:
        assert sorted(answer.result for task in tasks for answer in task) == [2 * n for n in range(40, 60)]
    else:
        with pytest.raises(RuntimeError, match="new thread"):
            list(tasks)


def test_nothing_to_do_starts_nothing(sc):
    assert list(run_on_executors(sc, [], double, lambda work: work, group="g")) == []


def launched(_work, _attempt):
    """Spark counts the attempts of tasks in the order in which it launches them."""
    return TaskContext.get().taskAttemptId()


def test_in_order_the_first_begins_before_the_heaviest_at_the_end(sc):
    works = [3, *[1] * 60, 90]
    answers = [
        answer
        for task in run_on_executors(sc, works, launched, lambda work: work, group="g", in_order=True)
        for answer in task
    ]
    begun = {answer.item: answer.result for answer in answers}
    assert len(answers) == len(works)
    assert begun[3] < begun[90]


LOG = []


def begin_logged(work, _attempt):
    LOG.append(f"begin {work}")

    def finish():
        LOG.append(f"finish {work}")
        return work, list(LOG)

    return Pending(finish)


def test_the_next_pieces_of_a_task_are_begun_before_the_one_before_is_finished(sc):
    (answers,) = run_pending(sc, [3, 2, 1], begin_logged, lambda work: work, group="g", in_order=True)
    assert [answer.result[0] for answer in answers] == [3, 2, 1]
    assert answers[-1].result[1] == ["begin 3", "begin 2", "begin 1", "finish 3", "finish 2", "finish 1"]


def test_a_task_has_a_limited_number_of_unfinished_pieces():
    LOG.clear()
    assert [work for work, _ in task_pool._TaskFunction(begin_logged)(iter(range(40)))] == list(range(40))
    unfinished = list(accumulate(1 if line.startswith("begin") else -1 for line in LOG))
    assert max(unfinished) == task_pool._MOST_PENDING + 1 and unfinished[-1] == 0


def double_or_die(work, _attempt):
    if work == 13:
        os._exit(1)
    return 2 * work


def test_what_shared_a_task_with_the_one_that_brought_it_down_is_done_all_the_same(sc):
    tasks = list(run_on_executors(sc, [11, 12, 13, 14], double_or_die, lambda work: work, group="g", in_order=True))
    answers = {answer.item: answer for task in tasks for answer in task}
    assert {work: answer.result for work, answer in answers.items()} == {11: 22, 12: 24, 13: None, 14: 28}
    assert [work for work, answer in answers.items() if answer.error is not None] == [13]


_WITHOUT_WORKERS = """
import os, sys, time
from pyspark import SparkConf, SparkContext
from sediment.jobs.spark.task_pool import run_on_executors

conf = SparkConf().setMaster("local[2,2]").set("spark.ui.enabled", "false").set("spark.log.level", "OFF")
sc = SparkContext(conf=conf.set("spark.python.daemon.module", sys.argv[1]))
for _ in range(2):  # the second stage of a run does not try again
    tasks = list(run_on_executors(sc, range(40), abs, lambda _: 3 << 30, group="run"))
    errors = {str(answer.error) for task in tasks for answer in task}
    assert sum(map(len, tasks)) == 40 and all(sys.argv[1] in error for error in errors), errors
print(sc.statusTracker().getJobIdsForGroup("run").__len__())
"""


def test_where_no_worker_can_begin_the_run_ends_at_once():
    command = [sys.executable, "-c", _WITHOUT_WORKERS, "missing.module"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 4, "the jobs that Spark had when the first one failed"


@pytest.mark.parametrize(
    ("text", "is_hopeless"),
    [
        ("Traceback (most recent call last):\n  File worker.py\nModuleNotFoundError: No module named 'sediment'", True),
        ("Error from python worker:\n  OSError: AF_UNIX path too long", True),
        ('java.io.IOException: Cannot run program "./environment/bin/python"', True),
        ("Traceback (most recent call last):\n  File task_pool.py, line 1\nMemoryError", False),
        ("SparkException: Python worker exited unexpectedly (crashed)", False),
        ("ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", False),
    ],
)
def test_only_an_error_before_the_first_item_ends_a_run(text, is_hopeless):
    assert task_pool._cannot_begin(RuntimeError(text)) is is_hopeless


class Gone:
    """A SparkContext whose JVM has died."""

    def __init__(self):
        self.defaultParallelism, self.master = 2, "local[2]"
        self.asked = 0

    def getLocalProperty(self, _key):
        self.asked += 1
        raise ConnectionRefusedError("nobody listens")


def test_where_spark_itself_is_gone_everything_is_answered_without_asking_for_each_piece():
    gone = Gone()
    tasks = run_on_executors(gone, range(400), double, lambda work: work, group="g")
    answers = [answer for task in tasks for answer in task]
    assert sorted(answer.item for answer in answers) == list(range(400))
    assert all(isinstance(answer.error, ConnectionRefusedError) for answer in answers)
    assert gone.asked < 30


_A_JOB_WITHOUT_AN_ANSWER = """
import threading
from sediment.jobs.spark.task_pool import run_on_executors

class Stopping:
    defaultParallelism, master = 1, "local[1]"
    asked = threading.Event()

    def getLocalProperty(self, _key):
        self.asked.set()
        threading.Event().wait()

results = run_on_executors(Stopping(), [1], abs, abs, group="g")
threading.Thread(target=next, args=(results, None), daemon=True).start()
Stopping.asked.wait()
"""


def test_a_job_that_spark_never_answers_does_not_keep_the_process():
    subprocess.run([sys.executable, "-c", _A_JOB_WITHOUT_AN_ANSWER], timeout=60, check=True)


def begin_file(work, _attempt):
    folder, name = work
    (folder / name).touch()
    time.sleep(0.05)


def test_once_stopped_no_further_task_is_begun(sc, tmp_path):
    stop = threading.Event()
    works = [(tmp_path, str(number)) for number in range(40)]
    answers = []
    for task in run_on_executors(sc, works, begin_file, lambda _: 4 * GIB, group="g", is_stopped=stop.is_set):
        stop.set()
        answers += task
    assert sorted(answer.item for answer in answers) == sorted(works)
    assert len(list(tmp_path.iterdir())) < 12, "those that Spark had when it was stopped"
    errors = [answer.error for answer in answers if answer.error is not None]
    assert len(errors) > 28 and all(isinstance(error, NotStartedError) for error in errors)
