"""Bytes of clients that are wrong, early, too many or too large: what each of them gets, over real sockets.

The limits are those of docs/reference/commands.md, serve; what is wrong with topics and records is tested with the
handlers.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from tests.server.network.listeners import Client, api_versions, frame, listener

SECRET = b"not-for-the-log"


def echo_handlers() -> dict[ApiKey, Any]:
    return {
        ApiKey.HEARTBEAT: lambda _: m.HeartbeatResponse(),
        ApiKey.METADATA: lambda _: m.MetadataResponse(),
        ApiKey.PRODUCE: lambda _: m.ProduceResponse(),
    }


def header(api_key: int, version: int, client_id: bytes = b"c") -> bytes:
    return struct.pack(">hhih", api_key, version, 5, len(client_id)) + client_id


CASES = {
    "size 0": (struct.pack(">i", 0), "has the size 0"),
    "negative size": (struct.pack(">i", -5), "has the size -5"),
    "size above socket.request.max.bytes": (struct.pack(">ih", 104857601, 0), "above the limit of 104857600"),
    "largest size": (struct.pack(">ih", 2**31 - 1, 0), "above the limit of 104857600"),
    "other request above 8 MiB": (struct.pack(">ih", (8 << 20) + 1, 3), "above the limit of 8388608 for API 3"),
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "the peer speaks HTTP"),
    "tls to a plain listener": (
        bytes.fromhex("16030100f1010000ed0303") + bytes(200),
        "the peer speaks TLS, but this listener does not; give the client security.protocol=PLAINTEXT",
    ),
    "no room for a header": (struct.pack(">i", 3) + b"\0\x12\0", "ends inside its header"),
    "unknown API": (struct.pack(">i", 11) + header(999, 0), "API key 999 is unknown"),
    "negative API": (struct.pack(">i", 11) + header(-1, 0), "API key -1 is unknown"),
    "API without a handler": (struct.pack(">i", 11) + header(1, 11), "Fetch version 11 is not offered"),
    "version above": (struct.pack(">i", 12) + header(3, 99) + b"\0", "Metadata version 99 is not offered"),
    "version below": (struct.pack(">i", 11) + header(3, -1), "Metadata version -1 is not offered"),
    "removed version of Produce": (struct.pack(">i", 11) + header(0, 2), "Produce version 2 is not offered"),
    "body cut off": (struct.pack(">i", 13) + header(12, 0) + b"\0\x05", "HeartbeatRequest version 0"),
    "null where none may be": (
        struct.pack(">i", 11 + 8) + header(12, 0) + b"\xff\xff\0\0\0\1\0\0",
        "HeartbeatRequest version 0",
    ),
    "invalid UTF-8": (
        struct.pack(">i", 11 + 10) + header(12, 0) + b"\0\x02\xc3\x28\0\0\0\1\0\0",
        "HeartbeatRequest version 0",
    ),
    "client id not UTF-8": (struct.pack(">i", 12) + header(12, 0, b"\xff\xff"), "header"),
    "client id longer than the request": (struct.pack(">ihhih", 10, 12, 0, 5, 30000), "header"),
    "array of 2^31 elements": (
        struct.pack(">i", 15) + header(3, 4) + struct.pack(">i", 2**31 - 1),
        "MetadataRequest version 4",
    ),
    "100,001 elements": (
        struct.pack(">i", 15 + 2 * 100_001) + header(3, 4) + struct.pack(">i", 100_001) + bytes(2 * 100_001),
        "it has more than 100000 elements",
    ),
    "1,001 tagged fields in the header": (
        struct.pack(">i", 13 + 2 * 1001) + header(3, 12) + b"\xe9\x07" + bytes(2 * 1001),
        "1001 tagged fields are announced",
    ),
}


@pytest.mark.parametrize(("sent", "logged"), CASES.values(), ids=CASES)
def test_a_bad_request_closes_its_connection_and_is_logged_with_the_peer(sent, logged, caplog):
    with listener(echo_handlers()) as running, running.connect() as client, running.connect() as other:
        peer = f"127.0.0.1:{client.socket.getsockname()[1]}"
        client.socket.sendall(sent)
        assert client.is_closed()
        assert other.ask(api_versions(), 3).error_code == 0
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert peer in lines[0] and logged in lines[0], lines


def test_bytes_after_a_request_are_ignored_because_librdkafka_sends_some():
    with listener() as running, running.connect() as client:
        client.send_frame(header(18, 0) + bytes(3))
        number, response = client.receive(ApiKey.API_VERSIONS, 0)
        assert (number, response.error_code) == (5, 0)


def test_a_malformed_request_is_logged_with_api_version_and_position_but_without_content(caplog):
    body = header(12, 0) + struct.pack(">h", len(SECRET)) + SECRET + b"\0\0"
    with listener(echo_handlers()) as running, running.connect() as client:
        client.send_frame(body)
        assert client.is_closed()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "HeartbeatRequest version 0" in line and "position" in line
    assert SECRET.decode() not in line


@pytest.mark.parametrize("version", [5, 99, -1, 32767])
def test_an_unknown_version_of_api_versions_is_answered_with_the_known_ones(version):
    with listener() as running, running.connect() as client:
        client.send_frame(header(18, version) + b"\0garbage")
        number, response = client.receive(ApiKey.API_VERSIONS, 0)
        assert (number, response.error_code) == (5, ErrorCode.UNSUPPORTED_VERSION)
        assert [(each.api_key, each.min_version, each.max_version) for each in response.api_keys] == [(18, 0, 4)]
        assert client.ask(api_versions(), 4).error_code == 0


@pytest.mark.parametrize("name", ["", " ", "-a", "a-", "a b", "a\n", "ä", "a" * 30_000 + "!"])
def test_a_client_software_name_that_kafka_refuses_is_refused(name):
    with listener() as running, running.connect() as client:
        for wrong in (
            m.ApiVersionsRequest(client_software_name=name, client_software_version="1"),
            m.ApiVersionsRequest(client_software_name="a", client_software_version=name),
        ):
            assert client.ask(wrong, 3).error_code == ErrorCode.INVALID_REQUEST
        assert client.ask(api_versions(), 3).error_code == 0


def test_saslhandshake_and_saslauthenticate_without_sasl_are_illegal_states():
    with listener() as running, running.connect() as client:
        assert client.ask(m.SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.ask(m.SaslAuthenticateRequest(), 2).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.ask(api_versions(), 3).error_code == 0


def test_a_produce_may_be_larger_than_8_mib():
    request = m.ProduceRequest(
        topic_data=[
            m.ProduceRequest.TopicProduceData(
                name="t", partition_data=[m.ProduceRequest.PartitionProduceData(index=0, records=bytes(9 << 20))]
            )
        ]
    )
    with listener(echo_handlers()) as running, running.connect() as client:
        client.send(request, 9)
        assert client.receive(ApiKey.PRODUCE, 9)[1] == m.ProduceResponse()


def test_a_request_in_single_bytes_is_served():
    with listener() as running, running.connect() as client:
        for each in frame(api_versions(), 3, 1):
            client.socket.sendall(bytes([each]))
        assert client.receive(ApiKey.API_VERSIONS, 3)[0] == 1


def test_a_client_that_sends_without_reading_is_not_read_either():
    """The requests stay in the client's socket: the server holds one response at most."""
    with listener() as running, running.connect() as client:
        client.socket.settimeout(0.3)
        sent = 0
        with pytest.raises(TimeoutError):
            for _ in range(1_000_000):
                sent += client.socket.send(frame(api_versions(), 3, 1) * 100)
        assert sent < 20_000_000
        assert running.server.memory.free_bytes > 268_000_000
        with running.connect() as other:
            assert isinstance(other, Client)
            assert other.ask(api_versions(), 3).error_code == 0
