"""--max-bytes and --max-seconds: the partitions that a run cleans, the filthiest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sediment.jobs.cleaning.options import CleaningTask
from sediment.jobs.cleaning.report import untouched
from sediment.jobs.cleaning.task import survey_partition
from sediment.jobs.reporting.run_report import SKIPPED, PartitionReport
from sediment.jobs.rewriting.result import CleaningResult, SurveyResult
from sediment.jobs.rewriting.run import Run
from sediment.jobs.spark.task_pool import TaskResult, run_on_executors
from sediment.segment_io.format.layout import INT64_MAX

if TYPE_CHECKING:
    from sediment.compaction.cleanable_range import CleanableRange

MAX_BYTES = "max-bytes"
LIMITS = (MAX_BYTES, "max-seconds")
"""The reason codes of partitions beyond a limit, which are also the names of the options."""


class WithinLimits(NamedTuple):
    """The tasks to perform, in their order; the results of partitions without work; reports beyond --max-bytes."""

    tasks: list[CleaningTask]
    without_work: list[TaskResult[CleaningTask, CleaningResult]]
    beyond: list[PartitionReport]


def within_limits(
    run: Run[PartitionReport], sc: Any, tasks: Sequence[CleaningTask], max_bytes: int | None
) -> WithinLimits:
    """Plan all partitions, in tasks, and choose those to clean."""
    from sediment.compaction.cleanable_range import filthiest_first

    without_work: list[TaskResult[CleaningTask, CleaningResult]] = []
    cleanable: list[tuple[tuple[CleaningTask, int], CleanableRange]] = []
    for results in run_on_executors(
        sc, tasks, survey_partition, CleaningTask.weight, group=run.run_id, is_stopped=run.stop.is_set
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
    return WithinLimits(chosen, without_work, beyond)
