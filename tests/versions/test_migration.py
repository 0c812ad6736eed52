"""A cluster in the middle of its migration from ZooKeeper to KRaft, and the same cluster after it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.jobs.log_dirs import sediment
from tests.ports import free_port
from tests.versions.looks import assert_same_latest
from tests.versions.node import Jvm, Node, listens, running
from tests.versions.releases import Release
from tests.versions.workload import GROUPS, create_topics, topics_of, write

pytestmark = [pytest.mark.versions, pytest.mark.timeout(1800)]

BRIDGE = Release("3.9.2", with_zookeeper=True)
CONTROLLER_ID = 3000
MIGRATED = "Completed migration of metadata from ZooKeeper to KRaft"
_LIMIT_SECONDS = 180


class Migration:
    """A broker of ZooKeeper, and the controller that takes over its metadata."""

    def __init__(self, home: Path) -> None:
        self.broker = Node(home / "broker", BRIDGE)
        self._home = home / "controller"
        self._home.mkdir(parents=True)
        self._port = free_port()
        self._file = self._home / "controller.properties"
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
        while MIGRATED not in self.controller.said():
            assert time.monotonic() < deadline, self.controller.said()[-4000:]
            time.sleep(0.5)

    def go_on(self) -> None:
        """Start what `stop` stopped."""
        self.broker.start_zookeeper()
        self.controller.start(lambda: listens(self._port))
        self.broker.start()

    def take_the_broker_over(self) -> None:
        """Make the stopped broker one of KRaft; the controller is still in the middle of the migration."""
        kept = [
            line
            for line in self.broker.file.read_text().splitlines()
            if not line.startswith(("zookeeper.", "broker.id=", "inter.broker.protocol.version="))
        ]
        self.broker.file.write_text("\n".join(kept) + "\n")
        _add(self.broker.file, {"process.roles": "broker", "node.id": "1"})

    def stop(self) -> None:
        """Stop the broker, then the controller and ZooKeeper."""
        self.broker.broker.end(signal.SIGTERM)
        self.controller.end(signal.SIGTERM)
        self.broker.stop()

    def kill(self) -> None:
        """End whatever still runs."""
        self.controller.end(signal.SIGKILL)
        self.broker.kill()


def _add(file: Path, properties: dict[str, str]) -> None:
    with file.open("a") as appended:
        appended.writelines(f"{key}={value}\n" for key, value in properties.items())


def test_a_cluster_goes_on_with_its_migration_on_compacted_directories(tmp_path: Path) -> None:
    migration = Migration(tmp_path)
    node, topics = migration.broker, topics_of(BRIDGE)
    names = [topic.name for topic in topics]
    with running(node):
        create_topics(node)
        write(node, 1)
    try:
        migration.begin()
        write(node, 2)
        before = node.look(names, GROUPS)
        node.describe_configs()
        migration.stop()
        assert not list(node.home.glob("data-*/__cluster_metadata-0"))
        assert (migration.metadata / "__cluster_metadata-0").is_dir()

        stated = ("--config", node.file, *node.config_options())
        assert _compacted(*stated) >= {topic.name for topic in topics if topic.is_compacted}
        migration.go_on()
        assert_same_latest(before, node.look(names, GROUPS))
        write(node, 3)
        migration.stop()

        migration.take_the_broker_over()
        migration.go_on()
        before = node.look(names, GROUPS)
        migration.stop()
        assert list(node.home.glob("data-*/__cluster_metadata-0"))
        assert _compacted("--config", node.file)
        migration.go_on()
        assert_same_latest(before, node.look(names, GROUPS))
        migration.stop()
    finally:
        migration.kill()


def _compacted(*arguments: object) -> set[str]:
    """Compact what the broker's own file leads to; return the topics of the partitions that became smaller."""
    outcome = sediment("compact", *arguments, "--json")
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    return {
        name.rpartition("-")[0]
        for name, row in outcome.partitions().items()
        if row["status"] == "compacted" and row["bytes_after"] < row["bytes_before"]
    }
