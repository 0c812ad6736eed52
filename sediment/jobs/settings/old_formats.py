"""A warning for topics in which a broker before Kafka 3.0 keeps message format 0 or 1; compaction writes format 2."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.errors import SettingsError

_LOGGER = logging.getLogger(__name__)


def warn_of_old_formats(directories: Iterable[SelectedDirectory]) -> None:
    topics = {
        partition.topic
        for directory in directories
        for partition in directory.partitions
        if directory.settings.keeps_old_format(partition.topic) and _compacts(directory, partition.topic)
    }
    if topics:
        _LOGGER.warning(
            "message.format.version is below 0.11 for %s, and compaction writes message format 2; a client before "
            "Kafka 0.11 can read the result only after this config is raised to 0.11.0 or later",
            f"topic {min(topics)}" if len(topics) == 1 else f"{len(topics)} topics, such as {min(topics)},",
        )


def _compacts(directory: SelectedDirectory, topic: str) -> bool:
    try:
        return directory.settings.for_topic(topic).compacts
    except SettingsError:
        return False  # the report of the partition already mentions this
