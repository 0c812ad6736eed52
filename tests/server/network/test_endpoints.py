"""Addresses in options, and the one that clients get."""

from __future__ import annotations

import pytest

from sediment.segment_io.errors import UsageError
from sediment.server.network.endpoints import Endpoint, choose_advertised, parse_endpoint
from sediment.server.network.socket_server import bind
from sediment.server.server_config import ServerConfig


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:9092", Endpoint("127.0.0.1", 9092)),
        ("kafka.example:0", Endpoint("kafka.example", 0)),
        ("[::1]:65535", Endpoint("::1", 65535)),
    ],
)
def test_an_endpoint_is_a_host_and_a_port(text, endpoint):
    assert parse_endpoint(text, "--listen") == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":9092",
        "9092",
        "host",
        "host:",
        "host:65536",
        "host:-1",
        "host:٣",
        "::1:9092",
        "h\n:1",
        "[]:1",
        f"h:{10**4000}{10**4000}",
    ],
)
def test_anything_else_is_wrong_use(text):
    with pytest.raises(UsageError, match="is not HOST:PORT; write"):
        parse_endpoint(text, "--listen")


def test_port_0_cannot_be_advertised():
    with pytest.raises(UsageError, match="--advertise 'host:0'"):
        parse_endpoint("host:0", "--advertise", least_port=1)


@pytest.mark.parametrize(
    ("host", "number", "is_loopback", "is_wildcard"),
    [
        ("localhost", "127.0.0.1", True, False),
        ("127.0.0.2", "127.0.0.2", True, False),
        ("::1", "::1", True, False),
        ("0.0.0.0", "0.0.0.0", False, True),
        ("::", "::", False, True),
        ("192.0.2.7", "192.0.2.7", False, False),
    ],
)
def test_a_host_is_resolved_to_a_number(host, number, is_loopback, is_wildcard):
    found = Endpoint(host, 1).resolve()
    assert (found.host, found.is_loopback, found.is_wildcard) == (number, is_loopback, is_wildcard)


def test_a_host_without_an_address_is_wrong_use():
    with pytest.raises(UsageError, match="has no address"):
        Endpoint("no.such.host.invalid", 1).resolve()


def test_clients_get_the_number_of_the_loopback_and_the_name_of_another_host():
    assert choose_advertised(Endpoint("localhost", 0), Endpoint("127.0.0.1", 4711), None) == Endpoint("127.0.0.1", 4711)
    assert choose_advertised(Endpoint("kafka.test", 1), Endpoint("192.0.2.7", 1), None) == Endpoint("kafka.test", 1)
    given = Endpoint("kafka.test", 9093)
    assert choose_advertised(Endpoint("0.0.0.0", 1), Endpoint("0.0.0.0", 1), given) == given


def test_a_wildcard_address_needs_an_advertised_one():
    with pytest.raises(UsageError, match="--advertise HOST:PORT"):
        choose_advertised(Endpoint("0.0.0.0", 1), Endpoint("0.0.0.0", 1), None)


def test_an_address_in_use_or_of_another_machine_is_wrong_use():
    with bind(Endpoint("127.0.0.1", 0), ServerConfig()) as listening:
        listening.listen()
        taken = Endpoint("127.0.0.1", listening.getsockname()[1])
        with pytest.raises(UsageError, match=rf"cannot listen on {taken}: Address already in use"):
            bind(taken, ServerConfig())
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.7:1"):
        bind(Endpoint("192.0.2.7", 1), ServerConfig())
