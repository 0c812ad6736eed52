"""Appending to the metadata log of a stopped node that is the sole voter of its quorum.

    1. keep     write every file of __cluster_metadata-0 to __cluster_metadata-0.<run>.kept.tar in the log directory.
                After a crash, the node starts as before, because a broker ignores the archive.
    2. load     load the log as every start of the node does: cut a torn batch at the end, and rebuild indexes.
                After a crash, the node starts as before.
    3. append   append all batches in one write, in the last leader epoch of the log.
                After a crash, the next start cuts a torn batch, and the controller aborts an unfinished metadata
                transaction.  So if the write is complete, the node starts with the new records; otherwise it starts as
                before.
    4. sync     sync the log and its indexes, then write a producer snapshot at the log end.
                After a crash, the node starts with the new records.

The records take effect at the next election. The snapshots of the log remain valid, because all of them end below the
appended records.

Invariant: if the records need more than one batch, they are appended as one metadata transaction.

Source: Kafka 4.2.0, KafkaRaftLog.createLog (it recovers the whole log at each start), KafkaRaftClient.initialize,
ActivationRecordsGenerator.recordsForNonEmptyLog.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from sediment.engine.clone.log_end import AtOnce
from sediment.engine.directory.leader_epochs import latest_epoch
from sediment.engine.metadata.metadata_log_writer import MetadataLogWriter
from sediment.engine.metadata.topic_records import METADATA_VERSION
from sediment.segment_io.errors import CommitStateUnknownError, UsageError
from sediment.segment_io.format.names import (
    LEADER_EPOCH_FILE,
    METADATA_PARTITION,
    PART_SUFFIX,
    SegmentFileKind,
    parse_segment_file,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata, read_cluster_metadata
from sediment.segment_io.partition.checkpoint_files import read_leader_epochs

_TRANSACTION = "sediment adopt"
_CHUNK_BYTES = 1 << 20


def check_started(log_dir: Path, metadata: ClusterMetadata | None, fs: Fs, *, advice: str) -> ClusterMetadata:
    # A node that was never the active controller has no feature levels in its log. A controller writes feature levels
    # only into an empty log.
    epochs = read_leader_epochs(fs, log_dir / str(METADATA_PARTITION) / LEADER_EPOCH_FILE) or ()
    if metadata is None or METADATA_VERSION not in metadata.features or latest_epoch(epochs) < 1:
        raise UsageError(
            "the node of this directory has never been started, or its metadata log is empty",
            path=str(log_dir),
            advice=advice,
        )
    return metadata


def keep_metadata_log(log_dir: Path, kept_name: str, fs: Fs) -> None:
    """The archive gets the owner and mode of the log, because the log may contain password hashes."""
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
    """Append records to the metadata log as one atomic change; the directory's lock must be held."""
    writer = MetadataLogWriter(
        log_dir, metadata, fs, transaction=_TRANSACTION, clock=lambda: now_ms, scheduler=AtOnce()
    )
    try:
        writer.append(values)
    finally:
        writer.close()


def check_appended(log_dir: Path, topic_ids: set[str], fs: Fs) -> None:
    found = read_cluster_metadata(log_dir, fs)
    missing = topic_ids - set(() if found is None else found.topic_ids.values())
    if missing:
        raise CommitStateUnknownError(
            f"the metadata log lacks topic id {min(missing)} after the append",
            path=str(log_dir / str(METADATA_PARTITION)),
            advice="restore the log from its kept copy",
        )
