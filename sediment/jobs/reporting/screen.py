"""Screen of a report: this module alone filters, sorts, folds and lays out the rows of every command's table.

Invariants: no number and no name is shortened or split over lines.  If the console is too narrow, columns of higher
ranks are left out; a line then names these columns.  JSON and the counts of a summary always cover every row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from sediment.engine.directory.originals.kept_in import KeptIn
from sediment.jobs.process.standard_output import as_text
from sediment.jobs.reporting.columns import Row, TableColumn, is_stopped, of_dry_run, text_column
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.run_report import (
    ENDLESS_WIDTH,
    NamedReport,
    OutcomeReport,
    counts_as_failed,
    result_console,
)
from sediment.jobs.reporting.statuses import BAD_STATUSES, IDLE_STATUSES
from sediment.jobs.settings.selection import topic_of
from sediment.segment_io.format.names import by_number
from sediment.segment_io.printable import printable

_GAP = "  "
_LOG_DIR = "log dir"
_LOG_DIR_RANK = 2
_MOST_ALIKE = 10
_MOST_LINES = 30
_MOST_NAMED = 10
_ROWS_PER_LONG_NAME = 8


Reported = TypeVar("Reported", bound=OutcomeReport)


class WarnedReport(Protocol):
    """Report of one partition with sentences that a person must know, although nothing failed."""

    @property
    def partition(self) -> str: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class View:
    """With `fails_on_unknown`, a partition that depends on an unstated setting makes the run fail."""

    changed: bool = False
    sort: str | None = None
    by_topic: bool = False
    fails_on_unknown: bool = False


@dataclass(frozen=True, slots=True)
class Screen:
    console: Console
    view: View = View()

    def say(self, sentence: str, *, style: str | None = None) -> None:
        """Print one line; only the terminal wraps the line, so it can be copied in one piece."""
        self.console.print(sentence, style=style, soft_wrap=True, markup=False, highlight=False)

    @property
    def is_terminal(self) -> bool:
        """True if the text goes to a terminal, where rows may be left out; no environment variable affects this."""
        return self.console.file.isatty()

    def partitions(
        self,
        rows: Sequence[Reported],
        columns: Sequence[TableColumn[Reported]],
        *,
        is_idle: Callable[[Reported], bool] | None = None,
        is_empty: Callable[[Reported], bool] | None = None,
        dry_run: bool = False,
    ) -> None:
        """Print a table of partitions; with `dry_run`, the table shows the status that each partition would get.

        `is_idle` is True for a partition that the run does not change (default: by status); --changed hides it.
        `is_empty` is True for a partition without records.  On a terminal, many idle or empty partitions with the same
        reason get no rows: `reasons` or the summary counts them.  Many partitions that a stopped run did not finish get
        no rows either; `failed` counts them.  Other partitions that make the run fail come first; they count neither as
        idle nor as empty.
        """
        columns = of_dry_run(columns) if dry_run else columns
        columns = _with_log_dir(rows, columns)
        idle = self._idle(is_idle)
        shown = [row for row in rows if not (self.view.changed and idle(row))]
        if self.view.by_topic:
            self._by_topic(shown, columns)
            return
        if self.is_terminal:

            def has_nothing(row: Reported) -> bool:
                return idle(row) or (is_empty is not None and is_empty(row))

            is_healthy = self._idle(has_nothing)

            def is_folded(row: Reported) -> bool:
                return is_healthy(row) or is_stopped(row)

            alike = Counter(_code(row) for row in shown if is_folded(row))
            shown = [row for row in shown if not (is_folded(row) and alike[_code(row)] > _MOST_ALIKE)]
            shown.sort(key=lambda row: is_stopped(row) or not self._fails(row))
        if shown:
            self.table(self._sorted([[row] for row in shown], columns), columns)

    def _idle(self, is_idle: Callable[[Reported], bool] | None) -> Callable[[Reported], bool]:
        idle = is_idle or _is_idle
        return lambda row: idle(row) and not self._fails(row)

    def _fails(self, row: OutcomeReport) -> bool:
        return counts_as_failed(row, fails_on_unknown=self.view.fails_on_unknown)

    def _by_topic(self, rows: Sequence[Reported], columns: Sequence[TableColumn[Reported]]) -> None:
        topics: dict[str, list[Reported]] = {}
        shares = {name: 1 / count for name, count in Counter(row.partition for row in rows).items()}
        for row in sorted(rows, key=lambda row: by_number(row.partition)):
            topics.setdefault(topic_of(row.partition), []).append(row)
        own: list[TableColumn[Reported]] = [
            TableColumn("topic", lambda rows: topic_of(rows[0].partition)),
            TableColumn("partitions", _partition_count, lambda row: shares[row.partition]),
            *(column for column in columns[1:] if column.name != _LOG_DIR),
        ]
        if topics:
            self.table(self._sorted(list(topics.values()), own), own)

    def _sorted(self, groups: list[list[Row]], columns: Sequence[TableColumn[Row]]) -> list[list[Row]]:
        by = next((column for column in columns if column.key == self.view.sort), None)
        if by is None:
            return groups
        if by.number is None:
            return sorted(groups, key=lambda group: by_number(by.show(group)))
        return sorted(groups, key=by.sort_number, reverse=True)

    def table(self, groups: Sequence[Sequence[Row]], columns: Sequence[TableColumn[Row]]) -> None:
        self.sections([("", groups)], columns)

    def sections(
        self, sections: Sequence[tuple[str, Sequence[Sequence[Row]]]], columns: Sequence[TableColumn[Row]]
    ) -> None:
        """A section without groups prints only its heading; an empty heading prints no line."""
        cells = [[[printable(column.show(group)) for column in columns] for group in groups] for _, groups in sections]
        every = [row for rows in cells for row in rows]
        widths, kept = _layout(columns, every, self.console.width)
        for (heading, _), rows in zip(sections, cells, strict=True):
            if heading:
                self.say(heading, style="bold")
            if heading and not rows:
                self.say("")
            elif kept is None:
                self._print_lists(columns, rows)
            else:
                self._print_rows([columns[each] for each in kept], [widths[each] for each in kept], rows, kept)
        dropped = [
            column.name
            for number, column in enumerate(columns)
            if kept is not None and number not in kept and any(row[number] for row in every)
        ]
        if dropped:
            self.say(f"no room for {', '.join(dropped)}; a wider terminal, or a pipe, shows more columns", style="dim")

    def _print_rows(
        self,
        columns: Sequence[TableColumn[Row]],
        widths: Sequence[int],
        cells: Sequence[Sequence[str]],
        kept: Sequence[int],
    ) -> None:
        page = Text(" ")
        page.append_text(_line([(column, Text(column.name, style="bold")) for column in columns], widths))
        page.append("\n" + "─" * _needed(widths) + "\n")
        for row in cells:
            texts = [_styled(column, row[number]) for column, number in zip(columns, kept, strict=True)]
            if texts[0].cell_len > widths[0]:
                page.append_text(texts[0]).append("\n")
                texts[0] = Text()
            page.append(" ")
            page.append_text(_line(list(zip(columns, texts, strict=True)), widths))
            page.append("\n")
        self.console.print(page, soft_wrap=True)

    def _print_lists(self, columns: Sequence[TableColumn[Row]], cells: Sequence[Sequence[str]]) -> None:
        width = max(len(column.name) for column in columns)
        for row in cells:
            for number, (column, cell) in enumerate(zip(columns, row, strict=True)):
                if cell:
                    name = "" if number == 0 else f"  {column.name.ljust(width)}{_GAP}"
                    self.console.print(Text(name) + _styled(column, cell), soft_wrap=True)
        self.console.print()

    # --------------------------------------------------------------------------------------------------------- reasons
    def reasons(
        self,
        rows: Iterable[Reported],
        *,
        key: Callable[[Reported], object] | None = None,
        explain: Callable[[Reported], str | None] | None = None,
        size_of: Callable[[Reported], int | None] | None = None,
        is_idle: Callable[[Reported], bool] | None = None,
        style: str | None = None,
    ) -> None:
        """Reports with the same `key` share a line (default: the reason code).

        With --changed, idle partitions get no line.
        """
        idle = self._idle(is_idle)
        for line in reason_lines(
            [row for row in rows if not (self.view.changed and idle(row))],
            key=key,
            explain=explain,
            size_of=size_of,
        ):
            self.say(line, style=style)

    def failed(
        self, rows: Sequence[Reported], *, noun: str = "partition", name: Callable[[Reported], str] | None = None
    ) -> None:
        """Print the reasons of the failed rows, then one line for the rows that a stopped run did not finish."""
        name_of = name or namer(rows)
        self.failures((name_of(row), row.reason) for row in rows if row.status in BAD_STATUSES and not is_stopped(row))
        stopped = [name_of(row) for row in rows if is_stopped(row)]
        if stopped:
            verb, them = ("is", "it") if len(stopped) == 1 else ("are", "them")
            self.say(
                f"stopped: {len(stopped)} of {counted(len(rows), noun)} {verb} not done; run the same command again to "
                f"finish {them}: {named(stopped)}",
                style="yellow",
            )

    def warnings(self, rows: Iterable[WarnedReport]) -> None:
        rows = list(rows)
        name_of = namer(rows)
        names: dict[str, list[str]] = {}
        for row in rows:
            for warning in row.warnings:
                names.setdefault(warning, []).append(name_of(row))
        for warning, found in list(names.items())[:_MOST_LINES]:
            self.say(f"{named(found)}: {warning}", style="yellow")
        left = len(names) - _MOST_LINES
        if left > 0:
            self.say(f"{counted(left, 'more warning')}; --json gives them", style="yellow")

    def failures(self, rows: Iterable[tuple[str, str | None]], *, noun: str | None = None) -> None:
        """`noun` is the word for a row if a partition can have several."""
        names: dict[str | None, list[str]] = {}
        for name, reason in rows:
            names.setdefault(reason, []).append(name)
        for reason, found in list(names.items())[:_MOST_LINES]:
            self.say(f"{named(found)}: {reason}", style="red")
        left = [name for found in list(names.values())[_MOST_LINES:] for name in found]
        if left and noun is None:
            self.say(f"{counted(len(left), 'more partition')} failed; --json gives their reasons", style="red")
        elif left and noun is not None:
            rest = f"{counted(len(left), f'further {noun}')} in {counted(len(set(left)), 'partition')}"
            self.say(f"{rest}; --json lists them", style="red")


def screen_text(show: Callable[[Screen], object], view: View | None = None) -> str:
    return as_text(lambda console: show(Screen(console, view or View())), result_console())


def reason_lines(
    rows: Iterable[Reported],
    *,
    key: Callable[[Reported], object] | None = None,
    explain: Callable[[Reported], str | None] | None = None,
    size_of: Callable[[Reported], int | None] | None = None,
) -> list[str]:
    """Return one line for each reason, the reason with the most bytes first."""
    reason = explain or (lambda row: row.reason)
    bytes_of = size_of or _bytes_before
    rows = list(rows)
    name_of = namer(rows)
    groups: dict[object, list[Reported]] = {}
    for row in rows:
        groups.setdefault((key or _code)(row), []).append(row)
    sizes = {each: sum(bytes_of(row) or 0 for row in found) for each, found in groups.items()}
    lines = []
    for each in sorted(groups, key=lambda each: -sizes[each]):
        found = groups[each]
        largest = max(found, key=lambda row: bytes_of(row) or 0)
        sentence = reason(largest)
        if len(found) == 1:
            lines += [f"{name_of(largest)}: {sentence}"] if sentence else []
            continue
        example = f"; for example {name_of(largest)}: {sentence}" if sentence else ""
        is_sized = any(bytes_of(row) is not None for row in found)
        size = f" with {human_bytes(sizes[each])}" if is_sized else ""
        lines.append(f"{_code(largest)}: {_counted_rows(found)}{size}{example}")
    return lines


def namer(rows: Sequence[NamedReport]) -> Callable[[NamedReport], str]:
    counts = Counter(row.partition for row in rows)
    return lambda row: f"{row.partition} in {_log_dir(row)}" if counts[row.partition] > 1 else row.partition


def named(partitions: Sequence[str]) -> str:
    names = list(dict.fromkeys(partitions))
    left = len(names) - _MOST_NAMED
    more = f" and {left} more ({len(names)} partitions)" if left > 0 else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def kept_folders(pattern: str, rows: Iterable[NamedReport]) -> str:
    """Return the directories in which a run keeps files of the log directories of `rows`."""
    log_dirs = {Path(_log_dir(row)) for row in rows if _log_dir(row)}
    folders = sorted({str(KeptIn(pattern).of(log_dir)) for log_dir in log_dirs}) or [pattern]
    left = len(folders) - _MOST_NAMED
    return " and ".join(folders) if left <= 0 else f"{', '.join(folders[:_MOST_NAMED])} and {left} more"


def _log_dir(row: NamedReport) -> str:
    return str(getattr(row, "log_dir", None) or "")


def _with_log_dir(
    rows: Sequence[Reported], columns: Sequence[TableColumn[Reported]]
) -> Sequence[TableColumn[Reported]]:
    """Return `columns` with the log directory after the partition, if the rows are of several directories.

    If a partition has several rows, the column is always shown.
    """
    if len({_log_dir(row) for row in rows} - {""}) < 2 or any(column.name == _LOG_DIR for column in columns):
        return columns
    own: TableColumn[Reported] = text_column(_LOG_DIR, _log_dir, rank=0 if _has_replicas(rows) else _LOG_DIR_RANK)
    return (columns[0], own, *columns[1:])


def _has_replicas(rows: Sequence[OutcomeReport]) -> bool:
    return len({row.partition for row in rows}) < len(rows)


def _partition_count(rows: Sequence[OutcomeReport]) -> str:
    count = len({row.partition for row in rows})
    return f"{count:,}" if count == len(rows) else f"{count:,} ({len(rows):,} replicas)"


def _counted_rows(rows: Sequence[OutcomeReport]) -> str:
    count = len({row.partition for row in rows})
    if count == len(rows):
        return counted(count, "partition")
    return f"{counted(len(rows), 'replica')} of {counted(count, 'partition')}"


def _is_idle(row: OutcomeReport) -> bool:
    return row.status in IDLE_STATUSES


def _code(row: OutcomeReport) -> str:
    return row.reason_code or row.status


def _bytes_before(row: object) -> int | None:
    return getattr(row, "bytes_before", None)


def _layout(
    columns: Sequence[TableColumn[Row]], cells: Sequence[Sequence[str]], width: int
) -> tuple[list[int], list[int] | None]:
    """Return the column widths, and the indexes of the columns that fit into `width` (None if rows must become lists).

    The width of the first column ignores names that would leave no room for the other columns of rank 0.
    """
    widths = [
        max([cell_len(column.name), *(cell_len(row[number]) for row in cells)]) for number, column in enumerate(columns)
    ]
    kept = _that_fit(columns, widths, cells, width)
    if kept is not None and not columns[0].rank:
        # A few long names must not cost the other rows a column.
        names = sorted(cell_len(row[0]) for row in cells)
        usual = max([cell_len(columns[0].name), *names[: len(names) - len(names) // _ROWS_PER_LONG_NAME]])
        with_usual = _that_fit(columns, [usual, *widths[1:]], cells, width)
        if with_usual is not None and len(with_usual) > len(kept):
            widths[0], kept = usual, with_usual
    # A long name gets a line of its own above its row in two cases: it leaves no room for the columns of rank 0, or it
    # is one of a few long names that leave no room for another column.  If this is not enough, each row is printed as a
    # list of lines.
    if kept is None and not columns[0].rank:
        others = [widths[number] for number, column in enumerate(columns) if number and not column.rank]
        room = width - _needed([0, *others])
        if short := [size for row in cells if (size := cell_len(row[0])) <= room]:
            widths[0] = max(cell_len(columns[0].name), *short)
            kept = _that_fit(columns, widths, cells, width)
    return widths, kept


def _that_fit(
    columns: Sequence[TableColumn[Row]], widths: Sequence[int], cells: Sequence[Sequence[str]], width: int
) -> list[int] | None:
    """Return the indexes of the columns that fit into `width`, lowest ranks first; None if not even rank 0 fits.

    On a terminal, a column of a higher rank without any text is left out.
    """
    kept = [number for number, column in enumerate(columns) if not column.rank]
    if _needed([widths[number] for number in kept]) > width:
        return None
    optional = [
        number
        for number, column in enumerate(columns)
        if column.rank and (width >= ENDLESS_WIDTH or any(row[number] for row in cells))
    ]
    for number in sorted(optional, key=lambda number: columns[number].rank):
        if _needed([widths[each] for each in (*kept, number)]) <= width:
            kept.append(number)
    return sorted(kept)


def _needed(widths: Sequence[int]) -> int:
    return 2 + sum(widths) + len(_GAP) * (len(widths) - 1)


def _line(cells: Sequence[tuple[TableColumn[Row], Text]], widths: Sequence[int]) -> Text:
    line = Text()
    for (column, cell), width in zip(cells, widths, strict=True):
        blank = " " * (width - cell.cell_len)
        if column.number is None:
            line.append_text(cell).append(blank + _GAP)
        else:
            line.append(blank).append_text(cell).append(_GAP)
    line.rstrip()
    return line


def _styled(column: TableColumn[Row], cell: str) -> Text:
    return Text(cell, style=column.style(cell) if column.style is not None else "")
