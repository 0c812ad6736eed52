"""The task of one partition: copy the best replica, bring the log into the state after a clean stop, digest the files.

    1. copy      copy the replica to <topic-N>.<run>-<attempt>.part/ in the clone, unless other tasks have copied it
    2. load      load the log as a broker does at its start; if it is damaged, try the next replica of the same rank
    3. rewrite   put changed names into the records of the coordinators
    4. end       cut the log and end its open transactions, if requested
    5. suppress  suppress the records whose keys are on the list of erased keys, if there is a list
    6. settle    write partition.metadata, and the producer snapshot at the log end (also before steps 3 and 4)
    7. compact   compact the log, if requested
    8. digest    make all files durable, and compute their SHA-256

Only the copy changes.

Invariant: if a starting broker would not notice the corruption of a log, the log is cloned byte for byte, and the
corruption is reported.
"""

from __future__ import annotations

import shutil
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sediment.compaction.last_data_batches import may_name_marker, with_data_offsets
from sediment.compaction.reencode.plan import Encoding
from sediment.compaction.rewrite.suppression import SuppressedKeys
from sediment.engine.clone.coordinator_rewrite import ClonedNames, RewriteCounts, rewrite_coordinator_log
from sediment.engine.clone.log_compaction import CORRUPT_BATCH, LogCompaction, compact_log, not_compacted
from sediment.engine.clone.log_end import change_end
from sediment.engine.clone.log_suppression import suppress_records
from sediment.engine.clone.options import LinkMode
from sediment.engine.clone.plan import ClonedPartition
from sediment.engine.copying.earlier_copy import EarlierFiles, name_in_folder
from sediment.engine.copying.partition_copy import CopiedFile, CopyMethod, CopyRules
from sediment.engine.copying.replica_copy import CopiedPieces, ReplicaCopy, is_loaded_unverified, replica_copy
from sediment.engine.directory.leader_epochs import latest_epoch
from sediment.engine.directory.loading.load_state import LoadCorruption, LoadMode
from sediment.engine.directory.loading.loaded_losses import losses_of
from sediment.engine.directory.loading.log_loader import LoadedLog, load_log
from sediment.engine.directory.missing_records import KnownOfLog, orphans_of
from sediment.engine.directory.output import LinkKind, sha256_of
from sediment.engine.directory.repair import Repair
from sediment.engine.log_config import LogConfig
from sediment.engine.replicas import Replica
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import (
    PART_SUFFIX,
    PARTITION_METADATA_FILE,
    Attempt,
    SegmentFileKind,
    TopicPartition,
    parse_segment_file,
    segment_file_name,
    with_suffix,
)
from sediment.segment_io.fs import FileStamp, Fs
from sediment.segment_io.manifest import ManifestFile
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints, write_partition_metadata
from sediment.segment_io.partition.listing import check_segments_are_files, list_log
from sediment.segment_io.partition.live_segments import as_loaded
from sediment.segment_io.partition.log_view import open_view
from sediment.segment_io.partition.producer_snapshots import encode_snapshot, parse_snapshot
from sediment.segment_io.stores import modes_of

_SHARED = "split"  # replaces the attempt in the name of a folder that several tasks share
_RULES = {
    LinkMode.COPY: CopyRules(),
    LinkMode.REFLINK: CopyRules(links=(LinkKind.REFLINK,), digests_links=False),
    LinkMode.HARD: CopyRules(links=(LinkKind.HARD,), digests_links=False),
}


@dataclass(frozen=True, slots=True)
class CloneTask:
    partition: ClonedPartition
    topic_id: str
    to: Path
    run_id: str
    config: LogConfig
    now_ms: int
    link: LinkMode = LinkMode.COPY
    log_bytes: int = 0
    names: ClonedNames | None = None
    """The names that the records of a coordinator's log may contain; None if the records are not changed."""

    ends_transactions: bool = False
    committing: frozenset[int] = frozenset()
    """The producers whose open transactions must be committed."""

    suppressed: SuppressedKeys | None = None
    """The keys whose records are suppressed; None if no suppression list is used."""

    compacts: bool = False
    encoding: Encoding | None = None
    """The new encoding of the records that the compaction keeps; if it is None, each batch keeps its codec."""

    earlier: EarlierFiles | None = None
    """The files of the partition in the earlier clone; this clone continues that clone."""

    pieces: CopiedPieces | None = None
    """The files of the best replica that other tasks have copied; None if this task copies them."""

    @property
    def changes_end(self) -> bool:
        cut = (self.partition.until_offset, self.partition.until_ms)
        return self.ends_transactions or any(each is not None for each in cut)

    @property
    def rules(self) -> CopyRules:
        # A log that this task changes shares no file with another directory.
        if self.changes_end or self.names is not None:
            return CopyRules()
        links = () if self.earlier is None else (LinkKind.REFLINK, LinkKind.HARD)
        return replace(_RULES[self.link], earlier_links=links)

    def weight(self) -> int:
        return self.log_bytes


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class PartitionClone:
    """A finished partition in `folder`, a directory of the clone; the names of `files` are relative to `folder`.

    `damage` describes corruption that a broker would not notice. `is_unchanged` is True if the earlier clone has the
    same files.
    """

    folder: str
    log_dir: str
    files: tuple[ManifestFile, ...]
    log_start_offset: int
    log_end_offset: int
    first_base_offset: int
    first_dirty: int | None
    leader_epoch: int
    log_bytes: int
    linked_bytes: int
    producer_ids: frozenset[int]
    open_transactions: tuple[OpenTransaction, ...]
    repairs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    damage: str | None = None
    rewrite: RewriteCounts | None = None
    ended_transactions: int = 0
    suppressed_records: int | None = None
    compaction: LogCompaction | None = None
    is_unchanged: bool = False


