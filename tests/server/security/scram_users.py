"""SCRAM credentials, and a client that authenticates with them."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

from scramp import ScramClient

from sediment.segment_io.protocol import messages as m
from sediment.server.security.credentials import HASHES, ScramCredential
from tests.server.network.listeners import Client


def credential(password: str, mechanism: str = "SCRAM-SHA-256", salt: bytes = b"0123456789abcdef", iterations=4096):
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return ScramCredential(salt, stored, hmac.digest(salted, b"Server Key", name), iterations)


def line(user: str, mechanism: str, each: ScramCredential) -> str:
    encoded = (base64.b64encode(part).decode() for part in (each.salt, each.stored_key, each.server_key))
    return ":".join([user, mechanism, str(each.iterations), *encoded])


def handshake(client: Client, mechanism: str, version: int = 1) -> Any:
    return client.ask(m.SaslHandshakeRequest(mechanism=mechanism), version)


def authenticate(client: Client, token: bytes) -> Any:
    return client.ask(m.SaslAuthenticateRequest(auth_bytes=token), 2)


def scram(client: Client, user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> tuple[str, Any]:
    """Return the server's first message and its last response."""
    exchange = ScramClient([mechanism], user, password)
    assert handshake(client, mechanism).error_code == 0
    first = authenticate(client, exchange.get_client_first().encode())
    assert first.error_code == 0
    exchange.set_server_first(first.auth_bytes.decode())
    final = authenticate(client, exchange.get_client_final().encode())
    if final.error_code == 0:
        exchange.set_server_final(final.auth_bytes.decode())
    return first.auth_bytes.decode(), final
