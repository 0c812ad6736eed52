"""The same job gives the same bytes wherever its tasks run, and whatever happens to them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pyspark
import pytest

from sediment.compaction.config import CompactionConfig
from sediment.engine.lock import place_run_token
from sediment.jobs.cleaning import CleaningTask, CompactOptions, clean_partition
from sediment.segment_io.fs import Fs
from sediment.segment_io.listing import list_log
from sediment.segment_io.log_dir import PartitionCheckpoints
from sediment.segment_io.names import TopicPartition
from tests.corpus import assert_same_log, load_case
from tests.jobs.log_dirs import Outcome, make_log_dir, topic_sets, tree

CASES = ("plain", "mixed-codecs", "transactions", "everything")
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
    """`sediment compact` on `master`, with Spark settings from a spark-defaults.conf as a user would have them."""
    folder = log_dir.with_name(log_dir.name + "-conf")
    folder.mkdir()
    lines = [f"{key.replace('_', '.')} {value}" for key, value in conf.items()]
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
    stdout, stderr = process.communicate(timeout=240)
    return Outcome(process.returncode, stdout, stderr)


@pytest.fixture(scope="module")
def expected(cases, tmp_path_factory):
    """What local[2] makes of the partitions, checked against Kafka's result."""
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def standalone(scratch: Path, hosts: tuple[str, ...]) -> Iterator[str]:
    """A standalone master and a worker on each of `hosts`, which are loopback addresses."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    commands = [[f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port)]]
    commands += [
        [f"{deploy}.worker.Worker", "--host", host, "--cores", "1", "--memory", "1g", "--work-dir", str(scratch), url]
        for host in hosts
    ]
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            log = (scratch / f"process-{number}.log").open("w")
            stack.callback(log.close)
            process = subprocess.Popen(
                [str(SPARK_CLASS), *command[:1], "--webui-port", str(free_port()), *command[1:]],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            if number == 0:
                wait_for(lambda: "I have been elected leader" in (scratch / "process-0.log").read_text())
        yield url


def wait_for(holds: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_a_local_cluster_gives_the_same_bytes(cases, expected, tmp_path):
    log_dir = fresh_log_dir(tmp_path / "logs", cases)
    assert_all_as_expected(finish(start(log_dir, cases, "local-cluster[2,1,2048]")), log_dir, cases, expected)


def test_a_standalone_master_with_two_workers_gives_the_same_bytes(cases, expected, tmp_path):
    log_dir = fresh_log_dir(tmp_path / "logs", cases)
    with standalone(tmp_path, ("127.0.0.1", "127.0.0.1")) as master:
        outcome = finish(start(log_dir, cases, master, spark_executor_memory="512m"))
    assert_all_as_expected(outcome, log_dir, cases, expected)


def shell_environment(**more: str) -> dict[str, str]:
    """The environment of a shell: without what a SparkContext of this process has put there."""
    return {name: value for name, value in os.environ.items() if "SPARK" not in name} | more


def test_spark_submit_takes_the_same_arguments(cases, expected, tmp_path):
    log_dir = fresh_log_dir(tmp_path / "logs", cases)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    script = Path(__file__).parents[2] / "jobs" / "compact.py"
    process = subprocess.Popen(
        [
            *(str(submit), "--master", "local[2]", str(script), str(log_dir), "--json", "--force"),
            *("--now-ms=1700001000000", *settings(cases)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=shell_environment(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable),
    )
    assert_all_as_expected(finish(process), log_dir, cases, expected)


def descendants(process: subprocess.Popen[str], word: str) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if any(word in argument for argument in child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize(("strategy", "copies"), [("whole", 40), ("split", 2)])
def test_an_executor_lost_in_the_middle_changes_nothing(cases, expected, tmp_path, strategy, copies):
    log_dir = fresh_log_dir(tmp_path / "logs", cases, copies)
    process = start(log_dir, cases, "local-cluster[2,1,2048]", f"--strategy={strategy}")
    wait_for(lambda: bool(list(log_dir.glob("*/*.part"))) or process.poll() is not None, 120)
    executors = descendants(process, "CoarseGrainedExecutorBackend")
    assert executors, "the run was over before an executor could be killed"
    executors[0].send_signal(signal.SIGKILL)
    assert_all_as_expected(finish(process), log_dir, cases, expected)


def test_a_speculated_task_changes_nothing(cases, expected, tmp_path):
    log_dir = fresh_log_dir(tmp_path / "logs", cases, copies=10)
    with standalone(tmp_path, ("127.0.0.1", "127.0.0.2")) as master:
        process = start(
            log_dir,
            cases,
            master,
            spark_executor_memory="512m",
            spark_speculation="true",
            spark_speculation_interval="100ms",
            spark_speculation_task_duration_threshold="1s",
        )
        stopped = threading.Event()

        def stop_one_executor() -> None:
            """Freeze everything of one executor, which makes the tasks it has slow enough to be run again elsewhere."""
            wait_for(lambda: bool(list(log_dir.glob("*/*.part"))) or process.poll() is not None, 120)
            for candidate in psutil.process_iter(["cmdline"]):
                arguments = candidate.info["cmdline"] or []
                if "CoarseGrainedExecutorBackend" in " ".join(arguments) and "127.0.0.2" in arguments:
                    frozen = candidate.children(recursive=True)
                    for child in frozen:
                        child.suspend()
                    stopped.set()
                    process.wait(timeout=200)
                    for child in frozen:
                        if child.is_running():
                            child.resume()
                    return

        thread = threading.Thread(target=stop_one_executor)
        thread.start()
        outcome = finish(process)
        thread.join()
    assert stopped.is_set(), "the run was over before a task could be slowed down"
    assert_all_as_expected(outcome, log_dir, cases, expected)


def test_two_disks_under_one_path_are_told_apart(cases, tmp_path):
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
