r"""The first pass over a log: check the checksums, and collect from the headers the facts that the rules need.

For unreadable batches, the pass keeps a hash of their bytes.

Invariants: memory use is two chunks, the facts of each segment and producer, and about 30 bytes for each transactional
batch.  A batch counts as readable only if its checksum is correct.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.batch_headers import BATCH_ROW
from sediment.segment_io.format.layout import (
    CODEC_MASK,
    CONTROL_ABORT,
    CONTROL_BIT,
    CONTROL_COMMIT,
    INT64_MAX,
    MAGIC_V2,
    NO_CONTROL_RECORD,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.format.legacy import unwrap
from sediment.segment_io.format.record_decoder import OFFSET_DELTA
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.producer_replay import REMEMBERED_BATCHES
from sediment.segment_io.partition.slices import ALL, plan_slices
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.segment.columns import MAX_RECORDS_BYTES, check_batches
from sediment.segment_io.segment.reader import BatchSpan, Rows, joined
from sediment.segment_io.tables.planning import ScanTask, UnreadableRange
from sediment.segment_io.tables.scan import has_bit, read_spans
from sediment.verification.record_kernels import NO_MARKER, NO_OUTCOME
from sediment.verification.threads import in_threads

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

CHUNK_BYTES = 2 << 20
"""Size of a span in bytes; the Python code for a span takes about the same time for 2 MiB as for 1 MiB."""

PART_BYTES = 16 << 20
"""Approximate size of a part of a log that one thread scans."""

_ROWS_AT_ONCE = 1 << 14
_SAMPLED = 64  # the sample contains the base offset of one batch out of this many
_DATA = -1  # the kind of data batches in `kinds`; other values are control types


@dataclass(frozen=True, slots=True)
class Transactions:
    """The data batches of transactions, by base offset, and for each batch the marker that commits or aborts it.

    `markers` and `outcomes` are NO_MARKER and NO_OUTCOME in an open transaction.
    """

    bases: Int64s
    producers: Int64s
    markers: Int64s
    outcomes: npt.NDArray[np.int8]

    @staticmethod
    def decide(bases: Int64s, producers: Int64s, kinds: npt.NDArray[np.int8]) -> Transactions:
        """Return the data batches among the given batches; `kinds` is _DATA, CONTROL_ABORT or CONTROL_COMMIT.

        A batch is committed or aborted by the first later marker of its producer.
        """
        order = np.lexsort((bases, producers))
        bases, producers, kinds = bases[order], producers[order], kinds[order]
        count = len(bases)
        following = np.where(kinds == _DATA, count, np.arange(count))
        following = np.minimum.accumulate(following[::-1])[::-1]
        data = np.flatnonzero(kinds == _DATA)
        nearest = np.minimum(following[data], count - 1)
        decided = (following[data] < count) & (producers[nearest] == producers[data])
        by_base = np.argsort(bases[data], kind="stable")
        data, nearest, decided = data[by_base], nearest[by_base], decided[by_base]
        return Transactions(
            bases[data],
            producers[data],
            np.where(decided, bases[nearest], NO_MARKER),
            np.where(decided, kinds[nearest], NO_OUTCOME).astype(np.int8),
        )

    @property
    def first_open(self) -> int | None:
        opened = self.bases[self.outcomes == NO_OUTCOME]
        return int(opened[0]) if len(opened) else None

    def marked(self) -> Int64s:
        return np.unique(self.markers[self.outcomes != NO_OUTCOME])

    def decisions(self, bases: Int64s) -> tuple[Int64s, npt.NDArray[np.int8]]:
        if not len(self.bases):
            return np.full(len(bases), NO_MARKER), np.full(len(bases), NO_OUTCOME, dtype=np.int8)
        slots = np.minimum(np.searchsorted(self.bases, bases), len(self.bases) - 1)
        found = self.bases[slots] == bases
        return np.where(found, self.markers[slots], NO_MARKER), np.where(found, self.outcomes[slots], NO_OUTCOME)


@dataclass(frozen=True, slots=True)
class UnreadableBytes:
    segment: int
    position: int
    size_bytes: int
    crc: int | None
    base_offset: int | None
    last_offset: int | None
    what: str

    @property
    def identity(self) -> tuple[int, int | None, int | None, int | None]:
        """Value with which regions of two logs are compared: regions with equal bytes have equal values."""
        return self.size_bytes, self.crc, self.base_offset, self.last_offset


@dataclass(slots=True)
class ScannedSegment:
    first_offset: int | None = None
    last_offset: int | None = None
    largest_ms: int = -1
    disorder: int = 0
    last_legacy: int | None = None
    previous_last: int | None = None

    def add(self, rows: Rows) -> None:
        firsts, lasts = rows["base_offset"], rows["last_offset"]
        previous = np.concatenate([[firsts[0] - 1 if self.previous_last is None else self.previous_last], lasts[:-1]])
        self.disorder += int(np.count_nonzero(previous >= firsts))
        self.previous_last = int(lasts[-1])
        low, high = int(firsts.min()), int(lasts.max())
        self.first_offset = low if self.first_offset is None else min(self.first_offset, low)
        self.last_offset = high if self.last_offset is None else max(self.last_offset, high)
        self.largest_ms = max(self.largest_ms, int(rows["max_timestamp"].max()))
        legacy = lasts[rows["magic"] < MAGIC_V2]
        if len(legacy):
            self.last_legacy = max(int(legacy.max()), -INT64_MAX if self.last_legacy is None else self.last_legacy)

    def append(self, later: ScannedSegment) -> None:
        if later.first_offset is None or later.last_offset is None:
            return
        if self.first_offset is None or self.last_offset is None:
            self.first_offset, self.last_offset = later.first_offset, later.last_offset
        elif self.previous_last is not None:
            self.disorder += int(self.previous_last >= later.first_offset)
        self.first_offset = min(self.first_offset, later.first_offset)
        self.last_offset = max(self.last_offset, later.last_offset)
        self.previous_last = later.previous_last
        self.largest_ms = max(self.largest_ms, later.largest_ms)
        self.last_legacy = max((one for one in (self.last_legacy, later.last_legacy) if one is not None), default=None)


@dataclass(slots=True)
class _Producer:
    """`last` is a producer's last batch: (base offset, epoch, largest timestamp); `data` is its last batch of data."""

    last: tuple[int, int, int]
    data: tuple[int, int] | None

    def protected_offset(self) -> int:
        """Return the base offset of the batch from which a broker reads the producer's state when it loads the log."""
        return self.data[0] if self.data is not None and self.data[1] == self.last[1] else self.last[0]


