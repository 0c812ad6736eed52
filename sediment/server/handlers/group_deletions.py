"""Deletions of groups and of committed offsets: DeleteGroups and OffsetDelete.

Source: Kafka 4.2.0, KafkaApis, GroupCoordinatorService and ClassicGroup.validateOffsetDelete.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.groups.group_coordinator import GroupCoordinator
from sediment.server.requests import Handler, Request
from sediment.server.topic_catalog import TopicCatalog, has_partition


class GroupDeletionHandlers:
    def __init__(self, coordinator: GroupCoordinator, catalog: TopicCatalog) -> None:
        self._coordinator = coordinator
        self._catalog = catalog

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.DELETE_GROUPS: self.delete_groups, ApiKey.OFFSET_DELETE: self.offset_delete}

    def delete_groups(self, request: Request) -> Any:
        response = m.DeleteGroupsResponse
        return response(
            results=[
                response.DeletableGroupResult(group_id=name, error_code=self._coordinator.delete(name))
                for name in dict.fromkeys(request.message.groups_names)
            ]
        )

    def offset_delete(self, request: Request) -> Any:
        message, response = request.message, m.OffsetDeleteResponse
        known: list[tuple[str, int]] = []
        results: dict[tuple[str, int], Any] = {}
        topics = []
        for topic in message.topics:
            partitions = []
            for each in topic.partitions:
                name = topic.name, each.partition_index
                result = response.OffsetDeleteResponsePartition(partition_index=each.partition_index)
                partitions.append(result)
                if has_partition(self._catalog.topic(topic.name), each.partition_index):
                    known.append(name)
                    results[name] = result
                else:
                    result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(response.OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
        error, errors = self._coordinator.delete_offsets(message.group_id, known)
        if error is not ErrorCode.NONE:
            return response(error_code=error)
        for name, code in zip(known, errors, strict=True):
            results[name].error_code = code
        return response(topics=topics)
