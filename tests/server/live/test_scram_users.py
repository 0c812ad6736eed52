"""SCRAM users of a live server: changes, their durability, and logins."""

from __future__ import annotations

import json
import logging
import lzma
import shutil
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from scramp import ScramClient

from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.bootstrap_checkpoint import format_bootstrap_checkpoint
from sediment.segment_io.internal_topics.metadata_log import (
    ClusterMetadata,
    read_bootstrap_records,
    read_cluster_metadata,
)
from sediment.segment_io.internal_topics.metadata_records import encode_metadata_record
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.segment_io.segment.fetched_batches import read_records
from sediment.server.kafka_server import KafkaServer, Security, ServerOptions
from sediment.server.network.endpoints import Endpoint
from sediment.server.server_config import ServerConfig
from tests.engine.managed import FailingFs
from tests.ports import free_port
from tests.served import unpacked
from tests.server.live.nodes import NOW_MS, live, live_options, new_node
from tests.server.live.scram_script import RECORDED_USERS, SHA_256, SHA_512, Deletion, ScramScript, Upsertion
from tests.server.network.listeners import Client, api_versions
from tests.server.security.certificates import Certificates, write_certificates
from tests.server.security.scram_users import authenticate, scram
from tests.waiting import LIMIT_SECONDS

DESCRIBE, ALTER = 50, 51


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return new_node(tmp_path / "data", {})


def stored(path: Path) -> ClusterMetadata:
    found = read_cluster_metadata(path, Fs()) or read_bootstrap_records(path, Fs())
    assert found is not None
    return found


def test_answers_are_those_of_a_broker(path: Path) -> None:
    with live(path) as server, server.connect() as client:
        lines = json.loads(json.dumps(ScramScript(client).run()))
    recorded = json.loads(lzma.decompress(RECORDED_USERS.read_bytes()))
    assert [line for line, _ in lines] == [line for line, _ in recorded]
    assert [line for line, theirs in zip(lines, recorded, strict=True) if line != theirs] == []


def test_the_requests_are_offered_in_the_versions_of_a_broker(path: Path) -> None:
    with live(path) as server, server.connect() as client:
        keys = client.ask(api_versions(), 3).api_keys
    offered = {each.api_key: (each.min_version, each.max_version) for each in keys}
    assert (offered[DESCRIBE], offered[ALTER]) == ((0, 0), (0, 0))


def test_quotas_of_the_cluster_are_described(tmp_path: Path) -> None:
    data = new_node(tmp_path / "data", {})
    entity = m.ClientQuotaRecord.EntityData
    quotas = [
        m.ClientQuotaRecord(entity=[entity(entity_type=kind, entity_name=name)], key="request_percentage", value=5.0)
        for kind, name in (("user", "alice"), ("user", None), ("client-id", "c"))
    ]
    checkpoint = data / "bootstrap.checkpoint"
    records = [record.value or b"" for record in read_records(checkpoint.read_bytes())]
    records += [encode_metadata_record(each, 0) for each in quotas]
    checkpoint.write_bytes(format_bootstrap_checkpoint(records, now_ms=NOW_MS))
    request = m.DescribeClientQuotasRequest
    with live(data) as server, server.connect() as client:

        def described(*filters: tuple[str, int, str | None]) -> tuple[int, list[tuple[str, str | None]]]:
            components = [
                request.ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in filters
            ]
            found = client.ask(request(components=components, strict=True), 1)
            entities = [each.entity[0] for each in found.entries or ()]
            return found.error_code, [(each.entity_type, each.entity_name) for each in entities]

        assert described(("user", 2, None)) == (0, [("user", "alice"), ("user", None)])
        assert described(("user", 1, None)) == (0, [("user", None)])
        assert described(("user", 0, "alice")) == (0, [("user", "alice")])
        assert described(("user", 0, "bob"), ("client-id", 2, None)) == (0, [])
        assert described(("user", 0, None))[0] == ErrorCode.INVALID_REQUEST
        assert described(("other", 2, None))[0] == ErrorCode.UNSUPPORTED_VERSION
        assert described(("ip", 2, None), ("user", 2, None))[0] == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("kind", ["bootstrap", "log"])
