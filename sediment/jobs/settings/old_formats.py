"""Message formats 0 and 1: brokers before Kafka 0.11 need them, and later ones may keep them; compaction writes 2."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.unstated_settings import topics_such_as
from sediment.segment_io.errors import SettingsError
from sediment.segment_io.format.layout import MAGIC, MAGIC_PREFIX_BYTES, MAGIC_V2
from sediment.segment_io.format.meta_properties import ZOOKEEPER_META_VERSION
from sediment.segment_io.format.names import SegmentFileKind

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
            topics_such_as(topics),
        )


def _compacts(directory: SelectedDirectory, topic: str) -> bool:
    try:
        return directory.settings.for_topic(topic).compacts
    except SettingsError:
        return False  # the report of the partition already mentions this


def is_older_than_format_2(directory: SelectedDirectory) -> bool:
    """Return True if no broker since Kafka 0.11, which brought log start offsets and format 2, has used the directory.

    Since 0.11, a broker writes the file of log start offsets at every stop, and every minute.
    """
    meta, checkpoints = directory.meta, directory.checkpoints
    if meta is None or meta.version != ZOOKEEPER_META_VERSION:
        return False
    if checkpoints.high_watermark is None or checkpoints.log_start is not None:
        return False
    newest = [_newest_magic(directory.path / str(partition)) for partition in directory.all_partitions]
    return 0 <= max(newest, default=-1) < MAGIC_V2


def _newest_magic(partition: Path) -> int:
    """Return the magic of the first batch in the last segment that has one; -1: no segment has a batch."""
    for path in sorted(partition.glob(f"*{SegmentFileKind.LOG}"), reverse=True):
        with path.open("rb") as file:
            header = file.read(MAGIC_PREFIX_BYTES)
        if len(header) == MAGIC_PREFIX_BYTES:
            return header[MAGIC]
    return -1
