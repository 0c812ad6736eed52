"""TLS over real sockets, and its files."""

from __future__ import annotations

import socket
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from sediment.segment_io.errors import UsageError
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.server.requests import Request
from sediment.server.security.tls import server_context
from tests.server.network.listeners import api_versions, frame, listener
from tests.server.security.certificates import write_certificates
from tests.waiting import wait_until


@pytest.fixture
def files(tmp_path):
    return write_certificates(tmp_path)


def fetch_response(size_bytes: int):
    response = m.FetchResponse
    partition = response.PartitionData(partition_index=0, records=bytes(range(256)) * (size_bytes // 256))
    return response(responses=[response.FetchableTopicResponse(topic="t", partitions=[partition])])


def test_requests_and_large_responses_go_through_tls(files):
    large = fetch_response(10_000_000)
    tls = server_context(files.certificate, files.key)
    with (
        listener({ApiKey.FETCH: lambda _: large}, tls=tls) as running,
        running.connect(files.client_context()) as client,
    ):
        assert client.socket.version() == "TLSv1.3"
        for _ in range(3):
            assert client.ask(api_versions(), 3).error_code == 0
            client.send(m.FetchRequest(), 12)
            received = client.receive(ApiKey.FETCH, 12)[1]
            assert bytes(received.responses[0].partitions[0].records) == large.responses[0].partitions[0].records


def test_pipelined_requests_in_one_tls_record_are_all_answered(files):
    tls = server_context(files.certificate, files.key)
    with listener(tls=tls) as running, running.connect(files.client_context()) as client:
        client.socket.sendall(b"".join(frame(api_versions(), 3, number) for number in range(200)))
        assert [client.receive(ApiKey.API_VERSIONS, 3)[0] for _ in range(200)] == list(range(200))


def test_a_large_request_in_many_tls_records_arrives(files):
    request = m.HeartbeatRequest(group_id="g" * 30_000, member_id="m" * 30_000)
    tls = server_context(files.certificate, files.key)
    handlers = {ApiKey.HEARTBEAT: lambda request: m.HeartbeatResponse(throttle_time_ms=len(request.message.group_id))}
    with listener(handlers, tls=tls) as running, running.connect(files.client_context()) as client:
        assert client.ask(request, 3).throttle_time_ms == 30_000


def test_a_peer_that_does_not_shake_hands_is_closed(files, caplog):
    tls = server_context(files.certificate, files.key)
    with listener(tls=tls, request_receive_timeout_ms=2000) as running:
        with running.connect() as plain:
            plain.socket.sendall(frame(api_versions(), 3, 1))
            plain.socket.settimeout(5)
            received = b"x"
            while received:  # an alert, then the end
                try:
                    received = plain.socket.recv(100)
                except ConnectionError:
                    received = b""
        with running.connect() as silent:
            assert silent.is_closed()
        wait_until(lambda: running.server.quotas.total == 0)
        with running.connect(files.client_context()) as client:
            assert client.ask(api_versions(), 3).error_code == 0
    assert "the peer did not authenticate in time" in caplog.text
    assert (
        "the peer does not speak TLS, but this listener requires it; give the client security.protocol=SSL"
        in caplog.text
    )
    assert "_ssl.c" not in caplog.text


def test_a_client_that_refuses_the_certificate_is_named_and_one_that_goes_is_not(files, caplog):
    tls = server_context(files.certificate, files.key)
    with listener(tls=tls) as running:
        with pytest.raises(ssl.SSLCertVerificationError):
            running.connect(ssl.create_default_context())
        with running.connect() as gone:
            gone.socket.sendall(b"\x16\x03\x01")
        wait_until(lambda: running.server.quotas.total == 0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("the TLS handshake failed: tlsv1 alert unknown ca; the connection was closed")


def test_the_place_of_a_client_that_goes_while_its_request_waits_is_free_at_once(files):
    waiting: list[Request] = []
    tls = server_context(files.certificate, files.key)
    with listener({ApiKey.SYNC_GROUP: waiting.append}, tls=tls) as running:
        client = running.connect(files.client_context())
        client.send(m.SyncGroupRequest(protocol_type="c"), 5)
        wait_until(lambda: bool(waiting))
        client.socket.close()
        wait_until(lambda: running.server.quotas.total == 0)
        waiting[0].respond(m.SyncGroupResponse())
        wait_until(lambda: running.server.memory.free_bytes == 268_435_456)


def test_requests_that_arrive_while_the_first_one_waits_are_answered_in_order(files):
    waiting: list[Request] = []
    tls = server_context(files.certificate, files.key)
    with (
        listener({ApiKey.SYNC_GROUP: waiting.append}, tls=tls) as running,
        running.connect(files.client_context()) as client,
    ):
        client.send(m.SyncGroupRequest(protocol_type="c"), 5)
        wait_until(lambda: bool(waiting))
        numbers = [client.send(api_versions(), 3) for _ in range(3)]
        time.sleep(0.1)
        waiting[0].respond(m.SyncGroupResponse())
        assert client.receive(ApiKey.SYNC_GROUP, 5)[0] == 0
        assert [client.receive(ApiKey.API_VERSIONS, 3)[0] for _ in numbers] == numbers


def test_versions_of_tls_below_1_2_are_refused(files):
    old = files.client_context()
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    tls = server_context(files.certificate, files.key)
    with listener(tls=tls) as running, pytest.raises((ssl.SSLError, ConnectionError)):
        old.wrap_socket(socket.create_connection(("127.0.0.1", running.port)), server_hostname="localhost")


def test_files_that_cannot_be_used_are_wrong_use(files, tmp_path):
    (tmp_path / "text").write_text("no certificate")
    for certificate, key, what in (
        (tmp_path / "absent", files.key, "--tls-cert does not name a file"),
        (files.certificate, tmp_path, "--tls-key does not name a file"),
        (tmp_path / "text", files.key, "cannot be used"),
        (files.certificate, tmp_path / "text", "cannot be used"),
        (files.authority, files.key, "cannot be used"),
    ):
        with pytest.raises(UsageError, match=what):
            server_context(certificate, key)


def test_a_key_with_a_password_is_wrong_use_and_asks_nobody(files):
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(UsageError, match="--tls-key has a password"):
        server_context(files.certificate, files.key)


def test_a_private_key_that_others_can_read_is_accepted_with_a_warning(files, caplog):
    files.key.chmod(0o644)
    server_context(files.certificate, files.key)
    assert caplog.messages == [f"other users can read the file of --tls-key (mode 644); run chmod 600 {files.key}"]


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (datetime(2020, 1, 1, tzinfo=UTC), datetime(2021, 2, 3, 4, 5, 6, tzinfo=UTC), "expired at 2021-02-03 04:05:06"),
        (datetime(2190, 1, 1, tzinfo=UTC), datetime(2191, 1, 1, tzinfo=UTC), "is not valid before 2190-01-01 00:00:00"),
        (datetime(2020, 1, 1, tzinfo=UTC), datetime(2191, 1, 1, tzinfo=UTC), None),
    ],
)
def test_a_certificate_that_clients_refuse_because_of_its_dates_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: datetime, last: datetime, said: str | None
) -> None:
    leaf = trustme.CA().issue_cert("localhost", not_before=first, not_after=last)
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    key.touch(mode=0o600)
    leaf.private_key_pem.write_to_path(str(key))
    server_context(certificate, key)
    wanted = f"a certificate of --tls-cert {said} UTC ({certificate}), so clients refuse it; renew it"
    assert caplog.messages == ([wanted] if said else [])
