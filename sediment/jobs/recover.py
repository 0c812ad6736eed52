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

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from sediment.engine.clone.partition_clone import note_producers_of_bare_copy
from sediment.engine.directory.dry_run_overlay import OverlayFs, overlay_of
from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.loading.load_state import LoadMode
from sediment.engine.directory.loading.loaded_losses import losses_of
from sediment.engine.directory.loading.log_loader import LoadedLog, load_log
from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.missing_records import (
    KnownOfLog,
    LogCut,
    LogLosses,
    doubtful_cut,
    missing_after_cut,
    orphans_of,
)
from sediment.engine.directory.originals.catalogue import OriginalPartition, partition_before, segment_file_names
from sediment.engine.directory.originals.kept_in import KEPT_BEFORE_CUTS, KeptIn, kept_in
from sediment.engine.directory.partition_metadata import TopicIdFault, TopicIds, write_topic_id
from sediment.engine.directory.repair import Repair
from sediment.engine.log_config import LogConfig
from sediment.jobs.command_line.confirmation import ask_on_terminal, must_ask
from sediment.jobs.command_line.declaration import ONE_COMMAND, Count, Directory, option
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.process.standard_output import error_console
from sediment.jobs.recovering.aborts import AbortedLog, Aborts, DirectoryAborts, restore_command
from sediment.jobs.recovering.report import (
    COLUMNS,
    RECORDS_MISSING,
    MissingReport,
    RecoveryReport,
    RecoveryRunReport,
    SegmentReport,
    print_report,
)
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.run_report import FAILED
from sediment.jobs.reporting.screen import Screen
from sediment.jobs.reporting.statuses import RECOVERED, STOPPED
from sediment.jobs.rewriting.kept_originals import KeptOriginals, OriginalsOnDemand
from sediment.jobs.rewriting.run import Run, check_outside, read_locked
from sediment.jobs.settings.damaged_files import damaged_files
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.future_replicas import FUTURE_REPLICA, FutureReplica, future_replicas
from sediment.jobs.settings.known_logs import known_of_log
from sediment.jobs.settings.topic_ids import NO_TOPIC_ID, topic_ids_of
from sediment.segment_io.errors import (
    DeclinedError,
    LockLostError,
    RecordsWouldBeLostError,
    SedimentError,
    UsageError,
)
from sediment.segment_io.format.checkpoints import format_offset_checkpoint
from sediment.segment_io.format.names import (
    LOCK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    DirectoryState,
    TopicPartition,
    parse_segment_file,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import (
    PartitionCheckpoints,
    log_start_entries,
    read_offset_checkpoint,
)
from sediment.segment_io.partition.clean_shutdown_file import CleanShutdown, write_clean_shutdown
from sediment.segment_io.partition.listing import check_segments_are_files
from sediment.segment_io.partition.partition_directories import find_partitions

_LOGGER = logging.getLogger(__name__)


_THREADS_KEY = "num.recovery.threads.per.data.dir"
_NO_ABORTS = (
    "no transaction was aborted, because the markers would take the offsets of the missing records, which another "
    "replica may have; run again after the broker has copied them"
)
_NOT_LOADED = frozenset({DirectoryState.DELETE, DirectoryState.STRAY})


# --------------------------------------------------------------------------------------------------------------- report
def _with_repairs(report: RecoveryReport, repairs: Sequence[Repair]) -> RecoveryReport:
    return replace(
        report,
        repairs=tuple(str(repair) for repair in repairs if not repair.is_routine),
        housekeeping=tuple(str(repair) for repair in repairs if repair.is_routine),
    )


def _report_of(name: str, log_dir: Path, log: LoadedLog) -> RecoveryReport:
    report = RecoveryReport(
        partition=name,
        log_dir=str(log_dir),
        status=FAILED if log.damage else RECOVERED,
        reason_code="corrupt-batch" if log.damage else None,
        reason=_damage_reason(log) if log.damage else None,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        first_unstable_offset=log.first_unstable_offset,
        recovery_point=log.recovery_point,
        segments=tuple(
            SegmentReport(
                segment.base_offset,
                segment.log_bytes,
                segment.offset_index_entries,
                segment.time_index_entries,
                segment.next_offset,
                segment.largest_timestamp_ms,
            )
            for segment in log.segments
        ),
        producers=tuple((key, entry.last_sequence) for key, entry in sorted(log.producers.entries.items())),
        aborted=tuple(
            (entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
            for entry in log.aborted
        ),
        damage=tuple(map(str, log.damage)),
        verified_from_offset=log.verified_from_offset,
    )
    return _with_repairs(report, log.repairs)


def _report_of_aborted(report: RecoveryReport, aborted: AbortedLog) -> RecoveryReport:
    name, log_dir = report.partition, Path(report.log_dir)
    again = _report_of(name, log_dir, aborted.log)
    repairs = (*again.repairs, *map(str, aborted.repairs))
    report = replace(again, repairs=repairs, warnings=report.warnings, undo=aborted.undo)
    if not aborted.left_open:
        return report
    first = next((left for left in aborted.left_open if left.is_refused), aborted.left_open[0])
    return replace(
        report,
        status=FAILED if first.is_refused else report.status,
        reason_code=first.reason_code,
        reason="; ".join(left.reason for left in aborted.left_open),
    )


def _damage_reason(log: LoadedLog) -> str:
    found = "; ".join(map(str, log.damage))
    return (
        f"{found}. Brokers do not notice this damage. Truncating the log at the damage would lose the records after "
        "it, so nothing was changed; restore the segment from a replica or a backup"
    )


# ---------------------------------------------------------------------------------------------------------- a partition
@dataclass(frozen=True, slots=True)
class _LogToLoad:
    """Log to load; `name` is the name of its directory: `TOPIC-N`, or the name of a future replica's directory."""

    name: str
    partition: TopicPartition
    state: DirectoryState
    directory: SelectedDirectory
    checkpoints: PartitionCheckpoints
    config: LogConfig
    log_bytes: int
    finished: tuple[Repair, ...] = ()
    """Repairs made before the originals were linked."""

    failure: tuple[str, str] | None = None
    """Reason code and text if the log must not be loaded."""

    topic_id_fault: TopicIdFault | None = None
    """A fault of partition.metadata that is repaired, or that is reported as a warning."""

    keeps_producers: bool = False
    """True if a copy without producer snapshots must not lose its open transactions, as it would in a broker."""

    known: KnownOfLog | None = None
    """What is known besides the files; None for a future replica, which is only a copy."""

    orphans: Mapping[int, str] = field(default_factory=dict)
    """Indexes without a log, by base offset."""

    future: FutureReplica | None = None
    """What a start makes of the log if it is a future replica."""

    @property
    def path(self) -> Path:
        return self.directory.path / self.name


@dataclass(frozen=True, slots=True)
class _Outcome:
    source: _LogToLoad
    report: RecoveryReport
    log: LoadedLog | None


_BeforeCut = Callable[[_LogToLoad, LogCut], None]


def _load(
    source: _LogToLoad, path: Path, fs: Fs, now_ms: int, before_cut: _BeforeCut | None, repairs: list[Repair]
) -> tuple[LoadedLog, LogLosses]:
    """Load the log; each repair is added to `repairs` when it is made, because a repair stays after an error."""
    fault = source.topic_id_fault
    if fault is not None and fault.topic_id is not None:
        repairs.append(write_topic_id(path, source.partition, fault, fs))
    if source.keeps_producers and source.state is DirectoryState.LIVE:
        note_producers_of_bare_copy(source.partition, path, source.checkpoints, fs)
    log = load_log(
        source.partition,
        path,
        source.config,
        source.checkpoints,
        fs,
        now_ms=now_ms,
        mode=LoadMode(
            verify_trusted=source.checkpoints.clean_shutdown,
            directory_state=source.state,
            on_cut=None if before_cut is None else partial(before_cut, source),
            repairs=repairs,
        ),
    )
    losses = LogLosses() if source.known is None else losses_of(log, source.known, source.orphans, fs)
    return replace(log, repairs=tuple(repairs)), losses


def _load_in_overlay(
    source: _LogToLoad, now_ms: int, before_cut: _BeforeCut | None, repairs: list[Repair]
) -> tuple[LoadedLog, LogLosses]:
    """Load the log in an overlay of its directory; errors name the real files."""
    with overlay_of(source.path) as overlay:
        try:
            return _load(source, overlay, OverlayFs(), now_ms, before_cut, repairs)
        except SedimentError as error:
            if error.path is not None:
                error.path = error.path.replace(str(overlay), str(source.path))
            raise
        except OSError as error:
            if error.filename is not None:
                error.filename = os.fsdecode(error.filename).replace(str(overlay), str(source.path))
            raise


def _check_can_be_kept(source: _LogToLoad, now_ms: int, before_cut: _BeforeCut) -> None:
    """Check that the files of a log with links can be kept, before the first change.

    Hard links may be impossible, and a cut may need them.  Any other error is left to the load that follows.
    """
    try:
        _load_in_overlay(source, now_ms, before_cut, [])
    except RecordsWouldBeLostError:
        raise
    except (SedimentError, OSError):
        return


def _has_links(path: Path) -> bool:
    """Return True if the log is in another directory, possibly on another filesystem, or one of its files is."""
    if path.is_symlink():
        return True
    with os.scandir(path) as entries:
        return any(entry.is_symlink() for entry in entries)


def _recover(
    source: _LogToLoad,
    lock: DirectoryLock | None,
    stop: threading.Event,
    options: CommonOptions,
    before_cut: _KeptBeforeCuts,
) -> _Outcome:
    """Load one log; its errors are part of the outcome.

    Raises:
        LockLostError: the lock is lost; `stop` has been set.
    """
    repairs = list(source.finished)

    def failed(code: str, reason: str) -> _Outcome:
        report = RecoveryReport(source.name, str(source.directory.path), FAILED, code, reason)
        return _Outcome(source, _with_repairs(report, repairs), None)

    if stop.is_set():
        return failed(STOPPED, "the run was stopped before this partition was done")
    if source.failure is not None:
        return failed(*source.failure)
    try:
        if lock is None:
            log, losses = _load_in_overlay(source, options.now_ms, None, repairs)
        else:
            lock.check()
            if before_cut.may_refuse and _has_links(source.path):
                _check_can_be_kept(source, options.now_ms, before_cut)
                lock.check()
            log, losses = _load(source, source.path, Fs(), options.now_ms, before_cut, repairs)
    except LockLostError:
        stop.set()
        raise
    except (SedimentError, OSError) as error:
        return failed(*describe(error))
    report = _report_of(source.name, source.directory.path, log)
    fault = source.topic_id_fault
    if fault is not None and fault.topic_id is None:
        report = replace(report, warnings=(str(fault),))
    report = _with_losses(report, losses)
    return _Outcome(source, report if source.future is None else _with_future(report, source.future), log)


def _with_future(report: RecoveryReport, future: FutureReplica) -> RecoveryReport:
    """Return the report of a future replica, which counts as failed if a broker's start loses records by it."""
    sentence = f"it {future.what}; {future.advice}"
    if future.is_dangerous and report.status != FAILED:
        return replace(report, status=FAILED, reason_code=FUTURE_REPLICA, reason=sentence)
    return replace(report, warnings=(*report.warnings, sentence))


def _with_losses(report: RecoveryReport, losses: LogLosses) -> RecoveryReport:
    """Return the report with the missing records, for which the partition counts as failed."""
    report = replace(report, warnings=(*report.warnings, *losses.warnings))
    if not losses.missing:
        return report
    found = "; ".join(map(str, losses.missing))
    return replace(
        report,
        status=FAILED,
        reason_code=report.reason_code or RECORDS_MISSING,
        reason=f"{report.reason}; {found}" if report.reason else found,
        missing_records=tuple(
            MissingReport(each.kind, each.first_offset, each.last_offset, str(each)) for each in losses.missing
        ),
    )


class _KeptBeforeCuts:
    """Keeps the files of a log before records are cut off from it, so that `restore` can put them back.

    A torn batch above all offsets that the broker's checkpoints name is cut off without this: it is the end of a write
    that was never acknowledged, and nobody can read it.  In a copy without checkpoints nobody knows that, so its files
    are kept if they can be.
    """

    def __init__(self, originals: OriginalsOnDemand | None) -> None:
        self._originals = originals
        self._said: set[str] = set()  # a log with links is loaded twice

    @property
    def may_refuse(self) -> bool:
        """True if files are kept, so a log whose files cannot be kept is refused."""
        return self._originals is not None

    def __call__(self, source: _LogToLoad, cut: LogCut) -> None:
        """Say what is about to be cut off, and keep the files.

        Raises:
            RecordsWouldBeLostError: they cannot be kept.
        """
        if source.known is None:
            return
        lost = missing_after_cut(cut, source.known)
        doubt = doubtful_cut(cut, source.known)
        if lost is None and doubt is None:
            return
        self._say(f"{source.path}: {lost or doubt}")
        if self._originals is None:
            return
        try:
            kept = self._originals.keep(source.partition, source.path, source.directory.checkpoints)
        except (UsageError, OSError) as error:
            if lost is None:
                self._say(f"{source.path}: the files before the cut are not kept: {describe(error)[1]}")
                return
            raise RecordsWouldBeLostError(
                f"{lost.what}, and the files cannot be kept beside the log directory: {describe(error)[1]}",
                partition=source.name,
                advice="give --keep-originals DIR, a directory on the same filesystem; or --without-undo, to cut the "
                "log off although nothing can put the records back",
            ) from error
        self._say(f"{source.path}: the files before the cut are kept in {kept}; `sediment restore` puts them back")

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            _LOGGER.warning("%s", text)


# ---------------------------------------------------------------------------------------------------------- a directory
def _open_directories(options: CommonOptions, fs: Fs) -> list[SelectedDirectory]:
    """Open the directories; a `--partition` may also select a future replica by the name of its directory."""
    directories = replace(options, allow_empty_selection=True).open_directories(fs)
    if not options.allow_empty_selection:
        names = [name for directory in directories for name, _, _ in _logs(directory, fs)]
        options.selection.check(names, where=", ".join(map(str, options.log_dirs)))
    return directories


def _logs(directory: SelectedDirectory, fs: Fs) -> list[tuple[str, TopicPartition, DirectoryState]]:
    """Return the logs that a broker would load: directory name, partition and state."""
    names = [entry.name for entry in fs.scan(directory.path) if entry.is_directory]
    found = find_partitions(directory.path, names).items()
    return [(name, partition, state) for name, (partition, state) in found if state not in _NOT_LOADED]


def _logs_to_load(
    directory: SelectedDirectory,
    topic_ids: TopicIds,
    future: Sequence[FutureReplica],
    options: CommonOptions,
    fs: Fs,
) -> tuple[list[_LogToLoad], bool]:
    """Return the selected logs of a directory, and True if they are all the logs that a broker would load."""
    logs = _logs(directory, fs)
    by_name = {replica.name: replica for replica in future}
    selected = [
        replace(_log_to_load(directory, *log, topic_ids, fs), future=by_name.get(log[0]))
        for log in logs
        if options.selection.includes(log[0])
    ]
    return selected, len(selected) == len(logs)


def _log_to_load(
    directory: SelectedDirectory,
    name: str,
    partition: TopicPartition,
    state: DirectoryState,
    topic_ids: TopicIds,
    fs: Fs,
) -> _LogToLoad:
    files = fs.scan(directory.path / name)
    settings = directory.settings
    failure: tuple[str, str] | None = None
    fault: TopicIdFault | None = None
    try:
        fault = topic_ids.fault(partition, directory.path / name)
    except OSError as error:
        failure = describe(error)
    if fault is not None and fault.is_lost and fault.topic_id is None:
        failure = NO_TOPIC_ID, str(fault)
    # If an id is lost, the log belongs to the cluster's topic of its name, or it is not loaded.
    if failure is None and (fault is None or not fault.is_lost):
        settings = directory.settings_of(partition, fs, name=name)
    return _LogToLoad(
        name=name,
        partition=partition,
        state=state,
        directory=directory,
        checkpoints=directory.checkpoints.of(partition),
        config=settings.for_topic(partition.topic),
        log_bytes=sum(file.size_bytes for file in files if parse_segment_file(file.name)),
        failure=failure,
        topic_id_fault=fault,
        known=known_of_log(directory, partition, settings) if state is DirectoryState.LIVE else None,
        orphans=orphans_of(file.name for file in files),
    )


def _abort_in(
    directory: SelectedDirectory,
    outcomes: Sequence[_Outcome],
    aborts: Aborts,
    lock: DirectoryLock | None,
    restore: str | None,
) -> list[_Outcome]:
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
            done.append(_Outcome(source, report, None))
            continue
        done.append(_Outcome(source, _report_of_aborted(outcome.report, aborted), aborted.log))
    return done


def _settle_directory(
    directory: SelectedDirectory, outcomes: Sequence[_Outcome], is_whole: bool, aborts: Aborts | None, fs: Fs
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


# -------------------------------------------------------------------------------------------------------------- the run
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
            partial(_open_directories, options, fs),
            partial(check_outside, kept, options.log_dirs),
            originals_of=None if kept is None else kept.of,
        )
        damaged = tuple(file for directory in directories for file in damaged_files(directory, directories, fs))
        topic_ids = topic_ids_of(directories, fs)
        future = future_replicas(directories, fs)
        per_directory = [
            (directory, *_logs_to_load(directory, topic_ids[directory.path], future[directory.path], options, fs))
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
            originals, per_directory = _keep_originals(run, kept, per_directory)
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
            for directory, loaded, is_whole in _outcomes(
                per_directory, pool, locks, run.stop, options, progress, _KeptBeforeCuts(on_demand)
            ):
                lock = locks.get(directory.path)
                outcomes = loaded
                if aborts is not None:
                    restore = None if kept is None else restore_command(directory.path, kept.of(directory.path), run_id)
                    outcomes = _abort_in(directory, loaded, aborts, lock, restore)
                for outcome in outcomes:
                    run.add(outcome.report)
                if lock is not None:
                    lock.check()
                    if _settle_directory(directory, outcomes, is_whole, aborts, fs):
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


_PerDirectory = list[tuple[SelectedDirectory, list[_LogToLoad], bool]]


def _keep_originals(
    run: Run[RecoveryReport], kept_in: KeptIn, per_directory: _PerDirectory
) -> tuple[KeptOriginals, _PerDirectory]:
    """Link the segment files of every log except future replicas, with a catalogue, before any log is loaded.

    Returns:
        The backup links, and the logs with the repairs made before linking.  A log whose files cannot be linked is
            returned with a failure.

    Raises:
        SedimentError, OSError: the catalogue could not be written; no log was changed, except that interrupted
            replacements may have been finished.
    """
    fs = run.fs
    checkpoints = {directory.path: directory.checkpoints for directory, _, _ in per_directory}
    before: list[OriginalPartition] = []
    prepared: _PerDirectory = []
    for directory, logs, is_whole in per_directory:
        listed = []
        for log in logs:
            try:
                check_segments_are_files(log.partition, log.path, fs)
                found = finish_interrupted(log.path, fs)
                if log.state is DirectoryState.LIVE:
                    names = segment_file_names(log.path, fs)
                    before.append(partition_before(log.partition, log.path, directory.checkpoints, names, None, fs))
                listed.append(replace(log, finished=found))
            except (SedimentError, OSError) as error:
                listed.append(replace(log, failure=describe(error)))
        prepared.append((directory, listed, is_whole))
    originals = KeptOriginals(run, kept_in, checkpoints, before)
    kept: _PerDirectory = []
    for directory, logs, is_whole in prepared:
        kept.append((directory, [_kept(log, originals, fs) for log in logs], is_whole))
    return originals, kept


def _kept(log: _LogToLoad, originals: KeptOriginals, fs: Fs) -> _LogToLoad:
    if log.failure is not None or log.state is not DirectoryState.LIVE:
        return log
    try:
        originals.of(log.path.parent).keep(log.path, segment_file_names(log.path, fs))
    except (SedimentError, OSError) as error:
        return replace(log, failure=describe(error))
    return log


def _default_threads(directory: SelectedDirectory) -> int:
    value = directory.settings.broker_value(_THREADS_KEY)
    assert isinstance(value, int)
    return value


def _outcomes(
    per_directory: Sequence[tuple[SelectedDirectory, list[_LogToLoad], bool]],
    pool: ThreadPoolExecutor,
    locks: Mapping[Path, DirectoryLock],
    stop: threading.Event,
    options: CommonOptions,
    progress: Progress,
    before_cut: _KeptBeforeCuts,
) -> Iterator[tuple[SelectedDirectory, list[_Outcome], bool]]:
    """Load the logs, largest first; yield each directory with its outcomes as soon as all its partitions are done."""
    left = {directory.path: len(logs) for directory, logs, _ in per_directory}
    done: dict[Path, list[_Outcome]] = {path: [] for path in left}
    by_path = {directory.path: (directory, is_whole) for directory, _, is_whole in per_directory}
    for path in [path for path, count in left.items() if not count]:
        directory, is_whole = by_path[path]
        yield directory, [], is_whole
    logs = sorted((log for _, some, _ in per_directory for log in some), key=lambda log: log.log_bytes, reverse=True)
    futures = [pool.submit(_recover, log, locks.get(log.directory.path), stop, options, before_cut) for log in logs]
    for future in as_completed(futures):
        outcome = future.result()
        path = outcome.source.directory.path
        progress.advance(outcome.source.log_bytes)
        done[path].append(outcome)
        left[path] -= 1
        if not left[path]:
            directory, is_whole = by_path[path]
            yield directory, done[path], is_whole


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