@dataclass(slots=True)
class HeaderFacts:
    """`sample` has some base offsets, at which the log can be split into windows.

    `has_producers` is True if some batch has a producer id.
    """

    segments: dict[int, ScannedSegment] = field(default_factory=dict)
    records: int = 0
    transactions: Transactions = field(default_factory=lambda: _decided([]))
    unreadable: list[UnreadableBytes] = field(default_factory=list)
    sample: list[int] = field(default_factory=list)
    has_producers: bool = False
    _producers: dict[int, _Producer] = field(default_factory=dict)
    _last_batches: dict[int, Int64s] = field(default_factory=dict)

    def corrupt_segments(self) -> frozenset[int]:
        return frozenset(batch.segment for batch in self.unreadable)

    def legacy_end(self) -> int:
        ends = [segment.last_legacy + 1 for segment in self.segments.values() if segment.last_legacy is not None]
        return max(ends, default=-INT64_MAX)

    def is_ordered(self) -> bool:
        found = [self.segments[base] for base in sorted(self.segments)]
        if any(segment.disorder for segment in found):
            return False
        ends = [(segment.first_offset, segment.last_offset) for segment in found if segment.first_offset is not None]
        return all(one[1] < other[0] for one, other in pairwise(ends))  # type: ignore[operator]

    def protected(self, idle_since_ms: int) -> Int64s:
        return np.array(
            sorted(one.protected_offset() for one in self._producers.values() if one.last[2] > idle_since_ms),
            dtype=np.int64,
        )

    def remembered(self) -> Int64s:
        """Return the base offsets of the last five data batches of each producer in each segment.

        A broker that has loaded the segment recognises these batches if a client sends them again.
        """
        return np.concatenate([np.zeros(0, dtype=np.int64), *(found[:, 1] for found in self._last_batches.values())])

    def add(self, rows: Rows, segment: int) -> None:
        self.segments.setdefault(segment, ScannedSegment()).add(rows)
        self.records += int(rows["record_count"].sum())
        self.sample += rows["base_offset"][::_SAMPLED].tolist()
        producing = rows[rows["producer_id"] >= 0]
        if len(producing):
            self.has_producers = True
            self._add_producers(producing)
            data = producing[~has_bit(CONTROL_BIT)(producing) & (producing["record_count"] > 0)]
            known = self._last_batches.get(segment, np.zeros((0, 2), dtype=np.int64))
            found = np.stack([data["producer_id"], data["base_offset"]], axis=1)
            self._last_batches[segment] = _last_five(known, found)

    def append(self, later: HeaderFacts) -> None:
        """Add the facts of later bytes of the log, which have no unreadable batch and whose batches ascend.

        The transactions are not added.
        """
        for base_offset, segment in later.segments.items():
            self.segments.setdefault(base_offset, ScannedSegment()).append(segment)
        self.records += later.records
        self.sample += later.sample
        self.has_producers |= later.has_producers
        for producer_id, producer in later._producers.items():
            known = self._producers.setdefault(producer_id, producer)
            known.last = max(known.last, producer.last)
            known.data = max((one for one in (known.data, producer.data) if one is not None), default=None)
        for base_offset, batches in later._last_batches.items():
            self._last_batches[base_offset] = _last_five(self._last_batches.get(base_offset, batches[:0]), batches)

    def _add_producers(self, rows: Rows) -> None:
        controls = has_bit(CONTROL_BIT)(rows)
        for row in _last_of_each(rows[~controls | (rows["control_type"] != NO_CONTROL_RECORD)]):
            last = (int(row["base_offset"]), int(row["producer_epoch"]), max(int(row["max_timestamp"]), -1))
            known = self._producers.setdefault(int(row["producer_id"]), _Producer(last, None))
            known.last = max(known.last, last)
        for row in _last_of_each(rows[~controls]):
            data = (int(row["base_offset"]), int(row["producer_epoch"]))
            known = self._producers[int(row["producer_id"])]
            known.data = data if known.data is None else max(known.data, data)


