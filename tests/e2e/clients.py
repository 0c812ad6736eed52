"""Clients of a broker: a workload for compacted topics, and everything that consumers can read.

Two clients that share no code take part, librdkafka's (confluent-kafka) and kafka-python, so that one's habits do not
decide which batches are on disk or how they are read.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from kafka import KafkaProducer

from tests.consumers import (
    COMMITTED,
    UNCOMMITTED,
    WAIT_SECONDS,
    Seen,
    commit_offsets,
    committed_offsets,
    confluent_records,
    ends,
    kafka_python_records,
    split,
)
from tests.e2e.kraft import KafkaNode
from tests.jobs.log_dirs import read_checkpoint, write_checkpoint

PARTITIONS = 2
SEGMENT_BYTES = "12000"
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state")

PLAIN, CODECS, IDEMPOTENT, TRANSACTIONS, TOMBSTONES = "plain", "codecs", "idempotent", "transactions", "tombstones"
TOPICS: Mapping[str, Mapping[str, str]] = {
    PLAIN: {},
    CODECS: {},
    IDEMPOTENT: {},
    TRANSACTIONS: {},
    TOMBSTONES: {"delete.retention.ms": "100"},
}
GROUPS = ("readers", "auditors")

# With these properties, a broker neither cleans nor deletes, so the logs that it takes over stay as they are.
PROPERTIES = {"log.cleaner.enable": "false", "log.retention.ms": "-1", "log.index.size.max.bytes": "65536"}
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
# kafka-python loses records of these from the broker too: their leader epochs are above that of the broker.
LOST_BY_KAFKA_PYTHON = "epochs."


@dataclass(frozen=True, slots=True)
class View:
    """All that consumers can tell of the topics; partitions are `topic-N`.

    `ends` are (log start, high watermark, last stable offset); `offsets` are committed offsets by group and partition.
    """

    records: Mapping[str, Mapping[str, tuple[Seen, ...]]]
    ends: Mapping[str, tuple[int, int, int]]
    offsets: Mapping[tuple[str, str], tuple[int, str]]

    def latest(self, isolation: str, *, without_aborted: bool = False) -> dict[tuple[str, bytes | None], Seen]:
        """Return the last record of each key unless it is a tombstone; optionally without aborted records."""
        found: dict[tuple[str, bytes | None], Seen] = {}
        for name, records in self.records[isolation].items():
            aborted = self.aborted(name) if without_aborted else frozenset()
            for record in records:
                if record.offset not in aborted:
                    found[name, record.key] = record
        return {key: record for key, record in found.items() if record.value is not None}

    def aborted(self, name: str) -> frozenset[int]:
        """Offsets below the last stable one that a consumer of committed data does not get."""
        stable = self.ends[name][2]
        every = {record.offset for record in self.records[UNCOMMITTED][name] if record.offset < stable}
        return frozenset(every - {record.offset for record in self.records[COMMITTED][name]})


# ------------------------------------------------------------------------------------------------------------- topics
def create_topics(node: KafkaNode) -> None:
    """Create the compacted topics of the workload, with tiny segments."""
    shared = {"cleanup.policy": "compact", "internal.segment.bytes": SEGMENT_BYTES, "segment.index.bytes": "4096"}
    topics = [NewTopic(name, PARTITIONS, 1, config={**shared, **own}) for name, own in TOPICS.items()]
    client = AdminClient({"bootstrap.servers": node.bootstrap})
    _wait(client.create_topics(topics))


def create_one_partition_topics(node: KafkaNode, names: list[str]) -> None:
    client = AdminClient({"bootstrap.servers": node.bootstrap})
    for future in client.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result(WAIT_SECONDS)


def take_over(data: Path, folders: dict[str, Path]) -> None:
    """Put the segments of `folders` in the place of empty topics' partitions, for a start that recovers them."""
    for topic, source in folders.items():
        target = data / f"{topic}-0"
        for path in target.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        for path in source.iterdir():
            if path.name != "partition.metadata":
                shutil.copy(path, target)
    for name in CHECKPOINTS:
        if (data / name).exists():
            kept = {n: o for n, o in read_checkpoint(data / name).items() if split(n)[0] not in folders}
            write_checkpoint(data / name, kept)
    (data / ".kafka_cleanshutdown").unlink()


