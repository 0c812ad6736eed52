"""Faults at every step of every command that commits, and Sediment's own start after each fault.

`tests.faults.matrix` has the faults, `tests.faults.crash_scenarios` the commands; Kafka's loader sees the same in
tests/conformance/crashes/test_crash_matrix.py.
"""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

import pytest

from tests.faults.crash_scenarios import LOGS, CrashScenario, archived_offsets, crash_scenarios, files_of, leftovers
from tests.faults.fs_trace import Failure, Fault, FsTrace, contents, read_tree
from tests.faults.matrix import OutcomeChecker, recorded, sample, sampled_by_crash


@pytest.fixture(params=crash_scenarios())
def scenario(request: pytest.FixtureRequest, tmp_path: Path) -> CrashScenario:
    found = crash_scenarios()[request.param]
    found.prepare(tmp_path / "root")
    return found


@pytest.mark.timeout(0)
def test_whatever_a_crash_at_any_step_leaves_is_opened_whole_and_completed_by_the_next_run(
    scenario: CrashScenario,
):
    trace = recorded(scenario)
    checker = OutcomeChecker(scenario)
    for image in sampled_by_crash(trace.images):
        checker.check(image.tree, image.crash, str(image))
    assert len(trace.steps) > 3


@pytest.mark.timeout(0)
@pytest.mark.parametrize("failure", [Failure.EIO, Failure.ENOSPC])
def test_a_step_that_fails_is_reported_and_what_it_leaves_is_opened_whole_and_completed_by_the_next_run(
    scenario: CrashScenario, failure: Failure
):
    with FsTrace(scenario.root) as trace:
        scenario.run()
    numbers = range(1, len(trace.steps) + 1) if failure is Failure.EIO else sorted(trace.growing)
    checker = OutcomeChecker(scenario)
    for number in sample(list(numbers)):
        scenario.restore(scenario.before)
        with FsTrace(scenario.root, fault=Fault(number, failure)) as failing:
            outcome = scenario.run()
        tree = read_tree(scenario.root)
        what = f"{failure} at step {number} ({failing.steps[number - 1]})"
        assert outcome.status in (scenario.outcome.status, 1, 2), f"{what}: {outcome}"
        if outcome.status == 2:
            assert scenario.of(tree, scenario.log_dir) == scenario.of(scenario.before, scenario.log_dir), what
        if outcome.status:
            message = outcome.stderr if not outcome.stdout else outcome.stdout
            assert "Traceback" not in message and len(message) > 20, what
        checker.check(tree, failure, what)


@pytest.mark.timeout(0)
def test_an_executor_lost_at_any_step_of_a_task_changes_nothing(tasked: CrashScenario):
    with FsTrace(tasked.root) as trace:
        tasked.run()
    assert trace.of_tasks
    checker = OutcomeChecker(tasked)
    for number in sample(sorted(trace.of_tasks)):
        tasked.restore(tasked.before)
        with FsTrace(tasked.root, fault=Fault(number, Failure.EXECUTOR_LOST)) as losing:
            outcome = tasked.run()
        assert outcome.status == 0, losing.steps[number - 1]
        checker.count(Failure.EXECUTOR_LOST)
        assert_as_undisturbed(tasked)


def test_tasks_that_all_run_twice_change_nothing(tasked: CrashScenario):
    outcome = tasked.run(speculates=True)
    assert outcome.status == 0
    assert_as_undisturbed(tasked)


@pytest.fixture(
    params=[name for name in crash_scenarios() if name.startswith(("compact", "erase")) or "archived" in name]
)
def tasked(request: pytest.FixtureRequest, tmp_path: Path) -> CrashScenario:
    """Prepare a scenario that has tasks."""
    found = crash_scenarios()[request.param]
    found.prepare(tmp_path / "root")
    return found


def assert_as_undisturbed(scenario: CrashScenario) -> None:
    """Assert the bytes of an undisturbed run in log directory, archive and output, and no file of a lost attempt."""
    tree = read_tree(scenario.root)
    assert leftovers(tree) == []
    assert files_of(scenario, tree) == files_of(scenario, scenario.after)
    if scenario.name == "expire, archived":
        assert archived_offsets(scenario) == list(range(10))


@pytest.mark.timeout(0)
def test_a_process_that_gets_sigkill_leaves_what_was_recorded(scenario: CrashScenario):
    """Compare a killed process with the recorded image, for commands whose file names are the same in every run."""
    named_by_the_run = ("compact", "erase", "reencode", "restore", "vacuum")
    keeps_files = any(name.startswith(f"{LOGS}-originals/") for name in scenario.after)
    if scenario.command in named_by_the_run or scenario.name.endswith(("archived", "kept")) or keeps_files:
        pytest.skip("its files are named by the run")
    killed = [image for image in recorded(scenario).images if image.crash == "SIGKILL"]
    fork = multiprocessing.get_context("fork")
    for image in sample(killed, 2):
        scenario.restore(scenario.before)

        def run(number: int = image.number) -> None:
            with FsTrace(scenario.root, kill_after=number):
                scenario.run()

        process = fork.Process(target=run)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert contents(read_tree(scenario.root)) == contents(image.tree), str(image)
