"""OwnedNode: the node whose log directories a live server takes over; it is checked before anything is written.

    check                                                     otherwise
    every directory has the node's meta.properties            refused: `adopt` writes it
    one directory has the node's metadata                     refused: `adopt` writes it
    the node is the sole voter of its quorum                  refused: other voters would lack the new records
    the node is the only replica of every partition           refused: other replicas would lack the new records
    every batch of the metadata log is good                   refused: loading truncates the log at a bad batch
    no topic has segments in tiered storage                   refused: their offsets would be treated as deleted
    every folder is a partition of the cluster                refused: a broker would rename it to -stray
    every partition has a folder, if the node was started     refused: its records may be in another directory
    a partition without a folder is in no checkpoint, and     refused: the server would create it empty
    the marker proves that no broker has used the directory
    the directory for new folders is in log.dirs              refused: a broker would not find the folder

The metadata of a node that has been started is in its metadata log.  `clone` and `adopt` make nodes that were never
started: their metadata is in `bootstrap.checkpoint`, and a server keeps this file up to date.  After a server was
killed, a broker may have started since, so the file may be stale.  It is used nevertheless, because a server deletes no
records.  It is not used if a marker contains a broker's epoch, because then a broker has used the directory.

A broker creates the folder of a partition as soon as it leads the partition.  So only a node that was never started may
have partitions without a folder.  A server creates their folders in the directory with the metadata.

Invariant: nothing is written, and no lock is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sediment.engine.clone.cluster_records import Node
from sediment.engine.clone.foreign_topics import why_not_a_replica
from sediment.engine.clone.metadata_append import check_started
from sediment.engine.clone.plan import is_tiered
from sediment.engine.clone.sole_voter import QuorumSources, sole_voter
from sediment.engine.replicas import ClusterDirectory, cluster_of, open_cluster_directory
from sediment.segment_io.errors import NotALogDirectoryError, SedimentError, UsageError
from sediment.segment_io.format.names import (
    BOOTSTRAP_FILE,
    METADATA_PARTITION,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import (
    ClusterMetadata,
    check_loadable,
    read_bootstrap_checkpoint,
    read_cluster_metadata,
)
from sediment.segment_io.internal_topics.quorum_state import read_quorum_state
from sediment.segment_io.partition.checkpoint_files import read_partition_metadata
from sediment.segment_io.partition.clean_shutdown_file import is_new_directory, read_clean_shutdown

_IN_USE = "stop the broker first"
_ADOPT = "run sediment adopt on the directory"
_CLONE = "clone the directory, and serve the clone"
_ONE_BROKER = "give a server the directories of one broker only"
_READ_ONLY = "or serve it with --read-only"
_MAYBE_STARTED = "a broker may have used it, so the folder may be in another directory"


@dataclass(frozen=True, slots=True)
class OwnedNode:
    """A node with its metadata; `absent` are the partitions without a folder, which were never written to.

    If `is_started`, the metadata comes from the metadata log in `metadata_dir`; otherwise it comes from
    `bootstrap.checkpoint`.  A node that was started has no absent partitions.
    """

    node: Node
    metadata_dir: Path
    is_started: bool
    metadata: ClusterMetadata
    absent: tuple[TopicPartition, ...]


def open_node(
    paths: Sequence[Path], quorum: Mapping[str, str] | None, fs: Fs, *, metadata_only: Path | None = None
) -> OwnedNode:
    """Return the node of all log directories `paths`.

    `quorum` contains the `QUORUM_KEYS` from the broker's properties file.  `metadata_only` is the broker's
    `metadata.log.dir` if `log.dirs` does not contain it.

    Raises:
        UsageError: a check of this module failed.
        DirectoryInUseError: a process holds the lock of a directory.
        CorruptDataError, UnsupportedDataError, OSError: a file cannot be read.
    """
    directories = [_open_directory(path, fs) for path in dict.fromkeys(path.absolute() for path in paths)]
    cluster_of(directories, advice_if_several=_ONE_BROKER)
    for directory in directories:
        _check_owner(directory)
    metadata_dir, is_started = _metadata_dir([directory.path for directory in directories], fs)
    metadata = read_metadata(metadata_dir, is_started, fs)
    node = _sole_voter(directories, metadata_dir, is_started, metadata, quorum, fs)
    _check_replicas(metadata, node)
    _check_not_tiered(metadata)
    found = set(_checked_folders(directories, metadata, node, fs))
    wanted = (TopicPartition(topic, number) for topic, numbers in metadata.partitions.items() for number in numbers)
    absent = sorted(partition for partition in wanted if partition not in found)
    for partition in absent:
        if is_started:
            raise _missing_folder("a broker creates it when it first leads the partition", partition, metadata_dir)
        if not is_new_directory(fs, metadata_dir):
            raise _missing_folder(_MAYBE_STARTED, partition, metadata_dir)
        _check_never_written(partition, directories)
    if absent and metadata_only is not None and metadata_only.resolve() == metadata_dir.resolve():
        raise UsageError(
            "the partition has no folder yet, and this is the metadata.log.dir, which is not an entry of log.dirs",
            partition=str(absent[0]),
            path=str(metadata_dir),
            advice=f"start the broker once, so that it makes the folders, {_READ_ONLY}",
        )
    return OwnedNode(node, metadata_dir, is_started, metadata, tuple(absent))


# ---------------------------------------------------------------------------------------------------------- directories
def _open_directory(path: Path, fs: Fs) -> ClusterDirectory:
    opened = open_cluster_directory(path, fs, advice_if_in_use=_IN_USE, on_unreadable=_raise)
    if opened.path != path:
        raise NotALogDirectoryError(
            "this is the directory of one partition", path=str(path), advice="name the log directory that holds it"
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
def _metadata_dir(paths: Sequence[Path], fs: Fs) -> tuple[Path, bool]:
    """Return the directory with the metadata, and True if it is a metadata log."""
    with_log = [path for path in paths if fs.exists(path / str(METADATA_PARTITION))]
    if len(with_log) > 1:
        raise UsageError(
            f"{with_log[0]} and {with_log[1]} both hold {METADATA_PARTITION}",
            advice=_ONE_BROKER,
        )
    if with_log:
        return with_log[0], True
    for path in paths:
        marker = read_clean_shutdown(fs, path)
        if fs.exists(path / BOOTSTRAP_FILE) and (marker is None or marker.broker_epoch is None):
            return path, False
    raise UsageError(
        f"no directory holds {METADATA_PARTITION}, or a {BOOTSTRAP_FILE} that no broker has used, so their topics are "
        "not known",
        path=str(paths[0]),
        advice=f"name every entry of the broker's log.dirs; without a broker, {_ADOPT}, {_READ_ONLY}",
    )


def read_metadata(metadata_dir: Path, is_started: bool, fs: Fs) -> ClusterMetadata:
    """Return the metadata of the log, or of `bootstrap.checkpoint` if the node was never started.

    Raises:
        UsageError: the node was never started but has a metadata log.
        CorruptDataError, UnsupportedDataError, SourceChangedError: the metadata cannot be read, or loading would
            truncate its log.
    """
    if is_started or fs.exists(metadata_dir / str(METADATA_PARTITION)):
        metadata = check_started(metadata_dir, read_cluster_metadata(metadata_dir, fs), fs)
        check_loadable(metadata_dir, metadata.end_offset, fs)
        return metadata
    # If a bootstrap checkpoint has no topics, the node was only formatted.
    return read_bootstrap_checkpoint(metadata_dir, fs) or ClusterMetadata({}, {}, {}, 0)


def _sole_voter(
    directories: Sequence[ClusterDirectory],
    metadata_dir: Path,
    is_started: bool,
    metadata: ClusterMetadata,
    quorum: Mapping[str, str] | None,
    fs: Fs,
) -> Node:
    own = next(directory.meta for directory in directories if directory.path == metadata_dir)
    assert own is not None and own.node_id is not None and own.cluster_id and own.directory_id
    if not is_started and not (quorum or {}).get("controller.quorum.voters", "").strip():
        # A node that was never started has no voters except those in its properties file.
        return Node(own.node_id, own.cluster_id, own.directory_id)
    return sole_voter(
        QuorumSources(
            meta=own,
            metadata=metadata,
            state=read_quorum_state(metadata_dir / str(METADATA_PARTITION), fs),
            properties=quorum,
            has_broker_files=fs.exists(metadata_dir / RECOVERY_POINT_FILE),
        )
    )


# ----------------------------------------------------------------------------------------------------------- partitions
def _check_replicas(metadata: ClusterMetadata, node: Node) -> None:
    for topic, partitions in metadata.replicas.items():
        for number, nodes in partitions.items():
            if nodes != (node.node_id,):
                raise UsageError(
                    f"the partition has replicas on nodes {', '.join(map(str, nodes))}, and this is node "
                    f"{node.node_id} alone",
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
    directories: Sequence[ClusterDirectory], metadata: ClusterMetadata, node: Node, fs: Fs
) -> Iterator[TopicPartition]:
    """Yield the partition of every folder, after checking that the cluster has this partition."""
    names = {topic_id: name for name, topic_id in metadata.topic_ids.items()}
    for directory in directories:
        for partition in directory.partitions:
            topic_id = read_partition_metadata(fs, directory.path / str(partition) / PARTITION_METADATA_FILE)
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
                    advice="move the folder out of the log directory; to use its records, clone it with --rename",
                )
            yield partition


def _check_never_written(partition: TopicPartition, directories: Sequence[ClusterDirectory]) -> None:
    for directory in directories:
        checkpoints = directory.checkpoints
        for offsets in (checkpoints.recovery_point, checkpoints.high_watermark, checkpoints.log_start):
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
