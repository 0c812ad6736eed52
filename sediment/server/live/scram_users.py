"""Changes of SCRAM users: Kafka's rules for these changes, Kafka's messages, and the resulting metadata records.

If a user's change is wrong, the response has the error for this user, and the other users are changed.

Invariant: errors and log lines never contain a salted password or a key.

Source: Kafka 4.2.0, ScramControlManager and ScramFormatter.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from sediment.segment_io.internal_topics.metadata_records import encode_metadata_record
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError

SCRAM_SINCE = 11
"""The first metadata.version with SCRAM users: 3.5-IV2."""

_LEAST_ITERATIONS, _MOST_ITERATIONS = 4096, 16_384
_HASHES = {1: "sha256", 2: "sha512"}  # keyed by the number of Kafka's ScramMechanism
_VERSION = 0


@dataclass(frozen=True, slots=True)
class UserDeletion:
    """The removal of a user's credential; `mechanism` is Kafka's number for the SCRAM mechanism."""

    name: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class UserUpsertion:
    """A credential to set for a user; `mechanism` is Kafka's number for the SCRAM mechanism."""

    name: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class UserChanges:
    records: Sequence[bytes]
    errors: dict[str, ApiError | None]


def user_changes(
    existing: Container[tuple[int, str]],
    deletions: Sequence[UserDeletion],
    upsertions: Sequence[UserUpsertion],
    metadata_version: int,
) -> UserChanges:
    errors: dict[str, ApiError | None] = {}
    records: list[bytes] = []
    accepted: dict[str, UserDeletion | UserUpsertion] = {}
    asked: list[UserDeletion | UserUpsertion] = [*deletions, *upsertions]
    for change in asked:
        if errors.get(change.name) is None:
            try:
                if accepted.pop(change.name, None) is not None:
                    raise ApiError(ErrorCode.DUPLICATE_RESOURCE, _TWICE)
                _check(change, existing, metadata_version)
            except ApiError as error:
                errors[change.name] = error
            else:
                errors[change.name] = None
                accepted[change.name] = change
    for change in accepted.values():
        try:
            records.append(_record(change))
        except ApiError as error:
            errors[change.name] = error
    return UserChanges(records, errors)


_TWICE = "A user credential cannot be altered twice in the same request"


def _check(change: UserDeletion | UserUpsertion, existing: Container[tuple[int, str]], metadata_version: int) -> None:
    if metadata_version < SCRAM_SINCE:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "The current metadata.version does not support SCRAM")
    if not change.name:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if change.mechanism not in _HASHES:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, UserDeletion):
        if (change.mechanism, change.name) not in existing:
            raise ApiError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    elif change.iterations < _LEAST_ITERATIONS:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    elif change.iterations > _MOST_ITERATIONS:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")


def _record(change: UserDeletion | UserUpsertion) -> bytes:
    if isinstance(change, UserDeletion):
        removal = m.RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism)
        return encode_metadata_record(removal, _VERSION)
    if not change.salted_password:  # Java has no HMAC with an empty key
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
    name = _HASHES[change.mechanism]
    client_key = hmac.digest(change.salted_password, b"Client Key", name)
    record = m.UserScramCredentialRecord(
        name=change.name,
        mechanism=change.mechanism,
        salt=change.salt,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(change.salted_password, b"Server Key", name),
        iterations=change.iterations,
    )
    return encode_metadata_record(record, _VERSION)
