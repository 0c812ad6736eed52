"""What follows the loads of a directory: aborts of transactions, and the files of a stopped broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sediment.engine.directory.lock import DirectoryLock
from sediment.jobs.recovering.aborts import Aborts, DirectoryAborts
from sediment.jobs.recovering.loads import LoadOutcome
from sediment.jobs.recovering.log_report import report_of_aborts
from sediment.jobs.recovering.report import RecoveryReport
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import FAILED
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.checkpoints import format_offset_checkpoint
from sediment.segment_io.format.names import (
    LOCK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    DirectoryState,
    TopicPartition,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import log_start_entries, read_offset_checkpoint
from sediment.segment_io.partition.clean_shutdown_file import CleanShutdown, write_clean_shutdown

_NO_ABORTS = (
    "no transaction was aborted, because the markers would take the offsets of the missing records, which another "
    "replica may have; run again after the broker has copied them"
)


def abort_in_loaded(
    directory: SelectedDirectory,
    outcomes: Sequence[LoadOutcome],
    aborts: Aborts,
    lock: DirectoryLock | None,
    restore: str | None,
) -> list[LoadOutcome]:
    """Abort open transactions in the loaded logs of a directory; return the outcomes with these aborts."""
    done = []
    for outcome in outcomes:
        log, source = outcome.log, outcome.source
        if log is None or log.damage or source.state is not DirectoryState.LIVE:
            done.append(outcome)
            continue
        if outcome.report.missing_records and source.known is not None and source.known.other_nodes != ():
            warnings = (*outcome.report.warnings, _NO_ABORTS)
            done.append(replace(outcome, report=replace(outcome.report, warnings=warnings)))
            continue
        if lock is not None:
            lock.check()
        try:
            aborted = aborts.abort(log, directory, source.config, restore)
        except (SedimentError, OSError) as error:
            failed = RecoveryReport(source.name, str(directory.path), FAILED, *describe(error))
            report = replace(failed, repairs=outcome.report.repairs, housekeeping=outcome.report.housekeeping)
            done.append(LoadOutcome(source, report, None))
            continue
        done.append(LoadOutcome(source, report_of_aborts(outcome.report, aborted), aborted.log))
    return done


def settle_directory(
    directory: SelectedDirectory, outcomes: Sequence[LoadOutcome], is_whole: bool, aborts: Aborts | None, fs: Fs
) -> bool:
    """Write the files that a broker writes when it stops; return True if the directory now counts as cleanly stopped.

    Source: kafka-log 04 §14 step 3.
    """
    # Future replicas come first, so that their offsets are replaced with those of the current log of the same
    # partition.
    loaded = {
        outcome.source.partition: outcome.log
        for outcome in sorted(outcomes, key=lambda outcome: outcome.source.state is DirectoryState.LIVE)
        if outcome.log is not None and not outcome.log.damage
    }
    like = directory.path / LOCK_FILE
    starts = log_start_entries((p, log.log_start_offset, log.segments[0].base_offset) for p, log in loaded.items())
    _update(fs, directory.path / LOG_START_FILE, starts, loaded.keys() - starts.keys(), like)
    _update(fs, directory.path / RECOVERY_POINT_FILE, {p: log.log_end_offset for p, log in loaded.items()}, (), like)
    aborted = DirectoryAborts() if aborts is None else aborts.settle(directory)
    if aborted.has_failed:
        return False
    if aborted.taken is not None:
        write_clean_shutdown(fs, directory.path, aborted.taken, like=like)
    if directory.checkpoints.clean_shutdown:
        return True
    if not is_whole or len(loaded) < len(outcomes):
        return False
    # Leave out the broker epoch, because a controller must not treat a replica as cleanly stopped if its log was
    # truncated.
    write_clean_shutdown(fs, directory.path, CleanShutdown(None), like=like)
    return True


def _update(
    fs: Fs,
    path: Path,
    offsets: Mapping[TopicPartition, int],
    gone: Sequence[TopicPartition] | set[TopicPartition],
    like: Path,
) -> None:
    """Set `offsets` in a checkpoint file, and remove the entries in `gone`; write the file only if an entry changes."""
    before = read_offset_checkpoint(fs, path)
    after = {partition: offset for partition, offset in (before or {}).items() if partition not in gone} | dict(offsets)
    if after != before and (after or before is not None):
        fs.replace_file(path, format_offset_checkpoint(after), like=like)
