"""Run of `erase` on the driver.

1. Find: for a condition, tasks read the records.  A table of verdicts needs no search.
2. Check that a compacted log keeps no older record of a dropped key.
3. Plan: list the segments to rewrite, and the records out of reach.
4. Ask once for confirmation.  To count the records, the run first rewrites the segments in memory.
5. Rewrite: one task rewrites one segment.  Then the driver commits one partition at a time.  A dry run rewrites in
   memory.
6. Scan: read everything again, with other code, and sign the evidence.

For keys, step 5 also finds the records: a task searches and rewrites its segment in one scan.  A partition without a
known action is searched, and fails if it has a match.

A partition is committed only if each of its matching records has a verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sediment.compaction.rewrite.key_set import KeySet
from sediment.compaction.rewrite.verdicts import NotReached, Reason
from sediment.jobs.delta_lake.paths import local_directory
from sediment.jobs.erasing.after_run import (
    ErasedPartition,
    ScannedPartition,
    checked_report,
    evidence_of,
    replicas_of,
    scan_again,
    with_matches,
)
from sediment.jobs.erasing.erasure import EraseByKey, ErasedSegment, ErasePartition, EraseSegments, Planned
from sediment.jobs.erasing.evidence import DONE, document_of, write_evidence
from sediment.jobs.erasing.find_records import ScanRun
from sediment.jobs.erasing.options import EraseOptions
from sediment.jobs.erasing.places import NOT_VISIBLE, SPARK_FILES, Place, Replicas, places_of, unchanged_sources
from sediment.jobs.erasing.proof import Proof, named_if_not_written, write_tombstones
from sediment.jobs.erasing.report import ERASED, EraseReport, EraseRunReport, records_not_reached
from sediment.jobs.erasing.selector import NO_OFFSETS, ErasureSelection, ErasureSelector, read_subject
from sediment.jobs.erasing.subjects import Condition, Keys, read_replacement, read_secret
from sediment.jobs.erasing.suppression_file import add_to_suppression_list, check_suppression_file
from sediment.jobs.erasing.verdict_table import action_of, uniform_verdicts
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import FAILED, in_order
from sediment.jobs.rewriting.destination import SegmentDestination
from sediment.jobs.rewriting.partition_task import PartitionRewrite, SegmentTask, WrittenSegment
from sediment.jobs.rewriting.planned_partition import PlannedPartition, SelectedPartition
from sediment.jobs.rewriting.report import UNCHANGED, RewriteReport, fields_of
from sediment.jobs.rewriting.result import CleaningResult
from sediment.jobs.rewriting.run import Run
from sediment.jobs.rewriting.segment_rewriting import SegmentRewriting, report_fields
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.errors import DeclinedError, SedimentError, StorageError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import without_links

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class _Speed:
    scanned_bytes: int = 0
    seconds: float = 0.0
    bytes_to_rewrite: int = 0

    def add(self, scanned_bytes: int, started: float) -> None:
        self.scanned_bytes += scanned_bytes
        self.seconds += time.monotonic() - started

    def estimate(self) -> float | None:
        if not self.seconds:
            return None
        return round(self.bytes_to_rewrite * self.seconds / max(self.scanned_bytes, 1), 1)


class Erasure(SegmentRewriting[EraseOptions, EraseReport]):
    """What `erase` decides; `register` makes `kafka-log` known to the session that evaluates a condition."""

    def __init__(
        self,
        run: Run[EraseReport],
        own: EraseOptions,
        destination: SegmentDestination[EraseReport],
        confirm: Callable[[EraseRunReport], bool] | None,
        register: Callable[[SparkSession], None],
    ) -> None:
        super().__init__(run, own, destination)
        self._confirm = None if own.dry_run else confirm
        self._subject = read_subject(own)
        self._replacement = None if own.replacement is None else read_replacement(own.replacement)
        self._selector = ErasureSelector(run, own, destination, self._subject, self._replacement, register)
        self._selections: dict[Path, ErasureSelection | str] = {}
        """By partition directory; only the action if one scan both searches and rewrites the partition."""
        self._scans: ScanRun | None = None
        self._erased: dict[Path, ErasedPartition] = {}
        """Partitions in which every verdict was carried out, except for records that the run could not reach."""
        self._places: tuple[Place, ...] = ()
        self._is_complete: bool | None = None
        self._proof = None if own.evidence is None else Proof.load(own)
        self._suppression_secret: bytes | None = None
        if own.suppress_out is not None:
            assert own.secret_file is not None
            self._suppression_secret = read_secret(own.secret_file)
            check_suppression_file(own.suppress_out, self._suppression_secret)
        self._speed = _Speed()
        self._is_counting = own.dry_run

    def report(self, reports: Sequence[EraseReport], *, dry_run: bool | None = None) -> EraseRunReport:
        fields = report_fields(self._run, self._own, self._destination, reports)
        return EraseRunReport(
            **fields | {"dry_run": self._own.dry_run if dry_run is None else dry_run},
            estimated_seconds=self._speed.estimate(),
            evidence=None if self._is_complete is None else str(self._own.evidence),
            complete=self._is_complete,
            not_reached=self._places,
        )

    def _rewrites(
        self, sc: Any, partitions: Sequence[SelectedPartition]
    ) -> Iterator[tuple[SelectedPartition, PartitionRewrite | CleaningResult]]:
        scans = self._scans = ScanRun(sc, self._run.run_id, self._run.options.now_ms, self._run.stop)
        by_path: dict[Path, SelectedPartition] = {}
        for each in partitions:
            action = self._selector.action_in_one_scan(each)
            if action is None:
                by_path[each.listing.path] = each
            else:
                self._selections[each.listing.path] = action
                yield each, EraseByKey(action_of(action), self._proof is not None)
        if not by_path:
            return
        chosen: list[tuple[SelectedPartition, ErasureSelection]] = []
        started = time.monotonic()
        for each, found in self._selector.found(scans, by_path):
            if isinstance(found, CleaningResult):
                yield each, found
                continue
            selection = self._selector.judged(each, found)
            if isinstance(selection, CleaningResult):
                yield each, selection
            else:
                chosen.append((each, selection))
        if isinstance(self._subject, Keys | Condition):
            self._speed.add(sum(each.listing.log_bytes() for each in by_path.values()), started)
        for each, checked in self._selector.without_older(scans, chosen):
            if isinstance(checked, CleaningResult):
                yield each, checked
                continue
            self._selections[each.listing.path] = checked
            yield (
                each,
                ErasePartition(
                    checked.verdicts,
                    with_digests=self._proof is not None,
                    counts_records=isinstance(self._subject, Condition),
                ),
            )

    def _segment_function(self) -> Callable[[SegmentTask, str], WrittenSegment | CleaningResult]:
        return EraseSegments(KeySet.of(self._keys()), self._replacement or b"")

    def _keys(self) -> Collection[bytes]:
        return self._subject.values if isinstance(self._subject, Keys) else ()

    def _rewritten(
        self, sc: Any, planned: Sequence[PlannedPartition], *, in_memory: bool
    ) -> Iterator[PlannedPartition]:
        started = time.monotonic()
        yield from super()._rewritten(sc, planned, in_memory=in_memory)
        if in_memory:
            self._speed.add(sum(each.plan.log_bytes() for each in planned), started)

    def _approve(self, sc: Any, planned: Sequence[PlannedPartition]) -> Sequence[PlannedPartition]:
        approved = planned
        if self._confirm is not None and any(each.plan.segments for each in planned):
            rehearsed = self._rehearsed(sc, planned)
            if self._run.stop.is_set():
                raise DeclinedError(
                    "nothing was erased, because the run was stopped before the first change", advice="run again"
                )
            approved = [_without_unchanged(each) for each in rehearsed]
            if any(each.plan.segments for each in approved):
                self._is_counting = True
                shown = [self._counted(each) for each in rehearsed]
                self._is_counting = False
                if not self._confirm(self.report(shown, dry_run=True)):
                    raise DeclinedError("nothing was erased", advice="answer y, or give --yes, to erase")
        if self._suppression_secret is not None and not self._own.dry_run:
            self._suppress(self._suppression_secret, {each.selected.partition.topic for each in planned})
        return approved

    def _suppress(self, secret: bytes, topics: Collection[str]) -> None:
        """Add the keys to the suppression list before a record is removed, even for partitions without matches."""
        assert self._own.suppress_out is not None and isinstance(self._subject, Keys)
        try:
            add_to_suppression_list(self._own.suppress_out, secret, topics, self._subject.values)
        except OSError as error:
            raise StorageError(
                f"nothing was erased, because --suppress-out could not be written: {describe(error)[1]}",
                advice="name a file that this user can write, and run again",
            ) from error

    def _counted(self, planned: PlannedPartition) -> EraseReport:
        listing, why = planned.listing, planned.failure
        changed = sum(bool(each.group.parts) for each in planned.results)
        base = RewriteReport(
            str(listing.partition),
            self._destination.shown(str(listing.path.parent)),
            "" if changed else UNCHANGED,
            bytes_before=listing.log_bytes(),
            segments_before=len(listing.segments),
            segments_rewritten=changed,
        )
        if why is not None:
            base = replace(base, status=FAILED, reason_code=why.reason_code, reason=why.reason, segments_rewritten=0)
        return self._report(base, planned)

    def finish(self, rows: list[EraseReport]) -> list[EraseReport]:
        reports = [
            replace(each, records_erased=0) if each.status == FAILED and not each.segments_rewritten else each
            for each in rows
        ]
        replicas = self._replicas(reports)
        selected = [partition for each in self._destination.directories for partition in each.partitions]
        tiered = {partition for partition in selected if self._is_tiered(partition)}
        kept_in = self._own.kept_in(self._run.options) if self._destination.catalogue is not None else None
        kept = [] if kept_in is None else list(dict.fromkeys(map(kept_in.of, self._run.options.log_dirs)))
        shown = [self._destination.shown(str(each.path)) for each in self._destination.directories]
        local = [
            replace(directory, path=Path(path))
            for directory, where in zip(self._destination.directories, shown, strict=True)
            if (path := local_directory(where)) is not None
        ]
        found = places_of(local, replicas, kept, tiered, self._run.fs)
        if self._own.output is not None:
            found = (*unchanged_sources(shown), *found)
        if self._run.shows_secrets:
            found = (*found, SPARK_FILES)
        self._places = (*found, *NOT_VISIBLE)
        if self._own.dry_run or self._scans is None:
            return reports
        if self._own.tombstones_out is not None:
            write_tombstones(self._own.tombstones_out, list(self._erased.values()), self._scans, self._own.output)
        if self._proof is None:
            return reports
        return self._proved(reports, self._proof, self._scans, replicas, found)

    def _replicas(self, reports: Sequence[EraseReport]) -> Mapping[TopicPartition, Replicas]:
        """Return the replicas of the partitions; a run with --output has erased from no replica."""
        done = DONE if self._own.output is None else ()
        return replicas_of(
            reports, self._destination.directories, self._run.options.settings.metadata_dir, done, self._run.fs
        )

    def _proved(
        self,
        reports: Sequence[EraseReport],
        proof: Proof,
        scans: ScanRun,
        replicas: Mapping[TopicPartition, Replicas],
        found: Sequence[Place],
    ) -> list[EraseReport]:
        done = {self._written(Path(each.log_dir, each.partition)) for each in reports if each.status in DONE}
        located = {self._written(path): self._located(each) for path, each in self._erased.items()}
        erased = {path: each for path, each in located.items() if path in done}
        scanned = self._scanned_again(scans, erased)
        replicas_by_name = {str(partition): each for partition, each in replicas.items()}
        checked = []
        partitions = []
        for report in in_order(reports):
            path = self._written(Path(report.log_dir, report.partition))
            result = scanned.get(path)
            after = report if result is None else checked_report(report, result)
            checked.append(after)
            written = replace(after, log_dir=str(path.parent))
            partitions.append(evidence_of(written, erased.get(path), result, replicas_by_name[report.partition]))
        document = document_of(
            run_id=self._run.run_id,
            now_ms=self._run.options.now_ms,
            finished_ms=time.time_ns() // 1_000_000,
            subjects=proof.subjects(self._subject),
            directories=self._written_directories(),
            partitions=partitions,
            found=found,
            not_visible=NOT_VISIBLE,
        )
        if any(
            before.status != FAILED and after.status == FAILED
            for before, after in zip(in_order(reports), checked, strict=True)
        ):
            self._destination.withdraw()
        with named_if_not_written("the evidence", self._own.output):
            write_evidence(proof.file, document, proof.signer, self._run.fs)
        self._is_complete = bool(document["complete"])
        return checked

    def _written(self, path: Path) -> Path:
        return path if self._own.output is None else self._new_log_dir() / path.name

    def _located(self, erased: ErasedPartition) -> ErasedPartition:
        listing = erased.listing
        return replace(erased, listing=replace(listing, path=self._written(listing.path)))

    def _written_directories(self) -> Sequence[SelectedDirectory]:
        if self._own.output is None:
            return self._destination.directories
        return [replace(self._destination.directories[0], path=self._new_log_dir(), meta=None)]

    def _new_log_dir(self) -> Path:
        assert self._own.output is not None
        return without_links(Path(self._own.output))  # with --evidence, the output is not a URI (EraseOptions.validate)

    def _is_tiered(self, partition: TopicPartition) -> bool:
        try:
            return any(
                directory.config_of(partition, self._run.fs).retention.is_tiered
                for directory in self._destination.directories
                if partition in directory.partitions
            )
        except SedimentError:
            return False  # the partition's report contains the reason

    def _scanned_again(
        self, scans: ScanRun, erased: Mapping[Path, ErasedPartition]
    ) -> Mapping[Path, ScannedPartition | CleaningResult]:
        scanned = dict(scan_again(scans, self._keys(), list(erased.values()), self._run.fs))
        if isinstance(self._subject, Condition):
            for path, matching in self._selector.matching(self._subject.text, list(erased)):
                result = scanned[path]
                if isinstance(matching, CleaningResult):
                    scanned[path] = matching
                elif isinstance(result, ScannedPartition):
                    scanned[path] = with_matches(result, erased[path], matching)
        return scanned

    def _report(self, report: RewriteReport, planned: PlannedPartition | None) -> EraseReport:
        base = fields_of(report, ERASED)
        older = self._selector.older_keys.get(Path(report.log_dir, report.partition), 0)
        if planned is None:
            return EraseReport(**base, keys_with_older_records=older)
        findings = planned.plan.found
        assert isinstance(findings, Planned)
        done = [each for each in planned.results if isinstance(each, ErasedSegment)]
        if self._is_counting:
            self._speed.bytes_to_rewrite += sum(each.group.sources[0].log_bytes for each in done if each.group.parts)
        selection = self._selection_of(planned, done)
        not_reached = NotReached.joined([findings.not_reached, *(each.rewritten.not_reached for each in done)])
        is_failed = report.status not in ("", UNCHANGED)
        replaced = {group.sources[0].base_offset for group in planned.replaced}
        erased = sum(
            each.rewritten.stats.matched
            for each in done
            if not is_failed or each.group.sources[0].base_offset in replaced
        )
        if not is_failed and not self._is_counting:
            reached = not_reached.reasons == Reason.NO_RECORD
            self._erased[planned.listing.path] = ErasedPartition(
                planned.listing, selection.verdicts, not_reached.offsets[~reached], tuple(done)
            )
        return EraseReport(
            **base,
            action=selection.action,
            records_scanned=findings.records if selection.scanned is None else selection.scanned,
            records_matched=len(selection.verdicts),
            records_erased=erased,
            keys_with_older_records=older,
            not_reached=records_not_reached(not_reached),
        )

    def _selection_of(self, planned: PlannedPartition, done: Sequence[ErasedSegment]) -> ErasureSelection:
        selected = self._selections[planned.listing.path]
        if isinstance(selected, ErasureSelection):
            return selected
        action = selected
        # If a segment failed, the records in it are unknown.  Then the selection is empty, as after a failed search.
        if planned.failure is not None:
            return ErasureSelection(action, uniform_verdicts(NO_OFFSETS, action, b""), None)
        found = [each.rewritten.matches for each in done if each.rewritten.matches is not None]
        offsets = np.unique(np.concatenate([NO_OFFSETS, *(each.offsets for each in found)]))
        verdicts = uniform_verdicts(offsets, action, self._replacement or b"")
        return ErasureSelection(action, verdicts, sum(each.scanned for each in found))


def _without_unchanged(rehearsed: PlannedPartition) -> PlannedPartition:
    """Return the plan without the segments that the rewrite in memory left unchanged, but with their results."""
    # A partition whose rewrite in memory failed counts as failed, because the confirmed number does not include its
    # records.
    if rehearsed.failure is not None:
        return PlannedPartition(rehearsed.selected, replace(rehearsed.plan, segments=()), failure=rehearsed.failure)
    changing = {each.group.sources[0].base_offset for each in rehearsed.results if each.group.parts}
    segments = tuple(each for each in rehearsed.plan.segments if each.segment.base_offset in changing)
    unchanged = [each for each in rehearsed.results if not each.group.parts]
    return PlannedPartition(rehearsed.selected, replace(rehearsed.plan, segments=segments), unchanged)