def shrink_internal_topics(node: KafkaNode) -> None:
    """Tiny segments for the topics that the broker made itself."""
    entry = ConfigEntry("internal.segment.bytes", "3000", incremental_operation=AlterConfigOpType.SET)
    resources = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry]) for name in INTERNAL_TOPICS]
    client = AdminClient({"bootstrap.servers": node.bootstrap})
    _wait(client.incremental_alter_configs(resources))


def _wait(futures: Mapping[Any, Any]) -> None:
    for future in futures.values():
        future.result(WAIT_SECONDS)


# ---------------------------------------------------------------------------------------------------------- producing
class Workload:
    """Produces the same kinds of data again and again; rounds differ by their random numbers only."""

    def __init__(self, node: KafkaNode, seed: int) -> None:
        self._node = node
        self._random = random.Random(seed)
        self._count = 0

    def produce(self, *, batches: int = 60) -> None:
        """Plain, compressed, idempotent and transactional data, tombstones and committed group offsets."""
        self._confluent(PLAIN, {"compression.type": "none"}, batches)
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            self._confluent(CODECS, {"compression.type": codec, "linger.ms": "5"}, batches)
        self._confluent(IDEMPOTENT, {"enable.idempotence": "true"}, batches)
        self._confluent(TOMBSTONES, {}, batches, tombstones=True)
        self._kafka_python(PLAIN, None, batches)
        for codec in ("gzip", "lz4", "zstd"):
            self._kafka_python(CODECS, codec, batches)
        self._transactions(batches)
        self._kafka_python_transactions(batches // 4)
        self._commit_offsets(batches // 3)

    def _message(self, *, tombstones: bool = False) -> tuple[bytes, bytes | None]:
        self._count += 1
        key = f"key-{self._random.randrange(40)}".encode()
        if tombstones and self._random.random() < 0.3:
            return key, None
        return key, f"value {self._count} ".encode() * self._random.randrange(1, 12)

    def _confluent(self, topic: str, options: Mapping[str, str], batches: int, *, tombstones: bool = False) -> None:
        producer = confluent.Producer({"bootstrap.servers": self._node.bootstrap, **options})
        for _ in range(batches):
            for _ in range(self._random.randrange(1, 9)):
                key, value = self._message(tombstones=tombstones)
                headers = [("h", key)] if self._random.random() < 0.2 else None
                producer.produce(topic, value, key, self._random.randrange(PARTITIONS), headers=headers)
            assert producer.flush(WAIT_SECONDS) == 0

    def _kafka_python(self, topic: str, codec: str | None, batches: int) -> None:
        producer = KafkaProducer(bootstrap_servers=self._node.bootstrap, compression_type=codec, linger_ms=2)
        for _ in range(batches):
            for _ in range(self._random.randrange(1, 9)):
                key, value = self._message()
                producer.send(topic, value, key, partition=self._random.randrange(PARTITIONS))
            producer.flush(WAIT_SECONDS)
        producer.close()

    def _transactions(self, count: int) -> None:
        """Run two producers with interleaved transactions; every third transaction is aborted."""
        producers = [transactional(self._node, f"writer-{number}") for number in range(2)]
        for number in range(count):
            for producer in producers:
                producer.begin_transaction()
            for _ in range(self._random.randrange(1, 6)):
                key, value = self._message(tombstones=True)
                self._random.choice(producers).produce(TRANSACTIONS, value, key, self._random.randrange(PARTITIONS))
            for at, producer in enumerate(producers):
                if (number + at) % 3 == 0:
                    assert producer.flush(WAIT_SECONDS) == 0
                    producer.abort_transaction(WAIT_SECONDS)
                else:
                    producer.commit_transaction(WAIT_SECONDS)

    def _kafka_python_transactions(self, count: int) -> None:
        producer = KafkaProducer(bootstrap_servers=self._node.bootstrap, transactional_id="python-writer")
        producer.init_transactions()
        for number in range(count):
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                key, value = self._message()
                producer.send(TRANSACTIONS, value, key, partition=partition)
            producer.flush(WAIT_SECONDS)
            if number % 4 == 3:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        producer.close()

    def _commit_offsets(self, count: int) -> None:
        for group in GROUPS:
            for number in range(count):
                offsets = dict.fromkeys(partitions(), number)
                commit_offsets(self._node.bootstrap, group, offsets, metadata=f"{group} {number}")


@contextmanager
def producing(node: KafkaNode) -> Iterator[None]:
    """Somebody writes to all topics while the body runs; what the broker had not taken by then is dropped."""
    stop = threading.Event()

    def produce() -> None:
        producer = confluent.Producer(
            {"bootstrap.servers": node.bootstrap, "linger.ms": "1", "compression.type": "lz4"}
        )
        number = 0
        while not stop.is_set():
            number += 1
            topic = list(TOPICS)[number % len(TOPICS)]
            producer.produce(topic, b"endless %d" % number, b"key-%d" % (number % 40), number % PARTITIONS)
            producer.poll(0.001)
        producer.purge()
        producer.flush(1)

    thread = threading.Thread(target=produce, name="endless")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def transactional(node: KafkaNode, name: str) -> confluent.Producer:
    """Return a transactional producer that the broker knows, whose transactions may stay open for half an hour."""
    producer = confluent.Producer(
        {"bootstrap.servers": node.bootstrap, "transactional.id": name, "transaction.timeout.ms": "1800000"}
    )
    producer.init_transactions(WAIT_SECONDS)
    return producer


def produce_in_transaction(producer: confluent.Producer, values: Sequence[str]) -> None:
    """Records of the transaction that is open, one of each value in every partition, on the broker when it returns."""
    for value in values:
        for partition in range(PARTITIONS):
            producer.produce(TRANSACTIONS, value.encode(), b"key-of-open", partition)
    assert producer.flush(WAIT_SECONDS) == 0


# ---------------------------------------------------------------------------------------------------------- consuming
def look(node: KafkaNode) -> View:
    """Everything, read by both clients, which have to agree."""
    return View(*read_by_two_clients(node, partitions()), _offsets(node))


def read_by_two_clients(
    node: KafkaNode, names: Sequence[str]
) -> tuple[dict[str, Mapping[str, tuple[Seen, ...]]], dict[str, tuple[int, int, int]]]:
    """Return the records by isolation level, on which librdkafka and kafka-python have to agree, and the ends."""
    found_ends = ends(node.bootstrap, names)
    both = [name for name in names if not name.startswith(LOST_BY_KAFKA_PYTHON)]
    records: dict[str, Mapping[str, tuple[Seen, ...]]] = {}
    for isolation, end in ((COMMITTED, 2), (UNCOMMITTED, 1)):
        found = records[isolation] = confluent_records(node.bootstrap, names, isolation)
        until = {name: found_ends[name][end] for name in both}
        assert kafka_python_records(node.bootstrap, both, isolation, until) == {name: found[name] for name in both}
    return records, found_ends


def partitions() -> list[str]:
    """Return the names of the partitions of the workload."""
    return [f"{topic}-{partition}" for topic in TOPICS for partition in range(PARTITIONS)]


def _offsets(node: KafkaNode) -> dict[tuple[str, str], tuple[int, str]]:
    return {
        (group, name): found
        for group in GROUPS
        for name, found in committed_offsets(node.bootstrap, group, partitions()).items()
    }


def produce(bootstrap: str, topic: str, count: int, **options: str) -> None:
    producer = confluent.Producer(
        {"bootstrap.servers": bootstrap, **{name.replace("_", "."): value for name, value in options.items()}}
    )
    is_transactional = "transactional_id" in options
    if is_transactional:
        producer.init_transactions(WAIT_SECONDS)
        producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, b"new %d" % number, b"key", 0)
    assert producer.flush(WAIT_SECONDS) == 0
    if is_transactional:
        producer.commit_transaction(WAIT_SECONDS)
