"""The jobs of partitions that are cleaned in splits, for a task pool."""

from __future__ import annotations

from functools import partial
from typing import Any

from sediment.jobs.cleaning.options import CleaningTask
from sediment.jobs.rewriting.result import CleaningResult
from sediment.jobs.spark.task_pool import Jobs


def cleaning_in_splits(sc: Any) -> Jobs[CleaningTask, CleaningResult]:
    """Return the jobs of partitions that are cleaned in splits, in their own directories."""
    return Jobs(CleaningResult.asks_for_splits, partial(_cleaned_in_splits, sc))


def _cleaned_in_splits(sc: Any, task: CleaningTask, asked: CleaningResult, slots: int) -> CleaningResult:
    # Imported late, because this module compiles kernels that the driver needs only for splits.
    from sediment.jobs.cleaning.splits import clean_in_place

    return clean_in_place(sc, task, asked, slots)
