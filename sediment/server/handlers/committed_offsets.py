"""Handlers of committed offsets: OffsetCommit and OffsetFetch.

In version 10 and later, requests and responses identify topics by id.  If a topic was deleted and created again, its id
differs.  Offsets that were committed for the earlier id are not returned.

Source: Kafka's KafkaApis and OffsetMetadataManager.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

from sediment.segment_io.format.layout import NO_LEADER_EPOCH
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.groups.group_coordinator import FetchedOffset, GroupCoordinator
from sediment.server.groups.group_offsets import NO_TOPIC_ID, CommittedOffset
from sediment.server.groups.group_requests import MemberIdentity
from sediment.server.requests import Handler, Request

_NO_OFFSET = CommittedOffset(-1, NO_LEADER_EPOCH)

# The versions in which an API first differs from its earlier versions.
_COMMIT_EPOCHS = 9
_FETCH_GROUP_ERROR = 2
_FETCH_GROUPS = 8
_TOPIC_IDS = 10

_ID_MADE_OF_A_NAME = 5  # the UUID version of ids that are derived from names; Kafka's random ids have version 4


class NamedTopic(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def id(self) -> UUID: ...
    @property
    def partitions(self) -> Container[int]: ...
    @property
    def missing(self) -> Container[int]: ...


class NamedTopics(Protocol):
    def topic(self, name: str) -> NamedTopic | None: ...
    def topic_by_id(self, topic_id: UUID) -> NamedTopic | None: ...


class CommittedOffsetHandlers:
    def __init__(self, coordinator: GroupCoordinator, topics: NamedTopics, wall_ms: Callable[[], int]) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._wall_ms = wall_ms

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.OFFSET_COMMIT: self._offset_commit, ApiKey.OFFSET_FETCH: self._offset_fetch}

    def _find(self, asked: Any, version: int) -> tuple[NamedTopic | None, ErrorCode]:
        if version >= _TOPIC_IDS:
            return self._topics.topic_by_id(asked.topic_id), ErrorCode.UNKNOWN_TOPIC_ID
        return self._topics.topic(asked.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    # --------------------------------------------------------------------------------------------------------- commit
    def _offset_commit(self, request: Request) -> Any:
        message, version = request.message, request.api_version
        now_ms = self._wall_ms()
        response = m.OffsetCommitResponse
        topics, waiting = [], []
        commits: list[tuple[str, int, CommittedOffset]] = []
        for asked in message.topics:
            topic, unknown = self._find(asked, version)
            partitions = []
            for each in asked.partitions:
                partition = response.OffsetCommitResponsePartition(partition_index=each.partition_index)
                partitions.append(partition)
                if topic is None:
                    partition.error_code = unknown
                elif each.partition_index not in topic.partitions and each.partition_index not in topic.missing:
                    partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    waiting.append(partition)
                    commits.append((topic.name, each.partition_index, _committed_offset(each, asked.topic_id, now_ms)))
            topics.append(
                response.OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id, partitions=partitions)
            )
        if commits:
            identity = MemberIdentity(message.member_id, message.group_instance_id)
            generation = message.generation_id_or_member_epoch
            knows_epochs = version >= _COMMIT_EPOCHS
            errors = self._coordinator.commit(
                message.group_id, identity, generation, commits, knows_epochs=knows_epochs
            )
            for partition, error in zip(waiting, errors, strict=True):
                is_old = error is ErrorCode.GROUP_ID_NOT_FOUND and not knows_epochs
                partition.error_code = ErrorCode.ILLEGAL_GENERATION if is_old else error
        return response(topics=topics)

    # ---------------------------------------------------------------------------------------------------------- fetch
    def _offset_fetch(self, request: Request) -> Any:
        message, version = request.message, request.api_version
        response = m.OffsetFetchResponse
        if version >= _FETCH_GROUPS:
            # A group whose topics are not named has all its offsets in the response, so it is answered only once.
            asked = {each.group_id if each.topics is None else id(each): each for each in message.groups}
            return response(
                groups=[self._fetch_group(each, message.require_stable, version) for each in asked.values()]
            )
        topics = None if message.topics is None else [(each.name, each.partition_indexes) for each in message.topics]
        error, found = self._coordinator.fetch(message.group_id, topics, require_stable=message.require_stable)
        if error is not ErrorCode.NONE and version < _FETCH_GROUP_ERROR:
            # In version 1, only the partitions of a response have an error field.
            found = [(name, [FetchedOffset(each, error) for each in numbers]) for name, numbers in topics or ()]
        return response(
            error_code=error,
            topics=[
                response.OffsetFetchResponseTopic(
                    name=name, partitions=_partitions(response.OffsetFetchResponsePartition, fetched, NO_TOPIC_ID)
                )
                for name, fetched in found
            ],
        )

    def _fetch_group(self, asked: Any, require_stable: bool, version: int) -> Any:
        response = m.OffsetFetchResponse
        named = None if asked.topics is None else [(self._name(each, version), each) for each in asked.topics]
        wanted = None if named is None else [(name, each.partition_indexes) for name, each in named if name is not None]
        error, found = self._coordinator.fetch(
            asked.group_id,
            wanted,
            require_stable=require_stable,
            member_id=asked.member_id,
            member_epoch=asked.member_epoch,
        )
        if error is not ErrorCode.NONE:
            return response.OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error)
        rows = self._all(found, version) if named is None else _asked_for(named, found)
        return response.OffsetFetchResponseGroup(
            group_id=asked.group_id,
            topics=[
                response.OffsetFetchResponseTopics(
                    name=name,
                    topic_id=topic_id,
                    partitions=_partitions(response.OffsetFetchResponsePartitions, fetched, topic_id),
                )
                for name, topic_id, fetched in rows
            ],
        )

    def _name(self, asked: Any, version: int) -> str | None:
        if version < _TOPIC_IDS:
            return str(asked.name)
        topic = self._topics.topic_by_id(asked.topic_id)
        return None if topic is None else topic.name

    def _all(self, found: Sequence[tuple[str, list[FetchedOffset]]], version: int) -> list[_FetchedTopic]:
        if version < _TOPIC_IDS:
            return [(name, NO_TOPIC_ID, fetched) for name, fetched in found]
        topics = [(self._topics.topic(name), fetched) for name, fetched in found]
        return [(topic.name, topic.id, fetched) for topic, fetched in topics if topic is not None]


_FetchedTopic = tuple[str, UUID, Sequence[FetchedOffset]]


def _committed_offset(asked: Any, topic_id: UUID, now_ms: int) -> CommittedOffset:
    return CommittedOffset(
        offset=asked.committed_offset,
        leader_epoch=asked.committed_leader_epoch,
        metadata=asked.committed_metadata or "",
        commit_timestamp_ms=now_ms,
        topic_id=topic_id,
    )


def _asked_for(
    named: Sequence[tuple[str | None, Any]], found: Sequence[tuple[str, list[FetchedOffset]]]
) -> list[_FetchedTopic]:
    following = iter(found)
    return [
        (
            asked.name,
            asked.topic_id,
            [FetchedOffset(each, ErrorCode.UNKNOWN_TOPIC_ID) for each in asked.partition_indexes]
            if name is None
            else next(following)[1],
        )
        for name, asked in named
    ]


def _partitions(structure: Any, fetched: Sequence[FetchedOffset], topic_id: UUID) -> list[Any]:
    partitions = []
    for each in fetched:
        value = each.value or _NO_OFFSET
        if _is_of_another_topic(value.topic_id, topic_id):
            value = _NO_OFFSET
        partitions.append(
            structure(
                partition_index=each.partition,
                committed_offset=value.offset,
                committed_leader_epoch=value.leader_epoch,
                metadata=value.metadata,
                error_code=each.error,
            )
        )
    return partitions


def _is_of_another_topic(committed: UUID, asked: UUID) -> bool:
    """Return False if an id is missing, or if `asked` is derived from a name, because the ids then prove nothing."""
    return committed != asked and NO_TOPIC_ID not in (committed, asked) and asked.version != _ID_MADE_OF_A_NAME
