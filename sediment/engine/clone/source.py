"""The source of a clone: topics in log directories of one cluster, with the replicas of their partitions.

A directory at a URI is listed once. Its small files are fetched into a local directory, the stand-in.

Without a readable metadata log, topic configs are unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sediment.engine.copying.stand_in import errors_naming, make_stand_in
from sediment.engine.replicas import (
    ClusterDirectory,
    Replica,
    cluster_of,
    newest_metadata,
    open_cluster_directory,
    rank_of,
    replicas_of_one_topic,
)
from sediment.segment_io.errors import NotALogDirectoryError, SedimentError, UsageError
from sediment.segment_io.format.meta_properties import MetaProperties
from sediment.segment_io.format.names import parse_segment_file
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.stores import Store, by_folder

_LOGGER = logging.getLogger(__name__)

_IN_USE = "stop the broker, or clone a snapshot or a copy of the directory"
_SEVERAL_CLUSTERS = "clone one cluster at a time"
_SEVERAL_TOPICS = "give the directories of one of them"


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """`configs` is None if neither a metadata log nor the caller gives them."""

    name: str
    topic_id: str | None
    partition_count: int
    replicas: Mapping[int, tuple[Replica, ...]]
    configs: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SourceCluster:
    directories: tuple[ClusterDirectory, ...]
    meta: MetaProperties | None
    metadata: ClusterMetadata | None
    topics: Mapping[str, SourceTopic] = field(default_factory=dict)

    def knows(self, topic: SourceTopic) -> bool:
        """Return False if the metadata lacks the topic; a broker would then rename its partitions to `-stray`."""
        return self.metadata is None or topic.topic_id == self.metadata.topic_ids.get(topic.name)


def open_log_dir(path: Path, fs: Fs, *, is_locked_here: bool = False) -> ClusterDirectory:
    """Open a local log directory; with `is_locked_here`, the caller holds its lock."""
    advice = None if is_locked_here else _IN_USE
    return open_cluster_directory(path.absolute(), fs, advice_if_in_use=advice, on_unreadable=_warn)


def open_store(store: Store, fs: Fs, stand_in: Path) -> ClusterDirectory:
    """The stand-in must exist as long as the result is used."""
    path = Path(store.where) if store.is_path else store.local_path
    if path is not None:
        return open_log_dir(path, fs)
    files = store.files()
    if not files:
        raise NotALogDirectoryError("no such directory", path=str(store), advice="give the URI of a log directory")
    if any(parse_segment_file(name) for name in files):
        raise NotALogDirectoryError(
            "this is the directory of one partition",
            path=str(store),
            advice="give its parent, and select the partition with --partition",
        )
    stand_in.mkdir()
    make_stand_in(store, files, stand_in, topic_ids=True)
    with errors_naming(str(store), stand_in):
        directory = open_log_dir(stand_in, fs)
    return replace(directory, at_uri=store, files=by_folder(files))


def open_source(
    directories: Sequence[ClusterDirectory],
    fs: Fs,
    *,
    metadata_dir: Path | None = None,
    has_metadata: bool = True,
    topic_configs: Mapping[str, Mapping[str, str]] | None = None,
) -> SourceCluster:
    """With `has_metadata` False, the metadata logs in the directories are ignored.

    `topic_configs` are the topics' own configs for a cluster whose metadata log is not there.
    """
    directories = tuple(directories)
    meta = cluster_of(directories, advice_if_several=_SEVERAL_CLUSTERS)
    errors: list[SedimentError | OSError] = []
    places = [directory.path for directory in directories if has_metadata] if metadata_dir is None else [metadata_dir]
    metadata = newest_metadata(places, fs, on_unreadable=lambda _, error: errors.append(error))
    if metadata is None and errors:
        raise errors[0]
    if metadata is not None and topic_configs is not None:
        raise UsageError(
            "the configs of the topics are given, but a metadata log contains them",
            path=directories[0].shown,
            advice="leave out --topic-configs and --broker-configs",
        )
    by_path = {
        replica.path: replica
        for directory in directories
        for replica in (Replica(directory, each) for each in directory.partitions)
    }
    by_topic: dict[str, list[Replica]] = {}
    for replica in by_path.values():
        by_topic.setdefault(replica.partition.topic, []).append(replica)
    given = topic_configs or {}
    topics = {
        name: _topic(name, replicas, metadata, given.get(name), fs) for name, replicas in sorted(by_topic.items())
    }
    return SourceCluster(directories, meta, metadata, topics)


def _warn(file: Path, error: SedimentError | OSError) -> None:
    why = error.strerror if isinstance(error, OSError) else error
    _LOGGER.warning("%s is ignored: %s", file, why)


def _topic(
    name: str,
    replicas: Sequence[Replica],
    metadata: ClusterMetadata | None,
    configs: Mapping[str, str] | None,
    fs: Fs,
) -> SourceTopic:
    known = None if metadata is None else metadata.topic_ids.get(name)
    kept, topic_id = replicas_of_one_topic(
        name, replicas, known, fs, advice_if_several=_SEVERAL_TOPICS, on_unreadable=_warn
    )
    by_number: dict[int, list[Replica]] = {}
    for replica in kept:
        by_number.setdefault(replica.partition.partition, []).append(replica)
    numbers = set(by_number)
    if metadata is not None and known is not None:
        numbers |= set(metadata.replicas.get(name, {}))
        configs = metadata.topic_configs.get(name, {})
    ranked = {number: _by_rank(found, fs) for number, found in sorted(by_number.items())}
    return SourceTopic(name, topic_id, max(numbers) + 1, ranked, configs)


def fetch_partition(replica: Replica, fs: Fs) -> None:
    directory = replica.directory
    if directory.at_uri is None:
        return
    for name in directory.files.get(str(replica.partition), {}):
        if not fs.exists(replica.path / name):
            fs.write_new(replica.path / name, directory.at_uri.chunks(f"{replica.partition}/{name}"))


def _by_rank(replicas: Sequence[Replica], fs: Fs) -> tuple[Replica, ...]:
    if len(replicas) == 1:
        return tuple(replicas)
    ranks = [(rank_of(replica, fs), replica) for replica in replicas]
    ranks.sort(key=lambda each: each[0], reverse=True)
    best = ranks[0][0]
    same = (best.leader_epoch, best.log_end_offset)
    return tuple(replica for rank, replica in ranks if (rank.leader_epoch, rank.log_end_offset) == same)
