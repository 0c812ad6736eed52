"""Steps of an erasure after its commits: the second scan of every partition, and the evidence for each partition.

1. List each partition again, and scan its segments (`second_scan`), before the locks are released.
2. Evaluate a condition again.
3. Join the results of the scan with the results of the run, by partition and segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sediment.compaction.rewrite.verdicts import Verdicts
from sediment.jobs.erasing.erasure import ErasedSegment
from sediment.jobs.erasing.evidence import PartitionEvidence, SegmentEvidence
from sediment.jobs.erasing.find_records import ScanRun
from sediment.jobs.erasing.places import Replicas
from sediment.jobs.erasing.report import EraseReport
from sediment.jobs.erasing.second_scan import RescannedSegment, ScanAgain, SecondScan, of_second_scan
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import FAILED
from sediment.jobs.rewriting.result import TASK_ERRORS, CleaningResult, failure
from sediment.jobs.rewriting.run import why_lost
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.spark.job_names import titled
from sediment.jobs.spark.task_pool import run_on_executors
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing, list_log

Int64s = npt.NDArray[np.int64]

STILL_MATCHES = "still-matches"


@dataclass(frozen=True, slots=True)
class ErasedPartition:
    listing: LogListing
    verdicts: Verdicts
    stays: Int64s
    segments: tuple[ErasedSegment, ...]


@dataclass(frozen=True, slots=True)
class ScannedPartition:
    segments: tuple[RescannedSegment, ...]
    more_matches: Int64s

    @property
    def matches(self) -> int:
        return sum(each.matches.size for each in self.segments) + self.more_matches.size


def scan_again(
    run: ScanRun, keys: Iterable[bytes], erased: Sequence[ErasedPartition], fs: Fs
) -> Mapping[Path, ScannedPartition | CleaningResult]:
    found: dict[Path, list[RescannedSegment]] = {each.listing.path: [] for each in erased}
    failed: dict[Path, CleaningResult] = {}
    items: list[SecondScan] = []
    for each in erased:
        try:
            items += _segments(each, run.now_ms, fs)
        except TASK_ERRORS as error:
            failed[each.listing.path] = failure(*describe(error))
    for results in run_on_executors(
        run.sc,
        items,
        ScanAgain(frozenset(keys)),
        SecondScan.weight,
        group=run.run_id,
        is_stopped=run.stop.is_set,
        title=titled("search again", lambda item: item.listing.partition),
        figures=of_second_scan,
    ):
        for done in results:
            path = done.item.listing.path
            scanned = done.result or failure(*why_lost(run.stop, done.error, "scanned again"))
            if isinstance(scanned, CleaningResult):
                failed[path] = scanned
            else:
                found[path].append(scanned)
    return {
        path: failed.get(path)
        or ScannedPartition(tuple(sorted(segments, key=lambda segment: segment.base_offset)), np.zeros(0, np.int64))
        for path, segments in found.items()
    }


def _segments(erased: ErasedPartition, now_ms: int, fs: Fs) -> list[SecondScan]:
    listing = list_log(erased.listing.partition, erased.listing.path, fs)
    ends = [*(segment.base_offset for segment in listing.segments[1:]), INT64_MAX]
    return [
        SecondScan(
            replace(listing, segments=(segment,)),
            erased.verdicts.between(segment.base_offset, end),
            erased.stays[(erased.stays >= segment.base_offset) & (erased.stays < end)],
            now_ms,
        )
        for segment, end in zip(listing.segments, ends, strict=False)
    ]


def with_matches(scanned: ScannedPartition, erased: ErasedPartition, matching: Int64s) -> ScannedPartition:
    known = np.concatenate([erased.verdicts.offsets, erased.stays])
    return replace(scanned, more_matches=matching[~np.isin(matching, known)])


def checked_report(report: EraseReport, scanned: ScannedPartition | CleaningResult) -> EraseReport:
    if isinstance(scanned, CleaningResult):
        return replace(
            report,
            status=FAILED,
            reason_code=scanned.reason_code,
            reason=f"the records are erased, but the second scan failed: {scanned.reason}",
        )
    if not scanned.matches:
        return report
    reason = f"{scanned.matches} records still match after the run; keep the evidence and report this bug"
    return replace(report, status=FAILED, reason_code=STILL_MATCHES, reason=reason)


def evidence_of(
    report: EraseReport,
    erased: ErasedPartition | None,
    scanned: ScannedPartition | CleaningResult | None,
    replicas: Replicas,
) -> PartitionEvidence:
    is_scanned = isinstance(scanned, ScannedPartition)
    rewritten = {
        each.rewritten.group.sources[0].base_offset: each
        for each in (erased.segments if erased is not None else ())
        if each.group.parts
    }
    segments = []
    for each in scanned.segments if isinstance(scanned, ScannedPartition) else ():
        done = rewritten.get(each.base_offset)
        segments.append(
            SegmentEvidence(
                each.base_offset,
                rewritten=done is not None,
                removed=done.rewritten.stats.matched if done is not None else 0,
                before=done.before if done is not None else (),
                after=each.files,
                records=each.records,
                matches=each.matches.size,
            )
        )
    return PartitionEvidence(
        log_dir=report.log_dir,
        partition=report.partition,
        status=report.status,
        reason=report.reason,
        action=report.action,
        scanned=report.records_scanned,
        matched=report.records_matched,
        removed=report.records_erased,
        not_reached=report.not_reached,
        records_after=sum(each.records for each in segments),
        matches_after=scanned.matches if isinstance(scanned, ScannedPartition) else 0,
        replicas=replicas.nodes,
        covered=replicas.covered if is_scanned else (),
        segments=tuple(segments),
    )


def replicas_of(
    reports: Iterable[EraseReport],
    directories: Sequence[SelectedDirectory],
    metadata_dir: Path | None,
    done: Iterable[str],
    fs: Fs,
) -> Mapping[TopicPartition, Replicas]:
    from sediment.segment_io.internal_topics.metadata_log import read_cluster_metadata

    metadata = None
    for place in (metadata_dir, *(directory.path for directory in directories)):
        metadata = metadata or (read_cluster_metadata(place, fs) if place is not None else None)
    nodes = {str(each.path): each.meta.node_id for each in directories if each.meta and each.meta.node_id is not None}
    finished = frozenset(done)
    read: dict[str, set[int]] = {}
    covered: dict[str, set[int]] = {}
    partitions: dict[str, TopicPartition] = {
        str(partition): partition for directory in directories for partition in directory.partitions
    }
    for report in reports:
        node = {nodes[report.log_dir]} if report.log_dir in nodes else set()
        read.setdefault(report.partition, set()).update(node)
        covered.setdefault(report.partition, set()).update(node if report.status in finished else ())
    replicas = {}
    for name in read:
        partition = partitions[name]
        known = None if metadata is None else metadata.replicas.get(partition.topic, {}).get(partition.partition)
        replicas[partition] = Replicas(
            None if known is None else tuple(sorted(known)), tuple(sorted(read[name])), tuple(sorted(covered[name]))
        )
    return replicas
