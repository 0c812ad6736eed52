"""Copies of large partitions: several tasks copy a partition, before one task loads and completes its log.

The other steps of a clone read a log from its start to its end, so one task does them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sediment.compaction.strategy import SPLIT_FROM_BYTES, Strategy
from sediment.engine.clone.options import LinkMode
from sediment.engine.clone.partition_clone import CloneTask, shared_copy
from sediment.engine.copying.partition_copy import CopiedFile
from sediment.engine.copying.replica_copy import CopiedPieces, ReplicaCopy
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.rewriting.result import TASK_ERRORS
from sediment.jobs.spark.job_names import titled
from sediment.jobs.spark.live_slots import await_slots
from sediment.jobs.spark.task_figures import Figures
from sediment.jobs.spark.task_pool import TaskResult, run_on_executors
from sediment.segment_io.fs import Fs


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of a partition; all pieces of a partition have the same `number`, the index of the partition's task."""

    number: int
    copy: ReplicaCopy

    def weight(self) -> int:
        return self.copy.weight()


@dataclass(frozen=True, slots=True)
class _PieceResult:
    files: tuple[CopiedFile, ...] = ()
    error: tuple[str, str] | None = None


def is_split(task: CloneTask, asked: Strategy | None, *, slots: int, all_bytes: int) -> bool:
    """Return True if several tasks copy the partition of `task`; `asked` is the requested strategy, or None."""
    if asked is not None:
        return asked is Strategy.SPLIT
    is_large = task.log_bytes >= SPLIT_FROM_BYTES and task.log_bytes * slots > all_bytes
    # Linking takes almost no time, so a partition whose files are linked is split only if `asked` is split.
    return is_large and slots > 1 and task.link is LinkMode.COPY


def with_copied_pieces(
    sc: Any,
    tasks: Sequence[CloneTask],
    asked: Strategy | None,
    *,
    all_bytes: int,
    group: str,
    is_stopped: Callable[[], bool],
) -> tuple[list[CloneTask], list[TaskResult[CloneTask, tuple[str, str]]]]:
    slots = await_slots(sc, group).to_plan_for
    ready: list[CloneTask] = []
    failed: dict[int, TaskResult[CloneTask, tuple[str, str]]] = {}
    copies: dict[int, ReplicaCopy] = {}
    for number, task in enumerate(tasks):
        if not is_split(task, asked, slots=slots, all_bytes=all_bytes):
            ready.append(task)
            continue
        try:
            copies[number] = shared_copy(task, Fs())
        except TASK_ERRORS as error:
            failed[number] = TaskResult(task, describe(error), None)
    pieces = [_Piece(number, piece) for number, copy in copies.items() for piece in copy.pieces()]
    files: dict[int, tuple[CopiedFile, ...]] = dict.fromkeys(copies, ())
    for results in run_on_executors(
        sc,
        pieces,
        _copy_piece,
        _Piece.weight,
        group=group,
        is_stopped=is_stopped,
        title=titled("copy files of", lambda piece: piece.copy.replica.partition),
        figures=_figures,
    ):
        for each in results:
            number = each.item.number
            if each.result is None or each.result.error is not None:
                reason = None if each.result is None else each.result.error
                failed.setdefault(number, TaskResult(tasks[number], reason, each.error))
            else:
                files[number] += each.result.files
    ready += (
        replace(tasks[number], pieces=CopiedPieces(copy, files[number]))
        for number, copy in copies.items()
        if number not in failed
    )
    return ready, list(failed.values())


def _figures(_piece: _Piece, result: _PieceResult) -> Figures:
    return Figures(
        bytes_read=sum(copied.read_bytes for copied in result.files),
        bytes_written=sum(copied.written_bytes for copied in result.files),
    )


def _copy_piece(piece: _Piece, attempt: str) -> _PieceResult:
    try:
        return _PieceResult(piece.copy.copied(attempt))
    except TASK_ERRORS as error:
        return _PieceResult(error=describe(error))