def clone_partition(task: CloneTask, attempt: str) -> PartitionClone:
    fs = Fs()
    folder = _folder(task, attempt)
    directory = task.to / folder
    replicas = task.partition.replicas
    for number, replica in enumerate(replicas):
        if fs.is_directory(directory):
            shutil.rmtree(directory)
        if replica.directory.at_uri is None:
            check_segments_are_files(replica.partition, replica.path, fs)
        copied = _copied(task, replica, None if number else task.pieces, attempt, fs)
        stamps = {entry.name: fs.file_stamp(directory / entry.name) for entry in fs.scan(directory)}
        checkpoints = _as_stopped(replica.checkpoints)
        note_producers_of_bare_copy(task.partition.target, directory, checkpoints, fs)
        loaded = load_log(
            task.partition.target,
            directory,
            keeping_producers(task.config),
            checkpoints,
            fs,
            now_ms=task.now_ms,
            mode=LoadMode(verify_trusted=task.link is LinkMode.COPY and not _is_known(task, copied)),
        )
        warnings = _warnings(task, replica, loaded, stamps, fs)
        if not loaded.damage or number == len(replicas) - 1:
            break
    if note_producers(task.partition.target, directory, loaded.log_start_offset, loaded.log_end_offset, fs):
        loaded = _reloaded(task, loaded, directory, fs)
    first_dirty, counts = replica.checkpoints.first_dirty, None
    if task.names is not None:
        counts, first_dirty = rewrite_coordinator_log(
            task.partition.target, directory, task.config, replica.checkpoints, task.names, fs, run_id=task.run_id
        )
        loaded = _reloaded(task, loaded, directory, fs)
    ended = 0
    if task.changes_end:
        ended = change_end(
            task.partition.target,
            directory,
            keeping_producers(task.config),
            PartitionCheckpoints(log_start=loaded.log_start_offset, clean_shutdown=True),
            fs,
            now_ms=task.now_ms,
            until_offset=task.partition.until_offset,
            until_ms=task.partition.until_ms,
            ends_transactions=task.ends_transactions,
            committing=task.committing,
        )
        loaded = _reloaded(task, loaded, directory, fs)
    suppressed = None
    if task.suppressed is not None:
        suppression = suppress_records(
            task.partition.target,
            directory,
            task.suppressed,
            task.config,
            _checkpoints(loaded, first_dirty),
            fs,
            Attempt(task.run_id, attempt),
        )
        suppressed, first_dirty = suppression.records, suppression.first_dirty
        loaded = _reloaded(task, loaded, directory, fs)
    _settle(task, loaded, directory, fs)
    compaction = None
    if task.compacts:
        compaction = _compact(task, loaded, first_dirty, directory, attempt, fs)
        first_dirty = compaction.first_dirty
        loaded = _reloaded(task, loaded, directory, fs)
    known = {each.file.name.rpartition("/")[2]: each.file for each in copied}
    _take_modes(replica, directory, known, fs)
    files = _made_durable(directory, known, stamps, fs)
    linked_bytes = sum(each.file.size_bytes for each in copied if each.method is not CopyMethod.COPIED)
    result = _result(replica, loaded, folder, files, linked_bytes, first_dirty)
    is_unchanged = task.earlier is not None and task.earlier.are(files)
    if task.earlier is not None and _is_known(task, copied):
        result = replace(result, damage=result.damage or task.earlier.damage)
    if compaction is not None:
        result = replace(result, damage=result.damage or compaction.damage)
    return replace(
        result,
        warnings=warnings,
        rewrite=counts,
        ended_transactions=ended,
        suppressed_records=suppressed,
        compaction=compaction,
        is_unchanged=is_unchanged,
    )


