"""SASL: SCRAM-SHA-256, SCRAM-SHA-512, and PLAIN over TLS.

1. The client may send ApiVersions any number of times.
2. After SaslHandshake 1, it sends SaslAuthenticate requests until the exchange is complete.  After SaslHandshake 0, it
   sends tokens in frames without a header until the exchange is complete.

Invariants: every failure gets the same response after the same delay; then the connection is closed. Secrets are
compared in constant time. The rejection of an unknown user takes as much work as the rejection of a wrong password.

Source: RFC 5802, RFC 4616; Kafka's SaslServerAuthenticator.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.delayed import Timer
from sediment.server.requests import Handler, Request, TokenChannel
from sediment.server.security.credentials import HASHES, CredentialSource

PLAIN = "PLAIN"


class SaslAuthenticationError(SedimentError):
    """The client did not prove its identity (Kafka's SaslAuthenticationException)."""


class SaslServer(Protocol):
    def evaluate(self, token: bytes) -> bytes: ...

    @property
    def user(self) -> str | None: ...


class ScramSaslServer:
    def __init__(self, mechanism: str, users: CredentialSource) -> None:
        from scramp import ScramMechanism  # imported late, because most servers have no users

        self._name = ""
        self._is_complete = False
        self._is_first = True

        def credential_of(user: str) -> tuple[bytes, bytes, bytes, int]:
            self._name = user
            found = users().find(mechanism, user)
            return found.salt, found.stored_key, found.server_key, found.iterations

        self._exchange: Any = ScramMechanism(mechanism).make_server(credential_of)

    @property
    def user(self) -> str | None:
        return self._name if self._is_complete else None

    def evaluate(self, token: bytes) -> bytes:
        from scramp import ScramException

        try:
            text = token.decode()
            if self._is_first:
                self._is_first = False
                self._exchange.set_client_first(text)
                return str(self._exchange.get_server_first()).encode()
            self._exchange.set_client_final(text)
            final = str(self._exchange.get_server_final()).encode()
        except (ScramException, UnicodeDecodeError):
            raise SaslAuthenticationError("authentication failed") from None
        self._is_complete = True
        return final


class PlainSaslServer:
    def __init__(self, users: CredentialSource) -> None:
        self._users = users
        self._user: str | None = None

    @property
    def user(self) -> str | None:
        return self._user

    def evaluate(self, token: bytes) -> bytes:
        parts = token.split(b"\0")
        try:
            identity, user, password = (part.decode() for part in parts)
        except ValueError:  # the number of parts is wrong, or a part is not UTF-8
            raise SaslAuthenticationError("authentication failed") from None
        mechanism, credential = self._users().find_any(user)
        name = HASHES[mechanism]
        salted = hashlib.pbkdf2_hmac(name, password.encode(), credential.salt, credential.iterations)
        stored_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
        is_right = hmac.compare_digest(stored_key, credential.stored_key)
        if not is_right or not user or identity not in ("", user):
            raise SaslAuthenticationError("authentication failed")
        self._user = user
        return b""


class _State(Enum):
    HANDSHAKE = "handshake"
    REQUESTS = "requests"
    TOKENS = "tokens"
    COMPLETE = "complete"
    FAILED = "failed"


class SaslMechanisms:
    def __init__(self, users: CredentialSource, *, has_tls: bool) -> None:
        self._users = users
        self._has_tls = has_tls

    @property
    def names(self) -> tuple[str, ...]:
        of_users = self._users().mechanisms
        return (*of_users, PLAIN) if of_users and self._has_tls else of_users

    def new_exchange(self, name: str) -> SaslServer | None:
        if name not in self.names:
            return None
        return PlainSaslServer(self._users) if name == PLAIN else ScramSaslServer(name, self._users)


class SaslAuthenticator:
    def __init__(self, mechanisms: SaslMechanisms, timer: Timer, failure_delay_ms: int) -> None:
        self.mechanisms = mechanisms
        self._timer = timer
        self._failure_delay_ms = failure_delay_ms
        self._state = _State.HANDSHAKE
        self._exchange: SaslServer | None = None
        self.mechanism = ""

    @property
    def is_complete(self) -> bool:
        return self._state is _State.COMPLETE

    @property
    def has_failed(self) -> bool:
        return self._state is _State.FAILED

    @property
    def expects_token(self) -> bool:
        return self._state is _State.TOKENS

    @property
    def expects_request(self) -> bool:
        return self._state is _State.REQUESTS

    def fail(self) -> None:
        self._state = _State.FAILED

    def handshake(self, mechanism: str, version: int) -> ErrorCode:
        exchange = self.mechanisms.new_exchange(mechanism)
        if self._state is not _State.HANDSHAKE:
            self.fail()
            return ErrorCode.ILLEGAL_SASL_STATE
        if exchange is None:
            self.fail()
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self._exchange, self.mechanism = exchange, mechanism
        self._state = _State.REQUESTS if version else _State.TOKENS
        return ErrorCode.NONE

    def evaluate(self, token: bytes) -> tuple[bytes, str | None]:
        assert self._exchange is not None
        try:
            answer = self._exchange.evaluate(token)
        except SaslAuthenticationError:
            self.fail()
            raise
        if self._exchange.user is None:
            return answer, None
        self._state = _State.COMPLETE
        return answer, f"User:{self._exchange.user}"

    def after_failure_delay(self, act: Callable[[], object]) -> None:
        self._timer.after(self._failure_delay_ms, act)

    def accept_token(self, token: bytes, channel: TokenChannel) -> None:
        # After a failure, close the connection with a delay.
        try:
            answer, principal = self.evaluate(token)
        except SaslAuthenticationError as error:
            failure = error
            self.after_failure_delay(lambda: channel.close(None, failure))
            return
        if principal is not None:
            channel.connection.principal = principal
        channel.send_token(answer)


class SaslHandlers:
    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.SASL_HANDSHAKE: self._handshake, ApiKey.SASL_AUTHENTICATE: self._authenticate}

    def _handshake(self, request: Request) -> Any:
        authenticator = _authenticator_of(request)
        if authenticator is None:
            return m.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        code = authenticator.handshake(request.message.mechanism, request.api_version)
        return m.SaslHandshakeResponse(error_code=code, mechanisms=list(authenticator.mechanisms.names))

    def _authenticate(self, request: Request) -> Any:
        authenticator = _authenticator_of(request)
        if authenticator is None:
            return m.SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="SaslAuthenticate request received after successful authentication",
            )
        if not authenticator.expects_request:
            authenticator.fail()
            return m.SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="SaslHandshake must come first"
            )
        try:
            answer, principal = authenticator.evaluate(request.message.auth_bytes)
        except SaslAuthenticationError:
            failure = m.SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message="Authentication failed during authentication due to invalid credentials with SASL "
                f"mechanism {authenticator.mechanism}",
            )
            authenticator.after_failure_delay(lambda: request.respond(failure))
            return None
        if principal is not None:
            request.connection.principal = principal
        return m.SaslAuthenticateResponse(auth_bytes=answer)


def _authenticator_of(request: Request) -> SaslAuthenticator | None:
    found = request.connection.authenticator
    return found if isinstance(found, SaslAuthenticator) and not found.is_complete else None
