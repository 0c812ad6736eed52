"""A Kafka 4.2.0 broker and controller in one process (KRaft), on loopback, from the oracle's JARs.

A `KafkaNode` owns its data directory and survives its broker: `start`, `stop` (as an operator stops it) and `kill` (-9)
may be called in turn.  Every start has its own log file, because tests read the messages of a start.

Invariant: `start` returns when the broker answers on its port; the test that starts a broker ends it (`running` does).
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from sediment.segment_io.format.checkpoints import format_uuid
from tests.conformance.oracle import kafka_jars, program
from tests.ports import free_port

_START_SECONDS = 120
_STOP_SECONDS = 60
_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1} %m%n
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
"""
_SPARKS_LOGGING = ("slf4j-api-2*.jar", "log4j-slf4j2-impl-*.jar", "log4j-api-*.jar", "log4j-core-*.jar")
_NOT_FROM_KAFKA = ("slf4j-", "log4j-")

# What makes one node small and quick; nothing here says anything about a topic.
_DEFAULTS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "transaction.max.timeout.ms": "3600000",
}

# What every start says, after the cleanest of stops too.
USUAL = (
    "Performing controller activation",
    "The config `log.cleaner.enable` is deprecated",
    # A slow machine: the node registers before its controller is active, and tries again.
    "Unexpected error handling request RequestHeader(apiKey=CONTROLLER_REGISTRATION",
    "Exceptionally slow controller event",
)
# A slow machine: the controller fenced the node before its coordinator had loaded a partition.
STOPPED_LOAD = re.compile(r"Failed to load metadata from (\S+) with epoch (\d+) due to Stopped loading records")
LOADED = re.compile(r"Finished loading of metadata from (\S+) with epoch (\d+)")
# No recovery point of the metadata log is ever written, so each of its segments is recovered; a broker rolls it after a
# week.
RECOVERED_METADATA = re.compile(r"Recovering unflushed segment \d+\. 0 recovered for __cluster_metadata-0\.")
TROUBLE = re.compile(r"corrupt|rebuilding index|unflushed|interrupted|truncat|uncleanable|stray", re.I)


