"""Clients of a broker: a workload for compacted topics, and everything that consumers can read.

Two clients that share no code take part, librdkafka's (confluent-kafka) and kafka-python, so that one's habits do not
decide which batches are on disk or how they are read.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import confluent_kafka as confluent
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as Partition

from tests.e2e.kraft import KafkaNode

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
PARTITIONS = 2
SEGMENT_BYTES = "12000"
WAIT_SECONDS = 60.0
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
_NO_LEADER = (confluent.KafkaError.NOT_LEADER_FOR_PARTITION, confluent.KafkaError.LEADER_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a consumer gets it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


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
            consumer = _confluent_consumer(self._node, group, UNCOMMITTED)
            for number in range(count):
                for topic in TOPICS:
                    for partition in range(PARTITIONS):
                        position = confluent.TopicPartition(topic, partition, number, metadata=f"{group} {number}")
                        consumer.commit(offsets=[position], asynchronous=False)
            consumer.close()


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
    ends = {name: _ends(node, name) for name in _partitions()}
    records = {}
    for isolation in (COMMITTED, UNCOMMITTED):
        records[isolation] = {name: _confluent_records(node, name, isolation, ends[name]) for name in _partitions()}
        for name in _partitions():
            assert _kafka_python_records(node, name, isolation, ends[name]) == records[isolation][name], name
    return View(records, ends, _offsets(node))


def _partitions() -> list[str]:
    return [f"{topic}-{partition}" for topic in TOPICS for partition in range(PARTITIONS)]


def _split(name: str) -> tuple[str, int]:
    topic, _, partition = name.rpartition("-")
    return topic, int(partition)


def _confluent_consumer(node: KafkaNode, group: str, isolation: str) -> confluent.Consumer:
    return confluent.Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": group,
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "isolation.level": isolation,
            "check.crcs": "true",
        }
    )


def _confluent_records(node: KafkaNode, name: str, isolation: str, ends: tuple[int, int, int]) -> tuple[Seen, ...]:
    consumer = _confluent_consumer(node, "look", isolation)
    consumer.assign([confluent.TopicPartition(*_split(name), ends[0])])
    found = []
    while True:
        message = consumer.poll(WAIT_SECONDS)
        assert message is not None, f"nothing more of {name} comes"
        if message.error() is not None:
            assert message.error().code() == confluent.KafkaError._PARTITION_EOF, message.error()
            break
        found.append(
            Seen(
                message.offset(),
                message.key(),
                message.value(),
                tuple(message.headers() or ()),
                message.timestamp()[1],
            )
        )
    consumer.close()
    return tuple(found)


def _kafka_python_records(node: KafkaNode, name: str, isolation: str, ends: tuple[int, int, int]) -> tuple[Seen, ...]:
    partition = Partition(*_split(name))
    consumer = KafkaConsumer(bootstrap_servers=node.bootstrap, isolation_level=isolation, enable_auto_commit=False)
    consumer.assign([partition])
    consumer.seek(partition, ends[0])
    found: list[Seen] = []
    end = ends[2] if isolation == COMMITTED else ends[1]
    while consumer.position(partition) < end:
        for record in consumer.poll(timeout_ms=1000).get(partition, []):
            found.append(Seen(record.offset, record.key, record.value, tuple(record.headers), record.timestamp))
    consumer.close()
    return tuple(found)


def _ends(node: KafkaNode, name: str) -> tuple[int, int, int]:
    (start, high), (_, stable) = (_watermarks(node, name, isolation) for isolation in (UNCOMMITTED, COMMITTED))
    return start, high, stable


def _watermarks(node: KafkaNode, name: str, isolation: str) -> tuple[int, int]:
    """Asked again while the partition has no leader yet, just after a start."""
    consumer = _confluent_consumer(node, "look", isolation)
    deadline = time.monotonic() + WAIT_SECONDS
    try:
        while True:
            try:
                return consumer.get_watermark_offsets(confluent.TopicPartition(*_split(name)), WAIT_SECONDS)
            except confluent.KafkaException as error:
                if error.args[0].code() not in _NO_LEADER or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
    finally:
        consumer.close()


def _offsets(node: KafkaNode) -> dict[tuple[str, str], tuple[int, str]]:
    found = {}
    for group in GROUPS:
        consumer = _confluent_consumer(node, group, UNCOMMITTED)
        asked = [confluent.TopicPartition(*_split(name)) for name in _partitions()]
        for position in consumer.committed(asked, WAIT_SECONDS):
            found[group, f"{position.topic}-{position.partition}"] = (position.offset, position.metadata)
        consumer.close()
    return found
