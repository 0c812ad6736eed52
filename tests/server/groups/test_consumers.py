"""Real consumers share groups on a served directory: they join, leave, restart and fall silent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from kafka import KafkaConsumer

from sediment.segment_io.fs import Fs
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.backends.read_only import ReadOnlyOptions
from sediment.server.kafka_server import KafkaServer, ServerOptions
from sediment.server.network.endpoints import Endpoint
from sediment.server.server_config import ServerConfig
from tests.consumers import confluent_consumer
from tests.served import unpacked
from tests.server.handlers.group_servers import join, join_request
from tests.server.network.listeners import Client
from tests.waiting import wait_until

ORDERS = {0, 1}
GROUP = "consumers"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("served") / "data")


@pytest.fixture
def server(directory: Path) -> Iterator[KafkaServer]:
    config = ServerConfig(group_initial_rebalance_delay_ms=0, group_min_session_timeout_ms=500)
    with KafkaServer(
        ServerOptions(ReadOnlyOptions((directory,)), Endpoint("127.0.0.1", 0), config=config), Fs()
    ) as running:
        wait_until(lambda: described(running).error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        yield running


class Member:
    """A consumer of `orders` that polls in a thread until it is closed."""

    def __init__(self, server: KafkaServer, **options: Any) -> None:
        self._consumer = KafkaConsumer(
            "orders",
            bootstrap_servers=str(server.bound),
            group_id=GROUP,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=100,
            session_timeout_ms=6000,
            # A subscription during the client's first metadata request waits for the next one, by default five minutes.
            metadata_max_age_ms=500,
            **options,
        )
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self.records = 0
        self._thread.start()

    def _poll(self) -> None:
        while not self._is_closing.is_set():
            # A poll that ends while the client waits for an answer to SyncGroup leaves kafka-python without its group.
            found = self._consumer.poll(timeout_ms=1000)
            self.records += sum(map(len, found.values()))

    @property
    def assigned(self) -> set[int]:
        """The numbers of the partitions that the consumer has now."""
        return {each.partition for each in self._consumer.assignment()}

    def close(self) -> None:
        """Close the consumer; a dynamic member leaves its group."""
        if self._thread.is_alive():
            self._is_closing.set()
            self._thread.join()
            self._consumer.close()


@contextmanager
def member(server: KafkaServer, **options: Any) -> Iterator[Member]:
    running = Member(server, **options)
    try:
        yield running
    finally:
        running.close()


def shared(first: Member, second: Member) -> bool:
    return len(first.assigned) == len(second.assigned) == 1 and first.assigned | second.assigned == ORDERS


def described(server: KafkaServer) -> Any:
    with connected(server) as client:
        return client.ask(m.DescribeGroupsRequest(groups=[GROUP]), 6).groups[0]


def connected(server: KafkaServer) -> Client:
    return Client(socket.create_connection((server.bound.host, server.bound.port), timeout=60))


def test_two_consumers_share_the_partitions_and_one_takes_over(server: KafkaServer) -> None:
    with member(server) as first:
        wait_until(lambda: first.assigned == ORDERS and first.records)
        with member(server) as second:
            wait_until(lambda: shared(first, second))
        wait_until(lambda: first.assigned == ORDERS)
    wait_until(lambda: described(server).group_state == "Empty")


def test_a_consumer_of_the_new_protocol_is_refused_at_once_and_for_good(server: KafkaServer) -> None:
    errors: list[confluent.KafkaError] = []
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": str(server.bound),
            "group.id": "new",
            "group.protocol": "consumer",
            "error_cb": errors.append,
        }
    )
    consumer.subscribe(["orders"])

    def is_refused() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is not None:
            errors.append(message.error())
        return any("ConsumerGroupHeartbeat fatal error" in error.str() for error in errors)

    wait_until(is_refused)
    consumer.close()
    with connected(server) as client:
        answer = client.ask(m.ConsumerGroupHeartbeatRequest(group_id="new", member_id="m"), 1)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert answer.error_message.endswith("set group.protocol=classic")


def test_a_static_member_that_restarts_causes_no_rebalance(server: KafkaServer) -> None:
    with member(server, group_instance_id="pod-1") as first:
        with member(server, group_instance_id="pod-2") as second:
            wait_until(lambda: shared(first, second))
            former = second.assigned
            before = described(server)
        assert {each.member_id for each in described(server).members} == {each.member_id for each in before.members}
        with member(server, group_instance_id="pod-2") as again:
            wait_until(lambda: again.assigned)
            assert again.assigned == former
            after = described(server)
    assert (after.group_state, len(after.members)) == ("Stable", 2)
    assert {each.member_assignment for each in after.members} == {each.member_assignment for each in before.members}
    kept = {each.member_id for each in after.members} & {each.member_id for each in before.members}
    assert len(kept) == 1


def test_the_partitions_of_a_consumer_that_falls_silent_go_to_the_others(server: KafkaServer) -> None:
    with connected(server) as silent:
        name = "range"
        protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=b"\0\0" + b"\0" * 4 + b"\xff" * 4)
        gone = join(silent, group=GROUP, session_timeout_ms=4000, protocols=[protocol])
        assert gone.error_code == 0
        with member(server) as other:
            wait_until(lambda: other.assigned == ORDERS)
            assert gone.member_id not in {each.member_id for each in described(server).members}
        refused = silent.ask(join_request(GROUP, gone.member_id), 9)
        assert refused.error_code


def test_cooperative_consumers_move_only_the_partitions_that_must_move(server: KafkaServer) -> None:
    options = {
        "group_id": GROUP,
        "partition_assignment_strategy": "cooperative-sticky",
        "session_timeout_ms": "6000",
        "heartbeat_interval_ms": "100",
        "auto_offset_reset": "earliest",
    }

    def numbers(partitions: list[confluent.TopicPartition]) -> set[int]:
        return {each.partition for each in partitions}

    bootstrap = str(server.bound)
    with confluent_consumer(bootstrap, **options) as first, confluent_consumer(bootstrap, **options) as second:
        revoked: set[int] = set()
        first.subscribe(["orders"], on_revoke=lambda _, partitions: revoked.update(numbers(partitions)))

        def share() -> tuple[set[int], set[int]]:
            first.poll(0.05)
            second.poll(0.05)
            return numbers(first.assignment()), numbers(second.assignment())

        wait_until(lambda: share()[0] == ORDERS)
        second.subscribe(["orders"])
        wait_until(lambda: all(share()) and set.union(*share()) == ORDERS)
        kept, moved = share()
        assert len(kept) == len(moved) == 1
        assert revoked == moved
