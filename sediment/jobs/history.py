"""`sediment history LEDGER`: the runs in a ledger, the partitions of one run, or one partition in all runs.

The ledger is read without Spark, newest runs first; of `partitions`, only the rows to be shown are read.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import fnmatch
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sediment.jobs.command_line.configured_command import plain_command
from sediment.jobs.command_line.declaration import ONE_COMMAND, Count, argument, option
from sediment.jobs.command_line.exit_status import EXIT_DONE
from sediment.jobs.command_line.shared_options import json_option
from sediment.jobs.delta_lake import ledger
from sediment.jobs.delta_lake.paths import check_table_path, read_table_rows
from sediment.jobs.process.input_files import MOST_LIST_BYTES, read_input_file
from sediment.jobs.process.standard_output import write_result
from sediment.jobs.reporting.columns import TableColumn, offset_column, status_style, text_column
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.run_report import SCHEMA, Result
from sediment.jobs.reporting.screen import Screen, screen_text
from sediment.jobs.reporting.statuses import BAD_STATUSES
from sediment.segment_io.errors import SedimentError, UsageError
from sediment.segment_io.format.names import by_number
from sediment.segment_io.printable import printable

if TYPE_CHECKING:
    import pyarrow as pa

_REPLAYED = {True: "added", False: "is in the ledger already"}

_LOGGER = logging.getLogger(__name__)


# --------------------------------------------------------------------------------------------------------------- report
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HistoryReport(Result):
    """Runs in the ledger at the path `ledger`, newest first, and their partitions, as dicts by column.

    `runs_in_ledger` counts all runs, including those that --last leaves out.  The rows of `to_arrow` are the runs, or
    the partitions if one run or some partitions were requested.
    """

    ledger: str
    runs: tuple[dict[str, Any], ...]
    partitions: tuple[dict[str, Any], ...]
    is_narrowed: bool
    by_partition: bool
    runs_in_ledger: int

    def __repr__(self) -> str:
        return f"<HistoryReport of {self.ledger}: {counted(len(self.runs), 'run')}>"

    def to_json(self) -> str:
        """Return the one JSON object of `--json`."""
        shown = []
        for run in self.runs:
            own = [_without_run(row) for row in self.partitions if row["run_id"] == run["run_id"]]
            if own or not self.is_narrowed:
                shown.append({**_parsed(run), "partitions": own})
        return json.dumps({"schema": SCHEMA, "command": "history", "ledger": self.ledger, "runs": shown})

    def to_arrow(self) -> pa.Table:
        """Return the runs, or the partitions, as a `pyarrow.Table`."""
        import pyarrow as pa

        if self.by_partition:
            return pa.Table.from_pylist(list(self.partitions), schema=ledger.partition_schema())
        return pa.Table.from_pylist(list(self.runs), schema=ledger.run_schema())


# -------------------------------------------------------------------------------------------------------------- reading
def read_runs(path: str) -> list[dict[str, Any]]:
    """Return the rows of `runs` as dicts by column, newest first."""
    rows = _rows(path, ledger.RUNS, None)
    rows.sort(key=lambda row: (row["now_ms"], row["recorded_ms"]), reverse=True)
    for row in rows:
        row["statuses"] = dict(row["statuses"] or ())
    return rows


def read_partitions(path: str, run_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of `partitions` for these runs as dicts by column, ordered by log directory and partition."""
    import pyarrow.dataset as ds

    rows = _rows(path, ledger.PARTITIONS, ds.field("run_id").isin(list(run_ids)))
    return sorted(rows, key=lambda row: (row["log_dir"] or "", by_number(row["partition"] or "")))


def _rows(path: str, name: str, condition: Any) -> list[dict[str, Any]]:
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError
    except ImportError as error:
        raise ledger.package_missing() from error
    check_table_path(path)
    table = f"{path}/{name}"
    try:
        return [row for batch in read_table_rows(DeltaTable(table), table, condition) for row in batch.to_pylist()]
    except TableNotFoundError as error:
        raise UsageError("this is not a ledger", path=path, advice="give the --ledger path of a run") from error
    except (DeltaError, OSError) as error:
        raise SedimentError(f"the ledger cannot be read: {error}", path=table) from error


# -------------------------------------------------------------------------------------------------------------- showing
def _statuses(run: dict[str, Any]) -> str:
    return ", ".join(f"{count} {status}" for status, count in run["statuses"].items()) or "none"