def test_users_are_durable_before_the_answer(tmp_path: Path, kind: str) -> None:
    data = new_node(tmp_path / "data", {}) if kind == "bootstrap" else unpacked(tmp_path / "data")
    killed = tmp_path / "killed"
    with live(data, topic_config=None) as server, server.connect() as client:
        script = ScramScript(client)
        for change in (
            Upsertion("alice"),
            Upsertion("alice", iterations=8192),
            Upsertion("bob", SHA_512),
            Deletion("bob", SHA_512),
        ):
            assert script.alter(change) == [[change.name, 0, None]]
        shutil.copytree(data, killed)
    assert {key: each.iterations for key, each in stored(killed).scram_credentials.items()} == {(1, "alice"): 8192}
    with live(killed, topic_config=None) as server, server.connect() as client:
        assert ScramScript(client).describe() == [["alice", 0, "", [[SHA_256, 8192]]]]
        assert ScramScript(client).alter(Deletion("alice")) == [["alice", 0, None]]
    assert stored(killed).scram_credentials == {}


def test_a_file_does_not_grow_with_users_that_come_and_go(path: Path) -> None:
    sizes = set()
    with live(path) as server, server.connect() as client:
        script = ScramScript(client)
        script.alter(Upsertion("kept"))
        for _ in range(3):
            script.alter(Upsertion("alice"))
            script.alter(Upsertion("alice", password="other"))
            script.alter(Deletion("alice"))
            sizes.add((path / "bootstrap.checkpoint").stat().st_size)
    assert len(sizes) == 1


def test_no_user_changes_if_the_disk_fails(path: Path) -> None:
    fs = FailingFs()
    with live(path, fs=fs) as server, server.connect() as client:
        script = ScramScript(client)
        script.alter(Upsertion("alice"))
        fs.broken.add(path / "bootstrap.checkpoint")
        results = script.alter(Upsertion("bob"), Deletion("alice"), Deletion("nobody"))
        assert [each[:2] for each in results] == [
            [name, ErrorCode.KAFKA_STORAGE_ERROR] for name in ("alice", "bob", "nobody")
        ]
        assert [each[0] for each in script.describe()] == ["alice"]


def test_a_cluster_below_3_5_has_no_users(tmp_path: Path) -> None:
    with live(new_node(tmp_path / "data", {}, features={"metadata.version": 10})) as server, server.connect() as client:
        results = ScramScript(client).alter(Upsertion("alice"), Deletion("bob"))
    what = "The current metadata.version does not support SCRAM"
    assert results == [[name, ErrorCode.UNSUPPORTED_VERSION, what] for name in ("alice", "bob")]


