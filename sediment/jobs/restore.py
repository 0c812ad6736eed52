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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar

from sediment.compaction.rewrite.suppression import SuppressionList, find_suppressed
from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.originals.backup_links import BackupLinks
from sediment.engine.directory.originals.catalogue import (
    Catalogue,
    OriginalPartition,
    offsets_by_file,
    partition_before,
    run_folder,
)
from sediment.engine.directory.originals.history import RESTORED, History, read_history
from sediment.engine.directory.originals.restore import (
    InterruptedRestore,
    PartitionRestore,
    interrupted_restores,
    listed_files,
    plan_partition_restore,
    restore_partition,
)
from sediment.engine.directory.originals.restore_plan import CHANGED_SINCE, Files, Refusal, RestorePlan
from sediment.jobs.command_line.confirmation import ask_on_terminal, must_ask
from sediment.jobs.command_line.declaration import ONE_COMMAND, Directory, File, option, required_option, together
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.command_line.shared_options import allow_network_fs_option
from sediment.jobs.erasing.suppression_file import SuppressionOptions
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.process.standard_output import error_console
from sediment.jobs.process.stderr_log import log_partition
from sediment.jobs.reporting.columns import TableColumn, change_column, name_and_status, number_column, status_counts
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.run_report import AFTER_PARTITIONS, FAILED, REFUSED, PartitionOutcome, RunReport
from sediment.jobs.reporting.screen import Screen, View
from sediment.jobs.reporting.statuses import STOPPED
from sediment.jobs.rewriting.kept_originals import catalogue_of_run, end_originals
from sediment.jobs.rewriting.report import unchanged_fields
from sediment.jobs.rewriting.run import Run, read_locked
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.errors import DeclinedError, SedimentError, SourceChangedError, UsageError
from sediment.segment_io.format.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOCK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    SWAP_SUFFIX,
    SegmentFileKind,
    TopicPartition,
    new_run_id,
)
from sediment.segment_io.fs import Fs, without_links
from sediment.segment_io.partition.checkpoint_files import (
    LogDirCheckpoints,
    read_checkpoints,
    read_offset_checkpoint,
    update_offset_checkpoint,
)
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.segment_end import find_segment_end
from sediment.segment_io.partition.sources import Source

ERASURE = "erasure"
SUPPRESSED = "suppressed"
INTERRUPTED = "interrupted"
RECOVER = "recover"
ALREADY_RESTORED = "already-restored"

_MS = re.compile(r"[0-9]{1,15}")
_STOPPED = (STOPPED, "the run was stopped before this partition was done")
_MAY_BE_ABSENT = (CLEANER_FILE, LOG_START_FILE)
"""Checkpoint files that may be missing: a missing file means the same as an empty file."""


