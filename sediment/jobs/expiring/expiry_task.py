"""A partition with expired segments, and its report after the deletion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.engine.directory.delete_segments import bases_after
from sediment.jobs.expiring.report import DeletedSegment, ExpiryReport
from sediment.jobs.reporting.error_text import describe_in_expire
from sediment.jobs.reporting.run_report import FAILED
from sediment.retention.policy import RetentionPlan
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log

if TYPE_CHECKING:
    from sediment.segment_io.partition.log_view import LogView


@dataclass(frozen=True, slots=True)
class ExpiryTask:
    """Partition with expired segments: its view, its plan, and the report to return after the deletion.

    With `keep_deleted`, the files keep their `.deleted` names until the next broker start removes them.  `files` are
    the names of the files to remove; this field is set when the files are in the catalogue of originals.
    """

    view: LogView
    plan: RetentionPlan
    report: ExpiryReport
    keep_deleted: bool
    checkpoints: PartitionCheckpoints
    files: tuple[str, ...] = ()

    @property
    def partition(self) -> TopicPartition:
        return self.view.listing.partition

    @property
    def log_dir(self) -> Path:
        return self.view.listing.path.parent

    def broken_off(self, error: SedimentError | OSError, fs: Fs) -> ExpiryReport:
        code, text = describe_in_expire(error)
        if code == "no-space" and isinstance(error, OSError):
            text = f"the disk is full ({error.filename})"
        start = self.plan.log_start_offset
        reason = (
            f"{text}; the log now starts at offset {start}, and the next run removes the segments below this offset"
        )
        return self._as_it_is(replace(self.report, status=FAILED, reason_code=code, reason=reason), fs)

    def left_alone(self, code: str, reason: str, fs: Fs) -> ExpiryReport:
        report = replace(
            self.report,
            status=FAILED,
            reason_code=code,
            reason=reason,
            log_start_offset=self.view.log_start_offset,
            messages_archived=None,
        )
        return self._as_it_is(report, fs)

    def _as_it_is(self, report: ExpiryReport, fs: Fs) -> ExpiryReport:
        try:
            listing = list_log(self.partition, self.view.listing.path, fs)
        except (SedimentError, OSError):
            return report
        left = tuple(segment.base_offset for segment in listing.segments)
        return replace(
            report,
            bytes_after=listing.log_bytes(),
            segments=left,
            deleted_segments=tuple(each for each in report.deleted_segments if each.base_offset not in left),
        )


def carried_out(report: ExpiryReport, view: LogView, plan: RetentionPlan) -> ExpiryReport:
    return replace(
        report,
        log_start_offset=plan.log_start_offset,
        bytes_after=report.bytes_before - plan.deleted_bytes,
        segments=bases_after(view, plan),
        deleted_segments=tuple(
            DeletedSegment(fate.segment.base_offset, fate.segment.log_bytes, str(fate.rule)) for fate in plan.deleted
        ),
    )
