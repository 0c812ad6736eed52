"""Adopting a log directory in place: folders that lost their cluster become a node's own.

    1. load       every partition, as a broker's start does, and repair it
    2. settle     producer snapshot at the log end, partition.metadata
    3. keep       a copy of each file beside the partitions that is replaced, as <name>.<run>.kept
    4. write      checkpoints, bootstrap.checkpoint, marker of a clean stop, meta.properties

Only a directory without a metadata log is adopted: a node begins its metadata log from bootstrap.checkpoint only if it
has none.  Brokers ignore the kept copies.

Invariants: no properties file is overwritten.  meta.properties changes last, so that a run that broke off leaves the
directory to the node that it belonged to, or to none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sediment.engine.clone.clone_directory import SERVER_PROPERTIES_FILE, StartFiles, checkpoint_files, start_files
from sediment.engine.clone.log_end import change_end
from sediment.engine.clone.partition_clone import PartitionClone, describe_log, keeping_producers, note_producers
from sediment.engine.clone.plan import ClonedPartition
from sediment.engine.config import LogConfig
from sediment.engine.directory.loading.log_loader import load_log
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import METADATA_PARTITION, PARTITION_METADATA_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_partition_metadata, write_partition_metadata
from sediment.segment_io.partition.log_dir_checkpoints import PartitionCheckpoints

KEPT_SUFFIX = ".kept"


def check_adoptable(log_dir: Path, fs: Fs) -> None:
    """Check that a node would begin its metadata log from `bootstrap.checkpoint`.

    Raises:
        UsageError: the directory has a metadata log.
    """
    if fs.exists(log_dir / str(METADATA_PARTITION)):
        raise UsageError(
            f"the directory holds {METADATA_PARTITION}, so it has a cluster",
            path=str(log_dir),
            advice="clone it, or move that folder away if its cluster is lost",
        )


def adopt_partition(
    partition: ClonedPartition,
    topic_id: str,
    config: LogConfig,
    fs: Fs,
    *,
    now_ms: int,
    ends_transactions: bool,
) -> PartitionClone:
    """Bring a partition into the state of a clean stop, in place; the lock of its directory must be held.

    Raises:
        CorruptDataError, UnsupportedDataError: a broker would refuse to load the partition.
        OSError: the disk failed.
    """
    (replica,) = partition.replicas
    name, directory, config = partition.target, replica.path, keeping_producers(config)
    loaded = load_log(name, directory, config, replica.checkpoints, fs, now_ms=now_ms, verify_trusted=True)
    clean = PartitionCheckpoints(log_start=loaded.log_start_offset, clean_shutdown=True)
    repairs, damage = loaded.repairs, loaded.damage
    note_producers(name, directory, loaded.log_start_offset, loaded.log_end_offset, fs)
    if ends_transactions:
        change_end(name, directory, config, clean, fs, now_ms=now_ms, ends_transactions=True)
    loaded = load_log(name, directory, config, clean, fs, now_ms=now_ms)
    note_producers(name, directory, loaded.log_start_offset, loaded.log_end_offset, fs)
    if read_partition_metadata(fs, directory / PARTITION_METADATA_FILE) is None:
        write_partition_metadata(fs, directory / PARTITION_METADATA_FILE, topic_id)
    return describe_log(replica, loaded, repairs=repairs, damage=damage)


def write_start_files(
    log_dir: Path,
    clones: Mapping[TopicPartition, PartitionClone],
    start: StartFiles,
    fs: Fs,
    *,
    run_id: str,
    now_ms: int,
) -> tuple[str, ...]:
    """Write the files of the whole directory; return the names of the copies kept of those replaced.

    The properties file is written only if there is none.
    """
    kept = []
    for name, content in (*checkpoint_files(clones), *start_files(start, now_ms)):
        path = log_dir / name
        if fs.exists(path):
            if name == SERVER_PROPERTIES_FILE:
                continue
            copy = log_dir / f"{name}.{run_id}{KEPT_SUFFIX}"
            fs.write_new(copy, [fs.read_bytes(path)])
            fs.sync_file(copy)
            kept.append(copy.name)
            fs.sync_directory(log_dir)
        fs.replace_file(path, content, like=log_dir)
    return tuple(kept)
