"""Rewriting to an output: a new log directory with the rewritten segments and copies of all other files.

1. Tasks write the new segments of a partition to the output, under their final names.
2. `commit` records that all new segments are written; a partition that fails gets no such record.
3. After the last partition, tasks copy the files that were not replaced.  If a partition is unchanged, all of its
   files are copied.
4. The driver lists the sources again and writes the checkpoints, then the manifest.

If a partition failed, the copies of its old segments overwrite new segments with the same names.  All other new
segments of the partition are removed, because the manifest does not name them.

Invariants: nothing in a source changes.  Without `keeps_failed`, the output is complete only if no partition failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from sediment.compaction.prepared_swap import PreparedSwap
from sediment.engine.directory.uncleanable import Uncleanable
from sediment.jobs.cleaning.cleaning_run import rate_limit, why_lost
from sediment.jobs.cleaning.result import CleaningResult
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.process.cancellation import RunStopped
from sediment.jobs.publishing.output_directory import OUTPUT_INCOMPLETE, SOURCE_CHANGED, OutputDirectory
from sediment.jobs.publishing.partition_output import CopyTask, copy_files, copy_tasks, has_replacement
from sediment.jobs.reporting.run_report import FAILED, QUARANTINED
from sediment.jobs.reporting.statuses import STOPPED
from sediment.jobs.rewriting.destination import Destination, check_stopped_cleanly
from sediment.jobs.rewriting.options import RewriteOptions
from sediment.jobs.rewriting.partition_task import InOutput, TaskPlace
from sediment.jobs.rewriting.planned_partition import PlannedPartition
from sediment.jobs.rewriting.report import RewriteReport
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.running_brokers import warn_of_running
from sediment.jobs.spark.task_pool import run_on_executors
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.manifest import ManifestFile
from sediment.segment_io.partition.listing import LogListing, list_log
from sediment.segment_io.stores import ListedFs

Reason = tuple[str, str]

_INCOMPLETE = (OUTPUT_INCOMPLETE, "another partition could not be written, so the output is not complete")


class NewLogDirectory(Destination):
    """The output of the run; the exit stack releases its lock.

    With `keeps_failed`, the output gets an identical copy of a partition that could not be rewritten.
    """

    def __init__(
        self,
        output: str,
        run_id: str,
        options: CommonOptions,
        own: RewriteOptions,
        stop: threading.Event,
        stack: ExitStack,
        *,
        keeps_failed: bool,
    ) -> None:
        self.directory = OutputDirectory(output, options, run_id, stack)
        self._run_id = run_id
        self._own = own
        self._stop = stop
        self._keeps_failed = keeps_failed
        self._is_claimed = False
        self._opened: list[SelectedDirectory] = []
        self._files: list[ManifestFile] = []
        self._staying: dict[TopicPartition, tuple[str, ...]] = {}
        self._lowered: dict[TopicPartition, int] = {}
        self._marks: dict[TopicPartition, Uncleanable] = {}

    def open(self) -> list[SelectedDirectory]:
        """Check the output; then list the sources, and read their settings and checkpoints."""
        self._opened = self.directory.open()
        if self._own.dry_run:
            warn_of_running(self._opened)
        else:
            check_stopped_cleanly(self._opened)
        for partition, source in self.directory.source_of.items():
            mark = source.marks.get(partition)
            files = ListedFs(source.by_folder.get(str(partition), {}))
            if mark is not None and mark.holds_for(list_log(partition, source.path / str(partition), files)):
                self._marks[partition] = mark
        return self._opened

    def listing(self, directory: SelectedDirectory, partition: TopicPartition) -> LogListing:
        """Return the segments that were listed in the source."""
        files = self.directory.source_of[partition].by_folder.get(str(partition), {})
        return list_log(partition, directory.path / str(partition), ListedFs(files))

    def listing_now(self, listing: LogListing) -> LogListing:
        """Return `listing`, because a source does not change."""
        return listing

    def shown(self, log_dir: str) -> str:
        """Return the path or URI of a source."""
        return next((str(each.store) for each in self.directory.sources if str(each.path) == log_dir), log_dir)

    def settle(self, listing: LogListing) -> LogListing | None:
        """Refuse a partition with an interrupted replacement, because its files would have to change first."""
        return None if has_replacement(self.directory.partition(listing.partition, dry_run=True).files) else listing

    def free_bytes(self, _listing: LogListing) -> int:
        """Return the free bytes of the output."""
        return self.directory.store.free_bytes()

    def place_of(self, listing: LogListing) -> TaskPlace:
        """Return the `TaskPlace` of the partition in the output."""
        return InOutput(self.directory.partition(listing.partition, dry_run=self._own.dry_run))

    def begin(self, planned: Sequence[PlannedPartition]) -> list[tuple[LogListing, CleaningResult]]:
        """Claim the output, and make the folders for new segments."""
        self.directory.claim()
        self._is_claimed = True
        for each in planned:
            self.directory.partition(each.selected.partition, dry_run=False).make_folder()
        return []

    def commit(self, planned: PlannedPartition, swap: PreparedSwap) -> bool:
        """Record the new files of a partition, and the files to copy."""
        partition = planned.selected.partition
        place = self.directory.partition(partition, dry_run=False)
        changed = [group for group in swap.groups if group.parts]
        self._files += planned.files
        self._staying[partition] = place.staying(planned.listing.path, changed)
        lowered = planned.lowered_checkpoint()
        if lowered is not None:
            self._lowered[partition] = lowered
        self._marks.pop(partition, None)
        return True

    def mark(self, listing: LogListing, mark: Uncleanable) -> None:
        """Record the quarantine mark for the output; nothing is written to the source."""
        self._marks[listing.partition] = mark

    def end(self, planned: Sequence[PlannedPartition]) -> None:
        """Do nothing: the manifest decides which files belong to the output."""

    def withdraw(self) -> None:
        """Mark the output as incomplete."""
        self.directory.withdraw()

    def complete(self, reports: Sequence[RewriteReport], spark: Callable[[], Any]) -> dict[int, Reason]:
        """Copy the unchanged files and complete the output, or leave the output incomplete and report the cause."""
        if not reports:
            return {}
        failed = {report.partition for report in reports if report.status in (FAILED, QUARANTINED)}
        if self._stop.is_set() or (failed and not self._keeps_failed):
            return self._abandoned(reports, {})
        if not self._is_claimed:
            self.begin([])
        lost = self._copy(spark)
        if lost:
            return self._abandoned(reports, lost)
        changed = self.directory.complete(
            self._files, first_dirty=self._lowered, marks=[self._marks[each] for each in sorted(self._marks)]
        )
        if changed is None:
            return {}
        if not changed:
            return _failed(reports, {}, SOURCE_CHANGED)
        return _failed(reports, dict.fromkeys(changed, SOURCE_CHANGED), _INCOMPLETE)

    def _copy(self, spark: Callable[[], Any]) -> dict[str, Reason]:
        """Copy the unchanged files; return the partitions that could not be copied."""
        places = [self.directory.partition(partition, dry_run=False) for partition in self.directory.source_of]
        try:
            sc = spark()
        except RunStopped:
            return {place.folder: why_lost(self._stop, None, "copied") for place in places}
        limit = rate_limit(sc, self._run_id, self._opened)
        tasks = [
            task
            for place in places
            for task in copy_tasks(
                replace(place, rate_limit=limit), self._staying.get(place.partition, tuple(place.files))
            )
        ]
        lost: dict[str, Reason] = {}
        for results in run_on_executors(
            sc, tasks, copy_files, CopyTask.weight, group=self._run_id, is_stopped=self._stop.is_set
        ):
            for each in results:
                if each.result is not None and each.result.files is not None:
                    self._files += each.result.files
                else:
                    error = None if each.result is None else each.result.error
                    lost[each.item.place.folder] = error or why_lost(self._stop, each.error, "copied")
        return lost

    def _abandoned(self, reports: Sequence[RewriteReport], lost: dict[str, Reason]) -> dict[int, Reason]:
        """Leave the output incomplete, so that no partition counts as done."""
        if self._is_claimed:
            self.directory.abandon()
        stopped = (STOPPED, "the run was stopped before the output was complete")
        return _failed(reports, lost, stopped if self._stop.is_set() else _INCOMPLETE)


def _failed(reports: Sequence[RewriteReport], reasons: Mapping[str, Reason], usual: Reason) -> dict[int, Reason]:
    """Return the reason for each report that fails in this step, by index."""
    return {
        index: reasons.get(report.partition, usual)
        for index, report in enumerate(reports)
        if report.status not in (FAILED, QUARANTINED)
    }
