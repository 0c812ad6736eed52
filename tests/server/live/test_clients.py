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
from kafka import KafkaProducer

from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import read_cluster_metadata
from sediment.server.live.owned_node import open_node
from tests.consumers import (
    COMMITTED,
    UNCOMMITTED,
    commit_offsets,
    committed_offsets,
    confluent_records,
    kafka_python_records,
)
from tests.served import as_json, expected, serving, unpacked
from tests.server.live.nodes import LiveServer, live
from tests.waiting import LIMIT_SECONDS

TOPIC = "empty"  # has no records, and segments of Kafka's size
NAME = "empty-0"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_IN_FLIGHT = 500


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("live") / "data")


@pytest.fixture(scope="module")
def served(directory: Path) -> Iterator[LiveServer]:
    with live(directory, flush_acks=True) as server:
        yield server


def librdkafka_produces(bootstrap: str, *batches: list[bytes], **config: Any) -> list[list[int]]:
    """Produce values to TOPIC, each list with a producer and a codec of its own at once, and return their offsets."""
    offsets: list[list[int]] = [[] for _ in batches]
    producers = []
    for values, found, codec in zip(batches, offsets, CODECS, strict=False):

        def delivered(error: Any, message: Any, found: list[int] = found) -> None:
            assert error is None, error
            found.append(message.offset())

        producer = confluent.Producer({"bootstrap.servers": bootstrap, "compression.type": codec, **config})
        for value in values:
            producer.produce(TOPIC, value, key=b"k", headers=[("h", b"1")], partition=0, on_delivery=delivered)
        producers.append(producer)
    for producer in producers:
        assert producer.flush(LIMIT_SECONDS) == 0
    return offsets


def values_of(bootstrap: str, isolation: str = UNCOMMITTED) -> list[bytes | None]:
    return [seen.value for seen in confluent_records(bootstrap, [NAME], isolation)[NAME]]


# -------------------------------------------------------------------------------------------------------------- clients
def test_both_clients_write_with_idempotence_and_every_codec_and_read_the_same(served: LiveServer) -> None:
    batches = [[f"{codec}-{number}".encode() for number in range(50)] for codec in CODECS]
    written: dict[int, bytes] = {}
    for values, offsets in zip(
        batches, librdkafka_produces(served.bootstrap, *batches, **{"enable.idempotence": True}), strict=True
    ):
        assert offsets == sorted(offsets)
        written |= zip(offsets, values, strict=True)
    producer = KafkaProducer(bootstrap_servers=served.bootstrap, enable_idempotence=True, acks="all")
    values = [f"python-{number}".encode() for number in range(50)]
    sent = [producer.send(TOPIC, value, partition=0) for value in values]
    written |= zip((each.get(LIMIT_SECONDS).offset for each in sent), values, strict=True)
    producer.close()
    assert sorted(written) == list(range(50 * (len(CODECS) + 1)))
    expected_values = [written[offset] for offset in sorted(written)]
    assert values_of(served.bootstrap) == values_of(served.bootstrap, COMMITTED) == expected_values
    seen = kafka_python_records(served.bootstrap, [NAME], COMMITTED, {NAME: len(written)})[NAME]
    assert [each.value for each in seen] == expected_values


def test_the_brokers_own_records_are_still_there_and_can_be_added_to(served: LiveServer) -> None:
    recorded = expected()["records"][COMMITTED]["orders-1"]
    producer = KafkaProducer(bootstrap_servers=served.bootstrap)
    assert producer.send("orders", b"more", partition=1).get(LIMIT_SECONDS).offset == len(recorded)
    producer.close()
    seen = kafka_python_records(served.bootstrap, ["orders-1"], COMMITTED, {"orders-1": len(recorded) + 1})["orders-1"]
    assert as_json({"orders-1": seen[:-1]})["orders-1"] == recorded
    assert seen[-1].value == b"more"


def test_commits_stay_in_the_directory(tmp_path: Path) -> None:
    path = unpacked(tmp_path / "data")
    with live(path) as server:
        commit_offsets(server.bootstrap, "billing", {"orders-0": 33})
    with live(path) as server:
        found = committed_offsets(server.bootstrap, "billing", ["orders-0", "orders-1"])
    assert found["orders-0"][0] == 33
    assert list(found["orders-1"]) == expected()["groups"]["billing"]["orders-1"]


# -------------------------------------------------------------------------------------------------------- stop and kill
def test_a_clean_stop_leaves_what_a_broker_leaves(tmp_path: Path) -> None:
    path = unpacked(tmp_path / "data")
    before = read_cluster_metadata(path, Fs())
    assert before is not None
    marker = (path / ".kafka_cleanshutdown").read_bytes()
    assert b'"brokerEpoch":-1' not in marker
    with serving(path) as server:
        assert not (path / ".kafka_cleanshutdown").exists()
        assert any("committed offsets do not expire" in " ".join(server.said[at : at + 2]) for at in range(9))
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
    with live(path) as server:
        found = values_of(server.bootstrap)
        ids = read_cluster_metadata(copy, Fs())
        assert ids is not None
        librdkafka_produces(server.bootstrap, [b"after"], **{"enable.idempotence": True})
    assert len(found) == len(set(found))
    assert [value for value in found if value in set(acknowledged)] == acknowledged
    renewed = read_cluster_metadata(path, Fs())
    assert renewed is not None and renewed.next_producer_id == ids.next_producer_id + 1000
