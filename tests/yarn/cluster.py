"""YARN on this machine, from Hadoop's mini cluster, and spark-submit with the bundle on it.

The resource manager and the nodes are one process; every container is a process of its own.  The cluster's default
filesystem is that of this machine, so that every container sees the log directories.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyspark

from sediment.jobs.spark.session import QUICK_JVM
from tests.bundle.unpacked import BUNDLE, Unpacked, unpack_bundle
from tests.conformance.oracle import hadoop_jars, program, yarn_jars
from tests.project.distributions import bare_environment
from tests.waiting import wait_until

NODES, EXECUTORS, CORES = 1, 2, 2
OVERHEAD_MIB = 512
PACKED_PYTHON = "./environment/bin/python"  # in a container
NO_SETTINGS: Mapping[str, str] = {}

_SPARK_HOME = Path(pyspark.__file__).parent
_SOURCE = Path(__file__).parent / "java" / "YarnCluster.java"
_OF_REPOSITORY = Path(__file__).parents[2] / "conf" / "spark-defaults.conf"
_ONE_MACHINE = "# These shorten the start on one machine"
_LOGGING = ("slf4j-api-2*.jar", "log4j-slf4j2-impl-*.jar", "log4j-1.2-api-*.jar", "log4j-api-*.jar", "log4j-core-*.jar")
LIMIT_SECONDS = 1800
_STOP_SECONDS = 60

# Every JVM lives for seconds only.  The tests look at the driver's own options, which are therefore not set.
_SIZES = {
    "spark.executor.instances": str(EXECUTORS),
    "spark.executor.cores": str(CORES),
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": f"{OVERHEAD_MIB}m",
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.driver.memory": "512m",
    "spark.yarn.am.memory": "512m",
    "spark.yarn.am.extraJavaOptions": QUICK_JVM,
    # On a busy machine, a driver needs longer than Spark's 100 seconds to start, and an executor longer than 30.
    "spark.yarn.am.waitTime": "600s",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
    "spark.yarn.jars": f"local:{_SPARK_HOME}/jars/*",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}


def defaults_for_a_cluster() -> str:
    """Return conf/spark-defaults.conf without what it says to leave out on a cluster."""
    kept, found, _ = _OF_REPOSITORY.read_text().partition(_ONE_MACHINE)
    assert found
    return kept


@dataclass(frozen=True, slots=True)
class Submitted:
    """What became of a spark-submit; `logs` is what its containers printed, by the name of the stream."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    applications: tuple[str, ...]
    logs: dict[str, str]
    events: tuple[dict[str, Any], ...]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["Event"] == f"SparkListener{kind}"]

    def output(self) -> str:
        """Return what the driver printed, wherever it ran; Spark joins its stderr and its stdout."""
        return "\n".join((self.stdout, self.stderr, *self.logs.values()))

    def sentences(self) -> list[str]:
        return [line for line in self.output().splitlines() if line.startswith("sediment: ")]

    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output().splitlines() if line.startswith("{")]


