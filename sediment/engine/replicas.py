"""Log directories of one cluster, and the best replica of each partition.

    1. no process may hold the lock of a directory, and all directories must belong to one cluster
    2. `-delete`, `-stray` and `-future` directories and the metadata log are left out
    3. partitions with the same name in several directories are replicas of one partition if they share a topic id
    4. the replica with the highest `ReplicaRank` is used

Opening a directory lists it and reads its small files; no segment is opened.

Source: kafka-log 01 §1, §9, §10; 04 §4.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sediment.engine.directory.leader_epochs import latest_epoch
from sediment.engine.directory.lock import lock_holder
from sediment.segment_io.errors import (
    CorruptDataError,
    DirectoryInUseError,
    NotALogDirectoryError,
    OwnershipError,
    SedimentError,
    UnsupportedDataError,
    UsageError,
)
from sediment.segment_io.format.meta_properties import MetaProperties
from sediment.segment_io.format.names import (
    CLEAN_SHUTDOWN_FILE,
    LEADER_EPOCH_FILE,
    LOCK_FILE,
    META_PROPERTIES_FILE,
    METADATA_PARTITION,
    PARTITION_METADATA_FILE,
    TopicPartition,
    parse_partition_directory,
    parse_segment_file,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata, read_cluster_metadata
from sediment.segment_io.partition.checkpoint_files import (
    LOG_DIRECTORY_FILES,
    LogDirCheckpoints,
    PartitionCheckpoints,
    read_checkpoints,
    read_leader_epochs,
    read_meta_properties,
    read_partition_metadata,
)
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.live_segments import as_loaded
from sediment.segment_io.partition.log_view import open_view
from sediment.segment_io.partition.partition_directories import find_live_partitions
from sediment.segment_io.store_fs import StoreFs
from sediment.segment_io.stores import Store, StoredFile, by_folder

_LOGGER = logging.getLogger(__name__)

OnUnreadable = Callable[[Path, SedimentError | OSError], None]
"""A callback for a file that is treated as absent; it gets the path of the file, and the error that is the reason."""

_Read = TypeVar("_Read")
_NOT_LOCKABLE = frozenset({errno.EISDIR, errno.ELOOP})
_FILES = LOG_DIRECTORY_FILES | {LOCK_FILE, CLEAN_SHUTDOWN_FILE}


@dataclass(frozen=True, slots=True, order=True)
class ReplicaRank:
    """A higher leader epoch means a higher rank.

    If the epochs are equal, the higher log end offset decides; if the offsets are equal too, a log without damage ranks
    higher.
    """

    leader_epoch: int
    log_end_offset: int
    is_undamaged: bool = True


@dataclass(frozen=True, slots=True)
class ClusterDirectory:
    """A log directory with its live partitions; `meta` is None if meta.properties is missing.

    For a directory at a URI, `at_uri` is its store, and `path` is a stand-in without segments.  `files` then lists the
    files of each partition by name.
    """

    path: Path
    meta: MetaProperties | None
    checkpoints: LogDirCheckpoints
    partitions: Sequence[TopicPartition]
    at_uri: Store | None = None
    files: Mapping[str, Mapping[str, StoredFile]] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        return self.at_uri or Store(str(self.path))

    @property
    def shown(self) -> str:
        return str(self.at_uri or self.path)

    def only(self, partition: TopicPartition) -> ClusterDirectory:
        name = str(partition)
        files = {name: self.files[name]} if name in self.files else {}
        return replace(self, checkpoints=self.checkpoints.only(partition), partitions=(partition,), files=files)


@dataclass(frozen=True, slots=True)
class Replica:
    directory: ClusterDirectory
    partition: TopicPartition

    def __reduce__(self) -> tuple[Any, ...]:
        return Replica, (self.directory.only(self.partition), self.partition)

    @property
    def path(self) -> Path:
        return self.directory.path / str(self.partition)

    @property
    def shown(self) -> str:
        return f"{self.directory.shown}/{self.partition}"

    def fs(self, local: Fs) -> Fs:
        store, name = self.directory.at_uri, str(self.partition)
        return local if store is None else StoreFs(store, name, self.directory.files.get(name, {}))

    def listed_again(self) -> Replica:
        store, name = self.directory.at_uri, str(self.partition)
        if store is None:
            return self
        files = {name: by_folder(store.files(name)).get(name, {})}
        return replace(self, directory=replace(self.directory, files=files))

    @property
    def checkpoints(self) -> PartitionCheckpoints:
        return self.directory.checkpoints.of(self.partition)


def open_cluster_directory(
    path: Path, fs: Fs, *, advice_if_in_use: str | None, on_unreadable: OnUnreadable
) -> ClusterDirectory:
    """Return a log directory; `path` may also be the directory of one partition.

    If a checkpoint file, the lock or meta.properties is malformed or cannot be read, it is treated as absent.
    `on_unreadable` is then called with its path and the error. A caller that itself holds the lock of the directory
    passes None as `advice_if_in_use`; the lock is then not checked.
    """
    if not fs.is_directory(path):
        raise NotALogDirectoryError("no such directory", path=str(path), advice="give an entry of a broker's log.dirs")
    try:
        entries = fs.scan(path)
    except OSError as error:
        raise NotALogDirectoryError(
            f"the directory cannot be read: {error.strerror}",
            path=str(path),
            advice="run as the broker's user or as root, or check the disk",
        ) from error
    if any(parse_segment_file(entry.name) for entry in entries if entry.is_file):
        partition, _ = parse_partition_directory(path.name)
        path, partitions = path.parent, [partition]
    else:
        names = (entry.name for entry in entries if entry.is_directory and entry.name not in _FILES)
        partitions = find_live_partitions(path, names)
        if not partitions and not any(entry.name in LOG_DIRECTORY_FILES for entry in entries):
            raise NotALogDirectoryError(
                "not a Kafka log directory: it contains neither topic-partition directories nor checkpoint files",
                path=str(path),
                advice="give an entry of a broker's log.dirs",
            )
    if advice_if_in_use is not None:
        _check_not_in_use(path, advice_if_in_use, on_unreadable)
    file = path / META_PROPERTIES_FILE
    meta = _unless_unreadable(file, lambda: read_meta_properties(fs, file), on_unreadable)
    return ClusterDirectory(path, meta, read_checkpoints(path, fs, on_unreadable=on_unreadable), partitions)


def _unless_unreadable(path: Path, read: Callable[[], _Read | None], on_unreadable: OnUnreadable) -> _Read | None:
    try:
        return read()
    except (CorruptDataError, UnsupportedDataError, OSError) as error:
        on_unreadable(path, error)
        return None


def _check_not_in_use(path: Path, advice: str, on_unreadable: OnUnreadable) -> None:
    try:
        holder = lock_holder(path)
    except OSError as error:
        if error.errno in _NOT_LOCKABLE:
            on_unreadable(path / LOCK_FILE, error)
            return
        raise OwnershipError(
            f"the lock file cannot be read: {error.strerror}",
            path=str(path / LOCK_FILE),
            advice="run as the broker's user or as root",
        ) from error
    if holder is not None:
        raise DirectoryInUseError(
            f"process {holder} uses this log directory" if holder else "another process uses this log directory",
            path=str(path),
            advice=advice,
        )


# ------------------------------------------------------------------------------------------------------------- clusters
def cluster_of(directories: Sequence[ClusterDirectory], *, advice_if_several: str) -> MetaProperties | None:
    metas = [directory.meta for directory in directories if directory.meta is not None]
    first: dict[str, ClusterDirectory] = {}
    for directory in directories:
        if directory.meta is not None and directory.meta.cluster_id is not None:
            first.setdefault(directory.meta.cluster_id, directory)
    if len(first) > 1:
        (one, here), (other, there) = list(first.items())[:2]
        raise UsageError(
            f"{here.shown} belongs to cluster {one}, and {there.shown} to cluster {other}", advice=advice_if_several
        )
    return min(metas, key=lambda meta: (meta.node_id is None, meta.node_id or 0), default=None)


def newest_metadata(paths: Sequence[Path], fs: Fs, *, on_unreadable: OnUnreadable) -> ClusterMetadata | None:
    """If no directory has a metadata log, the bootstrap checkpoint of a node that was never started is used.

    If a log is corrupt or cannot be read, `on_unreadable` is called, and the log is skipped.
    """
    found = [
        _unless_unreadable(path / str(METADATA_PARTITION), partial(read_cluster_metadata, path, fs), on_unreadable)
        for path in dict.fromkeys(paths)
    ]
    known = [each for each in found if each is not None]
    return max(known, key=lambda each: (not each.is_bootstrap, each.end_offset), default=None)


# --------------------------------------------------------------------------------------------------------------- topics
def replicas_of_one_topic(
    topic: str,
    replicas: Sequence[Replica],
    known: str | None,
    fs: Fs,
    *,
    advice_if_several: str,
    on_unreadable: OnUnreadable,
) -> tuple[list[Replica], str | None]:
    ids = [_own_topic_id(replica, fs, on_unreadable) for replica in replicas]
    stated = {found: replica for replica, found in zip(replicas, ids, strict=True) if found is not None}
    if known is None and len(stated) > 1:
        (one, here), (other, there) = list(stated.items())[:2]
        raise UsageError(
            f"topic {topic} has id {one} in {here.directory.shown} and {other} in {there.directory.shown}",
            advice=f"they are different topics; {advice_if_several}",
        )
    wanted = known or next(iter(stated), None)
    kept = [replica for replica, found in zip(replicas, ids, strict=True) if found in (None, wanted)]
    if not kept:
        _LOGGER.warning("topic %s: its directories belong to a deleted topic; they are used anyway", topic)
        return list(replicas), next(iter(stated))
    if len(kept) < len(replicas):
        _LOGGER.warning("topic %s: left out %d directories of an older topic", topic, len(replicas) - len(kept))
    return kept, wanted


def _own_topic_id(replica: Replica, fs: Fs, on_unreadable: OnUnreadable) -> str | None:
    file = replica.path / PARTITION_METADATA_FILE
    return _unless_unreadable(file, lambda: read_partition_metadata(fs, file), on_unreadable)


# ---------------------------------------------------------------------------------------------------------------- ranks
def rank_of(replica: Replica, fs: Fs) -> ReplicaRank:
    fs = replica.fs(fs)
    is_undamaged = True

    def note(_error: SedimentError) -> None:
        nonlocal is_undamaged
        is_undamaged = False

    try:
        listing = as_loaded(list_log(replica.partition, replica.path, fs), fs)
        epochs = read_leader_epochs(fs, replica.path / LEADER_EPOCH_FILE) or ()
        view = open_view(listing, replica.checkpoints, fs, now_ms=0, producer_id_expiration_ms=None, on_corruption=note)
    except (SedimentError, OSError):
        return ReplicaRank(-1, -1, is_undamaged=False)
    return ReplicaRank(latest_epoch(epochs), view.log_end_offset, is_undamaged)
