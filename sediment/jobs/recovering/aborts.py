"""Aborts of open transactions in `recover --abort-open-transactions`, after the logs of a directory were loaded.

    1. survey    find the open transactions, and ask; transactions that a repair opens later are left open
    2. take      remove the marker of a clean stop, so that a crash counts as an unclean stop
    3. abort     write the markers into a new segment of each log, and load the log again
    4. settle    the high watermark moves past the markers, because the log has no other replica; the marker returns

`engine.clone.in_place_aborts` decides which transactions may be aborted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sediment.engine.clone.coordinator_rewrite import coordinated_transactions
from sediment.engine.clone.in_place_aborts import NOT_ASKED, Coordinators, LeftOpen, OwningCluster, left_open
from sediment.engine.clone.log_end import abort_transactions
from sediment.engine.clone.source import open_log_dir, open_source
from sediment.engine.directory.loading.log_loader import LoadedLog, load_log
from sediment.engine.directory.repair import Repair
from sediment.engine.log_config import LogConfig
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.meta_properties import ZOOKEEPER_META_VERSION
from sediment.segment_io.format.names import (
    HIGH_WATERMARK_FILE,
    RECOVERY_POINT_FILE,
    SegmentFileKind,
    TopicPartition,
    segment_file_name,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import TRANSACTION_STATE
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints, update_offset_checkpoint
from sediment.segment_io.partition.clean_shutdown_file import CleanShutdown, take_clean_shutdown
from sediment.segment_io.partition.hanging_transactions import describe_open_transaction
from sediment.segment_io.partition.producer_state import ProducerEntry
from sediment.segment_io.partition.read_committed import open_transactions
from sediment.segment_io.partition.sources import Source


@dataclass(frozen=True, slots=True)
class AbortedLog:
    """A log after the markers were written, or a log whose transactions all stay open.

    `repairs` describe the markers, and `undo` says how to remove them.
    """

    log: LoadedLog
    repairs: tuple[Repair, ...] = ()
    left_open: tuple[LeftOpen, ...] = ()
    undo: str | None = None


@dataclass(frozen=True, slots=True)
class _Cluster:
    owner: OwningCluster
    coordinators: Coordinators


@dataclass(slots=True)
class DirectoryAborts:
    taken: CleanShutdown | None = None
    log_ends: dict[TopicPartition, int] = field(default_factory=dict)
    has_failed: bool = False


class Aborts:
    """The aborts of one run; the locks of the directories are held, except in a dry run."""

    def __init__(self, directories: Sequence[SelectedDirectory], fs: Fs, *, now_ms: int, dry_run: bool) -> None:
        self._fs = fs
        self._now_ms = now_ms
        self._dry_run = dry_run
        self._clusters = _clusters(directories, fs)
        self._approved: frozenset[tuple[Path, TopicPartition, int, int]] | None = None
        self._in_directory: dict[Path, DirectoryAborts] = {}

    def survey(self, directories: Sequence[SelectedDirectory]) -> tuple[str, ...]:
        """Find the transactions that the run may abort, and return a sentence for each.

        The run then aborts no other transaction.
        """
        approved, sentences = set(), []
        for directory in directories:
            for partition in directory.partitions:
                for entry in self._open_now(directory, partition):
                    if self._why_left_open(directory.path, partition, entry) is None:
                        approved.add((directory.path, partition, entry.producer_id, entry.current_txn_first_offset))
                        sentences.append(f"{partition}: {describe_open_transaction(entry, self._now_ms)}")
        self._approved = frozenset(approved)
        return tuple(sentences)

    def _open_now(self, directory: SelectedDirectory, partition: TopicPartition) -> tuple[ProducerEntry, ...]:
        source = Source(partition, directory.path / str(partition))
        try:
            return open_transactions(source, directory.checkpoints.of(partition), self._fs)
        except (SedimentError, OSError):
            return ()  # the load will report the error

    def _why_left_open(self, log_dir: Path, partition: TopicPartition, entry: ProducerEntry) -> LeftOpen | None:
        cluster = self._clusters[log_dir]
        return cluster.owner.why_left_open(partition, entry, cluster.coordinators)

    # ------------------------------------------------------------------------------------------------------------ abort
    def abort(self, log: LoadedLog, directory: SelectedDirectory, config: LogConfig, restore: str | None) -> AbortedLog:
        """`restore` is the command that undoes the run, if the run keeps originals.

        Raises:
            SedimentError, OSError: the markers could not be written; the log must be loaded again.
        """
        aborted: list[ProducerEntry] = []
        left: list[LeftOpen] = []
        for entry in _open_in(log):
            why = self._why_left_open(directory.path, log.partition, entry)
            if why is not None:
                left.append(why)
            elif self._is_approved(directory.path, log.partition, entry):
                aborted.append(entry)
            else:
                left.append(left_open(entry, NOT_ASKED, "a repair opened it after the question; run the command again"))
        if not aborted:
            return AbortedLog(log, left_open=tuple(left))
        if self._dry_run:
            planned = {entry.producer_id: log.log_end_offset + n for n, entry in enumerate(aborted)}
            return AbortedLog(log, _repairs(aborted, planned), tuple(left))
        done = self._in_directory.setdefault(directory.path, DirectoryAborts())
        done.taken = done.taken or take_clean_shutdown(self._fs, directory.path)
        try:
            offsets, again = self._write_markers(log, directory, config, aborted)
        except BaseException:
            done.has_failed = True
            raise
        done.log_ends[log.partition] = again.log_end_offset
        undo = restore or _undo_by_hand(log, again, directory, self._fs)
        return AbortedLog(again, _repairs(aborted, offsets), tuple(left), undo)

    def _is_approved(self, log_dir: Path, partition: TopicPartition, entry: ProducerEntry) -> bool:
        key = (log_dir, partition, entry.producer_id, entry.current_txn_first_offset)
        return self._approved is None or key in self._approved

    def _write_markers(
        self, log: LoadedLog, directory: SelectedDirectory, config: LogConfig, aborted: Sequence[ProducerEntry]
    ) -> tuple[Mapping[int, int], LoadedLog]:
        clean = PartitionCheckpoints(log_start=log.log_start_offset, clean_shutdown=True)
        offsets = abort_transactions(
            log.partition,
            log.path,
            config,
            clean,
            self._fs,
            now_ms=self._now_ms,
            producer_ids=frozenset(entry.producer_id for entry in aborted),
        )
        known = directory.checkpoints.of(log.partition).high_watermark is not None
        after = replace(clean, high_watermark=log.log_end_offset + len(offsets) if known else None)
        again = load_log(log.partition, log.path, config, after, self._fs, now_ms=self._now_ms)
        return offsets, replace(
            again, repairs=(*log.repairs, *again.repairs), verified_from_offset=log.verified_from_offset
        )

    # ----------------------------------------------------------------------------------------------------------- settle
    def settle(self, directory: SelectedDirectory) -> DirectoryAborts:
        done = self._in_directory.get(directory.path, DirectoryAborts())
        known = directory.checkpoints.high_watermark or {}
        raised = {partition: end for partition, end in done.log_ends.items() if partition in known}
        if raised:
            update_offset_checkpoint(self._fs, directory.path / HIGH_WATERMARK_FILE, raised)
        return done


def restore_command(log_dir: Path, originals: Path, run_id: str) -> str:
    return f"run `sediment restore {shlex.quote(str(log_dir))} --from {shlex.quote(str(originals))} --run {run_id}`"


def _open_in(log: LoadedLog) -> list[ProducerEntry]:
    found = (entry for entry in log.producers.entries.values() if entry.has_open_transaction)
    return sorted(found, key=lambda entry: entry.current_txn_first_offset)


def _repairs(aborted: Iterable[ProducerEntry], offsets: Mapping[int, int]) -> tuple[Repair, ...]:
    return tuple(
        Repair(
            "aborted",
            f"transaction from offset {entry.current_txn_first_offset} on, of producer {entry.producer_id} (epoch "
            f"{entry.producer_epoch}),",
            f"the ABORT marker at offset {offsets[entry.producer_id]} ends it",
        )
        for entry in aborted
    )


def _undo_by_hand(before: LoadedLog, after: LoadedLog, directory: SelectedDirectory, fs: Fs) -> str:
    """Return how to remove the markers; the snapshot at the old log end, with the open transactions, must stay."""
    kinds = [kind for kind in SegmentFileKind if kind is not SegmentFileKind.SNAPSHOT]
    names = [segment_file_name(before.log_end_offset, kind) for kind in kinds]
    names.append(segment_file_name(after.log_end_offset, SegmentFileKind.SNAPSHOT))
    found = [shlex.quote(str(after.path / name)) for name in names if fs.exists(after.path / name)]
    commands = [f"rm {' '.join(found)}"]
    # The checkpoints must not name the markers' offsets any more, because these would then count as lost records.
    lowered = {
        HIGH_WATERMARK_FILE: directory.checkpoints.of(before.partition).high_watermark,
        RECOVERY_POINT_FILE: before.log_end_offset,
    }
    line = f"{before.partition.topic} {before.partition.partition}"
    pattern = f"{line} {after.log_end_offset}".replace(".", r"\.")
    for name, offset in lowered.items():
        if offset is not None:
            file = directory.path / name
            # With a suffix, GNU's sed and BSD's read the option alike; both keep the mode of the file.
            commands.append(f"sed -i.before 's/^{pattern}$/{line} {offset}/' {shlex.quote(str(file))}")
            commands.append(f"rm {shlex.quote(f'{file}.before')}")
    return f"run `{' && '.join(commands)}`"


# ------------------------------------------------------------------------------------------------------------- clusters
def _clusters(directories: Sequence[SelectedDirectory], fs: Fs) -> dict[Path, _Cluster]:
    groups: dict[str, list[SelectedDirectory]] = {}
    for directory in directories:
        meta = directory.meta
        groups.setdefault((meta and meta.cluster_id) or str(directory.path), []).append(directory)
    found = {}
    for group in groups.values():
        coordinators = _coordinators([directory.path for directory in group], fs)
        nodes = frozenset(
            directory.meta.node_id for directory in group if directory.meta and directory.meta.node_id is not None
        )
        for directory in group:
            owner = OwningCluster(
                metadata=directory.metadata,
                is_of_node=directory.meta is not None,
                has_zookeeper=directory.meta is not None and directory.meta.version == ZOOKEEPER_META_VERSION,
                nodes=nodes,
            )
            found[directory.path] = _Cluster(owner, coordinators)
    return found


def _coordinators(log_dirs: Sequence[Path], fs: Fs) -> Coordinators:
    opened = (open_log_dir(path, fs, is_locked_here=True) for path in log_dirs)
    logs = [replace(each, partitions=[p for p in each.partitions if p.topic == TRANSACTION_STATE]) for each in opened]
    try:
        topic = open_source(logs, fs).topics.get(TRANSACTION_STATE)
        if topic is None:
            return Coordinators()
        return Coordinators(frozenset(topic.replicas), coordinated_transactions(topic, fs))
    except (SedimentError, OSError) as error:
        why = f"the records of the transaction coordinators cannot be read: {describe(error)[1]}"
        return Coordinators(failure=why)
