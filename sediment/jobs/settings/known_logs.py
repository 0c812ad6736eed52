"""What a run knows about a log besides its files: whether it is compacted, where its replicas are, its checkpoints."""

from __future__ import annotations

from sediment.engine.directory.missing_records import KnownOfLog
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.resolve import Settings
from sediment.segment_io.format.names import TopicPartition


def known_of_log(directory: SelectedDirectory, partition: TopicPartition, settings: Settings) -> KnownOfLog:
    checkpoints = directory.checkpoints.of(partition)
    return KnownOfLog(
        compacts=_compacts(directory, partition.topic, settings),
        other_nodes=_other_nodes(directory, partition),
        high_watermark=checkpoints.high_watermark,
        recovery_point=checkpoints.recovery_point,
        first_dirty=checkpoints.first_dirty,
    )


def _compacts(directory: SelectedDirectory, topic: str, settings: Settings) -> bool | None:
    config = settings.for_topic(topic)
    if config.compacts:
        return True
    if settings.is_stated(topic, "cleanup.policy"):
        return False if config.cleanup_policy else None
    # A policy that the cluster's metadata leaves to the broker is enough for a report, though not for a deletion.
    return False if topic in (directory.topic_ids or ()) else None


def _other_nodes(directory: SelectedDirectory, partition: TopicPartition) -> tuple[int, ...] | None:
    if directory.metadata is None or directory.meta is None or directory.meta.node_id is None:
        return None
    nodes = directory.metadata.replicas.get(partition.topic, {}).get(partition.partition)
    return None if nodes is None else tuple(node for node in nodes if node != directory.meta.node_id)
