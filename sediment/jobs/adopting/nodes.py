"""The future node of an adopted directory.

NewNode       the directory has no metadata log; a new node creates one from bootstrap.checkpoint
StoppedNode   the directory has a metadata log; its node is stopped and is the sole voter of its quorum
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from sediment.engine.clone.adoption import (
    CHECKPOINT_FILES,
    KEPT_SUFFIX,
    START_FILES,
    add_to_checkpoints,
    write_start_files,
)
from sediment.engine.clone.clone_directory import StartFiles
from sediment.engine.clone.cluster_records import CloneNode, added_topic_records, cluster_records, next_producer_id
from sediment.engine.clone.coordinator_rewrite import transactional_producers
from sediment.engine.clone.features import REFERENCE_RELEASE, clone_features
from sediment.engine.clone.foreign_topics import folders_of
from sediment.engine.clone.metadata_append import (
    append_records,
    check_appended,
    check_started,
    keep_metadata_log,
)
from sediment.engine.clone.options import DEFAULT_NODE_ID, CloneOptions
from sediment.engine.clone.partition_clone import PartitionClone
from sediment.engine.clone.plan import ClonedTopic, ClonePlan, plan_clone
from sediment.engine.clone.server_properties import server_properties
from sediment.engine.clone.sole_voter import QuorumSources, sole_voter
from sediment.engine.clone.source import SourceCluster
from sediment.engine.metadata.metadata_log_writer import check_fits
from sediment.jobs.adopting.options import AdoptOptions
from sediment.jobs.cloning.options import DEFAULT_LISTEN
from sediment.jobs.cloning.run import new_kafka_id
from sediment.jobs.reporting.figures import counted
from sediment.jobs.settings.properties_file import read_quorum_keys
from sediment.jobs.settings.resolve import Settings
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import (
    BOOTSTRAP_FILE,
    INTERNAL_TOPICS,
    LOG_START_FILE,
    METADATA_PARTITION,
    RECOVERY_POINT_FILE,
    SERVER_PROPERTIES_FILE,
    TopicPartition,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import TRANSACTION_STATE
from sediment.segment_io.internal_topics.metadata_log import check_loadable
from sediment.segment_io.internal_topics.quorum_state import read_quorum_state

Clones = Mapping[TopicPartition, PartitionClone]

_START_ONCE = "move the foreign folders away, start the node once, stop it, and move the folders back"


class OwningNode(Protocol):
    """`known` are the partitions that the node already has.

    `has_coordinator` is False if the node cannot coordinate the open transactions in the planned partitions.
    """

    @property
    def node(self) -> CloneNode: ...

    @property
    def plan(self) -> ClonePlan: ...

    @property
    def known(self) -> Sequence[TopicPartition]: ...

    @property
    def has_coordinator(self) -> bool: ...

    @property
    def server_properties(self) -> Path | None:
        """The properties file to start the node with; None if it is not in the directory."""
        ...

    def changes(self, run_id: str) -> list[str]: ...

    def records(self, clones: Clones) -> list[bytes]: ...

    def write(self, records: Sequence[bytes], clones: Clones, run_id: str, now_ms: int) -> tuple[str, ...]:
        """Write the files outside the partition folders; return the names of the copies of the replaced files."""
        ...


# ------------------------------------------------------------------------------------------------------------ new nodes
class NewNode:
    known: Sequence[TopicPartition] = ()
    has_coordinator = True

    def __init__(self, log_dir: Path, source: SourceCluster, own: AdoptOptions, settings: Settings, fs: Fs) -> None:
        self._log_dir = log_dir
        self._source = source
        self._own = own
        self._settings = settings
        self._fs = fs
        self.plan = plan_clone(source, CloneOptions(), new_kafka_id)
        self.node = _new_node(source, own)
        self.server_properties: Path | None = own.properties_file or log_dir / SERVER_PROPERTIES_FILE

    def changes(self, run_id: str) -> list[str]:
        own = self._own.properties_file
        names = [name for name in START_FILES if own is None or name != SERVER_PROPERTIES_FILE]
        there = [name for name in names if self._fs.exists(self._log_dir / name)]
        new = [name for name in names if name not in there] + ([] if own is None else [str(own)])
        replaced = [name for name in there if name != SERVER_PROPERTIES_FILE]
        lines = [
            f"records of {counted(len(self.plan.topics), 'topic')} in {BOOTSTRAP_FILE}; at its first start, node "
            f"{self.node.node_id} of cluster {self.node.cluster_id} puts them into a new metadata log, "
            f"{METADATA_PARTITION}",
            f"new files: {', '.join(new)}",
        ]
        return [*lines, _replaced(replaced, run_id)] if replaced else lines

    def records(self, clones: Clones) -> list[bytes]:
        features = clone_features(None, REFERENCE_RELEASE)
        topics = _with_sets(self.plan, self._settings)
        first_id = next_producer_id(None, _producer_ids(clones, self._source, self._fs))
        return list(cluster_records(topics, _leader_epochs(clones), self.node, features, {}, first_id))

    def write(self, records: Sequence[bytes], clones: Clones, run_id: str, now_ms: int) -> tuple[str, ...]:
        topics = self.plan.topics.values()
        counts = {topic.name: topic.partition_count for topic in topics if topic.name in INTERNAL_TOPICS}
        listen = self._own.listen or DEFAULT_LISTEN
        properties = server_properties(
            self._log_dir, self.node.node_id, host=listen.host, port=listen.port, partition_counts=counts, is_held=True
        )
        if self._own.properties_file is not None:
            self._fs.write_new(self._own.properties_file, [properties.encode()])
            self._fs.share(self._own.properties_file)
            self._fs.sync_file(self._own.properties_file)
        start = StartFiles(self.node, records, properties)
        return write_start_files(self._log_dir, clones, start, self._fs, run_id=run_id, now_ms=now_ms)


def _new_node(source: SourceCluster, own: AdoptOptions) -> CloneNode:
    meta = source.meta
    node_id = own.node_id
    if node_id is None:
        node_id = DEFAULT_NODE_ID if meta is None or meta.node_id is None else meta.node_id
    cluster_id = own.cluster_id or (meta and meta.cluster_id) or new_kafka_id()
    return CloneNode(node_id, cluster_id, (meta and meta.directory_id) or new_kafka_id())


# -------------------------------------------------------------------------------------------------------- stopped nodes
class StoppedNode:
    """The stopped node that owns the directory; folders that its cluster does not know become topics of the cluster."""

    has_coordinator = False

    def __init__(self, log_dir: Path, source: SourceCluster, own: AdoptOptions, settings: Settings, fs: Fs) -> None:
        self._log_dir = log_dir
        self._source = source
        self._settings = settings
        self._fs = fs
        self._metadata = check_started(log_dir, source.metadata, fs, advice=_START_ONCE)
        check_loadable(log_dir, self._metadata.end_offset, fs)
        own_file = log_dir / SERVER_PROPERTIES_FILE
        self.server_properties = own_file if fs.exists(own_file) else None
        self.node = sole_voter(
            QuorumSources(
                meta=source.meta,
                metadata=self._metadata,
                state=read_quorum_state(log_dir / str(METADATA_PARTITION), fs),
                properties=settings.quorum or self._quorum_of_own_file(),
                has_broker_files=fs.exists(log_dir / RECOVERY_POINT_FILE),
            )
        )
        _check_own(own, self.node)
        folders = folders_of(source, self._metadata, self.node, fs)
        self.known = folders.known
        self.plan = plan_clone(replace(source, metadata=None, topics=folders.foreign), CloneOptions(), new_kafka_id)

    def _quorum_of_own_file(self) -> Mapping[str, str] | None:
        return None if self.server_properties is None else read_quorum_keys(self.server_properties)

    def changes(self, run_id: str) -> list[str]:
        names = [name for name in CHECKPOINT_FILES if self._fs.exists(self._log_dir / name)]
        lines = [
            f"records of {counted(len(self.plan.topics), 'topic')}, appended to {METADATA_PARTITION}, the metadata log "
            f"of node {self.node.node_id} of cluster {self.node.cluster_id}",
            f"copy of the old metadata log: {_kept_log(run_id)}",
        ]
        if LOG_START_FILE not in names:
            lines.append(f"new file, if a log does not start at its first segment's base offset: {LOG_START_FILE}")
        return [*lines, _replaced(names, run_id)] if names else lines

    def records(self, clones: Clones) -> list[bytes]:
        if not clones:
            return []
        topics = _with_sets(self.plan, self._settings)
        ids = _producer_ids(clones, self._source, self._fs)
        found = list(added_topic_records(topics, _leader_epochs(clones), self.node, self._metadata, ids))
        check_fits(found, self._metadata)
        return found

    def write(self, records: Sequence[bytes], clones: Clones, run_id: str, now_ms: int) -> tuple[str, ...]:
        """Copy the metadata log, then append the records to it."""
        if not records:
            return ()
        kept_log = _kept_log(run_id)
        keep_metadata_log(self._log_dir, kept_log, self._fs)
        kept = add_to_checkpoints(self._log_dir, clones, self._fs, run_id=run_id)
        append_records(self._log_dir, records, self._metadata, self._fs, now_ms=now_ms)
        check_appended(self._log_dir, {topic.topic_id for topic in self.plan.topics.values()}, self._fs)
        return (kept_log, *kept)


def _kept_log(run_id: str) -> str:
    return f"{METADATA_PARTITION}.{run_id}{KEPT_SUFFIX}.tar"


def _replaced(names: Sequence[str], run_id: str) -> str:
    return f"replaced files, with a copy of each as NAME.{run_id}{KEPT_SUFFIX}: {', '.join(names)}"


def _check_own(own: AdoptOptions, node: CloneNode) -> None:
    for option, given, ours in (
        ("--node-id", own.node_id, node.node_id),
        ("--cluster-id", own.cluster_id, node.cluster_id),
    ):
        if given not in (None, ours):
            raise UsageError(
                f"{option} {given} is not possible: the directory has a metadata log, and belongs to node "
                f"{node.node_id} of cluster {node.cluster_id}",
                advice="leave it out",
            )
    for option, value in (("--listen", own.listen), ("--server-properties", own.properties_file)):
        if value is not None:
            raise UsageError(
                f"{option} is not possible: the directory has a metadata log, so its node has a properties file",
                advice="leave it out",
            )


# -------------------------------------------------------------------------------------------------------------- topics
def _with_sets(plan: ClonePlan, settings: Settings) -> list[ClonedTopic]:
    sets = settings.topic_sets
    return [replace(topic, configs={**topic.configs, **sets.get(topic.name, {})}) for topic in plan.topics.values()]


def _leader_epochs(clones: Clones) -> dict[TopicPartition, int]:
    return {partition: clone.leader_epoch for partition, clone in clones.items()}


def _producer_ids(clones: Clones, source: SourceCluster, fs: Fs) -> set[int]:
    in_logs = {producer_id for clone in clones.values() for producer_id in clone.producer_ids}
    return in_logs | transactional_producers(source.topics.get(TRANSACTION_STATE), fs)
