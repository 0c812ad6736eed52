"""The logs of a snapshot, what to read from each, and its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.delta_lake.refresh_plan import LogState, PartitionProgress, Rebuild, Refresh, plan_refresh
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import FAILED, SKIPPED
from sediment.jobs.reporting.statuses import UNCHANGED
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.snapshotting.report import REBUILT, REFRESHED, PartitionSnapshot
from sediment.segment_io.errors import SedimentError, SourceChangedError, UsageError
from sediment.segment_io.format.names import INTERNAL_TOPICS, LEADER_EPOCH_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints, read_leader_epochs
from sediment.segment_io.partition.identity import PartitionIdentity
from sediment.segment_io.partition.slices import Bounds, is_replaced, plan_slices
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.log_marks import LogMark, LogMatch, mark_of, match_log
from sediment.segment_io.tables.planning import ScanTask

if TYPE_CHECKING:
    from sediment.segment_io.partition.read_committed import CommittedRange


@dataclass(frozen=True, slots=True)
class AsOf:
    """Point in time of a snapshot: the last offset of each partition, or the largest timestamp of a record."""

    offsets: Mapping[str, int]
    timestamp_ms: int | None

    def bounds(self, partition: str) -> Bounds:
        bounds = Bounds()
        if partition in self.offsets:
            bounds &= Bounds(end_offset=self.offsets[partition] + 1)
        if self.timestamp_ms is not None:
            bounds &= Bounds(end_timestamp_ms=self.timestamp_ms + 1)
        return bounds


@dataclass(frozen=True, slots=True)
class LogOfSnapshot:
    partition: TopicPartition
    log_dir: Path
    checkpoints: PartitionCheckpoints
    cleaner_unknown: bool
    delete_retention_ms: int | None

    def source(self) -> Source:
        return Source(self.partition, self.log_dir / str(self.partition))

    def report(self, status: str, code: str | None = None, reason: str | None = None) -> PartitionSnapshot:
        return PartitionSnapshot(str(self.partition), str(self.log_dir), status, code, reason)

    def failure(self, error: SedimentError | OSError) -> PartitionSnapshot:
        return self.report(FAILED, *describe(error))


def logs_of_snapshot(options: CommonOptions, fs: Fs) -> list[LogOfSnapshot]:
    """Return the selected partitions; internal topics are selected only by a --partition."""
    found: dict[TopicPartition, LogOfSnapshot] = {}
    for directory in options.open_directories(fs):
        for partition in directory.partitions:
            if partition.topic in INTERNAL_TOPICS and not options.selection.is_narrowed:
                continue
            if partition in found:
                raise UsageError(
                    f"{partition} is both in {found[partition].log_dir} and in {directory.path}",
                    advice="choose one with --partition, or name one log directory",
                )
            found[partition] = _log(directory, partition, fs)
    return [found[partition] for partition in sorted(found)]


def _log(directory: SelectedDirectory, partition: TopicPartition, fs: Fs) -> LogOfSnapshot:
    config = directory.config_of(partition, fs).compaction
    return LogOfSnapshot(
        partition,
        directory.path,
        directory.checkpoints.of(partition),
        directory.checkpoints.first_dirty is None,
        config.delete_retention_ms,
    )


@dataclass(frozen=True, slots=True)
class PlannedLog:
    log: LogOfSnapshot
    facts: LogState
    refresh: Refresh
    mark: LogMark
    committed: CommittedRange
    scan_tasks: tuple[ScanTask, ...]


def _facts(
    log: LogOfSnapshot,
    identity: PartitionIdentity,
    committed: CommittedRange,
    progress: PartitionProgress | None,
    fs: Fs,
) -> LogState:
    source = log.source()
    return LogState(
        log_start_offset=committed.first_offset,
        end_offset=committed.end_offset,
        first_dirty_offset=log.checkpoints.first_dirty,
        cleaner_unknown=log.cleaner_unknown,
        topic_id=identity.topic_id,
        leader_epochs=read_leader_epochs(fs, source.directory / LEADER_EPOCH_FILE) or (),
        match=LogMatch.UNKNOWN if progress is None else match_log(progress.mark, source, identity, fs),
    )


def plan_log(
    log: LogOfSnapshot,
    progress: PartitionProgress | None,
    as_of: AsOf | None,
    fs: Fs,
    *,
    now_ms: int,
    from_start: bool,
) -> PlannedLog | PartitionSnapshot:
    from sediment.segment_io.partition.read_committed import committed_range

    if log.checkpoints.high_watermark is None and log.checkpoints.high_watermark_file:
        return log.report(SKIPPED, "no-high-watermark", "the replication checkpoint does not list the partition")
    try:
        source = log.source()
        identity = PartitionIdentity.of(source, fs)
        committed = committed_range(source, log.checkpoints, fs)
        facts = _facts(log, identity, committed, progress, fs)
        refresh = plan_refresh(
            facts, progress, now_ms=now_ms, delete_retention_ms=log.delete_retention_ms, from_start=from_start
        )
        bounds = Bounds(first_offset=refresh.first_offset, end_offset=refresh.end_offset)
        if as_of is not None:
            bounds &= as_of.bounds(str(log.partition))
            refresh = replace(refresh, end_offset=max(min(refresh.end_offset, bounds.end_offset), refresh.first_offset))
        mark = mark_of(source, identity, refresh.end_offset, fs)
        slices = plan_slices(source, bounds, fs)
    except (SedimentError, OSError) as error:
        return log.failure(error)
    scan_tasks = tuple(
        ScanTask(found, bounds, True, committed.aborted_within(found.start_offset, found.end_offset))
        for found in slices
    )
    return PlannedLog(log, facts, refresh, mark, committed, scan_tasks)


def refuse_replaced(planned: Sequence[PlannedLog]) -> None:
    """Refuse the result of the tasks if files were replaced meanwhile, because the rows may mix two states of a log."""
    for scan_task in (scan_task for partition in planned for scan_task in partition.scan_tasks):
        if is_replaced(scan_task.slice):
            raise log_changed(str(scan_task.slice.source.partition), str(scan_task.slice.path))


def log_changed(partition: str, path: str | None) -> SourceChangedError:
    return SourceChangedError(
        "the log was cleaned or its segments were removed while it was read",
        partition=partition,
        path=path,
        advice="run again when the broker is less busy; the table is unchanged",
    )


def report_unchanged(partition: PlannedLog) -> PartitionSnapshot:
    refresh = partition.refresh
    report = partition.log.report(UNCHANGED)
    return replace(report, first_offset=refresh.first_offset, next_offset=refresh.first_offset)


def report_refreshed(partition: PlannedLog, messages_read: int, *, is_latest: bool) -> PartitionSnapshot:
    refresh, log = partition.refresh, partition.log
    is_rebuilt = refresh.rebuild not in (None, Rebuild.FIRST_TIME)
    report = log.report(REBUILT, refresh.rebuild) if is_rebuilt else log.report(REFRESHED)
    if not is_latest:
        report = _with_compacted_reason(report, partition)
    return replace(
        report,
        first_offset=refresh.first_offset,
        next_offset=refresh.end_offset,
        messages_read=messages_read,
    )


def _with_compacted_reason(report: PartitionSnapshot, partition: PlannedLog) -> PartitionSnapshot:
    """Add a reason to the report if compaction may have removed values that existed at the snapshot's point in time."""
    cleaned_to = partition.facts.first_dirty_offset or 0
    if partition.refresh.end_offset >= cleaned_to:
        return report
    return replace(
        report,
        reason_code="compacted",
        reason=f"the log is compacted up to offset {cleaned_to}: if a key was written again after this point in time "
        "but below that offset, its earlier value is gone, and the table has no row for the key",
    )
