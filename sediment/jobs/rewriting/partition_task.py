"""Tasks of a rewriting command: plan one partition, and rewrite one of its segments.

1. The driver sends a `RewriteTask` to `plan_rewrite_of`, which views the partition and checks the free space.  The
   result is a `PartitionRewritePlan`.
2. For each segment of the plan, the driver sends a `SegmentTask` to `rewrite_segment_task`, which writes `.part` files,
   or files of an output.

Invariants: tasks rename nothing in a source directory.  The task of a segment needs no other segment, so tasks can run
on any executor and in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from sediment.compaction.config import CompactionConfig
from sediment.engine.copying.stand_in import errors_naming
from sediment.engine.directory.output import SourcePublishingFs
from sediment.engine.directory.swap import discard_parts
from sediment.jobs.publishing.partition_output import PartitionOutput
from sediment.jobs.rewriting.result import TASK_ERRORS, CleaningResult, failed_task
from sediment.jobs.spark.live_slots import LiveSlots
from sediment.jobs.spark.task_environment import OnBytes, RateLimit, TaskOfRun, task_environment, throttled
from sediment.segment_io.errors import NoSpaceError, SourceChangedError
from sediment.segment_io.format.names import Attempt, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.manifest import ManifestFile
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import LogListing, SegmentRef, list_log

if TYPE_CHECKING:
    from sediment.compaction.prepared_swap import CleanedGroup
    from sediment.segment_io.partition.log_view import LogView


# --------------------------------------------------------------------------------------- parts that a command provides
class SegmentResult(Protocol):
    """Result of one segment; its group has no parts if the segment stays unchanged."""

    @property
    def group(self) -> CleanedGroup: ...


class SegmentRewrite(Protocol):
    @property
    def segment(self) -> SegmentRef: ...

    def rewrite(self, fs: Fs, attempt: Attempt) -> SegmentResult:
        """Write the new segment to synced `.part` files; after an error, leave none of them."""
        ...


@dataclass(frozen=True, slots=True)
class PartitionRewritePlan:
    """Segments of one partition to rewrite, ascending.

    After the rewrite, the cleaner checkpoint must not exceed `next_dirty_offset`, which is None if the checkpoint does
    not change.  `found` contains findings that the command needs for its report.
    """

    segments: tuple[SegmentRewrite, ...]
    next_dirty_offset: int | None = None
    found: Any = None

    def log_bytes(self) -> int:
        return sum(each.segment.log_bytes for each in self.segments)


class PartitionRewrite(Protocol):
    def plan(self, view: LogView, config: CompactionConfig, fs: Fs) -> PartitionRewritePlan: ...


# ------------------------------------------------------------------------------------------- where the segments go
class TaskOfPartition(TaskOfRun, Protocol):
    @property
    def listing(self) -> LogListing: ...


class TaskPlace(Protocol):
    """The place where a task reads a partition and writes new segments, pickled for the executors."""

    def environment(self, task: TaskOfPartition) -> AbstractContextManager[tuple[Fs, OnBytes]]:
        """Yield the file operations of a task, and the callback for the bytes that it reads.

        Raises:
            SourceChangedError: the task sees a different directory than the driver.
        """
        ...

    def reading(self, listing: LogListing) -> AbstractContextManager[Fs]:
        """Yield file operations that read the partition; errors name its directory by the same path as reports."""
        ...

    def publish(self, fs: Fs, group: CleanedGroup) -> tuple[ManifestFile, ...]:
        """Give the files of a new segment their final names in the output, and return the renamed files."""
        ...

    def discard(self, task: TaskOfPartition) -> None:
        """Remove all parts that tasks wrote for a partition; called on the driver if none of them is used."""
        ...


@dataclass(frozen=True, slots=True)
class InPlace:
    def environment(self, task: TaskOfPartition) -> AbstractContextManager[tuple[Fs, OnBytes]]:
        """Yield file operations that write only while the run's token is in the directory (`task_environment`)."""
        return task_environment(task)

    def reading(self, _listing: LogListing) -> AbstractContextManager[Fs]:
        return nullcontext(Fs())

    def publish(self, _fs: Fs, _group: CleanedGroup) -> tuple[ManifestFile, ...]:
        return ()

    def discard(self, task: TaskOfPartition) -> None:
        if not task.dry_run:
            discard_parts(task.listing.path, task.run_id, Fs())