def _warnings(task: CloneTask, replica: Replica, loaded: LoadedLog, names: Iterable[str], fs: Fs) -> tuple[str, ...]:
    checkpoints = replica.checkpoints
    known = KnownOfLog(
        # A clone need not know the policy of a topic that has none of its own.
        compacts=task.config.compacts or None,
        other_nodes=None,
        high_watermark=checkpoints.high_watermark,
        recovery_point=checkpoints.recovery_point,
        first_dirty=checkpoints.first_dirty,
    )
    losses = losses_of(loaded, known, orphans_of(names), fs)
    return (*(f"{lost.what}; the clone lacks them too" for lost in losses.missing), *losses.warnings)


def _is_known(task: CloneTask, copied: Iterable[CopiedFile]) -> bool:
    earlier = {} if task.earlier is None else task.earlier.files
    known = ((earlier.get(name_in_folder(each.file)), each.file) for each in copied)
    return all(one is not None and None is not one.sha256 == file.sha256 for one, file in known)


def _compact(
    task: CloneTask, loaded: LoadedLog, first_dirty: int | None, directory: Path, attempt: str, fs: Fs
) -> LogCompaction:
    partition, checkpoints = task.partition.target, _checkpoints(loaded, first_dirty)
    if loaded.damage:
        reason = "; ".join(map(str, loaded.damage))
        return not_compacted(list_log(partition, directory, fs), checkpoints, CORRUPT_BATCH, reason)
    return compact_log(
        partition,
        directory,
        task.config.compaction,
        checkpoints,
        fs,
        now_ms=task.now_ms,
        attempt=Attempt(task.run_id, attempt),
        encoding=task.encoding,
    )


def _checkpoints(loaded: LoadedLog, first_dirty: int | None) -> PartitionCheckpoints:
    end = loaded.log_end_offset
    return PartitionCheckpoints(
        first_dirty=first_dirty,
        log_start=loaded.log_start_offset,
        high_watermark=end,
        recovery_point=end,
        high_watermark_file=True,
        clean_shutdown=True,
    )


def _reloaded(task: CloneTask, before: LoadedLog, directory: Path, fs: Fs) -> LoadedLog:
    checkpoints = PartitionCheckpoints(log_start=before.log_start_offset, clean_shutdown=True)
    config = keeping_producers(task.config)
    again = load_log(task.partition.target, directory, config, checkpoints, fs, now_ms=task.now_ms)
    return replace(again, repairs=(*before.repairs, *again.repairs), damage=before.damage)


def shared_copy(task: CloneTask, fs: Fs) -> ReplicaCopy:
    return _copy_of(task, task.partition.replicas[0], _folder(task, _SHARED), fs)


def _folder(task: CloneTask, attempt: str) -> str:
    return with_suffix(str(task.partition.target), f".{task.run_id}-{attempt}{PART_SUFFIX}")


def _copy_of(task: CloneTask, replica: Replica, folder: str, fs: Fs) -> ReplicaCopy:
    return replica_copy(
        replica, fs, to=task.to, folder=folder, run_id=task.run_id, earlier=task.earlier, rules=task.rules
    )


def _copied(
    task: CloneTask, replica: Replica, pieces: CopiedPieces | None, attempt: str, fs: Fs
) -> tuple[CopiedFile, ...]:
    folder = _folder(task, attempt)
    if pieces is not None and pieces.taken_over(folder, fs):
        pieces.copy.check_listing(fs)
        return pieces.files
    work = _copy_of(task, replica, folder, fs)
    copied = work.copied(attempt)
    work.check_listing(fs)
    return copied


def note_producers(
    partition: TopicPartition, directory: Path, log_start_offset: int, log_end_offset: int, fs: Fs
) -> bool:
    """Write the producer snapshot at the log end if it is missing or of Kafka 0.11; return True if it was written.

    If this snapshot is missing when a broker starts after a clean stop, the broker forgets every producer, and an open
    transaction never ends. The producers are rebuilt from the batches if the copy has no snapshot.

    If it names markers as last offsets, as Kafka 0.11 does, the cleaner of a newer broker would drop the last data
    batches of these producers, and with them the sequences that a replica rebuilds from the log.
    """
    snapshot = directory / segment_file_name(log_end_offset, SegmentFileKind.SNAPSHOT)
    exists = fs.exists(snapshot)
    if exists and not any(map(may_name_marker, parse_snapshot(fs.read_bytes(snapshot), path=str(snapshot)))):
        return False
    view = open_view(
        list_log(partition, directory, fs),
        PartitionCheckpoints(log_start=log_start_offset, clean_shutdown=True),
        fs,
        now_ms=0,
        producer_id_expiration_ms=None,
        on_corruption=_ignore_corruption,
    )
    producers = with_data_offsets(view, fs)
    if not producers or (exists and producers == view.producers):
        return False
    if exists:
        fs.replace_file(snapshot, encode_snapshot(producers))
    else:
        fs.write_new(snapshot, [encode_snapshot(producers)])
    return True


