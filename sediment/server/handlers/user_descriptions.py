"""Descriptions of users: DescribeUserScramCredentials and DescribeClientQuotas.

This server reports quotas, but does not apply or change them.

Source: Kafka 4.2.0, ScramImage and ClientQuotasImage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from sediment.segment_io.internal_topics.metadata_log import QuotaEntity
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError
from sediment.server.requests import Handler, Request
from sediment.server.topic_catalog import TopicCatalog


class UserDescriptionHandlers:
    def __init__(self, catalog: TopicCatalog) -> None:
        self._catalog = catalog

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: self._describe,
            ApiKey.DESCRIBE_CLIENT_QUOTAS: self._describe_quotas,
        }

    def _describe(self, request: Request) -> Any:
        response = m.DescribeUserScramCredentialsResponse
        found: dict[str, list[tuple[int, int]]] = {}
        metadata = self._catalog.metadata
        records = {} if metadata is None else metadata.scram_credentials
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

    def _describe_quotas(self, request: Request) -> Any:
        message, response = request.message, m.DescribeClientQuotasResponse
        try:
            wanted = _wanted_entities(message.components)
        except ApiError as error:
            return response(error_code=error.code, error_message=error.message, entries=None)
        values: dict[QuotaEntity, list[Any]] = {}
        metadata = self._catalog.metadata
        for (entity, key), record in ({} if metadata is None else metadata.quotas).items():
            is_wanted = len(entity) == len(wanted) or not message.strict
            if is_wanted and all(_matches(dict(entity), kind, names) for kind, names in wanted.items()):
                values.setdefault(entity, []).append(response.ValueData(key=key, value=record.value))
        entries = [
            response.EntryData(
                entity=[response.EntityData(entity_type=kind, entity_name=name) for kind, name in entity], values=found
            )
            for entity, found in values.items()
        ]
        return response(error_message=None, entries=entries)


_Names = tuple[str | None] | None
"""A tuple with the name to match, or with None for the default entity; None instead of a tuple matches any name."""

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2  # the match types of a component
_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"


def _matches(entity: Mapping[str, str | None], kind: str, names: _Names) -> bool:
    return kind in entity and (names is None or entity[kind] in names)


def _wanted_entities(components: Any) -> dict[str, _Names]:
    wanted: dict[str, _Names] = {}
    for each in components:
        kind = each.entity_type
        if not kind:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in wanted:
            what = f"Entity type {kind} cannot appear more than once in the filter."
            raise ApiError(ErrorCode.INVALID_REQUEST, what)
        if kind not in (_USER, _CLIENT_ID, _IP):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        wanted[kind] = _wanted_names(each)
    if _IP in wanted and len(wanted) > 1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component.",
        )
    return wanted


def _wanted_names(component: Any) -> _Names:
    kind, name = component.match_type, component.match
    if kind == _EXACT and name is None:
        what = "Request specified MATCH_TYPE_EXACT, but set match string to null."
    elif kind in (_DEFAULT, _SPECIFIED) and name is not None:
        shown = "DEFAULT" if kind == _DEFAULT else "SPECIFIED"
        what = f"Request specified MATCH_TYPE_{shown}, but also specified a match string."
    elif kind not in (_EXACT, _DEFAULT, _SPECIFIED):
        what = f"Unknown match type {kind}"
    else:
        return None if kind == _SPECIFIED else (name,)
    raise ApiError(ErrorCode.INVALID_REQUEST, what)


_TWICE = "Cannot describe SCRAM credentials for the same user twice in a single request: "
_UNKNOWN = "Attempt to describe a user credential that does not exist: "
