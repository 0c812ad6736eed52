"""The topic id in a folder's partition.metadata: the faults that keep a broker from serving the folder, and the repair.

    partition.metadata                       a KRaft broker at its start
    missing, or with the id of no replica    renames the folder to -stray, and serves the partition empty
    no second line, or no id of 16 bytes     does not start
    malformed in another way                 takes the log directory offline

`write_topic_id` writes the id of the cluster's topic, but never over a readable file.

Invariant: an id is written only if nothing contradicts that the folder belongs to the cluster's topic of this name. If
a topic was deleted and created again while the node was down, the folder may belong to the deleted topic.

Source: Kafka 4.2.0, LogManager.isStrayReplica, UnifiedLog.initializeTopicId and PartitionMetadataReadBuffer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.engine.directory.repair import Repair
from sediment.segment_io.errors import CorruptCheckpointError, SedimentError
from sediment.segment_io.format.checkpoints import format_partition_metadata
from sediment.segment_io.format.names import (
    LEADER_EPOCH_FILE,
    METADATA_PARTITION,
    PARTITION_METADATA_FILE,
    TopicPartition,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_leader_epochs, read_partition_metadata

if TYPE_CHECKING:
    from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata

_STRAY = "a broker renames the folder to -stray"
_EMPTY = f"{_STRAY} and serves the partition empty"
_NO_START = "a broker does not start, or takes the log directory offline"
_NAME_METADATA = (
    f"name the node's directory that contains {METADATA_PARTITION} with --metadata DIR or --config FILE, so that "
    "`recover` can write the id"
)
_MOVE_AWAY = "move the file out of the folder; a broker with ZooKeeper then writes it again"
_MISSING = "is missing"
_PAST = {"is": "was", "has": "had"}


@dataclass(frozen=True, slots=True)
class TopicIdFault:
    """`topic_id` is the id to write; None if the file must not be written.

    `is_lost` is False if the file is readable, or if nothing but a decision of the user is missing; then the folder is
    simply not a replica of the cluster.
    """

    fault: str
    effect: str
    advice: str
    topic_id: str | None
    is_lost: bool

    def __str__(self) -> str:
        return f"{PARTITION_METADATA_FILE} {self.fault}, so {self.effect}; {self.advice}"


class TopicIds:
    """`metadata` is None if no metadata log was found; `is_kraft` then decides whether a broker needs the file."""

    def __init__(
        self,
        metadata: ClusterMetadata | None,
        folders: Iterable[tuple[TopicPartition, Path]],
        fs: Fs,
        *,
        node_id: int | None,
        is_kraft: bool,
    ) -> None:
        self._metadata = metadata
        self._fs = fs
        self._node_id = node_id
        self._is_kraft = is_kraft or metadata is not None
        self._ids: dict[str, set[str]] = defaultdict(set)
        for partition, folder in folders:
            with suppress(SedimentError, OSError):
                topic_id = read_partition_metadata(fs, folder / PARTITION_METADATA_FILE)
                if topic_id is not None:
                    self._ids[partition.topic].add(topic_id)

    def fault(self, partition: TopicPartition, folder: Path) -> TopicIdFault | None:
        path = folder / PARTITION_METADATA_FILE
        try:
            topic_id = read_partition_metadata(self._fs, path)
        except CorruptCheckpointError as error:
            entry = self._fs.entry(path)
            size_bytes = 0 if entry is None else entry.size_bytes
            return self._lost("has 0 bytes" if not size_bytes else f"is unreadable ({error.what})", partition, folder)
        if topic_id is not None:
            return self._of_readable(topic_id, partition)
        return self._lost(_MISSING, partition, folder) if self._is_kraft else None

    def _of_readable(self, topic_id: str, partition: TopicPartition) -> TopicIdFault | None:
        if self._metadata is None:
            return None
        known = self._metadata.topic_ids.get(partition.topic)
        if known == topic_id:
            reason = self._why_no_replica(partition)
            fault = None if reason is None else f"has the id of the cluster's topic, but {reason}"
        elif known is None:
            fault = f"has topic id {topic_id}, and the cluster has no topic {partition.topic}"
        else:
            fault = f"has topic id {topic_id}, and the cluster's topic {partition.topic} has id {known}"
        if fault is None:
            return None
        advice = "the file was left as it is; to use the records, clone the folder with --rename"
        return TopicIdFault(fault, _STRAY if known is None else _EMPTY, advice, None, is_lost=False)

    def _lost(self, fault: str, partition: TopicPartition, folder: Path) -> TopicIdFault:
        is_missing = fault == _MISSING
        if self._metadata is None:
            effect = _EMPTY if is_missing else _NO_START
            advice = _NAME_METADATA if self._is_kraft else _MOVE_AWAY
            return TopicIdFault(fault, effect, advice, None, is_lost=True)
        known = self._metadata.topic_ids.get(partition.topic)
        effect = _NO_START if not is_missing else _STRAY if known is None else _EMPTY
        reason = self._why_not_known(partition, folder)
        if known is None or reason is not None:
            move = "" if is_missing else "move the file out of the folder, and "
            write = "" if known is None else f"; if it does, write `version: 0` and `topic_id: {known}` into the file"
            advice = f"{move}decide whether the folder belongs to the topic, because {reason}{write}"
            return TopicIdFault(fault, effect, advice, None, is_lost=not is_missing)
        advice = f"run `sediment recover`, which writes the id from {METADATA_PARTITION}"
        return TopicIdFault(fault, effect, advice, known, is_lost=True)

    def _why_not_known(self, partition: TopicPartition, folder: Path) -> str | None:
        assert self._metadata is not None
        known = self._metadata.topic_ids.get(partition.topic)
        if known is None:
            return f"the cluster has no topic {partition.topic}"
        others = sorted(self._ids[partition.topic] - {known})
        if others:
            return f"another folder of the topic has topic id {others[0]}, but the cluster's topic has id {known}"
        if self._metadata.former_topic_ids.get(partition.topic):
            return f"topic {partition.topic} was deleted and created again"
        written = self._latest_epoch(folder)
        epoch = self._metadata.leader_epochs.get(partition.topic, {}).get(partition.partition)
        if written is not None and epoch is not None and written > epoch:
            return f"its log has leader epoch {written}, but the cluster's partition has reached only epoch {epoch}"
        return self._why_no_replica(partition)

    def _why_no_replica(self, partition: TopicPartition) -> str | None:
        assert self._metadata is not None
        replicas = self._metadata.replicas.get(partition.topic, {})
        nodes = replicas.get(partition.partition)
        if nodes is None:
            return f"the cluster's topic has only {len(replicas)} partitions"
        if self._node_id is not None and self._node_id not in nodes:
            return f"the cluster has this partition on nodes {', '.join(map(str, nodes))}, not on node {self._node_id}"
        return None

    def _latest_epoch(self, folder: Path) -> int | None:
        with suppress(SedimentError, OSError):
            epochs = read_leader_epochs(self._fs, folder / LEADER_EPOCH_FILE)
            return epochs[-1].epoch if epochs else None
        return None


def write_topic_id(folder: Path, partition: TopicPartition, fault: TopicIdFault, fs: Fs) -> Repair:
    """Write the topic id of `fault` durably; the log directory's lock must be held."""
    assert fault.topic_id is not None
    path = folder / PARTITION_METADATA_FILE
    is_missing = fs.entry(path) is None
    like = next((folder / entry.name for entry in fs.scan(folder) if entry.is_file), folder)
    fs.replace_file(path, format_partition_metadata(fault.topic_id), like=like)
    verb, _, rest = fault.fault.partition(" ")
    why = f"it {_PAST[verb]} {rest}; {METADATA_PARTITION} gives topic {partition.topic} the id {fault.topic_id}"
    return Repair("created" if is_missing else "rewritten", path.name, why)
