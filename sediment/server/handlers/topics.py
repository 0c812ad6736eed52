"""Changes of topics: CreateTopics, DeleteTopics, CreatePartitions and AlterPartitionReassignments.

A reassignment changes nothing, because the only node is the replica of every partition.

Source: Kafka 4.2.0, ControllerApis.createTopics, deleteTopics and createPartitions, and
ReplicationControlManager.alterPartitionReassignments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError
from sediment.server.handlers.configs import topic_config_values
from sediment.server.live.live_catalog import LiveCatalog
from sediment.server.live.topic_rules import MorePartitions, NewTopic, check_replicas
from sediment.server.live.topic_store import CreatedTopic, TopicStore
from sediment.server.requests import Handler, Request
from sediment.server.topic_catalog import has_partition

_NO_ID = UUID(int=0)
_DUPLICATE_NAME = "Duplicate topic name."
_UNKNOWN_NAME = "This server does not host this topic-partition."
_UNKNOWN_ID = "This server does not host this topic ID."
_FIRST_DELETION_BY_STATE = 6


class TopicHandlers:
    def __init__(self, store: TopicStore, catalog: LiveCatalog) -> None:
        self._store = store
        self._catalog = catalog

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.CREATE_TOPICS: self.create_topics,
            ApiKey.DELETE_TOPICS: self.delete_topics,
            ApiKey.CREATE_PARTITIONS: self.create_partitions,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self.alter_partition_reassignments,
        }

    # ---------------------------------------------------------------------------------------------------------- create
    def create_topics(self, request: Request) -> Any:
        message = request.message
        counts = Counter(topic.name for topic in message.topics)
        new = [_new_topic(topic) for topic in message.topics if counts[topic.name] == 1]
        try:
            outcomes = self._store.create(new, validate_only=message.validate_only)
        except ApiError as error:
            outcomes = [error for _ in new]
        topics = [self._created(topic.name, outcome) for topic, outcome in zip(new, outcomes, strict=True)]
        topics += [
            _topic_error(name, ApiError(ErrorCode.INVALID_REQUEST, _DUPLICATE_NAME))
            for name, count in counts.items()
            if count > 1
        ]
        return m.CreateTopicsResponse(topics=topics)

    def _created(self, name: str, outcome: CreatedTopic | ApiError) -> Any:
        if isinstance(outcome, ApiError):
            return _topic_error(name, outcome)
        response = m.CreateTopicsResponse
        return response.CreatableTopicResult(
            name=name,
            topic_id=outcome.id,
            error_message=None,
            num_partitions=outcome.partition_count,
            replication_factor=1,
            configs=[
                response.CreatableTopicConfigs(
                    name=each.name, value=each.value, read_only=False, config_source=each.source, is_sensitive=False
                )
                for each in topic_config_values(outcome.configs, self._catalog)
            ],
        )

    # ---------------------------------------------------------------------------------------------------------- delete
    def delete_topics(self, request: Request) -> Any:
        deletion = _Deletion(self._catalog)
        if request.api_version < _FIRST_DELETION_BY_STATE:
            deletion.add_names(request.message.topic_names)
        else:
            deletion.add_states(request.message.topics)
        names = deletion.names
        try:
            errors = self._store.delete(names)
        except ApiError as error:
            errors = dict.fromkeys(names, error)
        outcomes = [deletion.result(name, errors.get(name)) for name in names]
        return m.DeleteTopicsResponse(responses=deletion.refused + outcomes)

    # ------------------------------------------------------------------------------------------------------ partitions
    def create_partitions(self, request: Request) -> Any:
        message = request.message
        counts = Counter(topic.name for topic in message.topics)
        results = [
            _partitions_result(name, ApiError(ErrorCode.INVALID_REQUEST, _DUPLICATE_NAME))
            for name, count in counts.items()
            if count > 1
        ]
        changes = [_more_partitions(topic) for topic in message.topics if counts[topic.name] == 1]
        outcomes: Sequence[ApiError | None]
        try:
            outcomes = self._store.add_partitions(changes, validate_only=message.validate_only)
        except ApiError as error:
            outcomes = [error for _ in changes]
        results += [_partitions_result(each.name, error) for each, error in zip(changes, outcomes, strict=True)]
        return m.CreatePartitionsResponse(results=results)

    # ---------------------------------------------------------------------------------------------------- reassignments
    def alter_partition_reassignments(self, request: Request) -> Any:
        """Accept a reassignment to the current replicas, and refuse any other reassignment."""
        message, response = request.message, m.AlterPartitionReassignmentsResponse
        return response(
            allow_replication_factor_change=message.allow_replication_factor_change,
            error_message=None,
            responses=[
                response.ReassignableTopicResponse(
                    name=topic.name, partitions=[self._reassigned(topic.name, each) for each in topic.partitions]
                )
                for topic in message.topics
            ],
        )

    def _reassigned(self, topic: str, asked: Any) -> Any:
        code, text = ErrorCode.NONE, None
        try:
            self._check_reassignment(topic, asked)
        except ApiError as error:
            code, text = error.code, error.message
        return m.AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
            partition_index=asked.partition_index, error_code=code, error_message=text
        )

    def _check_reassignment(self, name: str, asked: Any) -> None:
        topic, number = self._catalog.topic(name), asked.partition_index
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
        if not has_partition(topic, number):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{number}.")
        if asked.replicas is None:
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        check_replicas(asked.replicas, self._catalog.node_id)


class _Deletion:
    def __init__(self, catalog: LiveCatalog) -> None:
        self.names: dict[str, UUID] = {}
        self.refused: list[Any] = []
        self._catalog = catalog
        self._by_id: set[str] = set()

    def result(self, name: str, error: ApiError | None) -> Any:
        topic_id = self.names[name]
        if error is None or error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return _deletion_result(name, topic_id, error)
        # Another request has deleted the topic in the meantime.
        if name in self._by_id:
            return _deletion_result(None, topic_id, ApiError(ErrorCode.UNKNOWN_TOPIC_ID, _UNKNOWN_ID))
        return _deletion_result(name, _NO_ID, ApiError(error.code, _UNKNOWN_NAME))

    def add_names(self, names: Iterable[str]) -> None:
        self._add(Counter(names), Counter())

    def add_states(self, states: Iterable[Any]) -> None:
        names: Counter[str] = Counter()
        ids: Counter[UUID] = Counter()
        for state in states:
            if state.name is not None and state.topic_id != _NO_ID:
                self._refuse(state.name, state.topic_id, "You may not specify both topic name and topic id.")
            elif state.name is not None:
                names[state.name] += 1
            elif state.topic_id != _NO_ID:
                ids[state.topic_id] += 1
            else:
                self._refuse(None, _NO_ID, "Neither topic name nor id were specified.")
        self._add(names, ids)

    def _add(self, names: Counter[str], ids: Counter[UUID]) -> None:
        for topic_id, count in ids.items():
            topic = self._catalog.topic_by_id(topic_id)
            if count > 1:
                self._refuse(None, topic_id, "Duplicate topic id.")
            elif topic is None:
                self._refuse(None, topic_id, _UNKNOWN_ID, ErrorCode.UNKNOWN_TOPIC_ID)
            else:
                self.names[topic.name] = topic_id
                self._by_id.add(topic.name)
        for name, count in names.items():
            topic = self._catalog.topic(name)
            if count > 1:
                self._refuse(name, _NO_ID, _DUPLICATE_NAME)
            elif topic is None:
                self._refuse(name, _NO_ID, _UNKNOWN_NAME, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif topic.id in ids:
                self.names.pop(name, None)
                self._refuse(name, topic.id, "The provided topic name maps to an ID that was already supplied.")
            else:
                self.names[name] = topic.id

    def _refuse(self, name: str | None, topic_id: UUID, text: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        self.refused.append(_deletion_result(name, topic_id, ApiError(code, text)))


def _new_topic(asked: Any) -> NewTopic:
    return NewTopic(
        asked.name,
        asked.num_partitions,
        asked.replication_factor,
        [(each.partition_index, each.broker_ids) for each in asked.assignments],
        [(each.name, each.value) for each in asked.configs],
    )


def _more_partitions(asked: Any) -> MorePartitions:
    assignments = None if asked.assignments is None else [each.broker_ids for each in asked.assignments]
    return MorePartitions(asked.name, asked.count, assignments)


def _topic_error(name: str, error: ApiError) -> Any:
    return m.CreateTopicsResponse.CreatableTopicResult(name=name, error_code=error.code, error_message=error.message)


def _deletion_result(name: str | None, topic_id: UUID, error: ApiError | None) -> Any:
    return m.DeleteTopicsResponse.DeletableTopicResult(
        name=name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
    )


def _partitions_result(name: str, error: ApiError | None) -> Any:
    return m.CreatePartitionsResponse.CreatePartitionsTopicResult(
        name=name,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
    )
