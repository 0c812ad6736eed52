r"""Rules of a correct compaction for records, and the pass over both logs that applies these rules.

`rules` compares batches with the same base offset.  `record_kernels` compares records with the same offset, and keeps a
state for each key.

A record may be missing if it was aborted, had no key, had a later record of its key below the limit, or was a tombstone
past its delete horizon.  A remaining record must be unchanged.  In addition, the latest committed record of each key is
compared, independently of these reasons.

If some keys have differences, a further pass follows these keys and finds the offsets and texts.

Invariant: memory use is one block of each log for each thread, the batches between the two positions, and the tables
of keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Event

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.status import NEEDS_AFTER, NEEDS_BEFORE, NEEDS_EVENT_ROOM, NEEDS_MAP_ROOM, OK
from sediment.segment_io.format.hashing import draw_seed, hash_secrets
from sediment.segment_io.format.layout import CONTROL_ABORT, INT64_MAX, INT64_MIN
from sediment.segment_io.fs import Fs
from sediment.segment_io.segment.reader import joined
from sediment.segment_io.tables.planning import ScanTask
from sediment.verification import record_kernels as k
from sediment.verification import rules as r
from sediment.verification.header_scan import HeaderFacts, LogPart
from sediment.verification.key_table import Histories, KeyTable, lost_record
from sediment.verification.record_stream import Block, HashSeed, RecordStream
from sediment.verification.reencoded import (
    ReencodedBatches,
    join_originals,
    last_of_producers,
    merged_batches,
    window_end,
)
from sediment.verification.report import SHOWN_DIFFERENCES, Difference
from sediment.verification.tally import Tally
from sediment.verification.threads import in_threads

Int64s = npt.NDArray[np.int64]
BatchRows = npt.NDArray[np.void]

_BATCHES_AT_ONCE = 1 << 13
_EVENTS_AT_ONCE = 1 << 14
_MOST_COPIES = 1 << 10  # of batches with one base offset; further ones are reported
_RECORDS_PER_KEY = 8  # expected number; determines the first size of the table
_NO_BATCHES = np.zeros(0, dtype=r.BATCH)
_NO_OFFSETS = np.zeros(0, dtype=np.int64)
_NO_BLOCK = k.RecordBlock(np.zeros((0, k.WALKED_FIELDS), dtype=np.int64), _NO_BATCHES, np.zeros(0, dtype=np.uint8))

_CHECKS = {
    k.NEW_KEYED: "records",
    k.NEW_KEYLESS: "records",
    k.REPEATED: "order",
    k.LOST_KEYLESS: "lost",
    k.LOST_ABOVE: "lost",
    k.LOST_TOMBSTONE: "tombstones",
    k.LEFT_KEYLESS: "superseded",
    k.OTHER_VALUE: "records",
    k.OTHER_HEADERS: "records",
    k.OTHER_TIMESTAMP: "records",
    k.OTHER_PRODUCER: "records",
}
_TEXTS = {
    k.NEW_KEYED: "BEFORE has no such record of this key",
    k.NEW_KEYLESS: "BEFORE has no such record",
    k.REPEATED: "the record appears more than once",
    k.LOST_KEYLESS: "the record without a key is missing, but its offset is above the cleaned range",
    k.LEFT_KEYLESS: "a record without a key remains below the cleaner checkpoint",
    k.OTHER_VALUE: "the value of the record differs from BEFORE",
    k.OTHER_HEADERS: "the headers of the record differ from BEFORE",
    k.OTHER_TIMESTAMP: "the timestamp of the record differs from BEFORE",
    k.OTHER_PRODUCER: "the producer, sequence, leader epoch or timestamp type of the record differs from BEFORE",
}


@dataclass(frozen=True, slots=True)
class Log:
    """`parts` is empty if the log must not be compared in ranges."""

    tasks: tuple[ScanTask, ...]
    facts: HeaderFacts
    parts: tuple[LogPart, ...] = ()


def compare_records(
    before: Log, after: Log, rules: r.PairRules, limit_bytes: int, fs: Fs, tally: Tally, threads: int = 1
) -> ReencodedBatches:
    """Add the differences of batches and records to `tally`, and return the re-encoded batches.

    The tables of keys take at most `limit_bytes`.
    """
    # With several threads, each one compares a range of offsets, and the tables of keys are joined afterwards.  If the
    # threads find a difference, one pass over both logs follows and finds the offsets and texts.
    counts = count_in_ranges(before, after, rules, limit_bytes, fs, threads)
    if counts is not None and not counts:
        return ReencodedBatches()
    waiting = [(0, k.PARTS)]
    seed = draw_seed()  # one seed for all passes, because the hash determines in which pass a key is handled
    reencoded = ReencodedBatches()
    while waiting:
        first, end = waiting.pop()
        walk = _Walk(before, after, rules, fs, seed)
        if walk.fold(first, end, limit_bytes):
            walk.add_to(tally)
            reencoded = walk.reencoded or reencoded
        else:
            # If the keys do not fit into the memory limit, the pass starts again with half of the keys, selected by
            # hash; another pass handles the other half.
            middle = (first + end) // 2
            waiting += [(middle, end), (first, middle)]
    return reencoded


def count_in_ranges(
    before: Log, after: Log, rules: r.PairRules, limit_bytes: int, fs: Fs, threads: int
) -> Counter[str] | None:
    """Return the number of differences by check; threads count them in ranges of offsets.

    The result is None if the logs cannot be compared in ranges, or the keys do not fit into the memory limit.
    """
    ranges = [] if rules.may_be_reencoded else offset_ranges(before.parts, after.parts, threads)
    if len(ranges) < 2:
        return None
    seed = draw_seed()

    def walk(offsets: tuple[int, int], stop: Event) -> _Walk | None:
        found = _Walk(before, after, rules, fs, seed, offsets, stop)
        if found.fold(0, k.PARTS, limit_bytes // len(ranges)):
            return found
        stop.set()
        return None

    walks = [found for found in in_threads(walk, ranges, len(ranges)) if found is not None]
    if len(walks) < len(ranges):
        return None
    whole = walks[0]
    if not all(whole.append(later) for later in walks[1:]):
        return None
    return whole.wrong_keys() + sum((each.wrong_records() for each in walks), Counter())


def offset_ranges(before: Sequence[LogPart], after: Sequence[LogPart], count: int) -> list[tuple[int, int]]:
    """Return up to `count` ranges [low, high) of about equally many bytes, which together contain all offsets.

    Parts of both logs ascend; every range but the first begins with a part of BEFORE.
    """
    firsts = np.array([part.first_offset for part in (*before, *after)], dtype=np.int64)
    sizes = np.array([part.task.slice.size_bytes for part in (*before, *after)], dtype=np.int64)
    cuts = firsts[1 : len(before)]
    if not len(after) or not len(cuts):
        return [(INT64_MIN, INT64_MAX)]
    order = np.argsort(firsts)
    below = np.cumsum(np.append(0, sizes[order]))[np.searchsorted(firsts[order], cuts)]
    nearest = {int(cuts[np.abs(below - sizes.sum() * number // count).argmin()]) for number in range(1, count)}
    return list(pairwise([INT64_MIN, *sorted(nearest), INT64_MAX]))


class _Walk:
    def __init__(
        self,
        before: Log,
        after: Log,
        rules: r.PairRules,
        fs: Fs,
        seed: int,
        offsets: tuple[int, int] = (INT64_MIN, INT64_MAX),
        stop: Event | None = None,
    ) -> None:
        self._before, self._after = before, after
        self._rules = rules
        self._fs = fs
        self._seed = seed
        self._offsets = offsets
        self._stop = stop or Event()
        self._secrets = hash_secrets(seed)
        self._differences = k.Differences(
            np.zeros(k.DIFFERENCES, dtype=np.int64), np.zeros((k.DIFFERENCES, SHOWN_DIFFERENCES, 2), dtype=np.int64)
        )
        self._events = np.zeros((_EVENTS_AT_ONCE, k.EVENT_FIELDS), dtype=np.int64)
        self._totals = np.zeros(k.REGISTERS, dtype=np.int64)
        self._batches = Tally()
        self.reencoded: ReencodedBatches | None = None
        self._part = (0, k.PARTS)
        self._table = KeyTable(0, 0)

    def fold(self, first: int, end: int, limit_bytes: int) -> bool:
        """The pass with `first` 0 also compares batches, and records without a key.

        The result is False if the keys do not fit into memory, a batch is only partly in the range of offsets, or the
        pass was stopped.
        """
        self._part = (first, end)
        expected = self._before.facts.records * (end - first) // (k.PARTS * _RECORDS_PER_KEY)
        self._table = KeyTable(limit_bytes, expected)
        judge = _Judge(self._before.facts, self._after.facts, self._rules, self._batches) if first == 0 else None
        streams = self._streams()
        if not self._merge(streams, judge, None) or any(stream.is_cut for stream in streams):
            return False
        if judge is not None:
            judge.finish()
            self.reencoded = judge.reencoded
            self._batches.add(_corruption(*(stream.corrupt for stream in streams)))
        return True

    def add_to(self, tally: Tally) -> None:
        for check, number in (self.wrong_records() + self.wrong_keys()).items():
            tally.count(check, number)
        tally.show(self._batches.first())
        for number in np.flatnonzero(self._differences.counts).tolist():
            tally.show(self._shown(number))
        if self.wrong_keys():
            histories = Histories(self._table, self._rules.cleaned.first_dirty)
            streams = self._streams()
            self._merge(streams, None, histories)
            tally.show(histories.differences())

    def wrong_records(self) -> Counter[str]:
        counts = Counter(self._batches.counts)
        for number in np.flatnonzero(self._differences.counts).tolist():
            counts[_CHECKS[number]] += int(self._differences.counts[number])
        return counts

    def append(self, later: _Walk) -> bool:
        self._totals[k.SUPERSEDED] += later._totals[k.SUPERSEDED]
        at = 0
        while True:
            status, at = k.join_keys(self._table.slots, later._table.slots, at, self._totals)
            if status == OK:
                return True
            if not self._table.grow():
                return False

    def wrong_keys(self) -> Counter[str]:
        wrong = np.zeros(4, dtype=np.int64)
        k.count_wrong_keys(self._table.slots, wrong)
        checks = ("latest_committed", "latest_uncommitted", "lost", "tombstones")
        counts = Counter(dict(zip(checks, wrong.tolist(), strict=True)))
        counts["superseded"] = int(self._totals[k.SUPERSEDED])
        return +counts

    def _streams(self) -> list[RecordStream]:
        seeds = (HashSeed(self._seed, self._secrets), None)
        return [
            RecordStream(_tasks(log, *self._offsets), log.facts, self._fs, seed, *self._offsets)
            for log, seed in zip((self._before, self._after), seeds, strict=True)
        ]

    def _shown(self, number: int) -> list[Difference]:
        rows = self._differences.first[number, : self._differences.counts[number]].tolist()
        if number in (k.LOST_ABOVE, k.LOST_TOMBSTONE):
            return [lost_record(offset, number == k.LOST_TOMBSTONE, horizon_ms) for offset, horizon_ms in rows]
        return [Difference(_CHECKS[number], offset, _TEXTS[number]) for offset, _ in rows]

    def _merge(self, streams: list[RecordStream], judge: _Judge | None, histories: Histories | None) -> bool:
        before, after = (
            _Side(stream, self._flags(is_before), judge.queues[number] if judge else None)
            for number, (stream, is_before) in enumerate(zip(streams, (True, False), strict=True))
        )
        parameters = self._parameters(is_tracing=histories is not None)
        state = np.zeros(k.REGISTERS, dtype=np.int64)
        state[k.MET_OFFSET] = -1
        while True:
            status = k.merge_records(
                before.block,
                after.block,
                self._table.slots,
                self._secrets,
                parameters,
                self._differences,
                self._events,
                state,
            )
            if status == NEEDS_BEFORE:
                state[k.BEFORE_ENDED] = not before.advance()
                state[k.AT_BEFORE], state[k.COUNT_BEFORE] = 0, len(before.block.records)
            elif status == NEEDS_AFTER:
                state[k.AFTER_ENDED] = not after.advance()
                state[k.AT_AFTER], state[k.COUNT_AFTER] = 0, len(after.block.records)
            elif status == NEEDS_MAP_ROOM:
                if not self._table.grow():
                    return False
            elif status == NEEDS_EVENT_ROOM and histories is not None:
                histories.add(self._events[: state[k.EVENTS]])
                state[k.EVENTS] = 0
            else:
                break
            if self._stop.is_set():
                return False
            if judge is not None:
                judge.run()
        if histories is not None:
            histories.add(self._events[: state[k.EVENTS]])
        else:
            self._totals = state
        return True

    def _flags(self, is_before: bool) -> _Flags:
        return _Flags(self._rules if is_before else None)

    def _parameters(self, *, is_tracing: bool) -> Int64s:
        rules, parameters = self._rules, np.zeros(k.PARAMETERS, dtype=np.int64)
        parameters[k.LIMIT] = rules.cleaned.limit
        parameters[k.END] = rules.cleaned.end
        parameters[k.DIRTY] = rules.cleaned.first_dirty
        parameters[k.STABLE_BEFORE], parameters[k.STABLE_AFTER] = rules.stable_before, rules.stable_after
        parameters[k.IS_CLAIMED] = rules.cleaned.is_claimed
        parameters[k.IS_CHECKED] = rules.cleaned.is_claimed and rules.corrupt_from is None
        parameters[k.REMOVABLE_END] = rules.removable_end()
        parameters[k.FIRST_PART], parameters[k.END_PART] = self._part
        parameters[k.IS_TRACING] = is_tracing
        parameters[k.SEED] = self._seed
        return parameters


def _tasks(log: Log, low: int, high: int) -> Sequence[ScanTask]:
    if (low, high) == (INT64_MIN, INT64_MAX):
        return log.tasks
    return [part.task for part in log.parts if part.last_offset >= low and part.first_offset < high]


@dataclass(frozen=True, slots=True)
class _Flags:
    """Function that returns the flags of batches for the kernels; `rules` is set only for BEFORE."""

    rules: r.PairRules | None

    def __call__(self, batches: BatchRows) -> npt.NDArray[np.uint8]:
        flags: npt.NDArray[np.uint8] = (batches["in_transaction"] & (batches["outcome"] == CONTROL_ABORT)).astype(
            np.uint8
        ) * k.ABORTED
        flags |= batches["control"].astype(np.uint8) * np.uint8(k.CONTROL)
        if self.rules is not None:
            flags |= self.rules.tombstones_may_go(batches).astype(np.uint8) * np.uint8(k.TOMBSTONES_MAY_GO)
        return flags


class _Side:
    def __init__(self, stream: RecordStream, flags: _Flags, queue: _Queue | None) -> None:
        self._blocks: Iterator[Block] = stream.blocks()
        self._buffers: list[npt.NDArray[np.uint8]] = []  # the bytes to which the records of `block` point
        self._flags_of = flags
        self._queue = queue
        self.block = _NO_BLOCK

    def advance(self) -> bool:
        block = next(self._blocks, None)
        if block is None:
            self.block, self._buffers = _NO_BLOCK, []
            if self._queue is not None:
                self._queue.has_ended = True
            return False
        self.block = k.RecordBlock(block.records, block.batches, self._flags_of(block.batches))
        self._buffers = block.buffers
        if self._queue is not None:
            self._queue.add(block.batches[block.is_first])
        return True


# -------------------------------------------------------------------------------------------------------------- batches
class _Queue:
    def __init__(self) -> None:
        self._parts: list[BatchRows] = []
        self.count = 0
        self.last_base: int | None = None
        self.has_ended = False

    def add(self, batches: BatchRows) -> None:
        if len(batches):
            self._parts.append(batches)
            self.count += len(batches)
            self.last_base = int(batches["base"][-1])

    def waiting(self) -> BatchRows:
        self._parts = [joined(self._parts)] if self._parts else [_NO_BATCHES]
        return self._parts[0]

    def take(self, end: int | None) -> BatchRows:
        batches = self.waiting()
        kept = 0 if end is None else int(np.searchsorted(batches["base"], end))
        taken, rest = (batches, _NO_BATCHES) if end is None else (batches[:kept], batches[kept:])
        self._parts, self.count = [rest] if len(rest) else [], len(rest)
        return taken


class _Judge:
    def __init__(self, before: HeaderFacts, after: HeaderFacts, rules: r.PairRules, tally: Tally) -> None:
        self.queues = (_Queue(), _Queue())
        self.reencoded = ReencodedBatches()
        self._rules = rules
        self._tally = tally
        self._protected = before.protected(rules.idle_since_ms())
        self._marked = before.transactions.marked()
        self._remembered = after.remembered() if rules.may_be_reencoded else _NO_OFFSETS

    def run(self) -> None:
        if max(queue.count for queue in self.queues) >= _BATCHES_AT_ONCE:
            self._compare()

    def finish(self) -> None:
        self._compare()

    def _compare(self) -> None:
        ends = [queue.last_base for queue in self.queues if not queue.has_ended]
        known = [end for end in ends if end is not None]
        if len(known) < len(ends):
            return
        end = min(known, default=None)
        if self._rules.may_be_reencoded:
            end = window_end(self.queues[1].waiting(), end)
        before, after = (queue.take(end) for queue in self.queues)
        rest, rest_after, kept, kept_after = _joined(before, after)
        if self._rules.may_be_reencoded:
            kept, kept_after = self._check_reencoded(before, after)
        gone = r.gone_batches(rest, np.isin(rest["base"], self._protected), self._rules)
        self._add(gone, rest, rest)
        self._add(r.new_batches(rest_after, self._rules), rest_after, rest_after)
        pairs = r.kept_batches(kept, kept_after, np.isin(kept["base"], self._marked), self._rules)
        self._add(pairs, kept, kept_after)

    def _check_reencoded(self, before: BatchRows, after: BatchRows) -> tuple[BatchRows, BatchRows]:
        """Compare merged batches with their originals; return the batches that are in both logs, as two aligned arrays.

        All originals of a merged batch are one row.
        """
        joined, inside = join_originals(before, after)
        self._add(merged_batches(inside, self._rules), inside.originals, inside.merged)
        _, _, kept, kept_after = _joined(joined, after)
        is_remembered = np.isin(kept_after["base"], self._remembered)
        last = last_of_producers(kept_after, kept["size"] == r.NO_SIZE, is_remembered, self._rules)
        self._add(iter([last]), kept, kept_after)
        self.reencoded.add(kept_after[r.are_reencoded(kept, kept_after, self._rules)], inside.originals)
        return kept, kept_after

    def _add(self, found: Iterator[r.RuleDifferences], before: BatchRows, after: BatchRows) -> None:
        if not len(before):
            return
        for each in found:
            self._tally.add_masked(
                each.check,
                each.mask,
                before["base"],
                lambda index, each=each: each.text(before[index], after[index]),  # type: ignore[misc]
            )


def _joined(before: BatchRows, after: BatchRows) -> tuple[BatchRows, BatchRows, BatchRows, BatchRows]:
    """Return three groups of batches: those whose base offset is only in BEFORE, only in AFTER, or in both."""
    if not len(before) or not len(after):
        return before, after, before[:0], after[:0]
    if _has_copies(before) or _has_copies(after):
        slots = _slots_of_copies(before, after)
    else:
        slots = np.minimum(np.searchsorted(before["base"], after["base"]), len(before) - 1)
        slots[before["base"][slots] != after["base"]] = -1
    has_partner = slots >= 0
    is_alone = np.ones(len(before), dtype=np.bool_)
    is_alone[slots[has_partner]] = False
    return before[is_alone], after[~has_partner], before[slots[has_partner]], after[has_partner]


def _has_copies(batches: BatchRows) -> bool:
    """Return True if two batches have the same base offset, because a leader wrote offsets twice (KAFKA-19407)."""
    return bool((batches["base"][1:] == batches["base"][:-1]).any())


def _slots_of_copies(before: BatchRows, after: BatchRows) -> Int64s:
    """Return for each batch of AFTER the index of its batch in BEFORE, or -1; several may have the same base offset."""
    slots = np.full(len(after), -1, dtype=np.int64)
    lows = np.searchsorted(before["base"], after["base"], side="left").tolist()
    highs = np.searchsorted(before["base"], after["base"], side="right").tolist()
    is_taken = np.zeros(len(before), dtype=np.bool_)
    # Unchanged batches find their partner by their checksum, and the others take what is left, in order.
    for is_exact in (True, False):
        for number in np.flatnonzero(slots < 0).tolist():
            for slot in range(lows[number], min(highs[number], lows[number] + _MOST_COPIES)):
                if not is_taken[slot] and (not is_exact or before["crc"][slot] == after["crc"][number]):
                    slots[number], is_taken[slot] = slot, True
                    break
    return slots


def _corruption(before: set[bytes], after: set[bytes]) -> Iterator[Difference]:
    for _ in range(len(after - before)):
        yield Difference("crc", None, "a batch of AFTER cannot be read, and BEFORE does not contain the same bytes")
    for _ in range(len(before - after)):
        yield Difference("crc", None, "an unreadable batch of BEFORE is missing")
