"""A broker of any release, alone in its cluster, with its ZooKeeper or its own controller, and its own clients.

A `Node` owns a folder with two log directories and ZooKeeper's data.  `copy` gives the same stopped cluster in another
folder: the work of one broker is then the start of several tests.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sediment.segment_io.format.checkpoints import format_uuid
from tests.conformance.oracle import program
from tests.ports import free_port
from tests.versions.looks import Look, parse_look
from tests.versions.releases import Release

LOG_DIRS = ("data-1", "data-2")
_START_SECONDS = 180.0
_STOP_SECONDS = 90.0
_TOOL_SECONDS = 300.0
_STARTED = re.compile(r"Kafka Server started|\] started \(kafka\.server|KafkaServer.* started|\d\], started", re.I)
_KEEPER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_TAKEN = "NodeExists"  # ZooKeeper still has the session of the broker that was killed
_OPENED = ("java.nio", "sun.nio.ch", "java.lang", "java.util", "java.net")
_SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=info")
_ONE_BROKER = (("--entity-name", "1"), ("--entity-default",))
_LOG4J_1 = """\
log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%p %m (%c)%n
"""

# What makes one node small; nothing here says anything about a topic.  The broker neither cleans nor deletes.
_OF_ALL = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "auto.create.topics.enable": "false",
    "log.cleaner.enable": "false",
    "log.retention.check.interval.ms": "86400000",
    "log.index.size.max.bytes": "65536",
    "log.index.interval.bytes": "500",
    "num.network.threads": "2",
    "num.io.threads": "2",
}


class Jvm:
    """A process of a release that runs until it is ended: its main class on a file, in a folder for its output."""

    def __init__(self, home: Path, release: Release, name: str, memory: str, main: str, file: Path) -> None:
        self._home, self._release, self._name = home, release, name
        self._command = java(release, home, memory, main, file)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = home / f"{name}.out"

    @property
    def runs(self) -> bool:
        return self._process is not None

    def start(self, is_up: Callable[[], bool]) -> None:
        """Start it and wait until it is up.

        Raises:
            AssertionError: it ended, or did not come up in time.
        """
        with self._log.open("wb") as said:
            self._process = subprocess.Popen(self._command, stdout=said, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + _START_SECONDS
        while not is_up():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.end(signal.SIGKILL)
                raise AssertionError(f"{self._name} of {self._release} did not start: {self.said()[-6000:]}")
            time.sleep(0.1)

    def said(self) -> str:
        """Return what it logged since its last start."""
        return self._log.read_text(errors="replace")

    def end(self, number: int) -> None:
        """End it with a signal, if it runs."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            self._process.wait(timeout=_STOP_SECONDS)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._process = None


