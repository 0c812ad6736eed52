"""Folders of a stopped node that its cluster's metadata does not list; the node's broker would rename them to `-stray`.

    folder                                                        is
    the metadata has its topic id and its partition on this node  known: it is not changed
    the metadata has neither its topic's name nor its topic's id  foreign: it can become a topic of the cluster
    anything else                                                 clash: the adoption stops

Source: Kafka 4.2.0, LogManager.isStrayReplica.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sediment.engine.clone.cluster_records import CloneNode
from sediment.engine.clone.source import SourceCluster, SourceTopic
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import INTERNAL_TOPICS, PARTITION_METADATA_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.partition.checkpoint_files import read_partition_metadata

_MOVE = "move the folder out of the log directory; to use its records, clone it with --rename"
_RECOVER = "run `sediment recover`, which writes the topic id of a folder that belongs to the topic"


@dataclass(frozen=True, slots=True)
class Folders:
    known: tuple[TopicPartition, ...]
    foreign: Mapping[str, SourceTopic]


def folders_of(source: SourceCluster, metadata: ClusterMetadata, node: CloneNode, fs: Fs) -> Folders:
    (directory,) = source.directories
    names = {topic_id: name for name, topic_id in metadata.topic_ids.items()}
    known = []
    foreign = set()
    for partition in directory.partitions:
        topic_id = read_partition_metadata(fs, directory.path / str(partition) / PARTITION_METADATA_FILE)
        if partition.topic not in metadata.topic_ids and topic_id not in names:
            foreign.add(partition.topic)
            continue
        clash = why_not_a_replica(partition, topic_id, metadata, names, node)
        if clash is not None:
            raise UsageError(
                clash, partition=str(partition), path=str(directory.path), advice=advice_if_no_replica(topic_id)
            )
        known.append(partition)
    internal = sorted(foreign & INTERNAL_TOPICS)
    if internal:
        raise UsageError(
            f"the folders of {internal[0]} are from another cluster's coordinators, and this cluster has no such topic",
            path=str(directory.path),
            advice="move these folders out of the log directory; to keep groups and transactions, clone all folders",
        )
    return Folders(tuple(known), {name: source.topics[name] for name in sorted(foreign)})


def advice_if_no_replica(topic_id: str | None) -> str:
    return _RECOVER if topic_id is None else _MOVE


def why_not_a_replica(
    partition: TopicPartition,
    topic_id: str | None,
    metadata: ClusterMetadata,
    names: Mapping[str, str],
    node: CloneNode,
) -> str | None:
    wanted = metadata.topic_ids.get(partition.topic)
    if wanted is None:
        return f"topic id {topic_id} belongs to the cluster's topic {names[topic_id or '']}, not to {partition.topic}"
    if topic_id is None:
        return f"the cluster has a topic {partition.topic}, but this folder has no partition.metadata"
    if topic_id != wanted:
        return f"the cluster has another topic {partition.topic}, with id {wanted}; this folder has id {topic_id}"
    replicas = metadata.replicas.get(partition.topic, {})
    nodes = replicas.get(partition.partition)
    if nodes is None:
        return f"topic {partition.topic} has {len(replicas)} partitions in the cluster, and this is not one of them"
    if node.node_id not in nodes:
        return f"the cluster has this partition on nodes {', '.join(map(str, nodes))}, not on node {node.node_id}"
    return None
