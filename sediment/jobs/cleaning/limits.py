"""--max-bytes and --max-seconds: the partitions that a run cleans, the filthiest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sediment.jobs.cleaning.estimates import Shares
from sediment.jobs.cleaning.options import CleaningTask
from sediment.jobs.cleaning.report import untouched
from sediment.jobs.cleaning.task import survey_partition
from sediment.jobs.reporting.run_report import SKIPPED, PartitionReport
from sediment.jobs.rewriting.result import CleaningResult, SurveyResult
from sediment.jobs.rewriting.run import Run
from sediment.jobs.spark.job_names import titled
from sediment.jobs.spark.task_pool import TaskResult
from sediment.segment_io.format.layout import INT64_MAX

if TYPE_CHECKING:
    from sediment.compaction.cleanable_range import CleanableRange

MAX_BYTES = "max-bytes"
LIMITS = (MAX_BYTES, "max-seconds")
"""The reason codes of partitions beyond a limit, which are also the names of the options."""

Cleaned = TaskResult[CleaningTask, CleaningResult]


def within_limits(
    run: Run[PartitionReport], tasks: Sequence[CleaningTask], shares: Shares, max_bytes: int | None
) -> tuple[list[CleaningTask], list[Cleaned], list[PartitionReport]]:
    """Plan all partitions, in tasks, and choose those to clean, in this order.

    The others are returned with the result that there is no work, or with the report that they are beyond --max-bytes.
    """
    from sediment.compaction.cleanable_range import filthiest_first

    without_work: list[Cleaned] = []
    cleanable: list[tuple[tuple[CleaningTask, int], CleanableRange]] = []
    for results in run.in_tasks(
        tasks,
        survey_partition,
        CleaningTask.weight,
        prepare=shares.given,
        title=titled("plan", CleaningTask.partition),
    ):
        for each in results:
            if isinstance(each.result, SurveyResult):
                cleanable.append(((each.item, each.result.cleaned_bytes), each.result.cleanable))
            else:
                without_work.append(TaskResult(each.item, each.result, each.error))
    chosen, beyond = [], []
    left_bytes = INT64_MAX if max_bytes is None else max_bytes
    for task, needed_bytes in filthiest_first(cleanable):
        if needed_bytes <= left_bytes:
            chosen.append(task)
            left_bytes -= needed_bytes
            continue
        reason = (
            f"its cleaning reads {needed_bytes} bytes, but only {left_bytes} of --max-bytes {max_bytes} are left; run "
            "again to continue"
        )
        beyond.append(untouched(task.listing, SKIPPED, MAX_BYTES, reason))
    return chosen, without_work, beyond
