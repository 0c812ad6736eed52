"""Catalog: the topics in one or several log directories, which the server offers as one broker.

    1. no process may hold the lock of a directory, and all directories belong to one cluster
    2. `-delete`, `-stray` and `-future` directories and the metadata log are left out
    3. partitions with the same name in several directories are replicas of one partition.  `engine.replicas` chooses
       the replica to serve.  Its high watermark is the highest one of any replica, but at most its log end
    4. topic ids, configs and features come from the metadata log.  Without a metadata log, ids come from
       `partition.metadata`, or are derived from the topic name
    5. clients read only the selected partitions.  The server itself reads all partitions of the coordinators' topics
    6. clients see every other partition of a served topic without a leader.  The metadata log states the numbers of a
       topic's partitions.  Without it, the highest number of a folder implies them

If a small file or a partition cannot be read, it is skipped, and a warning states the consequences.

A name that a client sent is never used to open a file. To open a partition, the catalog only lists its directory and
reads one small file. The names of folders imply at most _MOST_IMPLIED partitions, because one name may state a number
of 31 bits.

Source: kafka-log 01 §1, §9, §10; 04 §4.
"""

from __future__ import annotations

import difflib
import fnmatch
import logging
import resource
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

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
    SedimentError,
    StorageError,
    UsageError,
)
from sediment.segment_io.format.checkpoints import format_uuid, parse_uuid
from sediment.segment_io.format.meta_properties import MetaProperties
from sediment.segment_io.format.names import (
    HIGH_WATERMARK_FILE,
    INTERNAL_TOPICS,
    LOCK_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    METADATA_PARTITION,
    METADATA_TOPIC,
    MOST_IMPLIED_PARTITIONS,
    PARTITION_METADATA_FILE,
    TopicPartition,
    is_topic_name,
    parse_segment_file,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import COORDINATOR_TOPICS
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata, read_cluster_metadata
from sediment.segment_io.partition.checkpoint_files import (
    PartitionCheckpoints,
    read_meta_properties,
)
from sediment.segment_io.partition.listing import LogListing, list_log
from sediment.segment_io.partition.live_segments import as_loaded
from sediment.segment_io.partition.partition_directories import check_patterns
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.read_only.frozen_log import FrozenLog
from sediment.server.read_only.frozen_segment import UnservedRange
from sediment.server.read_only.open_segments import OpenSegments
from sediment.server.topic_catalog import ServedDirectory

_LOGGER = logging.getLogger(__name__)

_Read = TypeVar("_Read")
_NAMESPACE = uuid.UUID("d5a7a4e6-6c0c-5b3f-9a55-0b9e5c1f7a10")
_DEFAULT_NODE_ID = 1
_MOST_OPEN_FILES = 4096
_MAX_INDEX_BYTES = 256 << 20
_NAMES_SHOWN = 5
_ADVICE_IF_IN_USE = "stop the broker, or serve a snapshot or a copy of the directory"
_NOT_NEEDED = "it has no effect here"
_WITHOUT_FILE = {
    LOG_START_FILE: "partitions are served from their first segment, including deleted records",
    LOCK_FILE: "no broker can hold such a lock",
    META_PROPERTIES_FILE: "clients see a made-up cluster id, unless another directory contains the real one",
    str(METADATA_PARTITION): "topics have no configs, and their ids differ from those of the cluster",
    PARTITION_METADATA_FILE: "the partition is assigned to the topic of the same name",
    HIGH_WATERMARK_FILE: "partitions are served to their log end, including records that may be uncommitted",
}
"""The consequence for clients of an unreadable file, by file name."""


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """If `to_log_end`, every partition is served to its log end.

    `renamings` serve topics under other names. `partitions` contains names or globs of partition directories; if it is
    empty, all partitions are selected.
    """

    to_log_end: bool = False
    renamings: tuple[Renaming, ...] = ()
    partitions: tuple[str, ...] = ()
    allow_empty_selection: bool = False
    """If True, a pattern may match no partition."""

    metadata: Path | None = None
    """The log directory with the metadata log of the cluster; if None, the served directories are searched."""

    topic_configs: Mapping[str, Mapping[str, str]] | None = None
    """The configs of topics in a cluster without a metadata log; None: they are unknown."""

    def selects(self, partition: TopicPartition) -> bool:
        return not self.partitions or any(fnmatch.fnmatchcase(str(partition), each) for each in self.partitions)


@dataclass(frozen=True, slots=True)
class Renaming:
    """A topic `old` that is served as `new`; if `directory` is set, only partitions in this directory are renamed.

    * With NEW=OLD, the topic OLD is served as NEW.
    * With NEW=DIR:OLD, DIR's partitions of OLD are served as NEW, separate from OLD in other directories.

    In each directory in which a topic is renamed, the topic is served only under its new name.
    """

    new: str
    old: str
    directory: Path | None = None


def parse_renaming(text: str) -> Renaming:
    """Parse the value of an `--as` option; both names are checked before they become part of a path."""
    new, equals, source = text.partition("=")
    directory, colon, old = source.rpartition(":")
    if not equals or (colon and not directory):
        raise UsageError(f"--as {text!r} is malformed", advice="give NEW=OLD or NEW=DIR:OLD")
    for name in (new, old):
        if not is_topic_name(name) or name == METADATA_TOPIC:
            raise UsageError(
                f"{name!r} in --as {text!r} is not a topic name",
                advice="use 1 to 249 letters, digits, dots, underscores and hyphens; . and .. are not allowed",
            )
    return Renaming(new, old, Path(directory) if colon else None)


@dataclass(frozen=True, slots=True)
class UnservedReplica:
    partition: TopicPartition
    path: Path
    error: SedimentError | OSError


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Topic:
    name: str
    id: uuid.UUID
    partitions: Mapping[int, FrozenLog]
    configs: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[UnservedReplica, ...] = ()
    numbers: frozenset[int] = frozenset()
    missing: Mapping[int, ErrorCode] = field(default_factory=dict)

    @property
    def unreadable(self) -> frozenset[int]:
        return frozenset(each.partition.partition for each in self.left_out) - self.partitions.keys()

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class Catalog:
    """`left_out` contains the selected replicas that could not be opened, with the topic names that clients use."""

    def __init__(
        self,
        topics: Iterable[Topic],
        coordinator_topics: Mapping[str, Topic],
        directories: Sequence[Path],
        meta: MetaProperties | None,
        metadata: ClusterMetadata | None,
        open_segments: OpenSegments,
        left_out: Sequence[tuple[TopicPartition, UnservedReplica]],
    ) -> None:
        self.left_out = left_out
        self._by_name = {topic.name: topic for topic in sorted(topics, key=lambda topic: topic.name)}
        self._by_id = {topic.id: topic for topic in self._by_name.values()}
        self._open_segments = open_segments
        self.coordinator_topics = coordinator_topics
        self.metadata = metadata
        self.cluster_id = (meta and meta.cluster_id) or format_uuid(uuid.uuid5(_NAMESPACE, "cluster").bytes)
        self.node_id = _DEFAULT_NODE_ID if meta is None or meta.node_id is None else meta.node_id
        self.directories = tuple(self._served(path) for path in directories)

    def topics(self) -> Sequence[Topic]:
        return tuple(self._by_name.values())

    def topic(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def partition(self, name: str, number: int) -> FrozenLog | None:
        topic = self._by_name.get(name)
        return None if topic is None else topic.partitions.get(number)

    def unreadable(self) -> tuple[tuple[TopicPartition, UnservedRange], ...]:
        return tuple(
            (TopicPartition(topic.name, number), found)
            for topic in self._by_name.values()
            for number, log in topic.partitions.items()
            for found in log.unreadable
        )

    def close(self) -> None:
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
    """Open the topics of log directories; a path may also be the directory of one partition."""
    opened = [
        open_cluster_directory(path, fs, advice_if_in_use=_ADVICE_IF_IN_USE, on_unreadable=_warn_of_unreadable)
        for path in dict.fromkeys(path.absolute() for path in directories)
    ]
    meta = cluster_of(opened, advice_if_several="serve one cluster at a time, or run two servers")
    if options.metadata is None:
        metadata = newest_metadata([each.path for each in opened], fs, on_unreadable=_warn_of_unreadable)
    else:
        metadata = _stated_metadata(options.metadata, meta, fs)
    if metadata is not None and options.topic_configs is not None:
        raise UsageError(
            "the configs of the topics are given, but a metadata log contains them", advice="leave out --topic-configs"
        )
    served = list(dict.fromkeys(directory.path for directory in opened))
    if not options.allow_empty_selection:
        names = [str(each) for directory in opened for each in directory.partitions]
        check_patterns(options.partitions, names, where=", ".join(map(str, served)))
    segments = OpenSegments(fs, max_files=_max_open_files(), max_index_bytes=_MAX_INDEX_BYTES)
    by_topic = _replicas_by_topic(opened, options.renamings)
    numbering = _Numbering()
    found = [_topic(name, replicas, metadata, options, segments, numbering, fs) for name, replicas in by_topic.items()]
    if metadata is not None:
        _warn_of_absent(metadata, {each.partition.topic for replicas in by_topic.values() for each in replicas})
    selected = [_selected(each, options) for each in found]
    return Catalog(
        [topic for topic in selected if topic.partitions],
        {topic.name: topic for topic in found if topic.name in COORDINATOR_TOPICS},
        served,
        meta,
        metadata,
        segments,
        [(TopicPartition(topic.name, out.partition.partition), out) for topic in selected for out in topic.left_out],
    )


def _selected(topic: Topic, options: CatalogOptions) -> Topic:
    chosen = {number: log for number, log in topic.partitions.items() if options.selects(log.topic_partition)}
    left_out = tuple(each for each in topic.left_out if options.selects(each.partition))
    selected = replace(topic, partitions=chosen, left_out=left_out)
    missing = dict.fromkeys(sorted(topic.numbers - chosen.keys()), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    missing.update(dict.fromkeys(selected.unreadable, ErrorCode.KAFKA_STORAGE_ERROR))
    return replace(selected, missing=missing)


def _warn_of_unreadable(file: Path, error: SedimentError | OSError) -> None:
    _LOGGER.warning("left out: %s; %s", _described(error), _WITHOUT_FILE.get(file.name, _NOT_NEEDED))


def _described(error: SedimentError | OSError) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)


def _stated_metadata(path: Path, meta: MetaProperties | None, fs: Fs) -> ClusterMetadata:
    metadata = read_cluster_metadata(path, fs)
    if metadata is None:
        raise UsageError(
            f"--metadata {path} does not contain {METADATA_PARTITION}",
            advice="name the node's log directory that has it: metadata.log.dir, or the first entry of log.dirs",
        )
    theirs = read_meta_properties(fs, path / META_PROPERTIES_FILE)
    their_id, own_id = theirs and theirs.cluster_id, meta and meta.cluster_id
    if None not in (their_id, own_id) and their_id != own_id:
        raise UsageError(
            f"--metadata {path} belongs to cluster {their_id}, but the directories belong to cluster {own_id}",
            advice="name a directory of the same cluster",
        )
    return metadata


def _max_open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_OPEN_FILES if soft == resource.RLIM_INFINITY else max(1, min(soft // 2, _MOST_OPEN_FILES))


# -------------------------------------------------------------------------------------------------------------- topics
def _replicas_by_topic(
    directories: Sequence[ClusterDirectory], renamings: Sequence[Renaming]
) -> dict[str, list[Replica]]:
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
            f"the name {taken[0]!r} in --as is already the name of another topic in the directories",
            advice="use another name",
        )
    return own | named


_TopicKey = tuple[Path, str]


class _Numbering:
    """The numbers of the partitions of each topic; it counts the partitions that only the names of folders imply."""

    def __init__(self) -> None:
        self._left = MOST_IMPLIED_PARTITIONS

    def numbers(self, topic: str, found: Collection[int], stated: Collection[int]) -> frozenset[int]:
        if stated:
            return frozenset(found) | frozenset(stated)
        implied = max(found) + 1 - len(found)
        if implied > self._left:
            _LOGGER.warning(
                "topic %s: partition %d implies %d partitions that are not in the directories, which is too many to "
                "list; clients see only the partitions in the directories",
                topic,
                max(found),
                implied,
            )
            return frozenset(found)
        self._left -= implied
        return frozenset(range(max(found) + 1))


def _renamed(renaming: Renaming, replicas: Sequence[Replica], directories: Sequence[ClusterDirectory]) -> list[Replica]:
    wanted = None if renaming.directory is None else renaming.directory.absolute()
    if wanted is not None and wanted not in (directory.path for directory in directories):
        raise UsageError(
            f"--as {renaming.new}: {renaming.directory} is not one of the served directories",
            advice="name it as a log directory too",
        )
    inside = [each for each in replicas if wanted is None or each.directory.path == wanted]
    found = [each for each in inside if each.partition.topic == renaming.old]
    if not found:
        nearest = difflib.get_close_matches(renaming.old, {each.partition.topic for each in inside}, cutoff=0.0)
        raise UsageError(
            f"--as {renaming.new}: {wanted or 'the log directories'} have no topic {renaming.old!r}",
            advice=f"the nearest names are {', '.join(nearest)}" if nearest else "name another directory",
        )
    return found


def _topic(
    name: str,
    replicas: Sequence[Replica],
    metadata: ClusterMetadata | None,
    options: CatalogOptions,
    segments: OpenSegments,
    numbering: _Numbering,
    fs: Fs,
) -> Topic:
    stored = replicas[0].partition.topic
    known = None if metadata is None else metadata.topic_ids.get(stored)
    replicas, stored_id = replicas_of_one_topic(
        stored,
        replicas,
        known,
        fs,
        advice_if_several=f"serve each from its directory with --as NEW=DIR:{stored}",
        on_unreadable=_warn_of_unreadable,
    )
    is_wanted = any(options.selects(each.partition) for each in replicas)
    if metadata is not None and known is None and is_wanted:
        _LOGGER.warning("topic %s is not in the cluster's metadata; a broker would rename it to -stray", stored)
    by_number: dict[int, list[Replica]] = {}
    for replica in replicas:
        by_number.setdefault(replica.partition.partition, []).append(replica)
    left_out: list[UnservedReplica] = []
    found = {
        number: _log(each, options, segments, fs, left_out)
        for number, each in sorted(by_number.items())
        if stored in COORDINATOR_TOPICS or options.selects(each[0].partition)
    }
    logs = {number: log for number, log in found.items() if log is not None}
    stated_numbers = {} if known is None or metadata is None else metadata.replicas.get(stored, {})
    numbers = numbering.numbers(name, by_number.keys(), stated_numbers)
    absent = sorted(numbers - by_number.keys())
    if absent and is_wanted:
        _LOGGER.warning(
            "topic %s: the directories contain only %d of its %d partitions, and these are served; clients see the "
            "others without a leader: %s",
            name,
            len(by_number),
            len(numbers),
            _shortened([str(number) for number in absent]),
        )
    topic_id = uuid.uuid5(_NAMESPACE, name)
    if stored_id is not None and name == stored:
        topic_id = uuid.UUID(bytes=parse_uuid(stored_id))
    configs = ((options.topic_configs or {}) if metadata is None else metadata.topic_configs).get(stored, {})
    return Topic(name, topic_id, logs, configs, tuple(left_out), numbers)


# ---------------------------------------------------------------------------------------------------------- partitions
def _log(
    replicas: Sequence[Replica],
    options: CatalogOptions,
    segments: OpenSegments,
    fs: Fs,
    left_out: list[UnservedReplica],
) -> FrozenLog | None:
    high_watermark = max((each.checkpoints.high_watermark or 0 for each in replicas), default=0)
    has_file = any(each.checkpoints.high_watermark_file for each in replicas)
    is_stated = any(each.checkpoints.high_watermark is not None for each in replicas)
    if has_file and not is_stated and not options.to_log_end:
        _LOGGER.warning(
            "%s: no checkpoint has the partition's high watermark, so it is served empty; use --to-log-end to serve it",
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
            # No recovery is needed: batches that a broker has not verified yet are verified when they are read.
            clean_shutdown=True,
        )
        try:
            listing = _listed(replica, fs)
        except (SedimentError, OSError) as error:
            _LOGGER.warning("left out: the partition in %s, which cannot be read: %s", replica.path, _described(error))
            left_out.append(UnservedReplica(replica.partition, replica.path, error))
        else:
            logs.append(FrozenLog(listing, checkpoints, segments, fs))
    return logs[0] if len(logs) == 1 else _most_advanced(logs, left_out)


def _listed(replica: Replica, fs: Fs) -> LogListing:
    for name in filter(parse_segment_file, fs.broken_links(replica.path)):
        _LOGGER.warning("left out: %s is a dangling link", replica.path / name)
    return as_loaded(list_log(replica.partition, replica.path, fs), fs)


def _most_advanced(logs: Sequence[FrozenLog], left_out: list[UnservedReplica]) -> FrozenLog | None:
    readable = []
    failed = []
    for log in logs:
        try:
            readable.append((ReplicaRank(log.leader_epoch, log.log_end_offset), log))
        except StorageError as error:
            _LOGGER.warning("%s: the replica in %s is left out", log.topic_partition, log.directory)
            failed.append(UnservedReplica(log.topic_partition, log.directory, error))
    left_out += failed if readable else failed[1:]  # if no log can be read, serve the first log with its error
    best = max(readable, key=lambda each: each[0], default=None)
    return best[1] if best is not None else next(iter(logs), None)


def _warn_of_absent(metadata: ClusterMetadata, present: Iterable[str]) -> None:
    absent = sorted(metadata.topic_ids.keys() - set(present))
    if absent:
        _LOGGER.warning(
            "%d topics of the cluster have no partition in the directories: %s", len(absent), _shortened(absent)
        )


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
