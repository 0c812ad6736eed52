"""Adoption of a log directory in place: partition folders without a cluster become topics of a node.

    1. load       load every partition as a broker does at its start, and repair it
    2. settle     write partition.metadata, and a producer snapshot at the log end
    3. keep       copy every file that step 4 will replace to <name>.<run>.kept
    4. write      without a metadata log, write the checkpoints, bootstrap.checkpoint, the marker of a clean stop and
                  meta.properties; with one, add entries to the checkpoints, then records to the metadata log
                  (`metadata_append`)

If a broker starts before the last write of step 4, the folders still belong to no topic. The broker renames the folders
to `-stray`, as it would have done before the adoption, and leaves their records unchanged.  partition.metadata is
written before the metadata records of its topic. Without this file, a broker would rename the folder to `-stray` even
if the metadata contains the topic.

Invariants: no properties file is overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from sediment.engine.clone.clone_directory import StartFiles, checkpoint_files, start_files
from sediment.engine.clone.log_end import change_end
from sediment.engine.clone.partition_clone import (
    PartitionClone,
    describe_log,
    keeping_producers,
    note_producers,
    note_producers_of_bare_copy,
)
from sediment.engine.clone.plan import ClonedPartition
from sediment.engine.directory.dry_run_overlay import OverlayFs, overlay_of
from sediment.engine.directory.loading.load_state import LoadMode
from sediment.engine.directory.loading.log_loader import LoadedLog, load_log
from sediment.engine.directory.missing_records import KnownOfLog, LogCut, missing_after_cut
from sediment.engine.log_config import LogConfig
from sediment.engine.replicas import Replica
from sediment.segment_io.errors import RecordsWouldBeLostError, SourceChangedError, UsageError
from sediment.segment_io.format.checkpoints import parse_offset_checkpoint
from sediment.segment_io.format.names import (
    BOOTSTRAP_FILE,
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    METADATA_PARTITION,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    SERVER_PROPERTIES_FILE,
    TopicPartition,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import (
    PartitionCheckpoints,
    read_partition_metadata,
    update_offset_checkpoint,
    write_partition_metadata,
)

KEPT_SUFFIX = ".kept"
CHECKPOINT_FILES = (RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, CLEANER_FILE)
START_FILES = (*CHECKPOINT_FILES, BOOTSTRAP_FILE, CLEAN_SHUTDOWN_FILE, META_PROPERTIES_FILE, SERVER_PROPERTIES_FILE)
"""Files that `write_start_files` may write; an existing server properties file stays as it is."""


def has_metadata_folder(log_dir: Path, fs: Fs) -> bool:
    return fs.exists(log_dir / str(METADATA_PARTITION))


# ----------------------------------------------------------------------------------------------------------- partitions
def survey_adoption(partition: ClonedPartition, config: LogConfig, fs: Fs, *, now_ms: int) -> PartitionClone:
    (replica,) = partition.replicas
    with overlay_of(replica.path) as overlay:
        loaded, first = _load(partition.target, replica, overlay, keeping_producers(config), OverlayFs(), now_ms)
    return describe_log(replica, loaded, repairs=first.repairs, damage=first.damage)


def adopt_partition(
    partition: ClonedPartition,
    topic_id: str,
    config: LogConfig,
    fs: Fs,
    *,
    now_ms: int,
    ends_transactions: bool,
    has_coordinator: bool = True,
) -> PartitionClone:
    """Change a partition, in place, to the state after a clean stop; the lock of its directory must be held.

    Raises:
        SourceChangedError: the folder has another topic id than `topic_id`; nothing was changed.
    """
    (replica,) = partition.replicas
    name, directory, config = partition.target, replica.path, keeping_producers(config)
    _check_topic_id(partition, topic_id, fs)
    loaded, first = _load(name, replica, directory, config, fs, now_ms)
    found = describe_log(replica, loaded, repairs=first.repairs, damage=first.damage)
    if not (has_coordinator or ends_transactions):
        check_no_open_transaction(found)
    if ends_transactions:
        clean = _clean(loaded)
        change_end(name, directory, config, clean, fs, now_ms=now_ms, ends_transactions=True)
        loaded = load_log(name, directory, config, clean, fs, now_ms=now_ms)
        note_producers(name, directory, loaded.log_start_offset, loaded.log_end_offset, fs)
    if read_partition_metadata(fs, directory / PARTITION_METADATA_FILE) is None:
        write_partition_metadata(fs, directory / PARTITION_METADATA_FILE, topic_id)
    return describe_log(replica, loaded, repairs=first.repairs, damage=first.damage)


def _check_topic_id(partition: ClonedPartition, topic_id: str, fs: Fs) -> None:
    """Check that a broker would find the folder to be of the topic; it sets a folder with another id aside."""
    (replica,) = partition.replicas
    file = replica.path / PARTITION_METADATA_FILE
    stored = read_partition_metadata(fs, file)
    if stored not in (None, topic_id):
        raise SourceChangedError(
            f"{PARTITION_METADATA_FILE} has topic id {stored}, and the topic would get id {topic_id}",
            partition=str(partition.target),
            path=str(file),
            advice="run again; the file could not be read before, or it is from another topic of this name",
        )


def check_no_open_transaction(clone: PartitionClone) -> None:
    """An open transaction would never end, because its coordinator is in another cluster."""
    if clone.open_transactions:
        first = min(clone.open_transactions, key=lambda each: each.first_offset)
        raise UsageError(
            f"an open transaction begins at offset {first.first_offset}, and the coordinator of its producer "
            f"{first.producer_id} (epoch {first.producer_epoch}) is not in this cluster",
            advice="give --abort-open-transactions; without it, read_committed consumers stop at that offset",
        )


def _load(
    name: TopicPartition, replica: Replica, directory: Path, config: LogConfig, fs: Fs, now_ms: int
) -> tuple[LoadedLog, LoadedLog]:
    checkpoints = _checkpoints_of(replica)
    note_producers_of_bare_copy(name, directory, checkpoints, fs)
    first = load_log(
        name,
        directory,
        config,
        checkpoints,
        fs,
        now_ms=now_ms,
        mode=LoadMode(verify_trusted=True, on_cut=partial(_refuse_losses, name, checkpoints)),
    )
    note_producers(name, directory, first.log_start_offset, first.log_end_offset, fs)
    return load_log(name, directory, config, _clean(first), fs, now_ms=now_ms), first


def _refuse_losses(partition: TopicPartition, checkpoints: PartitionCheckpoints, cut: LogCut) -> None:
    """Refuse a cut that loses records, because an adoption cannot put them back."""
    known = KnownOfLog(None, (), checkpoints.high_watermark, checkpoints.recovery_point, checkpoints.first_dirty)
    lost = missing_after_cut(cut, known)
    if lost is not None:
        raise RecordsWouldBeLostError(
            lost.what,
            partition=str(partition),
            advice="run `sediment recover` first, which keeps the files before it cuts the log off",
        )


def _checkpoints_of(replica: Replica) -> PartitionCheckpoints:
    # A log without a recovery point is a bare copy; it is loaded as after a clean stop. If it were loaded as after a
    # crash, the load would verify the copy from its first batch, and would cut off everything after a corrupt batch,
    # including good batches.
    found, listed = replica.checkpoints, replica.directory.checkpoints.recovery_point or {}
    return replace(found, clean_shutdown=found.clean_shutdown or replica.partition not in listed)


def _clean(loaded: LoadedLog) -> PartitionCheckpoints:
    return PartitionCheckpoints(log_start=loaded.log_start_offset, clean_shutdown=True)


# ------------------------------------------------------------------------------------------ files beside the partitions
def write_start_files(
    log_dir: Path,
    clones: Mapping[TopicPartition, PartitionClone],
    start: StartFiles,
    fs: Fs,
    *,
    run_id: str,
    now_ms: int,
) -> tuple[str, ...]:
    """meta.properties is replaced last.

    So after an interrupted run, the directory still belongs to its former node, or to no node. The server properties
    file is written only if it does not exist.
    """
    kept = []
    for name, content in (*checkpoint_files(clones), *start_files(start, now_ms)):
        if fs.exists(log_dir / name):
            if name == SERVER_PROPERTIES_FILE:
                continue
            kept.append(_keep(log_dir, name, fs, run_id))
        fs.replace_file(log_dir / name, content, like=log_dir)
    return tuple(kept)


def add_to_checkpoints(
    log_dir: Path, clones: Mapping[TopicPartition, PartitionClone], fs: Fs, *, run_id: str
) -> tuple[str, ...]:
    """Old entries of these partitions are replaced or removed.

    The log start checkpoint is created if an entry needs it.
    """
    kept = []
    files = {CLEANER_FILE: b"0\n0\n", **dict(checkpoint_files(clones))}
    for name, content in files.items():
        entries = parse_offset_checkpoint(content)
        if fs.exists(log_dir / name):
            kept.append(_keep(log_dir, name, fs, run_id))
        elif name != LOG_START_FILE:
            continue
        update_offset_checkpoint(fs, log_dir / name, entries, clones.keys() - entries.keys(), like=log_dir)
    return tuple(kept)


def _keep(log_dir: Path, name: str, fs: Fs, run_id: str) -> str:
    copy = log_dir / f"{name}.{run_id}{KEPT_SUFFIX}"
    fs.write_new(copy, [fs.read_bytes(log_dir / name)])
    fs.adopt_owner(copy, log_dir / name)
    fs.sync_file(copy)
    fs.sync_directory(log_dir)
    return copy.name
