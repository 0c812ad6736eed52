"""One script of changes and descriptions of SCRAM users; a broker's answers are recorded."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sediment.segment_io.protocol import messages as m
from tests.server.network.listeners import Client

RECORDED_USERS = Path(__file__).parents[2] / "data" / "scram_users.json.xz"
"""The answers of a broker of Kafka 4.2.0, compressed (`tests.e2e.test_live_serve` compares them)."""

SHA_256, SHA_512 = 1, 2
_SETTLED_SECONDS = 60.0
_PAUSE_SECONDS = 0.2
_SALT = b"1mvj0a9pqfa9lfvjvchtm6u9t1"


class Upsertion(NamedTuple):
    """A credential of a user."""

    name: str
    mechanism: int = SHA_256
    iterations: int = 4096
    password: str = "secret"
    salt: bytes = _SALT

    def salted(self) -> bytes:
        """Return the salted password; an empty password stays empty."""
        if not self.password:
            return b""
        kind = "sha512" if self.mechanism == SHA_512 else "sha256"
        return hashlib.pbkdf2_hmac(kind, self.password.encode(), self.salt, min(max(self.iterations, 1), 16_384))


class Deletion(NamedTuple):
    """The removal of a credential of a user."""

    name: str
    mechanism: int = SHA_256


class ScramScript:
    """A conversation with a server; `run` returns each request with its answer, whose parts are in the order of users.

    A broker needs some time until its answers reflect a change, so it is asked until they are those of `expected`.
    """

    def __init__(self, client: Client, expected: Sequence[Any] = ()) -> None:
        self.lines: list[list[Any]] = []
        self._client = client
        self._expected = expected

    def run(self) -> list[list[Any]]:
        """Ask everything, and return the lines."""
        self.describe()
        self.describe("nobody")
        self.describe("")
        self._changes()
        self._limits()
        self._several()
        self._names()
        self._deletions()
        return self.lines

    def _changes(self) -> None:
        for change in (
            Upsertion("alice"),
            Upsertion("alice", SHA_512),
            Upsertion("alice", iterations=8192),
            Upsertion("bob", SHA_512),
        ):
            self.alter(change)
            self.describe(change.name)
        self.describe()
        self.describe("alice", "bob", "nobody")
        self.describe("alice", "alice")
        self.describe("nobody", "nobody", "bob")
        self.describe(None)

    def _limits(self) -> None:
        for iterations in (4095, 16_384, 16_385, 0, -1, 2**31 - 1):
            self.alter(Upsertion("limits", iterations=iterations))
        self.describe("limits")
        for mechanism in (0, 3, -1, 127):
            self.alter(Upsertion("mechanism", mechanism))
            self.alter(Deletion("mechanism", mechanism))
        self.alter(Upsertion(""))
        self.alter(Upsertion("", iterations=1))
        self.alter(Upsertion("", 0))
        self.alter(Deletion(""))
        self.alter(Upsertion("low", 0, iterations=1))
        self.alter(Upsertion("password", password=""))
        self.alter(Upsertion("password", SHA_512, password=""), Upsertion("other", SHA_512))
        self.alter(Upsertion("salt", salt=b""))
        self.alter(Upsertion("short", salt=b"s"))
        self.describe("password", "salt", "short", "other", "low", "mechanism")

    def _several(self) -> None:
        self.alter()
        self.alter(Upsertion("twice"), Upsertion("twice"))
        self.alter(Upsertion("twice"), Upsertion("twice", SHA_512))
        self.alter(Upsertion("twice"), Upsertion("twice"), Upsertion("twice"))
        self.alter(Deletion("alice"), Deletion("alice"))
        self.alter(Deletion("alice"), Deletion("alice", SHA_512), Deletion("alice"))
        self.alter(Deletion("alice"), Upsertion("alice"))
        self.alter(Deletion("nobody"), Upsertion("nobody"))
        self.alter(Upsertion("few", iterations=1), Upsertion("few"))
        self.alter(Upsertion("carol"), Upsertion("dave", iterations=1), Deletion("nobody"), Deletion("bob", SHA_512))
        self.describe()

    def _names(self) -> None:
        for name in ("User:alice", "a b", "a,b=c", "ü", "x" * 300, " ", "a:b"):
            self.alter(Upsertion(name))
            self.describe(name)

    def _deletions(self) -> None:
        self.alter(Deletion("bob"))
        self.alter(Deletion("alice"))
        self.describe("alice")
        self.alter(Deletion("alice"))
        self.alter(Deletion("alice", SHA_512))
        self.describe("alice")
        self.describe()

    # -------------------------------------------------------------------------------------------------------- requests
    def alter(self, *changes: Upsertion | Deletion) -> list[list[Any]]:
        """Change credentials, and return user, error and message of each result."""
        request = m.AlterUserScramCredentialsRequest
        found = self._client.ask(
            request(
                deletions=[
                    request.ScramCredentialDeletion(name=each.name, mechanism=each.mechanism)
                    for each in changes
                    if isinstance(each, Deletion)
                ],
                upsertions=[
                    request.ScramCredentialUpsertion(
                        name=each.name,
                        mechanism=each.mechanism,
                        iterations=each.iterations,
                        salt=each.salt,
                        salted_password=each.salted(),
                    )
                    for each in changes
                    if isinstance(each, Upsertion)
                ],
            ),
            0,
        )
        results = sorted([each.user, each.error_code, each.error_message] for each in found.results)
        shown = [[type(each).__name__, *each[:3]] for each in changes]
        self.lines.append([f"alter {shown}", results])
        return results

    def describe(self, *names: str | None) -> list[list[Any]]:
        """Describe users, by default all; return the name, error, message and credentials of each."""
        line = self._described(names)
        limit, number = time.monotonic() + _SETTLED_SECONDS, len(self.lines)
        while number < len(self._expected) and line != self._expected[number] and time.monotonic() < limit:
            time.sleep(_PAUSE_SECONDS)
            line = self._described(names)
        self.lines.append(line)
        results: list[list[Any]] = line[1][2]
        return results

    def _described(self, names: Sequence[str | None]) -> list[Any]:
        request = m.DescribeUserScramCredentialsRequest
        users = None if names == (None,) else [request.UserName(name=name) for name in names]
        found = self._client.ask(request(users=users), 0)
        results = sorted(
            [
                each.user,
                each.error_code,
                each.error_message,
                sorted([info.mechanism, info.iterations] for info in each.credential_infos),
            ]
            for each in found.results
        )
        return [f"describe {names}", [found.error_code, found.error_message, results]]
