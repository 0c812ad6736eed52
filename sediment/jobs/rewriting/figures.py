"""Figures that tasks show in Spark's UI, from the results of the tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sediment.jobs.rewriting.partition_task import SegmentTask, WrittenSegment
from sediment.jobs.rewriting.result import CleaningResult
from sediment.jobs.spark.task_figures import Figures

if TYPE_CHECKING:
    from sediment.compaction.prepared_swap import CleanedGroup


def of_groups(groups: Iterable[CleanedGroup]) -> Figures:
    stats = [group.stats for group in groups]
    read, kept = sum(each.messages_read for each in stats), sum(each.messages_written for each in stats)
    return Figures(
        bytes_read=sum(each.bytes_read for each in stats),
        bytes_written=sum(each.bytes_written for each in stats),
        records_read=read,
        records_kept=kept,
        records_dropped=read - kept,
    )


def of_cleaning(_task: object, result: CleaningResult) -> Figures:
    return Figures() if result.swap is None else of_groups(result.swap.groups)


def of_segment(_task: SegmentTask, result: WrittenSegment | CleaningResult) -> Figures:
    return Figures() if isinstance(result, CleaningResult) else of_groups([result.result.group])
