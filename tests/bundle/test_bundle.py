"""The wheel in an empty environment, and the bundle on a standalone cluster, without the source tree on any path."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

from tests.bundle.unpacked import BUNDLE, Unpacked, unpack_bundle
from tests.corpus import assert_same_log, load_case
from tests.jobs.log_dirs import corpus_log_dir
from tests.ports import free_port
from tests.project.distributions import bare_environment
from tests.waiting import wait_until

pytestmark = [pytest.mark.bundle, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
NOW = "--now-ms=1700001000000"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A standalone master and two workers of a Spark of their own, and the bundle unpacked for the driver."""

    scratch: Path
    url: str
    environment: Mapping[str, str]
    unpacked: Unpacked

    def submit(self, *command: object) -> subprocess.CompletedProcess[str]:
        """As docs/operate/cluster.md says."""
        submit = Path(self.environment["SPARK_HOME"]) / "bin" / "spark-submit"
        settings = ["spark.python.daemon.module=sediment.jobs.spark.worker_daemon", "spark.executor.memory=512m"]
        return subprocess.run(
            [
                *(submit, "--master", self.url, "--archives", f"{BUNDLE}#environment"),
                *(argument for setting in settings for argument in ("--conf", setting)),
                *map(str, command),
            ],
            env={**self.environment, "PYSPARK_PYTHON": "./environment/bin/python"},
            cwd=self.scratch,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )

    def sediment(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self.submit(self.unpacked.script, *arguments)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("cluster")
    unpacked, home = unpack_bundle(scratch / "environment"), scratch / "spark"
    shutil.copytree(Path(pyspark.__file__).parent, home, ignore=shutil.ignore_patterns("__pycache__"))
    environment = bare_environment(scratch, SPARK_HOME=str(home), PYSPARK_DRIVER_PYTHON=str(unpacked.python))
    port = free_port()
    url, deploy = f"spark://127.0.0.1:{port}", "org.apache.spark.deploy"
    commands = [[f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port)]]
    for number in range(2):
        folder = str(scratch / f"worker-{number}")
        options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--work-dir", folder]
        commands.append([f"{deploy}.worker.Worker", *options, url])
    processes = []
    try:
        for number, (main, *options) in enumerate(commands):
            log = scratch / f"process-{number}.log"
            with log.open("w") as sink:
                command = [home / "bin" / "spark-class", main, "--webui-port", str(free_port()), *options]
                processes.append(
                    subprocess.Popen(command, cwd=scratch, stdout=sink, stderr=subprocess.STDOUT, env=environment)
                )
            if number == 0:
                wait_until(lambda log=log: "I have been elected leader" in log.read_text())
        yield Cluster(scratch, url, environment, unpacked)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_executors_use_nothing_but_the_bundle_and_find_its_kernels_compiled(cluster):
    done = cluster.submit(Path(__file__).with_name("probe.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    answers = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[{")))
    assert len(answers) == 2
    for answer in answers:
        for file in answer["files"]:
            assert Path(file).is_relative_to(Path(answer["folder"]) / "environment"), file
        assert answer["pyspark"].startswith(cluster.environment["SPARK_HOME"])
        assert not [entry for entry in answer["path"] if Path(entry).is_relative_to(ROOT)]
        assert answer["cached"] > 0
        assert answer["compiled"] == 0


def test_a_cluster_compacts_and_verifies_with_the_bundle_alone(cluster, tmp_path):
    cases = [load_case(name, tmp_path / "corpus") for name in ("plain", "mixed-codecs", "transactions", "everything")]
    log_dir, sets = corpus_log_dir(tmp_path / "logs", [(case, case.rounds[0]) for case in cases])
    kept = tmp_path / "before"
    done = cluster.sediment("compact", log_dir, "--json", "--force", NOW, f"--keep-before={kept}", *sets)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert {partition["status"] for partition in report["partitions"]} == {"compacted"}
    for case in cases:
        assert_same_log(log_dir / case.partition, case.rounds[0].after, case.compressed)
    done = cluster.sediment("verify", kept, log_dir, "--json", NOW, *sets)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {partition["status"] for partition in json.loads(done.stdout)["partitions"]} == {"correct"}


@dataclass(frozen=True, slots=True)
class EmptyEnvironment:
    """A virtual environment, at first without packages."""

    scratch: Path

    @property
    def path(self) -> Path:
        return self.scratch / "environment"

    def install(self, package: str) -> None:
        arguments = ["install", "--quiet", "-c", ROOT / "constraints.txt", package]
        subprocess.run([self.path / "bin" / "pip", *arguments], check=True, cwd=self.scratch)

    def sediment(self, *arguments: object) -> str:
        done = subprocess.run(
            [self.path / "bin" / "sediment", *map(str, arguments)],
            env=bare_environment(self.scratch),
            cwd=self.scratch,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def environment(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "environment"], check=True)
    return EmptyEnvironment(tmp_path)


@pytest.fixture
def wheel():
    (found,) = DIST.glob("kafka_sediment-*.whl")
    return found


def test_the_wheel_without_extras_runs_the_commands_that_need_no_spark(environment, wheel, tmp_path):
    case = load_case("plain", tmp_path / "corpus")
    log_dir, sets = corpus_log_dir(tmp_path / "logs", [(case, case.rounds[0])])
    environment.install(str(wheel))
    assert "compact" in environment.sediment("--help")
    assert environment.sediment("--version").startswith("sediment")
    records = environment.sediment("dump", log_dir, "--what", "records", "--json", "--limit", 0).splitlines()
    (recovered,) = json.loads(environment.sediment("recover", log_dir, "--json", "--dry-run"))["partitions"]
    assert recovered["log_end_offset"] == json.loads(records[-1])["offset"] + 1
    environment.install("deltalake")
    ledger = tmp_path / "ledger"
    expired = json.loads(environment.sediment("expire", log_dir, "--json", "--dry-run", "--ledger", ledger, NOW, *sets))
    history = json.loads(environment.sediment("history", ledger, "--json"))
    assert [run["run_id"] for run in history["runs"]] == [expired["run_id"]]
    assert not list(environment.path.glob("lib/python3.*/site-packages/pyspark"))


_QUERY = """
import importlib.util, sys
from pyspark.sql import SparkSession

assert importlib.util.find_spec("pandas") is None
spark = SparkSession.builder.master("local[1]").getOrCreate()
frame = spark.read.format("kafka-log").load(sys.argv[1])
print(len(frame.collect()), frame.toArrow().num_rows)
"""


def test_the_wheel_with_spark_compacts_and_queries_in_an_empty_environment_without_pandas(environment, wheel, tmp_path):
    case = load_case("plain", tmp_path / "corpus")
    log_dir, sets = corpus_log_dir(tmp_path / "logs", [(case, case.rounds[0])])
    environment.install(f"{wheel}[spark]")
    report = json.loads(environment.sediment("compact", log_dir, "--json", "--force", NOW, *sets))
    assert report["partitions"][0]["status"] == "compacted"
    assert_same_log(log_dir / case.partition, case.rounds[0].after, case.compressed)
    python = environment.path / "bin" / "python"
    variables = bare_environment(tmp_path, PYSPARK_PYTHON=str(python))
    query = [python, "-c", _QUERY, log_dir]
    rows = subprocess.check_output(query, env=variables, cwd=tmp_path, text=True).split()
    assert rows[0] == rows[1] != "0"