_TIME: TableColumn[dict[str, Any]] = text_column("time (UTC)", lambda row: _time(row["now_ms"]))
_RUN: TableColumn[dict[str, Any]] = text_column("run", lambda row: row["run_id"])
_BYTES: TableColumn[dict[str, Any]] = TableColumn(
    "bytes", lambda rows: _change(rows[0], "bytes_before", "bytes_after", human_bytes), lambda row: row["bytes_before"]
)
_PARTITION: TableColumn[dict[str, Any]] = text_column("partition", lambda row: row["partition"] or "")
_STATUS: TableColumn[dict[str, Any]] = TableColumn("status", lambda rows: _status(rows[0]), style=status_style)
_RUN_COLUMNS: tuple[TableColumn[dict[str, Any]], ...] = (
    _TIME,
    _RUN,
    text_column("command", lambda run: f"{run['command']} (dry)" if run["dry_run"] else run["command"]),
    TableColumn("partitions", lambda runs: _statuses(runs[0]), style=status_style),
    replace(_BYTES, rank=1),
    TableColumn("seconds", lambda runs: _seconds(runs[0]), lambda run: run["seconds"], rank=2),
)
_COLUMNS_OF_ONE_RUN: tuple[TableColumn[dict[str, Any]], ...] = (
    _PARTITION,
    _STATUS,
    offset_column("dirty from", lambda row: row["first_dirty_offset"], rank=3),
    offset_column("to", lambda row: row["next_dirty_offset"], rank=2),
    TableColumn(
        "records",
        lambda rows: _change(rows[0], "messages_read", "messages_written", "{:,}".format),
        lambda row: row["messages_read"],
        rank=1,
    ),
    _BYTES,
)
_PARTITION_COLUMNS = (_TIME, replace(_RUN, rank=1), _PARTITION, _STATUS, _BYTES)


def _print(found: HistoryReport, screen: Screen, *, of_one_run: bool) -> None:
    if of_one_run:
        [run] = found.runs
        screen.say(f"{run['command']} at {_time(run['now_ms'])} UTC, {_seconds(run)} s, on {run['host']}")
        screen.table([[partition] for partition in found.partitions], _COLUMNS_OF_ONE_RUN)
        screen.say(f"{_total(found.partitions)} (run {run['run_id']})")
    elif found.by_partition:
        screen.table([[partition] for partition in found.partitions], _PARTITION_COLUMNS)
        with_them = counted(len({partition["run_id"] for partition in found.partitions}), "run")
        screen.say(f"{_total(found.partitions)}; in {with_them} of {_runs_searched(found)}")
    else:
        screen.table([[run] for run in found.runs], _RUN_COLUMNS)
        failed = sum(any(run["statuses"].get(status) for status in BAD_STATUSES) for run in found.runs)
        screen.say(f"{_runs_searched(found)}; {failed or 'none'} with failed partitions")


def _runs_searched(found: HistoryReport) -> str:
    if len(found.runs) == found.runs_in_ledger:
        return f"{counted(len(found.runs), 'run')} in the ledger"
    shown = len(found.runs)
    return f"the last {counted(shown, 'run')} of {found.runs_in_ledger} in the ledger (--last N reads more)"


def _total(partitions: Sequence[dict[str, Any]]) -> str:
    statuses = Counter(partition["status"] for partition in partitions)
    counts = ", ".join(f"{count} {status}" for status, count in statuses.items()) or "no partitions"
    known = [row for row in partitions if row["bytes_before"] is not None and row["bytes_after"] is not None]
    before, after = (sum(row[name] for row in known) for name in ("bytes_before", "bytes_after"))
    return f"{counts}; {_arrow(human_bytes(before), human_bytes(after))}" if known else counts


def _status(partition: dict[str, Any]) -> str:
    return f"{partition['status']}: {partition['reason_code']}" if partition["reason_code"] else partition["status"]


def _time(now_ms: int) -> str:
    try:
        return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return str(now_ms)


def _seconds(run: dict[str, Any]) -> str:
    return "?" if run["seconds"] is None else f"{run['seconds']:.1f}"


def _change(row: dict[str, Any], before: str, after: str, text: Any) -> str:
    if row[before] is None or row[after] is None:
        return ""
    return _arrow(text(row[before]), text(row[after]))


