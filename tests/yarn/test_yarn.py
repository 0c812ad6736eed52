"""The bundle on a real YARN, in both deploy modes: results, exit statuses, lost executors, slots and memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.corpus import CleaningCase, assert_same_log, load_case
from tests.jobs.log_dirs import make_log_dir, topic_sets, tree
from tests.waiting import wait_until
from tests.yarn.cluster import (
    CORES,
    EXECUTORS,
    LIMIT_SECONDS,
    OVERHEAD_MIB,
    Submitted,
    Yarn,
    running_yarn,
)

pytestmark = [pytest.mark.yarn, pytest.mark.timeout(4 * LIMIT_SECONDS)]

CASES = ("plain", "mixed-codecs", "transactions", "everything")
MODES = ("client", "cluster")
COPIES = 80  # of each partition: a task for each slot is worth its cost
NOW = "--now-ms=1700001000000"
ATTEMPTS = 5  # how often a test tries to meet a run in its middle
MOST_IN_FLIGHT = 16  # jobs that a pool has at Spark at a time on a small cluster
TASK_FAILURES = 4  # spark.task.maxFailures


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[CleaningCase]:
    scratch = tmp_path_factory.mktemp("corpus")
    return [load_case(name, scratch) for name in CASES]


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with running_yarn(tmp_path_factory.mktemp("yarn") / "home") as cluster:
        yield cluster


def topic(case: CleaningCase) -> str:
    return case.partition.rpartition("-")[0]


def make_partitions(path: Path, cases: Iterable[CleaningCase]) -> tuple[Path, list[str]]:
    """Return a log directory with copies of every case, and the options of its topics."""
    log_dir = make_log_dir(path, {f"{topic(case)}-{n}": case.before for case in cases for n in range(COPIES)})
    return log_dir, [option for case in cases for option in topic_sets(topic(case), case.configs)]


def assert_compacted(done: Submitted, log_dir: Path, cases: Iterable[CleaningCase]) -> None:
    assert done.status == 0, done.output()
    assert statuses(done) == {"compacted"}
    for case in cases:
        copies = sorted(log_dir.glob(f"{topic(case)}-*"))
        assert len(copies) == COPIES
        assert_same_log(copies[0], case.rounds[0].after, case.compressed)
        wanted = tree(copies[0])
        assert [copy.name for copy in copies if tree(copy) != wanted] == []
    assert not list(log_dir.rglob("*.part"))


def statuses(done: Submitted) -> set[str]:
    (report,) = done.reports()
    return {partition["status"] for partition in report["partitions"]}


@dataclass(frozen=True, slots=True)
class Compacted:
    """A log directory after a compaction on YARN, its files before, and what spark-submit said."""

    mode: str
    log_dir: Path
    before: Path
    sets: list[str]
    done: Submitted


@pytest.fixture(scope="module", params=MODES)
def compacted(
    request: pytest.FixtureRequest, yarn: Yarn, cases: list[CleaningCase], tmp_path_factory: pytest.TempPathFactory
) -> Compacted:
    mode: str = request.param
    scratch = tmp_path_factory.mktemp(mode)
    log_dir, sets = make_partitions(scratch / "logs", cases)
    before = scratch / "before"
    arguments = ("compact", log_dir, "--json", "--force", NOW, f"--keep-before={before}", *sets)
    done = yarn.submit(mode, *arguments, is_packed=True)
    return Compacted(mode, log_dir, before, sets, done)


def test_the_compacted_logs_are_kafkas(cases: list[CleaningCase], compacted: Compacted) -> None:
    assert_compacted(compacted.done, compacted.log_dir, cases)


def test_every_slot_of_every_executor_is_used(compacted: Compacted) -> None:
    jobs = compacted.done.of_kind("JobStart")
    cleaning = [job for job in jobs if job["Properties"]["spark.job.description"].startswith("clean ")]
    stages = {stage for job in cleaning for stage in job["Stage IDs"]}
    tasks = [task for task in compacted.done.of_kind("TaskEnd") if task["Stage ID"] in stages]
    assert {task["Task Info"]["Executor ID"] for task in tasks} == {str(n + 1) for n in range(EXECUTORS)}
    # For Spark, a task ends when its driver has taken the result, and the next one may have started.
    assert most_at_once(tasks) >= EXECUTORS * CORES


def most_at_once(tasks: Iterable[dict[str, Any]]) -> int:
    """Return the largest number of tasks that ran at the same time."""
    changes = [(task["Task Info"]["Launch Time"], 1) for task in tasks]
    changes += [(task["Task Info"]["Finish Time"], -1) for task in tasks]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def test_settings_for_one_machine_are_not_set(compacted: Compacted) -> None:
    environment, *_ = compacted.done.of_kind("EnvironmentUpdate")
    settings = dict(environment["Spark Properties"])
    assert (settings["spark.master"], settings["spark.submit.deployMode"]) == ("yarn", compacted.mode)
    assert settings["spark.python.daemon.module"] == "sediment.jobs.spark.worker_daemon"
    assert not {"spark.driver.bindAddress", "spark.python.unix.domain.socket.enabled"} & settings.keys()
    assert "TieredStopAtLevel" not in settings.get("spark.driver.extraJavaOptions", "")


def test_verify_finds_the_compaction_correct(yarn: Yarn, compacted: Compacted) -> None:
    done = yarn.submit(compacted.mode, "verify", compacted.before, compacted.log_dir, "--json", NOW, *compacted.sets)
    assert done.status == 0, done.output()
    assert statuses(done) == {"correct"}


@pytest.mark.parametrize("mode", MODES)
def test_a_wrong_use_has_its_sentence_and_its_exit_status(yarn: Yarn, tmp_path: Path, mode: str) -> None:
    done = yarn.submit(mode, "compact", tmp_path / "missing", "--json")
    assert done.status == (2 if mode == "client" else 1)
    (sentence,) = done.sentences()
    assert str(tmp_path / "missing") in sentence
    assert "Traceback" not in done.output()
    assert len(done.applications) == (mode == "cluster")


def test_executors_that_no_node_can_hold_are_a_wrong_use(yarn: Yarn, cases: list[CleaningCase], tmp_path: Path) -> None:
    log_dir, sets = make_partitions(tmp_path / "logs", cases)
    done = yarn.submit("client", "compact", log_dir, "--force", *sets, more={"spark.executor.memory": "900g"})
    assert done.status == 2
    (sentence,) = done.sentences()
    assert "Spark does not start: Required executor memory" in sentence


def test_a_task_gets_its_memory_from_the_overhead_of_its_executor(
    yarn: Yarn, cases: list[CleaningCase], tmp_path: Path
) -> None:
    log_dir, sets = make_partitions(tmp_path / "logs", cases)
    done = yarn.submit("client", "plan", log_dir, "--json", NOW, *sets)
    assert done.status == 0, done.output()
    (report,) = done.reports()
    reasons = {row["strategy_reason"] for row in report["partitions"] if "one pass" in str(row["strategy_reason"])}
    overhead_bytes = OVERHEAD_MIB << 20
    assert reasons
    for reason in reasons:
        assert f"at most {overhead_bytes // 2 // CORES} bytes" in reason
        assert f"half of the {overhead_bytes} bytes of spark.executor.memoryOverhead" in reason


@pytest.mark.parametrize("mode", MODES)
def test_an_executor_killed_in_the_middle_changes_nothing(
    yarn: Yarn, cases: list[CleaningCase], tmp_path: Path, mode: str
) -> None:
    for attempt in range(ATTEMPTS):
        log_dir, sets = make_partitions(tmp_path / f"logs-{attempt}", cases)
        running = yarn.start(mode, "compact", log_dir, "--json", "--force", NOW, *sets)
        wait_until(
            lambda log_dir=log_dir, running=running: (
                list(log_dir.glob("*/*.part")) or running.process.poll() is not None
            ),
            limit_seconds=LIMIT_SECONDS,
        )
        was_killed = kill_one(yarn.executors())
        done = yarn.finish(running)
        assert_compacted(done, log_dir, cases)
        if was_killed and done.of_kind("ExecutorRemoved"):
            return
    pytest.fail("each run was over before an executor could be killed")


def kill_one(processes: Iterable[psutil.Process]) -> bool:
    for process in processes:
        try:
            process.kill()
            return True
        except psutil.NoSuchProcess:
            continue
    return False


@pytest.mark.parametrize(
    ("mode", "daemon"), [("client", "sediment.jobs.spark.worker_daemon"), ("cluster", "pyspark.daemon")]
)
def test_a_python_without_the_package_ends_the_run_at_once(
    yarn: Yarn, cases: list[CleaningCase], tmp_path: Path, mode: str, daemon: str
) -> None:
    log_dir, sets = make_partitions(tmp_path / "logs", cases)
    before = tree(log_dir)
    more = {
        "spark.pyspark.python": str(yarn.bundle.python.resolve()),
        "spark.pyspark.driver.python": str(yarn.bundle.python),
        "spark.python.daemon.module": daemon,
    }
    done = yarn.submit(mode, "compact", log_dir, "--json", "--force", NOW, *sets, more=more)
    assert done.status == 1
    assert tree(log_dir) == before
    (report,) = done.reports()
    assert len(report["partitions"]) == len(CASES) * COPIES
    assert all("No module named 'sediment'" in row["reason"] for row in report["partitions"])
    failed = [task for task in done.of_kind("TaskEnd") if task["Task End Reason"]["Reason"] != "Success"]
    assert 0 < len(failed) <= TASK_FAILURES * MOST_IN_FLIGHT
    print(f"{mode}, {daemon}: {done.seconds:.0f} s, {len(failed)} failed tasks")
