"""`sediment recover LOG_DIR …`: load and repair every partition as a broker does at its start.

1. With --keep-originals, the run finishes interrupted replacements, links the originals, and writes the catalogue.
2. Threads load each partition with `load_log`: passes, recovery, snapshots and leader epochs.  Kernels run without the
   interpreter lock.
3. With --abort-open-transactions, the run ends the open transactions of the loaded logs (`recovering.aborts`).
4. When all partitions of a directory are done, the run writes its recovery points, its log starts, and the marker of a
   clean stop.

Invariants: a directory gets the marker of a clean stop in two cases: it had the marker before, or every log that a
broker would open was loaded without an error.  A recovery point is written only if the log is durable up to that
offset.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sediment.engine.directory.originals.kept_in import KEPT_BEFORE_CUTS, KeptIn, kept_in
from sediment.jobs.command_line.confirmation import ask_on_terminal, must_ask
from sediment.jobs.command_line.declaration import ONE_COMMAND, Count, Directory, option
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.process.standard_output import error_console
from sediment.jobs.recovering.aborts import Aborts, restore_command
from sediment.jobs.recovering.kept_files import KeptBeforeCuts, keep_before_loads
from sediment.jobs.recovering.loads import load_all
from sediment.jobs.recovering.logs_to_load import logs_to_load, open_with_future_replicas
from sediment.jobs.recovering.report import COLUMNS, RecoveryReport, RecoveryRunReport, print_report
from sediment.jobs.recovering.settling import abort_in_loaded, settle_directory
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.screen import Screen
from sediment.jobs.rewriting.kept_originals import KeptOriginals, OriginalsOnDemand
from sediment.jobs.rewriting.run import Run, check_outside, read_locked
from sediment.jobs.settings.damaged_files import damaged_files
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.future_replicas import future_replicas
from sediment.jobs.settings.topic_ids import topic_ids_of
from sediment.segment_io.errors import DeclinedError

_THREADS_KEY = "num.recovery.threads.per.data.dir"


@dataclass(frozen=True, slots=True)
class RecoverOptions:
    dry_run: bool = option(
        False, "Change nothing; report the repairs that a run would make.", from_settings=ONE_COMMAND
    )
    threads: Count | None = option(
        None,
        f"Load this many partitions at a time in each directory (default: {_THREADS_KEY}).",
        from_settings=ONE_COMMAND,
    )
    keep_originals: Directory | None = option(
        None,
        "Before the repair, hard-link all segment files into DIR (on the same filesystem), so that `restore` can undo "
        "the run; afterwards, keep only the links to files that the repair changed.  {log_dir} in DIR stands for each "
        "log directory.",
        from_settings=ONE_COMMAND,
    )
    without_undo: bool = option(
        False, "Also cut off records whose files cannot be kept first.  Without this option, such a partition fails."
    )
    abort_open_transactions: bool = option(
        False, "Then also write an ABORT marker for each open transaction that no coordinator will end."
    )
    yes: bool = option(
        False,
        "Abort transactions without asking; required with --abort-open-transactions if stdin or stderr is not a "
        "terminal.",
        of_terminal=True,
    )


def recover(
    options: CommonOptions,
    own: RecoverOptions | None = None,
    *,
    confirm: Callable[[Sequence[str]], bool] | None = None,
    stop: threading.Event | None = None,
) -> RecoveryRunReport:
    """Load and repair the selected partitions of `options.log_dirs`.

    Without `own.keep_originals`, a log from which records must be cut off is first kept in a neighbour of its log
    directory; if that cannot be done, the partition fails, unless `own.without_undo`.  If transactions are to be
    aborted, `confirm` is called before the first change, with a sentence for each of them.
    Setting `stop` ends the run after the partitions in progress; the others are reported as failed.

    Raises:
        DeclinedError: `confirm` returned False; nothing was changed.
    """
    own = own or RecoverOptions()
    run = Run[RecoveryReport]("recover", options, stop, dry_run=own.dry_run)
    run_id, fs, stack = run.run_id, run.fs, run.stack
    clean: list[str] = []
    kept = kept_in(own.keep_originals, options.log_dirs, shares=True)
    with stack:
        directories, locks = read_locked(
            run,
            partial(open_with_future_replicas, options, fs),
            partial(check_outside, kept, options.log_dirs),
            originals_of=None if kept is None else kept.of,
        )
        damaged = tuple(file for directory in directories for file in damaged_files(directory, directories, fs))
        topic_ids = topic_ids_of(directories, fs)
        future = future_replicas(directories, fs)
        per_directory = [
            (directory, *logs_to_load(directory, topic_ids[directory.path], future[directory.path], options, fs))
            for directory in directories
        ]
        aborts: Aborts | None = None
        if own.abort_open_transactions:
            per_directory = [
                (directory, [replace(log, keeps_producers=True) for log in logs], is_whole)
                for directory, logs, is_whole in per_directory
            ]
            aborts = Aborts(directories, fs, now_ms=options.now_ms, dry_run=own.dry_run)
            if confirm is not None and not own.dry_run:
                found = aborts.survey(directories)
                if found and not confirm(found):
                    raise DeclinedError("nothing was changed", advice="answer y, or give --yes, to abort")
        originals: KeptOriginals | None = None
        on_demand: OriginalsOnDemand | None = None
        if kept is not None and not own.dry_run:
            originals, per_directory = keep_before_loads(run, kept, per_directory)
        elif not own.without_undo:
            place = KEPT_BEFORE_CUTS
            if len(directories) == 1:
                place = KeptIn(str(place.of(directories[0].path)))
            on_demand = OriginalsOnDemand(run, place)
        logs = [log for _, some, _ in per_directory for log in some]
        progress = stack.enter_context(
            Progress(options.messages(), len(logs), sum(log.log_bytes for log in logs), phase="loading")
        )
        per_thread = own.threads or max(map(_default_threads, directories), default=1)
        pool = ThreadPoolExecutor(per_thread * len(directories), "sediment-recover")
        catalogue: Path | None = None
        try:
            for directory, loaded, is_whole in load_all(
                per_directory, pool, locks, run.stop, options, progress, KeptBeforeCuts(on_demand)
            ):
                lock = locks.get(directory.path)
                outcomes = loaded
                if aborts is not None:
                    restore = None if kept is None else restore_command(directory.path, kept.of(directory.path), run_id)
                    outcomes = abort_in_loaded(directory, loaded, aborts, lock, restore)
                for outcome in outcomes:
                    run.add(outcome.report)
                if lock is not None:
                    lock.check()
                    if settle_directory(directory, outcomes, is_whole, aborts, fs):
                        clean.append(str(directory.path))
                elif directory.checkpoints.clean_shutdown:
                    clean.append(str(directory.path))
        finally:
            # After an error, too: `restore` cannot undo a cut without the list of new files.  The threads end first,
            # because the catalogues drop the originals of files that are still in place.
            pool.shutdown(cancel_futures=True)
            if originals is not None:
                catalogue = originals.end(run.rows)
            if on_demand is not None and (kept_before_cuts := on_demand.end(run.rows)) is not None:
                kept, catalogue = on_demand.kept_in, kept_before_cuts
    return RecoveryRunReport(
        **run.header(run.rows),
        dry_run=own.dry_run,
        clean_directories=tuple(sorted(clean)),
        damaged_files=damaged,
        originals=None if kept is None else str(kept),
        catalogue=None if catalogue is None else str(catalogue),
    )


def _default_threads(directory: SelectedDirectory) -> int:
    value = directory.settings.broker_value(_THREADS_KEY)
    assert isinstance(value, int)
    return value


@log_command("recover", RecoverOptions, COLUMNS)
def command(options: CommonOptions, own: RecoverOptions) -> None:
    """Load every partition of LOG_DIR... as a broker does at its start, and repair it.

    SIGINT or SIGTERM ends the run after the partitions in progress; the run then prints its report and exits with
    status 1.
    """
    with stop_on_signals() as stop:
        asks = own.abort_open_transactions and must_ask(
            yes=own.yes, dry_run=own.dry_run, command="--abort-open-transactions"
        )

        def confirm(transactions: Sequence[str]) -> bool:
            screen = Screen(error_console())
            screen.say(
                "recover aborts these transactions: readers of committed data will go on after them, and never see "
                "their records"
            )
            for transaction in transactions:
                screen.say(f"  {transaction}")
            return ask_on_terminal(f"Abort {counted(len(transactions), 'transaction')} in place?", stop)

        report = recover(options, own, confirm=confirm if asks else None, stop=stop)
    options.conclude(report, print_report)


if __name__ == "__main__":
    command()
