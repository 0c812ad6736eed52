"""`sediment restore LOG_DIR --from DIR`: put partitions back to their state before a run with --keep-originals.

1. Choose one run, or all runs that began at or after a time, newest first.
2. For each partition: list it, finish an interrupted replacement (`finish_interrupted`), and plan to undo each run.
   The partition is refused unless every run can be undone.
3. For each run: write the catalogue in the state `planned`, and write the log starts.  Keep the files to be removed,
   and put the segments back.  Write the other checkpoint entries, and complete the catalogue.

An interrupted replacement is finished first, unless that would put back records that this run must not put back.
Entries of the cleaner checkpoint are lowered before the segments change, and raised afterwards, so an entry never
claims more than the segments contain.  To finish a killed restore, run the same command again.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sediment.compaction.rewrite.suppression import SuppressionList
from sediment.engine.directory.originals.catalogue import Catalogue
from sediment.engine.directory.originals.history import RESTORED, History, read_history
from sediment.jobs.command_line.confirmation import ask_on_terminal, must_ask
from sediment.jobs.command_line.declaration import ONE_COMMAND, Directory, File, option, required_option, together
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.command_line.shared_options import allow_network_fs_option
from sediment.jobs.erasing.suppression_file import SuppressionOptions
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.process.standard_output import error_console
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.screen import Screen, View
from sediment.jobs.restoring.chains import Chain, ChainPlanner, chains_of, missing_partitions
from sediment.jobs.restoring.report import COLUMNS, RestoreReport, RestoreRunReport, print_report
from sediment.jobs.restoring.undoing import Undoing
from sediment.jobs.rewriting.run import Run, read_locked
from sediment.segment_io.errors import DeclinedError, UsageError
from sediment.segment_io.fs import Fs

_MS = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class _SuppressOptions(SuppressionOptions):
    suppress: File | None = option(
        None,
        "Refuse to restore a partition if the files to restore contain a key on the suppression list FILE, which "
        "`erase --suppress-out` wrote.",
    )


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    originals: Directory = required_option(
        "Restore from DIR, the --keep-originals directory of earlier runs; DIR also keeps the files that the restore "
        "removes.",
        name="from",
        parse=Path.absolute,
        from_settings=ONE_COMMAND,
    )
    run_id: str | None = option(None, "Undo the run with this id.", name="run", keyword="run", metavar="ID")
    as_of_ms: int | None = option(
        None,
        "Undo all runs that began at or after TIME, in ISO 8601 (UTC) or in ms since the epoch.",
        name="as-of",
        keyword="as_of",
        metavar="TIME",
        parse=lambda text: parse_time(text),
    )
    undo_erasure: bool = option(False, "Also put back records that a later run erased.")
    suppressed: SuppressionList | None = together(_SuppressOptions)
    dry_run: bool = option(False, "Change nothing; report what a run would restore.", from_settings=ONE_COMMAND)
    yes: bool = option(
        False, "Restore without asking; required if stdin or stderr is not a terminal.", of_terminal=True
    )
    allow_network_fs: bool = allow_network_fs_option()

    def validate(self) -> None:
        if (self.run_id is None) == (self.as_of_ms is None):
            raise UsageError(
                "restore needs either --run ID or --as-of TIME", advice="list runs: sediment originals DIR"
            )


def parse_time(text: str) -> int:
    """Return the time in `text` as ms since the epoch; `text` is in ms, or in ISO 8601 (in UTC unless it names a zone).

    Raises:
        UsageError: `text` is neither.
    """
    if _MS.fullmatch(text):
        return int(text)
    try:
        time_given = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"--as-of {text!r} is not a time", advice="give 2026-11-22T18:00:00Z, or milliseconds since the epoch"
        ) from error
    return int((time_given if time_given.tzinfo else time_given.replace(tzinfo=UTC)).timestamp() * 1000)


def restore(
    options: CommonOptions,
    own: RestoreOptions,
    *,
    confirm: Callable[[RestoreRunReport], bool] | None = None,
    stop: threading.Event | None = None,
    fs: Fs | None = None,
) -> RestoreRunReport:
    """If there is anything to undo, `confirm` is called once, with the report that a dry run would return.

    Setting `stop` ends the run after the partition in progress; the others are reported as failed.

    Raises:
        DeclinedError: `confirm` returned False; nothing was changed.
    """
    own.validate()
    run = Run[RestoreReport]("restore", options, stop, dry_run=own.dry_run, fs=fs)
    with run.stack:
        (history, directories), locks = read_locked(
            run,
            lambda: (read_history(own.originals, run.fs), options.open_directories(run.fs)),
            locked=(own.originals, *options.log_dirs),
            originals_of=lambda _: own.originals,
            allow_network=own.allow_network_fs,
        )
        wanted = _chosen_runs(own, history)
        reports = missing_partitions(run, wanted)
        planner = ChainPlanner(
            run,
            history,
            own.originals,
            only_looks=own.dry_run or confirm is not None,
            undo_erasure=own.undo_erasure,
            suppressed=own.suppressed,
        )
        chains: list[Chain] = []
        for chain in chains_of(run, history, directories, wanted):
            found = planner.planned(chain)
            if isinstance(found, Chain):
                chains.append(found)
            else:
                reports.append(found)
        shown = [*reports, *(chain.report for chain in chains)]
        if own.dry_run:
            return _run_report(run, own, shown, dry_run=True)
        if confirm is not None and chains and not confirm(_run_report(run, own, shown, dry_run=True)):
            raise DeclinedError("nothing was restored", advice="answer y, or give --yes, to restore")
        undoing = Undoing(run, own.originals, {path: lock for path, lock in locks.items() if path in options.log_dirs})
        reports += undoing.restore_all(chains, wanted)
        return _run_report(run, own, reports, undoing.catalogues)


def _run_report(
    run: Run[RestoreReport],
    own: RestoreOptions,
    reports: Sequence[RestoreReport],
    catalogues: Sequence[str] = (),
    *,
    dry_run: bool = False,
) -> RestoreRunReport:
    return RestoreRunReport(
        **run.header(reports), dry_run=dry_run, originals=str(own.originals), catalogues=tuple(catalogues)
    )


def _chosen_runs(own: RestoreOptions, history: History) -> list[Catalogue]:
    if own.run_id is not None:
        found = history.run(own.run_id)
        if found is None:
            raise UsageError(
                f"run {own.run_id} has no catalogue",
                path=str(own.originals),
                advice="list the runs: sediment originals DIR",
            )
        return [found]
    assert own.as_of_ms is not None
    return [run for run in history.runs if run.started_ms >= own.as_of_ms]


@log_command("restore", RestoreOptions, COLUMNS)
def command(options: CommonOptions, own: RestoreOptions) -> None:
    """Put the partitions of LOG_DIR... back to their state before a run with --keep-originals.

    SIGINT or SIGTERM ends the run after the partition in progress; the run then prints its report and exits with status
    1.
    """
    asks = must_ask(yes=own.yes, dry_run=own.dry_run, command="restore")
    with stop_on_signals() as stop:
        confirm = partial(_confirmed, stop=stop, view=options.view) if asks else None
        report = restore(options, own, confirm=confirm, stop=stop)
    options.conclude(report, print_report)


def _confirmed(shown: RestoreRunReport, *, stop: threading.Event, view: View) -> bool:
    print_report(shown, Screen(error_console(), view))
    restored = [report for report in shown.partitions if report.status == RESTORED]
    runs = {run for report in restored for run in report.runs}
    return ask_on_terminal(f"Undo {counted(len(runs), 'run')} in {counted(len(restored), 'partition')}?", stop)


if __name__ == "__main__":
    command()
