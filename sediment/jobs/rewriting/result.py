"""Results of the tasks that survey or clean one partition.

Invariant: an error of a partition is part of its result, so Spark does not retry a task that would fail again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from sediment.compaction.keyless_records import KEYLESS_RECORDS, loses_mostly_keyless, why_left_alone
from sediment.engine.directory.uncleanable import Uncleanable, uncleanable_after
from sediment.jobs.reporting.error_text import describe
from sediment.segment_io.errors import CorruptCheckpointError, CorruptDataError, LimitReachedError, SedimentError
from sediment.segment_io.format.layout import INT64_MAX

if TYPE_CHECKING:
    from sediment.compaction.chunk_reader import ChunkBoundaries
    from sediment.compaction.cleanable_range import CleanableRange
    from sediment.compaction.grouping import CleaningPlan
    from sediment.compaction.prepared_swap import PreparedSwap
    from sediment.segment_io.partition.listing import LogListing

Outcome = TypeVar("Outcome")

MAX_SECONDS = "max-seconds"
TASK_ERRORS = (SedimentError, OSError)


@dataclass(frozen=True, slots=True)
class SplitPlan:
    plan: CleaningPlan
    boundaries: dict[int, ChunkBoundaries]
    task_memory_bytes: int = INT64_MAX


@dataclass(frozen=True, slots=True)
class SurveyResult:
    cleanable: CleanableRange
    cleaned_bytes: int


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """Outcome of a cleaning task: a `swap` to commit, or the `reason` why there is none.

    `failed` is True after an error, and False for a partition without work.  `reset_checkpoint` replaces an invalid
    first dirty offset in the cleaner checkpoint, even if nothing was cleaned.  `uncleanable` is the quarantine mark of
    a corrupt partition.  If `to_split` is set, this task only planned the partition, and many tasks must clean it in
    splits.  `records_without_key` is set if the cleaning was refused because of these records.
    """

    swap: PreparedSwap | None = None
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    reset_checkpoint: int | None = None
    reason_code: str | None = None
    reason: str | None = None
    failed: bool = False
    uncleanable: Uncleanable | None = None
    dirty_ratio: float | None = None
    seconds_by_stage: Mapping[str, float] = field(default_factory=dict)
    strategy: str | None = None
    to_split: SplitPlan | None = None
    records_without_key: int = 0

    def asks_for_splits(self) -> bool:
        return self.to_split is not None


def failure(code: str, reason: str) -> CleaningResult:
    return CleaningResult(reason_code=code, reason=reason, failed=True)


def to_commit(result: CleaningResult, swap: PreparedSwap, *, drop_keyless: bool) -> CleaningResult:
    """Return `result` with the `swap` to commit, or without it if the partition would mostly lose keyless records.

    In the second case, the caller removes the parts of the swap.
    """
    result = replace(result, to_split=None)
    stats = swap.stats()
    dropped = stats.messages_read - stats.messages_written
    if drop_keyless or not loses_mostly_keyless(stats.records_without_key, dropped):
        return replace(result, swap=swap)
    return replace(
        result,
        reason_code=KEYLESS_RECORDS,
        reason=why_left_alone(stats.records_without_key, dropped),
        records_without_key=stats.records_without_key,
    )


class PartitionTask(Protocol):
    @property
    def listing(self) -> LogListing: ...

    @property
    def now_ms(self) -> int: ...


def result_of(task: PartitionTask, step: Callable[[], Outcome]) -> Outcome | CleaningResult:
    try:
        return step()
    except TASK_ERRORS as error:
        return failed_task(task, error)


def failed_task(task: PartitionTask, error: SedimentError | OSError) -> CleaningResult:
    """Return the result of a task that ended with `error`; corrupt data marks the partition as uncleanable."""
    if isinstance(error, LimitReachedError):
        return CleaningResult(reason_code=MAX_SECONDS, reason=str(error))
    code, reason = describe(error)
    if not isinstance(error, CorruptDataError) or isinstance(error, CorruptCheckpointError):
        return failure(code, reason)
    mark = uncleanable_after(error, task.listing, reason_code=code, reason=reason, since_ms=task.now_ms)
    return CleaningResult(reason_code=code, reason=reason, failed=True, uncleanable=mark)
