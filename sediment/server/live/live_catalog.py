"""LiveCatalog: the topics of a node's metadata, with the partitions that this process leads.

Invariant: each change replaces the whole set of topics.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sediment.engine.live.log.fetched_data import Isolation
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.segment_io.format.checkpoints import parse_uuid
from sediment.segment_io.format.names import INTERNAL_TOPICS, TopicPartition
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.live.partition import Partition
from sediment.server.topic_catalog import FutureLog, ServedDirectory


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LiveTopic:
    """A topic with its partitions by number; the logs of the partitions in `missing` could not be created."""

    name: str
    id: uuid.UUID
    partitions: Mapping[int, Partition]
    configs: Mapping[str, str]
    missing: Mapping[int, ErrorCode]
    all_partitions: Mapping[int, Partition | None]

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class _Topics:
    metadata: ClusterMetadata
    by_name: Mapping[str, LiveTopic]
    by_id: Mapping[uuid.UUID, LiveTopic]


class LiveCatalog:
    def __init__(
        self,
        cluster_id: str,
        node_id: int,
        metadata: ClusterMetadata,
        partitions: Mapping[TopicPartition, Partition],
        directories: Sequence[Path],
        future_logs: Callable[[], Iterable[PartitionLog]] = tuple,
    ) -> None:
        self.cluster_id = cluster_id
        self.node_id = node_id
        self._log_dirs = tuple(directories)
        self._future_logs = future_logs
        self._topics = _Topics(metadata, {}, {})
        self.change(metadata, metadata.topic_ids, partitions)

    @property
    def metadata(self) -> ClusterMetadata:
        return self._topics.metadata

    @property
    def directories(self) -> Sequence[ServedDirectory]:
        logs: dict[Path, dict[TopicPartition, Partition]] = {path: {} for path in self._log_dirs}
        for topic in self.topics():
            for partition in topic.partitions.values():
                logs[partition.directory.parent][partition.topic_partition] = partition
        future: dict[Path, dict[TopicPartition, FutureLog]] = {path: {} for path in self._log_dirs}
        for log in self._future_logs():
            current = self.partition(log.partition.topic, log.partition.partition)
            if current is not None:
                lag = current.end_offset(Isolation.LOG_END) - log.log_end_offset
                future[log.directory.parent][log.partition] = FutureLog(log.size_bytes, lag)
        return [ServedDirectory(path, found, future[path]) for path, found in logs.items()]

    def topics(self) -> Sequence[LiveTopic]:
        return tuple(self._topics.by_name.values())

    def topic(self, name: str) -> LiveTopic | None:
        return self._topics.by_name.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> LiveTopic | None:
        return self._topics.by_id.get(topic_id)

    def partition(self, name: str, number: int) -> Partition | None:
        topic = self.topic(name)
        return None if topic is None else topic.partitions.get(number)

    def change(
        self, metadata: ClusterMetadata, changed: Iterable[str], added: Mapping[TopicPartition, Partition]
    ) -> None:
        """Calls must not overlap."""
        by_name = dict(self._topics.by_name)
        by_id = dict(self._topics.by_id)
        for name in changed:
            before = by_name.pop(name, None)
            if before is not None:
                del by_id[before.id]
            if name in metadata.topic_ids:
                topic_id = uuid.UUID(bytes=parse_uuid(metadata.topic_ids[name]))
                kept = before.partitions if before is not None and before.id == topic_id else {}
                numbered = {number: added.get(TopicPartition(name, number)) for number in metadata.replicas[name]}
                found = {number: kept.get(number) or new for number, new in sorted(numbered.items())}
                partitions = {number: each for number, each in found.items() if each is not None}
                by_id[topic_id] = by_name[name] = LiveTopic(
                    name,
                    topic_id,
                    partitions,
                    metadata.topic_configs.get(name, {}),
                    missing=dict.fromkeys(numbered.keys() - partitions.keys(), ErrorCode.KAFKA_STORAGE_ERROR),
                    all_partitions=found,
                )
        self._topics = _Topics(metadata, dict(sorted(by_name.items())), by_id)