@dataclass(frozen=True, slots=True)
class InOutput:
    """New segments are files of an output; the source is only read (at a URI, in ranges)."""

    files: PartitionOutput

    @contextmanager
    def environment(self, task: TaskOfPartition) -> Iterator[tuple[Fs, OnBytes]]:
        """Yield file operations that read the source, and write parts to the output as long as the run owns the output.

        Errors name the source, and not its temporary directory.
        """
        with errors_naming(self.files.shown, task.listing.path), throttled(task.rate_limit) as on_bytes:
            self.files.check_listed()
            yield replace(self.files, dry_run=task.dry_run).source_fs(on_bytes), on_bytes

    @contextmanager
    def reading(self, listing: LogListing) -> Iterator[Fs]:
        with errors_naming(self.files.shown, listing.path):
            yield self.files.reading_fs()

    def publish(self, fs: Fs, group: CleanedGroup) -> tuple[ManifestFile, ...]:
        assert isinstance(fs, SourcePublishingFs)
        return tuple(fs.take(part) for segment in group.parts for part in segment.files)

    def discard(self, task: TaskOfPartition) -> None:
        """Do nothing: a complete output keeps only the files that the manifest names."""


# ------------------------------------------------------------------------------------------------------------ the tasks
@dataclass(frozen=True, slots=True)
class PlacedTask:
    listing: LogListing
    place: TaskPlace
    now_ms: int
    run_id: str
    dry_run: bool
    rate_limit: RateLimit

    @property
    def log_dir(self) -> Path:
        return self.listing.path.parent

    def weight(self) -> int:
        return self.listing.log_bytes()

    def partition(self) -> TopicPartition:
        return self.listing.partition

    def with_rate_share(self, slots: LiveSlots) -> Self:
        """Return the task with its executor's share of the I/O rate."""
        return replace(self, rate_limit=self.rate_limit.over(slots))


@dataclass(frozen=True, slots=True)
class RewriteTask(PlacedTask):
    rewrite: PartitionRewrite
    checkpoints: PartitionCheckpoints
    config: CompactionConfig


@dataclass(frozen=True, slots=True)
class SegmentTask(PlacedTask):
    """One segment to rewrite; `listing` has only this segment."""

    rewrite: SegmentRewrite


def plan_rewrite_of(task: RewriteTask, _attempt: str) -> PartitionRewritePlan | CleaningResult:
    # Imported late, because this module compiles kernels that the driver never needs.
    from sediment.segment_io.partition.log_view import open_view

    listing = task.listing
    try:
        with task.place.environment(task) as (fs, _on_bytes):
            _check_listed(task, fs)
            view = open_view(
                listing,
                task.checkpoints,
                fs,
                now_ms=task.now_ms,
                producer_id_expiration_ms=task.config.producer_id_expiration_ms,
            )
            plan = task.rewrite.plan(view, task.config, fs)
            _check_free_space(task, plan, fs)
            return plan
    except TASK_ERRORS as error:
        return failed_task(task, error)


def _check_listed(task: RewriteTask, fs: Fs) -> None:
    listing = task.listing
    if list_log(listing.partition, listing.path, fs).segments != listing.segments:
        raise SourceChangedError(
            "the segments differ from those that the driver listed",
            partition=str(listing.partition),
            path=str(listing.path),
            advice="check whether another disk is mounted at this path, or whether another process writes to it",
        )


def _check_free_space(task: RewriteTask, plan: PartitionRewritePlan, fs: Fs) -> None:
    """Check that the disk can hold all new segments of the partition, because they are written before the commit."""
    needed, free = plan.log_bytes(), fs.free_bytes(task.listing.path)
    if free < needed and not task.dry_run:
        raise NoSpaceError(
            f"the disk has {free} bytes free and the new segments need about {needed}",
            partition=str(task.listing.partition),
            path=str(task.listing.path),
            advice="free some space, for example with `sediment expire`, and run again; nothing was changed",
        )


@dataclass(frozen=True, slots=True)
class WrittenSegment:
    result: SegmentResult
    files: tuple[ManifestFile, ...]


def rewrite_segment_task(task: SegmentTask, attempt: str) -> WrittenSegment | CleaningResult:
    try:
        with task.place.environment(task) as (fs, on_bytes):
            result = task.rewrite.rewrite(fs, Attempt(task.run_id, attempt, on_bytes))
            return WrittenSegment(result, () if task.dry_run else task.place.publish(fs, result.group))
    except TASK_ERRORS as error:
        return failed_task(task, error)
