"""Generator of tests/data/kraft: the metadata log of a broker, and the broker's own answers about configs.

    python -m tests.e2e.metadata_fixture

The archive holds `__cluster_metadata-0` (a snapshot, and a log that begins before it and continues after it),
meta.properties and the partition.metadata of every partition; the answers are those of Kafka's admin client.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewTopic, ResourceType

from tests.e2e.kraft import KafkaNode, running

TARGET = Path(__file__).parents[1] / "data" / "kraft"
NODE_ID = "7"
STATIC = {
    "node.id": NODE_ID,
    "log.retention.hours": "24",
    "log.roll.hours": "12",
    "log.segment.bytes": "2097152",
    "log.cleaner.min.cleanable.ratio": "0.3",
    "log.cleaner.delete.retention.ms": "5000",
    "log.cleanup.policy": "compact,delete",
    "offsets.topic.segment.bytes": "3145728",
}
_SNAPSHOT_KEY = "metadata.log.max.record.bytes.between.snapshots"
_SNAPSHOT_AFTER_BYTES, _NO_SNAPSHOT = "2000", "20000000"
_SNAPSHOT_SECONDS = 30
_ROUNDS_OF_CHANGES = 12


class _Admin:
    """Kafka's admin client with calls that wait."""

    def __init__(self, node: KafkaNode) -> None:
        self._node = node
        self._client = AdminClient({"bootstrap.servers": node.bootstrap})

    def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        self._wait(self._client.create_topics([NewTopic(name, partitions, 1, config=dict(configs))]))

    def delete(self, name: str) -> None:
        self._wait(self._client.delete_topics([name]))

    def change(self, kind: ResourceType, name: str, configs: Mapping[str, str | None]) -> None:
        """Set configs, remove those that are None; the broker named "" is all brokers."""
        changes = {
            "--add-config": [f"{key}={value}" for key, value in configs.items() if value is not None],
            "--delete-config": [key for key, value in configs.items() if value is None],
        }
        self._node.run_tool(
            *("kafka.admin.ConfigCommand", "--bootstrap-server", self._node.bootstrap, "--alter"),
            *("--entity-type", f"{kind.name.lower()}s", *(("--entity-name", name) if name else ("--entity-default",))),
            *(argument for option, given in changes.items() if given for argument in (option, ",".join(given))),
        )

    def topics(self) -> list[str]:
        """Names, the cluster's own among them."""
        return sorted(self._client.list_topics(timeout=20).topics)

    def configs(self, kind: ResourceType, name: str) -> dict[str, tuple[str | None, str]]:
        """Value and source of every config."""
        found = self._client.describe_configs([ConfigResource(kind, name)])
        (entries,) = (future.result(20) for future in found.values())
        return {key: (entry.value, ConfigSource(entry.source).name) for key, entry in sorted(entries.items())}

    @staticmethod
    def _wait(futures: Mapping[Any, Any]) -> None:
        for future in futures.values():
            future.result(20)


def _fill(node: KafkaNode) -> None:
    """Let the broker make its internal topics."""
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "t"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("compacted", b"value", b"key")
    producer.commit_transaction(20)
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["compacted"])
    assert consumer.consume(1, 20)
    consumer.commit(asynchronous=False)
    consumer.close()


def _change(admin: _Admin) -> None:
    topic, broker = ResourceType.TOPIC, ResourceType.BROKER
    admin.create("compacted", 2, {"cleanup.policy": "compact", "internal.segment.bytes": "5000"})
    admin.create("plain", 1, {})
    admin.create("both", 1, {"cleanup.policy": "delete,compact", "retention.ms": "1000", "segment.ms": "777"})
    admin.create("doomed", 1, {"cleanup.policy": "compact"})
    admin.create("again", 1, {"cleanup.policy": "compact", "delete.retention.ms": "5", "segment.bytes": "1048577"})
    admin.change(broker, "", {"log.retention.ms": "7200000", "log.cleaner.delete.retention.ms": "1234"})
    admin.change(broker, NODE_ID, {"log.retention.ms": "3600000", "message.max.bytes": "2000000"})
    admin.change(broker, "", {"log.index.interval.bytes": "512", "log.cleaner.min.cleanable.ratio": "0.7"})
    for number in range(_ROUNDS_OF_CHANGES):
        admin.change(topic, "plain", {"min.compaction.lag.ms": str(number), "file.delete.delay.ms": str(number)})


def _change_after_the_snapshot(admin: _Admin) -> None:
    topic, broker = ResourceType.TOPIC, ResourceType.BROKER
    admin.delete("doomed")
    admin.delete("again")
    admin.create("again", 1, {"max.message.bytes": "54321"})
    admin.create("late", 1, {"cleanup.policy": ""})
    admin.change(topic, "both", {"segment.ms": None, "retention.bytes": "9999999"})
    admin.change(topic, "plain", {"file.delete.delay.ms": None, "compression.type": "lz4"})
    admin.change(broker, NODE_ID, {"log.retention.ms": None})
    admin.change(broker, "", {"log.cleaner.min.cleanable.ratio": None})


def _answers(admin: _Admin) -> dict[str, Any]:
    return {
        "static": STATIC,
        "topics": {name: admin.configs(ResourceType.TOPIC, name) for name in admin.topics()},
        "broker": admin.configs(ResourceType.BROKER, NODE_ID),
    }


def _archive(data: Path) -> bytes:
    """What says something about topics and configs, without owners and times."""
    chosen = [
        data / "meta.properties",
        *sorted(data.glob("__cluster_metadata-0/*")),
        *sorted(data.glob("*-*/partition.metadata")),
    ]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in dict.fromkeys(chosen):
            member = tarfile.TarInfo(str(path.relative_to(data)))
            member.size = path.stat().st_size
            archive.addfile(member, io.BytesIO(path.read_bytes()))
    return gzip.compress(packed.getvalue(), 9, mtime=0)


def _until_snapshot(node: KafkaNode) -> None:
    deadline = time.monotonic() + _SNAPSHOT_SECONDS
    while not list(node.data.glob("__cluster_metadata-0/*.checkpoint")):
        if time.monotonic() > deadline:
            raise TimeoutError("the broker made no snapshot of its metadata")
        time.sleep(0.1)


def main() -> None:
    """Make the fixture anew."""
    with tempfile.TemporaryDirectory() as home:
        node = KafkaNode(Path(home), {**STATIC, _SNAPSHOT_KEY: _SNAPSHOT_AFTER_BYTES})
        with running(node):
            _change(_Admin(node))
            _fill(node)
            _until_snapshot(node)
        node.configure({_SNAPSHOT_KEY: _NO_SNAPSHOT})
        with running(node):
            admin = _Admin(node)
            _change_after_the_snapshot(admin)
            answers = _answers(admin)
        TARGET.mkdir(exist_ok=True)
        (TARGET / "log-dir.tar.gz").write_bytes(_archive(node.data))
        (TARGET / "configs.json").write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    main()
