"""Comparison of one partition in two directories, in one task or in the driver.

Invariants: a partition is CORRECT only if every check was made and found no difference.  Memory use is the sum
of the memory of `record_rules` and of `header_scan`, and does not depend on the size of the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sediment.segment_io.format.layout import CONTROL_ABORT, INT32_MAX
from sediment.segment_io.format.names import SegmentFileKind
from sediment.segment_io.format.transaction_index import AbortedTxn
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.live_segments import LiveSegment
from sediment.segment_io.partition.sources import Source
from sediment.verification.cleaned_range import (
    CleanedRange,
    LogFacts,
    SegmentFacts,
    cleaned_range,
    segment_differences,
)
from sediment.verification.files import FilesToCheck, check_files, transaction_entries
from sediment.verification.header_scan import (
    HeaderFacts,
    ScannedSegment,
    Transactions,
    scan_headers,
    scan_in_parts,
    scan_tasks,
)
from sediment.verification.record_rules import Log, compare_records
from sediment.verification.reencoded import ReencodedBatches
from sediment.verification.report import CHECKS, CORRECT, WRONG, Difference, PairReport
from sediment.verification.rules import PairRules
from sediment.verification.tally import Tally

LEAST_BYTES = 64 << 20
"""Size of a pair for which several threads take less time than one."""

MOST_THREADS = 4
"""Threads of one comparison; more would mostly wait for each other's Python code."""

_OF_CLAIMS = frozenset({"superseded", "aborted"})


@dataclass(frozen=True, slots=True)
class Side:
    source: Source
    segments: tuple[LiveSegment, ...]
    checkpoints: PartitionCheckpoints

    @property
    def size_bytes(self) -> int:
        return sum(segment.ref.log_bytes for segment in self.segments)

    @property
    def readable_bytes(self) -> int:
        """Upper bound of the bytes to read; bytes beyond 32-bit positions, as in a sparse file, do not count."""
        return sum(min(segment.ref.log_bytes, INT32_MAX) for segment in self.segments)


@dataclass(frozen=True, slots=True)
class PairSettings:
    """Settings of the cleaning, and clocks as in `rules.PairRules`; the table of keys takes at most `table_bytes`."""

    now_ms: int
    now_is_exact: bool
    since_ms: int | None
    min_lag_ms: int
    delete_retention_ms: int | None
    producer_id_expiration_ms: int | None
    table_bytes: int
    may_be_reencoded: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    name: str
    before: Side
    after: Side
    settings: PairSettings
    slots: int = 1

    @property
    def readable_bytes(self) -> int:
        return self.before.readable_bytes + self.after.readable_bytes

    @property
    def threads(self) -> int:
        return min(self.slots, MOST_THREADS) if self.readable_bytes >= LEAST_BYTES else 1

    @property
    def shares_appends(self) -> bool:
        """True if a broker has written to AFTER since `--keep-before` linked BEFORE.

        The two share the file of the active segment, so the new records are in both logs, but BEFORE's replication
        checkpoint does not cover them.
        """
        old, new = (side.checkpoints.high_watermark for side in (self.before, self.after))
        if old is None or new is None or new <= old or not self.before.segments or not self.after.segments:
            return False
        linked, log = (
            side.segments[-1].path(side.source.directory, SegmentFileKind.LOG) for side in (self.before, self.after)
        )
        return log.samefile(linked)


def compare(pair: Pair) -> PairReport:
    return _Comparison(pair).report()


