"""SCRAM credentials of users, from a `--users` file or from the metadata of a cluster.

A line of the file is `name:SCRAM-SHA-256:iterations:salt:stored key:server key`, with the last three fields in base64.
A name may contain colons, because the other five fields are parsed from the end.

Invariant: an unknown user also gets a credential, but this credential matches no password. It is the same at each
attempt, and looks like the credentials of known users.

Source: RFC 5802; Kafka's ScramCredential, ScramMechanism and UserScramCredentialRecord.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import secrets
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sediment.segment_io.errors import UsageError
from sediment.segment_io.input_files import read_input_file
from sediment.segment_io.safe_paths import warn_of_readers

SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
HASHES = {SCRAM_SHA_512: "sha512", SCRAM_SHA_256: "sha256"}
"""The hash of each mechanism, with the preferred mechanism first."""

MECHANISMS = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}
"""Mechanisms by the numbers of Kafka's ScramMechanism."""

MIN_ITERATIONS, MAX_ITERATIONS = 4096, 10_000_000

_LOGGER = logging.getLogger(__name__)
_FIELDS_AFTER_NAME = 5
_LEAST_SALT_BYTES = 12
_OF_KAFKAS_TOOLS = (MIN_ITERATIONS, 26, True)
_MOST_FILE_BYTES = 16 << 20
_BASE36 = b"0123456789abcdefghijklmnopqrstuvwxyz"
_ADVICE = "write name:SCRAM-SHA-256:iterations:salt:stored:server on each line, the last three in base64"


@dataclass(frozen=True, slots=True)
class ScramCredential:
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


class Credentials:
    def __init__(self, by_user: Mapping[tuple[str, str], ScramCredential], secret: bytes | None = None) -> None:
        self._by_user = dict(by_user)
        self._secret = secret or secrets.token_bytes(32)
        self.mechanisms = tuple(name for name in HASHES if any(found == name for found, _ in self._by_user))
        """Mechanisms that have users, with the preferred mechanism first."""

        self._likely = {name: self._most_likely(name) for name in HASHES}

    def __len__(self) -> int:
        return len(self._by_user)

    def find(self, mechanism: str, user: str) -> ScramCredential:
        unknown = self._unknown(mechanism, user)  # also for known users, so that all users take equally long
        return self._by_user.get((mechanism, user), unknown)

    def find_any(self, user: str) -> tuple[str, ScramCredential]:
        known = [name for name in self.mechanisms if (name, user) in self._by_user]
        mechanism = (known or self.mechanisms or tuple(HASHES))[0]
        return mechanism, self.find(mechanism, user)

    def _most_likely(self, mechanism: str) -> tuple[int, int, bool]:
        """Without users, return the values of Kafka's tools."""
        shapes = Counter(
            (each.iterations, len(each.salt), set(each.salt) <= set(_BASE36))
            for (name, _), each in sorted(self._by_user.items(), key=lambda item: item[0])
            if name == mechanism
        )
        return shapes.most_common(1)[0][0] if shapes else _OF_KAFKAS_TOOLS

    def _unknown(self, mechanism: str, user: str) -> ScramCredential:
        iterations, salt_bytes, is_text = self._likely[mechanism]
        seed = hmac.digest(self._secret, f"{mechanism}:{user}".encode(), "sha256")
        salt = hashlib.shake_256(b"salt" + seed).digest(salt_bytes)
        size = hashlib.new(HASHES[mechanism]).digest_size
        keys = hashlib.shake_256(b"keys" + seed).digest(2 * size)
        # Salts from Kafka's tools consist of letters and digits.
        text = bytes(_BASE36[each % len(_BASE36)] for each in salt)
        return ScramCredential(text if is_text else salt, keys[:size], keys[size:], iterations)


CredentialSource = Callable[[], Credentials]
"""A function that returns the current credentials."""


def read_users(path: Path) -> Credentials:
    warn_of_readers(path, "--users")
    content = read_input_file(path, _MOST_FILE_BYTES, "--users", advice=_ADVICE)
    found: dict[tuple[str, str], ScramCredential] = {}
    for number, line in enumerate(content.removeprefix(BOM_UTF8).split(b"\n"), 1):
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            user, mechanism, credential = _parse_line(line.rstrip(b"\r"))
        except ValueError as error:
            # The message must not contain the line, because the line contains keys.
            raise UsageError(f"line {number} of --users {error}", path=str(path), advice=_ADVICE) from None
        if (mechanism, user) in found:
            raise UsageError(f"line {number} of --users has a second {mechanism} credential for a user", path=str(path))
        found[mechanism, user] = credential
    if not found:
        raise UsageError("--users contains no user", path=str(path), advice=_ADVICE)
    return Credentials(found)


class ClusterUsers:
    def __init__(self, records: Callable[[], Mapping[tuple[int, str], Any]]) -> None:
        self._records = records
        self._secret = secrets.token_bytes(32)
        self._latest: tuple[Mapping[tuple[int, str], Any], Credentials] = ({}, Credentials({}, self._secret))

    def __call__(self) -> Credentials:
        records = self._records()
        before, credentials = self._latest
        if records is not before:
            if records != before:
                credentials = Credentials(of_cluster(records), self._secret)
            self._latest = records, credentials
        return credentials


def of_cluster(records: Mapping[tuple[int, str], Any]) -> Mapping[tuple[str, str], ScramCredential]:
    """A record that no client can use is skipped with a warning."""
    found: dict[tuple[str, str], ScramCredential] = {}
    for (number, user), record in records.items():
        mechanism = MECHANISMS.get(number)
        if mechanism is None:
            _LOGGER.warning("a SCRAM user of the cluster has the unknown mechanism %d, so the user is ignored", number)
            continue
        credential = ScramCredential(
            bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations
        )
        try:
            check_credential(mechanism, credential)
        except ValueError as error:
            _LOGGER.warning("a SCRAM user of the cluster %s, so the user is ignored", error)
            continue
        found[mechanism, user] = credential
    return found


def _parse_line(line: bytes) -> tuple[str, str, ScramCredential]:
    """Return the user, the mechanism and the credential; error messages contain no part of the line."""
    try:
        name, *fields = line.decode().rsplit(":", _FIELDS_AFTER_NAME)
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    if len(fields) != _FIELDS_AFTER_NAME or not name:
        raise ValueError(f"does not have {_FIELDS_AFTER_NAME + 1} fields")
    mechanism, iterations, *encoded = fields
    if mechanism not in HASHES:
        raise ValueError(f"has a mechanism that is neither {SCRAM_SHA_256} nor {SCRAM_SHA_512}")
    try:
        salt, stored_key, server_key = (base64.b64decode(each, validate=True) for each in encoded)
    except binascii.Error:
        raise ValueError("has a field that is not base64") from None
    is_number = iterations.isascii() and iterations.isdecimal() and len(iterations) <= len(str(MAX_ITERATIONS))
    credential = ScramCredential(salt, stored_key, server_key, int(iterations) if is_number else -1)
    check_credential(mechanism, credential)
    return name, mechanism, credential


def check_credential(mechanism: str, credential: ScramCredential) -> None:
    size = hashlib.new(HASHES[mechanism]).digest_size
    if not MIN_ITERATIONS <= credential.iterations <= MAX_ITERATIONS:
        raise ValueError(f"has an iteration count outside {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    if len(credential.salt) < _LEAST_SALT_BYTES:
        raise ValueError(f"has a salt of less than {_LEAST_SALT_BYTES} bytes")
    if len(credential.stored_key) != size or len(credential.server_key) != size:
        raise ValueError(f"has a key that is not {size} bytes long, but {mechanism} requires this size")
