"""Appending to the metadata log of a stopped node that is the sole voter of its quorum.

    1. keep     every file of __cluster_metadata-0 -> __cluster_metadata-0.<run>.kept.tar in the log directory
                After a crash, the node starts as before: a broker ignores the archive.
    2. load     the log as every start of the node does: cut a torn batch at the end, rebuild indexes
                After a crash, the node starts as before.
    3. append   all batches in one write, in the last leader epoch of the log
                After a crash, the next start cuts a torn batch, and the controller aborts an unfinished metadata
                transaction.  So the node starts as adopted if the write is complete, otherwise as before.
    4. sync     the log and its indexes, then write a producer snapshot at the log end
                After a crash, the node starts as adopted.

The records take effect at the next election: a sole voter wins it immediately, and then every record of its log is
committed.  The log's snapshots remain valid, because they all end below the appended records.

Invariant: records that need more than one batch are appended as one metadata transaction.

Source: Kafka 4.2.0, KafkaRaftLog.createLog (it recovers the whole log at each start), KafkaRaftClient.initialize,
ActivationRecordsGenerator.recordsForNonEmptyLog.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from sediment.compaction.config import CompactionConfig
from sediment.engine.clone.features import METADATA_VERSION
from sediment.engine.clone.log_end import AtOnce
from sediment.engine.config import LogConfig
from sediment.engine.directory.leader_epochs import latest_epoch
from sediment.engine.live.log.partition_log import AppendOrigin, PartitionLog
from sediment.segment_io.errors import CommitStateUnknownError, UsageError
from sediment.segment_io.format.layout import INT32_MAX, INT64_MAX
from sediment.segment_io.format.names import (
    LEADER_EPOCH_FILE,
    METADATA_PARTITION,
    PART_SUFFIX,
    SegmentFileKind,
    parse_segment_file,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_batches import (
    abort_batch,
    data_batches,
    needs_transaction,
    transaction_batches,
)
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata, read_cluster_metadata
from sediment.segment_io.partition.checkpoint_files import read_leader_epochs
from sediment.segment_io.partition.log_dir_checkpoints import PartitionCheckpoints

_TRANSACTION = "sediment adopt"
_TRANSACTIONS_SINCE = 13  # metadata.version: 3.6-IV1
_CONFIG = LogConfig(compaction=CompactionConfig(max_message_bytes=INT32_MAX), segment_ms=INT64_MAX)
# A node verifies every batch of its metadata log at each start.
_UNVERIFIED = PartitionCheckpoints(recovery_point=0)
_CHUNK_BYTES = 1 << 20


def check_started(log_dir: Path, metadata: ClusterMetadata | None, fs: Fs) -> ClusterMetadata:
    """Return the metadata of a node that has been the active controller at least once.

    A node that never was the active controller has no feature levels in its log.  Its controller would not write them
    after other records.

    Raises:
        UsageError: the node has never started.
        CorruptCheckpointError: the leader epochs of the log are malformed.
    """
    epochs = read_leader_epochs(fs, log_dir / str(METADATA_PARTITION) / LEADER_EPOCH_FILE) or ()
    if metadata is None or METADATA_VERSION not in metadata.features or latest_epoch(epochs) < 1:
        raise UsageError(
            "the node of this directory has never been started, or its metadata log is empty",
            path=str(log_dir),
            advice="move the foreign folders away, start the node once, stop it, and move them back",
        )
    return metadata


def check_fits(values: Sequence[bytes], metadata: ClusterMetadata) -> None:
    """Check that the records can be appended as one change of the cluster.

    Raises:
        UsageError: the records need several batches, and the cluster does not support metadata transactions.
    """
    version = metadata.features[METADATA_VERSION]
    if needs_transaction(values) and version < _TRANSACTIONS_SINCE:
        raise UsageError(
            f"{len(values)} records need a metadata transaction, which metadata.version {version} does not have",
            advice="upgrade the cluster's metadata.version first, or adopt fewer folders at a time",
        )


def keep_metadata_log(log_dir: Path, kept_name: str, fs: Fs) -> None:
    """Write a durable archive of every file of the metadata log.

    The archive gets the log's owner and mode, because the log may hold password hashes.
    """
    directory = log_dir / str(METADATA_PARTITION)
    logs = [
        entry.name
        for entry in fs.scan(directory)
        if (file := parse_segment_file(entry.name)) and file.kind is SegmentFileKind.LOG
    ]
    part = log_dir / f"{kept_name}{PART_SUFFIX}"
    fs.write_new(part, _archive(directory, fs))
    fs.adopt_owner(part, directory / logs[-1])
    fs.sync_file(part)
    fs.rename(part, log_dir / kept_name)
    fs.sync_directory(log_dir)


def _archive(directory: Path, fs: Fs) -> Iterator[bytes]:
    """Yield a tar archive of a directory and its files."""
    names = [entry.name for entry in fs.scan(directory) if entry.is_file]
    yield _header(directory, directory.name, tarfile.DIRTYPE, 0)
    for name in names:
        path = directory / name
        size_bytes = path.stat().st_size
        yield _header(path, f"{directory.name}/{name}", tarfile.REGTYPE, size_bytes)
        for position in range(0, size_bytes, _CHUNK_BYTES):
            yield fs.read_range(path, position, min(_CHUNK_BYTES, size_bytes - position))
        yield bytes(-size_bytes % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _header(path: Path, name: str, kind: bytes, size_bytes: int) -> bytes:
    status = path.stat()
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mtime = kind, size_bytes, status.st_mtime
    info.mode, info.uid, info.gid = status.st_mode & 0o7777, status.st_uid, status.st_gid
    return info.tobuf(tarfile.PAX_FORMAT)


def append_records(log_dir: Path, values: Sequence[bytes], metadata: ClusterMetadata, fs: Fs, *, now_ms: int) -> None:
    """Append records to the metadata log, as one change; the directory's lock must be held.

    `metadata` is the cluster state after replaying the log.

    Raises:
        CommitStateUnknownError: the append broke off; the log may or may not have the records.
        CorruptDataError, OSError: the log cannot be loaded; it was not changed.
    """
    with PartitionLog.open(
        METADATA_PARTITION,
        log_dir / str(METADATA_PARTITION),
        _CONFIG,
        _UNVERIFIED,
        fs,
        clock=lambda: now_ms,
        scheduler=AtOnce(),
        verify_transactions=False,
    ) as log:
        batches = b"".join(_batches(values, metadata, log.log_end_offset, log.latest_epoch, now_ms))
        try:
            log.append_as_leader(batches, log.latest_epoch, origin=AppendOrigin.RAFT_LEADER)
            log.flush(force_last_segment=True)
        except Exception as error:
            raise CommitStateUnknownError(
                f"the append to the metadata log broke off: {error}",
                partition=str(METADATA_PARTITION),
                path=str(log.directory),
                advice="run again: it finds out if the log has the records",
            ) from error


def _batches(
    values: Sequence[bytes], metadata: ClusterMetadata, base_offset: int, leader_epoch: int, now_ms: int
) -> Iterator[bytes]:
    if metadata.has_open_transaction:
        # A controller does the same at its start.  Without this batch, the records would join the open transaction.
        yield abort_batch(base_offset=base_offset, leader_epoch=leader_epoch, now_ms=now_ms, reason=_TRANSACTION)
        base_offset += 1
    if needs_transaction(values):
        yield from transaction_batches(
            values, base_offset=base_offset, leader_epoch=leader_epoch, now_ms=now_ms, name=_TRANSACTION
        )
    else:
        yield from data_batches(values, base_offset=base_offset, leader_epoch=leader_epoch, now_ms=now_ms)


def check_appended(log_dir: Path, topic_ids: set[str], fs: Fs) -> None:
    """Check that the metadata log has the topics after the append.

    Raises:
        CommitStateUnknownError: a topic is missing.
    """
    found = read_cluster_metadata(log_dir, fs)
    missing = topic_ids - set(() if found is None else found.topic_ids.values())
    if missing:
        raise CommitStateUnknownError(
            f"the metadata log lacks topic id {min(missing)} after the append",
            path=str(log_dir / str(METADATA_PARTITION)),
            advice="restore the log from its kept copy",
        )
