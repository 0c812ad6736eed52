"""Every request that a server offers gets a response in every version, whatever is in its fields.

A client may send a request that makes no sense, such as one with an unknown topic or an empty name.  A closed
connection would tell the client nothing, and it would connect and send the request again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.fs import Fs
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey, request_class, supported_versions
from sediment.server.backends.read_only import ReadOnlyOptions
from sediment.server.kafka_server import KafkaServer, ServerOptions
from sediment.server.network.endpoints import Endpoint
from tests.segment_io.protocol.random_messages import random_message
from tests.server.live.nodes import live, new_node
from tests.server.network.listeners import Client
from tests.server.read_only.log_dirs import write_partition

MESSAGES_OF_A_VERSION = 12
NO_ACKS = 0


@contextmanager
def read_only_server(path: Path) -> Iterator[KafkaServer]:
    for name in ("t-0", "t-2"):
        write_partition(path, name, 3)
    with KafkaServer(ServerOptions(ReadOnlyOptions((path,)), Endpoint("127.0.0.1", 0)), Fs()) as server:
        yield server


@contextmanager
def live_server(path: Path) -> Iterator[KafkaServer]:
    with live(new_node(path / "data", {"t": 2}), group_initial_rebalance_delay_ms=0) as running:
        yield running.server


@pytest.fixture(params=[read_only_server, live_server], ids=["read-only", "live"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KafkaServer]:
    with request.param(tmp_path) as running:
        yield running


def requests_of(key: ApiKey, version: int) -> Iterator[Any]:
    """Yield requests with empty fields, then with plausible random values."""
    name = request_class(key).__name__
    yield plausible(request_class(key)())
    for seed in range(MESSAGES_OF_A_VERSION):
        chance = random.Random(f"{name} {version} {seed}")
        yield plausible(random_message(name, version, chance, small=True, plausible=True))


def plausible(message: Any) -> Any:
    if isinstance(message, m.ProduceRequest) and message.acks == NO_ACKS:
        message.acks = -1  # a produce without acks gets no response
    return message


def test_every_version_of_every_request_gets_a_response(server: KafkaServer) -> None:
    port = server.bound.port
    with Client.to(port) as client:
        offered = client.ask(m.ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4).api_keys
    asked = {ApiKey(each.api_key) for each in offered} | {ApiKey.INIT_PRODUCER_ID}
    unanswered = []
    for key in sorted(asked):
        for version in supported_versions(key):
            for message in requests_of(key, version):
                with Client.to(port) as client:
                    try:
                        client.ask(message, version)
                    except (ConnectionError, TimeoutError) as error:
                        unanswered.append((key.name, version, error, message))
    assert not unanswered, [each[:3] for each in unanswered]
