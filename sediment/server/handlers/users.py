"""Handler of changes of SCRAM users: AlterUserScramCredentials.

Source: Kafka 4.2.0, ControllerApis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError
from sediment.server.live.scram_users import UserDeletion, UserUpsertion
from sediment.server.live.topic_store import TopicStore
from sediment.server.requests import Handler, Request


class UserHandlers:
    def __init__(self, store: TopicStore) -> None:
        self._store = store

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self._alter}

    def _alter(self, request: Request) -> Any:
        message = request.message
        deletions = [UserDeletion(each.name, each.mechanism) for each in message.deletions]
        upsertions = [
            UserUpsertion(each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
            for each in message.upsertions
        ]
        try:
            errors = self._store.change_users(deletions, upsertions)
        except ApiError as error:
            errors = dict.fromkeys([*(each.name for each in deletions), *(each.name for each in upsertions)], error)
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