@dataclass(frozen=True, slots=True)
class Yarn:
    """A running cluster, and the bundle unpacked for a driver in client mode."""

    home: Path
    process: subprocess.Popen[bytes]
    bundle: Unpacked
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def submit(
        self, mode: str, *arguments: object, more: Mapping[str, str] = NO_SETTINGS, is_packed: bool = False
    ) -> Submitted:
        """Run `sediment ARGUMENTS` as docs/operate/cluster.md says, with `more` of Spark's settings.

        If `is_packed`, the containers unpack the bundle.  Otherwise they use the one of the driver in client mode,
        because YARN needs minutes of CPU time for the archive of each run: it starts a process for each file.
        """
        return self.finish(self.start(mode, *arguments, more=more, is_packed=is_packed))

    def start(
        self, mode: str, *arguments: object, more: Mapping[str, str] = NO_SETTINGS, is_packed: bool = False
    ) -> Running:
        events = self.home / f"events-{next(self._numbers)}"
        events.mkdir()
        settings = {"spark.eventLog.dir": events.as_uri()}
        variables = {}
        python = PACKED_PYTHON if is_packed else str(self.bundle.python)
        if mode == "client":
            variables = {"PYSPARK_DRIVER_PYTHON": str(self.bundle.python), "PYSPARK_PYTHON": python}
        else:
            settings["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] = python
            settings["spark.executorEnv.PYSPARK_PYTHON"] = python
            settings["spark.yarn.maxAppAttempts"] = "1"
        settings |= more
        before = self._applications()
        process = subprocess.Popen(
            [
                *(_SPARK_HOME / "bin" / "spark-submit", "--master", "yarn", "--deploy-mode", mode),
                *(("--archives", f"{BUNDLE.as_uri()}#environment") if is_packed else ()),
                *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
                *(self.bundle.script, *map(str, arguments)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.home,
            env=bare_environment(
                self.home,
                SPARK_HOME=str(_SPARK_HOME),
                SPARK_CONF_DIR=str(self.home / "spark"),
                SPARK_SUBMIT_OPTS=QUICK_JVM,
                HADOOP_CONF_DIR=str(self.home / "hadoop"),
                **variables,
            ),
        )
        return Running(process, events, before, time.monotonic())

    def finish(self, running: Running) -> Submitted:
        try:
            stdout, stderr = running.process.communicate(timeout=LIMIT_SECONDS)
        finally:
            running.process.kill()
        new = self._applications() - running.before
        files = [path for path in running.events.rglob("*") if path.is_file() and "appstatus" not in path.name]
        return Submitted(
            status=running.process.returncode,
            stdout=stdout,
            stderr=stderr,
            seconds=time.monotonic() - running.started,
            applications=tuple(sorted(new)),
            logs={stream: self._printed(new, stream) for stream in ("stdout", "stderr")},
            events=tuple(json.loads(line) for path in sorted(files) for line in path.read_text().splitlines()),
        )

    def executors(self) -> list[psutil.Process]:
        """Return the executors of all applications, as the nodes have started them."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                command = child.cmdline()
                if command[:1] and command[0].endswith("java") and any("ExecutorBackend" in word for word in command):
                    found.append(child)
        return found

    def _applications(self) -> set[str]:
        return {path.name for path in self.home.glob("target/**/application_*") if "logDir" in str(path)}

    def _printed(self, applications: set[str], stream: str) -> str:
        files = sorted(
            path for name in applications for path in self.home.glob(f"target/**/{name}/container_*/{stream}")
        )
        return "\n".join(path.read_text(errors="replace") for path in files)


@dataclass(frozen=True, slots=True)
class Running:
    """A spark-submit that has not ended; `before` are the applications that were there when it started."""

    process: subprocess.Popen[str]
    events: Path
    before: set[str]
    started: float


@contextmanager
def running_yarn(home: Path) -> Iterator[Yarn]:
    """Yield a cluster in the new folder `home`; its processes end with the block.

    Raises:
        OracleUnavailableError: a JDK or the JARs cannot be had.
    """
    for name in ("classes", "hadoop", "spark", "staging"):
        (home / name).mkdir(parents=True)
    lines = [f"{key} {value}" for key, value in {**_SIZES, "spark.yarn.stagingDir": f"{home}/staging"}.items()]
    (home / "spark" / "spark-defaults.conf").write_text("\n".join([defaults_for_a_cluster(), *lines, ""]))
    jars = [*hadoop_jars().glob("[!s]*.jar"), *yarn_jars().glob("*.jar")]  # Spark brings SLF4J
    jars += [jar for pattern in _LOGGING for jar in (_SPARK_HOME / "jars").glob(pattern)]
    path = os.pathsep.join(map(str, (home / "classes", home / "hadoop", *sorted(jars))))
    subprocess.run([program("javac"), "-cp", path, "-d", home / "classes", _SOURCE], check=True, timeout=LIMIT_SECONDS)
    java = program("java")
    environment = {**bare_environment(home), "JAVA_HOME": str(Path(java).resolve().parents[1])}
    command = [java, "-Xmx512m", *QUICK_JVM.split(), "-cp", path, "YarnCluster", str(home / "hadoop"), str(NODES)]
    log = home / "yarn.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=home, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    try:
        wait_until(lambda: "\nready\n" in f"\n{log.read_text()}" or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield Yarn(home, process, unpack_bundle(home / "environment"))
    finally:
        assert process.stdin is not None
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        process.kill()
        process.wait()
