"""The sources to read if several log directories contain replicas of a partition: one replica of each partition.

1. Partition directories with the same name in several log directories are replicas.  A segment file, and a directory
   that is not named after its partition, is always read, because the caller named it.
2. The directories of replicas must belong to one cluster, and the replicas to one topic.

Invariants: nothing is written and no lock is taken, so the directories may be in use. Without replicas, no file is
opened.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sediment.engine.replicas import (
    ClusterDirectory,
    Replica,
    cluster_of,
    newest_metadata,
    rank_of,
    replicas_of_one_topic,
)
from sediment.segment_io.errors import CorruptDataError, SedimentError, UnsupportedDataError, UsageError
from sediment.segment_io.format.names import META_PROPERTIES_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_checkpoints, read_meta_properties
from sediment.segment_io.partition.sources import Source

_LOGGER = logging.getLogger(__name__)

_SEVERAL_CLUSTERS = "read one cluster at a time, or all replicas"
_SEVERAL_TOPICS = "read one of them at a time, or all replicas"


def best_sources(sources: Sequence[Source], fs: Fs) -> list[Source]:
    of_partition: dict[TopicPartition, dict[Path, Source]] = {}
    for source in sources:
        if _is_replica(source):
            of_partition.setdefault(source.partition, {})[source.directory] = source
    copied = {partition.topic for partition, found in of_partition.items() if len(found) > 1}
    if not copied:
        return list(sources)
    kept = _best(
        [source for found in of_partition.values() for source in found.values() if source.partition.topic in copied], fs
    )
    return [
        source
        for source in sources
        if not _is_replica(source) or source.partition.topic not in copied or source.directory in kept
    ]


def _is_replica(source: Source) -> bool:
    return source.base_offset is None and source.directory.name == str(source.partition)


def _best(sources: Sequence[Source], fs: Fs) -> frozenset[Path]:
    opened = cache(lambda log_dir: _opened(log_dir, fs))
    by_topic: dict[str, list[Replica]] = {}
    for source in sources:
        replica = Replica(opened(source.directory.parent), source.partition)
        by_topic.setdefault(source.partition.topic, []).append(replica)
    best: set[Path] = set()
    for topic, replicas in by_topic.items():
        by_number: dict[int, list[Replica]] = {}
        for replica in _of_one_topic(topic, replicas, fs):
            by_number.setdefault(replica.partition.partition, []).append(replica)
        best.update(_highest(found, fs).path for found in by_number.values())
    return frozenset(best)


def _of_one_topic(topic: str, replicas: Sequence[Replica], fs: Fs) -> list[Replica]:
    directories = list({replica.directory.path: replica.directory for replica in replicas}.values())
    cluster_of(directories, advice_if_several=_SEVERAL_CLUSTERS)

    def kept(known: str | None) -> list[Replica]:
        found, _ = replicas_of_one_topic(
            topic, replicas, known, fs, advice_if_several=_SEVERAL_TOPICS, on_unreadable=_ignore
        )
        return found

    try:
        return kept(None)
    except UsageError:
        metadata = newest_metadata([directory.path for directory in directories], fs, on_unreadable=_ignore)
        known = None if metadata is None else metadata.topic_ids.get(topic)
        if known is None:
            raise
        return kept(known)


def _highest(replicas: Sequence[Replica], fs: Fs) -> Replica:
    return replicas[0] if len(replicas) == 1 else max(replicas, key=lambda replica: rank_of(replica, fs))


def _opened(path: Path, fs: Fs) -> ClusterDirectory:
    meta = None
    with contextlib.suppress(CorruptDataError, UnsupportedDataError, OSError):
        meta = read_meta_properties(fs, path / META_PROPERTIES_FILE)
    return ClusterDirectory(path, meta, read_checkpoints(path, fs, on_unreadable=_ignore), ())


def _ignore(path: Path, error: SedimentError | OSError) -> None:
    _LOGGER.info("%s is ignored: %s", path, error)
