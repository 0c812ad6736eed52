"""Kafka's own clients and tools end at once where a server refuses, and do not ask again and again."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import confluent_kafka as confluent
import pytest
from aiokafka import AIOKafkaProducer
from kafka import KafkaProducer
from kafka.errors import KafkaError

from tests.e2e import console_tools as tools
from tests.e2e.test_live_serve import new_node
from tests.served import serving, unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

MOST_REQUESTS = 12  # of one kind, by one client
SECONDS = 20


def requests_of(log: Path, seen: int) -> tuple[Counter[str], int]:
    """Return the number of requests of each kind after the first `seen`, and the number of all requests."""
    lines = log.read_text().splitlines()
    return Counter(json.loads(line)["request"] for line in lines[seen:]), len(lines)


def librdkafka(bootstrap: str, **options: str) -> str:
    reports: list[confluent.KafkaError] = []
    producer = confluent.Producer({"bootstrap.servers": bootstrap, "error_cb": reports.append, **options})
    try:
        if "transactional.id" in options:
            producer.init_transactions(SECONDS)
        producer.produce("orders", b"value", on_delivery=lambda error, _: reports.append(error))
    except confluent.KafkaException as error:
        reports.append(error.args[0])
    deadline = time.monotonic() + SECONDS
    while not reports and time.monotonic() < deadline:
        try:
            with suppress(SystemError):  # after a fatal error, a callback raises this
                producer.flush(1)
        except confluent.KafkaException as error:  # or `flush` raises the error before a callback gets it
            reports.append(error.args[0])
    time.sleep(2)  # in which the client may ask again
    return reports[0].name() if reports else "no error"


def kafka_python(bootstrap: str, **options: object) -> str:
    try:
        with closing(KafkaProducer(bootstrap_servers=bootstrap, **options)) as producer:
            producer.send("orders", b"value").get(SECONDS)
    except KafkaError as error:
        return type(error).__name__
    return "no error"


def aiokafka(bootstrap: str, **options: object) -> str:
    async def produce() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **options)
        try:
            await asyncio.wait_for(producer.start(), SECONDS)
            await asyncio.wait_for(producer.send_and_wait("orders", b"value"), SECONDS)
        finally:
            await asyncio.wait_for(producer.stop(), SECONDS)

    try:
        asyncio.run(produce())
    except Exception as error:
        return type(error).__name__
    return "no error"


def test_producers_of_all_clients_end_at_a_read_only_server(tmp_path: Path) -> None:
    log, seen = tmp_path / "requests", 0
    idempotent, transactional = {"enable_idempotence": True}, {"transactional_id": "x"}
    with serving(unpacked(tmp_path / "data"), "--read-only", "--request-log", log) as served:
        at = served.bootstrap
        for name, errors in {
            "java": lambda: set(tools.refused_producer(at, "orders")),
            "java transactional": lambda: set(tools.refused_producer(at, "orders", "x")),
            "librdkafka": lambda: {librdkafka(at)},
            "librdkafka idempotent": lambda: {librdkafka(at, **{"enable.idempotence": "true"})},
            "librdkafka transactional": lambda: {librdkafka(at, **{"transactional.id": "x"})},
            "kafka-python": lambda: {kafka_python(at)},
            "kafka-python idempotent": lambda: {kafka_python(at, **idempotent)},
            "kafka-python plain": lambda: {kafka_python(at, enable_idempotence=False)},
            "aiokafka": lambda: {aiokafka(at)},
            "aiokafka idempotent": lambda: {aiokafka(at, **idempotent)},
            "aiokafka transactional": lambda: {aiokafka(at, **transactional)},
        }.items():
            found = errors()
            counts, seen = requests_of(log, seen)
            assert found and "no error" not in found, name
            assert max(counts.values()) <= MOST_REQUESTS, (name, counts)


def test_tools_that_change_something_end_at_a_read_only_server(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": "orders", "partition": 0, "offset": 1}]}))
    moved = tmp_path / "moved.json"
    replicas = {"topic": "orders", "partition": 0, "replicas": [1], "log_dirs": [str(tmp_path)]}
    moved.write_text(json.dumps({"version": 1, "partitions": [replicas]}))
    quota, orders = ("--add-config", "producer_byte_rate=9"), ("--topic", "orders")
    producer = ("--producer-id", "1", "--producer-epoch", "0", "--coordinator-epoch", "0")
    password = ("--add-config", "SCRAM-SHA-256=[password=p]")
    commands = [
        (tools.TOPICS, "--create", "--topic", "new"),
        (tools.TOPICS, "--alter", *orders, "--partitions", "9"),
        (tools.TOPICS, "--delete", *orders),
        (tools.CONFIGS, "--alter", "--entity-type", "topics", "--entity-name", "orders", "--add-config", "flush.ms=9"),
        (tools.CONFIGS, "--alter", "--entity-type", "brokers", "--entity-name", "1", "--add-config", "log.roll.ms=9"),
        (tools.CONFIGS, "--alter", "--entity-type", "clients", "--entity-name", "c", *quota),
        (tools.CONFIGS, "--alter", "--entity-type", "users", "--entity-default", *quota),
        (tools.CONFIGS, "--alter", "--entity-type", "users", "--entity-name", "u", *password),
        (tools.FEATURES, "upgrade", "--feature", "group.version=1"),
        (tools.DELETE_RECORDS, "--offset-json-file", str(file)),
        (tools.CONSUMER_GROUPS, "--delete", "--group", "billing"),
        (tools.CONSUMER_GROUPS, "--delete-offsets", "--group", "billing", *orders),
        (tools.TRANSACTIONS, "abort", *orders, "--partition", "0", *producer),
        (tools.REASSIGN_PARTITIONS, "--execute", "--reassignment-json-file", str(moved)),
        (tools.ACLS, "--add", "--allow-principal", "User:a", "--operation", "read", *orders),
    ]  # fmt: skip
    log, seen = tmp_path / "requests", 0
    with serving(unpacked(tmp_path / "data"), "--read-only", "--request-log", log) as served:
        for command in commands:
            (found,) = tools.tools_in_turn(served.bootstrap, [command])
            counts, seen = requests_of(log, seen)
            assert found.status or any("rror" in line for line in found.lines), command
            assert max(counts.values(), default=0) <= MOST_REQUESTS, (command, counts)


def test_quotas_and_feature_levels_are_not_changed_by_a_server_for_writes(tmp_path: Path) -> None:
    with serving(new_node(tmp_path / "data")) as served:
        quota = ("--entity-type", "clients", "--entity-name", "c", "--add-config", "producer_byte_rate=9")
        for command in (
            (tools.CONFIGS, "--alter", *quota),
            (tools.FEATURES, "downgrade", "--feature", "group.version=0"),
        ):
            (found,) = tools.tools_in_turn(served.bootstrap, [command])
            assert found.status == 1
            assert any("this server does not offer this request" in line for line in found.lines), found
