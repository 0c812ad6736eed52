"""OwnedNode: the node that a live server takes over, with the checks of its log directories.

The checks; the code below states the reasons of the others:

* Every directory has the node's meta.properties, and one has the node's metadata.  `adopt` creates what is missing.
* The node is the sole voter of its quorum, because other voters would lack the new records.
* A partition may lack a folder only if a server added the partition after the last run of a broker, or if the marker of
  a clean stop proves that no broker has used the directory.  If neither is true, another directory may have the
  partition's records.

Invariant: nothing is written, and no lock is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple, NoReturn

from sediment.engine.clone.cluster_records import CloneNode
from sediment.engine.clone.foreign_topics import advice_if_no_replica, why_not_a_replica
from sediment.engine.clone.metadata_append import check_started
from sediment.engine.clone.plan import is_tiered
from sediment.engine.clone.sole_voter import QuorumSources, sole_voter
from sediment.engine.live.partition_folders import is_unfinished
from sediment.engine.replicas import ClusterDirectory, cluster_of, open_cluster_directory
from sediment.segment_io.errors import NotALogDirectoryError, SedimentError, UsageError
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.format.names import (
    BOOTSTRAP_FILE,
    METADATA_PARTITION,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    DirectoryState,
    TopicPartition,
    parse_partition_directory,
)
from sediment.segment_io.fs import Fs, without_links
from sediment.segment_io.internal_topics.metadata_log import (
    ClusterMetadata,
    check_loadable,
    read_bootstrap_records,
    read_cluster_metadata,
)
from sediment.segment_io.internal_topics.quorum_state import read_quorum_state
from sediment.segment_io.partition.checkpoint_files import read_partition_metadata
from sediment.segment_io.partition.clean_shutdown_file import (
    NEW_DIRECTORY,
    SERVED_NODE,
    CleanShutdown,
    is_new_directory,
    read_clean_shutdown,
)
from sediment.segment_io.partition.formatted_directory import has_metadata_log, is_formatted

_IN_USE = "stop the broker first"
_ADOPT = "run sediment adopt on the directory"
_CLONE = "clone the directory, and serve the clone"
_ONE_BROKER = "give the server the directories of only one broker"
_READ_ONLY = "or serve it with --read-only"
_NEVER_STARTED = "add --read-only to serve it without writes, or clone the directory first"
_MAYBE_STARTED = "a broker, or a server of several directories, may have used it, so the folder may be in another one"
_NOT_GIVEN = "log.dirs has more entries than the given directories, so the folder may be in another entry"


@dataclass(frozen=True, slots=True)
class OwnedNode:
    """If `is_started`, the metadata comes from the metadata log in `metadata_dir`, else from `bootstrap.checkpoint`.

    `formatted` contains the directories that nobody has used since a format. `absent` contains each partition that has
    no folder and was never written to, with the log directory of its new folder. `removed` contains the folders to
    remove: of topics that a server has deleted, of creations that left no records, and of finished moves. `promoted`
    contains each partition whose future log replaces its log, with the directory of the future log. `moves` contains
    each partition whose move restarts, with the target directory.
    """

    node: CloneNode
    metadata_dir: Path
    is_started: bool
    metadata: ClusterMetadata
    absent: Mapping[TopicPartition, Path]
    removed: tuple[Path, ...] = ()
    promoted: Mapping[TopicPartition, Path] = field(default_factory=dict)
    moves: Mapping[TopicPartition, Path] = field(default_factory=dict)
    unused: tuple[Path, ...] = ()
    formatted: frozenset[Path] = frozenset()

    def why_stale(self, markers: Mapping[Path, CleanShutdown | None]) -> str | None:
        """`markers` are the markers of a clean stop that the start found in the log directories."""
        # If a server was killed, a broker may have started since then, so the file may be stale.
        if self.is_started or markers[self.metadata_dir] == NEW_DIRECTORY:
            return None
        known = [SERVED_NODE if path in self.formatted else marker for path, marker in markers.items()]
        if all(marker is not None and marker.is_without_broker for marker in known):
            return None
        return "the last stop was not clean" if None in known else "an earlier stop was not clean"


def open_node(
    paths: Sequence[Path],
    quorum: Mapping[str, str] | None,
    fs: Fs,
    *,
    metadata_apart: bool = False,
    metadata_log_dir: Path | None = None,
    log_dirs: Collection[Path] = (),
) -> OwnedNode:
    """`quorum` contains the `QUORUM_KEYS` from the broker's properties file.

    `metadata_log_dir` is the directory in which the broker looks for its metadata, if the properties file is that of
    these directories and not of their originals. `log_dirs` contains the entries of `log.dirs` if they are known. Only
    the number of entries is used, because the directories may be a copy.
    """
    directories = [_open_directory(path, fs) for path in dict.fromkeys(path.absolute() for path in paths)]
    cluster_of(directories, advice_if_several=_ONE_BROKER)
    for directory in directories:
        _check_owner(directory)
    metadata_dir, is_started = _metadata_dir([directory.path for directory in directories], metadata_log_dir, fs)
    metadata = read_metadata(metadata_dir, is_started, fs)
    node = _sole_voter(directories, metadata_dir, is_started, metadata, quorum, fs)
    _check_replicas(metadata, node)
    _check_not_tiered(metadata)
    removed: list[Path] = []
    found = dict(_checked_folders(directories, metadata, node, fs, removed))
    aside = _folders_aside(directories, fs)
    future = list(_future_folders(aside, metadata, found, fs))
    promoted = {each.partition: each.log_dir for each in future if each.fate is _Fate.PROMOTED}
    moves = {each.partition: each.log_dir for each in future if each.fate is _Fate.COPIED_AGAIN}
    found |= promoted
    wanted = (TopicPartition(topic, number) for topic, numbers in metadata.partitions.items() for number in numbers)
    missing = sorted(partition for partition in wanted if partition not in found)
    for partition in missing:
        # A missing folder may be in another entry.
        if len(log_dirs) + metadata_apart > len(directories):
            raise _missing_folder(_NOT_GIVEN, partition, metadata_dir)
        if partition not in metadata.new_partitions:
            if is_started:
                raise _missing_folder("a broker creates it when it first leads the partition", partition, metadata_dir)
            if not is_new_directory(fs, metadata_dir):
                raise _missing_folder(_MAYBE_STARTED, partition, metadata_dir)
        _check_never_written(partition, directories, removed)
    absent = {partition: _directory_of(partition, directories, metadata, metadata_dir) for partition in missing}
    for partition, path in absent.items():
        if path / str(partition) in removed:
            raise _missing_folder("the folder of a deleted topic has the same name", partition, path)
    # A broker would not find the folder outside the entries of log.dirs.
    without_place = [partition for partition, path in absent.items() if path == metadata_dir]
    if metadata_apart and without_place:
        raise UsageError(
            "the partition has no folder yet, and this is the metadata.log.dir, which is not an entry of log.dirs",
            partition=str(without_place[0]),
            path=str(metadata_dir),
            advice=f"start the broker once, so that it creates the folders, {_READ_ONLY}",
        )
    removed += (each.folder for each in future if each.fate in (_Fate.REMOVED, _Fate.COPIED_AGAIN))
    removed += _marked_folders(directories, aside, metadata, found, fs)
    unused = tuple(each.folder for each in future if each.fate is _Fate.UNUSED)
    formatted = frozenset() if metadata.topic_ids else _formatted(directories, fs)
    return OwnedNode(
        node, metadata_dir, is_started, metadata, absent, tuple(removed), promoted, moves, unused, formatted
    )


def directories_for_partitions(
    paths: Sequence[Path],
    used: Collection[Path],
    *,
    metadata_dir: Path,
    metadata_apart: bool = False,
    log_dirs: Collection[Path] = (),
) -> tuple[Path, ...]:
    """Return the log directories among `paths` in which the node's broker would find a new partition.

    `log_dirs` contains the entries of the node's `log.dirs`, if they are known.  In a copy of the directories, no path
    equals an entry.  The directory with the metadata is then left out if `metadata_apart` is True, because the node's
    `metadata.log.dir` is not an entry of its `log.dirs`.  If `metadata_apart` is False and `log_dirs` is empty, this
    directory gets partitions only if it is the only directory, or if it is in `used`, the directories that have
    partitions.
    """
    entries = {without_links(path) for path in log_dirs}
    named = tuple(path for path in paths if without_links(path) in entries)
    if named:
        return named
    others = tuple(path for path in paths if without_links(path) != without_links(metadata_dir))
    if metadata_apart:
        return others
    is_known = bool(log_dirs) or len(paths) == 1
    return tuple(path for path in paths if is_known or path in used or path in others)


# ---------------------------------------------------------------------------------------------------------- directories
def _open_directory(path: Path, fs: Fs) -> ClusterDirectory:
    opened = open_cluster_directory(path, fs, advice_if_in_use=_IN_USE, on_unreadable=_raise)
    if opened.path != path:
        raise NotALogDirectoryError(
            "this is the directory of one partition", path=str(path), advice="name its log directory instead"
        )
    return opened


def _raise(_path: Path, error: SedimentError | OSError) -> NoReturn:
    raise error


def _check_owner(directory: ClusterDirectory) -> None:
    meta = directory.meta
    if meta is None or meta.node_id is None or meta.cluster_id is None or meta.directory_id is None:
        raise UsageError(
            "the directory has no meta.properties that names a node, a cluster and a directory.id",
            path=str(directory.path),
            advice=f"{_ADOPT}, {_READ_ONLY}",
        )


# ------------------------------------------------------------------------------------------------------------- metadata
def _metadata_dir(paths: Sequence[Path], metadata_log_dir: Path | None, fs: Fs) -> tuple[Path, bool]:
    with_log = [path for path in paths if has_metadata_log(fs, path)]
    if len(with_log) > 1:
        raise UsageError(
            f"{with_log[0]} and {with_log[1]} both have {METADATA_PARTITION}",
            advice=_ONE_BROKER,
        )
    if with_log:
        return with_log[0], True
    found = [path for path in paths if _has_bootstrap_file(path, fs)]
    if found:
        return _bootstrap_dir(found, metadata_log_dir, fs), False
    raise UsageError(
        f"no directory has {METADATA_PARTITION}, or a {BOOTSTRAP_FILE} that no broker has used, so the topics are "
        "not known",
        path=str(paths[0]),
        advice=f"name every entry of the broker's log.dirs; without a broker, {_ADOPT}, {_READ_ONLY}",
    )


def _has_bootstrap_file(path: Path, fs: Fs) -> bool:
    # The metadata of a node that was never started is in this file, and a server keeps it up to date. A marker with a
    # broker's epoch proves that a broker has used the directory, so the file is not used.
    marker = read_clean_shutdown(fs, path)
    return fs.exists(path / BOOTSTRAP_FILE) and (marker is None or marker.broker_epoch is None)


def _bootstrap_dir(found: Sequence[Path], metadata_log_dir: Path | None, fs: Fs) -> Path:
    """Return the directory whose `bootstrap.checkpoint` a broker reads; a format writes this file into all of them.

    A broker reads it in `metadata.log.dir`, or else in the first entry of `log.dirs`.
    """
    if metadata_log_dir is not None:
        wanted = without_links(metadata_log_dir)
        same = [path for path in found if without_links(path) == wanted]
        if not same:
            raise UsageError(
                f"a broker with this --config file keeps its metadata in {metadata_log_dir}, but {BOOTSTRAP_FILE} is "
                f"in {found[0]}",
                path=str(found[0]),
                advice=f"also name {metadata_log_dir}, or correct metadata.log.dir and the order of log.dirs",
            )
        return same[0]
    with_topics = [path for path in found if _has_topics(path, fs)]
    chosen = with_topics or found
    if len(chosen) > 1:
        raise UsageError(
            f"{chosen[0]} and {chosen[1]} both have a {BOOTSTRAP_FILE}, and a broker reads only one of them",
            advice="give the broker's file with --config FILE, because it says where its metadata is",
        )
    return chosen[0]


def _has_topics(path: Path, fs: Fs) -> bool:
    metadata = read_bootstrap_records(path, fs)
    return metadata is not None and bool(metadata.topic_ids)


def _formatted(directories: Sequence[ClusterDirectory], fs: Fs) -> frozenset[Path]:
    return frozenset(directory.path for directory in directories if is_formatted(fs, directory.path))


def read_metadata(metadata_dir: Path, is_started: bool, fs: Fs) -> ClusterMetadata:
    if is_started or has_metadata_log(fs, metadata_dir):
        found = read_cluster_metadata(metadata_dir, fs)
        metadata = check_started(metadata_dir, found, fs, advice=_NEVER_STARTED)
        # The load would truncate the log at a bad batch.
        check_loadable(metadata_dir, metadata.end_offset, fs)
        return metadata
    return read_bootstrap_records(metadata_dir, fs) or ClusterMetadata({}, {}, {}, 0)


def _sole_voter(
    directories: Sequence[ClusterDirectory],
    metadata_dir: Path,
    is_started: bool,
    metadata: ClusterMetadata,
    quorum: Mapping[str, str] | None,
    fs: Fs,
) -> CloneNode:
    own = next(directory.meta for directory in directories if directory.path == metadata_dir)
    assert own is not None and own.node_id is not None and own.cluster_id and own.directory_id
    states_voters = metadata.quorum_records or (quorum or {}).get("controller.quorum.voters", "").strip()
    if not is_started and not states_voters:
        # Only the properties file can name the voters of a static quorum whose node was never started.
        return CloneNode(own.node_id, own.cluster_id, own.directory_id)
    return sole_voter(
        QuorumSources(
            meta=own,
            metadata=metadata,
            state=read_quorum_state(metadata_dir / str(METADATA_PARTITION), fs),
            properties=quorum,
            has_broker_files=not is_started or fs.exists(metadata_dir / RECOVERY_POINT_FILE),
        )
    )


# ----------------------------------------------------------------------------------------------------------- partitions
def _check_replicas(metadata: ClusterMetadata, node: CloneNode) -> None:
    # Other replicas would lack the new records.
    for topic, partitions in metadata.replicas.items():
        for number, nodes in partitions.items():
            if nodes != (node.node_id,):
                raise UsageError(
                    f"the partition has replicas on nodes {', '.join(map(str, nodes))}, but these directories are "
                    f"only from node {node.node_id}",
                    partition=str(TopicPartition(topic, number)),
                    advice=f"{_CLONE}, {_READ_ONLY}",
                )


def _check_not_tiered(metadata: ClusterMetadata) -> None:
    for topic, configs in sorted(metadata.topic_configs.items()):
        if is_tiered(configs):
            # The log start of the local log is above the remote segments.  If a checkpoint contained this log start, a
            # broker would delete those segments.
            raise UsageError(
                f"topic {topic} has remote.storage.enable=true, and this server reads no tiered storage",
                advice=f"clone the directory with --local-only, and serve the clone, {_READ_ONLY}",
            )


def _checked_folders(
    directories: Sequence[ClusterDirectory],
    metadata: ClusterMetadata,
    node: CloneNode,
    fs: Fs,
    removed: list[Path],
) -> Iterator[tuple[TopicPartition, Path]]:
    names = {topic_id: name for name, topic_id in metadata.topic_ids.items()}
    for directory in directories:
        for partition in directory.partitions:
            topic_id = read_partition_metadata(fs, directory.path / str(partition) / PARTITION_METADATA_FILE)
            if topic_id in metadata.removed_topic_ids:
                # A deletion that was killed leaves such folders. A start cannot distinguish them from folders that an
                # operator has restored, so they are renamed to -stray, as a broker does, and not deleted.
                removed.append(directory.path / str(partition))
                continue
            if partition.topic not in metadata.topic_ids and topic_id not in names:
                raise UsageError(
                    "the cluster does not know the folder's topic, and a broker would rename the folder to -stray",
                    partition=str(partition),
                    path=str(directory.path),
                    advice=f"{_ADOPT}, or move the folder away",
                )
            reason = why_not_a_replica(partition, topic_id, metadata, names, node)
            if reason is not None:
                raise UsageError(
                    reason,
                    partition=str(partition),
                    path=str(directory.path),
                    advice=advice_if_no_replica(topic_id),
                )
            yield partition, directory.path


class _Fate(Enum):
    PROMOTED = "it replaces the log"
    COPIED_AGAIN = "it is removed, and the copy begins again"
    REMOVED = "it is removed"
    UNUSED = "it stays, and is not used"


class _FutureFolder(NamedTuple):
    partition: TopicPartition
    log_dir: Path
    folder: Path
    fate: _Fate


def _folders_aside(directories: Sequence[ClusterDirectory], fs: Fs) -> list[tuple[ClusterDirectory, Path]]:
    marks = (DirectoryState.DELETE, DirectoryState.FUTURE)
    return [
        (directory, directory.path / entry.name)
        for directory in directories
        for entry in fs.scan(directory.path)
        if entry.name.endswith(marks) and entry.is_directory
    ]


def _future_folders(
    aside: Sequence[tuple[ClusterDirectory, Path]],
    metadata: ClusterMetadata,
    found: Mapping[TopicPartition, Path],
    fs: Fs,
) -> Iterator[_FutureFolder]:
    for directory, folder in aside:
        if folder.name.endswith(DirectoryState.FUTURE):
            partition, _ = parse_partition_directory(folder.name)
            topic_id = read_partition_metadata(fs, folder / PARTITION_METADATA_FILE)
            fate = _fate(partition, topic_id, directory, metadata, found)
            yield _FutureFolder(partition, directory.path, folder, fate)


def _fate(
    partition: TopicPartition,
    topic_id: str | None,
    directory: ClusterDirectory,
    metadata: ClusterMetadata,
    found: Mapping[TopicPartition, Path],
) -> _Fate:
    if topic_id in metadata.removed_topic_ids:
        return _Fate.REMOVED
    if topic_id is None or metadata.topic_ids.get(partition.topic) != topic_id:
        return _Fate.UNUSED
    current = found.get(partition)
    if current == directory.path:
        return _Fate.REMOVED
    if _is_assigned(partition, directory, metadata):
        return _Fate.PROMOTED
    # The copy begins again, because jobs may have changed the log in the meantime.
    return _Fate.UNUSED if current is None else _Fate.COPIED_AGAIN


def _is_assigned(partition: TopicPartition, directory: ClusterDirectory, metadata: ClusterMetadata) -> bool:
    stated = metadata.directory_ids.get(partition.topic, {}).get(partition.partition, ())
    own = None if directory.meta is None else directory.meta.directory_id
    return own in [format_uuid(each.bytes) for each in stated]


def _marked_folders(
    directories: Sequence[ClusterDirectory],
    aside: Sequence[tuple[ClusterDirectory, Path]],
    metadata: ClusterMetadata,
    found: Mapping[TopicPartition, Path],
    fs: Fs,
) -> Iterator[Path]:
    created = {None, *metadata.topic_ids.values()}
    names = {topic_id: name for name, topic_id in metadata.topic_ids.items()}
    by_path = {directory.path: directory for directory in directories}

    def was_moved(folder: Path, topic_id: str | None) -> bool:
        number = parse_partition_directory(folder.name)[0].partition
        partition = TopicPartition(names[topic_id], number) if topic_id in names else None
        current = None if partition is None else found.get(partition)
        if partition is None or current is None or current == folder.parent:
            return False
        return _is_assigned(partition, by_path[current], metadata)

    for _, folder in aside:
        if folder.name.endswith(DirectoryState.DELETE):
            # A folder that cannot be read is not removed.
            with suppress(SedimentError, OSError):
                topic_id = read_partition_metadata(fs, folder / PARTITION_METADATA_FILE)
                is_removed = topic_id in metadata.removed_topic_ids
                is_empty = topic_id in created and is_unfinished(folder, fs)
                if is_removed or is_empty or was_moved(folder, topic_id):
                    yield folder


def _directory_of(
    partition: TopicPartition, directories: Sequence[ClusterDirectory], metadata: ClusterMetadata, metadata_dir: Path
) -> Path:
    # Below metadata.version 17, no record states the log directory of a partition. A server then adds partitions only
    # if exactly one directory is given, the one with the metadata.
    stated = metadata.directory_ids.get(partition.topic, {}).get(partition.partition, ())
    ids = {directory.meta.directory_id: directory.path for directory in directories if directory.meta is not None}
    found = next((ids[text] for text in (format_uuid(each.bytes) for each in stated) if text in ids), None)
    if found is None and stated and partition in metadata.new_partitions:
        raise _missing_folder("its log directory is not named", partition, metadata_dir)
    return found or metadata_dir


def _check_never_written(
    partition: TopicPartition, directories: Sequence[ClusterDirectory], removed: Collection[Path]
) -> None:
    for directory in directories:
        if directory.path / str(partition) in removed:
            continue  # the checkpoints list a partition of an earlier topic with this name
        checkpoints = directory.checkpoints
        for offsets in (checkpoints.recovery_point, checkpoints.high_watermark, checkpoints.log_start):
            # The server would create the partition empty, but another directory may have its records.
            if partition in (offsets or {}):
                raise _missing_folder("a checkpoint lists it", partition, directory.path)


def _missing_folder(why_it_existed: str, partition: TopicPartition, path: Path) -> UsageError:
    return UsageError(
        f"the cluster has this partition, its folder is missing, and {why_it_existed}",
        partition=str(partition),
        path=str(path),
        advice="name every entry of the broker's log.dirs, or restore the folder; a partition that adopt has just "
        "added gets its folder when the broker starts",
    )
