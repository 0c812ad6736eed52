"""Generator of tests/data/served: the log directory of a stopped Kafka 4.2.0, and what its clients saw of it.

    python -m tests.e2e.served_fixture

The archive is the whole directory of one KRaft node: five codecs, headers and nulls, transactions that are committed,
aborted and open, a compacted topic, and groups with offsets.  `expected.json` holds what librdkafka and kafka-python,
which had to agree, read from the broker that was started on the directory.
"""

from __future__ import annotations

import json
import random
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import confluent_kafka as confluent
from confluent_kafka.admin import AdminClient, NewTopic

from tests.consumers import WAIT_SECONDS, commit_offsets
from tests.e2e.clients import transactional
from tests.e2e.kraft import KafkaNode, running
from tests.served import DATA, GROUPS, START_MS, TOPICS, answers_of

PROPERTIES = {
    "log.cleaner.enable": "false",
    "log.retention.ms": "-1",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "log.index.size.max.bytes": "4096",
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CONFIGS: Mapping[str, Mapping[str, str]] = {
    "orders": {"internal.segment.bytes": "3000"},
    "payments": {"internal.segment.bytes": "2500"},
    "prices": {"cleanup.policy": "compact"},
    "empty": {},
}


def _fill(node: KafkaNode) -> None:
    chance = random.Random(18)
    _create_topics(node)
    for codec in CODECS:
        producer = confluent.Producer({"bootstrap.servers": node.bootstrap, "compression.type": codec})
        for _ in range(8):
            for _ in range(chance.randrange(1, 6)):
                _send(producer, "orders", chance.randrange(2), chance)
                _send(producer, "prices", 0, chance)
            assert producer.flush(WAIT_SECONDS) == 0
    for name in ("cashier", "refunds"):
        producer = transactional(node, name)
        for number in range(8):
            producer.begin_transaction()
            for _ in range(chance.randrange(1, 5)):
                _send(producer, "payments", chance.randrange(2), chance)
            if number % 3 == 0:
                assert producer.flush(WAIT_SECONDS) == 0
                producer.abort_transaction(WAIT_SECONDS)
            else:
                producer.commit_transaction(WAIT_SECONDS)
    for number, group in enumerate(GROUPS):
        commit_offsets(node.bootstrap, group, {"orders-0": 5 + number, "orders-1": 5 + number}, metadata=f"by {group}")


def _create_topics(node: KafkaNode) -> None:
    topics = [NewTopic(name, count, 1, config=dict(CONFIGS[name])) for name, count in TOPICS.items()]
    client = AdminClient({"bootstrap.servers": node.bootstrap})
    for future in client.create_topics(topics).values():
        future.result(WAIT_SECONDS)


def _send(producer: confluent.Producer, topic: str, partition: int, chance: random.Random) -> None:
    value = chance.choice([None, b"", b"value %d" % chance.randrange(1000)])
    headers = [("trace", b"%d" % chance.randrange(9)), ("none", None)] if chance.random() < 0.3 else None
    key = b"key-%d" % chance.randrange(20)
    producer.produce(topic, value, key, partition, timestamp=START_MS + chance.randrange(10_000), headers=headers)


def _leave_a_transaction_open(node: KafkaNode) -> confluent.Producer:
    producer = transactional(node, "unfinished")
    producer.begin_transaction()
    producer.produce("payments", b"open", b"key-open", 0, timestamp=START_MS + 11_000)
    assert producer.flush(WAIT_SECONDS) == 0
    return producer


def main() -> None:
    """Make the fixture anew."""
    with tempfile.TemporaryDirectory() as home:
        node = KafkaNode(Path(home), PROPERTIES)
        with running(node):
            _fill(node)
            left_open = _leave_a_transaction_open(node)
        DATA.mkdir(exist_ok=True)
        with tarfile.open(DATA / "log-dir.tar.xz", "w:xz") as archive:
            for path in sorted(node.data.rglob("*")):
                if path.is_file() and path.name != ".lock":
                    archive.add(path, str(path.relative_to(node.data)), filter=_without_owner)
        with running(node):
            answers = answers_of(node.bootstrap)
        left_open.purge()
    (DATA / "expected.json").write_text(json.dumps(answers, separators=(",", ":")) + "\n")


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
