"""A job writes the same bytes on every kind of cluster, even if its tasks are lost or repeated."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

from sediment.compaction.config import CompactionConfig
from sediment.engine.directory.lock import place_run_token
from sediment.jobs.cleaning.options import CleaningTask, CompactOptions
from sediment.jobs.cleaning.task import clean_partition
from sediment.jobs.spark.session import QUICK_JVM
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from tests.corpus import assert_same_log, load_case
from tests.jobs.log_dirs import Outcome, make_log_dir, topic_sets, tree
from tests.jobs.spark.event_logs import Event, figures_of_stages, figures_of_tasks, of_kind, read_events
from tests.jobs.spark.event_logs import settings as event_log_settings
from tests.waiting import LIMIT_SECONDS, wait_until

CASES = ("plain", "mixed-codecs", "transactions", "everything")
ATTEMPTS = 5  # how often a test tries to meet a run in its middle
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("corpus")
    return {name: load_case(name, scratch) for name in CASES}


def settings(cases):
    return [option for case in cases.values() for option in topic_sets(case.partition.rpartition("-")[0], case.configs)]


def fresh_log_dir(path: Path, cases, copies: int = 1) -> Path:
    names = {
        f"{case.partition.rpartition('-')[0]}-{number}": case.before
        for case in cases.values()
        for number in range(copies)
    }
    return make_log_dir(path, names)


def start(log_dir: Path, cases, master: str, *options: str, **conf: str) -> subprocess.Popen[str]:
    """`sediment compact` on `master`, with Spark settings from a spark-defaults.conf as a user would have them.

    Every JVM lives for seconds only, so none optimises.
    """
    folder = log_dir.with_name(log_dir.name + "-conf")
    folder.mkdir()
    given = {"spark.executor.extraJavaOptions": QUICK_JVM} | {key.replace("_", "."): conf[key] for key in conf}
    if master.startswith("spark:"):
        given["spark.driver.extraJavaOptions"] = QUICK_JVM
    lines = [f"{key} {value}" for key, value in given.items()]
    (folder / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "sediment.jobs.cli", "compact", str(log_dir), "--json", "--force", "--quiet"),
            *("--now-ms=1700001000000", f"--master={master}", *options, *settings(cases)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SPARK_CONF_DIR": str(folder), "PYSPARK_PYTHON": sys.executable},
    )


def finish(process: subprocess.Popen[str]) -> Outcome:
    try:
        stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
    return Outcome(process.returncode, stdout, stderr)


@pytest.fixture(scope="module")
def expected(cases, tmp_path_factory):
    """Return the result of local[2] on the partitions, compared with Kafka's."""
    log_dir = fresh_log_dir(tmp_path_factory.mktemp("local") / "logs", cases)
    outcome = finish(start(log_dir, cases, "local[2]"))
    assert outcome.status == 0, outcome.stderr
    for case in cases.values():
        assert_same_log(log_dir / case.partition, case.rounds[0].after, case.compressed)
    return {case.name: tree(log_dir / case.partition) for case in cases.values()}


def assert_all_as_expected(outcome: Outcome, log_dir: Path, cases, expected) -> None:
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    assert {partition["status"] for partition in outcome.report["partitions"]} == {"compacted"}
    for directory in sorted(path for path in log_dir.iterdir() if path.is_dir()):
        topic = directory.name.rpartition("-")[0]
        (case,) = (case for case in cases.values() if case.partition.rpartition("-")[0] == topic)
        assert tree(directory) == expected[case.name], directory.name
    assert not list(log_dir.rglob("*.part"))


@dataclass(frozen=True, slots=True)
class Standalone:
    """A standalone cluster of this test: the URL of its master, and its workers by the address they are on."""

    url: str
    workers: dict[str, subprocess.Popen[bytes]]
    add_worker: Callable[..., None]
    """Start another worker on an address, with a number of cores, and its memory for executors."""


