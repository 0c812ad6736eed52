"""Every step of every command that commits, cut off in every way, and our own start over what is left.

`tests.faults.matrix` has the faults, `tests.faults.courses` the commands; Kafka's loader sees the same in
tests/conformance/test_crash_matrix.py.
"""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

import pytest

from tests.faults.courses import Course, archived_offsets, courses, files_of, leftovers
from tests.faults.matrix import Judge, recorded, sample, sampled_by_crash
from tests.faults.watched import Failure, Fault, Watch, contents, read_tree


@pytest.fixture(params=courses())
def course(request: pytest.FixtureRequest, tmp_path: Path) -> Course:
    found = courses()[request.param]
    found.prepare(tmp_path / "root")
    return found


@pytest.mark.timeout(0)
def test_whatever_a_crash_at_any_step_leaves_is_opened_whole_and_completed_by_the_next_run(
    course: Course,
):
    watch = recorded(course)
    judge = Judge(course)
    for image in sampled_by_crash(watch.images):
        judge.judge(image.tree, image.crash, str(image))
    assert len(watch.steps) > 3


@pytest.mark.timeout(0)
@pytest.mark.parametrize("failure", [Failure.EIO, Failure.ENOSPC])
def test_a_step_that_fails_is_told_and_what_it_leaves_is_opened_whole_and_completed_by_the_next_run(
    course: Course, failure: Failure
):
    with Watch(course.root) as watch:
        course.run()
    numbers = range(1, len(watch.steps) + 1) if failure is Failure.EIO else sorted(watch.growing)
    judge = Judge(course)
    for number in sample(list(numbers)):
        course.restore(course.before)
        with Watch(course.root, fault=Fault(number, failure)) as failing:
            outcome = course.run()
        tree = read_tree(course.root)
        what = f"{failure} at step {number} ({failing.steps[number - 1]})"
        assert outcome.status in (course.outcome.status, 1, 2), f"{what}: {outcome}"
        if outcome.status == 2:
            assert course.of(tree, course.log_dir) == course.of(course.before, course.log_dir), what
        if outcome.status:
            told = outcome.stderr if not outcome.stdout else outcome.stdout
            assert "Traceback" not in told and len(told) > 20, what
        judge.judge(tree, failure, what)


@pytest.mark.timeout(0)
def test_an_executor_lost_at_any_step_of_a_task_changes_nothing(tasked: Course):
    with Watch(tasked.root) as watch:
        tasked.run()
    assert watch.of_tasks
    judge = Judge(tasked)
    for number in sample(sorted(watch.of_tasks)):
        tasked.restore(tasked.before)
        with Watch(tasked.root, fault=Fault(number, Failure.EXECUTOR_LOST)) as losing:
            outcome = tasked.run()
        assert outcome.status == 0, losing.steps[number - 1]
        judge.count(Failure.EXECUTOR_LOST)
        assert_as_undisturbed(tasked)


def test_tasks_that_all_run_twice_change_nothing(tasked: Course):
    outcome = tasked.run(speculates=True)
    assert outcome.status == 0
    assert_as_undisturbed(tasked)


@pytest.fixture(params=[name for name in courses() if name.startswith("compact") or "archived" in name])
def tasked(request: pytest.FixtureRequest, tmp_path: Path) -> Course:
    """A course that has tasks."""
    found = courses()[request.param]
    found.prepare(tmp_path / "root")
    return found


def assert_as_undisturbed(course: Course) -> None:
    """The same bytes in the log directory, the same archive or output, and nothing that an attempt left that lost."""
    tree = read_tree(course.root)
    assert leftovers(tree) == []
    assert files_of(course, tree) == files_of(course, course.after)
    if course.name == "expire, archived":
        assert archived_offsets(course) == list(range(10))


@pytest.mark.timeout(0)
def test_a_process_that_gets_sigkill_leaves_what_was_recorded(course: Course):
    """Of commands whose files have the same names in every run."""
    if course.command == "compact" or course.name.endswith(("archived", "kept")):
        pytest.skip("its files are named by the run")
    killed = [image for image in recorded(course).images if image.crash == "SIGKILL"]
    fork = multiprocessing.get_context("fork")
    for image in sample(killed, 2):
        course.restore(course.before)

        def run(number: int = image.number) -> None:
            with Watch(course.root, kill_behind=number):
                course.run()

        process = fork.Process(target=run)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert contents(read_tree(course.root)) == contents(image.tree), str(image)