# --------------------------------------------------------------------------------------------------------------- report
@dataclass(frozen=True, slots=True)
class RestoreReport(PartitionOutcome):
    """Report of one partition.  `runs` are the undone runs, newest first; `segments` are base offsets after the run."""

    runs: tuple[str, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    segments_before: int = 0
    segments: tuple[int, ...] = ()
    files_restored: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RestoreRunReport(RunReport[RestoreReport]):
    """Report of a run of `restore`; `catalogues` contains one catalogue of removed files for each undone run."""

    row_type: ClassVar[type] = RestoreReport

    dry_run: bool
    originals: str = field(metadata=AFTER_PARTITIONS)
    catalogues: tuple[str, ...] = field(default=(), metadata=AFTER_PARTITIONS)


def _after(partition: RestoreReport, number: int) -> int | None:
    return number if partition.status == RESTORED else None


COLUMNS: tuple[TableColumn[RestoreReport], ...] = (
    *name_and_status(),
    change_column(
        "segments", lambda row: row.segments_before, lambda row: _after(row, len(row.segments)), shown=str, rank=1
    ),
    change_column("bytes", lambda row: row.bytes_before, lambda row: _after(row, row.bytes_after), shown=human_bytes),
    number_column("runs", lambda row: len(row.runs), rank=2),
)


def print_report(report: RestoreRunReport, screen: Screen) -> None:
    screen.partitions(report.partitions, COLUMNS, dry_run=report.dry_run)
    screen.failed(report.partitions)
    screen.say(_summary(report))


def _summary(report: RestoreRunReport) -> str:
    changed = [row for row in report.partitions if row.reason_code != ALREADY_RESTORED]
    unchanged = len(report.partitions) - len(changed)
    counts = [status_counts(changed, dry_run=report.dry_run), f"{unchanged} already restored" if unchanged else ""]
    done = ", ".join(filter(None, counts))
    kept = f"; the removed files are in {report.originals}" if report.catalogues else ""
    return f"{done or 'no partitions'}{kept}; {report.seconds:.1f} s (run {report.run_id})"


# -------------------------------------------------------------------------------------------------------------- options
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


# -------------------------------------------------------------------------------------------------------------- the run
@dataclass(frozen=True, slots=True)
class _Chain:
    """Runs to undo in a partition, newest first, with their catalogue entries; `log_dir` is the path in the options."""

    partition: TopicPartition
    log_dir: Path
    runs: tuple[tuple[Catalogue, OriginalPartition], ...]
    report: RestoreReport

    @property
    def directory(self) -> Path:
        return self.log_dir / str(self.partition)


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
        restoration = _Restoration(run, own, confirm)
        return restoration.report(restoration.perform())


class _Restoration:
    def __init__(
        self, run: Run[RestoreReport], own: RestoreOptions, confirm: Callable[[RestoreRunReport], bool] | None
    ) -> None:
        self._run = run
        self._own = own
        self._confirm = confirm
        self._locks: Mapping[Path, DirectoryLock] = {}
        self._catalogues: list[str] = []

    def perform(self) -> list[RestoreReport]:
        own = self._own
        log_dirs = self._run.options.log_dirs
        (history, directories), locks = read_locked(
            self._run,
            self._read,
            locked=(own.originals, *log_dirs),
            originals_of=lambda _: own.originals,
            allow_network=own.allow_network_fs,
        )
        self._locks = {path: lock for path, lock in locks.items() if path in log_dirs}
        wanted = self._wanted(history)
        reports = self._missing(wanted)
        chains: list[_Chain] = []
        for chain in self._chains(history, directories, wanted):
            found = self._planned(chain, history)
            if isinstance(found, _Chain):
                chains.append(found)
            else:
                reports.append(found)
        if own.dry_run:
            return reports + [chain.report for chain in chains]
        if self._confirm is not None and chains:
            shown = self.report([*reports, *(chain.report for chain in chains)], dry_run=True)
            if not self._confirm(shown):
                raise DeclinedError("nothing was restored", advice="answer y, or give --yes, to restore")
        return reports + self._restore_all(chains, wanted)

    def _read(self) -> tuple[History, list[SelectedDirectory]]:
        history = read_history(self._own.originals, self._run.fs)
        return history, self._run.options.open_directories(self._run.fs)

    def report(self, reports: Sequence[RestoreReport], *, dry_run: bool | None = None) -> RestoreRunReport:
        return RestoreRunReport(
            **self._run.header(reports),
            dry_run=self._own.dry_run if dry_run is None else dry_run,
            originals=str(self._own.originals),
            catalogues=tuple(self._catalogues),
        )

    # ----------------------------------------------------------------------------------------------------------- choose
    def _wanted(self, history: History) -> list[Catalogue]:
        if self._own.run_id is not None:
            found = history.run(self._own.run_id)
            if found is None:
                raise UsageError(
                    f"run {self._own.run_id} has no catalogue",
                    path=str(self._own.originals),
                    advice="list the runs: sediment originals DIR",
                )
            return [found]
        assert self._own.as_of_ms is not None
        return [run for run in history.runs if run.started_ms >= self._own.as_of_ms]

    def _missing(self, wanted: Sequence[Catalogue]) -> list[RestoreReport]:
        """Return the reports of partitions that a run changed but that no longer exist."""
        reports = {}
        for path in self._run.options.log_dirs:
            for name in (
                entry.partition
                for run in wanted
                for entry in run.partitions
                if entry.log_dir == str(without_links(path))
            ):
                if self._run.options.selection.includes(name) and not self._run.fs.is_directory(path / name):
                    why = "the partition no longer exists; a broker deleted or moved it"
                    reports[path / name] = RestoreReport(name, str(path), REFUSED, CHANGED_SINCE, why)
        return list(reports.values())

    def _chains(
        self, history: History, directories: Sequence[SelectedDirectory], wanted: Sequence[Catalogue]
    ) -> list[_Chain]:
        selected = {
            (str(without_links(directory.path)), str(partition)): (directory.path, partition)
            for directory in directories
            for partition in directory.partitions
        }
        changed = dict.fromkeys((entry.log_dir, entry.partition) for run in wanted for entry in run.partitions)
        here = {str(without_links(path)) for path in self._run.options.log_dirs}
        if wanted and not here & {log_dir for log_dir, _ in changed}:
            known = ", ".join(sorted({log_dir for log_dir, _ in changed}))
            raise UsageError(
                f"no chosen run changed this log directory; the chosen runs changed {known}",
                path=", ".join(map(str, self._run.options.log_dirs)),
                advice="give the log directory that the run changed",
            )
        chains = []
        for key in changed:
            if key in selected:
                log_dir, partition = selected[key]
                runs = tuple(history.to_undo(wanted, *key))
                chains.append(_Chain(partition, log_dir, runs, _as_it_is(partition, log_dir, self._run.fs)))
        return chains

    # ------------------------------------------------------------------------------------------------------------- plan
    def _planned(self, chain: _Chain, history: History) -> _Chain | RestoreReport:
        try:
            return self._plan_chain(chain, history)
        except (SedimentError, OSError) as error:
            code, text = describe(error)
            return replace(chain.report, status=FAILED, reason_code=code, reason=text)

    def _plan_chain(self, chain: _Chain, history: History) -> _Chain | RestoreReport:
        if self._own.dry_run or self._confirm is not None:
            if list_log(chain.partition, chain.directory, self._run.fs).is_replacement_open():
                other = "without --dry-run" if self._own.dry_run else "with --yes"
                why = f"an earlier run or broker was interrupted here; run {other} to finish its work first"
                return replace(chain.report, reason_code=INTERRUPTED, reason=why)
        else:
            found = interrupted_restores(history, chain.directory, self._own.originals, self._run.fs)
            for each in found:
                names = [name.removesuffix(SWAP_SUFFIX) for name in sorted(each.new_logs)]
                if barred := self._barred(each.run, each.entry, names, chain.partition, history):
                    return replace(chain.report, reason_code=barred[0], reason=barred[1])
            self._finish_interrupted(chain, found)
            chain = replace(chain, report=_as_it_is(chain.partition, chain.log_dir, self._run.fs))
        live = listed_files(chain.directory, self._run.fs)
        log_start = read_checkpoints(chain.log_dir, self._run.fs).of(chain.partition).log_start
        restored, has_changes = 0, False
        for run, entry in chain.runs:
            plan = self._plan(run, entry, live, log_start)
            names = [] if isinstance(plan, Refusal) else _kept_logs(plan)
            if barred := self._barred(run, entry, names, chain.partition, history):
                return replace(chain.report, reason_code=barred[0], reason=barred[1])
            if isinstance(plan, Refusal):
                why = f"run {run.run_id} of {run.command} cannot be undone: {plan.reason}"
                return replace(chain.report, reason_code=plan.reason_code, reason=why)
            live = plan.applied(live)
            log_start = plan.log_start_last if plan.moves_log_start else log_start
            restored += sum(len(segment.files) for segment in plan.segments()) + len(plan.snapshots)
            has_changes |= not plan.is_empty
        logs = [file for file in live.values() if file.name.endswith(SegmentFileKind.LOG)]
        report = replace(
            chain.report,
            status=RESTORED,
            reason_code=None if has_changes else ALREADY_RESTORED,
            runs=tuple(run.run_id for run, _ in chain.runs),
            segments=tuple(sorted(int(file.name.removesuffix(SegmentFileKind.LOG)) for file in logs)),
            bytes_after=sum(file.size_bytes for file in logs),
            files_restored=restored,
        )
        return replace(chain, report=report)

    def _finish_interrupted(self, chain: _Chain, found: Iterable[InterruptedRestore]) -> None:
        """Complete the interrupted restores `found`; complete or undo all other replacements in the directory."""
        for interrupted in found:
            # Since the interruption, a broker may have stopped cleanly without having loaded this partition.
            if _brings_back_unclean_logs(interrupted.run, chain.log_dir):
                self._mark_unclean(chain.log_dir, {chain.partition: interrupted.entry})
        new_logs = {name for interrupted in found for name in interrupted.new_logs}
        finish_interrupted(chain.directory, self._run.fs, restored=new_logs)

    def _barred(
        self,
        run: Catalogue,
        entry: OriginalPartition,
        logs: Iterable[str],
        partition: TopicPartition,
        history: History,
    ) -> tuple[str, str] | None:
        """Return the reason code and text if the originals `logs` of a run must not be put back, else None."""
        if history.holds_erased(run, entry) and not self._own.undo_erasure:
            return ERASURE, f"the originals of run {run.run_id} contain erased records; --undo-erasure puts them back"
        keys = None if self._own.suppressed is None else self._own.suppressed.of_topic(partition.topic)
        if keys is None:
            return None
        folder = run_folder(self._own.originals, run.run_id) / entry.partition
        offsets = [
            int(offset)
            for name in logs
            for offset in find_suppressed(
                Source(partition, folder, int(name.removesuffix(SegmentFileKind.LOG)), name), keys, self._run.fs
            )
        ]
        if not offsets:
            return None
        return SUPPRESSED, (
            f"the originals of run {run.run_id} contain {counted(len(offsets), 'record')} with suppressed keys, the "
            f"first at offset {min(offsets)}; restore without --suppress, and erase these keys again before the broker "
            "starts"
        )

    def _plan(
        self, run: Catalogue, entry: OriginalPartition, live: Files, log_start: int | None
    ) -> RestorePlan | Refusal:
        return plan_partition_restore(
            run, entry, live, self._own.originals, self._run.fs, log_start_checkpoint=log_start
        )

    # ---------------------------------------------------------------------------------------------------------- restore
    def _restore_all(self, chains: Sequence[_Chain], wanted: Sequence[Catalogue]) -> list[RestoreReport]:
        failed: dict[Path, RestoreReport] = {}
        newest_first = sorted(wanted, key=lambda run: (run.started_ms, run.run_id), reverse=True)
        for run in newest_first:
            here = [
                (chain, entry)
                for chain in chains
                for each, entry in chain.runs
                if each is run and chain.directory not in failed
            ]
            if here:
                failed |= self._undo(run, here)
        reports = [failed.get(chain.directory, chain.report) for chain in chains]
        for report in reports:
            log_partition(self._run.run_id, "restore", report)
        return reports

    def _undo(self, run: Catalogue, here: Sequence[tuple[_Chain, OriginalPartition]]) -> dict[Path, RestoreReport]:
        """Undo a run in partitions, with a new catalogue; return a report of each partition that failed."""
        run_id = new_run_id() if self._catalogues else self._run.run_id
        failed: dict[Path, RestoreReport] = {}
        listed: list[tuple[_Chain, PartitionRestore]] = []
        before: list[OriginalPartition] = []
        checkpoints = {path: read_checkpoints(path, self._run.fs) for path in self._locks}
        for chain, entry in here:
            try:
                planned = self._prepared(run, chain, entry, checkpoints[chain.log_dir])
                names = planned.removed_names(self._run.fs)
                before.append(
                    partition_before(
                        chain.partition,
                        chain.directory,
                        checkpoints[chain.log_dir],
                        names,
                        planned.new_names(),
                        self._run.fs,
                    )
                )
                listed.append((chain, planned))
            except (SedimentError, OSError) as error:
                failed[chain.directory] = self._failed(chain, *describe(error))
        header = catalogue_of_run(self._run, checkpoints, before, run_id=run_id, restores=run.run_id)
        originals = BackupLinks(self._own.originals, header, self._run.fs)
        try:
            originals.begin()
        except (SedimentError, OSError) as error:
            code, text = describe(error)
            why = f"the catalogue of originals cannot be written, and nothing was changed: {text}"
            return failed | {chain.directory: self._failed(chain, code, why) for chain, _ in listed}
        for log_dir, lock in self._locks.items():
            some = [(chain, planned) for chain, planned in listed if chain.log_dir == log_dir]
            if some:
                failed |= self._undo_in_directory(run, run_id, lock, originals, some)
        reports = [failed.get(chain.directory, chain.report) for chain, _ in listed]
        path = end_originals(originals, reports)
        self._catalogues += [] if path is None else [str(path)]
        return failed

    def _prepared(
        self, run: Catalogue, chain: _Chain, entry: OriginalPartition, checkpoints: LogDirCheckpoints
    ) -> PartitionRestore:
        """Return the steps that restore a partition from its current state.

        Raises:
            SourceChangedError: the partition has changed since the plan was made.
        """
        live = listed_files(chain.directory, self._run.fs)
        plan = self._plan(run, entry, live, checkpoints.of(chain.partition).log_start)
        if isinstance(plan, Refusal):
            raise SourceChangedError(
                f"the partition changed during the restore: {plan.reason}",
                partition=str(chain.partition),
                path=str(chain.directory),
                advice="make sure that no other process works on the directory and run again",
            )
        folder = run_folder(self._own.originals, run.run_id) / entry.partition
        return PartitionRestore(chain.partition, chain.directory, entry, folder, plan)

    def _undo_in_directory(
        self,
        run: Catalogue,
        run_id: str,
        lock: DirectoryLock,
        originals: BackupLinks,
        listed: Sequence[tuple[_Chain, PartitionRestore]],
    ) -> dict[Path, RestoreReport]:
        log_dir = listed[0][0].log_dir
        failed: dict[Path, RestoreReport] = {}
        try:
            lock.check()
            self._write_first_entries(run, log_dir, [planned for _, planned in listed])
        except (SedimentError, OSError) as error:
            return {chain.directory: self._failed(chain, *describe(error)) for chain, _ in listed}
        for chain, planned in listed:
            if self._run.stop.is_set():
                failed[chain.directory] = self._failed(chain, *_STOPPED)
                continue
            try:
                lock.check()
                restore_partition(planned, run_id, originals, lock, self._run.fs)
            except (SedimentError, OSError) as error:
                failed[chain.directory] = self._failed(chain, *describe(error))
        done = [(chain, planned) for chain, planned in listed if chain.directory not in failed]
        try:
            lock.check()
            self._write_last_entries(run, log_dir, [planned for _, planned in done])
        except (SedimentError, OSError) as error:
            late = f"its segments are restored, but a checkpoint was not written: {describe(error)[1]}"
            failed |= {chain.directory: self._failed(chain, "checkpoint-not-written", late) for chain, _ in done}
        return failed

    def _write_first_entries(self, run: Catalogue, log_dir: Path, restores: Sequence[PartitionRestore]) -> None:
        """Write the checkpoint entries that must be durable before the segments change."""
        now = offsets_by_file(read_checkpoints(log_dir, self._run.fs))
        cleaner = now[CLEANER_FILE] or {}
        starts = {each.partition: each.plan.log_start_first for each in restores if each.plan.moves_log_start}
        lowered = {
            each.partition: lowest(cleaner.get(each.partition), each.entry.checkpoints.get(CLEANER_FILE))
            for each in restores
        }
        changed = {each.partition: each.entry for each in restores if not each.plan.is_empty}
        if changed and _brings_back_unclean_logs(run, log_dir):
            self._mark_unclean(log_dir, changed)
        self._write_entries(log_dir, LOG_START_FILE, starts)
        self._write_entries(log_dir, CLEANER_FILE, lowered)

    def _mark_unclean(self, log_dir: Path, entries: Mapping[TopicPartition, OriginalPartition]) -> None:
        """Lower recovery points and remove the marker of a clean stop, so that the next start verifies the logs."""
        recovery_points = offsets_by_file(read_checkpoints(log_dir, self._run.fs))[RECOVERY_POINT_FILE] or {}
        lowered = {
            partition: lowest(recovery_points.get(partition), entry.checkpoints.get(RECOVERY_POINT_FILE))
            for partition, entry in entries.items()
        }
        self._run.fs.unlink(log_dir / CLEAN_SHUTDOWN_FILE, missing_ok=True)
        self._run.fs.sync_directory(log_dir)
        self._write_entries(log_dir, RECOVERY_POINT_FILE, lowered)

    def _write_last_entries(self, run: Catalogue, log_dir: Path, restores: Sequence[PartitionRestore]) -> None:
        """Restore the old checkpoint entries; remove a file without entries if the undone run created it."""
        starts = {each.partition: each.plan.log_start_last for each in restores if each.plan.moves_log_start}
        self._write_entries(log_dir, LOG_START_FILE, starts)
        cleaner = {each.partition: each.entry.checkpoints.get(CLEANER_FILE) for each in restores}
        self._write_entries(log_dir, CLEANER_FILE, cleaner)
        for name in (HIGH_WATERMARK_FILE, RECOVERY_POINT_FILE):
            lowered = dict(self._beyond_log_end(log_dir, name, restores))
            self._write_entries(log_dir, name, lowered)
        were = [
            each.checkpoint_files for each in run.log_dirs if without_links(Path(each.path)) == without_links(log_dir)
        ]
        for name in _MAY_BE_ABSENT:
            path = log_dir / name
            if were and name not in were[0] and read_offset_checkpoint(self._run.fs, path) == {}:
                self._run.fs.unlink(path)
                self._run.fs.sync_directory(log_dir)

    def _beyond_log_end(
        self, log_dir: Path, name: str, restores: Sequence[PartitionRestore]
    ) -> Iterator[tuple[TopicPartition, int]]:
        """Yield new entries for those that the undone run raised above the end of the restored log.

        An entry that was above it before the run shows a loss, and stays.
        """
        now = offsets_by_file(read_checkpoints(log_dir, self._run.fs))[name] or {}
        for each in restores:
            before, current = each.entry.checkpoints.get(name) or 0, now.get(each.partition, 0)
            if each.plan.is_empty or current <= before:
                continue
            listing = list_log(each.partition, log_dir / str(each.partition), self._run.fs)
            if not listing.segments:
                continue
            end, _ = find_segment_end(listing.path, listing.segments[-1], self._run.fs)
            if max(before, end) < current:
                yield each.partition, max(before, end)

    def _write_entries(self, log_dir: Path, name: str, offsets: Mapping[TopicPartition, int | None]) -> None:
        entries = {partition: offset for partition, offset in offsets.items() if offset is not None}
        update_offset_checkpoint(
            self._run.fs, log_dir / name, entries, offsets.keys() - entries.keys(), like=log_dir / LOCK_FILE
        )

    def _failed(self, chain: _Chain, code: str, reason: str) -> RestoreReport:
        try:
            found = _as_it_is(chain.partition, chain.log_dir, self._run.fs)
        except (SedimentError, OSError):
            found = chain.report
        left = replace(found, bytes_before=chain.report.bytes_before, segments_before=chain.report.segments_before)
        return replace(left, status=FAILED, reason_code=code, reason=reason)


def _kept_logs(plan: RestorePlan) -> list[str]:
    return [each.file.name for segment in plan.segments() for each in segment.files[:1] if each.is_kept]


def _brings_back_unclean_logs(run: Catalogue, log_dir: Path) -> bool:
    """Return True if undoing the run restores records that a recovery after an unclean stop has truncated."""
    stops = [each.clean_shutdown for each in run.log_dirs if without_links(Path(each.path)) == without_links(log_dir)]
    return run.command == RECOVER and not all(stops)


def lowest(now: int | None, before: int | None) -> int | None:
    """Return the lower of two checkpoint entries; None means no entry, and counts as the lowest."""
    return None if now is None or before is None else min(now, before)


def _as_it_is(partition: TopicPartition, log_dir: Path, fs: Fs) -> RestoreReport:
    return RestoreReport(**unchanged_fields(list_log(partition, log_dir / str(partition), fs)), status=REFUSED)


# -------------------------------------------------------------------------------------------------------------- command
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
