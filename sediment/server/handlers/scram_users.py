"""Handlers of SCRAM users: DescribeUserScramCredentials and AlterUserScramCredentials.

Source: Kafka 4.2.0, ScramImage and ControllerApis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError
from sediment.server.live.live_catalog import LiveCatalog
from sediment.server.live.scram_users import UserDeletion, UserUpsertion
from sediment.server.live.topic_store import TopicStore
from sediment.server.requests import Handler, Request


class ScramUserHandlers:
    """Handlers that describe the users of `catalog`, and change them through `store`."""

    def __init__(self, store: TopicStore, catalog: LiveCatalog) -> None:
        self._store = store
        self._catalog = catalog

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """Return the handlers by API."""
        return {
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: self._describe,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self._alter,
        }

    def _describe(self, request: Request) -> Any:
        """Return mechanisms and iterations of each user, by default of all users."""
        response = m.DescribeUserScramCredentialsResponse
        found: dict[str, list[tuple[int, int]]] = {}
        records = self._catalog.metadata.scram_credentials
        for mechanism, name in sorted(records):
            found.setdefault(name, []).append((mechanism, records[mechanism, name].iterations))
        asked = Counter(user.name for user in request.message.users or ())
        results = []
        for name in asked or found:
            result = response.DescribeUserScramCredentialsResult(user=name)
            if asked[name] > 1:
                result.error_code = ErrorCode.DUPLICATE_RESOURCE
                result.error_message = f"{_TWICE}{name}"
            elif name not in found:
                result.error_code = ErrorCode.RESOURCE_NOT_FOUND
                result.error_message = f"{_UNKNOWN}{name}"
            else:
                result.credential_infos = [
                    response.CredentialInfo(mechanism=mechanism, iterations=iterations)
                    for mechanism, iterations in found[name]
                ]
            results.append(result)
        return response(results=results)

    def _alter(self, request: Request) -> Any:
        """Change credentials, as one change of the metadata."""
        message = request.message
        deletions = [UserDeletion(each.name, each.mechanism) for each in message.deletions]
        upsertions = [
            UserUpsertion(each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
            for each in message.upsertions
        ]
        try:
            errors = self._store.change_users(deletions, upsertions)
        except ApiError as error:
            errors = {change.name: error for change in (*deletions, *upsertions)}
        response = m.AlterUserScramCredentialsResponse
        return response(
            results=[
                response.AlterUserScramCredentialsResult(user=name, error_code=ErrorCode.NONE, error_message=None)
                if error is None
                else response.AlterUserScramCredentialsResult(
                    user=name, error_code=error.code, error_message=error.message
                )
                for name, error in errors.items()
            ]
        )


_TWICE = "Cannot describe SCRAM credentials for the same user twice in a single request: "
_UNKNOWN = "Attempt to describe a user credential that does not exist: "