# -------------------------------------------------------------------------------------------------------------- logins
@dataclass(frozen=True)
class Exposed:
    """A server that other machines can reach, of a cluster with the user `admin`."""

    server: KafkaServer
    certificates: Certificates
    request_log: Path

    @contextmanager
    def connected(self) -> Iterator[Client]:
        plain = socket.create_connection(("127.0.0.1", self.server.bound.port), LIMIT_SECONDS)
        with Client(self.certificates.client_context().wrap_socket(plain, server_hostname="localhost")) as client:
            yield client

    @contextmanager
    def logged_in(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> Iterator[Client]:
        with self.connected() as client:
            assert scram(client, user, password, mechanism)[1].error_code == 0
            yield client

    def mechanisms(self) -> list[str]:
        with self.connected() as client:
            return list(client.ask(m.SaslHandshakeRequest(mechanism="none"), 1).mechanisms)

    def refuses(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> bool:
        with self.connected() as client:
            return bool(scram(client, user, password, mechanism)[1].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED)


@contextmanager
def exposed_server(path: Path, tmp_path: Path) -> Iterator[Exposed]:
    """Serve a directory to other machines; its users are those of its cluster."""
    certificates = write_certificates(tmp_path)
    port = free_port()
    options = ServerOptions(
        live_options(path),
        Endpoint("0.0.0.0", port),
        Endpoint("localhost", port),
        Security(certificates.certificate, certificates.key),
        tmp_path / "requests.log",
        ServerConfig(connection_failed_authentication_delay_ms=0),
    )
    with KafkaServer(options, Fs()) as server:
        yield Exposed(server, certificates, tmp_path / "requests.log")


@pytest.fixture
def exposed(tmp_path: Path, path: Path) -> Iterator[Exposed]:
    with live(path) as server, server.connect() as client:
        ScramScript(client).alter(Upsertion("admin", password="admin-secret"))
    with exposed_server(path, tmp_path) as server:
        yield server


def test_a_change_counts_for_the_next_login(exposed: Exposed) -> None:
    with exposed.logged_in("admin", "admin-secret") as client:
        script = ScramScript(client)
        assert exposed.refuses("alice", "first")
        script.alter(Upsertion("alice", password="first"))
        with exposed.logged_in("alice", "first"):
            script.alter(Upsertion("alice", password="second", iterations=8192))
        assert exposed.refuses("alice", "first")
        with exposed.logged_in("alice", "second") as alice:
            script.alter(Deletion("alice"))
            assert exposed.refuses("alice", "second")
            assert ScramScript(alice).describe() == [["admin", 0, "", [[SHA_256, 4096]]]]  # a connection stays


def test_an_exchange_in_progress_ends_with_the_credential_of_its_time(exposed: Exposed) -> None:
    with exposed.logged_in("admin", "admin-secret") as admin, exposed.connected() as client:
        script = ScramScript(admin)
        script.alter(Upsertion("alice", password="secret"))
        assert client.ask(m.SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1).error_code == 0
        script.alter(Deletion("alice"))
        exchange = ScramClient(["SCRAM-SHA-256"], "alice", "secret")
        first = authenticate(client, exchange.get_client_first().encode())
        exchange.set_server_first(first.auth_bytes.decode())
        final = authenticate(client, exchange.get_client_final().encode())
        assert final.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_the_mechanisms_are_those_of_the_present_users(exposed: Exposed) -> None:
    assert exposed.mechanisms() == ["SCRAM-SHA-256", "PLAIN"]
    with exposed.logged_in("admin", "admin-secret") as client:
        script = ScramScript(client)
        script.alter(Upsertion("alice", SHA_512, password="secret"))
        assert exposed.mechanisms() == ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]
        with exposed.logged_in("alice", "secret", "SCRAM-SHA-512"):
            script.alter(Deletion("alice", SHA_512))
        assert exposed.mechanisms() == ["SCRAM-SHA-256", "PLAIN"]
        script.alter(Deletion("admin"))
        assert exposed.mechanisms() == []


def test_users_of_a_cluster_log_in_after_a_restart(exposed: Exposed, path: Path, tmp_path: Path) -> None:
    with exposed.logged_in("admin", "admin-secret") as client:
        ScramScript(client).alter(Upsertion("alice", password="secret"))
    exposed.server.stop()
    with exposed_server(path, tmp_path) as again, again.logged_in("alice", "secret"):
        assert again.refuses("alice", "other")


def test_no_log_line_has_a_password_a_salted_password_or_a_key(
    exposed: Exposed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    change, wrong = Upsertion("alice", password="a-password"), Upsertion("", password="a-password")
    with exposed.logged_in("admin", "admin-secret") as client:
        script = ScramScript(client)
        script.alter(change, wrong)
        script.describe("alice")
    metadata = exposed.server.catalog.metadata
    assert metadata is not None
    record = metadata.scram_credentials[SHA_256, "alice"]
    text = caplog.text + exposed.request_log.read_text()
    for secret in (change.salted(), bytes(record.stored_key), bytes(record.server_key), b"a-password", b"admin-secret"):
        for shown in (repr(secret)[2:-1], secret.hex(), b64encode(secret).decode()):
            assert shown not in text
