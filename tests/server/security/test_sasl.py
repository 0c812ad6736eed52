"""SASL over real sockets: a real client, the order of requests, wrong and unknown users."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.errors import KafkaError
from scramp import ScramClient

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.requests import Request
from sediment.server.security.credentials import Credentials
from sediment.server.security.sasl import PlainSaslServer, SaslAuthenticationError, ScramSaslServer
from sediment.server.security.tls import server_context
from tests.server.network.listeners import Running, api_versions, listener
from tests.server.security.certificates import write_certificates
from tests.server.security.scram_users import authenticate, credential, handshake, scram

USERS = Credentials(
    {
        ("SCRAM-SHA-256", "alice"): credential("alice-secret"),
        ("SCRAM-SHA-512", "alice"): credential("alice-secret", "SCRAM-SHA-512"),
        ("SCRAM-SHA-256", "bob"): credential("bob-secret", salt=b"fedcba9876543210"),
    }
)


class Broker:
    """A handler of Metadata that names itself and remembers the principals."""

    def __init__(self) -> None:
        self.port = 0
        self.principals: set[str] = set()

    def __call__(self, request: Request) -> Any:
        self.principals.add(request.connection.principal)
        response = m.MetadataResponse
        return response(
            brokers=[response.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)],
            cluster_id="c",
            controller_id=1,
            topics=[response.MetadataResponseTopic(name="orders", partitions=[])],
        )


def connect_with_client(running: Running, broker: Broker, **config: Any) -> set[str]:
    broker.port = running.port
    consumer = KafkaConsumer(
        bootstrap_servers=f"127.0.0.1:{running.port}",
        request_timeout_ms=60_000,
        reconnect_backoff_ms=10,
        **{"bootstrap_timeout_ms": 60_000, **config},
    )
    try:
        return set(consumer.topics())
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_client_of_kafka_authenticates_with_scram(mechanism):
    broker = Broker()
    with listener({ApiKey.METADATA: broker}, credentials=USERS) as running:
        topics = connect_with_client(
            running,
            broker,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password="alice-secret",
        )
    assert topics == {"orders"}
    assert broker.principals == {"User:alice"}


def test_a_client_of_kafka_authenticates_with_plain_over_tls(tmp_path):
    broker, files = Broker(), write_certificates(tmp_path)
    tls = server_context(files.certificate, files.key)
    with listener({ApiKey.METADATA: broker}, tls=tls, credentials=USERS) as running:
        topics = connect_with_client(
            running,
            broker,
            security_protocol="SASL_SSL",
            ssl_cafile=str(files.authority),
            sasl_mechanism="PLAIN",
            sasl_plain_username="bob",
            sasl_plain_password="bob-secret",
        )
    assert topics == {"orders"}
    assert broker.principals == {"User:bob"}


def test_a_client_of_kafka_with_a_wrong_password_is_refused():
    broker = Broker()
    with listener({ApiKey.METADATA: broker}, credentials=USERS) as running, pytest.raises(KafkaError):
        connect_with_client(
            running,
            broker,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username="alice",
            sasl_plain_password="bob-secret",
            bootstrap_timeout_ms=1_500,
        )
    assert broker.principals == set()


def test_before_authentication_only_api_versions_and_sasl_are_answered(caplog):
    broker = Broker()
    with listener({ApiKey.METADATA: broker}, credentials=USERS) as running:
        with running.connect() as client:
            assert client.ask(api_versions(), 3).error_code == 0
            client.send(m.MetadataRequest(), 12)
            assert client.is_closed()
        with running.connect() as client:
            scram(client, "alice", "alice-secret")
            assert client.ask(m.MetadataRequest(), 12).cluster_id == "c"
    assert "Metadata came before authentication" in caplog.text


def test_an_unauthenticated_request_of_more_than_64_kib_is_refused(caplog):
    with listener(credentials=USERS) as running:
        with running.connect() as client:
            client.socket.sendall((65537).to_bytes(4, "big") + b"\0\0")
            assert client.is_closed()
        with running.connect() as client:
            scram(client, "alice", "alice-secret")
            client.socket.sendall((65537).to_bytes(4, "big") + b"\0\x12\0\3")
            assert not client.is_closed(within_seconds=0.2)
    assert "above the limit of 65536" in caplog.text


def test_a_connection_that_does_not_authenticate_in_time_is_closed():
    with listener(credentials=USERS, request_receive_timeout_ms=1500) as running, running.connect() as client:
        assert client.ask(api_versions(), 3).error_code == 0
        assert client.is_closed()


def test_plain_is_refused_without_tls():
    with listener(credentials=USERS) as running, running.connect() as client:
        response = handshake(client, "PLAIN")
        assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert list(response.mechanisms) == ["SCRAM-SHA-512", "SCRAM-SHA-256"]
        assert client.is_closed()


def test_requests_of_sasl_in_a_wrong_order_are_illegal_states():
    with listener(credentials=USERS) as running:
        with running.connect() as early:
            assert authenticate(early, b"n,,").error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert early.is_closed()
        with running.connect() as twice:
            assert handshake(twice, "SCRAM-SHA-256").error_code == 0
            assert handshake(twice, "SCRAM-SHA-256").error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert twice.is_closed()
        with running.connect() as after:
            scram(after, "bob", "bob-secret")
            assert handshake(after, "SCRAM-SHA-256").error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert authenticate(after, b"").error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert after.ask(api_versions(), 3).error_code == 0


def test_a_wrong_password_and_an_unknown_user_cannot_be_told_apart(caplog):
    shapes, failures = set(), []
    with listener(credentials=USERS, connection_failed_authentication_delay_ms=1) as running:
        for user, password in (("alice", "wrong"), ("mallory", "wrong"), ("mallory", "alice-secret")):
            salts = set()
            for _ in range(2):
                with running.connect() as client:
                    first, failure = scram(client, user, password)
                    assert client.is_closed()
                nonce, salt, iterations = first.split(",")
                salts.add(salt)
                shapes.add((len(nonce), len(salt), iterations))
                failures.append((failure.error_code, failure.error_message, bytes(failure.auth_bytes)))
            assert len(salts) == 1
    assert len(shapes) == 1
    assert set(failures) == {
        (
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256",
            b"",
        )
    }
    assert "alice-secret" not in caplog.text and "wrong" not in caplog.text


def functions_called(act) -> list[str]:
    """Return the functions, in Python and C, that `act` calls, in order; it may fail to authenticate."""
    called: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            called.append(frame.f_code.co_name if event == "call" else argument.__qualname__)

    sys.setprofile(note)
    try:
        act()
    except SaslAuthenticationError:
        pass
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_an_unknown_user_costs_the_same_steps_as_a_known_one(mechanism):
    """Times differ by microseconds, which a client can measure and a test cannot; the work that makes them does not."""

    def steps(user: str) -> list[str]:
        if mechanism == "PLAIN":
            return functions_called(lambda: PlainSaslServer(lambda: USERS).evaluate(f"\0{user}\0wrong".encode()))
        client = ScramClient([mechanism], user, "wrong")
        server = ScramSaslServer(mechanism, lambda: USERS)
        first = client.get_client_first().encode()
        answers: list[bytes] = []
        called = functions_called(lambda: answers.append(server.evaluate(first)))
        client.set_server_first(answers[0].decode())
        final = client.get_client_final().encode()
        return called + functions_called(lambda: server.evaluate(final))

    steps("alice")  # imports
    known, unknown = steps("alice"), steps("mallo")
    assert any("hmac" in each.lower() or "digest" in each for each in known)
    assert unknown == known


TOKENS = {
    "empty": b"",
    "not UTF-8": b"\xff\xfe",
    "no attributes": b"n,,",
    "reserved attribute": b"n,,m=x,n=alice,r=abc",
    "another identity": b"n,a=bob,n=alice,r=abc",
    "channel binding": b"p=tls-unique,,n=alice,r=abc",
    "delegation token": b"n,,n=alice,r=abc,tokenauth=true",
    "bad escape": b"n,,n=ali=ce,r=abc",
    "long": b"n,,n=" + b"a" * 60_000 + b",r=abc,",
}


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
def test_a_malformed_token_is_an_authentication_failure(token):
    with (
        listener(credentials=USERS, connection_failed_authentication_delay_ms=1) as running,
        running.connect() as client,
    ):
        assert handshake(client, "SCRAM-SHA-256").error_code == 0
        assert authenticate(client, token).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed()


@pytest.mark.parametrize("token", [b"", b"alice", b"\0alice\0wrong", b"\0\0alice-secret", b"bob\0alice\0alice-secret",
                                   b"\0alice\0alice-secret\0", b"\0\xff\0x"])  # fmt: skip
def test_a_wrong_token_of_plain_is_an_authentication_failure(token, tmp_path):
    files = write_certificates(tmp_path)
    tls = server_context(files.certificate, files.key)
    with (
        listener(tls=tls, credentials=USERS, connection_failed_authentication_delay_ms=1) as running,
        running.connect(files.client_context()) as client,
    ):
        assert handshake(client, "PLAIN").error_code == 0
        assert authenticate(client, token).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert client.is_closed()


def test_the_response_to_a_failure_waits():
    config = {"connection_failed_authentication_delay_ms": 300}
    with listener(credentials=USERS, **config) as running, running.connect() as client:
        assert handshake(client, "SCRAM-SHA-256").error_code == 0
        started = time.monotonic()
        authenticate(client, b"")
        assert time.monotonic() - started >= 0.3


def test_the_end_of_a_connection_after_a_wrong_token_of_version_0_waits_too():
    config = {"connection_failed_authentication_delay_ms": 300}
    with listener(credentials=USERS, **config) as running, running.connect() as client:
        assert handshake(client, "SCRAM-SHA-256", version=0).error_code == 0
        started = time.monotonic()
        client.send_frame(b"n,,n=bob")
        assert client.is_closed()
        assert time.monotonic() - started >= 0.3


@pytest.mark.parametrize(("password", "is_right"), [("bob-secret", True), ("wrong", False)])
def test_a_handshake_of_version_0_is_followed_by_tokens_without_headers(password, is_right):
    exchange = ScramClient(["SCRAM-SHA-256"], "bob", password)
    with listener(credentials=USERS) as running, running.connect() as client:
        assert handshake(client, "SCRAM-SHA-256", version=0).error_code == 0
        client.send_frame(exchange.get_client_first().encode())
        exchange.set_server_first(client.receive_frame().decode())
        client.send_frame(exchange.get_client_final().encode())
        if is_right:
            exchange.set_server_final(client.receive_frame().decode())
            assert client.ask(api_versions(), 3).error_code == 0
        else:
            assert client.is_closed()


def test_many_clients_authenticate_at_once():
    with listener(credentials=USERS) as running:
        clients = [running.connect() for _ in range(20)]
        for client, user in zip(clients, itertools.cycle(["alice", "bob"]), strict=False):
            assert scram(client, user, f"{user}-secret")[1].error_code == 0
        for client in clients:
            client.socket.close()
