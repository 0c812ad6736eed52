"""Kafka's clients on a live server over a directory that a broker of Kafka 4.2.0 wrote (tests/data/served)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as Partition

from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import read_cluster_metadata
from sediment.server.live.owned_node import open_node
from tests.consumers import COMMITTED, UNCOMMITTED, committed_offsets, confluent_records, kafka_python_records
from tests.served import Served, expected, serving, unpacked
from tests.waiting import LIMIT_SECONDS

TOPIC = "empty"  # has no records, and segments of Kafka's size
NAME = "empty-0"
_IN_FLIGHT = 500


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("live") / "data")


@pytest.fixture(scope="module")
def served(directory: Path) -> Iterator[Served]:
    with serving(directory, "--flush-acks") as server:
        yield server


def librdkafka_produces(bootstrap: str, values: list[bytes], **config: Any) -> list[int]:
    """Produce values to TOPIC, and return their offsets."""
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    producer = confluent.Producer({"bootstrap.servers": bootstrap, **config})
    for value in values:
        producer.produce(TOPIC, value, key=b"k", headers=[("h", b"1")], partition=0, on_delivery=delivered)
    assert producer.flush(LIMIT_SECONDS) == 0
    return offsets


def values_of(bootstrap: str, isolation: str = UNCOMMITTED) -> list[bytes | None]:
    return [seen.value for seen in confluent_records(bootstrap, [NAME], isolation)[NAME]]


# -------------------------------------------------------------------------------------------------------------- clients
def test_both_clients_write_with_idempotence_and_every_codec_and_read_the_same(served: Served) -> None:
    written: list[bytes] = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        values = [f"{codec}-{number}".encode() for number in range(50)]
        offsets = librdkafka_produces(
            served.bootstrap, values, **{"enable.idempotence": True, "compression.type": codec}
        )
        assert offsets == list(range(len(written), len(written) + 50))
        written += values
    producer = KafkaProducer(bootstrap_servers=served.bootstrap, enable_idempotence=True, acks="all")
    sent = [producer.send(TOPIC, f"python-{number}".encode(), partition=0) for number in range(50)]
    assert [each.get(LIMIT_SECONDS).offset for each in sent] == list(range(len(written), len(written) + 50))
    producer.close()
    written += [f"python-{number}".encode() for number in range(50)]
    assert values_of(served.bootstrap) == values_of(served.bootstrap, COMMITTED) == written
    seen = kafka_python_records(served.bootstrap, [NAME], COMMITTED, {NAME: len(written)})[NAME]
    assert [each.value for each in seen] == written


def test_the_brokers_own_records_are_still_there_and_can_be_added_to(served: Served) -> None:
    recorded = expected()["records"][COMMITTED]["orders-1"]
    consumer = KafkaConsumer(bootstrap_servers=served.bootstrap, consumer_timeout_ms=1000)
    partition = Partition("orders", 1)
    producer = KafkaProducer(bootstrap_servers=served.bootstrap)
    assert producer.send("orders", b"more", partition=1).get(LIMIT_SECONDS).offset == len(recorded)
    producer.close()
    consumer.assign([partition])
    consumer.seek(partition, len(recorded) - 1)
    assert [record.offset for record in consumer][-1] == len(recorded)
    consumer.close()


def test_a_transactional_producer_is_refused_at_once(served: Served) -> None:
    producer = confluent.Producer({"bootstrap.servers": served.bootstrap, "transactional.id": "t"})
    with pytest.raises(confluent.KafkaException) as refused:
        producer.init_transactions(20)
    assert refused.value.args[0].code() == confluent.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_commits_stay_in_the_directory(tmp_path: Path) -> None:
    path = unpacked(tmp_path / "data")
    offset = confluent.TopicPartition("orders", 0, 33)
    with serving(path) as server:
        config = {"bootstrap.servers": server.bootstrap, "group.id": "billing"}
        consumer = confluent.Consumer(config)
        consumer.assign([offset])
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            try:
                consumer.commit(offsets=[offset], asynchronous=False)
                break
            except confluent.KafkaException:  # while the groups are being loaded
                assert time.monotonic() < deadline
        consumer.close()
    with serving(path, "--read-only") as server:
        assert committed_offsets(server.bootstrap, "billing", ["orders-0"])["orders-0"][0] == 33
        other = expected()["groups"]["billing"]["orders-1"]
        assert list(committed_offsets(server.bootstrap, "billing", ["orders-1"])["orders-1"]) == other


# -------------------------------------------------------------------------------------------------------- stop and kill
def test_a_clean_stop_leaves_what_a_broker_leaves(tmp_path: Path) -> None:
    path = unpacked(tmp_path / "data")
    before = read_cluster_metadata(path, Fs())
    assert before is not None
    marker = (path / ".kafka_cleanshutdown").read_bytes()
    assert b'"brokerEpoch":-1' not in marker
    with serving(path) as server:
        assert not (path / ".kafka_cleanshutdown").exists()
        assert "nothing is deleted: the cleaner and retention are off" in server.said
        librdkafka_produces(server.bootstrap, [b"v"] * 3, **{"enable.idempotence": True})
    assert (path / ".kafka_cleanshutdown").read_bytes() == marker
    assert re.search(rf"^{TOPIC} 0 3$", (path / "recovery-point-offset-checkpoint").read_text(), re.MULTILINE)
    assert re.search(rf"^{TOPIC} 0 3$", (path / "replication-offset-checkpoint").read_text(), re.MULTILINE)
    assert (path / NAME / f"{3:020d}.snapshot").exists()
    after = read_cluster_metadata(path, Fs())
    assert after is not None
    assert after.next_producer_id == before.next_producer_id + 1000
    assert after.topic_ids == before.topic_ids
    assert not list(path.glob("*-stray"))
    assert open_node([path], None, Fs()).is_started


class Killed:
    """A server that a test kills, with the values that it acknowledged."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "sediment.jobs.cli", "serve", str(path), "--flush-acks"]
        self.process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--quiet"], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        found = next(match for line in self.process.stderr if (match := re.search(r"listening on (\S+)", line)))
        self.bootstrap = found[1]
        self.acknowledged: list[bytes] = []

    def kill_under_load(self, prefix: str, after: int) -> None:
        """Produce until `after` values are acknowledged, and kill the server while more are on their way."""

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged.append(message.value())

        producer = confluent.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 20,
                "log_level": 0,
            }
        )
        number = 0
        deadline = time.monotonic() + LIMIT_SECONDS
        while len(self.acknowledged) < after:
            assert time.monotonic() < deadline
            if len(producer) < _IN_FLIGHT:
                producer.produce(TOPIC, f"{prefix}-{number}".encode(), partition=0, on_delivery=delivered)
                number += 1
            producer.poll(0 if len(producer) < _IN_FLIGHT else 0.01)
        self.process.kill()
        self.process.wait()
        producer.purge()
        producer.flush(LIMIT_SECONDS)


def test_nothing_acknowledged_is_lost_or_doubled_when_the_server_is_killed(tmp_path: Path) -> None:
    path = unpacked(tmp_path / "data")
    acknowledged: list[bytes] = []
    for prefix in ("first", "second"):
        killed = Killed(path)
        killed.kill_under_load(prefix, after=300)
        acknowledged += killed.acknowledged
        assert not (path / ".kafka_cleanshutdown").exists()
    copy = shutil.copytree(path, tmp_path / "copy")
    with serving(path) as server:
        found = values_of(server.bootstrap)
        ids = read_cluster_metadata(copy, Fs())
        assert ids is not None
        librdkafka_produces(server.bootstrap, [b"after"], **{"enable.idempotence": True})
    assert len(found) == len(set(found))
    assert [value for value in found if value in set(acknowledged)] == acknowledged
    renewed = read_cluster_metadata(path, Fs())
    assert renewed is not None and renewed.next_producer_id == ids.next_producer_id + 1000
