"""`sediment vacuum DIR`: remove the originals of old runs; these runs can then no longer be undone.

Invariants: a file is removed only if a catalogue lists it with its inode, size and time.  No symbolic link is followed.
The originals of a pinned run, or of a run that has not ended, are kept.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.originals.catalogue import Catalogue
from sediment.engine.directory.originals.history import History, read_history
from sediment.engine.directory.originals.retained import (
    is_running,
    read_pins,
    remove_originals,
    write_pins,
)
from sediment.jobs.command_line.configured_command import plain_command
from sediment.jobs.command_line.confirmation import ask_on_terminal, must_ask
from sediment.jobs.command_line.declaration import ONE_COMMAND, Directory, TimeMs, argument, option
from sediment.jobs.command_line.exit_status import EXIT_DONE, EXIT_FAILED
from sediment.jobs.command_line.shared_options import json_option, now_ms_option
from sediment.jobs.command_line.units import parse_duration
from sediment.jobs.originals import (
    OriginalsReport,
    by_run,
    columns_of_run,
    pins_of,
    row_of_partition,
    rows_without_catalogue,
)
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.process.standard_output import error_console, write_result
from sediment.jobs.reporting.arrow_rows import INTERNAL
from sediment.jobs.reporting.columns import TableColumn, of_dry_run, status_style, status_text
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.run_report import AFTER_PARTITIONS, FAILED, RunReport
from sediment.jobs.reporting.screen import Screen, screen_text
from sediment.jobs.reporting.statuses import STOPPED
from sediment.segment_io.dates import date_text
from sediment.segment_io.errors import DeclinedError, SedimentError, UsageError
from sediment.segment_io.format.names import by_number, new_run_id
from sediment.segment_io.fs import Fs

REMOVED = "removed"
PINNED = "pinned"
KEPT = "kept"
YOUNG = "young"
RUNNING = "running"

_STOPPED = (STOPPED, "the run was stopped before these originals were removed")
_LEAST_MS = 24 * 3_600_000


# --------------------------------------------------------------------------------------------------------------- report
@dataclass(frozen=True, slots=True)
class VacuumReport(OriginalsReport):
    """The originals that one run kept for one partition; `status` is the decision about these originals."""

    finished_ms: int | None = field(default=None, metadata=INTERNAL)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class VacuumRunReport(RunReport[VacuumReport]):
    """Report of a run of `vacuum`: a row for each partition of each run, newest runs first."""

    row_type: ClassVar[type] = VacuumReport

    dry_run: bool
    originals: str = field(metadata=AFTER_PARTITIONS)


def _frees(rows: Sequence[VacuumReport]) -> str:
    removed = rows[0].status == REMOVED
    return human_bytes(sum(row.only_here_bytes for row in rows) if removed else 0)


def _shown_status(row: VacuumReport) -> str:
    return row.status if row.status == REMOVED else status_text(row)


_COLUMNS: tuple[TableColumn[VacuumReport], ...] = (
    *columns_of_run(),
    TableColumn("status", lambda rows: _shown_status(rows[0]), style=status_style),
    TableColumn("partitions", lambda rows: str(len(rows)), lambda _: 1),
    TableColumn("frees", _frees, lambda row: row.only_here_bytes),
)


def print_report(report: VacuumRunReport, screen: Screen) -> None:
    runs = by_run(report.partitions)
    screen.table(runs, of_dry_run(_COLUMNS) if report.dry_run else _COLUMNS)
    screen.failed([rows[0] for rows in runs], noun="run", name=lambda row: row.run or row.partition)
    for line in _consequences(report):
        screen.say(line)


def _consequences(report: VacuumRunReport) -> Iterator[str]:
    removed = [rows for rows in by_run(report.partitions) if rows[0].status == REMOVED]
    would = "could" if report.dry_run else "can"
    for rows in removed:
        first = rows[0]
        names = ", ".join(sorted((row.partition for row in rows), key=by_number)[:5])
        more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
        yield f"{first.run_command} of run {first.run} {would} no longer be undone in {names}{more}"
    freed = sum(row.only_here_bytes for rows in removed for row in rows)
    verb = "would be removed" if report.dry_run else "removed"
    yield f"{counted(len(removed), 'run')} {verb}; {human_bytes(freed)}; {report.seconds:.1f} s (run {report.run_id})"


# -------------------------------------------------------------------------------------------------------------- options
@dataclass(frozen=True, slots=True)
class VacuumOptions:
    """Without `older_than`, nothing is removed, and only pins change."""

    originals: Directory = argument(
        "DIR", "The --keep-originals directory of earlier runs.", required=True, keyword="path", parse=Path.absolute
    )
    older_than: str | None = option(
        None, "Remove the files of runs that ended more than AGE ago, such as 7d or 36h.", metavar="AGE"
    )
    run_id: str | None = option(
        None, "With --pin: keep the files of the run with this id.", name="run", keyword="run", metavar="ID"
    )
    pin: str | None = option(
        None, "Keep the files of the run in --run until --unpin NAME removes this pin.", metavar="NAME"
    )
    unpin: str | None = option(
        None, "Remove the pin NAME, so that a later vacuum can remove the files of its run.", metavar="NAME"
    )
    dry_run: bool = option(False, "Change nothing; report what a run would remove.", from_settings=ONE_COMMAND)
    force: bool = option(False, "Accept an --older-than age of less than 24 hours.")
    yes: bool = option(False, "Remove without asking; required if stdin or stderr is not a terminal.", of_terminal=True)
    now_ms: TimeMs | None = now_ms_option()
    as_json: bool = json_option()

    def older_than_ms(self) -> int | None:
        if self.older_than is None and self.pin is None and self.unpin is None:
            raise UsageError("no age of the originals is given", advice="give --older-than, such as 7d")
        if (self.pin is None) != (self.run_id is None):
            raise UsageError("--pin and --run belong together", advice="give --run ID --pin NAME")
        age_ms = None if self.older_than is None else parse_duration(self.older_than)
        if age_ms is not None and age_ms < _LEAST_MS and not self.force:
            raise UsageError(
                f"--older-than {self.older_than} is less than 24 hours", advice="give at least 24h, or --force"
            )
        return age_ms


# -------------------------------------------------------------------------------------------------------------- the run
def vacuum(
    own: VacuumOptions,
    *,
    confirm: Callable[[VacuumRunReport], bool] | None = None,
    stop: threading.Event | None = None,
    fs: Fs | None = None,
) -> VacuumRunReport:
    """Change pins, then remove the originals of runs that ended before `now_ms - older_than_ms`.

    If there is anything to remove, `confirm` is called once, with the report that a dry run would return.  Setting
    `stop` ends the vacuum after the run whose originals are being removed.

    Raises:
        DeclinedError: `confirm` returned False; nothing was removed.
    """
    older_than_ms = own.older_than_ms()
    now_ms = time.time_ns() // 1_000_000 if own.now_ms is None else own.now_ms
    removed_before_ms = None if older_than_ms is None else now_ms - older_than_ms
    fs, stop, started, run_id = fs or Fs(), stop or threading.Event(), time.monotonic(), new_run_id()

    def report(rows: Sequence[VacuumReport], *, dry_run: bool) -> VacuumRunReport:
        return VacuumRunReport(
            run_id=run_id,
            command="vacuum",
            now_ms=now_ms,
            seconds=time.monotonic() - started,
            dry_run=dry_run,
            partitions=tuple(rows),
            originals=str(own.originals),
        )

    history = read_history(own.originals, fs)
    with ExitStack() as stack:
        if not own.dry_run:
            stack.enter_context(DirectoryLock(own.originals))
            history = read_history(own.originals, fs)
        before = read_pins(own.originals, fs)
        pins = _changed_pins(before, own, history)
        rows = [row for run in reversed(history.runs) for row in _decided(run, own, history, pins, removed_before_ms)]
        rows += rows_without_catalogue(VacuumReport, own.originals, fs)
        if own.dry_run:
            return report(rows, dry_run=True)
        if pins != before:
            write_pins(pins, own.originals, fs)
        if (
            confirm is not None
            and any(row.status == REMOVED for row in rows)
            and not confirm(report(rows, dry_run=True))
        ):
            raise DeclinedError("nothing was removed", advice="answer y, or give --yes, to remove")
        return report(_removed(rows, history, own, stop, fs), dry_run=False)


def _changed_pins(pins: dict[str, str], own: VacuumOptions, history: History) -> dict[str, str]:
    changed = dict(pins)
    if own.unpin is not None and changed.pop(own.unpin, None) is None:
        raise UsageError(
            f"the pin {own.unpin!r} does not exist", path=str(own.originals), advice="list pins: sediment originals DIR"
        )
    if own.pin is not None and own.run_id is not None:
        if history.run(own.run_id) is None:
            raise UsageError(
                f"run {own.run_id} has no catalogue",
                path=str(own.originals),
                advice="list runs: sediment originals DIR",
            )
        if changed.get(own.pin, own.run_id) != own.run_id:
            raise UsageError(
                f"the pin {own.pin!r} keeps run {changed[own.pin]}", advice="give another name, or --unpin first"
            )
        changed[own.pin] = own.run_id
    return changed


def _decided(
    run: Catalogue, own: VacuumOptions, history: History, pins: dict[str, str], removed_before_ms: int | None
) -> Iterator[VacuumReport]:
    names = pins_of(run, pins)
    status = _decide(run, names, removed_before_ms)
    for entry in run.partitions:
        yield row_of_partition(VacuumReport, status, history, run, entry, own.originals, names)


def _decide(run: Catalogue, pins: Sequence[str], removed_before_ms: int | None) -> tuple[str, str | None, str | None]:
    if pins:
        return PINNED, None, f"pinned as {', '.join(pins)}; --unpin NAME removes a pin"
    if is_running(run):
        return KEPT, RUNNING, "the run has not ended, and a process has locked its log directory"
    ended_ms = run.started_ms if run.finished_ms is None else run.finished_ms
    if removed_before_ms is None:
        return KEPT, None, None
    if ended_ms > removed_before_ms:
        return KEPT, YOUNG, f"the run ended at {date_text(ended_ms)}"
    return REMOVED, None, None


def _removed(
    rows: Sequence[VacuumReport], history: History, own: VacuumOptions, stop: threading.Event, fs: Fs
) -> list[VacuumReport]:
    failed: dict[str, tuple[str, str]] = {}
    marked = {row.run for row in rows if row.status == REMOVED}
    for run in history.runs:
        if run.run_id not in marked:
            continue
        if stop.is_set():
            failed[run.run_id] = _STOPPED
            continue
        try:
            remove_originals(run, own.originals, fs)
        except (SedimentError, OSError) as error:
            failed[run.run_id] = describe(error)
    return [
        replace(row, status=FAILED, reason_code=failed[row.run][0], reason=failed[row.run][1])
        if row.run in failed
        else row
        for row in rows
    ]


# -------------------------------------------------------------------------------------------------------------- command
@plain_command("vacuum", VacuumOptions)
def command(own: VacuumOptions) -> None:
    """Remove from DIR the files that old runs with --keep-originals DIR kept; these runs can then no longer be undone.

    SIGINT or SIGTERM ends the command after the run whose files are being removed; the command then prints its report
    and exits with status 1.
    """
    asks = own.older_than is not None and must_ask(yes=own.yes, dry_run=own.dry_run, command="vacuum")
    with stop_on_signals() as stop:
        report = vacuum(own, confirm=partial(_confirmed, stop=stop) if asks else None, stop=stop)
    write_result(report.to_json() + "\n" if own.as_json else screen_text(partial(print_report, report)))
    raise SystemExit(EXIT_FAILED if report.failed else EXIT_DONE)


def _confirmed(shown: VacuumRunReport, *, stop: threading.Event) -> bool:
    print_report(shown, Screen(error_console()))
    runs = {row.run for row in shown.partitions if row.status == REMOVED}
    return ask_on_terminal(f"Remove the originals of {counted(len(runs), 'run')}?", stop)


if __name__ == "__main__":
    command()
