"""The task of one partition: copy the best replica, bring it into the state of a clean stop, and digest its files.

    1. copy      files of the replica -> <topic-N>.<run>-<attempt>.part/ in the clone
    2. load      as a broker's start does; if the log is damaged, try the next replica of the same rank
    3. cut       at an offset or a time, if the clone ends there
    4. end       transactions without a coordinator get markers, if that was asked for
    5. settle    producer snapshot at the log end, partition.metadata
    6. digest    SHA-256 of every file; all files are durable

Only the copy changes.  The driver renames its directory to the partition's name.

Invariant: a log that a broker would open without noticing damage is cloned byte for byte, and its damage is reported.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from sediment.engine.clone.file_copy import check_unchanged, copy_partition
from sediment.engine.clone.options import LinkMode
from sediment.engine.clone.plan import ClonedPartition
from sediment.engine.config import LogConfig
from sediment.engine.directory.leader_epochs import latest_epoch
from sediment.engine.directory.loader import LoadedLog, load_log
from sediment.engine.directory.output import PublishedFile, file_chunks
from sediment.engine.replicas import Replica
from sediment.segment_io.format.names import (
    PART_SUFFIX,
    PARTITION_METADATA_FILE,
    SegmentFileKind,
    segment_file_name,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import write_partition_metadata
from sediment.segment_io.partition.log_dir_checkpoints import PartitionCheckpoints
from sediment.segment_io.partition.snapshots import encode_snapshot


@dataclass(frozen=True, slots=True)
class CloneTask:
    """The cloning of one partition into the directory `to`; `config` has the sizes of segments and indexes."""

    partition: ClonedPartition
    topic_id: str
    to: Path
    run_id: str
    config: LogConfig
    now_ms: int
    link: LinkMode = LinkMode.COPY
    log_bytes: int = 0

    def weight(self) -> int:
        """Return the bytes of the log; tasks are packed by this number."""
        return self.log_bytes


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction without a marker in a log."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class PartitionClone:
    """A finished partition in `folder`, a directory of the clone; names of `files` are relative to that.

    `log_dir` is the source that was copied.  `first_dirty` is its cleaner checkpoint, None without one.  `producer_ids`
    are all that the log knows.  `damage` is text about corrupt bytes that a broker would not notice.
    """

    folder: str
    log_dir: str
    files: tuple[PublishedFile, ...]
    log_start_offset: int
    log_end_offset: int
    first_base_offset: int
    first_dirty: int | None
    leader_epoch: int
    log_bytes: int
    producer_ids: frozenset[int]
    open_transactions: tuple[OpenTransaction, ...]
    repairs: tuple[str, ...] = ()
    damage: str | None = None


def clone_partition(task: CloneTask, attempt: str) -> PartitionClone:
    """Clone one partition into a directory of this attempt.

    Raises:
        CorruptDataError, UnsupportedDataError: a broker would refuse to load the partition.
        SourceChangedError: the source changed while it was copied.
        OSError: the disk failed.
    """
    fs = Fs()
    folder = f"{task.partition.target}.{task.run_id}-{attempt}{PART_SUFFIX}"
    directory = task.to / folder
    replicas = task.partition.replicas
    for number, replica in enumerate(replicas):
        if fs.is_directory(directory):
            shutil.rmtree(directory)
        fs.make_directory(directory)
        entries = copy_partition(
            replica.path,
            directory,
            fs,
            link=task.link,
            linkable_end=_linkable_end(replica.checkpoints),
            is_clean=_is_trusted(replica.checkpoints),
        )
        loaded = load_log(
            task.partition.target,
            directory,
            _keeping_producers(task.config),
            _as_stopped(replica.checkpoints),
            fs,
            now_ms=task.now_ms,
            verify_trusted=task.link is LinkMode.COPY,
        )
        check_unchanged(replica.path, entries, fs)
        if not loaded.damage or number == len(replicas) - 1:
            break
    _settle(task, loaded, directory, fs)
    return _result(task, replica, loaded, folder, fs)


def _keeping_producers(config: LogConfig) -> LogConfig:
    """Return a config with which a load forgets no producer: the broker of the clone decides that."""
    return replace(config, compaction=replace(config.compaction, producer_id_expiration_ms=None))


def _is_trusted(checkpoints: PartitionCheckpoints) -> bool:
    """Return True after a clean stop, and for a bare copy, which no broker would cut either."""
    return checkpoints.clean_shutdown or checkpoints.recovery_point is None


def _as_stopped(checkpoints: PartitionCheckpoints) -> PartitionCheckpoints:
    return replace(checkpoints, clean_shutdown=_is_trusted(checkpoints))


def _linkable_end(checkpoints: PartitionCheckpoints) -> int:
    """Return the offset up to which no broker of the source truncates: fully replicated, and durable."""
    bounds = [each for each in (checkpoints.recovery_point, checkpoints.high_watermark) if each is not None]
    return min(bounds, default=0)


def _settle(task: CloneTask, loaded: LoadedLog, directory: Path, fs: Fs) -> None:
    """Leave the files that a clean stop leaves.

    Without a snapshot at the log end, a broker's start after a clean stop forgets every producer.
    """
    snapshot = directory / segment_file_name(loaded.log_end_offset, SegmentFileKind.SNAPSHOT)
    if loaded.producers.entries and not fs.exists(snapshot):
        fs.write_new(snapshot, [encode_snapshot(loaded.producers.entries.values())])
    write_partition_metadata(fs, directory / PARTITION_METADATA_FILE, task.topic_id)


def _result(task: CloneTask, replica: Replica, loaded: LoadedLog, folder: str, fs: Fs) -> PartitionClone:
    entries = loaded.producers.entries
    first_dirty = replica.checkpoints.first_dirty
    return PartitionClone(
        folder=folder,
        log_dir=str(replica.directory.path),
        files=_digested(task.to / folder, fs),
        log_start_offset=loaded.log_start_offset,
        log_end_offset=loaded.log_end_offset,
        first_base_offset=loaded.segments[0].base_offset,
        first_dirty=None if first_dirty is None else min(first_dirty, loaded.log_end_offset),
        leader_epoch=max(latest_epoch(loaded.leader_epochs), 0),
        log_bytes=sum(segment.log_bytes for segment in loaded.segments),
        producer_ids=frozenset(entries) | {entry.producer_id for entry in loaded.aborted},
        open_transactions=tuple(
            OpenTransaction(
                entry.producer_id, entry.producer_epoch, entry.coordinator_epoch, entry.current_txn_first_offset
            )
            for entry in entries.values()
            if entry.has_open_transaction
        ),
        repairs=tuple(str(repair) for repair in loaded.repairs if not repair.is_routine),
        damage="; ".join(map(str, loaded.damage)) or None,
    )


def _digested(directory: Path, fs: Fs) -> tuple[PublishedFile, ...]:
    """Make every file durable, and return them with their digests."""
    files = []
    for entry in fs.scan(directory):
        digest = hashlib.sha256()
        for chunk in file_chunks(directory / entry.name, entry.size_bytes):
            digest.update(chunk)
        fs.sync_file(directory / entry.name)
        files.append(PublishedFile(entry.name, entry.size_bytes, digest.hexdigest()))
    fs.sync_directory(directory)
    return tuple(files)
