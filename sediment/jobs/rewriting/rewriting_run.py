"""Run of a rewriting command on the driver.

    driver   lock · list · finish_interrupted        approve · catalogue             commit, by partition · report
    tasks                                      plan                        rewrite

1. Lock the directories, list the selected partitions, and complete interrupted replacements.
2. Plan every partition.  A dry run that only counts ends here.
3. Let the command approve the plans or end the run; nothing has changed so far.
4. Write the catalogue of originals, then rewrite the segments.
5. Once all segments of a partition are written: link its originals, lower the cleaner checkpoint, commit.

Invariants: only the driver renames files.  A partition is committed only if all of its segments were rewritten; a
partition that fails stays unchanged, and the others continue.  The cleaner checkpoint is lowered before the commit, so
a crash between the two only makes a later cleaning read more.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from sediment.compaction.prepared_swap import PreparedSwap
from sediment.engine.config import LogConfig
from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.lock import DirectoryLock, place_run_token, remove_run_token
from sediment.engine.directory.originals.backup_links import BackupLinks, check_originals_path
from sediment.engine.directory.swap import commit, discard_parts
from sediment.engine.directory.uncleanable import update_uncleanable
from sediment.jobs.cleaning.backup_links import begin_originals, end_originals
from sediment.jobs.cleaning.cleaning_run import STOPPED, rate_limit, update_cleaner_checkpoint, why_lost
from sediment.jobs.cleaning.result import TASK_ERRORS, CleaningResult, failure
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.command_line.stderr_log import log_partition
from sediment.jobs.delta_lake.paths import outside_log_dirs
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import FAILED, QUARANTINED, SKIPPED
from sediment.jobs.reporting.stage_timer import CLEAN, COMMIT, LIST, PLAN, SPARK, StageTimer
from sediment.jobs.rewriting.options import RewriteOptions
from sediment.jobs.rewriting.partition_task import (
    PartitionPlan,
    PartitionRewrite,
    RewriteTask,
    SegmentResult,
    SegmentTask,
    plan_partition,
    rewrite_segment,
)
from sediment.jobs.rewriting.report import UNCHANGED, RewriteReport, listed, segments_after
from sediment.jobs.settings.directories import SelectedDirectory, check_filesystem
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.running_brokers import warn_of_running
from sediment.jobs.spark.cancellation import RunStopped, cancel_when
from sediment.jobs.spark.session import spark_context
from sediment.jobs.spark.task_pool import run_on_executors
from sediment.segment_io.errors import SedimentError, UncleanDirectoryError
from sediment.segment_io.format.names import INTERNAL_TOPICS, TopicPartition, new_run_id
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing, list_log

Report = TypeVar("Report", bound=RewriteReport)
Own = TypeVar("Own", bound=RewriteOptions)

INTERRUPTED = "interrupted"
INTERNAL_TOPIC = "internal-topic"
NO_HIGH_WATERMARK = "no-high-watermark"


@dataclass(frozen=True, slots=True)
class SelectedPartition:
    """A partition that the command may rewrite: its listing, and the settings that apply."""

    listing: LogListing
    directory: SelectedDirectory
    settings: Settings
    config: LogConfig

    @property
    def partition(self) -> TopicPartition:
        """The partition."""
        return self.listing.partition


@dataclass(slots=True)
class PlannedPartition:
    """A partition with its plan, and the results of its segments so far."""

    selected: SelectedPartition
    plan: PartitionPlan
    results: list[SegmentResult] = field(default_factory=list)
    failure: CleaningResult | None = None
    finished: int = 0

    @property
    def listing(self) -> LogListing:
        """Listing of the partition."""
        return self.selected.listing


class RewritingRun(ABC, Generic[Own, Report]):
    """Run of a rewriting command in place; the stack closes locks, tokens and Spark."""

    command: ClassVar[str]
    rewrites_in_dry_run: ClassVar[bool]
    """True if a dry run rewrites in memory, so that its figures are exact; False if the plans are enough."""

    def __init__(self, options: CommonOptions, own: Own, stop: threading.Event, stack: ExitStack) -> None:
        self.run_id = new_run_id()
        self.timer = StageTimer()
        self.catalogue: Path | None = None
        self._options = options
        self._own = own
        self._stop = stop
        self._stack = stack
        self._fs = Fs()
        self._locks: dict[Path, DirectoryLock] = {}
        self._directories: list[SelectedDirectory] = []
        self._originals: BackupLinks | None = None

    # -------------------------------------------------------------------------------------- what a command decides
    @abstractmethod
    def _why_not(self, selected: SelectedPartition) -> tuple[str, str] | None:
        """Return the reason code and text if a partition is skipped, else None.

        Raises:
            SedimentError: the partition fails.
        """

    @abstractmethod
    def _rewrites(
        self, sc: Any, partitions: Sequence[SelectedPartition]
    ) -> Iterator[tuple[SelectedPartition, PartitionRewrite | CleaningResult]]:
        """Yield the rewrite of each partition, or its failure."""

    @abstractmethod
    def _approve(self, planned: Sequence[PlannedPartition]) -> None:
        """Raise an error to end the run before anything changes."""

    @abstractmethod
    def _report(self, report: RewriteReport, planned: PlannedPartition | None) -> Report:
        """Return the command's report of a partition; `planned` is None if the partition was not planned.

        The status of `report` is that of an error, UNCHANGED, or "" for a partition that was rewritten.
        """

    def _finish(self, reports: list[Report]) -> list[Report]:
        """Return the reports after the last steps of the command, which still holds the locks."""
        return reports

    # ------------------------------------------------------------------------------------------------------ the run
    def perform(self) -> list[Report]:
        """Return a report for every selected partition."""
        self._directories = self._open_directories()
        reports: list[Report] = []
        selected: list[SelectedPartition] = []
        for directory in self._directories:
            for each in self._select(directory):
                if isinstance(each, SelectedPartition):
                    selected.append(each)
                else:
                    reports.append(self._logged(each, None))
        self.timer.lap(LIST)
        if selected:
            reports.extend(self._plan_and_rewrite(selected))
        if self._originals is not None:
            self.catalogue = end_originals(self._originals, reports)
        return self._finish(reports)

    def _open_directories(self) -> list[SelectedDirectory]:
        """Check every directory before any change; read them again under their locks."""
        options, own = self._options, self._own
        options.open_directories(self._fs, in_place=not own.dry_run)
        if own.keep_originals is not None:
            outside_log_dirs(str(own.keep_originals), options.log_dirs)
        if own.dry_run:
            directories = options.open_directories(self._fs)
            warn_of_running(directories)
            return directories
        for path in options.log_dirs:
            check_filesystem(path, allow_network=own.allow_network_fs)
            if own.keep_originals is not None:
                check_originals_path(own.keep_originals, path, self._fs)
            self._locks[path] = self._stack.enter_context(DirectoryLock(path))
        directories = options.open_directories(self._fs, in_place=True)
        for directory in directories:
            if directory.is_unclean:
                raise UncleanDirectoryError(
                    "the last stop of the broker was not clean",
                    path=str(directory.path),
                    advice=f"run `sediment recover {directory.path}` first",
                )
        for path in options.log_dirs:
            place_run_token(path, self.run_id)
            self._stack.callback(remove_run_token, path)
        return directories

    # ----------------------------------------------------------------------------------------------------- selection
    def _select(self, directory: SelectedDirectory) -> Iterator[SelectedPartition | RewriteReport]:
        for partition in directory.partitions:
            try:
                yield self._select_partition(directory, partition)
            except (SedimentError, OSError) as error:
                yield RewriteReport(str(partition), str(directory.path), FAILED, *describe(error))

    def _select_partition(
        self, directory: SelectedDirectory, partition: TopicPartition
    ) -> SelectedPartition | RewriteReport:
        path = directory.path / str(partition)
        listing = list_log(partition, path, self._fs)
        if partition.topic in INTERNAL_TOPICS and not self._options.selection.names_topic(partition.topic):
            reason = f"the topic is internal; name it to change it: --partition {partition}"
            return listed(listing, SKIPPED, INTERNAL_TOPIC, reason)
        checkpoints = directory.checkpoints.of(partition)
        if checkpoints.high_watermark is None and checkpoints.high_watermark_file:
            reason = "the replication checkpoint does not list the partition"
            return listed(listing, SKIPPED, NO_HIGH_WATERMARK, reason)
        if listing.is_replacement_open() and self._own.dry_run:
            reason = "an earlier run or broker was interrupted here; run without --dry-run to finish that first"
            return listed(listing, SKIPPED, INTERRUPTED, reason)
        if not self._own.dry_run and finish_interrupted(path, self._fs):
            listing = list_log(partition, path, self._fs)
        settings = directory.settings_of(partition, self._fs)
        selected = SelectedPartition(listing, directory, settings, settings.for_topic(partition.topic))
        if why := self._why_not(selected):
            return listed(listing, SKIPPED, *why)
        return selected

    # ------------------------------------------------------------------------------------------------ plan and rewrite
    def _plan_and_rewrite(self, selected: Sequence[SelectedPartition]) -> Iterator[Report]:
        total_bytes = sum(each.listing.log_bytes() for each in selected)
        try:
            sc = self._stack.enter_context(spark_context(self._options.master, f"sediment {self.command}"))
        except RunStopped:
            stopped = failure(*why_lost(self._stop, None, "planned"))
            yield from (self._failed(each.listing, stopped, None) for each in selected)
            return
        self.timer.lap(SPARK)
        self._stack.enter_context(cancel_when(self._stop, sc, self.run_id))
        with Progress(self._options.messages(), len(selected), total_bytes, phase="planning") as progress:
            planned: list[PlannedPartition] = []
            for each in self._planned(sc, selected):
                if isinstance(each, PlannedPartition):
                    planned.append(each)
                else:
                    yield each
                    progress.advance(0)
        self.timer.lap(PLAN)
        if self._own.dry_run and not self.rewrites_in_dry_run:
            yield from (self._settled(each) for each in planned)
            return
        self._approve(planned)
        self.timer.restart()
        planned, unlisted = self._begin_originals(planned)
        yield from unlisted
        with Progress(
            self._options.messages(), len(planned), sum(each.plan.log_bytes() for each in planned), phase="rewriting"
        ) as progress:
            for each in self._rewritten(sc, planned):
                yield self._settled(each)
                self.timer.lap(COMMIT)
                progress.advance(each.plan.log_bytes())
        self._end(planned)

    def _planned(self, sc: Any, selected: Sequence[SelectedPartition]) -> Iterator[PlannedPartition | Report]:
        limit = rate_limit(sc, self.run_id, self._directories)
        by_path = {each.listing.path: each for each in selected}
        tasks: list[RewriteTask] = []
        for each, found in self._rewrites(sc, selected):
            if isinstance(found, CleaningResult):
                yield self._failed(each.listing, found, None)
                continue
            tasks.append(
                RewriteTask(
                    each.listing,
                    each.directory.checkpoints.of(each.partition),
                    each.config.compaction,
                    found,
                    self._options.now_ms,
                    self.run_id,
                    self._own.dry_run,
                    limit,
                )
            )
        for results in run_on_executors(
            sc, tasks, plan_partition, RewriteTask.weight, group=self.run_id, is_stopped=self._stop.is_set
        ):
            for done in results:
                plan = done.result or failure(*why_lost(self._stop, done.error, "planned"))
                if isinstance(plan, CleaningResult):
                    yield self._failed(done.item.listing, plan, None)
                else:
                    yield PlannedPartition(by_path[done.item.listing.path], plan)

    def _rewritten(self, sc: Any, planned: Sequence[PlannedPartition]) -> Iterator[PlannedPartition]:
        """Yield each partition as soon as all of its segments have a result."""
        limit = rate_limit(sc, self.run_id, self._directories)
        by_path = {each.listing.path: each for each in planned}
        yield from (each for each in planned if not each.plan.segments)
        tasks = [
            SegmentTask(
                replace(each.listing, segments=(work.segment,)),
                work,
                self._options.now_ms,
                self.run_id,
                self._own.dry_run,
                limit,
            )
            for each in planned
            for work in each.plan.segments
        ]
        for results in run_on_executors(
            sc, tasks, rewrite_segment, SegmentTask.weight, group=self.run_id, is_stopped=self._stop.is_set
        ):
            self.timer.lap(CLEAN)
            for done in results:
                each = by_path[done.item.listing.path]
                result = done.result or failure(*why_lost(self._stop, done.error, "rewritten"))
                if isinstance(result, CleaningResult):
                    each.failure = each.failure or result
                else:
                    each.results.append(result)
                each.finished += 1
                if each.finished == len(each.plan.segments):
                    yield each

    # ------------------------------------------------------------------------------------------------------- originals
    def _begin_originals(self, planned: Sequence[PlannedPartition]) -> tuple[list[PlannedPartition], list[Report]]:
        """Write the catalogue; return the partitions in it, and reports of those whose files cannot be read."""
        target = self._own.keep_originals
        if target is None or self._own.dry_run or not any(each.plan.segments for each in planned):
            return list(planned), []
        listings = [each.listing for each in planned if each.plan.segments]
        self._originals, unlisted = begin_originals(
            self._options, self.command, self.run_id, target, listings, self._fs
        )
        failed = {listing.path: failure(code, text) for listing, code, text in unlisted}
        left = [each for each in planned if each.listing.path not in failed]
        return left, [self._failed(listing, failed[listing.path], None) for listing, _, _ in unlisted]

    def _end(self, planned: Sequence[PlannedPartition]) -> None:
        """Remove the tokens, then the parts that were not committed: a lost attempt may still try to write."""
        if self._own.dry_run:
            return
        for path in self._options.log_dirs:
            remove_run_token(path)
        for each in planned:
            discard_parts(each.listing.path, self.run_id, self._fs)

    # ---------------------------------------------------------------------------------------------------------- commit
    def _settled(self, planned: PlannedPartition) -> Report:
        """Commit a partition and return its report."""
        if planned.failure is not None:
            return self._failed(planned.listing, planned.failure, planned)
        groups = tuple(sorted((each.group for each in planned.results), key=lambda group: group.sources[0].base_offset))
        changed = [group for group in groups if group.parts]
        if changed and not self._own.dry_run:
            try:
                is_done = not self._stop.is_set() and self._commit(
                    planned,
                    PreparedSwap(
                        planned.selected.partition,
                        str(planned.listing.path),
                        groups,
                        planned.plan.next_dirty_offset or 0,
                    ),
                )
            except TASK_ERRORS as error:
                return self._failed(planned.listing, failure(*describe(error)), planned)
            if not is_done:
                stopped = failure(STOPPED, "the run was stopped before this partition was rewritten completely")
                return self._failed(planned.listing, stopped, planned)
        after = segments_after(planned.listing, groups)
        is_counted = self._own.dry_run and not self.rewrites_in_dry_run and bool(planned.plan.segments)
        report = replace(
            listed(planned.listing, "" if changed or is_counted else UNCHANGED),
            bytes_after=None if is_counted else sum(size for _, size in after),
            segments=tuple(base for base, _ in after),
            segments_rewritten=len(planned.plan.segments) if is_counted else len(changed),
        )
        return self._logged(report, planned)

    def _commit(self, planned: PlannedPartition, swap: PreparedSwap) -> bool:
        """Commit a swap; return False if a stop interrupted it."""
        log_dir, partition = planned.listing.path.parent, planned.selected.partition
        lock = self._locks[log_dir]
        if self._originals is not None:
            self._originals.keep_swap(swap)
        first_dirty = planned.selected.directory.checkpoints.of(partition).first_dirty
        lowered = planned.plan.next_dirty_offset
        if first_dirty is not None and lowered is not None and lowered < first_dirty:
            lock.check()
            update_cleaner_checkpoint(self._fs, log_dir, {partition: lowered})
        return commit(swap, self._fs, before_group=lock.check, should_stop=self._stop.is_set)

    # --------------------------------------------------------------------------------------------------------- reports
    def _failed(self, listing: LogListing, why: CleaningResult, planned: PlannedPartition | None) -> Report:
        """Return the report of a partition that was not rewritten because of an error; mark corrupt data."""
        status = FAILED
        if why.uncleanable is not None:
            status = QUARANTINED
            if not self._own.dry_run:
                try:
                    update_uncleanable(listing.path.parent, self._fs, add=[why.uncleanable])
                except OSError as error:
                    self._options.messages().print(
                        f"sediment: could not record the quarantined partition: {describe(error)[1]}",
                        style="red",
                        markup=False,
                    )
        with_segments = listed(listing, status, why.reason_code, why.reason)
        return self._logged(self._as_it_is(with_segments, listing), planned)

    def _as_it_is(self, report: RewriteReport, listing: LogListing) -> RewriteReport:
        """Return `report` with the segments now in the directory, because a commit may have ended halfway."""
        try:
            now = list_log(listing.partition, listing.path, self._fs)
        except (SedimentError, OSError):
            return report
        left = tuple(segment.base_offset for segment in now.segments)
        return replace(report, bytes_after=now.log_bytes(), segments=left)

    def _logged(self, report: RewriteReport, planned: PlannedPartition | None) -> Report:
        finished = self._report(report, planned)
        log_partition(self.run_id, self.command, finished)
        return finished
