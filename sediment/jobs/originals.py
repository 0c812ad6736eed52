"""`sediment originals DIR`: the runs that kept originals in DIR, the size of these files, and which runs can be undone.

Nothing is changed and no lock is taken.  A run is restorable if `restore` would accept it now, either alone or after
the newer runs of the same partition are undone.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from sediment.engine.directory.originals.catalogue import Catalogue, OriginalFile, OriginalPartition
from sediment.engine.directory.originals.history import History, read_history
from sediment.engine.directory.originals.restore import listed_files, plan_partition_restore
from sediment.engine.directory.originals.restore_plan import Refusal, RestorePlan
from sediment.engine.directory.originals.retained import (
    HeldFiles,
    bytes_only_in,
    held_files,
    held_without_catalogue,
    read_pins,
)
from sediment.jobs.command_line.configured_command import plain_command
from sediment.jobs.command_line.declaration import Directory, TimeMs, argument
from sediment.jobs.command_line.exit_status import EXIT_DONE
from sediment.jobs.command_line.shared_options import json_option, now_ms_option
from sediment.jobs.process.standard_output import write_result
from sediment.jobs.reporting.columns import TableColumn
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.run_report import AFTER_PARTITIONS, RunReport
from sediment.jobs.reporting.screen import Screen, screen_text
from sediment.segment_io.dates import date_text
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import LOG_START_FILE, TopicPartition, new_run_id, parse_partition_directory
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_offset_checkpoint

RESTORABLE = "restorable"
NOT_RESTORABLE = "not-restorable"
NO_CATALOGUE = "no-catalogue"
NEWER_FIRST = "newer-first"
ALREADY_RESTORED = "already-restored"

OF_EARLIER_VERSION = (
    "an earlier version of Sediment kept these files without a catalogue; put them back or remove them by hand"
)


# --------------------------------------------------------------------------------------------------------------- report
@dataclass(frozen=True, slots=True)
class OriginalsReport:
    """The original files of one partition that one run kept.

    `bytes` is the size of the files.  `only_here_bytes` is the size of the files that have no other hard link; only the
    removal of such files frees space.  Times are in ms since the epoch.  Without a catalogue, `run` and the fields that
    describe the run are None.
    """

    partition: str
    log_dir: str | None
    status: str
    reason_code: str | None = None
    reason: str | None = None
    run: str | None = None
    run_command: str | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    files: int = 0
    bytes: int = 0
    only_here_bytes: int = 0
    holds_erased: bool = False
    pins: tuple[str, ...] = ()


Row = TypeVar("Row", bound=OriginalsReport)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OriginalsRunReport(RunReport[OriginalsReport]):
    """Report of `originals`: a row for each partition of each run, newest runs first.

    `originals_bytes` is the size of the runs' files that have no hard link in a log directory; a file that several runs
    keep counts once.  Files without a catalogue do not count, because no vacuum removes them.
    """

    row_type: ClassVar[type] = OriginalsReport

    originals: str = field(metadata=AFTER_PARTITIONS)
    originals_bytes: int = field(metadata=AFTER_PARTITIONS)


# -------------------------------------------------------------------------------------------------------------- listing
def list_originals(target: Path, *, now_ms: int, fs: Fs | None = None) -> OriginalsRunReport:
    fs, started = fs or Fs(), time.monotonic()
    history = read_history(target, fs)
    pins = read_pins(target, fs)
    undoable = _undoable(history, target, fs)
    rows = [
        row_of_partition(
            OriginalsReport,
            undoable[run.run_id, entry.log_dir, entry.partition],
            history,
            run,
            entry,
            target,
            pins_of(run, pins),
        )
        for run in reversed(history.runs)
        for entry in run.partitions
    ]
    return OriginalsRunReport(
        run_id=new_run_id(),
        command="originals",
        now_ms=now_ms,
        seconds=time.monotonic() - started,
        partitions=(*rows, *rows_without_catalogue(OriginalsReport, target, fs)),
        originals=str(target),
        originals_bytes=bytes_only_in(history, target),
    )


def pins_of(run: Catalogue, pins: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted(name for name, pinned in pins.items() if pinned == run.run_id))


def rows_without_catalogue(row_type: type[Row], target: Path, fs: Fs) -> Iterator[Row]:
    """Yield a row for each partition whose originals an earlier version of Sediment kept."""
    for name, held in held_without_catalogue(target, fs).items():
        yield row_type(
            name,
            None,
            NO_CATALOGUE,
            NO_CATALOGUE,
            OF_EARLIER_VERSION,
            files=held.files,
            bytes=held.bytes,
            only_here_bytes=held.only_here_bytes,
        )


def row_of_partition(
    row_type: type[Row],
    status: tuple[str, str | None, str | None],
    history: History,
    run: Catalogue,
    entry: OriginalPartition,
    target: Path,
    pins: tuple[str, ...],
) -> Row:
    held: HeldFiles = held_files(run, entry, target)
    return row_type(
        entry.partition,
        entry.log_dir,
        *status,
        run=run.run_id,
        run_command=run.command,
        started_ms=run.started_ms,
        finished_ms=run.finished_ms,
        files=held.files,
        bytes=held.bytes,
        only_here_bytes=held.only_here_bytes,
        holds_erased=history.holds_erased(run, entry),
        pins=pins,
    )


def _undoable(history: History, target: Path, fs: Fs) -> dict[tuple[str, str, str], tuple[str, str | None, str | None]]:
    found: dict[tuple[str, str, str], tuple[str, str | None, str | None]] = {}
    for log_dir, name in history.partitions():
        runs = history.runs_of(log_dir, name)
        try:
            live, log_start = _present(Path(log_dir), name, fs)
        except (SedimentError, OSError) as error:
            found |= {(run.run_id, log_dir, name): (NOT_RESTORABLE, *describe(error)) for run, _ in runs}
            continue
        chain = [run.run_id for run, _ in history.to_undo(history.runs, log_dir, name)]
        later, later_start = live, log_start
        for run, entry in reversed(runs):
            plan = plan_partition_restore(run, entry, live, target, fs, log_start_checkpoint=log_start)
            in_turn = plan_partition_restore(run, entry, later, target, fs, log_start_checkpoint=later_start)
            found[run.run_id, log_dir, name] = _answer(plan, in_turn if run.run_id in chain else plan)
            if run.run_id in chain and isinstance(in_turn, RestorePlan):
                later = in_turn.applied(later)
                later_start = in_turn.log_start_last if in_turn.moves_log_start else later_start
    return found


def _present(log_dir: Path, name: str, fs: Fs) -> tuple[dict[str, OriginalFile], int | None]:
    partition: TopicPartition = parse_partition_directory(name)[0]
    starts = read_offset_checkpoint(fs, log_dir / LOG_START_FILE) or {}
    return listed_files(log_dir / name, fs), starts.get(partition)


def _answer(plan: RestorePlan | Refusal, in_turn: RestorePlan | Refusal) -> tuple[str, str | None, str | None]:
    if isinstance(plan, RestorePlan):
        return RESTORABLE, ALREADY_RESTORED if plan.is_empty else None, None
    if isinstance(in_turn, RestorePlan):
        return RESTORABLE, NEWER_FIRST, "newer runs must be undone first; `restore --as-of` does this"
    return NOT_RESTORABLE, plan.reason_code, plan.reason


# -------------------------------------------------------------------------------------------------------------- showing
def _began(rows: Sequence[OriginalsReport]) -> str:
    started_ms = rows[0].started_ms
    return "" if started_ms is None else date_text(started_ms).removesuffix(" UTC")[:16]


def columns_of_run() -> tuple[TableColumn[Any], ...]:
    return (
        TableColumn("run", lambda rows: rows[0].run or rows[0].partition),
        TableColumn("began (UTC)", _began, rank=1),
        TableColumn("command", lambda rows: rows[0].run_command or "", rank=2),
    )


def _frees(rows: Sequence[OriginalsReport]) -> str:
    return human_bytes(sum(map(_freed_bytes, rows)))


def _freed_bytes(row: OriginalsReport) -> int:
    return 0 if row.status == NO_CATALOGUE else row.only_here_bytes


_COLUMNS: tuple[TableColumn[OriginalsReport], ...] = (
    *columns_of_run(),
    TableColumn("can be undone", lambda rows: _shown_status(rows)),
    TableColumn("partitions", lambda rows: str(len(rows)), lambda _: 1, rank=3),
    TableColumn("frees", _frees, _freed_bytes),
)


def print_report(report: OriginalsRunReport, screen: Screen) -> None:
    screen.table(by_run(report.partitions), _COLUMNS)
    for rows in by_run(report.partitions):
        for line in _notes(rows):
            screen.say(line)
    runs = len({row.run for row in report.partitions if row.run is not None})
    held = human_bytes(report.originals_bytes)
    screen.say(f"{counted(runs, 'run')}; a vacuum of all originals would free {held}")


def by_run(rows: Sequence[Row]) -> list[list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.run or f"{NO_CATALOGUE} {row.partition}", []).append(row)
    return list(found.values())


def _shown_status(rows: Sequence[OriginalsReport]) -> str:
    codes = [row.reason_code if row.status == RESTORABLE else f"no: {row.reason_code}" for row in rows]
    if len(set(codes)) > 1:
        return f"{sum(row.status == RESTORABLE for row in rows)} of {len(rows)}"
    return codes[0] or "yes"


def _notes(rows: Sequence[OriginalsReport]) -> Iterator[str]:
    if rows[0].pins:
        yield f"{rows[0].run}: pinned as {', '.join(rows[0].pins)}"
    erased = sum(row.holds_erased for row in rows)
    if erased:
        held = counted(erased, "partition")
        yield f"{rows[0].run}: the originals of {held} contain erased records until they are vacuumed"


# -------------------------------------------------------------------------------------------------------------- command
@dataclass(frozen=True, slots=True)
class OriginalsOptions:
    originals: Directory = argument(
        "DIR", "The --keep-originals directory of earlier runs.", required=True, keyword="path", parse=Path.absolute
    )
    now_ms: TimeMs | None = now_ms_option()
    as_json: bool = json_option()


def originals(own: OriginalsOptions) -> OriginalsRunReport:
    return list_originals(own.originals, now_ms=time.time_ns() // 1_000_000 if own.now_ms is None else own.now_ms)


@plain_command("originals", OriginalsOptions)
def command(own: OriginalsOptions) -> None:
    """List the earlier runs that kept replaced files in DIR (--keep-originals), and show which can be undone."""
    report = originals(own)
    write_result(report.to_json() + "\n" if own.as_json else screen_text(partial(print_report, report)))
    raise SystemExit(EXIT_DONE)


if __name__ == "__main__":
    command()
