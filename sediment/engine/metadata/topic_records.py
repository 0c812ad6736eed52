"""Metadata records of topics, their partitions and configs; one node is the leader and only replica of each partition.

Source: Kafka's ReplicationControlManager, ConfigurationControlManager and PartitionRegistration.toRecord.
"""

from __future__ import annotations

import uuid

from sediment.segment_io.format.checkpoints import parse_uuid
from sediment.segment_io.internal_topics.metadata_records import ResourceType, encode_metadata_record
from sediment.segment_io.protocol import messages as m

METADATA_VERSION = "metadata.version"
"""The feature that decides on the versions of metadata records."""

_VERSION = 0
DIRECTORIES_SINCE = 17  # metadata.version of partition records with directories: 3.7-IV2
_ELIGIBLE_REPLICAS_SINCE = 23  # and with eligible leader replicas: 4.0-IV1


def topic_record(name: str, topic_id: uuid.UUID) -> bytes:
    return encode_metadata_record(m.TopicRecord(name=name, topic_id=topic_id), _VERSION)


def remove_topic_record(topic_id: uuid.UUID) -> bytes:
    return encode_metadata_record(m.RemoveTopicRecord(topic_id=topic_id), _VERSION)


def partition_record(
    topic_id: uuid.UUID,
    number: int,
    node_id: int,
    directory_id: str,
    *,
    leader_epoch: int = 0,
    metadata_version: int,
) -> bytes:
    version = partition_record_version(metadata_version)
    record = m.PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=[node_id],
        isr=[node_id],
        leader=node_id,
        leader_epoch=leader_epoch,
        partition_epoch=0,
    )
    if version > 0:
        record.directories = [uuid.UUID(bytes=parse_uuid(directory_id))]
    return encode_metadata_record(record, version)


def config_record(kind: ResourceType, resource: str, key: str, value: str | None) -> bytes:
    record = m.ConfigRecord(resource_type=kind, resource_name=resource, name=key, value=value)
    return encode_metadata_record(record, _VERSION)


def partition_record_version(metadata_version: int) -> int:
    """Source: Kafka's MetadataVersion.partitionRecordVersion."""
    if metadata_version >= _ELIGIBLE_REPLICAS_SINCE:
        return 2
    return 1 if metadata_version >= DIRECTORIES_SINCE else 0