class KafkaNode:
    """One node of a cluster of its own; `properties` are a broker's, over what a small node needs.

    With `joins` it is only a broker, of the cluster whose controller that node is.  With `is_standalone` its quorum is
    dynamic, and it is the only voter.  With `file` it is the node of that properties file, whose directory is not
    formatted.  `data` is its only entry of log.dirs, `log` the file that the
    last start wrote to.

    Raises:
        OracleUnavailableError: Java or the JARs cannot be had.
    """

    def __init__(
        self,
        home: Path,
        properties: Mapping[str, str] | None = None,
        *,
        joins: KafkaNode | None = None,
        is_standalone: bool = False,
        file: Path | None = None,
    ) -> None:
        self._home = home
        self.data = home / "data"
        self.log = home / "no.log"
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        home.mkdir(parents=True, exist_ok=True)
        (home / "log4j2.properties").write_text(_LOGGING)
        self._file = home / "server.properties" if file is None else file
        if file is not None:
            self._properties = dict(line.split("=", 1) for line in file.read_text().splitlines() if line[0] != "#")
            self.data = Path(self._properties["log.dirs"])
            self._port = int(self._properties["advertised.listeners"].rpartition(":")[2])
            return
        self._port = free_port()
        self._properties = {**_DEFAULTS, "log.dirs": str(self.data), **(properties or {})}
        listener = f"PLAINTEXT://127.0.0.1:{self._port}"
        if joins is None:
            controller = f"127.0.0.1:{free_port()}"
            self._cluster_id = format_uuid(uuid.uuid4().bytes)
            self._voters = f"{self._properties['node.id']}@{controller}"
            self._properties |= {"listeners": f"{listener},CONTROLLER://{controller}"}
        else:
            self._cluster_id, self._voters = joins._cluster_id, joins._voters
            self._properties |= {"process.roles": "broker", "listeners": listener}
        if is_standalone:
            self._properties["controller.quorum.bootstrap.servers"] = controller
        else:
            self._properties["controller.quorum.voters"] = self._voters
        self._write_properties()
        more = ["--standalone"] if is_standalone else []
        formatting = ("format", f"--cluster-id={self._cluster_id}", "-c", self.config_file(), *more)
        self.run_tool("kafka.tools.StorageTool", *formatting)

    @property
    def bootstrap(self) -> str:
        """Host and port for clients."""
        return f"127.0.0.1:{self._port}"

    def configure(self, properties: Mapping[str, str]) -> None:
        """Change the broker's own file; holds from the next start on."""
        self._properties |= properties
        self._write_properties()

    def run_tool(self, *arguments: str) -> None:
        """Run a program of Kafka's, its class first, to its end."""
        done = subprocess.run(
            self._java(*arguments), capture_output=True, text=True, timeout=_START_SECONDS, check=False
        )
        if done.returncode:
            raise AssertionError(f"{arguments[0]} failed: {done.stdout + done.stderr}")

    def start(self) -> None:
        """Start the broker and wait until it answers."""
        assert self._process is None
        self._starts += 1
        self.log = self._home / f"broker-{self._starts}.log"
        self._said = self.log.open("wb")
        self._process = subprocess.Popen(
            self._java("kafka.Kafka", self.config_file()), stdout=self._said, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the broker did not start: {self.log.read_text()[-4000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End the broker as an operator does: it closes its logs."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker at once (kill -9)."""
        self._end(signal.SIGKILL)

    def process_id(self) -> int:
        """Return the id of the running broker's process."""
        assert self._process is not None
        return self._process.pid

    def close(self) -> None:
        """End whatever still runs."""
        if self._process is not None:
            self.kill()

    def said(self) -> list[str]:
        """Return the lines of the last start's log."""
        return self.log.read_text(errors="replace").splitlines()

    def _answers(self) -> bool:
        started = any("Kafka Server started" in line for line in self.said())
        if not started:
            return False
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _end(self, number: int) -> None:
        assert self._process is not None and self._said is not None
        self._process.send_signal(number)
        self._process.wait(timeout=_STOP_SECONDS)
        self._said.close()
        self._process = None

    def config_file(self) -> str:
        """Return the broker's server.properties."""
        return str(self._file)

    def _write_properties(self) -> None:
        lines = [f"{key}={value}\n" for key, value in self._properties.items()]
        Path(self.config_file()).write_text("".join(lines))

    def _java(self, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self._home / 'log4j2.properties'}"
        return [program("java"), "-Xmx512m", "-XX:+UseSerialGC", logging, "-cp", class_path(), *arguments]


@contextmanager
def running(node: KafkaNode) -> Iterator[KafkaNode]:
    """`node` started, and stopped at the end if the body has not ended it."""
    try:
        node.start()
        yield node
        if node._process is not None:
            node.stop()
    finally:
        node.close()


def class_path() -> str:
    """Return the class path of Kafka's JARs, with the logging of Spark's: the oracle's has none."""
    pyspark = find_spec("pyspark")
    assert pyspark is not None and pyspark.origin is not None
    sparks = Path(pyspark.origin).parent / "jars"
    logging = [jar for pattern in _SPARKS_LOGGING for jar in sparks.glob(pattern)]
    kafkas = [jar for jar in sorted(kafka_jars().glob("*.jar")) if not jar.name.startswith(_NOT_FROM_KAFKA)]
    return os.pathsep.join(map(str, [*logging, *kafkas]))


def assert_no_trouble(node: KafkaNode) -> None:
    """Assert that the broker logged no errors, repairs or strays since its last start."""
    bad = [
        line
        for line in node.said()
        if (line.startswith(("WARN", "ERROR", "FATAL")) or TROUBLE.search(line))
        and not any(usual in line for usual in USUAL)
        and not RECOVERED_METADATA.search(line)
        and not is_loaded_later(line, node)
    ]
    assert not bad
    assert not list(node.data.glob("*-stray"))


def is_loaded_later(line: str, node: KafkaNode) -> bool:
    """True if the line says that a load was stopped, and another one says that a later epoch was loaded."""
    stopped = STOPPED_LOAD.search(line)
    loads = (LOADED.search(other) for other in node.said())
    return stopped is not None and any(
        load is not None and load[1] == stopped[1] and int(load[2]) > int(stopped[2]) for load in loads
    )
