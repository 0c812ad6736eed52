"""`sediment compact LOG_DIR …`: compact log directories, in place or into an output.

1. The driver lists the directories, and completes interrupted replacements.  In place, it holds their locks.
2. Tasks view, plan and clean the partitions.
3. The driver commits the groups of each partition, one at a time, in ascending order.  Then it writes the checkpoint.

`rewriting.flow.perform` is this flow.  This module has what `compact` decides, its table and its sentences; the
partitions are cleaned by `cleaning.in_place`, `cleaning.hand_off` or `cleaning.to_output`.

Invariants: a partition that fails stays unchanged, and the others continue.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import threading
from collections.abc import Iterator, Sequence

from sediment.compaction.keyless_records import KEYLESS_RECORDS
from sediment.jobs.cleaning.hand_off import HandedOff
from sediment.jobs.cleaning.in_place import CleanedInPlace
from sediment.jobs.cleaning.limits import LIMITS
from sediment.jobs.cleaning.options import KEEP, CleaningTask, CompactOptions
from sediment.jobs.cleaning.report import how_to_state_delete_retention, is_rewritten, quarantined, untouched
from sediment.jobs.cleaning.to_output import CleanedCopy
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.reporting.columns import TableColumn, change_column, name_and_status, status_counts
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.run_report import FAILED, QUARANTINED, SKIPPED, CompactionRunReport, PartitionReport
from sediment.jobs.reporting.screen import Screen, kept_folders, named
from sediment.jobs.rewriting.flow import Command, perform
from sediment.jobs.rewriting.result import CleaningResult
from sediment.jobs.rewriting.run import Run
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.unstated_settings import why_not_compacted
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.listing import LogListing, check_segments_are_files


def compact(options: CommonOptions, own: CompactOptions, stop: threading.Event | None = None) -> CompactionRunReport:
    """Compact the selected partitions of `options.log_dirs`; start Spark only if there is anything to clean.

    Setting `stop` ends the run after the group in progress; partitions without a result are reported as failed.
    """
    own.validate(options)
    run = Run[PartitionReport]("compact", options, stop, dry_run=own.dry_run, logs_at_end=own.output is not None)
    destination = _destination(run, own)
    with run.stack:
        reports = perform(run, _Compaction(run, own, destination), destination)
    return CompactionRunReport(
        **run.header(destination.concluded(reports)),
        dry_run=own.dry_run,
        **destination.kept(),
        seconds_by_stage=run.timer.seconds(),
    )


def _destination(run: Run[PartitionReport], own: CompactOptions) -> CleanedInPlace | CleanedCopy:
    if own.output is not None:
        return CleanedCopy(run, own, own.output)
    return CleanedInPlace(run, own) if own.hand_off is None else HandedOff(run, own, own.hand_off)


class _Compaction(Command[CleaningTask, CleaningTask, PartitionReport]):
    def __init__(
        self, run: Run[PartitionReport], own: CompactOptions, destination: CleanedInPlace | CleanedCopy
    ) -> None:
        self._run = run
        self._own = own
        self._destination = destination

    def select(self, directory: SelectedDirectory, listing: LogListing) -> CleaningTask | None:
        run, own, destination, partition = self._run, self._own, self._destination, listing.partition
        settings = directory.settings_of(partition, run.fs)
        config = settings.for_topic(partition.topic)
        if why := why_not_compacted(partition, settings, config):
            run.add(untouched(listing, SKIPPED, *why))
            return None
        check_segments_are_files(partition, listing.path, run.fs)
        settled = destination.settle(listing)
        if settled is None:
            reason = "an earlier run or broker was interrupted here; run without --dry-run to finish its work first"
            run.add(untouched(listing, SKIPPED, "interrupted", reason))
            return None
        mark = destination.marks(directory).get(partition)
        if mark is not None and mark.holds_for(settled) and not self._looks_again():
            run.add(quarantined(settled, mark))
            return None
        checkpoints = directory.checkpoints.of(partition)
        task = CleaningTask(settled, checkpoints, config.compaction, own, run.options.now_ms, run.run_id)
        return destination.rolled(task) if own.roll_active else task

    def _looks_again(self) -> bool:
        """Return True if quarantined partitions are cleaned, too; an output has a copy of them without this."""
        keeps_corrupt = self._own.on_corruption == KEEP and self._own.output is None
        return self._own.retry_quarantined or keeps_corrupt

    def plan(self, selected: Sequence[CleaningTask]) -> Sequence[CleaningTask]:
        return selected

    def rewrite(self, planned: Sequence[CleaningTask]) -> Iterator[PartitionReport]:
        return self._destination.clean(planned)

    def unlisted(
        self, directory: SelectedDirectory, partition: TopicPartition, code: str, reason: str
    ) -> PartitionReport:
        return self._destination.unlisted(directory, partition, code, reason)

    def unchanged(self, listing: LogListing, why: CleaningResult) -> PartitionReport:
        return PartitionReport(str(listing.partition), str(listing.path.parent), FAILED, why.reason_code, why.reason)


# ----------------------------------------------------------------------------------------------------------- the screen
def _after(partition: PartitionReport, number: int) -> int | None:
    return number if is_rewritten(partition) else None


def _saved(partition: PartitionReport) -> int:
    return partition.bytes_before - partition.bytes_after if is_rewritten(partition) else 0


def _saved_share(partitions: Sequence[PartitionReport]) -> str:
    rewritten = list(filter(is_rewritten, partitions))
    before = sum(partition.bytes_before for partition in rewritten)
    return f"{sum(map(_saved, rewritten)) / before:.0%}" if before else "0%" if rewritten else ""


COLUMNS: tuple[TableColumn[PartitionReport], ...] = (
    *name_and_status(),
    change_column(
        "segments", lambda row: row.segments_before, lambda row: _after(row, len(row.segments)), shown=str, rank=2
    ),
    change_column(
        "records",
        lambda row: _after(row, row.messages_read),
        lambda row: row.messages_written,
        shown="{:,}".format,
        rank=1,
    ),
    change_column("bytes", lambda row: row.bytes_before, lambda row: _after(row, row.bytes_after), shown=human_bytes),
    TableColumn("saved", _saved_share, _saved, rank=3),
)


def print_report(report: CompactionRunReport, screen: Screen) -> None:
    screen.partitions(report.partitions, COLUMNS, dry_run=report.dry_run)
    screen.failed(report.partitions)
    for partition in report.partitions:
        if partition.status not in (FAILED, QUARANTINED) and partition.corrupt_batches:
            screen.say(f"{partition.partition}: {partition.reason}", style="yellow")
    for limit in LIMITS:
        left = [partition.partition for partition in report.partitions if partition.reason_code == limit]
        if left:
            screen.say(f"not done because of --{limit}: {named(left)}")
    lossy = [each for each in report.partitions if is_rewritten(each) and each.records_without_key]
    if lossy:
        lost = counted(sum(each.records_without_key for each in lossy), "record")
        verb = "would be" if report.dry_run else "were" if lost != "1 record" else "was"
        screen.say(f"{named([each.partition for each in lossy])}: {lost} without a key {verb} dropped", style="yellow")
    kept = [partition.partition for partition in report.partitions if _only_keeps_tombstones(partition)]
    if kept:
        screen.say(
            f"{named(kept)}: tombstones and markers without a delete horizon remain, because delete.retention.ms is "
            f"not stated; {how_to_state_delete_retention('TOPIC')}",
            style="yellow",
        )
    skipped = [p for p in report.partitions if p.status == SKIPPED and p.reason_code not in LIMITS]
    screen.reasons((p for p in skipped if p.reason_code == KEYLESS_RECORDS), style="yellow")
    screen.reasons(p for p in skipped if p.reason_code != KEYLESS_RECORDS)
    screen.say(_summary(report))


def _only_keeps_tombstones(partition: PartitionReport) -> bool:
    return partition.keeps_tombstones and not partition.corrupt_batches


def _summary(report: CompactionRunReport) -> str:
    done = status_counts(report.partitions, dry_run=report.dry_run) or "no partitions"
    rewritten = list(filter(is_rewritten, report.partitions))
    before = sum(partition.bytes_before for partition in rewritten)
    after = sum(partition.bytes_after for partition in rewritten)
    if after > before:
        verb = "would grow" if report.dry_run else "grew"
    else:
        verb = "would shrink" if report.dry_run else "shrank"
    size = f"; {human_bytes(before)} {verb} to {human_bytes(after)}" if rewritten else ""
    kept = ""
    if report.originals and report.catalogue:
        kept = f"; the replaced files are in {kept_folders(report.originals, report.partitions)}"
    if report.before and rewritten and not report.dry_run:
        kept += f"; the files before the run are in {kept_folders(report.before, rewritten)}"
    return f"{done}{size}{kept} in {report.seconds:.1f} s (run {report.run_id})"


@log_command("compact", CompactOptions, COLUMNS)
def command(options: CommonOptions, own: CompactOptions) -> None:
    """Compact the partitions of LOG_DIR... whose cleanup.policy includes compact.

    SIGINT or SIGTERM ends the run after the current group of segments is committed.  The run then prints its report and
    exits with status 1.
    """
    with stop_on_signals() as stop:
        report = compact(options, own, stop)
    options.conclude(report, print_report)


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, and on an executor `__main__` is a different module.
    from sediment.jobs.compact import command as importable

    importable()