def _last_five(known: Int64s, later: Int64s) -> Int64s:
    every = np.concatenate([known, later])
    every = every[np.argsort(every[:, 0], kind="stable")]
    ends = np.searchsorted(every[:, 0], every[:, 0], side="right")
    return every[ends - np.arange(len(every)) <= REMEMBERED_BATCHES]


def _last_of_each(rows: Rows) -> Iterator[np.void]:
    order = np.lexsort((rows["base_offset"], rows["producer_id"]))
    ids = rows["producer_id"][order]
    ends = np.flatnonzero(np.diff(ids, append=ids[-1:] - 1)) if len(ids) else np.zeros(0, dtype=np.int64)
    yield from rows[order[ends]]


# ------------------------------------------------------------------------------------------------------------- scanning
def scan_tasks(source: Source, fs: Fs) -> list[ScanTask]:
    return [ScanTask(found, ALL) for found in plan_slices(source, ALL, fs, slice_bytes=INT64_MAX)]


def spans_of(
    tasks: Sequence[ScanTask], fs: Fs, *, reuses_buffer: bool = True
) -> Iterator[tuple[ScanTask, BatchSpan] | UnreadableRange]:
    for task in tasks:
        yield from read_spans(task, fs, None, True, reuses_buffer=reuses_buffer, chunk_bytes=CHUNK_BYTES)


def scan_headers(source: Source, tasks: Sequence[ScanTask], fs: Fs) -> HeaderFacts:
    facts, deciding = _scan(source, tasks, fs)
    facts.transactions = _decided(deciding)
    return facts


@dataclass(frozen=True, slots=True)
class LogPart:
    task: ScanTask
    first_offset: int
    last_offset: int


def scan_in_parts(source: Source, fs: Fs, threads: int) -> tuple[HeaderFacts, tuple[LogPart, ...]] | None:
    """Do the work of `scan_headers` in several threads; also return the parts of the log that have batches, ascending.

    The result is None if the log has an unreadable batch or batches that do not ascend.
    """
    tasks = [ScanTask(found, ALL) for found in plan_slices(source, ALL, fs, slice_bytes=PART_BYTES)]
    facts, deciding, parts = HeaderFacts(), list[Rows](), list[LogPart]()
    with closing(in_threads(lambda task, _: _scan(source, [task], fs), tasks, threads)) as scanned:
        for task, (found, rows) in zip(tasks, scanned, strict=True):
            if found.unreadable or not found.is_ordered():
                return None
            facts.append(found)
            deciding += rows
            parts += [
                LogPart(task, segment.first_offset, segment.last_offset)
                for segment in found.segments.values()
                if segment.first_offset is not None and segment.last_offset is not None
            ]
    facts.transactions = _decided(deciding)
    return (facts, tuple(parts)) if facts.is_ordered() else None


