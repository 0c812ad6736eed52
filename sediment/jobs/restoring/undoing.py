"""Undoing of runs: kept files come back, and what they replace is kept in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.originals.backup_links import BackupLinks
from sediment.engine.directory.originals.catalogue import Catalogue, OriginalPartition, partition_before, run_folder
from sediment.engine.directory.originals.restore import (
    PartitionRestore,
    listed_files,
    plan_partition_restore,
    restore_partition,
)
from sediment.engine.directory.originals.restore_plan import Refusal
from sediment.jobs.process.stderr_log import log_partition
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import FAILED
from sediment.jobs.reporting.statuses import STOPPED_BEFORE_DONE
from sediment.jobs.restoring.chains import Chain, report_as_it_is
from sediment.jobs.restoring.checkpoint_entries import write_first_entries, write_last_entries
from sediment.jobs.restoring.report import RestoreReport
from sediment.jobs.rewriting.kept_originals import catalogue_of_run, end_originals
from sediment.jobs.rewriting.run import Run
from sediment.segment_io.errors import SedimentError, SourceChangedError
from sediment.segment_io.format.names import new_run_id
from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints, read_checkpoints


class Undoing:
    """Undoes runs, one after the other; each has a catalogue of the files that it removes."""

    def __init__(self, run: Run[RestoreReport], originals: Path, locks: Mapping[Path, DirectoryLock]) -> None:
        self._run = run
        self._originals = originals
        self._locks = locks
        self.catalogues: list[str] = []

    def restore_all(self, chains: Sequence[Chain], wanted: Sequence[Catalogue]) -> list[RestoreReport]:
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

    def _undo(self, run: Catalogue, here: Sequence[tuple[Chain, OriginalPartition]]) -> dict[Path, RestoreReport]:
        """Undo a run in partitions, with a new catalogue; return a report of each partition that failed."""
        run_id = new_run_id() if self.catalogues else self._run.run_id
        failed: dict[Path, RestoreReport] = {}
        listed: list[tuple[Chain, PartitionRestore]] = []
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
        originals = BackupLinks(self._originals, header, self._run.fs)
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
        self.catalogues += [] if path is None else [str(path)]
        return failed

    def _prepared(
        self, run: Catalogue, chain: Chain, entry: OriginalPartition, checkpoints: LogDirCheckpoints
    ) -> PartitionRestore:
        """Return the steps that restore a partition from its current state.

        Raises:
            SourceChangedError: the partition has changed since the plan was made.
        """
        live = listed_files(chain.directory, self._run.fs)
        plan = plan_partition_restore(
            run,
            entry,
            live,
            self._originals,
            self._run.fs,
            log_start_checkpoint=checkpoints.of(chain.partition).log_start,
        )
        if isinstance(plan, Refusal):
            raise SourceChangedError(
                f"the partition changed during the restore: {plan.reason}",
                partition=str(chain.partition),
                path=str(chain.directory),
                advice="make sure that no other process works on the directory and run again",
            )
        folder = run_folder(self._originals, run.run_id) / entry.partition
        return PartitionRestore(chain.partition, chain.directory, entry, folder, plan)

    def _undo_in_directory(
        self,
        run: Catalogue,
        run_id: str,
        lock: DirectoryLock,
        originals: BackupLinks,
        listed: Sequence[tuple[Chain, PartitionRestore]],
    ) -> dict[Path, RestoreReport]:
        log_dir = listed[0][0].log_dir
        failed: dict[Path, RestoreReport] = {}
        try:
            lock.check()
            write_first_entries(run, log_dir, [planned for _, planned in listed], self._run.fs)
        except (SedimentError, OSError) as error:
            return {chain.directory: self._failed(chain, *describe(error)) for chain, _ in listed}
        for chain, planned in listed:
            if self._run.stop.is_set():
                failed[chain.directory] = self._failed(chain, *STOPPED_BEFORE_DONE)
                continue
            try:
                lock.check()
                restore_partition(planned, run_id, originals, lock, self._run.fs)
            except (SedimentError, OSError) as error:
                failed[chain.directory] = self._failed(chain, *describe(error))
        done = [(chain, planned) for chain, planned in listed if chain.directory not in failed]
        try:
            lock.check()
            write_last_entries(run, log_dir, [planned for _, planned in done], self._run.fs)
        except (SedimentError, OSError) as error:
            late = f"its segments are restored, but a checkpoint was not written: {describe(error)[1]}"
            failed |= {chain.directory: self._failed(chain, "checkpoint-not-written", late) for chain, _ in done}
        return failed

    def _failed(self, chain: Chain, code: str, reason: str) -> RestoreReport:
        try:
            found = report_as_it_is(chain.partition, chain.log_dir, self._run.fs)
        except (SedimentError, OSError):
            found = chain.report
        left = replace(found, bytes_before=chain.report.bytes_before, segments_before=chain.report.segments_before)
        return replace(left, status=FAILED, reason_code=code, reason=reason)
