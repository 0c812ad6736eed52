"""`sediment snapshot LOG_DIR --to PATH`: write the latest value of each key to a Delta table, and refresh the table.

1. The driver reads the progress of the table, and plans the offsets to read.
2. Tasks read the latest record of each key.
3. The driver checks that the files are unchanged, and merges: one commit contains the rows and the progress.

A refresh takes effect exactly once.  One MERGE writes the rows, and the metadata of its commit records the next offset
to read in each partition.

The table contains only records that a READ_COMMITTED consumer gets.  A partition that cannot be read keeps its rows and
its progress; the others are refreshed.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from sediment.jobs.command_line.declaration import ONE_COMMAND, Values, option, required_option
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.command_line.progress import stages_of
from sediment.jobs.delta_lake.latest_per_key import (
    SPARK_SCHEMA,
    SUMMARY_TOPIC,
    LatestPerKey,
    PartitionPart,
    ReadSummary,
    parse_read_summary,
)
from sediment.jobs.delta_lake.paths import is_delta_table, is_uri, outside_log_dirs
from sediment.jobs.delta_lake.refresh_plan import (
    AS_OF,
    LATEST,
    LogState,
    PartitionProgress,
    Rebuild,
    Refresh,
    RefreshProgress,
    plan_refresh,
    progress_after,
)
from sediment.jobs.delta_lake.session import delta_session
from sediment.jobs.delta_lake.snapshot_table import SnapshotTable, delta_failures
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.reporting.columns import TableColumn, name_and_status, number_column, offset_column
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import FAILED, SKIPPED, PartitionOutcome, RunReport, in_order
from sediment.jobs.reporting.screen import Screen
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.spark.live_slots import await_slots
from sediment.segment_io.errors import SedimentError, SourceChangedError, UsageError
from sediment.segment_io.format.checkpoints import parse_count
from sediment.segment_io.format.names import (
    INTERNAL_TOPICS,
    LEADER_EPOCH_FILE,
    TopicPartition,
    new_run_id,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.packing import pack_by_weight, pack_in_order
from sediment.segment_io.partition.checkpoint_files import (
    PartitionCheckpoints,
    read_leader_epochs,
)
from sediment.segment_io.partition.identity import PartitionIdentity
from sediment.segment_io.partition.slices import Bounds, is_replaced, plan_slices
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.log_marks import LogMark, LogMatch, mark_of, match_log
from sediment.segment_io.tables.planning import ScanTask

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sediment.segment_io.partition.read_committed import CommittedRange

REFRESHED = "refreshed"
REBUILT = "rebuilt"
UNCHANGED = "unchanged"

_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

_SOURCE_CHANGED = "source-changed"
_ATTEMPTS = 3
_PART_BYTES = 64 << 20
_SHUFFLED_BYTES = 64 << 20
_TASKS_PER_SLOT = 3


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
class SnapshotOptions:
    to: str = required_option(
        "Write to this Delta table; create it if it does not exist.",
        metavar="PATH",
        parse=lambda path: path.removeprefix("file://") if path.startswith("file:///") else path,
        from_settings=ONE_COMMAND,
    )
    as_of_offset: tuple[str, ...] = option(
        (),
        "Write the latest value of each key up to this offset; snapshots without this option must not use the same "
        "table.",
        metavar="[TOPIC-N:]OFFSET",
    )
    as_of_ms: Annotated[int, Values(least=0)] | None = option(
        None,
        "Write the latest value of each key as of this timestamp, in ms since the epoch; snapshots without this option "
        "must not use the same table.",
    )
    from_start: bool = option(
        False, "Read the selected partitions again from their log start.", from_settings=ONE_COMMAND
    )
    enable_deletion_vectors: bool = option(
        False,
        "Set delta.enableDeletionVectors on a table that this run creates.  Later refreshes of the table then rewrite "
        "less data, but delta-rs cannot read the table.  An existing table keeps its setting.",
        from_settings=ONE_COMMAND,
    )


# --------------------------------------------------------------------------------------------------------------- report
@dataclass(frozen=True, slots=True)
class PartitionSnapshot(PartitionOutcome):
    """Result of one partition: `messages_read` records were read from the offsets [`first_offset`, `next_offset`)."""

    first_offset: int | None = None
    next_offset: int | None = None
    messages_read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SnapshotReport(RunReport[PartitionSnapshot]):
    """Report of a run of `snapshot`.

    `version` is the version of the table after the run.  The numbers of rows come from Delta; they are None if Delta
    reported none.
    """

    row_type: ClassVar[type] = PartitionSnapshot

    to: str
    version: int | None
    rows_inserted: int | None
    rows_updated: int | None
    rows_deleted: int | None


COLUMNS: tuple[TableColumn[PartitionSnapshot], ...] = (
    *name_and_status(),
    offset_column("from", lambda row: row.first_offset, rank=1),
    offset_column("to", lambda row: row.next_offset, rank=1),
    number_column("records", lambda row: row.messages_read),
)


def _rows_changed(report: SnapshotReport) -> str:
    changes = (
        (report.rows_inserted, "inserted"),
        (report.rows_updated, "updated"),
        (report.rows_deleted, "deleted"),
    )
    return ", ".join(f"{count:,} {what}" for count, what in changes if count) or "no change"


def print_report(report: SnapshotReport, screen: Screen) -> None:
    screen.partitions(report.partitions, COLUMNS)
    screen.failed(report.partitions)
    screen.reasons(p for p in report.partitions if p.reason and p.status != FAILED)
    version = "" if report.version is None else f", version {report.version}"
    screen.say(f"rows: {_rows_changed(report)}{version} in {report.seconds:.1f} s (run {report.run_id})")


# ------------------------------------------------------------------------------------------------------------- the logs
@dataclass(frozen=True, slots=True)
class _Log:
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


def _logs(options: CommonOptions, fs: Fs) -> list[_Log]:
    """Return the selected partitions; internal topics are selected only by a --partition."""
    found: dict[TopicPartition, _Log] = {}
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


def _log(directory: SelectedDirectory, partition: TopicPartition, fs: Fs) -> _Log:
    config = directory.config_of(partition, fs).compaction
    return _Log(
        partition,
        directory.path,
        directory.checkpoints.of(partition),
        directory.checkpoints.first_dirty is None,
        config.delete_retention_ms,
    )


@dataclass(frozen=True, slots=True)
class _Planned:
    log: _Log
    facts: LogState
    refresh: Refresh
    mark: LogMark
    committed: CommittedRange
    scan_tasks: tuple[ScanTask, ...]


def _facts(
    log: _Log, identity: PartitionIdentity, committed: CommittedRange, progress: PartitionProgress | None, fs: Fs
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


def _plan(
    log: _Log, progress: PartitionProgress | None, own: SnapshotOptions, as_of: AsOf | None, now_ms: int, fs: Fs
) -> _Planned | PartitionSnapshot:
    from sediment.segment_io.partition.read_committed import committed_range

    if log.checkpoints.high_watermark is None and log.checkpoints.high_watermark_file:
        return log.report(SKIPPED, "no-high-watermark", "the replication checkpoint does not list the partition")
    try:
        source = log.source()
        identity = PartitionIdentity.of(source, fs)
        committed = committed_range(source, log.checkpoints, fs)
        facts = _facts(log, identity, committed, progress, fs)
        refresh = plan_refresh(
            facts, progress, now_ms=now_ms, delete_retention_ms=log.delete_retention_ms, from_start=own.from_start
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
    return _Planned(log, facts, refresh, mark, committed, scan_tasks)


def _check_unchanged(planned: Sequence[_Planned]) -> None:
    """Refuse the result of the tasks if files were replaced meanwhile, because the rows may mix two states of a log."""
    for scan_task in (scan_task for partition in planned for scan_task in partition.scan_tasks):
        if is_replaced(scan_task.slice):
            raise _changed(str(scan_task.slice.source.partition), str(scan_task.slice.path))


def _changed(partition: str, path: str | None) -> SourceChangedError:
    return SourceChangedError(
        "the log was cleaned or its segments were removed while it was read",
        partition=partition,
        path=path,
        advice="run again when the broker is less busy; the table is unchanged",
    )


# ------------------------------------------------------------------------------------------------------------- reading
def _stale_rows(planned: Sequence[_Planned]) -> Column | None:
    """Return the condition for rows that are deleted if no new row has their key; None if no row is deleted."""
    from pyspark.sql import functions as f

    rebuilt: dict[str, list[int]] = {}
    conditions = []
    for partition in planned:
        name = partition.log.partition
        if partition.refresh.rebuild is not None:
            rebuilt.setdefault(name.topic, []).append(name.partition)
        elif partition.refresh.drop_below_offset is not None:
            conditions.append(
                (f.col("t.topic") == name.topic)
                & (f.col("t.partition") == name.partition)
                & (f.col("t.offset") < partition.refresh.drop_below_offset)
            )
    conditions += [
        (f.col("t.topic") == topic) & f.col("t.partition").isin(numbers) for topic, numbers in rebuilt.items()
    ]
    stale = None
    for condition in conditions:
        stale = condition if stale is None else stale | condition
    return stale


@dataclass(frozen=True, slots=True)
class _Read:
    rows: DataFrame
    summaries: tuple[tuple[ReadSummary, ...], ...]


def _read(spark: SparkSession, planned: Sequence[_Planned]) -> _Read:
    """Read the planned records; if a partition has an error, its rows are incomplete."""
    from pyspark.sql import functions as f

    slots = await_slots(spark.sparkContext, "sediment snapshot").to_plan_for
    parts: list[PartitionPart] = []
    owners: list[int] = []
    for owner, scan_tasks in _cut(planned, slots):
        parts.append(PartitionPart(len(parts), scan_tasks))
        owners.append(owner)
    tasks = pack_by_weight(parts, PartitionPart.size_bytes, slots * _TASKS_PER_SLOT)
    rows = spark.range(0, len(tasks), 1, max(len(tasks), 1)).mapInArrow(LatestPerKey(tasks), SPARK_SCHEMA)
    # Checkpoint the rows, so that Spark does not compute them again: the summaries must describe exactly these rows.
    held = rows.localCheckpoint()
    summaries: list[list[ReadSummary]] = [[] for _ in planned]
    for row in held.where(f.col("topic") == SUMMARY_TOPIC).select("partition", "value").collect():
        summaries[owners[row.partition]].append(parse_read_summary(bytes(row.value)))
    return _Read(held, tuple(map(tuple, summaries)))


def _cut(planned: Sequence[_Planned], slots: int) -> Iterator[tuple[int, tuple[ScanTask, ...]]]:
    """Yield (index of a partition, slices that one task reads together)."""
    total_bytes = sum(map(_size_bytes, planned))
    # The function makes few such groups, because a key can have a row in each group.
    part_bytes = max(total_bytes // slots, _PART_BYTES)
    for owner, partition in enumerate(planned):
        for scan_tasks in pack_in_order(partition.scan_tasks, lambda each: each.slice.size_bytes, part_bytes):
            yield owner, tuple(scan_tasks)


def _size_bytes(partition: _Planned) -> int:
    return sum(scan_task.slice.size_bytes for scan_task in partition.scan_tasks)


def _latest(read: _Read, planned: Sequence[_Planned]) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    rows = read.rows.where(_of_partitions(planned))
    if all(sum(summary.emissions for summary in summaries) <= 1 for summaries in read.summaries):
        return rows
    newest = Window.partitionBy("topic", "partition", "key").orderBy(f.col("offset").desc())
    return rows.withColumn("rank", f.row_number().over(newest)).where("rank = 1").drop("rank")


def _shuffle_by_size(spark: SparkSession, planned: Sequence[_Planned]) -> None:
    """Set the number of shuffle partitions according to the number of bytes to read, which Spark's default ignores."""
    size_bytes = sum(map(_size_bytes, planned))
    slots = await_slots(spark.sparkContext, "sediment snapshot").to_plan_for
    spark.conf.set(_SHUFFLE_PARTITIONS, str(max(slots, size_bytes // _SHUFFLED_BYTES)))


# ----------------------------------------------------------------------------------------------------------- refreshing
def refresh(options: CommonOptions, own: SnapshotOptions, as_of: AsOf | None, spark: SparkSession) -> SnapshotReport:
    """If `as_of` is None, the run writes the latest state."""
    for attempt in range(_ATTEMPTS):
        try:
            with delta_failures(own.to):
                return _Run(options, own, as_of, spark).refresh()
        except SourceChangedError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError


class _Run:
    def __init__(self, options: CommonOptions, own: SnapshotOptions, as_of: AsOf | None, spark: SparkSession) -> None:
        self._options = options
        self._own = own
        self._as_of = as_of
        self._spark = spark
        self._run_id = new_run_id()
        self._started = time.monotonic()
        self._fs = Fs()
        self._table = SnapshotTable(spark, own.to, own.enable_deletion_vectors)

    def refresh(self) -> SnapshotReport:
        as_of = self._as_of is not None
        logs = _logs(self._options, self._fs)
        before = self._table.open(AS_OF if as_of else LATEST)
        known = {} if as_of else before.partitions
        planned: list[_Planned] = []
        reports: list[PartitionSnapshot] = []
        for log in logs:
            found = _plan(log, known.get(str(log.partition)), self._own, self._as_of, self._options.now_ms, self._fs)
            if isinstance(found, _Planned):
                planned.append(found)
            else:
                reports.append(found)
        idle = [] if as_of else [partition for partition in planned if not partition.refresh.is_needed()]
        wanted = [partition for partition in planned if partition not in idle]
        reports += [_unchanged(partition) for partition in idle]
        outcome = None
        if wanted:
            _shuffle_by_size(self._spark, wanted)
            read = _read(self._spark, wanted)
            good, failed = _split_by_result(wanted, read.summaries)
            _check_unchanged(good)
            reports += failed
            for partition, summaries in zip(wanted, read.summaries, strict=True):
                if partition in good:
                    reports.append(_refreshed(partition, sum(a.messages_read for a in summaries), is_latest=not as_of))
            if good:
                with stop_on_signals():  # after its commit, a refresh must be reported
                    outcome = self._commit(_latest(read, good), good, [*idle, *good], before, known)
        return self._report(reports, outcome)

    def _commit(
        self,
        rows: DataFrame,
        good: Sequence[_Planned],
        planned: Sequence[_Planned],
        before: RefreshProgress,
        known: Mapping[str, PartitionProgress],
    ) -> tuple[int, Mapping[str, str]]:
        from delta.exceptions import DeltaConcurrentModificationException

        reached = {
            str(partition.log.partition): progress_after(
                partition.refresh, partition.facts, partition.mark, self._options.now_ms
            )
            for partition in planned
        }
        progress = RefreshProgress(before.kind, self._run_id, before.sequence + 1, {**known, **reached})
        try:
            if before.kind == AS_OF:
                self._table.replace(rows, progress)
            elif before.sequence == 0:
                self._table.fill(rows, progress)
            else:
                self._table.merge(rows, _stale_rows(good), _by_topic(good), progress)
        # If two runs start from the same progress, both try to commit a refresh with the same number.  The number
        # identifies a Delta application transaction, so Delta refuses the second commit.
        except DeltaConcurrentModificationException as error:
            raise _refreshed_by_another(self._own.to) from error
        outcome = self._table.outcome(self._run_id)
        if outcome is None:
            raise _refreshed_by_another(self._own.to)
        return outcome

    def _report(
        self, reports: Sequence[PartitionSnapshot], outcome: tuple[int, Mapping[str, str]] | None
    ) -> SnapshotReport:
        version, metrics = outcome or (None, {})

        def rows(*names: str) -> int | None:
            if outcome is None:
                return 0
            return next((int(metrics[name]) for name in names if name in metrics), None)

        return SnapshotReport(
            run_id=self._run_id,
            command="snapshot",
            now_ms=self._options.now_ms,
            seconds=time.monotonic() - self._started,
            to=self._own.to,
            version=version,
            rows_inserted=rows("numTargetRowsInserted", "numOutputRows"),
            rows_updated=rows("numTargetRowsUpdated"),
            rows_deleted=rows("numTargetRowsDeleted"),
            partitions=in_order(reports),
        )


def _by_topic(planned: Sequence[_Planned]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for partition in planned:
        topics.setdefault(partition.log.partition.topic, []).append(partition.log.partition.partition)
    return topics


def _of_partitions(planned: Sequence[_Planned]) -> Column:
    from pyspark.sql import functions as f

    chosen = f.lit(False)
    for topic, numbers in _by_topic(planned).items():
        chosen = chosen | ((f.col("topic") == topic) & f.col("partition").isin(numbers))
    return chosen


def _unchanged(partition: _Planned) -> PartitionSnapshot:
    refresh = partition.refresh
    report = partition.log.report(UNCHANGED)
    return replace(report, first_offset=refresh.first_offset, next_offset=refresh.first_offset)


def _refreshed(partition: _Planned, messages_read: int, *, is_latest: bool) -> PartitionSnapshot:
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


def _with_compacted_reason(report: PartitionSnapshot, partition: _Planned) -> PartitionSnapshot:
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


def _split_by_result(
    planned: Sequence[_Planned], summaries: Sequence[Sequence[ReadSummary]]
) -> tuple[list[_Planned], list[PartitionSnapshot]]:
    """Return the partitions that were read, and a report of each partition that could not be read.

    Raises:
        SourceChangedError: a log changed while it was read.
    """
    good, failed = [], []
    for partition, parts in zip(planned, summaries, strict=True):
        broken = next((summary for summary in parts if summary.reason_code is not None), None)
        if broken is None:
            good.append(partition)
        elif broken.reason_code == _SOURCE_CHANGED:
            raise _changed(str(partition.log.partition), None)
        else:
            failed.append(partition.log.report(FAILED, broken.reason_code, broken.reason))
    return good, failed


def _refreshed_by_another(path: str) -> SourceChangedError:
    return SourceChangedError(
        "another run changed the table during this run", path=path, advice="run again when the other run is done"
    )


# -------------------------------------------------------------------------------------------------------------- command
def parse_as_of(offsets: Sequence[str], timestamp_ms: int | None, partitions: Sequence[str]) -> AsOf | None:
    """Return the point in time of `--as-of-offset [TOPIC-N:]OFFSET …` or `--as-of-ms`; None without either."""
    if not offsets and timestamp_ms is None:
        return None
    found: dict[str, int] = {}
    for text in offsets:
        partition, colon, number = text.rpartition(":")
        offset = parse_count(number)
        if offset is None:
            raise UsageError(f"--as-of-offset {text} is not [TOPIC-N:]OFFSET", advice="name an offset of the log")
        if not colon:
            if len(partitions) != 1:
                raise UsageError(
                    f"--as-of-offset {text} is for a single partition, but {len(partitions)} are selected",
                    advice="select one with --partition, or give --as-of-offset TOPIC-N:OFFSET for each of them",
                )
            partition = partitions[0]
        if partition not in partitions:
            raise UsageError(
                f"--as-of-offset names {partition}, which is not selected", advice=f"name one of {_named(partitions)}"
            )
        found[partition] = offset
    return AsOf(found, timestamp_ms)


def _named(partitions: Sequence[str]) -> str:
    return ", ".join(partitions[:5]) + (" …" if len(partitions) > 5 else "") or "none"


def _holds_something(path: Path) -> bool:
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def _check_output(to: str, log_dirs: Sequence[Path]) -> None:
    outside_log_dirs(to, log_dirs)
    if not is_uri(to) and not is_delta_table(to) and _holds_something(Path(to)):
        raise UsageError("this is neither a Delta table nor empty", path=to, advice="name a path that does not exist")


def snapshot(options: CommonOptions, own: SnapshotOptions) -> SnapshotReport:
    _check_output(own.to, options.log_dirs)
    logs = _logs(options, Fs())
    as_of = parse_as_of(own.as_of_offset, own.as_of_ms, [str(log.partition) for log in logs])
    with (
        delta_session(options.master, "sediment snapshot", options.spark) as spark,
        stages_of(spark.sparkContext, options.messages()),
    ):
        return refresh(options, own, as_of, spark)


@log_command("snapshot", SnapshotOptions, COLUMNS)
def command(options: CommonOptions, own: SnapshotOptions) -> None:
    """Write the latest value of each key in LOG_DIR... to a Delta table; later runs refresh the table."""
    options.conclude(snapshot(options, own), print_report)


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, and an executor does not have the driver's `__main__`.
    from sediment.jobs.snapshot import command as importable

    importable()