def _arrow(before: str, after: str) -> str:
    return f"{before} → {after}" if before != after else before


# -------------------------------------------------------------------------------------------------------------- command
@dataclass(frozen=True, slots=True)
class HistoryOptions:
    ledger: str = argument("LEDGER", "Path or URI of the ledger.", required=True)
    run_id: str | None = option(None, "Show the partitions of this run.", name="run", keyword="run", metavar="ID")
    partitions: tuple[str, ...] = option(
        (), "Show only partitions with this name or glob.", name="partition", metavar="TOPIC-N", is_shared=True
    )
    last: Count = option(20, "Show at most N runs.", metavar="N", shows_default=True, from_settings=ONE_COMMAND)
    replay: tuple[str, ...] = option(
        (),
        "Before showing the runs, read the --json report of a run from FILE (-: from stdin), and add the run to the "
        "ledger if it is missing there.",
        metavar="FILE",
    )
    as_json: bool = json_option()


@plain_command("history", HistoryOptions)
def command(own: HistoryOptions) -> None:
    """Show the runs in LEDGER, newest first; LEDGER is the --ledger path of the runs."""

    def print_replayed(file: str, is_new: bool) -> None:
        if not own.as_json:
            click.echo(f"{printable(file)}: {_REPLAYED[is_new]}", err=True)

    found = history(own, on_replayed=print_replayed, with_partitions=own.as_json)
    of_one_run = own.run_id is not None
    write_result(found.to_json() + "\n" if own.as_json else screen_text(partial(_print, found, of_one_run=of_one_run)))
    raise SystemExit(EXIT_DONE)


def history(
    own: HistoryOptions,
    *,
    on_replayed: Callable[[str, bool], None] | None = None,
    with_partitions: bool = True,
) -> HistoryReport:
    """Add the runs in the files `own.replay` to the ledger; then read it.

    `on_replayed` is called with each of these files and a flag, which is True if the run was not yet in the ledger.
    Without `with_partitions`, partitions are read only if a run or patterns are given.
    """
    path, run_id, patterns = own.ledger, own.run_id, own.partitions
    if own.replay:
        ledger.check(path, ())
    for file in own.replay:
        is_new = _replay(file, path)
        _LOGGER.info("%s: %s", file, _REPLAYED[is_new])
        if on_replayed is not None:
            on_replayed(file, is_new)
    every_run = read_runs(path)
    runs = every_run[: own.last]
    if run_id is not None:
        runs = [run for run in every_run if run["run_id"] == run_id]
        if not runs:
            raise UsageError(
                f"run {run_id} is not in the ledger", path=path, advice="list all runs with --last 1000000"
            )
    is_wanted = with_partitions or run_id is not None or bool(patterns)
    partitions = _wanted_partitions(path, runs, patterns) if is_wanted else []
    return HistoryReport(
        ledger=path,
        runs=tuple(runs),
        partitions=tuple(partitions),
        is_narrowed=bool(patterns),
        by_partition=bool(patterns) or run_id is not None,
        runs_in_ledger=len(every_run),
    )


def _replay(file: str, path: str) -> bool:
    advice = "name the output of a command with --json"
    try:
        if file == "-":
            report = sys.stdin.read()
        else:
            report = read_input_file(Path(file), MOST_LIST_BYTES, "the report", advice=advice).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UsageError(f"the report cannot be read: {reason}", path=file, advice=advice) from error
    try:
        return ledger.append(report, path)
    except UsageError as error:
        raise UsageError(error.what, path=file, advice=error.advice) from error


def _wanted_partitions(path: str, runs: Sequence[dict[str, Any]], patterns: Sequence[str]) -> list[dict[str, Any]]:
    positions = {run["run_id"]: index for index, run in enumerate(runs)}
    found = read_partitions(path, list(positions))
    matching = [row for row in found if not patterns or _is_named(row["partition"] or "", patterns)]
    return sorted(matching, key=lambda row: positions[row["run_id"]])


def _is_named(partition: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(partition, pattern) for pattern in patterns)


def _without_run(partition: dict[str, Any]) -> dict[str, Any]:
    shared = ("run_id", "command", "now_ms", "dry_run")
    return {name: value for name, value in _parsed(partition).items() if name not in shared}


def _parsed(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "other": json.loads(row["other"]) if row["other"] else {}}


if __name__ == "__main__":
    from sediment.jobs.history import command as importable

    importable()