def note_producers_of_bare_copy(
    partition: TopicPartition, directory: Path, checkpoints: PartitionCheckpoints, fs: Fs
) -> None:
    """Write a durable producer snapshot at the log end before the log is loaded, if the log has no snapshots.

    Otherwise, loading after a clean stop would assume that the log has no producers.  The load would write an empty
    snapshot, which later starts would read.

    Source: kafka-log 05 §6.
    """
    files = (parse_segment_file(entry.name) for entry in fs.scan(directory))
    if not checkpoints.clean_shutdown or any(file and file.kind is SegmentFileKind.SNAPSHOT for file in files):
        return
    try:
        view = open_view(
            as_loaded(list_log(partition, directory, fs), fs),
            checkpoints,
            fs,
            now_ms=0,
            producer_id_expiration_ms=None,
            on_corruption=_ignore_corruption,
        )
    except SedimentError:
        return  # the load of the log will report the error
    if view.producers:
        snapshot = directory / segment_file_name(view.log_end_offset, SegmentFileKind.SNAPSHOT)
        like = view.listing.file(view.listing.segments[-1], SegmentFileKind.LOG)
        fs.replace_file(snapshot, encode_snapshot(view.producers), like=like)


def _ignore_corruption(_error: SedimentError) -> None:
    return


def keeping_producers(config: LogConfig) -> LogConfig:
    """Return a config with which a load keeps every producer; the clone's broker decides when producers expire."""
    return replace(config, compaction=replace(config.compaction, producer_id_expiration_ms=None))


def _as_stopped(checkpoints: PartitionCheckpoints) -> PartitionCheckpoints:
    return replace(checkpoints, clean_shutdown=is_loaded_unverified(checkpoints))


def _settle(task: CloneTask, loaded: LoadedLog, directory: Path, fs: Fs) -> None:
    """Write and remove snapshots as a clean stop does (one at the log end, none past it); write partition.metadata."""
    for entry in fs.scan(directory):
        parsed = parse_segment_file(entry.name)
        if parsed and parsed.kind is SegmentFileKind.SNAPSHOT and parsed.base_offset > loaded.log_end_offset:
            fs.unlink(directory / entry.name)
    note_producers(task.partition.target, directory, loaded.log_start_offset, loaded.log_end_offset, fs)
    write_partition_metadata(fs, directory / PARTITION_METADATA_FILE, task.topic_id)


def describe_log(
    replica: Replica, loaded: LoadedLog, *, repairs: Iterable[Repair], damage: Iterable[LoadCorruption]
) -> PartitionClone:
    found = _result(replica, loaded, "", (), 0, replica.checkpoints.first_dirty)
    return replace(
        found,
        repairs=tuple(str(repair) for repair in repairs if not repair.is_routine),
        damage="; ".join(map(str, damage)) or None,
    )


def _result(
    replica: Replica,
    loaded: LoadedLog,
    folder: str,
    files: tuple[ManifestFile, ...],
    linked_bytes: int,
    first_dirty: int | None,
) -> PartitionClone:
    entries = loaded.producers.entries
    return PartitionClone(
        folder=folder,
        log_dir=replica.directory.shown,
        files=files,
        log_start_offset=loaded.log_start_offset,
        log_end_offset=loaded.log_end_offset,
        first_base_offset=loaded.segments[0].base_offset,
        first_dirty=None if first_dirty is None else min(first_dirty, loaded.log_end_offset),
        leader_epoch=max(latest_epoch(loaded.leader_epochs), 0),
        log_bytes=sum(segment.log_bytes for segment in loaded.segments),
        linked_bytes=linked_bytes,
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


def _take_modes(replica: Replica, directory: Path, copied: Container[str], fs: Fs) -> None:
    """Make the folder, and the files that are not copies, as private as the replica; copies have its modes already."""
    modes = modes_of([replica.directory.store], str(replica.partition))
    new = [directory / entry.name for entry in fs.scan(directory) if entry.name not in copied]
    for path, mode in (*((path, modes.file) for path in new), (directory, modes.folder)):
        if mode is None:
            fs.share(path)
        else:
            fs.set_mode(path, mode)


def _made_durable(
    directory: Path, copied: Mapping[str, ManifestFile], stamps: Mapping[str, FileStamp | None], fs: Fs
) -> tuple[ManifestFile, ...]:
    files = []
    for entry in fs.scan(directory):
        path = directory / entry.name
        if entry.name in copied and fs.file_stamp(path) == stamps.get(entry.name):
            files.append(replace(copied[entry.name], name=entry.name))
        else:
            fs.sync_file(path)
            files.append(ManifestFile(entry.name, entry.size_bytes, sha256_of(path, entry.size_bytes)))
    fs.sync_directory(directory)
    return tuple(files)
