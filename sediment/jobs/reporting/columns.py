"""Columns of the human-readable tables: the text of a cell, the number by which rows are sorted, and the rank.

A cell shows one partition, or all partitions of a topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sediment.jobs.reporting.figures import human_bytes
from sediment.jobs.reporting.run_report import OutcomeReport
from sediment.jobs.reporting.statuses import BAD_STATUSES, IDLE_STATUSES

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[Row]):
    """Column of a table.

    `show` returns the text of a cell from the rows of the cell's partitions: one, or all partitions of a topic.
    `number` is None for a column of text; otherwise it returns the number by which a row is sorted, or None.  Columns
    of rank 0 are always shown, the others only if they fit, lowest rank first.  `style` returns the style of a text.
    Columns whose numbers cannot be added, such as offsets and ratios, have no sum.
    """

    name: str
    show: Callable[[Sequence[Row]], str]
    number: Callable[[Row], float | None] | None = None
    rank: int = 0
    style: Callable[[str], str] | None = None
    adds_up: bool = True

    @property
    def key(self) -> str:
        """Name of the column in --sort."""
        return self.name.removesuffix("?").replace(" ", "-")

    def sort_number(self, rows: Sequence[Row]) -> float:
        """Return the number by which a row of the table is sorted; 0 if it has none."""
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
    """Return a column of numbers; the row of a topic shows the sum.  None is left blank."""
    return TableColumn(name, lambda rows: _total(rows, of, lambda total: f"{about}{total:,}"), of, rank)


def offset_column(name: str, of: Callable[[Row], int | None], *, rank: int = 0) -> TableColumn[Row]:
    """Return a column of offsets; the row of a topic is blank, because offsets of partitions have no sum."""

    def show(rows: Sequence[Row]) -> str:
        return _total(rows, of, "{:,}".format) if len(rows) == 1 else ""

    return TableColumn(name, show, of, rank, adds_up=False)


def bytes_column(name: str, of: Callable[[Row], int | None], *, rank: int = 0) -> TableColumn[Row]:
    """Return a column of bytes; the row of a topic shows the sum.  None is left blank."""
    return TableColumn(name, lambda rows: _total(rows, of, human_bytes), of, rank)


def change_column(
    name: str,
    before: Callable[[Row], int | None],
    after: Callable[[Row], int | None],
    *,
    shown: Callable[[int], str],
    rank: int = 0,
) -> TableColumn[Row]:
    """Return a column of `before → after`, or only `before` if nothing changes; the row of a topic shows sums."""

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


def status_text(row: OutcomeReport) -> str:
    """Return the status of a partition, with the code of its reason."""
    return f"{row.status}: {row.reason_code}" if row.reason_code else row.status


def name_and_status(shown: Callable[[Any], str] = status_text) -> tuple[TableColumn[Any], TableColumn[Any]]:
    """Return the columns for name and status of a partition; `shown` returns the text of the status."""
    return text_column("partition", lambda row: row.partition), status_column("status", shown)


def status_column(name: str, shown: Callable[[Any], str] = status_text) -> TableColumn[Any]:
    """Return the column of the status; the row of a topic shows how many partitions have each status."""

    def show(rows: Sequence[Any]) -> str:
        if len(rows) == 1:
            return shown(rows[0])
        return ", ".join(f"{number} {each}" for each, number in Counter(row.status for row in rows).items())

    return TableColumn(name, show, style=status_style)


def status_style(shown: str) -> str:
    """Return the style of a status: red for a failure, dim for a partition that does not change."""
    words = set(shown.replace(",", " ").replace(":", " ").split())
    if words & BAD_STATUSES:
        return "red"
    return "dim" if words & IDLE_STATUSES or shown.startswith("no:") else "green"