@contextmanager
def standalone(scratch: Path, *hosts: str) -> Iterator[Standalone]:
    """Provide a standalone master and a worker on each of `hosts` (loopback addresses), on free ports."""
    logs = itertools.count()

    with ExitStack() as stack:

        def launch(kind: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
            path = scratch / f"process-{next(logs)}.log"
            log = stack.enter_context(path.open("w"))
            process = subprocess.Popen(
                [str(SPARK_CLASS), f"org.apache.spark.deploy.{kind}", "--port", "0", "--webui-port", "0", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
                    "SPARK_LAUNCHER_OPTS": QUICK_JVM,
                },
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process, path

        master, log = launch("master.Master", "--host", "127.0.0.1")
        wait_until(lambda: "I have been elected leader" in log.read_text() or master.poll() is not None)
        found = re.search(r"spark://127\.0\.0\.1:\d+", log.read_text())
        assert found is not None, log.read_text()
        url, workers = found[0], {}

        def add_worker(host: str, cores: int, memory: str = "2g") -> None:
            resources = ("--cores", str(cores), "--memory", memory, "--work-dir", str(scratch))
            workers[host], _ = launch("worker.Worker", "--host", host, *resources, url)

        for host in hosts:
            add_worker(host, 1)
        yield Standalone(url, workers, add_worker)


def is_under_way(log_dir: Path, process: subprocess.Popen[str]) -> bool:
    """Something is being cleaned, or the run is over."""
    return bool(list(log_dir.glob("*/*.part"))) or process.poll() is not None


def test_a_local_cluster_gives_the_same_bytes(cases, expected, tmp_path):
    log_dir = fresh_log_dir(tmp_path / "logs", cases)
    assert_all_as_expected(finish(start(log_dir, cases, "local-cluster[2,1,2048]")), log_dir, cases, expected)


def test_a_standalone_master_with_two_workers_gives_the_same_bytes(cases, expected, tmp_path):
    log_dir, log = fresh_log_dir(tmp_path / "logs", cases), tmp_path / "events"
    log.mkdir()
    with standalone(tmp_path, "127.0.0.1", "127.0.0.2") as cluster:
        conf = {"spark_executor_memory": "512m"} | event_log_settings(log)
        outcome = finish(start(log_dir, cases, cluster.url, **conf))
    assert_all_as_expected(outcome, log_dir, cases, expected)
    assert_the_event_log_tells(read_events(log), outcome)


def assert_the_event_log_tells(events: list[Event], outcome: Outcome) -> None:
    """It tells what the report of a run tells: its partitions and its figures, by task, and by stage."""
    partitions = outcome.report["partitions"]
    figures = figures_of_tasks(events)
    read, kept = (sum(each[name] for each in partitions) for name in ("messages_read", "messages_written"))
    assert (figures["records read"], figures["records kept"]) == (read, kept)
    assert figures["records dropped"] == read - kept > 0
    assert figures["bytes read"] > figures["bytes written"] > 0
    assert figures_of_stages(events) == figures
    metrics = [event["Task Metrics"] for event in of_kind(events, "TaskEnd")]
    assert sum(each["Input Metrics"]["Bytes Read"] for each in metrics) == figures["bytes read"]
    assert sum(each["Input Metrics"]["Records Read"] for each in metrics) == read
    assert sum(each["Output Metrics"]["Bytes Written"] for each in metrics) == figures["bytes written"]
    assert sum(each["Output Metrics"]["Records Written"] for each in metrics) == kept
    jobs = [event["Properties"] for event in of_kind(events, "JobStart")]
    tags = {tag for job in jobs for tag in job["spark.job.tags"].split(",")}
    assert tags == {outcome.report["run_id"], *(each["partition"] for each in partitions)}
    details = [event["Stage Info"]["Details"] for event in of_kind(events, "StageSubmitted")]
    assert {each["partition"] for each in partitions} <= {line for each in details for line in each.splitlines()}


def shell_environment(**more: str) -> dict[str, str]:
    """Return the environment of a shell: without what a SparkContext of this process has put there."""
    return {name: value for name, value in os.environ.items() if "SPARK" not in name} | more


def test_spark_submit_takes_the_same_arguments(cases, expected, tmp_path):
    log_dir = fresh_log_dir(tmp_path / "logs", cases)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    script = Path(__file__).parents[3] / "jobs" / "compact.py"
    process = subprocess.Popen(
        [
            *(str(submit), "--master", "local[2]", "--driver-java-options", QUICK_JVM),
            *(str(script), str(log_dir), "--json", "--force", "--now-ms=1700001000000"),
            *settings(cases),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=shell_environment(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable),
    )
    assert_all_as_expected(finish(process), log_dir, cases, expected)


def executors_below(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    found = []
    with suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if any("CoarseGrainedExecutorBackend" in argument for argument in child.cmdline()):
                    found.append(child)
    return found


@pytest.mark.parametrize(("strategy", "copies"), [("whole", 40), ("split", 2)])
def test_an_executor_lost_in_the_middle_changes_nothing(cases, expected, tmp_path, strategy, copies):
    for attempt in range(ATTEMPTS):
        log_dir = fresh_log_dir(tmp_path / f"logs-{attempt}", cases, copies)
        process = start(log_dir, cases, "local-cluster[2,1,2048]", f"--strategy={strategy}")
        wait_until(lambda log_dir=log_dir, process=process: is_under_way(log_dir, process))
        executors = executors_below(process)
        was_killed = False
        with suppress(psutil.Error):
            for executor in executors[:1]:
                executor.kill()
                was_killed = True
        assert_all_as_expected(finish(process), log_dir, cases, expected)
        if was_killed:
            return
    pytest.fail("each run was over before an executor could be killed")


def test_a_speculated_task_changes_nothing(cases, expected, tmp_path):
    for attempt in range(ATTEMPTS):
        scratch = tmp_path / str(attempt)
        scratch.mkdir()
        if was_speculated(cases, expected, scratch):
            return
    pytest.fail("each run was over before a task could be slowed down")


def was_speculated(cases, expected, scratch: Path) -> bool:
    """Freeze what an executor is at, so that it is done again elsewhere; False where the run was over before."""
    log_dir = fresh_log_dir(scratch / "logs", cases, copies=10)
    with standalone(scratch, "127.0.0.1", "127.0.0.2") as cluster:
        process = start(
            log_dir,
            cases,
            cluster.url,
            spark_executor_memory="512m",
            spark_speculation="true",
            spark_speculation_interval="100ms",
            spark_speculation_task_duration_threshold="1s",
        )
        wait_until(lambda: is_under_way(log_dir, process))
        frozen = []
        for executor in executors_below(cluster.workers["127.0.0.2"]):
            with suppress(psutil.Error):
                for child in executor.children(recursive=True):
                    child.suspend()
                    frozen.append(child)
        try:
            outcome = finish(process)
        finally:
            for child in frozen:
                with suppress(psutil.Error):
                    child.resume()
    assert_all_as_expected(outcome, log_dir, cases, expected)
    return bool(frozen)


def test_two_disks_under_one_path_are_distinguished(cases, tmp_path):
    case = cases["plain"]
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": case.before})
    place_run_token(log_dir, "run")
    listing = list_log(TopicPartition("plain", 0), log_dir / "plain-0", Fs())
    task = CleaningTask(
        listing=listing,
        checkpoints=PartitionCheckpoints(),
        config=CompactionConfig(cleanup_policy=("compact",)),
        options=CompactOptions(force=True, dry_run=False, from_start=False),
        now_ms=1,
        run_id="run",
    )
    # What another host has mounted under the same path: the same partition to the byte, but not the driver's disk.
    log_dir.rename(tmp_path / "drivers-disk")
    make_log_dir(log_dir, {"plain-0": case.before})
    before = tree(log_dir)
    result = clean_partition(task, "0")
    assert (result.failed, result.reason_code) == (True, "source-changed")
    assert "another disk" in str(result.reason)
    assert tree(log_dir) == before
    place_run_token(log_dir, "run")
    assert clean_partition(task, "0").swap is not None
