"""`sediment expire LOG_DIR …`: delete the segments past their retention limits.

1. Threads prepare each partition with a few small reads.  They list it, finish an interrupted replacement
   (`finish_interrupted`), view it and plan it.
2. With --archive, Spark writes the records of the expired segments to the Delta table, and counts them there.
3. With --keep-originals, the run writes the catalogue in the state `planned`.
4. For each group of partitions, the run links the originals, rolls the active segments, moves the log starts, deletes
   the segments, and settles the log starts (`delete_group`).
5. With --keep-originals, the run completes the catalogue.

Invariants: a segment is deleted only after the log start offset above it is durable.  A run that asks for confirmation
changes nothing before the answer, and then deletes exactly the segments that it showed.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.originals.kept_in import KeptIn, kept_in
from sediment.jobs.command_line.confirmation import ask_on_terminal, may_ask
from sediment.jobs.command_line.declaration import ONE_COMMAND, Directory, option
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.command_line.shared_options import allow_network_fs_option
from sediment.jobs.expiring.deletion import delete_all, drop_redundant_starts, originals_of_expired
from sediment.jobs.expiring.expiry_task import ExpiryTask
from sediment.jobs.expiring.planner import ExpiryPlanner, check_unchanged
from sediment.jobs.expiring.report import COLUMNS, EXPIRED, ExpiryReport, ExpiryRunReport, print_report
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.process.standard_output import error_console
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.screen import Screen, View, named
from sediment.jobs.rewriting.kept_originals import KeptOriginals
from sediment.jobs.rewriting.run import Run, check_outside, read_locked
from sediment.jobs.settings.cluster_settings import warn_of_refusals
from sediment.jobs.settings.directories import SelectedDirectory, check_filesystem
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.running_brokers import warn_of_running
from sediment.segment_io.errors import DeclinedError, SettingsError
from sediment.segment_io.fs import Fs

_LOGGER = logging.getLogger(__name__)

_LOCAL_KEYS = ("local.retention.ms", "local.retention.bytes")


@dataclass(frozen=True, slots=True)
class ExpireOptions:
    dry_run: bool = option(
        False, "Delete nothing; report the segments that would be deleted.", from_settings=ONE_COMMAND
    )
    archive: str | None = option(
        None,
        "Before segments are deleted, copy their records to this Delta table, and check that the row counts match.",
        metavar="DELTA_PATH",
        from_settings=ONE_COMMAND,
    )
    keep_originals: Directory | None = option(
        None,
        "Before files are deleted, hard-link them into DIR (on the same filesystem) and list them there in a "
        "catalogue, so that `restore` can undo the run.  {log_dir} in DIR stands for each log directory.",
        from_settings=ONE_COMMAND,
    )
    yes: bool = option(
        False,
        "Delete without asking; otherwise, the command asks first if it runs on a terminal.",
        of_terminal=True,
    )
    allow_network_fs: bool = allow_network_fs_option()


def expire(
    options: CommonOptions,
    own: ExpireOptions | None = None,
    *,
    confirm: Callable[[ExpiryRunReport], bool] | None = None,
    stop: threading.Event | None = None,
    fs: Fs | None = None,
) -> ExpiryRunReport:
    """If there is anything to delete, `confirm` is called once, with the report that a dry run would return.

    Setting `stop` ends the run after the partitions in progress; the others are reported as failed.

    Raises:
        DeclinedError: `confirm` returned False; nothing was changed.
        SourceChangedError: a partition changed while `confirm` waited; nothing was deleted.
    """
    own = own or ExpireOptions()
    run = Run[ExpiryReport]("expire", options, stop, dry_run=own.dry_run, fs=fs)
    if not own.dry_run:
        for path in options.log_dirs:
            check_filesystem(path, allow_network=own.allow_network_fs)
    confirm = None if own.dry_run else confirm
    kept = kept_in(own.keep_originals, options.log_dirs, shares=True)
    run_report = partial(_run_report, run, own, kept)
    with run.stack:
        if own.archive is not None:
            from sediment.jobs.expiring.archive_table import check_archive

            check_archive(own.archive, options.log_dirs)
        directories, locks = _open_directories(run, own, kept)
        reports: list[ExpiryReport] = []
        expiring: list[ExpiryTask] = []
        planner = ExpiryPlanner(run, only_looks=own.dry_run or confirm is not None)
        for found in planner.prepare_all(directories):
            if isinstance(found, ExpiryTask):
                expiring.append(found)
            else:
                reports.append(found)
        shown = [*reports, *(each.report for each in expiring)]
        if own.dry_run:
            return run_report(shown, dry_run=True)
        if confirm is not None and expiring:
            if not confirm(run_report(shown, dry_run=True)):
                raise DeclinedError("nothing was deleted", advice="answer y, or give --yes, to delete")
            check_unchanged(expiring, locks, run.fs)
        elif expiring:
            _warn_before([each.report for each in expiring])
        if own.archive is not None and expiring:
            expiring, unarchived = _archived(run, own.archive, expiring)
            reports += unarchived
        originals: KeptOriginals | None = None
        if kept is not None and expiring:
            originals, expiring, unlisted = originals_of_expired(run, kept, expiring, locks)
            reports += unlisted
        reports += delete_all(run, expiring, locks, originals)
        catalogue = None if originals is None else originals.end(reports)
        drop_redundant_starts(directories, reports, locks, run.fs)
        return run_report(reports, catalogue)


def _run_report(
    run: Run[ExpiryReport],
    own: ExpireOptions,
    kept: KeptIn | None,
    reports: Sequence[ExpiryReport],
    catalogue: Path | None = None,
    *,
    dry_run: bool = False,
) -> ExpiryRunReport:
    return ExpiryRunReport(
        **run.header(reports),
        dry_run=dry_run,
        archive=own.archive,
        originals=None if kept is None else str(kept),
        catalogue=None if catalogue is None else str(catalogue),
    )


def _open_directories(
    run: Run[ExpiryReport], own: ExpireOptions, kept: KeptIn | None
) -> tuple[list[SelectedDirectory], dict[Path, DirectoryLock]]:
    """Check every directory and the selection before any change; then lock the directories and read them again."""
    directories, locks = read_locked(
        run,
        partial(run.options.open_directories, run.fs, in_place=not own.dry_run),
        partial(check_outside, kept, run.options.log_dirs),
        originals_of=None if kept is None else kept.of,
    )
    if own.dry_run:
        warn_of_refusals(directories)
        warn_of_running(directories)
    for directory in directories:
        for topic in sorted({partition.topic for partition in directory.partitions}):
            _check_local_keys(directory.settings, topic)
    return directories, locks


def _check_local_keys(settings: Settings, topic: str) -> None:
    given = [name for name in _LOCAL_KEYS if settings.origin(topic, name) == "--set"]
    if given and settings.for_topic(topic).retention.is_tiered:
        raise SettingsError(
            f"{given[0]} in --set applies to {topic}, a topic with tiered storage, but only its broker knows the "
            "segments in remote storage",
            advice="let the broker delete its segments, or set remote.log.copy.disable=true",
        )


def _archived(
    run: Run[ExpiryReport], path: str, expiring: Sequence[ExpiryTask]
) -> tuple[list[ExpiryTask], list[ExpiryReport]]:
    from sediment.jobs.expiring.archive import archive_segments

    wanted = {
        (each.log_dir, each.partition): [fate.segment.base_offset for fate in each.plan.deleted] for each in expiring
    }
    results = archive_segments(path, wanted, run.options, run.run_id, run.stop)
    archived, failed = [], []
    for each in expiring:
        result = results[each.log_dir, each.partition]
        if isinstance(result, int):
            archived.append(replace(each, report=replace(each.report, messages_archived=result)))
        else:
            failed.append(each.left_alone(*result, run.fs))
    return archived, failed


def _warn_before(expiring: Sequence[ExpiryReport]) -> None:
    names: dict[str, list[str]] = {}
    for report in expiring:
        for warning in report.warnings:
            names.setdefault(warning, []).append(report.partition)
    for warning, partitions in names.items():
        _LOGGER.warning("%s: %s", named(partitions), warning)


@log_command("expire", ExpireOptions, COLUMNS)
def command(options: CommonOptions, own: ExpireOptions) -> None:
    """Delete the segments of LOG_DIR... that are past their retention limits.

    SIGINT or SIGTERM ends the run after the partitions in progress; the run then prints its report and exits with
    status 1.
    """
    asks = may_ask() and not (own.yes or own.dry_run or options.as_json or options.quiet)
    with stop_on_signals() as stop:
        confirm = partial(_confirmed, stop=stop, view=options.view) if asks else None
        report = expire(options, own, confirm=confirm, stop=stop)
    options.conclude(report, print_report)


def _confirmed(shown: ExpiryRunReport, *, stop: threading.Event, view: View) -> bool:
    print_report(shown, Screen(error_console(), view))
    expired = [report for report in shown.partitions if report.status == EXPIRED]
    segments = sum(len(report.deleted_segments) for report in expired)
    freed = human_bytes(sum(report.bytes_before - report.bytes_after for report in expired))
    return ask_on_terminal(
        f"Delete {counted(segments, 'segment')} with {freed} from {counted(len(expired), 'partition')}?", stop
    )


if __name__ == "__main__":
    command()
