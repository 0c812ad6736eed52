"""librdkafka's consumers with `group.protocol=consumer` on a live server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

import sediment
from tests.waiting import wait_until

BEAT_MS = 100
CONFIGS = {
    "group_consumer_heartbeat_interval_ms": BEAT_MS,
    "group_consumer_min_heartbeat_interval_ms": BEAT_MS,
    "auto_create_topics_enable": False,
}
GROUP = "g"


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    with sediment.broker(tmp_path / "data", **CONFIGS) as broker:
        create(broker.bootstrap, orders=4)
        yield broker.bootstrap


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def create(bootstrap: str, **counts: int) -> None:
    client = admin(bootstrap)
    for made in client.create_topics([NewTopic(name, count, 1) for name, count in counts.items()]).values():
        made.result()


def described(bootstrap: str) -> Any:
    """Return the group as an administrator sees it."""
    client = admin(bootstrap)
    return client.describe_consumer_groups([GROUP])[GROUP].result()


@contextmanager
def member(bootstrap: str, *topics: str, **options: Any) -> Iterator[confluent.Consumer]:
    given = {f.replace("_", "."): value for f, value in options.items()}
    configs = {
        "bootstrap.servers": bootstrap,
        "group.id": GROUP,
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **given,
    }
    with closing(confluent.Consumer(configs)) as consumer:
        consumer.subscribe(list(topics))
        yield consumer


def partitions(consumer: confluent.Consumer) -> set[tuple[str, int]]:
    return {(each.topic, each.partition) for each in consumer.assignment()}


def polled(*consumers: confluent.Consumer) -> Callable[[Callable[[], bool]], None]:
    """Return a function that polls the consumers until a condition holds."""

    def wait(holds: Callable[[], bool]) -> None:
        def ask() -> bool:
            for consumer in consumers:
                message = consumer.poll(0.02)
                assert message is None or message.error() is None, message.error()
            return holds()

        wait_until(ask, limit_seconds=60)

    return wait


def numbered(*names: str, count: int = 4) -> set[tuple[str, int]]:
    return {(name, number) for name in names for number in range(count)}


def test_members_share_the_partitions_and_take_over_from_each_other(bootstrap: str) -> None:
    with member(bootstrap, "orders") as first:
        polled(first)(lambda: partitions(first) == numbered("orders"))
        with member(bootstrap, "orders") as second:
            polled(first, second)(lambda: len(partitions(first)) == len(partitions(second)) == 2)
            assert partitions(first) | partitions(second) == numbered("orders")
            found = described(bootstrap)
            assert (found.state, found.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
            assert [len(each.assignment.topic_partitions) for each in found.members] == [2, 2]
        polled(first)(lambda: partitions(first) == numbered("orders"))


def test_offsets_are_committed_and_read_again(bootstrap: str) -> None:
    producer = confluent.Producer({"bootstrap.servers": bootstrap})
    for number in range(4):
        producer.produce("orders", b"v", partition=number)
    producer.flush()
    with member(bootstrap, "orders") as consumer:
        found = [message for _ in range(4) for message in consumer.consume(1, 30)]
        assert len(found) == 4
        consumer.commit(asynchronous=False)
    producer.produce("orders", b"next", partition=2)
    producer.flush()
    with member(bootstrap, "orders") as consumer:
        (message,) = consumer.consume(1, 30)
        assert (message.partition(), message.offset(), message.value()) == (2, 1, b"next")
    client = admin(bootstrap)
    client.delete_consumer_groups([GROUP])[GROUP].result()


def test_a_regular_expression_and_new_partitions(bootstrap: str) -> None:
    create(bootstrap, ordinary=4, other=4)
    with member(bootstrap, "^ord.*") as consumer:
        wait = polled(consumer)
        wait(lambda: partitions(consumer) == numbered("orders", "ordinary"))
        client = admin(bootstrap)
        client.create_partitions([NewPartitions("orders", 6)])["orders"].result()
        wait(lambda: partitions(consumer) == numbered("orders", count=6) | numbered("ordinary"))


def test_members_continue_after_a_restart_of_the_server(tmp_path: Path) -> None:
    with sediment.broker(tmp_path / "data", **CONFIGS) as broker:
        port = int(broker.bootstrap.rpartition(":")[2])
        create(broker.bootstrap, orders=4)
        consumer = member(broker.bootstrap, "orders", reconnect_backoff_max_ms=200)
        first = consumer.__enter__()
        polled(first)(lambda: partitions(first) == numbered("orders"))
        (before,) = described(broker.bootstrap).members
    with sediment.broker(tmp_path / "data", port=port, **CONFIGS) as broker:
        producer = confluent.Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", b"after", partition=1)
        producer.flush()
        found: list[bytes] = []

        def has_read() -> bool:
            message = first.poll(0.05)
            if message is not None and message.error() is None:
                found.append(message.value())
            return bool(found)

        wait_until(has_read, limit_seconds=60)
        (after,) = described(broker.bootstrap).members
        assert after.member_id == before.member_id
        consumer.__exit__(None, None, None)


def test_a_classic_consumer_joins_a_group_of_the_new_protocol_and_stays_when_the_others_leave(bootstrap: str) -> None:
    classic_options = {"group_protocol": "classic", "heartbeat_interval_ms": BEAT_MS, "session_timeout_ms": 6000}
    with member(bootstrap, "orders", partition_assignment_strategy="range", **classic_options) as classic:
        polled(classic)(lambda: partitions(classic) == numbered("orders"))
        with member(bootstrap, "orders") as new:
            polled(classic, new)(lambda: len(partitions(classic)) == len(partitions(new)) == 2)
            assert partitions(classic) | partitions(new) == numbered("orders")
            found = described(bootstrap)
            assert found.type is ConsumerGroupType.CONSUMER
        polled(classic)(lambda: partitions(classic) == numbered("orders"))
        found = described(bootstrap)
        assert found.type is ConsumerGroupType.CLASSIC


def test_an_expression_beyond_the_limits_is_an_error_of_the_consumer(bootstrap: str) -> None:
    with member(bootstrap, "^a{2000}") as consumer:
        message = next(each for each in iter(lambda: consumer.poll(1), 0) if each is not None)
        assert "regular expression is not valid" in message.error().str()
