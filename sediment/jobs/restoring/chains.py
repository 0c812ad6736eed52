"""Runs to undo in each partition, newest first, and whether they can be undone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sediment.compaction.rewrite.suppression import SuppressionList, find_suppressed
from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.originals.catalogue import Catalogue, OriginalPartition, run_folder
from sediment.engine.directory.originals.history import RESTORED, History
from sediment.engine.directory.originals.restore import (
    InterruptedRestore,
    interrupted_restores,
    listed_files,
    plan_partition_restore,
)
from sediment.engine.directory.originals.restore_plan import CHANGED_SINCE, Refusal, RestorePlan
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.run_report import FAILED, REFUSED
from sediment.jobs.restoring.checkpoint_entries import brings_back_unclean_logs, mark_unclean
from sediment.jobs.restoring.report import ALREADY_RESTORED, RestoreReport
from sediment.jobs.rewriting.report import unchanged_fields
from sediment.jobs.rewriting.run import Run
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.errors import SedimentError, UsageError
from sediment.segment_io.format.names import SWAP_SUFFIX, SegmentFileKind, TopicPartition
from sediment.segment_io.fs import Fs, without_links
from sediment.segment_io.partition.checkpoint_files import read_checkpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.sources import Source

ERASURE = "erasure"
SUPPRESSED = "suppressed"
INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Chain:
    """Runs to undo in a partition, newest first, with their catalogue entries; `log_dir` is the path in the options."""

    partition: TopicPartition
    log_dir: Path
    runs: tuple[tuple[Catalogue, OriginalPartition], ...]
    report: RestoreReport

    @property
    def directory(self) -> Path:
        return self.log_dir / str(self.partition)


def missing_partitions(run: Run[RestoreReport], wanted: Sequence[Catalogue]) -> list[RestoreReport]:
    """Return the reports of partitions that a run changed but that no longer exist."""
    reports = {}
    for path in run.options.log_dirs:
        for name in (
            entry.partition
            for undone in wanted
            for entry in undone.partitions
            if entry.log_dir == str(without_links(path))
        ):
            if run.options.selection.includes(name) and not run.fs.is_directory(path / name):
                why = "the partition no longer exists; a broker deleted or moved it"
                reports[path / name] = RestoreReport(name, str(path), REFUSED, CHANGED_SINCE, why)
    return list(reports.values())


def chains_of(
    run: Run[RestoreReport],
    history: History,
    directories: Sequence[SelectedDirectory],
    wanted: Sequence[Catalogue],
) -> list[Chain]:
    selected = {
        (str(without_links(directory.path)), str(partition)): (directory.path, partition)
        for directory in directories
        for partition in directory.partitions
    }
    changed = dict.fromkeys((entry.log_dir, entry.partition) for undone in wanted for entry in undone.partitions)
    here = {str(without_links(path)) for path in run.options.log_dirs}
    if wanted and not here & {log_dir for log_dir, _ in changed}:
        known = ", ".join(sorted({log_dir for log_dir, _ in changed}))
        raise UsageError(
            f"no chosen run changed this log directory; the chosen runs changed {known}",
            path=", ".join(map(str, run.options.log_dirs)),
            advice="give the log directory that the run changed",
        )
    chains = []
    for key in changed:
        if key in selected:
            log_dir, partition = selected[key]
            runs = tuple(history.to_undo(wanted, *key))
            chains.append(Chain(partition, log_dir, runs, report_as_it_is(partition, log_dir, run.fs)))
    return chains


@dataclass(frozen=True, slots=True)
class ChainPlanner:
    """Plans whether the runs of a chain can be undone; if it `only_looks`, it finishes no interrupted replacement."""

    run: Run[RestoreReport]
    history: History
    originals: Path
    only_looks: bool
    undo_erasure: bool
    suppressed: SuppressionList | None

    def planned(self, chain: Chain) -> Chain | RestoreReport:
        try:
            return self._plan_chain(chain)
        except (SedimentError, OSError) as error:
            code, text = describe(error)
            return replace(chain.report, status=FAILED, reason_code=code, reason=text)

    def _plan_chain(self, chain: Chain) -> Chain | RestoreReport:
        if self.only_looks:
            if list_log(chain.partition, chain.directory, self.run.fs).is_replacement_open():
                other = "without --dry-run" if self.run.dry_run else "with --yes"
                why = f"an earlier run or broker was interrupted here; run {other} to finish its work first"
                return replace(chain.report, reason_code=INTERRUPTED, reason=why)
        else:
            found = interrupted_restores(self.history, chain.directory, self.originals, self.run.fs)
            for each in found:
                names = [name.removesuffix(SWAP_SUFFIX) for name in sorted(each.new_logs)]
                if barred := self._barred(each.run, each.entry, names, chain.partition):
                    return replace(chain.report, reason_code=barred[0], reason=barred[1])
            self._finish_interrupted(chain, found)
            chain = replace(chain, report=report_as_it_is(chain.partition, chain.log_dir, self.run.fs))
        live = listed_files(chain.directory, self.run.fs)
        log_start = read_checkpoints(chain.log_dir, self.run.fs).of(chain.partition).log_start
        restored, has_changes = 0, False
        for run, entry in chain.runs:
            plan = plan_partition_restore(run, entry, live, self.originals, self.run.fs, log_start_checkpoint=log_start)
            names = [] if isinstance(plan, Refusal) else _kept_logs(plan)
            if barred := self._barred(run, entry, names, chain.partition):
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

    def _finish_interrupted(self, chain: Chain, found: Iterable[InterruptedRestore]) -> None:
        """Complete the interrupted restores `found`; complete or undo all other replacements in the directory."""
        for interrupted in found:
            # Since the interruption, a broker may have stopped cleanly without having loaded this partition.
            if brings_back_unclean_logs(interrupted.run, chain.log_dir):
                mark_unclean(chain.log_dir, {chain.partition: interrupted.entry}, self.run.fs)
        new_logs = {name for interrupted in found for name in interrupted.new_logs}
        finish_interrupted(chain.directory, self.run.fs, restored=new_logs)

    def _barred(
        self,
        run: Catalogue,
        entry: OriginalPartition,
        logs: Iterable[str],
        partition: TopicPartition,
    ) -> tuple[str, str] | None:
        """Return the reason code and text if the originals `logs` of a run must not be put back, else None."""
        if self.history.holds_erased(run, entry) and not self.undo_erasure:
            return ERASURE, f"the originals of run {run.run_id} contain erased records; --undo-erasure puts them back"
        keys = None if self.suppressed is None else self.suppressed.of_topic(partition.topic)
        if keys is None:
            return None
        folder = run_folder(self.originals, run.run_id) / entry.partition
        offsets = [
            int(offset)
            for name in logs
            for offset in find_suppressed(
                Source(partition, folder, int(name.removesuffix(SegmentFileKind.LOG)), name), keys, self.run.fs
            )
        ]
        if not offsets:
            return None
        return SUPPRESSED, (
            f"the originals of run {run.run_id} contain {counted(len(offsets), 'record')} with suppressed keys, the "
            f"first at offset {min(offsets)}; restore without --suppress, and erase these keys again before the broker "
            "starts"
        )


def _kept_logs(plan: RestorePlan) -> list[str]:
    return [each.file.name for segment in plan.segments() for each in segment.files[:1] if each.is_kept]


def report_as_it_is(partition: TopicPartition, log_dir: Path, fs: Fs) -> RestoreReport:
    return RestoreReport(**unchanged_fields(list_log(partition, log_dir / str(partition), fs)), status=REFUSED)