class _Comparison:
    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._fs = Fs()
        self._tally = Tally()
        self._reencoded = ReencodedBatches()

    def report(self) -> PairReport:
        pair, settings = self._pair, self._pair.settings
        before_log, after_log = (
            scan_log_headers(side.source, self._fs, pair.threads) for side in (pair.before, pair.after)
        )
        scans = before_log.facts, after_log.facts
        before, after = self._facts(*scans)
        cleaned = cleaned_range(
            before,
            after,
            now_ms=settings.now_ms,
            min_lag_ms=settings.min_lag_ms,
            delete_retention_ms=settings.delete_retention_ms,
        )
        rules = PairRules(
            cleaned=cleaned,
            stable_before=before.last_stable_offset,
            stable_after=after.last_stable_offset,
            legacy_end=scans[0].legacy_end(),
            corrupt_from=before.first_corrupt,
            delete_retention_ms=settings.delete_retention_ms,
            producer_id_expiration_ms=settings.producer_id_expiration_ms,
            now_ms=settings.now_ms,
            now_is_exact=settings.now_is_exact,
            since_ms=settings.since_ms,
            may_be_reencoded=settings.may_be_reencoded,
        )
        self._tally.add(segment_differences(before, after, cleaned, may_be_reencoded=settings.may_be_reencoded))
        self._reencoded = compare_records(
            before_log, after_log, rules, settings.table_bytes, self._fs, self._tally, pair.threads
        )
        self._tally.add(_checksum_differences(*scans))
        if any(scan.has_producers for scan in scans):
            _add_hidden(scans[1].transactions, transaction_entries(pair.after.source, self._fs), self._tally)
        self._check_files(before, cleaned, scans[1], rules)
        return self._finished(before, after, cleaned, scans)

    def _facts(self, before: HeaderFacts, after: HeaderFacts) -> tuple[LogFacts, LogFacts]:
        first_corrupt = min(before.corrupt_segments(), default=None)
        pair, facts = self._pair, []
        known = pair.before.checkpoints
        if pair.shares_appends:
            known = replace(known, high_watermark=pair.after.checkpoints.high_watermark)
        for side, scan, checkpoints in ((pair.before, before, known), (pair.after, after, pair.after.checkpoints)):
            # If a transaction seems to be open, its marker may be in an unreadable batch.
            first_open = scan.transactions.first_open if first_corrupt is None else None
            segments = tuple(
                _segment_facts(segment, scan.segments.get(segment.base_offset)) for segment in side.segments
            )
            facts.append(LogFacts(segments, first_open, checkpoints))
        return replace(facts[0], first_corrupt=first_corrupt), facts[1]

    def _check_files(self, before: LogFacts, cleaned: CleanedRange, after: HeaderFacts, rules: PairRules) -> None:
        pair = self._pair
        ours = {segment.base_offset for segment in pair.after.segments}
        untouched = [
            segment.base_offset
            for segment in pair.before.segments
            if segment.base_offset >= cleaned.end and segment.base_offset in ours
        ]
        self._tally.add(
            check_files(
                FilesToCheck(
                    pair.before.source,
                    pair.after.source,
                    tuple(untouched),
                    after.corrupt_segments(),
                    before.first_open_offset,
                    rules.idle_since_ms(),
                    pair.after.segments[-1].base_offset if pair.shares_appends else None,
                ),
                self._fs,
            )
        )

    def _finished(
        self, before: LogFacts, after: LogFacts, cleaned: CleanedRange, scans: Sequence[HeaderFacts]
    ) -> PairReport:
        pair, counts = self._pair, self._tally.counts
        return PairReport(
            partition=pair.name,
            before=str(pair.before.source.directory),
            after=str(pair.after.source.directory),
            status=WRONG if counts else CORRECT,
            first_dirty_offset=cleaned.first_dirty,
            first_uncleanable_offset=cleaned.first_uncleanable,
            next_dirty_offset=after.checkpoints.first_dirty,
            log_end_offset=after.log_end_offset,
            records_before=scans[0].records,
            records_after=scans[1].records,
            bytes_before=pair.before.size_bytes,
            bytes_after=pair.after.size_bytes,
            batches_reencoded=self._reencoded.count,
            reencoded=tuple(self._reencoded.first),
            checks={check: _count(check, counts, cleaned) for check in CHECKS},
            differences=self._tally.first(),
        )


def scan_log_headers(source: Source, fs: Fs, threads: int) -> Log:
    tasks = tuple(scan_tasks(source, fs))
    scanned = scan_in_parts(source, fs, threads) if threads > 1 else None
    if scanned is None:
        return Log(tasks, scan_headers(source, tasks, fs))
    facts, parts = scanned
    has_legacy = any(segment.last_legacy is not None for segment in facts.segments.values())
    return Log(tasks, facts, () if has_legacy else parts)


def _count(check: str, counts: Counter[str], cleaned: CleanedRange) -> int | None:
    return counts[check] or (None if check in _OF_CLAIMS and not cleaned.is_claimed else 0)


def _segment_facts(segment: LiveSegment, found: ScannedSegment | None) -> SegmentFacts:
    size_bytes, modified_ms = segment.ref.log_bytes, segment.ref.mtime_ns // 1_000_000
    if found is None:
        return SegmentFacts(segment.base_offset, size_bytes, modified_ms)
    return SegmentFacts(
        segment.base_offset,
        size_bytes,
        modified_ms,
        found.first_offset,
        found.last_offset,
        found.largest_ms,
        found.disorder,
        found.last_legacy is not None,
    )


def _checksum_differences(before: HeaderFacts, after: HeaderFacts) -> list[Difference]:
    known = {batch.identity for batch in before.unreadable}
    return [
        Difference("crc", batch.base_offset, batch.what) for batch in after.unreadable if batch.identity not in known
    ]


def _add_hidden(transactions: Transactions, entries: Sequence[AbortedTxn], tally: Tally) -> None:
    hidden = np.zeros(len(transactions.bases), dtype=np.bool_)
    by_producer: dict[int, list[tuple[int, int]]] = {}
    for entry in entries:
        by_producer.setdefault(entry.producer_id, []).append((entry.first_offset, entry.last_offset))
    for producer_id, ranges in by_producer.items():
        mine = np.flatnonzero(transactions.producers == producer_id)
        firsts, lasts = np.array(sorted(ranges), dtype=np.int64).T
        slots = np.searchsorted(firsts, transactions.bases[mine], side="right") - 1
        hidden[mine] = (slots >= 0) & (np.maximum.accumulate(lasts)[slots] >= transactions.bases[mine])
    aborted = transactions.outcomes == CONTROL_ABORT
    for mask, what in (
        (aborted & ~hidden, "the batch was aborted, but the transaction index has no entry for it"),
        (~aborted & hidden, "the transaction index has an entry for the batch, but the batch was not aborted"),
    ):
        tally.add_masked("transaction_index", mask, transactions.bases, lambda _, what=what: what)  # type: ignore[misc]
