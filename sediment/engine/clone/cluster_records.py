"""Metadata records of a clone, in the order in which a controller reads them; one node leads every partition.

    FeatureLevelRecord        the levels of the source, metadata.version first
    TopicRecord               one for each topic, followed by the records of the topic:
      PartitionRecord         its leader epoch is the last of the log, its directory is the clone's
      ConfigRecord
    ConfigRecord              the dynamic configs of all brokers, if they concern logs
    ProducerIdsRecord         the next producer id is above all ids in the source's metadata and in the logs
    ACLs, quotas, SCRAM       they are included only on request

Invariant: a producer id that occurs in a log is never assigned to a new producer.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sediment.engine.clone.options import Part
from sediment.engine.clone.plan import ClonedTopic
from sediment.engine.metadata.topic_records import METADATA_VERSION, config_record, partition_record, topic_record
from sediment.segment_io.format.checkpoints import parse_uuid
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.internal_topics.metadata_log import ALL_BROKERS, ClusterMetadata
from sediment.segment_io.internal_topics.metadata_records import ResourceType, encode_metadata_record
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.message import Message

PRODUCER_ID_BLOCK = 1000
"""The number of producer ids that a controller assigns to a broker at once."""

_VERSION = 0
_NO_BROKER_EPOCH = -1


@dataclass(frozen=True, slots=True)
class CloneNode:
    node_id: int
    cluster_id: str
    directory_id: str


def cluster_records(
    topics: Iterable[ClonedTopic],
    leader_epochs: Mapping[TopicPartition, int],
    node: CloneNode,
    features: Mapping[str, int],
    broker_configs: Mapping[str, str],
    next_producer_id: int,
) -> Iterator[bytes]:
    for name in sorted(features, key=lambda name: (name != METADATA_VERSION, name)):
        yield _encoded(m.FeatureLevelRecord(name=name, feature_level=features[name]))
    for topic in topics:
        yield from topic_records(topic, leader_epochs, node, features[METADATA_VERSION])
    for key, value in sorted(broker_configs.items()):
        yield config_record(ResourceType.BROKER, ALL_BROKERS, key, value)
    yield producer_ids_record(node, next_producer_id)


def added_topic_records(
    topics: Iterable[ClonedTopic],
    leader_epochs: Mapping[TopicPartition, int],
    node: CloneNode,
    metadata: ClusterMetadata,
    known_producer_ids: Iterable[int],
) -> Iterator[bytes]:
    """A ProducerIdsRecord is included only if it raises the next producer id.

    A controller fails if a record lowers or repeats that id.
    """
    for topic in topics:
        yield from topic_records(topic, leader_epochs, node, metadata.features[METADATA_VERSION])
    next_id = next_producer_id(metadata, known_producer_ids)
    if next_id > metadata.next_producer_id:
        yield producer_ids_record(node, next_id)


def topic_records(
    topic: ClonedTopic, leader_epochs: Mapping[TopicPartition, int], node: CloneNode, metadata_version: int
) -> Iterator[bytes]:
    topic_id = uuid.UUID(bytes=parse_uuid(topic.topic_id))
    yield topic_record(topic.name, topic_id)
    for number in range(topic.partition_count):
        epoch = leader_epochs.get(TopicPartition(topic.name, number), 0)
        yield partition_record(
            topic_id, number, node.node_id, node.directory_id, leader_epoch=epoch, metadata_version=metadata_version
        )
    for key, value in sorted(topic.configs.items()):
        yield config_record(ResourceType.TOPIC, topic.name, key, value)


def producer_ids_record(node: CloneNode, next_producer_id: int) -> bytes:
    return _encoded(
        m.ProducerIdsRecord(broker_id=node.node_id, broker_epoch=_NO_BROKER_EPOCH, next_producer_id=next_producer_id)
    )


def security_records(metadata: ClusterMetadata | None, parts: frozenset[Part]) -> Iterator[bytes]:
    if metadata is None:
        return
    found: list[Message] = []
    if Part.ACLS in parts:
        found += metadata.acls.values()
    if Part.QUOTAS in parts:
        found += metadata.quotas.values()
    if Part.SCRAM in parts:
        found += metadata.scram_credentials.values()
    yield from map(_encoded, found)


def next_producer_id(metadata: ClusterMetadata | None, known: Iterable[int]) -> int:
    least = max(known, default=-1) + 1
    block_start = -(-least // PRODUCER_ID_BLOCK) * PRODUCER_ID_BLOCK
    return max(block_start, 0 if metadata is None else metadata.next_producer_id)


def _encoded(record: Message) -> bytes:
    return encode_metadata_record(record, _VERSION)
