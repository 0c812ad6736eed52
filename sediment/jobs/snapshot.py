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
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sediment.jobs.command_line.declaration import ONE_COMMAND, Values, option, required_option
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.command_line.progress import stages_of
from sediment.jobs.delta_lake.paths import is_delta_table, is_uri, outside_log_dirs
from sediment.jobs.delta_lake.refresh_plan import AS_OF, LATEST, PartitionProgress, RefreshProgress, progress_after
from sediment.jobs.delta_lake.session import delta_session
from sediment.jobs.delta_lake.snapshot_table import SnapshotTable, delta_failures
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.reporting.run_report import in_order
from sediment.jobs.snapshotting.planned_logs import (
    AsOf,
    PlannedLog,
    logs_of_snapshot,
    plan_log,
    refuse_replaced,
    report_refreshed,
    report_unchanged,
)
from sediment.jobs.snapshotting.reading import (
    job_name,
    latest_rows,
    numbers_by_topic,
    read_logs,
    shuffle_by_size,
    split_by_result,
    stale_rows,
)
from sediment.jobs.snapshotting.report import COLUMNS, PartitionSnapshot, SnapshotReport, print_report
from sediment.jobs.spark.job_names import JobName, named_job
from sediment.segment_io.errors import SourceChangedError, UsageError
from sediment.segment_io.format.checkpoints import parse_count
from sediment.segment_io.format.names import new_run_id
from sediment.segment_io.fs import Fs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ATTEMPTS = 3


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
        logs = logs_of_snapshot(self._options, self._fs)
        with self._named(JobName("read the progress of the table")):
            before = self._table.open(AS_OF if as_of else LATEST)
        known = {} if as_of else before.partitions
        planned: list[PlannedLog] = []
        reports: list[PartitionSnapshot] = []
        for log in logs:
            found = plan_log(
                log,
                known.get(str(log.partition)),
                self._as_of,
                self._fs,
                now_ms=self._options.now_ms,
                from_start=self._own.from_start,
            )
            if isinstance(found, PlannedLog):
                planned.append(found)
            else:
                reports.append(found)
        idle = [] if as_of else [partition for partition in planned if not partition.refresh.is_needed()]
        wanted = [partition for partition in planned if partition not in idle]
        reports += [report_unchanged(partition) for partition in idle]
        outcome = None
        if wanted:
            shuffle_by_size(self._spark, wanted)
            with read_logs(self._spark, wanted, group=self._run_id) as read:
                good, failed = split_by_result(wanted, read.summaries)
                refuse_replaced(good)
                reports += failed
                for partition, summaries in zip(wanted, read.summaries, strict=True):
                    if partition in good:
                        messages_read = sum(summary.messages_read for summary in summaries)
                        reports.append(report_refreshed(partition, messages_read, is_latest=not as_of))
                if good:
                    # After its commit, a refresh must be reported.
                    with stop_on_signals(), self._named(job_name("write the latest of", good)):
                        outcome = self._commit(latest_rows(read, good), good, [*idle, *good], before, known)
        return self._report(reports, outcome)

    def _named(self, name: JobName) -> AbstractContextManager[None]:
        return named_job(self._spark.sparkContext, self._run_id, name)

    def _commit(
        self,
        rows: DataFrame,
        good: Sequence[PlannedLog],
        planned: Sequence[PlannedLog],
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
                self._table.merge(rows, stale_rows(good), numbers_by_topic(good), progress)
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


def _refreshed_by_another(path: str) -> SourceChangedError:
    return SourceChangedError(
        "another run changed the table during this run", path=path, advice="run again when the other run is done"
    )


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
    logs = logs_of_snapshot(options, Fs())
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
