"""LiveCatalog: the topics of a node's metadata, with the partitions that this process leads."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.format.checkpoints import parse_uuid
from sediment.segment_io.format.names import INTERNAL_TOPICS, TopicPartition
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.server.live.partition import Partition
from sediment.server.topic_catalog import ServedDirectory


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """A topic with its partitions by number."""

    name: str
    id: uuid.UUID
    partitions: Mapping[int, Partition]
    configs: Mapping[str, str]

    @property
    def is_internal(self) -> bool:
        """True for one of Kafka's internal topics."""
        return self.name in INTERNAL_TOPICS


class LiveCatalog:
    """Topics by name and by id; every partition of `metadata` is in `partitions`."""

    def __init__(
        self,
        cluster_id: str,
        node_id: int,
        metadata: ClusterMetadata,
        partitions: Mapping[TopicPartition, Partition],
        directories: Sequence[Path],
    ) -> None:
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.metadata = metadata
        self._by_name = {
            name: LiveTopic(
                name,
                uuid.UUID(bytes=parse_uuid(topic_id)),
                {number: partitions[TopicPartition(name, number)] for number in sorted(metadata.replicas[name])},
                metadata.topic_configs.get(name, {}),
            )
            for name, topic_id in sorted(metadata.topic_ids.items())
        }
        self._by_id = {topic.id: topic for topic in self._by_name.values()}
        self.directories = tuple(
            ServedDirectory(path, {name: each for name, each in partitions.items() if each.directory.parent == path})
            for path in directories
        )

    def topics(self) -> Sequence[LiveTopic]:
        """Return every topic, by name."""
        return tuple(self._by_name.values())

    def topic(self, name: str) -> LiveTopic | None:
        """Return a topic by name."""
        return self._by_name.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> LiveTopic | None:
        """Return a topic by id."""
        return self._by_id.get(topic_id)

    def partition(self, name: str, number: int) -> Partition | None:
        """Return a partition of a topic."""
        topic = self._by_name.get(name)
        return None if topic is None else topic.partitions.get(number)
