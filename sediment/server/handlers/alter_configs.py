"""Changes of topic configs: IncrementalAlterConfigs and AlterConfigs.

Configs of brokers, groups and client metrics are not changed.

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
from sediment.server.live.topic_configs import ConfigChange, Operation
from sediment.server.live.topic_store import TopicStore
from sediment.server.requests import Handler, Request

_OTHER_RESOURCES = frozenset({8, 16, 32})  # ConfigResource.Type: BROKER_LOGGER, CLIENT_METRICS, GROUP
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")
_ONLY_TOPICS = "this server changes only configs of topics"


class AlterConfigHandlers:
    """Handlers that change configs through `store`; `node_id` is the id of this broker."""

    def __init__(self, store: TopicStore, node_id: int) -> None:
        self._store = store
        self._node_id = node_id

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """Return the handlers by API."""
        return {
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.incremental_alter_configs,
            ApiKey.ALTER_CONFIGS: self.alter_configs,
        }

    def incremental_alter_configs(self, request: Request) -> Any:
        """Change some configs of each resource."""
        validate_only = request.message.validate_only

        def alter(resource: Any) -> None:
            _check_values(each for each in resource.configs if each.config_operation != Operation.DELETE)
            self._check_resource(resource)
            changes = [
                ConfigChange(each.name, _operation(each.config_operation), each.value) for each in resource.configs
            ]
            self._store.alter_configs(resource.resource_name, changes, validate_only=validate_only)

        return self._altered(request, m.IncrementalAlterConfigsResponse, alter)

    def alter_configs(self, request: Request) -> Any:
        """Replace the configs of each resource."""
        validate_only = request.message.validate_only

        def replace(resource: Any) -> None:
            _check_values(resource.configs)
            self._check_resource(resource)
            configs = {each.name: each.value for each in resource.configs}
            self._store.replace_configs(resource.resource_name, configs, validate_only=validate_only)

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

    def _check_resource(self, resource: Any) -> None:
        """Check that the resource is a topic.

        Raises:
            ApiError: it is another one.
        """
        kind, name = resource.resource_type, resource.resource_name
        if kind == ResourceType.TOPIC:
            return
        if kind == ResourceType.BROKER:
            if name and not _INTEGER.fullmatch(name):
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
            if name and int(name) != self._node_id:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {self._node_id}, but received {name}"
                )
            raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, _ONLY_TOPICS)
        if kind in _OTHER_RESOURCES:
            raise ApiError(ErrorCode.INVALID_REQUEST, _ONLY_TOPICS)
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")


def _check_values(configs: Any) -> None:
    without_value = [each.name for each in configs if each.value is None]
    if without_value:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(without_value)}")


def _operation(number: int) -> Operation:
    try:
        return Operation(number)
    except ValueError:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR) from None
