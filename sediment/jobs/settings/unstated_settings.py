"""Reasons to skip a partition because a setting is not stated; each reason names the option that states this setting.

Invariant: a setting that is not stated (`Settings.is_stated`) deletes nothing, and no tombstone gets a delete horizon
from it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from sediment.engine.log_config import LogConfig
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.resolve import Origin, Settings
from sediment.retention.policy import TIERED_REASON
from sediment.segment_io.errors import SettingsError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints

POLICY_UNKNOWN = "policy-unknown"
RETENTION_UNKNOWN = "retention-unknown"

_LOGGER = logging.getLogger(__name__)


def why_not_compacted(partition: TopicPartition, settings: Settings, config: LogConfig) -> tuple[str, str] | None:
    if config.compacts:
        return None
    topic = partition.topic
    if not settings.is_stated(topic, "cleanup.policy"):
        return POLICY_UNKNOWN, f"cleanup.policy is not stated; {settings.how_to_state(topic, 'cleanup.policy')}"
    return "not-compacted", f"cleanup.policy is {','.join(config.cleanup_policy) or 'empty'}"


def why_not_expired(
    partition: TopicPartition, checkpoints: PartitionCheckpoints, settings: Settings, config: LogConfig
) -> tuple[str, str] | None:
    topic = partition.topic
    if config.retention.is_tiered:
        return "tiered", TIERED_REASON
    if checkpoints.high_watermark is None and checkpoints.high_watermark_file:
        return "no-high-watermark", "the replication checkpoint does not list the partition"
    if not settings.is_stated_for_retention(topic, "cleanup.policy"):
        return POLICY_UNKNOWN, f"cleanup.policy is not stated; {settings.how_to_state(topic, 'cleanup.policy')}"
    weak = {Origin.DEFAULT: "only Kafka's default", Origin.FILE: "only the value of --config for all topics"}
    whose = weak.get(Origin(settings.origin(topic, "cleanup.policy")))
    if whose and not config.compacts and checkpoints.first_dirty is not None and settings.topic_overrides is None:
        return POLICY_UNKNOWN, (
            "the cleaner checkpoint lists the partition, so its topic is or was compacted, but cleanup.policy is "
            f"{whose}; give --set {topic}:cleanup.policy=…"
        )
    has_limit = config.retention.retention_ms >= 0 or config.retention.retention_bytes >= 0
    if config.retention.deletes and not has_limit and not settings.is_stated_for_retention(topic, "retention.ms"):
        return RETENTION_UNKNOWN, f"retention.ms is not stated; {settings.how_to_state(topic, 'retention.ms')}"
    return None


def warn_of_unstated_lag(directories: Iterable[SelectedDirectory]) -> None:
    """Warn of compacted topics without a stated `min.compaction.lag.ms`, which counts as 0."""
    warn_of_topics_without_lag(
        (topic, directory.settings)
        for directory in directories
        for topic in {partition.topic for partition in directory.partitions}
    )


def warn_of_topics_without_lag(topics: Iterable[tuple[str, Settings]]) -> None:
    unstated = {topic: settings for topic, settings in topics if _lacks_lag(settings, topic)}
    if unstated:
        topic = min(unstated)
        _LOGGER.warning(
            "min.compaction.lag.ms is not stated for %s and counts as 0; %s",
            topics_such_as(unstated),
            unstated[topic].how_to_state(topic, "min.compaction.lag.ms"),
        )


def topics_such_as(topics: Collection[str]) -> str:
    first = min(topics)
    return f"topic {first}" if len(topics) == 1 else f"{len(topics)} topics, such as {first},"


def _lacks_lag(settings: Settings, topic: str) -> bool:
    try:
        return settings.for_topic(topic).compacts and not settings.is_stated(topic, "min.compaction.lag.ms")
    except SettingsError:
        return False  # the report of the partition already mentions this
