"""A cluster that is killed and compacted in the middle of its migration from ZooKeeper to KRaft, and then ends it."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.log_dirs import sediment
from tests.ports import free_port
from tests.support_tables import FAILED, PASSED
from tests.versions.looks import Look, assert_same_latest
from tests.versions.node import Jvm, Node, listens, running
from tests.versions.outcomes import HAS_PASSED, note_migration
from tests.versions.releases import Release
from tests.versions.workload import GROUPS, create_topics, topics_of, write

pytestmark = [pytest.mark.versions, pytest.mark.timeout(1800)]

BRIDGE, MIGRATED = Release("3.9.2", with_zookeeper=True), Release("3.9.2")
CONTROLLER_ID = 3000
COMPLETED = "Completed migration of metadata from ZooKeeper to KRaft"
_LIMIT_SECONDS = 180


class Migration:
    """A broker of ZooKeeper, and the controller that takes over its metadata."""

    def __init__(self, home: Path) -> None:
        self.broker = Node(home / "broker", BRIDGE)
        self._home = home / "controller"
        self._home.mkdir(parents=True)
        self._port = free_port()
        self._file = self._home / "controller.properties"
        self._keeps_zookeeper = True
        self.metadata = self._home / "data"
        self.controller = Jvm(self._home, BRIDGE, "controller", "192m", "kafka.Kafka", self._file)
        self._quorum = {
            "controller.quorum.voters": f"{CONTROLLER_ID}@127.0.0.1:{self._port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }

    def begin(self) -> None:
        """Start ZooKeeper, the controller and the broker, and wait until the metadata is in both places."""
        keeper = f"127.0.0.1:{self.broker.other_port}"
        migrating = {**self._quorum, "zookeeper.metadata.migration.enable": "true", "zookeeper.connect": keeper}
        own = {
            "process.roles": "controller",
            "node.id": str(CONTROLLER_ID),
            "listeners": f"CONTROLLER://127.0.0.1:{self._port}",
            "log.dirs": str(self.metadata),
        }
        _add(self._file, {**own, **migrating})
        _add(self.broker.file, {**migrating, "inter.broker.protocol.version": "3.9"})
        meta = (self.broker.log_dirs[0] / "meta.properties").read_text().splitlines()
        (cluster,) = (line.removeprefix("cluster.id=") for line in meta if line.startswith("cluster.id="))
        self.broker.tool("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", self._file)
        self.go_on()
        deadline = time.monotonic() + _LIMIT_SECONDS
        while COMPLETED not in self.controller.said():
            assert time.monotonic() < deadline, self.controller.said()[-4000:]
            time.sleep(0.5)

    def go_on(self) -> None:
        """Start what is not running."""
        if self._keeps_zookeeper:
            self.broker.zookeeper.start(lambda: listens(self.broker.other_port))
        self.controller.start(lambda: listens(self._port))
        self.broker.start()

    def take_the_broker_over(self) -> None:
        """Make the stopped broker one of KRaft; the controller is still in the middle of the migration."""
        _remove(self.broker.file, "zookeeper.", "broker.id=", "inter.broker.protocol.version=")
        _add(self.broker.file, {"process.roles": "broker", "node.id": "1"})
        self.broker.release = MIGRATED

    def finish(self) -> None:
        """End the migration of the stopped cluster: from now on it has no ZooKeeper."""
        _remove(self._file, "zookeeper.")
        self._keeps_zookeeper = False

    def stop(self) -> None:
        """Stop the broker, then the controller and ZooKeeper."""
        self.broker.broker.end(signal.SIGTERM)
        self.controller.end(signal.SIGTERM)
        self.broker.stop()

    def kill(self) -> None:
        """End whatever still runs."""
        self.controller.end(signal.SIGKILL)
        self.broker.kill()


def _remove(file: Path, *prefixes: str) -> None:
    kept = [line for line in file.read_text().splitlines() if not line.startswith(prefixes)]
    file.write_text("".join(f"{line}\n" for line in kept))


def _add(file: Path, properties: dict[str, str]) -> None:
    with file.open("a") as appended:
        appended.writelines(f"{key}={value}\n" for key, value in properties.items())


@pytest.fixture
def _noted(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    note_migration(BRIDGE, PASSED if request.node.stash.get(HAS_PASSED, False) else FAILED)


@pytest.mark.usefixtures("_noted")
def test_a_cluster_that_was_killed_in_its_migration_is_compacted_and_ends_it(tmp_path: Path) -> None:
    migration = Migration(tmp_path)
    node, topics = migration.broker, topics_of(BRIDGE)
    with running(node):
        create_topics(node)
        write(node, 1)
    try:
        # The broker is one of ZooKeeper, and the controller writes the metadata to both.
        migration.begin()
        write(node, 2)
        node.describe_configs()
        before = _look(node)
        migration.kill()
        assert list(node.home.glob("data-*/__cluster_metadata-0"))
        assert (migration.metadata / "__cluster_metadata-0").is_dir()
        wanted = {topic.name for topic in topics if topic.is_compacted}
        assert _compacted(node, tmp_path / "whole-1") >= wanted
        migration.go_on()
        assert_same_latest(before, _look(node))
        write(node, 3)
        migration.stop()

        # The broker is one of KRaft, and the controller still writes to ZooKeeper.
        migration.take_the_broker_over()
        migration.go_on()
        write(node, 4)
        before = _look(node)
        migration.kill()
        assert _compacted(node, tmp_path / "whole-2") >= wanted
        migration.go_on()
        assert_same_latest(before, _look(node))
        migration.stop()

        # Without its file, the broker is known to be one of KRaft once its metadata log has the end of the migration.
        assert _reason(node) == "policy-unknown"
        migration.finish()
        migration.go_on()
        assert_same_latest(before, _look(node))
        write(node, 5)
        migration.stop()
        assert _reason(node) != "policy-unknown"
    finally:
        migration.kill()


def _look(node: Node) -> Look:
    return node.look([topic.name for topic in topics_of(BRIDGE)], GROUPS)


def _compacted(node: Node, whole: Path) -> set[str]:
    """Recover, compact and verify what a broker left; return the topics of the partitions that became smaller."""
    stated = ("--config", node.file, *node.config_options(), "--json")
    _run("recover", *stated)
    for log_dir in node.log_dirs:
        shutil.copytree(log_dir, whole / log_dir.name)
    _run("plan", *stated)
    rows = _run("compact", *stated, "--roll-active")
    for log_dir in node.log_dirs:
        _run("verify", whole / log_dir.name, log_dir, *stated)
    return {
        name.rpartition("-")[0]
        for name, row in rows.items()
        if row["status"] == "compacted" and row["bytes_after"] < row["bytes_before"]
    }


def _reason(node: Node) -> str:
    """Return why a partition would be left alone by a run that is not given the broker's file."""
    return str(_run("plan", *node.log_dirs, "--json")["plain-0"]["reason_code"])


def _run(command: str, *arguments: object) -> dict[str, Any]:
    outcome = sediment(command, *arguments)
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    return outcome.partitions()
