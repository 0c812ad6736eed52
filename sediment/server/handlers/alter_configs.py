"""Changes of configs: IncrementalAlterConfigs and AlterConfigs.

Source: Kafka 4.2.0, ConfigAdminManager and ControllerApis.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from sediment.segment_io.internal_topics.metadata_records import ResourceType
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError
from sediment.server.live.dynamic_configs import changed
from sediment.server.live.topic_configs import ConfigChange, Operation
from sediment.server.live.topic_store import TopicStore
from sediment.server.requests import Handler, Request

_BROKER_LOGGER = 8  # of ConfigResource.Type
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")
_NO_LOGGERS = "this server has no loggers whose level can be changed"


class AlterConfigHandlers:
    def __init__(self, store: TopicStore, node_id: int) -> None:
        self._store = store
        self._node_id = node_id

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.incremental_alter_configs,
            ApiKey.ALTER_CONFIGS: self.alter_configs,
        }

    def incremental_alter_configs(self, request: Request) -> Any:
        validate_only = request.message.validate_only

        def alter(resource: Any) -> None:
            _check_values(each for each in resource.configs if each.config_operation != Operation.DELETE)
            kind = self._checked_kind(resource)
            changes = [
                ConfigChange(each.name, _operation(each.config_operation), each.value) for each in resource.configs
            ]
            if kind is ResourceType.TOPIC:
                self._store.alter_configs(resource.resource_name, changes, validate_only=validate_only)
            else:
                self._store.change_configs(
                    kind,
                    resource.resource_name,
                    lambda current: changed(kind, current, changes),
                    validate_only=validate_only,
                )

        return self._altered(request, m.IncrementalAlterConfigsResponse, alter)

    def alter_configs(self, request: Request) -> Any:
        validate_only = request.message.validate_only

        def replace(resource: Any) -> None:
            _check_values(resource.configs)
            kind = self._checked_kind(resource)
            configs = {each.name: each.value for each in resource.configs}
            if kind is ResourceType.TOPIC:
                self._store.replace_configs(resource.resource_name, configs, validate_only=validate_only)
            else:
                self._store.change_configs(kind, resource.resource_name, lambda _: configs, validate_only=validate_only)

        return self._altered(request, m.AlterConfigsResponse, replace)

    def _altered(self, request: Request, response: Any, change: Callable[[Any], None]) -> Any:
        resources = request.message.resources
        counts = Counter((each.resource_type, each.resource_name) for each in resources)
        results = []
        for resource in resources:
            result = response.AlterConfigsResourceResponse(
                error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
            )
            try:
                if counts[resource.resource_type, resource.resource_name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                if max(Counter(each.name for each in resource.configs).values(), default=0) > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
                change(resource)
            except ApiError as error:
                result.error_code, result.error_message = error.code, error.message
            results.append(result)
        return response(responses=results)

    def _checked_kind(self, resource: Any) -> ResourceType:
        kind, name = resource.resource_type, resource.resource_name
        if kind == _BROKER_LOGGER:
            raise ApiError(ErrorCode.INVALID_REQUEST, _NO_LOGGERS)
        if kind == ResourceType.BROKER and name:
            if not _INTEGER.fullmatch(name):
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
            if int(name) != self._node_id:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {self._node_id}, but received {name}"
                )
        try:
            return ResourceType(kind)
        except ValueError:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}") from None


def _check_values(configs: Any) -> None:
    without_value = [each.name for each in configs if each.value is None]
    if without_value:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(without_value)}")


def _operation(number: int) -> Operation:
    try:
        return Operation(number)
    except ValueError:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR) from None