class Node:
    """The broker of a release in the folder `home`; `file` is a server.properties of somebody else's."""

    def __init__(self, home: Path, release: Release, *, file: Path | None = None) -> None:
        self.home, self.release = home, release
        self.port, self.other_port = free_port(), free_port()
        home.mkdir(parents=True, exist_ok=True)
        self.file = home / "server.properties" if file is None else file
        if file is None:
            self._write_files()
        else:
            listener = re.search(r"^advertised\.listeners=.*:(\d+)$", file.read_text(), re.M)
            assert listener is not None
            self.port = int(listener[1])
        self.broker = Jvm(home, release, "broker", "256m", "kafka.Kafka", self.file)
        self.zookeeper = Jvm(home, release, "zookeeper", "64m", _KEEPER, home / "zookeeper.properties")

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log_dirs(self) -> list[Path]:
        return [self.home / name for name in LOG_DIRS]

    def partition(self, name: str) -> Path:
        """Return the directory of a partition, in whichever log directory it is."""
        (found,) = (path for log_dir in self.log_dirs for path in log_dir.glob(name))
        return found

    def format(self) -> None:
        """Format the log directories, as KRaft needs it."""
        cluster = format_uuid(uuid.uuid4().bytes)
        self.tool("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", self.file)

    def copy(self, home: Path) -> Node:
        """Return the same stopped cluster in another folder, on other ports."""
        assert not self.broker.runs
        shutil.copytree(self.home, home, ignore=shutil.ignore_patterns("*.out"))
        return Node(home, self.release)

    # ---------------------------------------------------------------------------------------------- start and stop
    def start(self) -> None:
        """Start the broker, and ZooKeeper before it; return when it answers."""
        self.start_zookeeper()
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.broker.start(lambda: listens(self.port) and _STARTED.search(self.broker.said()) is not None)
            except AssertionError:
                if _TAKEN not in self.broker.said() or time.monotonic() > deadline:
                    raise
                time.sleep(2)
            else:
                return

    def start_zookeeper(self) -> None:
        """Start ZooKeeper, if the cluster has it and it does not run."""
        if self.release.with_zookeeper and not self.zookeeper.runs:
            self.zookeeper.start(lambda: listens(self.other_port))

    def stop(self) -> None:
        """End the broker as an operator does, and ZooKeeper after it."""
        for each in (self.broker, self.zookeeper):
            each.end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker at once (kill -9)."""
        for each in (self.broker, self.zookeeper):
            each.end(signal.SIGKILL)

    # ------------------------------------------------------------------------------------------- tools and clients
    def tool(self, name: str, *arguments: object) -> str:
        """Run a program of the release, its class first; return what it prints."""
        done = subprocess.run(
            java(self.release, self.home, "128m", name, *arguments),
            capture_output=True,
            text=True,
            timeout=_TOOL_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{name} of {self.release}: {done.stdout}{done.stderr}"
        return done.stdout

    def describe_configs(self) -> None:
        """Write down the configs in ZooKeeper while the broker runs, as an operator does."""
        if not self.release.with_zookeeper:
            return
        topics, brokers = self.home / "topic-configs.txt", self.home / "broker-configs.txt"
        describe = ("kafka.admin.ConfigCommand", "--describe", "--entity-type")
        topics.write_text(self.tool(*describe, "topics", *self._whom("topics")))
        if not self.release.has_dynamic_broker_configs:
            brokers.write_text("{}")
        elif self.release.tools_ask_brokers:
            brokers.write_text(self.tool(*describe, "brokers", *self._whom("brokers")))
        else:
            whom = self._whom("brokers")
            both = (self.tool(*describe, "brokers", *whom, *which) for which in _ONE_BROKER)
            brokers.write_text("".join(both))

    def config_options(self) -> list[object]:
        """Return the options of Sediment that name the files of `describe_configs`."""
        if not self.release.with_zookeeper:
            return []
        topics, brokers = self.home / "topic-configs.txt", self.home / "broker-configs.txt"
        return ["--topic-configs", topics, "--broker-configs", brokers]

    def _whom(self, kind: str) -> tuple[str, str]:
        if kind == "topics" and not self.release.tools_ask_brokers:
            return "--zookeeper", f"127.0.0.1:{self.other_port}"
        return "--bootstrap-server", self.bootstrap

    def client(self, *arguments: object, bootstrap: str | None = None, main: str = "VersionClient") -> list[str]:
        """Run clients of the release, of this broker or of another server; return the lines that they print."""
        server = self.bootstrap if bootstrap is None else bootstrap
        done = subprocess.run(
            [*java(self.release, self.home, "128m", main, server), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=_TOOL_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"clients of {self.release}: {(done.stdout + done.stderr)[-4000:]}"
        return done.stdout.splitlines()

    def look(self, topics: Sequence[str], groups: Sequence[str], *, bootstrap: str | None = None) -> Look:
        """Return all that consumers tell of the topics and groups."""
        return parse_look(self.client("read", ",".join(topics), ",".join(groups), bootstrap=bootstrap))

    # ------------------------------------------------------------------------------------------------------- files
    def _write_files(self) -> None:
        listener = f"PLAINTEXT://127.0.0.1:{self.port}"
        keeper = f"127.0.0.1:{self.other_port}"
        properties = {**_OF_ALL, "log.dirs": ",".join(map(str, self.log_dirs))}
        if self.release.with_zookeeper:
            properties |= {"broker.id": "1", "listeners": listener, "zookeeper.connect": keeper}
            properties["zookeeper.session.timeout.ms"] = "6000"
            lines = (f"dataDir={self.home / 'zookeeper'}", f"clientPort={self.other_port}")
            more = (
                "clientPortAddress=127.0.0.1",
                "admin.enableServer=false",
                "tickTime=1000",
                "4lw.commands.whitelist=*",
            )
            (self.home / "zookeeper.properties").write_text("\n".join((*lines, *more, "")))
        else:
            properties |= {
                "process.roles": "broker,controller",
                "node.id": "1",
                "listeners": f"{listener},CONTROLLER://{keeper}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": f"1@{keeper}",
            }
        self.file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


def java(release: Release, home: Path, memory: str, *arguments: object) -> list[str]:
    """Return the command of a program of the release: its class and its arguments."""
    (home / "log4j.properties").write_text(_LOG4J_1)
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    logging = f"-Dlog4j.configuration=file:{home / 'log4j.properties'}"
    options = [f"-Xmx{memory}", *_SMALL, logging, *opened]
    return [program("java"), *options, "-cp", release.class_path(), *map(str, arguments)]


@contextmanager
def running(node: Node) -> Iterator[Node]:
    """`node` started, and stopped at the end if the body has not ended it."""
    try:
        node.start()
        yield node
        node.stop()
    finally:
        node.kill()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