def _scan(source: Source, tasks: Sequence[ScanTask], fs: Fs) -> tuple[HeaderFacts, list[Rows]]:
    facts = HeaderFacts()
    deciding: list[Rows] = []
    segment, gathered = -1, list[Rows]()
    for found in spans_of(tasks, fs):
        if isinstance(found, UnreadableRange):
            found.error.partition = str(source.partition)
            size_bytes = found.end_position - found.position
            base_offset = found.scan_task.slice.segment.base_offset
            facts.unreadable.append(
                UnreadableBytes(base_offset, found.position, size_bytes, None, None, None, str(found.error))
            )
            continue
        task, span = found
        base_offset = task.slice.segment.base_offset
        if base_offset != segment or sum(map(len, gathered)) >= _ROWS_AT_ONCE:
            deciding += _add(gathered, segment, facts)
            segment, gathered = base_offset, []
        gathered.append(_readable(span, segment, facts))
    deciding += _add(gathered, segment, facts)
    return facts, deciding


def _add(gathered: list[Rows], segment: int, facts: HeaderFacts) -> list[Rows]:
    rows = joined(gathered) if gathered else np.zeros(0, dtype=BATCH_ROW)
    if not len(rows):
        return []
    facts.add(rows, segment)
    if not facts.has_producers:
        return []
    controls = has_bit(CONTROL_BIT)(rows)
    markers = controls & np.isin(rows["control_type"], (CONTROL_ABORT, CONTROL_COMMIT))
    kept = rows[markers | has_bit(TRANSACTIONAL_BIT)(rows) & ~controls]
    return [kept[["base_offset", "producer_id", "control_type"]].copy()]


def _decided(rows: list[Rows]) -> Transactions:
    if not rows:
        empty = np.zeros(0, dtype=np.int64)
        return Transactions.decide(empty, empty, empty.astype(np.int8))
    found = joined(rows)
    return Transactions.decide(found["base_offset"], found["producer_id"], found["control_type"].astype(np.int8))


def _readable(span: BatchSpan, segment: int, facts: HeaderFacts) -> Rows:
    rows = span.rows
    valid = np.zeros(len(rows), dtype=np.bool_)
    crcs = np.zeros(len(rows), dtype=np.int64)
    check_batches(span.buffer.ctypes.data, span.start - span.position, rows, valid, crcs)
    if not valid.all():
        for index in np.flatnonzero(~valid):
            row = rows[index]
            facts.unreadable.append(_wrong_checksum(row, int(crcs[index]), segment))
        rows = rows[valid]
    if len(rows) and rows["magic"].min() < MAGIC_V2:
        rows = complete_legacy(rows, span)
    return rows.copy()


def _wrong_checksum(row: np.void, crc: int, segment: int) -> UnreadableBytes:
    position, is_wrapper = int(row["position"]), row["magic"] < MAGIC_V2 and row["attributes"] & CODEC_MASK
    return UnreadableBytes(
        segment,
        position,
        int(row["size_bytes"]),
        crc,
        None if is_wrapper else int(row["base_offset"]),
        int(row["last_offset"]),
        f"the checksum of the batch is wrong (segment {segment}, position {position})",
    )


def complete_legacy(rows: Rows, span: BatchSpan) -> Rows:
    """Return the rows; for messages of magic 0 and 1, set the base offset and the number of records.

    Compressed messages that cannot be decompressed are left out.
    """
    completed = rows.copy()
    kept = np.ones(len(rows), dtype=np.bool_)
    for index in np.flatnonzero(rows["magic"] < MAGIC_V2):
        row = completed[index]
        if not row["attributes"] & CODEC_MASK:
            row["record_count"] = 1
            continue
        try:
            records = unwrap(entry_bytes(row, span), limit_bytes=MAX_RECORDS_BYTES).records
        except SedimentError:
            kept[index] = False
            continue
        row["base_offset"], row["record_count"] = records[0, OFFSET_DELTA], len(records)
    return completed[kept]


def entry_bytes(row: np.void, span: BatchSpan) -> bytes:
    at = int(row["position"]) + span.start - span.position
    return span.buffer[at : at + int(row["size_bytes"])].tobytes()
