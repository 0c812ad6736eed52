"""Rows of `dump` as a table for people, laid out for a pipe or for the width of a terminal.

* On a terminal, topic and partition share one column.  The least important columns are left out if they have no room.
* On a terminal, one line counts the rows without a finding.  If there are more than ten empty logs, another line counts
  these logs.
* On a terminal, configs are listed by topic, and committed offsets by group.  A heading counts as a row.

Invariants: no name of a partition is left out or cut.  The text of a key, a value or a header has at most
SHOWN_CHARACTERS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sediment.jobs.dumping.plain_rows import decoded, json_text, text_of
from sediment.jobs.process.standard_output import stdout_is_terminal
from sediment.jobs.reporting.columns import TableColumn, text_column
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.screen import Screen
from sediment.segment_io.format.names import by_number
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.schema import ALL_REPLICAS, CLUSTER_TABLES, SLICED_TABLES, Column, TableRequest

SHOWN_CHARACTERS = 60
_MOST_EMPTY = 10

# Columns that the table for people shows without --columns.  Tables that are not listed here show all columns.
_SHOWN = {
    "records": ("topic", "partition", "offset", "timestamp", "key", "value", "headers"),
    "batches": (
        "topic",
        "partition",
        "position",
        "baseOffset",
        "lastOffset",
        "recordCount",
        "magic",
        "codec",
        "maxTimestamp",
        "producerId",
        "producerEpoch",
        "baseSequence",
        "transactional",
        "controlType",
        "deleteHorizon",
        "leaderEpoch",
        "size",
        "valid",
    ),
    "segments": (
        "topic",
        "partition",
        "baseOffset",
        "active",
        "size",
        "offsetIndexEntries",
        "timeIndexEntries",
        "abortedTransactions",
        "largestTimestamp",
    ),
}

_MAIN = frozenset(
    {
        *("topic", "partition", "offset", "key", "value", "baseOffset", "lastOffset", "firstOffset", "epoch"),
        *("startOffset", "problem", "group", "committedOffset", "lag", "source"),
    }
)
"""Columns that are shown even on the narrowest terminal."""

_NEXT = (
    "corruption",
    "log_dir",
    "timestamp",
    "size",
    "recordCount",
    "file",
    "producerId",
    "lastTimestamp",
    "logEndOffset",
    "position",
)
"""Columns that a wider terminal adds, by priority; after these, the remaining columns follow in table order."""

_HAS_NO_FINDING: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "topics": lambda row: row["value"] is None,
    "groups": lambda row: row["topic"] is None,
    "indexes": lambda row: row["problem"] is None,
}

_COUNTED_TO_THE_END = frozenset({"topics", "indexes", "segments"})
"""Tables for which a terminal also shows how many rows it does not list."""


def _topic_heading(row: Mapping[str, Any]) -> str:
    known = [] if row["partitions"] is None else [counted(row["partitions"], "partition")]
    known += [] if row["topicId"] is None else [f"topic id {row['topicId']}"]
    return f"{row['topic']}: {', '.join(known)}" if known else str(row["topic"])


def _group_heading(row: Mapping[str, Any]) -> str:
    known = [] if row["kind"] is None else [row["kind"]]
    known += [] if row["members"] is None else [counted(row["members"], "member")]
    return f"{row['group']}: {', '.join(known)}" if known else str(row["group"])


class _Headings(NamedTuple):
    name: str
    text: Callable[[Mapping[str, Any]], str]
    replaced: frozenset[str]

    def of(self, row: Mapping[str, Any]) -> tuple[str, str]:
        return str(row[self.name]), self.text(row)


_HEADINGS: Mapping[str, _Headings] = {
    "topics": _Headings("topic", _topic_heading, frozenset({"topic", "topicId", "partitions"})),
    "groups": _Headings("group", _group_heading, frozenset({"group", "kind", "members"})),
}


class _EmptyLogs:
    """Empty logs in the table `segments`: partitions whose only segment has no byte."""

    def __init__(self) -> None:
        self.count = 0
        self.listed: list[list[dict[str, Any]]] = []
        self._log: tuple[Any, ...] | None = None

    @property
    def are_many(self) -> bool:
        return self.count > _MOST_EMPTY

    def takes(self, row: Mapping[str, Any]) -> bool:
        log = row["topic"], row["partition"], row.get("log_dir")
        is_first, self._log = log != self._log, log
        is_empty = is_first and row["active"] and row["size"] == 0
        self.count += is_empty
        return is_empty


class PeopleTable:
    def __init__(self, request: TableRequest, limit: int | None, *, is_chosen: bool) -> None:
        self._request = request
        self._limit = limit
        self._is_chosen = is_chosen
        self._is_for_terminal = not is_chosen and stdout_is_terminal()
        self._headings = _HEADINGS.get(request.what) if self._is_for_terminal else None
        self._sections: dict[tuple[str, str], list[list[dict[str, Any]]]] = {}
        self._counts_empty_logs = self._is_for_terminal and request.what == "segments"
        self._empty_logs = _EmptyLogs()
        self._left_out = 0
        self.count = 0
        self.is_more = False

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add the next rows.

        `count` is the number of listed rows and headings; `is_more` is True if `limit` left out further rows.  Rows
        without a finding are counted even after `limit` is reached.
        """
        has_no_finding = _HAS_NO_FINDING.get(self._request.what) if self._is_for_terminal else None
        for row in rows:
            is_empty = self._counts_empty_logs and self._empty_logs.takes(row)
            if is_empty and self._empty_logs.are_many:
                continue
            is_listed = has_no_finding is None or not has_no_finding(row)
            self._left_out += not is_listed
            heading = ("", "") if self._headings is None else self._headings.of(row)
            if heading not in self._sections and (self._headings is None or self._has_room()):
                self._sections[heading] = []
            if is_listed and heading in self._sections and self._has_room():
                shown = [{**row, **decoded(row)}]
                self._sections[heading].append(shown)
                if is_empty:
                    self._empty_logs.listed.append(shown)

    @property
    def is_done(self) -> bool:
        return self.is_more and not (self._is_for_terminal and self._request.what in _COUNTED_TO_THE_END)

    def _has_room(self) -> bool:
        if self.count == self._limit:
            self.is_more = True
            return False
        self.count += 1
        return True

    def show(self, screen: Screen) -> None:
        must_be_shown = self._is_chosen, self._request.replicas == ALL_REPLICAS
        columns = [_column(column, number, *must_be_shown) for number, column in enumerate(self._request.selected())]
        if self._is_for_terminal:
            replaced = frozenset() if self._headings is None else self._headings.replaced
            columns = _with_one_name([column for column in columns if column.name not in replaced])
        in_order = sorted(self._sections, key=lambda heading: (by_number(heading[0]), heading))
        sections = [(heading[1], self._without_empty_logs(self._sections[heading])) for heading in in_order]
        listed = [(text, rows) for text, rows in sections if text or rows]
        left_out = self._left_out + (self._empty_logs.count if self._empty_logs.are_many else 0)
        if self._is_for_terminal and not listed and not left_out:
            screen.say(f"no {self._request.what.replace('_', ' ')}")
        elif listed or not left_out:
            screen.sections(listed or [("", [])], columns)
        if text := _left_out_text(self._request, left_out):
            screen.say(text)

    def _without_empty_logs(self, rows: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
        hidden = set(map(id, self._empty_logs.listed)) if self._empty_logs.are_many else set()
        return [row for row in rows if id(row) not in hidden]


def _left_out_text(request: TableRequest, count: int) -> str | None:
    if count == 0 or request.what not in _COUNTED_TO_THE_END:
        return None
    if request.what == "indexes":
        return f"{counted(count, 'file')} without a problem not shown; use a pipe or --json to list them"
    if request.what == "segments":
        return f"{counted(count, 'partition')} without records not shown; use a pipe or --json to list them"
    config = "; --config reads the broker's own file" if request.config is None else ""
    return f"{counted(count, 'config')} not stated{config}; a pipe, or --json, lists every config"


def _with_one_name(columns: Sequence[TableColumn[dict[str, Any]]]) -> list[TableColumn[dict[str, Any]]]:
    names = [column.name for column in columns]
    if not {"topic", "partition"} <= set(names):
        return list(columns)
    named: TableColumn[dict[str, Any]] = text_column("partition", _partition_name)
    return [
        named if name == "topic" else column for name, column in zip(names, columns, strict=True) if name != "partition"
    ]


def _partition_name(row: Mapping[str, Any]) -> str:
    topic, number = row["topic"], row["partition"]
    if number is None or number < 0:
        return topic or ""
    return "" if topic is None else f"{topic}-{number}"


def _column(column: Column, number: int, is_chosen: bool, shows_replicas: bool) -> TableColumn[dict[str, Any]]:
    """Return a column for people; unless the caller chose the columns, a terminal omits the least important ones.

    With `shows_replicas`, a terminal always shows the log directory, by which replicas differ.
    """
    name, kind = column.name, column.kind
    is_number = kind in ("int", "long", "timestamp")
    later = _NEXT.index(name) if name in _NEXT else len(_NEXT) + number
    return TableColumn(
        f"{name} (UTC)" if kind == "timestamp" else name,
        lambda rows: _cell(kind, rows[0][name]),
        (lambda row: row[name]) if is_number else None,
        rank=0 if is_chosen or name in _MAIN or (shows_replicas and name == "log_dir") else 1 + later,
    )


def _cell(kind: str, value: Any) -> str:
    if value is None:
        return ""
    if kind == "timestamp":
        return "" if value < 0 else _time(value)
    if kind == "bool":
        return "yes" if value else "no"
    if kind == "headers":
        return _short(", ".join(f"{pair['key']}={_bytes_cell(pair['value'])}" for pair in value))
    if isinstance(value, bytes):
        return _short(_bytes_cell(value))
    if isinstance(value, dict):
        return _short(json_text(value))
    return str(value)


def _time(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (OverflowError, ValueError):
        return str(timestamp_ms)


def _bytes_cell(value: bytes | None) -> str:
    if value is None:
        return ""
    text = text_of(value)
    return f"0x{value.hex()}" if text is None else text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _shown(request: TableRequest) -> tuple[str, ...]:
    own = [column.name for column in replace(request, columns=None, replicas=None).selected()]
    shown = _SHOWN.get(request.what)
    if shown is None:
        return tuple(own)
    return (*shown, *(name for name in own if name == "corruption" and request.what in SLICED_TABLES))


def columns_for_people(request: TableRequest, sources: Sequence[Source]) -> tuple[str, ...]:
    shown = _shown(request)
    is_named = request.what not in CLUSTER_TABLES or request.replicas == ALL_REPLICAS
    return _with_log_dir(shown) if is_named and len({source.directory.parent for source in sources}) > 1 else shown


def _with_log_dir(shown: tuple[str, ...]) -> tuple[str, ...]:
    after = shown.index("partition") + 1 if "partition" in shown else len(shown)
    return (*shown[:after], "log_dir", *shown[after:])


def has_chosen_columns(request: TableRequest) -> bool:
    shown = _shown(request)
    return request.columns not in (None, shown, _with_log_dir(shown))
