"""Catalog: the topics in one or several log directories, as one broker would offer them.

    1. no process may hold the lock of a directory, and all directories belong to one cluster
    2. `-delete`, `-stray` and `-future` directories and the metadata log are left out
    3. partitions of one name in several directories are replicas of one partition; `engine.replicas` chooses
       the high watermark is the largest that a replica states, at most the log end of the one that is served
    4. topic ids, configs and features come from the metadata log where there is one; else ids come from
       `partition.metadata`, else from the topic's name

Invariants: nothing is written and no lock is taken.  No file is opened by a name that a client gave.  What opening does
for a partition is a listing of its directory and a look at a small file; everything else waits for its first use.

Source: kafka-log 01 §1, §9, §10; 04 §4.
"""

from __future__ import annotations

import difflib
import logging
import resource
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sediment.engine.replicas import (
    ClusterDirectory,
    Replica,
    ReplicaRank,
    cluster_of,
    newest_metadata,
    open_cluster_directory,
    replicas_of_one_topic,
)
from sediment.segment_io.errors import (
    StorageError,
    UsageError,
)
from sediment.segment_io.format.checkpoints import MetaProperties, format_uuid, parse_uuid
from sediment.segment_io.format.names import (
    INTERNAL_TOPICS,
    TopicPartition,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.live_segments import as_loaded
from sediment.segment_io.partition.log_dir_checkpoints import (
    PartitionCheckpoints,
)
from sediment.server.read_only.frozen_log import FrozenLog
from sediment.server.read_only.frozen_segment import UnreadableRange
from sediment.server.read_only.open_segments import OpenSegments
from sediment.server.read_only.renaming import Renaming

_LOGGER = logging.getLogger(__name__)

_NAMESPACE = uuid.UUID("d5a7a4e6-6c0c-5b3f-9a55-0b9e5c1f7a10")
_DEFAULT_NODE_ID = 1
_MOST_OPEN_FILES = 4096
_MAX_INDEX_BYTES = 256 << 20
_NAMES_SHOWN = 5
_ADVICE_IF_IN_USE = "stop the broker, or serve a snapshot or a copy of the directory"


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """Options of a catalog: `to_log_end` reads every partition to its end, `renamings` give topics other names."""

    to_log_end: bool = False
    renamings: tuple[Renaming, ...] = ()


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic by the name that clients use, with the partitions that exist in the directories."""

    name: str
    id: uuid.UUID
    partitions: Mapping[int, FrozenLog]
    configs: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        """True for a topic of the broker."""
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class ServedDirectory:
    """A log directory with the logs that are served from it, by the names that clients use."""

    path: Path
    logs: Mapping[TopicPartition, FrozenLog]


class Catalog:
    """Topics by name and by id; `metadata` is that of the cluster, None without a metadata log."""

    def __init__(
        self,
        topics: Iterable[Topic],
        directories: Sequence[Path],
        meta: MetaProperties | None,
        metadata: ClusterMetadata | None,
        open_segments: OpenSegments,
    ) -> None:
        self._by_name = {topic.name: topic for topic in sorted(topics, key=lambda topic: topic.name)}
        self._by_id = {topic.id: topic for topic in self._by_name.values()}
        self._open_segments = open_segments
        self.metadata = metadata
        self.cluster_id = (meta and meta.cluster_id) or format_uuid(uuid.uuid5(_NAMESPACE, "cluster").bytes)
        self.node_id = _DEFAULT_NODE_ID if meta is None or meta.node_id is None else meta.node_id
        self.directories = tuple(self._served(path) for path in directories)

    def topics(self) -> Sequence[Topic]:
        """Return every topic, by name."""
        return tuple(self._by_name.values())

    def topic(self, name: str) -> Topic | None:
        """Return a topic by name."""
        return self._by_name.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        """Return a topic by id."""
        return self._by_id.get(topic_id)

    def partition(self, name: str, number: int) -> FrozenLog | None:
        """Return a partition of a topic."""
        topic = self._by_name.get(name)
        return None if topic is None else topic.partitions.get(number)

    def unreadable(self) -> tuple[tuple[TopicPartition, UnreadableRange], ...]:
        """Return the ranges that reads so far had to leave out."""
        return tuple(
            (TopicPartition(topic.name, number), found)
            for topic in self._by_name.values()
            for number, log in topic.partitions.items()
            for found in log.unreadable
        )

    def close(self) -> None:
        """Give up the open files; slices of them stay open until they are sent."""
        self._open_segments.close()

    def _served(self, path: Path) -> ServedDirectory:
        return ServedDirectory(
            path,
            {
                TopicPartition(topic.name, number): log
                for topic in self._by_name.values()
                for number, log in topic.partitions.items()
                if log.directory.parent == path
            },
        )


# ---------------------------------------------------------------------------------------------------------------- open
def open_catalog(directories: Sequence[Path], options: CatalogOptions, fs: Fs) -> Catalog:
    """Return the topics of log directories; a path may also be the directory of one partition.

    Raises:
        DirectoryInUseError: a process holds the lock of a directory.
        NotALogDirectoryError: a path does not exist, or holds nothing of a log.
        UsageError: directories of several clusters, replicas of different topics of one name, or a renaming that names
            no topic or one that exists.
        SourceChangedError: the files of the metadata log are replaced faster than they can be read.
        OwnershipError: the lock file cannot be read.
    """
    opened = [
        open_cluster_directory(path, fs, advice_if_in_use=_ADVICE_IF_IN_USE)
        for path in dict.fromkeys(path.absolute() for path in directories)
    ]
    meta = cluster_of(opened, advice_if_several="serve one cluster at a time, or run two servers")
    metadata = newest_metadata([directory.path for directory in opened], fs)
    segments = OpenSegments(fs, max_files=_max_open_files(), max_index_bytes=_MAX_INDEX_BYTES)
    topics = [
        _topic(name, replicas, metadata, options, segments, fs)
        for name, replicas in _replicas_by_topic(opened, options.renamings).items()
    ]
    served = list(dict.fromkeys(directory.path for directory in opened))
    catalog = Catalog(topics, served, meta, metadata, segments)
    _warn_of_absent(catalog)
    return catalog


def _max_open_files() -> int:
    """Return half of what this process may open; the other half is for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_OPEN_FILES if soft == resource.RLIM_INFINITY else max(1, min(soft // 2, _MOST_OPEN_FILES))


# -------------------------------------------------------------------------------------------------------------- topics
def _replicas_by_topic(
    directories: Sequence[ClusterDirectory], renamings: Sequence[Renaming]
) -> dict[str, list[Replica]]:
    """Return the replicas of every topic by the name that clients use.

    Raises:
        UsageError: a renaming names no topic or directory, or a name that is taken.
    """
    found_by_path = {
        replica.path: replica
        for directory in directories
        for replica in (Replica(directory, each) for each in directory.partitions)
    }
    all_replicas = list(found_by_path.values())
    named: dict[str, list[Replica]] = {}
    renamed: set[_TopicKey] = set()
    for renaming in renamings:
        found = _renamed(renaming, all_replicas, directories)
        if named.setdefault(renaming.new, found) is not found:
            raise UsageError(f"--as names two topics {renaming.new!r}", advice="give each its own name")
        renamed.update((each.directory.path, each.partition.topic) for each in found)
    own: dict[str, list[Replica]] = {}
    for each in all_replicas:
        if (each.directory.path, each.partition.topic) not in renamed:
            own.setdefault(each.partition.topic, []).append(each)
    taken = sorted(own.keys() & named.keys())
    if taken:
        raise UsageError(
            f"--as names a topic {taken[0]!r}, and the directories hold another topic of that name",
            advice="use a name that is not taken",
        )
    return own | named


_TopicKey = tuple[Path, str]


def _renamed(renaming: Renaming, replicas: Sequence[Replica], directories: Sequence[ClusterDirectory]) -> list[Replica]:
    wanted = None if renaming.directory is None else renaming.directory.absolute()
    if wanted is not None and wanted not in (directory.path for directory in directories):
        raise UsageError(
            f"--as {renaming.new}: {renaming.directory} is not one of the directories that are served",
            advice="name it among the log directories too",
        )
    inside = [each for each in replicas if wanted is None or each.directory.path == wanted]
    found = [each for each in inside if each.partition.topic == renaming.old]
    if not found:
        nearest = difflib.get_close_matches(renaming.old, {each.partition.topic for each in inside}, cutoff=0.0)
        raise UsageError(
            f"--as {renaming.new}: {wanted or 'the log directories'} do not hold a topic {renaming.old!r}",
            advice=f"the nearest names are {', '.join(nearest)}" if nearest else "name another directory",
        )
    return found


def _topic(
    name: str,
    replicas: Sequence[Replica],
    metadata: ClusterMetadata | None,
    options: CatalogOptions,
    segments: OpenSegments,
    fs: Fs,
) -> Topic:
    stored = replicas[0].partition.topic
    known = None if metadata is None else metadata.topic_ids.get(stored)
    replicas, stored_id = replicas_of_one_topic(
        stored, replicas, known, fs, advice_if_several=f"take each from its directory with --as NEW=DIR:{stored}"
    )
    if metadata is not None and known is None:
        _LOGGER.warning("topic %s: the cluster's metadata does not have it; a broker would set it aside", stored)
    by_number: dict[int, list[Replica]] = {}
    for replica in replicas:
        by_number.setdefault(replica.partition.partition, []).append(replica)
    logs = {number: _log(by_number[number], options, segments, fs) for number in sorted(by_number)}
    expected = (
        frozenset(range(max(logs) + 1))
        if known is None or metadata is None
        else metadata.partitions.get(stored, frozenset())
    )
    missing = sorted(expected - logs.keys())
    if missing:
        _LOGGER.warning(
            "topic %s: only %d of its %d partitions are in the directories, and only these are served; missing: %s",
            name,
            len(logs),
            len(expected | logs.keys()),
            _shortened([str(number) for number in missing]),
        )
    topic_id = uuid.uuid5(_NAMESPACE, name)
    if stored_id is not None and name == stored:
        topic_id = uuid.UUID(bytes=parse_uuid(stored_id))
    configs = {} if metadata is None else metadata.topic_configs.get(stored, {})
    return Topic(name, topic_id, logs, configs)


# ---------------------------------------------------------------------------------------------------------- partitions
def _log(replicas: Sequence[Replica], options: CatalogOptions, segments: OpenSegments, fs: Fs) -> FrozenLog:
    """Return the log of the replica that is served."""
    high_watermark = max((each.checkpoints.high_watermark or 0 for each in replicas), default=0)
    has_file = any(each.checkpoints.high_watermark_file for each in replicas)
    is_stated = any(each.checkpoints.high_watermark is not None for each in replicas)
    if has_file and not is_stated and not options.to_log_end:
        _LOGGER.warning(
            "%s: no checkpoint states its high watermark, so that nothing is read of it; serve it with --to-log-end",
            replicas[0].partition,
        )
    logs = []
    for replica in replicas:
        own = replica.checkpoints
        checkpoints = PartitionCheckpoints(
            log_start=own.log_start,
            high_watermark=high_watermark if is_stated and not options.to_log_end else None,
            recovery_point=own.recovery_point,
            high_watermark_file=has_file and not options.to_log_end,
            # What a broker has not verified yet is verified when it is read.
            clean_shutdown=True,
        )
        listing = as_loaded(list_log(replica.partition, replica.path, fs), fs)
        logs.append(FrozenLog(listing, checkpoints, segments, fs))
    return logs[0] if len(logs) == 1 else _most_advanced(logs)


def _most_advanced(logs: Sequence[FrozenLog]) -> FrozenLog:
    """Return the log of the greatest rank; one that cannot be read loses."""
    readable = []
    for log in logs:
        try:
            readable.append((ReplicaRank(log.leader_epoch, log.log_end_offset), log))
        except StorageError:
            _LOGGER.warning("%s: the replica in %s is left out", log.partition, log.directory)
    return max(readable, key=lambda each: each[0])[1] if readable else logs[0]


def _warn_of_absent(catalog: Catalog) -> None:
    if catalog.metadata is not None:
        served = {log.partition.topic for topic in catalog.topics() for log in topic.partitions.values()}
        absent = sorted(catalog.metadata.topic_ids.keys() - served)
        if absent:
            _LOGGER.warning(
                "%d topics of the cluster have no partition in the directories: %s", len(absent), _shortened(absent)
            )


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
