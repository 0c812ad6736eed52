"""Tasks of a rewriting command: plan one partition, and rewrite one of its segments.

    driver   RewriteTask ──> plan_partition ──> PartitionPlan ──> a SegmentTask each ──> rewrite_segment ──> driver
                              view, free space                     .part files

Invariants: nothing is renamed here.  A segment's task needs no other segment, so tasks run anywhere and in any order.
An error of a partition is part of its result, so Spark does not retry a task that would fail again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sediment.compaction.config import CompactionConfig
from sediment.jobs.cleaning.environment import OnBytes, task_environment
from sediment.jobs.cleaning.options import RateLimit
from sediment.jobs.cleaning.result import TASK_ERRORS, CleaningResult, failed_task
from sediment.segment_io.errors import NoSpaceError, SourceChangedError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing, SegmentRef, list_log
from sediment.segment_io.partition.log_dir_checkpoints import PartitionCheckpoints

if TYPE_CHECKING:
    from sediment.compaction.prepared_swap import CleanedGroup
    from sediment.segment_io.partition.log_view import LogView


# ----------------------------------------------------------------------------------- what a command has to bring along
class SegmentResult(Protocol):
    """Result of one segment; its group has no parts if the segment stays unchanged."""

    @property
    def group(self) -> CleanedGroup:
        """The segment and its replacement."""
        ...


class SegmentRewrite(Protocol):
    """Rewrite of one segment; it is pickled."""

    @property
    def segment(self) -> SegmentRef:
        """The segment."""
        ...

    def rewrite(self, fs: Fs, *, run_id: str, attempt: str, progress: OnBytes) -> SegmentResult:
        """Write the new segment to synced `.part` files; if that fails, leave none.

        Raises:
            SedimentError, OSError: the segment cannot be rewritten.
        """
        ...


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """Segments of one partition to rewrite, ascending.

    The cleaner checkpoint must not exceed `next_dirty_offset` after the rewrite; None: it stays unchanged.  `found`
    holds the command's own findings for its report.
    """

    segments: tuple[SegmentRewrite, ...]
    next_dirty_offset: int | None = None
    found: Any = None

    def log_bytes(self) -> int:
        """Return the `.log` bytes to rewrite."""
        return sum(each.segment.log_bytes for each in self.segments)


class PartitionRewrite(Protocol):
    """Rewrite of one partition; it is pickled."""

    def plan(self, view: LogView, config: CompactionConfig, fs: Fs) -> PartitionPlan:
        """Return the segments to rewrite.

        Raises:
            SedimentError, OSError: the partition cannot be rewritten.
        """
        ...


# ------------------------------------------------------------------------------------------------------------ the tasks
@dataclass(frozen=True, slots=True)
class RewriteTask:
    """One partition to plan, as sent to an executor."""

    listing: LogListing
    checkpoints: PartitionCheckpoints
    config: CompactionConfig
    rewrite: PartitionRewrite
    now_ms: int
    run_id: str
    dry_run: bool
    rate_limit: RateLimit = field(default_factory=RateLimit)

    @property
    def log_dir(self) -> Path:
        """Log directory."""
        return self.listing.path.parent

    def weight(self) -> int:
        """Return the `.log` bytes of the partition; tasks are packed by this number."""
        return self.listing.log_bytes()


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """One segment to rewrite, as sent to an executor; `listing` has only this segment."""

    listing: LogListing
    rewrite: SegmentRewrite
    now_ms: int
    run_id: str
    dry_run: bool
    rate_limit: RateLimit

    @property
    def log_dir(self) -> Path:
        """Log directory."""
        return self.listing.path.parent

    def weight(self) -> int:
        """Return the `.log` bytes of the segment; tasks are packed by this number."""
        return self.rewrite.segment.log_bytes


def plan_partition(task: RewriteTask, _attempt: str) -> PartitionPlan | CleaningResult:
    """Plan one partition; return the failure if that is impossible."""
    # Imported late: it compiles kernels, which the driver never needs.
    from sediment.segment_io.partition.log_view import open_view

    listing = task.listing
    try:
        with task_environment(task) as (fs, _on_bytes):
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
            advice="check if another disk is mounted at this path, or if another process writes to it",
        )


def _check_free_space(task: RewriteTask, plan: PartitionPlan, fs: Fs) -> None:
    """Check that the disk can hold all new segments of the partition, because they are written before the commit."""
    needed, free = plan.log_bytes(), fs.free_bytes(task.listing.path)
    if free < needed and not task.dry_run:
        raise NoSpaceError(
            f"the disk has {free} bytes free and the new segments need about {needed}",
            partition=str(task.listing.partition),
            path=str(task.listing.path),
            advice="free some space and run again; nothing was changed",
        )


def rewrite_segment(task: SegmentTask, attempt: str) -> SegmentResult | CleaningResult:
    """Rewrite one segment; return the failure if that is impossible."""
    try:
        with task_environment(task) as (fs, on_bytes):
            return task.rewrite.rewrite(fs, run_id=task.run_id, attempt=attempt, progress=on_bytes)
    except TASK_ERRORS as error:
        return failed_task(task, error)
