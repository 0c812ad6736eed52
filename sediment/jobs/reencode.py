"""`sediment reencode LOG_DIR …`: change the codec or size of batches, and keep every record.

1. Tasks select the segments to rewrite.
2. One task rewrites one segment.  A dry run does this in memory, so its sizes are exact.
3. The driver commits one partition at a time.

Invariants: every reader sees the same records at the same offsets.  A batch that would not become smaller stays
unchanged, except with `--codec none`.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sediment.compaction.config import CompactionConfig
from sediment.compaction.reencode.plan import Encoding, ReencodedSegment, ReencodeTask, plan_reencode
from sediment.jobs.command_line.declaration import together
from sediment.jobs.command_line.encoding_options import EncodingOptions
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.reporting.columns import change_column, status_counts
from sediment.jobs.reporting.figures import human_bytes
from sediment.jobs.reporting.screen import Screen, kept_folders
from sediment.jobs.rewriting.flow import perform
from sediment.jobs.rewriting.options import RewriteOptions
from sediment.jobs.rewriting.partition_task import PartitionRewrite, PartitionRewritePlan
from sediment.jobs.rewriting.planned_partition import PlannedPartition, SelectedPartition
from sediment.jobs.rewriting.report import RewriteReport, RewriteRunReport, columns_with, fields_of, print_table
from sediment.jobs.rewriting.result import CleaningResult
from sediment.jobs.rewriting.run import Run
from sediment.jobs.rewriting.segment_rewriting import SegmentRewriting, destination_of, report_fields
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef

if TYPE_CHECKING:
    from sediment.segment_io.partition.log_view import LogView

REENCODED = "reencoded"


@dataclass(frozen=True, slots=True)
class ReencodeOptions(RewriteOptions):
    encoding: Encoding | None = together(EncodingOptions)

    def requested(self) -> Encoding:
        return self.encoding or Encoding()  # an encoding that changes nothing is an error

    def validate(self, common: CommonOptions) -> None:
        RewriteOptions.validate(self, common)
        self.requested()


# --------------------------------------------------------------------------------------------------------------- report
@dataclass(frozen=True, slots=True)
class ReencodeReport(RewriteReport):
    """Report of one partition; `batches_before` and `batches_after` count only batches in segments that the run read.

    `batches_encoded` counts the batches in `batches_after` that were re-encoded.  A dry run reports exactly what a real
    run would report.
    """

    batches_before: int = 0
    batches_after: int = 0
    batches_encoded: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReencodeRunReport(RewriteRunReport[ReencodeReport]):
    """Report of a run of `reencode`, with the requested encoding."""

    row_type: ClassVar[type] = ReencodeReport

    codec: str | None = None
    level: int | None = None
    batch_bytes: int | None = None


COLUMNS = columns_with(
    (
        change_column(
            "batches", lambda row: row.batches_before, lambda row: row.batches_after, shown="{:,}".format, rank=2
        ),
    )
)


def print_report(report: ReencodeRunReport, screen: Screen) -> None:
    print_table(report, COLUMNS, screen)
    screen.say(_summary(report))


def _summary(report: ReencodeRunReport) -> str:
    counts = status_counts(report.partitions, dry_run=report.dry_run) or "no partitions"
    encoded = [row for row in report.partitions if row.bytes_after is not None]
    before = sum(row.bytes_before for row in encoded)
    after = sum(row.bytes_after or 0 for row in encoded)
    verb = "would become" if report.dry_run else "became"
    kept = ""
    if report.originals and report.catalogue:
        kept = f"; the replaced files are in {kept_folders(report.originals, report.partitions)}"
    return (
        f"{counts}; {human_bytes(before)} {verb} {human_bytes(after)}{kept}; {report.seconds:.1f} s "
        f"(run {report.run_id})"
    )


# ----------------------------------------------------------------------------------------------------------- the tasks
@dataclass(frozen=True, slots=True)
class ReencodeSegment:
    task: ReencodeTask

    @property
    def segment(self) -> SegmentRef:
        return self.task.segment

    def rewrite(self, fs: Fs, attempt: Attempt) -> ReencodedSegment:
        # Imported late, because this module compiles kernels that the driver never needs.
        from sediment.compaction.reencode.segment_reencode import reencode_segment

        return reencode_segment(self.task, fs, attempt)


@dataclass(frozen=True, slots=True)
class ReencodePartition:
    encoding: Encoding

    def plan(self, view: LogView, config: CompactionConfig, _fs: Fs) -> PartitionRewritePlan:
        return PartitionRewritePlan(tuple(map(ReencodeSegment, plan_reencode(view, self.encoding, config))))


# ------------------------------------------------------------------------------------------------------------- the run
def reencode(options: CommonOptions, own: ReencodeOptions, *, stop: threading.Event | None = None) -> ReencodeRunReport:
    """Setting `stop` ends the run after the group in progress; partitions without a result are reported as failed."""
    own.validate(options)
    run = Run[ReencodeReport]("reencode", options, stop, dry_run=own.dry_run)
    destination = destination_of(run, own, output_keeps_failed=True)
    with run.stack:
        reports = perform(run, _Reencoding(run, own, destination), destination)
        return ReencodeRunReport(
            **report_fields(run, own, destination, reports),
            codec=own.requested().codec_name,
            level=own.requested().level,
            batch_bytes=own.requested().batch_bytes,
        )


class _Reencoding(SegmentRewriting[ReencodeOptions, ReencodeReport]):
    """What `reencode` decides: every segment of every partition is rewritten."""

    def _rewrites(
        self, _sc: Any, partitions: Sequence[SelectedPartition]
    ) -> Iterator[tuple[SelectedPartition, PartitionRewrite | CleaningResult]]:
        rewrite = ReencodePartition(self._own.requested())
        for each in partitions:
            yield each, rewrite

    def _report(self, report: RewriteReport, planned: PlannedPartition | None) -> ReencodeReport:
        base = fields_of(report, REENCODED)
        done = [] if planned is None else [each for each in planned.results if isinstance(each, ReencodedSegment)]
        stats = [each.stats for each in done]
        return ReencodeReport(
            **base,
            batches_before=sum(each.batches_before for each in stats),
            batches_after=sum(each.batches_after for each in stats),
            batches_encoded=sum(each.batches_encoded for each in stats),
        )


@log_command("reencode", ReencodeOptions, COLUMNS)
def command(options: CommonOptions, own: ReencodeOptions) -> None:
    """Change the codec or batch size of LOG_DIR..., whose broker must be stopped.

    Consumers read the same records as before.  SIGINT or SIGTERM ends the run after the current group of segments is
    committed.  The run then prints its report and exits with status 1.
    """
    with stop_on_signals() as stop:
        report = reencode(options, own, stop=stop)
    options.conclude(report, print_report)


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, and on an executor `__main__` is a different module.
    from sediment.jobs.reencode import command as importable

    importable()
