"""Columns of the tables for people: the text of a cell, the number by which rows are sorted, and the rank.

A cell shows one partition, or all partitions of a topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from sediment.jobs.reporting.figures import human_bytes
from sediment.jobs.reporting.run_report import OutcomeReport
from sediment.jobs.reporting.statuses import BAD_STATUSES, IDLE_STATUSES, STOPPED

Row = TypeVar("Row")

_STATUS = "status"
_STATUS_OF_DRY_RUN = "would be"


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[Row]):
    """`show` returns the text of a cell, given the reports of one partition or of all partitions of a topic.

    `number` is None for a column of text; otherwise it returns the number by which a row is sorted, or None.  Columns
    of rank 0 are always shown; the others are shown only if they fit, lowest ranks first.  Columns whose numbers cannot
    be added, such as offsets and ratios, have no sum.  `sort_name` is the name of the column in --sort; the default is
    the name of the column.
    """

    name: str
    show: Callable[[Sequence[Row]], str]
    number: Callable[[Row], float | None] | None = None
    rank: int = 0
    style: Callable[[str], str] | None = None
    adds_up: bool = True
    sort_name: str = ""

    @property
    def key(self) -> str:
        return (self.sort_name or self.name).removesuffix("?").replace(" ", "-")

    def sort_number(self, rows: Sequence[Row]) -> float:
        if self.number is None or (len(rows) > 1 and not self.adds_up):
            return 0
        return sum(self.number(row) or 0 for row in rows)


def text_column(name: str, of: Callable[[Row], str], *, rank: int = 0) -> TableColumn[Row]:
    """Return a text column; the row of a topic shows the text only if it is the same for all partitions."""

    def show(rows: Sequence[Row]) -> str:
        shared = {of(row) for row in rows}
        return shared.pop() if len(shared) == 1 else ""

    return TableColumn(name, show, rank=rank)


def number_column(name: str, of: Callable[[Row], int | None], *, rank: int = 0, about: str = "") -> TableColumn[Row]:
    return TableColumn(name, lambda rows: _total(rows, of, lambda total: f"{about}{total:,}"), of, rank)


def offset_column(name: str, of: Callable[[Row], int | None], *, rank: int = 0) -> TableColumn[Row]:
    def show(rows: Sequence[Row]) -> str:
        return _total(rows, of, "{:,}".format) if len(rows) == 1 else ""

    return TableColumn(name, show, of, rank, adds_up=False)


def bytes_column(name: str, of: Callable[[Row], int | None], *, rank: int = 0) -> TableColumn[Row]:
    return TableColumn(name, lambda rows: _total(rows, of, human_bytes), of, rank)


def change_column(
    name: str,
    before: Callable[[Row], int | None],
    after: Callable[[Row], int | None],
    *,
    shown: Callable[[int], str],
    rank: int = 0,
) -> TableColumn[Row]:
    def show(rows: Sequence[Row]) -> str:
        known = [(before(row), after(row)) for row in rows]
        first = [one for one, _ in known if one is not None]
        if not first:
            return ""
        last = [one if other is None else other for one, other in known if one is not None]
        is_changed = any(other is not None and other != one for one, other in known)
        return f"{shown(sum(first))} → {shown(sum(last))}" if is_changed else shown(sum(first))

    return TableColumn(name, show, before, rank)


def _total(rows: Sequence[Row], of: Callable[[Row], int | None], shown: Callable[[int], str]) -> str:
    known = [number for number in map(of, rows) if number is not None]
    return shown(sum(known)) if known else ""


def is_stopped(row: OutcomeReport) -> bool:
    """Return True if a partition failed only because a signal ended the run; another run can finish the partition."""
    return row.status in BAD_STATUSES and row.reason_code == STOPPED


def status_word(row: OutcomeReport) -> str:
    return STOPPED if is_stopped(row) else row.status


def status_text(row: OutcomeReport) -> str:
    return f"{row.status}: {row.reason_code}" if row.reason_code and not is_stopped(row) else status_word(row)


def status_counts(rows: Iterable[OutcomeReport], *, dry_run: bool = False) -> str:
    """Return the number of partitions with each status: first changed partitions, then unchanged ones, then failures.

    In a dry run, nothing has changed yet: "2 would be compacted".
    """
    counts = Counter(map(status_word, rows))
    places = {**dict.fromkeys(IDLE_STATUSES, 1), STOPPED: 2, **dict.fromkeys(BAD_STATUSES, 3)}
    named = {status: status if status in places or not dry_run else f"would be {status}" for status in counts}
    return ", ".join(
        f"{counts[status]} {named[status]}" for status in sorted(counts, key=lambda each: (places.get(each, 0), each))
    )


def name_and_status(
    shown: Callable[[Any], str] = status_text, word: Callable[[Any], str] = status_word
) -> tuple[TableColumn[Any], TableColumn[Any]]:
    return text_column("partition", lambda row: row.partition), status_column(_STATUS, shown, word)


def status_column(
    name: str, shown: Callable[[Any], str] = status_text, word: Callable[[Any], str] = status_word
) -> TableColumn[Any]:
    """Return the column of the status; `shown` returns its text for a partition.

    The row of a topic shows how many partitions have each status; `word` returns the status without a reason.
    """

    def show(rows: Sequence[Any]) -> str:
        if len(rows) == 1:
            return shown(rows[0])
        return ", ".join(f"{number} {each}" for each, number in Counter(map(word, rows)).items())

    return TableColumn(name, show, style=status_style)


def of_dry_run(columns: Sequence[TableColumn[Row]]) -> list[TableColumn[Row]]:
    return [
        replace(column, name=_STATUS_OF_DRY_RUN, sort_name=_STATUS) if column.name == _STATUS else column
        for column in columns
    ]


def status_style(shown: str) -> str:
    words = set(shown.replace(",", " ").replace(":", " ").split())
    if words & BAD_STATUSES:
        return "red"
    if STOPPED in words:
        return "yellow"
    return "dim" if words & IDLE_STATUSES or shown.startswith("no:") else "green"
