"""Changes of `bootstrap.checkpoint`: the records of the file and further records, merged so that the file stays small.

    a further record           replaces
    PartitionChangeRecord      nothing; it is merged into the record of its partition
    ProducerIdsRecord          the earlier ProducerIdsRecord
    ConfigRecord               the earlier record of the same key; a record without a value only removes it
    RemoveTopicRecord          the partitions and configs of its topic
    UserScramCredentialRecord  the earlier record of the same user and mechanism
    RemoveUserScramCredential- the credential of the same user and mechanism; the new record is not added to the file
    Record
    PartitionRecord            nothing; a NoOpRecord comes before the first partition that is added

The TopicRecord and RemoveTopicRecord of a removed topic are kept until 100 other topics have been removed. So a later
start recognises a folder of a deleted topic.

Source: Kafka 4.2.0, ActivationRecordsGenerator.recordsForEmptyLog: a controller copies the records to its log in order.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sediment.engine.metadata.leader_changes import merge_partition_changes
from sediment.segment_io.internal_topics.metadata_records import (
    ResourceType,
    decode_metadata_record,
    encode_metadata_record,
    record_type,
)
from sediment.segment_io.protocol import messages as m

_TOPIC = m.TopicRecord.API_KEY
_PARTITION = m.PartitionRecord.API_KEY
_PARTITION_CHANGE = m.PartitionChangeRecord.API_KEY
_CONFIG = m.ConfigRecord.API_KEY
_REMOVE_TOPIC = m.RemoveTopicRecord.API_KEY
_PRODUCER_IDS = m.ProducerIdsRecord.API_KEY
_USER = m.UserScramCredentialRecord.API_KEY
_REMOVE_USER = m.RemoveUserScramCredentialRecord.API_KEY
_NO_OP = m.NoOpRecord.API_KEY
_VERSION = 0  # the version of a NoOpRecord
_MOST_REMOVED = 100  # the number of removed topics that the file keeps


def merge_bootstrap_records(values: Sequence[bytes], changes: Iterable[bytes]) -> list[bytes]:
    by_type: dict[int, list[bytes]] = {}
    for value in changes:
        by_type.setdefault(record_type(value), []).append(value)
    merged = list(values)
    partition_changes = by_type.pop(_PARTITION_CHANGE, [])
    if partition_changes:
        merged = merge_partition_changes(merged, partition_changes)
    if _PRODUCER_IDS in by_type:
        merged = [value for value in merged if record_type(value) != _PRODUCER_IDS]
    configs = {_config_key(value): value for value in by_type.get(_CONFIG, ())}
    if configs:
        merged = [value for value in merged if record_type(value) != _CONFIG or _config_key(value) not in configs]
        by_type[_CONFIG] = [value for value in configs.values() if _decoded(value).value is not None]
    users = {_user_key(value) for kind in (_USER, _REMOVE_USER) for value in by_type.get(kind, ())}
    if users:
        merged = [value for value in merged if record_type(value) != _USER or _user_key(value) not in users]
        by_type.pop(_REMOVE_USER, None)  # a controller refuses to remove a user that does not exist
    removed = {_decoded(value).topic_id for value in by_type.get(_REMOVE_TOPIC, ())}
    if removed:
        merged = _without_topics(merged, removed)
    added = [value for kind in by_type.values() for value in kind]
    if _PARTITION in by_type and not any(record_type(value) == _NO_OP for value in merged):
        added.insert(0, encode_metadata_record(m.NoOpRecord(), _VERSION))
    return merged + added


def _without_topics(values: Sequence[bytes], removed: set[uuid.UUID]) -> list[bytes]:
    names = _names_of(values)
    before = [_decoded(value).topic_id for value in values if record_type(value) == _REMOVE_TOPIC]
    forgotten = set(before[:-_MOST_REMOVED])
    names_removed = {names[topic_id] for topic_id in removed}

    def is_kept(value: bytes) -> bool:
        kind = record_type(value)
        if kind in (_TOPIC, _REMOVE_TOPIC):
            return _decoded(value).topic_id not in forgotten
        if kind == _PARTITION:
            return _decoded(value).topic_id not in removed
        if kind == _CONFIG:
            config = _decoded(value)
            return config.resource_type != ResourceType.TOPIC or config.resource_name not in names_removed
        return True

    return [value for value in values if is_kept(value)]


def _names_of(values: Iterable[bytes]) -> Mapping[uuid.UUID, str]:
    topics = (_decoded(value) for value in values if record_type(value) == _TOPIC)
    return {topic.topic_id: topic.name for topic in topics}


def _config_key(value: bytes) -> tuple[int, str, str]:
    config = _decoded(value)
    return config.resource_type, config.resource_name, config.name


def _user_key(value: bytes) -> tuple[int, str]:
    user = _decoded(value)
    return user.mechanism, user.name


def _decoded(value: bytes) -> Any:
    return decode_metadata_record(value)
