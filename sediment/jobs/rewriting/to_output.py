"""Rewriting to an output: a new log directory with the rewritten segments and copies of all other files.

1. Tasks write the new segments of a partition to the output, under their final names.
2. `commit` records that all new segments are written; a partition that fails gets no such record.
3. After the last partition, tasks copy the files that were not replaced.  If a partition is unchanged, all of its
   files are copied.
4. The driver lists the sources again and writes the checkpoints, then the manifest.

If a partition failed, the copies of its old segments overwrite new segments with the same names.  All other new
segments of the partition are removed, because the manifest does not name them.

Without `keeps_failed`, the output is complete only if no partition failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sediment.compaction.prepared_swap import PreparedSwap
from sediment.engine.directory.uncleanable import Uncleanable
from sediment.jobs.process.cancellation import RunStopped
from sediment.jobs.publishing.output_directory import OUTPUT_INCOMPLETE, SOURCE_CHANGED, OutputDirectory
from sediment.jobs.publishing.partition_output import (
    CopyTask,
    copy_files,
    copy_tasks,
    has_replacement,
    of_copy,
    with_rate_share,
)
from sediment.jobs.reporting.run_report import FAILED, QUARANTINED, PartitionOutcome
from sediment.jobs.reporting.statuses import STOPPED
from sediment.jobs.rewriting.destination import SegmentDestination, check_stopped_cleanly
from sediment.jobs.rewriting.partition_task import InOutput, TaskPlace
from sediment.jobs.rewriting.planned_partition import PlannedPartition
from sediment.jobs.rewriting.report import Rewritten
from sediment.jobs.rewriting.result import CleaningResult
from sediment.jobs.rewriting.run import Run, Work
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.running_brokers import warn_of_running
from sediment.jobs.spark.job_names import titled
from sediment.jobs.spark.task_pool import run_on_executors
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.manifest import ManifestFile
from sediment.segment_io.partition.listing import LogListing, list_log
from sediment.segment_io.stores import ListedFs

Reason = tuple[str, str]

_INCOMPLETE = (OUTPUT_INCOMPLETE, "another partition could not be written, so the output is not complete")


class NewLogDirectory(SegmentDestination[Rewritten]):
    """With `keeps_failed`, the output gets an identical copy of a partition that could not be rewritten."""

    def __init__(self, run: Run[Rewritten], output: str, *, keeps_failed: bool) -> None:
        super().__init__(run)
        self.directory = OutputDirectory(output, run.options, run.run_id, run.stack)
        self._keeps_failed = keeps_failed
        self._is_claimed = False
        self._files: list[ManifestFile] = []
        self._staying: dict[TopicPartition, tuple[str, ...]] = {}
        self._lowered: dict[TopicPartition, int] = {}
        self._marks: dict[TopicPartition, Uncleanable] = {}

    def open(self) -> list[SelectedDirectory]:
        self.directories = self.directory.open()
        if self.run.dry_run:
            warn_of_running(self.directories)
        else:
            check_stopped_cleanly(self.directories)
        for partition, source in self.directory.source_of.items():
            mark = source.marks.get(partition)
            files = ListedFs(source.by_folder.get(str(partition), {}))
            if mark is not None and mark.holds_for(list_log(partition, source.path / str(partition), files)):
                self._marks[partition] = mark
        return self.directories

    def listing(self, directory: SelectedDirectory, partition: TopicPartition) -> LogListing:
        files = self.directory.source_of[partition].by_folder.get(str(partition), {})
        return list_log(partition, directory.path / str(partition), ListedFs(files))

    def listing_now(self, listing: LogListing) -> LogListing:
        return listing

    def shown(self, log_dir: str) -> str:
        return next((str(each.store) for each in self.directory.sources if str(each.path) == log_dir), log_dir)

    def settle(self, listing: LogListing) -> LogListing | None:
        """Refuse a partition with an interrupted replacement, because its files would have to change first."""
        return None if has_replacement(self.directory.partition(listing.partition, dry_run=True).files) else listing

    def free_bytes(self, _listing: LogListing) -> int:
        return self.directory.store.free_bytes()

    def place_of(self, listing: LogListing) -> TaskPlace:
        return InOutput(self.directory.partition(listing.partition, dry_run=self.run.dry_run))

    def begin(self, planned: Sequence[Work]) -> Mapping[Path, tuple[LogListing, CleaningResult]]:
        self.directory.claim()
        self._is_claimed = True
        for each in planned:
            self.directory.partition(each.listing.partition, dry_run=False).make_folder()
        return {}

    def commit(self, planned: PlannedPartition, swap: PreparedSwap) -> bool:
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
        self._marks[listing.partition] = mark

    def withdraw(self) -> None:
        self.directory.withdraw()

    def complete(self, rows: Sequence[Rewritten]) -> list[Rewritten]:
        failed = self._completed(rows) if rows else {}
        return [_failed(row, *failed[index]) if index in failed else row for index, row in enumerate(rows)]

    def _completed(self, rows: Sequence[Rewritten]) -> dict[int, Reason]:
        failed = {row.partition for row in rows if row.status in (FAILED, QUARANTINED)}
        if self.run.stop.is_set() or (failed and not self._keeps_failed):
            return self._abandoned(rows, {})
        if not self._is_claimed:
            self.begin([])
        lost = self._copy()
        if lost:
            return self._abandoned(rows, lost)
        changed = self.directory.complete(
            self._files, first_dirty=self._lowered, marks=[self._marks[each] for each in sorted(self._marks)]
        )
        if changed is None:
            return {}
        if not changed:
            return _reasons(rows, {}, SOURCE_CHANGED)
        return _reasons(rows, dict.fromkeys(changed, SOURCE_CHANGED), _INCOMPLETE)

    def _copy(self) -> dict[str, Reason]:
        places = [self.directory.partition(partition, dry_run=False) for partition in self.directory.source_of]
        try:
            sc = self.run.spark()
        except RunStopped:
            return {place.folder: self.run.why_lost(None, "copied") for place in places}
        limit = self.run.rate_limit(self.directories)
        tasks = [
            task
            for place in places
            for task in copy_tasks(
                replace(place, rate_limit=limit), self._staying.get(place.partition, tuple(place.files))
            )
        ]
        lost: dict[str, Reason] = {}
        for results in run_on_executors(
            sc,
            tasks,
            copy_files,
            CopyTask.weight,
            group=self.run.run_id,
            is_stopped=self.run.stop.is_set,
            prepare=with_rate_share,
            title=titled("copy files of", CopyTask.folder),
            figures=of_copy,
        ):
            for each in results:
                if each.result is not None and each.result.files is not None:
                    self._files += each.result.files
                else:
                    error = None if each.result is None else each.result.error
                    lost[each.item.place.folder] = error or self.run.why_lost(each.error, "copied")
        return lost

    def _abandoned(self, rows: Sequence[Rewritten], lost: dict[str, Reason]) -> dict[int, Reason]:
        if self._is_claimed:
            self.directory.abandon()
        stopped = (STOPPED, "the run was stopped before the output was complete")
        return _reasons(rows, lost, stopped if self.run.stop.is_set() else _INCOMPLETE)


def _failed(row: Rewritten, code: str, reason: str) -> Rewritten:
    return replace(
        row, status=FAILED, reason_code=code, reason=reason, bytes_after=row.bytes_before, segments_rewritten=0
    )


def _reasons(rows: Sequence[PartitionOutcome], reasons: Mapping[str, Reason], usual: Reason) -> dict[int, Reason]:
    return {
        index: reasons.get(row.partition, usual)
        for index, row in enumerate(rows)
        if row.status not in (FAILED, QUARANTINED)
    }
