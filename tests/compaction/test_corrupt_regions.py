"""Unreadable batches that are kept: for any content of them, readers see the same values after the cleaning.

A log is corrupted and cleaned, and then the corrupt batches are assumed to have been anything: the original batches,
other keys and values, markers.  For each of these the log before and the log after must show the same latest values,
and still do so when the log is repaired and cleaned again.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sediment.compaction.clean_log import CleaningMode, clean_log
from sediment.compaction.prepared_swap import PreparedSwap
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import Fs
from tests.compaction.cleanings import Round, flip, put_in_place, renumbered, write_log
from tests.compaction.splittings import plan_of
from tests.logs import START_MS, LogShape, write_random_log
from tests.twin.batches import Batch, ControlType, Record, encode_batch, parse_batch
from tests.twin.legacy import LegacyBatch
from tests.twin.segments import AnyBatch, file_batches, list_segments

LATE = Round(START_MS + 10_000_000, 4000, 1000)


def clean_keeping(directory: Path, given: Round) -> PreparedSwap | None:
    plan = plan_of(directory, given)
    if plan is None:
        return None
    return clean_log(plan, Fs(), Attempt("r", "0"), CleaningMode(keep_unreadable=True))


# ----------------------------------------------------------------------------------------------------------- the oracle
def latest_values(batches: Sequence[AnyBatch]) -> dict[bytes, bytes]:
    """Return the data that a read-committed reader sees; a producer's next marker ends its transaction."""
    outcomes: dict[int, bool] = {}
    visible: list[AnyBatch] = []
    for batch in reversed(batches):
        if batch.is_control:
            control = batch.control_type()
            if control in (ControlType.ABORT, ControlType.COMMIT):
                outcomes[batch.producer_id] = control is ControlType.COMMIT
        elif not batch.is_transactional or outcomes.get(batch.producer_id, False):
            visible.append(batch)
    values: dict[bytes, bytes] = {}
    for batch in reversed(visible):
        for record in batch.records():
            if record.key is not None:
                values.pop(record.key, None)
                if record.value is not None:
                    values[record.key] = record.value
    return values


@dataclass(frozen=True, slots=True)
class CorruptedLog:
    """A corrupted log: original batches and current bytes by segment; `bad` maps last offsets to corrupt bytes."""

    segments: Mapping[int, list[AnyBatch]]
    contents: Mapping[int, bytes]
    bad: Mapping[int, bytes]


def corrupt_log(
    directory: Path, chooser: random.Random, positions: Callable[[int], Sequence[int]]
) -> CorruptedLog | None:
    """Flip a byte in one to three batches of segments that are not active; `positions` in a batch of that size."""
    segments = list_segments(directory)
    batches = {s.base_offset: [b for _, b in s.batches()] for s in segments}
    places = [(s, n) for s in segments[:-1] for n in range(len(batches[s.base_offset]))]
    if not places:
        return None
    markers = [(s, n) for s, n in places if batches[s.base_offset][n].is_control]
    start = chooser.randrange(len(places))
    chosen = chooser.choice(
        [
            places[start : start + 2],
            chooser.sample(places, min(len(places), 3)),
            [places[start]],
            [chooser.choice(markers or places)],
            [places[start // 3]],
        ]
    )
    bad = {}
    for segment, number in sorted(chosen, key=lambda place: (place[0].base_offset, place[1])):
        found = batches[segment.base_offset]
        at = sum(len(batch.data) for batch in found[:number])
        size = len(found[number].data)
        flip(segment.path(".log"), at + chooser.choice(positions(size)))
        bad[found[number].last_offset] = segment.read(".log")[at : at + size]
    return CorruptedLog(batches, {s.base_offset: s.read(".log") for s in segments}, bad)


Assignment = Callable[[AnyBatch], AnyBatch]


def log_before(log: CorruptedLog, assigned: Mapping[int, AnyBatch]) -> list[AnyBatch]:
    return [assigned.get(batch.last_offset, batch) for found in log.segments.values() for batch in found]


def log_after(directory: Path, log: CorruptedLog, assigned: Mapping[int, AnyBatch]) -> dict[int, list[AnyBatch]]:
    """Return the cleaned segments with the corrupt batches replaced; each must occur once, byte for byte."""
    after = {}
    for segment in list_segments(directory):
        content = segment.read(".log")
        if content == log.contents.get(segment.base_offset):
            after[segment.base_offset] = [
                assigned.get(batch.last_offset, batch) for batch in log.segments.get(segment.base_offset, ())
            ]
            continue
        following = next((s.base_offset for s in list_segments(directory) if s.base_offset > segment.base_offset), None)
        batches: list[AnyBatch] = []
        for offset, corrupt_bytes in log.bad.items():
            if segment.base_offset <= offset and (following is None or offset < following):
                assert content.count(corrupt_bytes) == 1
                readable, _, content = content.partition(corrupt_bytes)
                batches += whole(readable)
                batches.append(assigned[offset])
        after[segment.base_offset] = [*batches, *whole(content)]
    return after


def whole(content: bytes) -> list[AnyBatch]:
    found = [batch for _, batch in file_batches(content)]
    assert sum(len(batch.data) for batch in found) == len(content)
    assert all(batch.is_valid() for batch in found)
    return found


def other_records(chooser: random.Random, keys: int) -> Assignment:
    """Return a batch with the same offsets and producer, and any keys and values."""

    def assign(batch: AnyBatch) -> AnyBatch:
        if isinstance(batch, LegacyBatch) or batch.is_control or not batch.records():
            return batch
        records = [
            Record(
                record.offset,
                record.timestamp,
                b"key-%d" % chooser.randrange(keys),
                chooser.choice([None, None, b"", b"unknown-%d" % chooser.randrange(10**6)]),
            )
            for record in batch.records()
        ]
        return with_records(batch, records, transactional=batch.is_transactional)

    return assign


def with_records(batch: Batch, records: Sequence[Record], *, transactional: bool) -> Batch:
    return parse_batch(
        encode_batch(
            records,
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            transactional=transactional,
        )
    )


def a_marker(chooser: random.Random) -> Assignment:
    """Any marker of any producer."""

    def assign(batch: AnyBatch) -> AnyBatch:
        key = struct.pack(">hh", 0, chooser.choice([0, 1]))
        record = Record(batch.last_offset, START_MS, key, struct.pack(">hi", 0, 7))
        producer_id = chooser.choice([11, 11, 12, 13])
        marked = {"producer_id": producer_id, "producer_epoch": 0, "transactional": True, "control": True}
        return parse_batch(encode_batch([record], base_offset=batch.last_offset, **marked))

    return assign


def checked(seed: int, directory: Path, shape: LogShape, positions: Callable[[int], Sequence[int]]) -> bool:
    """Check one corrupted log, cleaned, under several assignments; return False if there is nothing to clean."""
    chooser = random.Random(seed)
    end = write_random_log(directory, seed, shape)
    dirty = None
    if chooser.random() < 0.5:
        # A clean part is one that was cleaned: every tombstone that is left in it has nothing below it to hide.
        clean_once(directory)
        dirty = chooser.choice([None, chooser.randrange(end), chooser.randrange(end)])
    log = corrupt_log(directory, chooser, positions)
    if log is None:
        return False
    map_bytes = chooser.choice([None, None, 24 * 8])
    given = replace(LATE, segment_bytes=chooser.choice([2500, 9000]), dirty=dirty, map_bytes=map_bytes)
    swap = clean_keeping(directory, given)
    if swap is None:
        return False
    put_in_place(swap)
    original = {batch.last_offset: batch for found in log.segments.values() for batch in found}
    assignments: list[Assignment] = [lambda batch: batch]
    assignments += [other_records(chooser, shape.keys) for _ in range(6)]
    swept = {source.base_offset for group in swap.groups for source in group.sources}
    if shape.transactional and swept >= {base for base, found in log.segments.items() if holds_bad(found, log)}:
        # Above the cleaned range the transaction index alone decides, and it speaks of the marker that was there.
        assignments += [a_marker(chooser) for _ in range(4)]
    for assignment in assignments:
        assigned = {offset: assignment(original[offset]) for offset in log.bad}
        before = latest_values(log_before(log, assigned))
        after = log_after(directory, log, assigned)
        assert latest_values([b for found in after.values() for b in found]) == before
    assigned = {offset: other_records(chooser, shape.keys)(original[offset]) for offset in log.bad}
    mended_and_cleaned_again(directory, log, assigned, replace(given, dirty=next_dirty(directory, swap)))
    return True


def holds_bad(batches: Sequence[AnyBatch], log: CorruptedLog) -> bool:
    return any(batch.last_offset in log.bad for batch in batches)


def clean_once(directory: Path) -> None:
    swap = clean_keeping(directory, replace(LATE, now_ms=START_MS, segment_bytes=900))
    if swap is not None:
        put_in_place(swap)


def next_dirty(directory: Path, swap: PreparedSwap) -> int:
    """Return the first dirty offset of a later round: the checkpoint, or below it the last inactive segment."""
    last = max((s.base_offset for s in list_segments(directory)[:-1]), default=0)
    return min(last, swap.next_dirty_offset)


def mended_and_cleaned_again(
    directory: Path, log: CorruptedLog, assigned: Mapping[int, AnyBatch], given: Round
) -> None:
    """Repair the corrupt batches; the next rounds, from the checkpoint that was left, must end right too."""
    expected = latest_values(log_before(log, assigned))
    for base, batches in log_after(directory, log, assigned).items():
        (directory / f"{base:020d}.log").write_bytes(b"".join(batch.data for batch in batches))
    for later_ms in (1, 2_000, 4_000):
        swap = clean_keeping(directory, replace(given, now_ms=given.now_ms + later_ms))
        if swap is None:
            break
        assert not any(group.unreadable for group in swap.groups)
        put_in_place(swap)
        given = replace(given, dirty=next_dirty(directory, swap))
        found = [batch for segment in list_segments(directory) for _, batch in segment.batches()]
        assert latest_values(found) == expected


def covered(size: int) -> Sequence[int]:
    """Any byte that a checksum covers."""
    return range(21, size)


def anything_but_the_offset(size: int) -> Sequence[int]:
    """Lengths and magics too; the base offset and the leader epoch are under no checksum."""
    return [position for position in (8, 9, 10, 11, 16, 17, 25, 40, size - 1) if position < size]


@pytest.mark.parametrize("positions", [covered, anything_but_the_offset])
@pytest.mark.parametrize(("transactional", "magics"), [(0, (2,)), (0.5, (2,)), (0.3, (0, 1, 2))])
def test_whatever_unreadable_batches_hold_no_latest_value_is_made_wrong(tmp_path, transactional, magics, positions):
    cleaned = 0
    for seed in range(12):
        shape = LogShape(
            keys=random.Random(seed).choice([6, 30]),
            tombstones=0.35,
            transactional=transactional,
            segment_bytes=900,
            horizons=0.5,
            gaps=0.05,
            codecs=(0, 1, 3) if seed % 3 == 0 else (0,),
            magics=magics,
        )
        cleaned += checked(seed, tmp_path / f"t-{seed}", shape, positions)
    assert cleaned > 6


# -------------------------------------------------------------------------------------------------- what stays, by rule
def data(offset: int, key: bytes, value: bytes | None, *, producer_id: int = -1) -> bytes:
    fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": offset} if producer_id >= 0 else {}
    return encode_batch(
        [Record(offset, START_MS, key, value)], base_offset=offset, transactional=producer_id >= 0, **fields
    )


def marker(offset: int, kind: ControlType, *, producer_id: int = 11) -> bytes:
    record = Record(offset, START_MS, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 7))
    fields = {"producer_id": producer_id, "producer_epoch": 0, "transactional": True, "control": True}
    return encode_batch([record], base_offset=offset, **fields)


def written(directory: Path, segments: dict[int, list[bytes]], bad: int) -> CorruptedLog:
    """Write a log of `segments` in which the batch at offset `bad` is corrupt."""
    write_log(directory, segments)
    batches: dict[int, list[AnyBatch]] = {
        base: [parse_batch(data) for data in found] for base, found in segments.items()
    }
    corrupt = {}
    for base, found in segments.items():
        for number, content in enumerate(found):
            if batches[base][number].last_offset == bad:
                at = sum(map(len, found[:number]))
                path = directory / f"{base:020d}.log"
                flip(path, at + 66)
                corrupt[bad] = path.read_bytes()[at : at + len(content)]
    contents = {s.base_offset: s.read(".log") for s in list_segments(directory)}
    return CorruptedLog(batches, contents, corrupt)


def assert_right_whatever(directory: Path, log: CorruptedLog, candidates: Sequence[bytes]) -> None:
    (bad,) = log.bad
    for candidate in candidates:
        assigned: dict[int, AnyBatch] = {bad: parse_batch(candidate)}
        after = [batch for found in log_after(directory, log, assigned).values() for batch in found]
        assert latest_values(after) == latest_values(log_before(log, assigned))


def cleaned_keeping(directory: Path, given: Round = LATE) -> PreparedSwap:
    swap = clean_keeping(directory, given)
    assert swap is not None
    put_in_place(swap)
    return swap


@pytest.mark.parametrize("was", [ControlType.ABORT, ControlType.COMMIT])
def test_data_whose_marker_cannot_be_read_supersedes_nothing_and_is_not_dropped(tmp_path, was):
    batches = [
        data(0, b"k", b"old"),
        data(1, b"k", b"new", producer_id=11),
        marker(2, was),
        data(3, b"z", b"z", producer_id=11),
        marker(4, ControlType.COMMIT),
    ]
    log = written(tmp_path / "t-0", {0: batches}, 2)
    cleaned_keeping(tmp_path / "t-0")
    assert_right_whatever(
        tmp_path / "t-0",
        log,
        [marker(2, ControlType.ABORT), marker(2, ControlType.COMMIT), data(2, b"k", b"other"), data(2, b"k", None)],
    )


def test_data_after_an_unreadable_abort_marker_is_not_taken_for_aborted(tmp_path):
    batches = [
        data(0, b"k", b"aborted", producer_id=11),
        marker(1, ControlType.ABORT),
        data(2, b"k", b"committed", producer_id=11),
        marker(3, ControlType.COMMIT),
    ]
    log = written(tmp_path / "t-0", {0: batches}, 1)
    cleaned_keeping(tmp_path / "t-0")
    assert_right_whatever(tmp_path / "t-0", log, [batches[1], marker(1, ControlType.COMMIT)])


def test_markers_and_their_index_entries_stay_while_anything_cannot_be_read(tmp_path):
    batches = [
        data(0, b"a", b"1", producer_id=11),
        marker(1, ControlType.ABORT),
        data(2, b"a", b"2"),
        data(3, b"a", b"3"),
    ]
    directory = tmp_path / "t-0"
    written(directory, {0: batches[:2], 2: batches[2:]}, 3)
    index = (directory / f"{0:020d}.txnindex").read_bytes()
    for later_ms in (0, 10**6, 2 * 10**6):
        cleaned_keeping(directory, replace(LATE, now_ms=LATE.now_ms + later_ms))
    *_, found = [batch for _, batch in list_segments(directory)[0].batches()]
    assert found.data == batches[1]
    assert (directory / f"{0:020d}.txnindex").read_bytes() == index


@pytest.mark.parametrize(("bad", "stays"), [(0, True), (3, False)])
def test_an_expired_tombstone_stays_after_an_unreadable_batch(tmp_path, bad, stays):
    expired = encode_batch(
        [Record(1, START_MS, b"k", None), Record(2, START_MS, b"l", b"")], base_offset=1, delete_horizon_ms=START_MS
    )
    segments = {0: [data(0, b"x", b"1")], 1: [expired], 3: [data(3, b"y", b"1")]}
    log = written(tmp_path / "t-0", segments, bad)
    cleaned_keeping(tmp_path / "t-0", replace(LATE, segment_bytes=10))
    after = log_after(tmp_path / "t-0", log, {bad: parse_batch(data(bad, b"k", b"back?"))})
    assert [record.key for record in after[1][0].records()] == ([b"k", b"l"] if stays else [b"l"])
    assert_right_whatever(tmp_path / "t-0", log, [data(bad, b"k", b"back?"), data(bad, b"l", None)])


@pytest.mark.parametrize("offset", [2**40, -7, 9])
def test_a_batch_whose_offset_is_not_one_of_its_segment_is_kept_and_supersedes_nothing(tmp_path, offset):
    moved = renumbered(data(1, b"k", b"old"), offset)
    batches = [data(0, b"x", b"1"), data(1, b"k", b"old"), data(2, b"k", b"new"), data(3, b"x", b"2")]
    directory = write_log(tmp_path / "t-0", {0: batches, 4: [data(4, b"z", b"1")]})
    (directory / f"{0:020d}.log").write_bytes(b"".join([batches[0], moved, *batches[2:]]))
    swap = cleaned_keeping(directory)
    assert [batch.offset for group in swap.groups for batch in group.unreadable] == [1]
    assert (directory / f"{0:020d}.log").read_bytes() == b"".join([moved, *batches[2:]])


def test_the_checkpoint_stays_below_what_could_not_be_read_or_decided(tmp_path):
    plain = {0: [data(0, b"a", b"1")], 1: [data(1, b"b", b"1")], 2: [data(2, b"a", b"2")]}
    written(tmp_path / "a-0", plain, 1)
    assert cleaned_keeping(tmp_path / "a-0", replace(LATE, segment_bytes=10)).next_dirty_offset == 1
    open_below = {
        0: [data(0, b"a", b"1", producer_id=11)],
        1: [data(1, b"b", b"1")],
        2: [marker(2, ControlType.COMMIT)],
    }
    written(tmp_path / "b-0", open_below, 1)
    assert cleaned_keeping(tmp_path / "b-0", replace(LATE, segment_bytes=10)).next_dirty_offset == 0


def test_a_repaired_log_loses_the_records_that_a_kept_tombstone_supersedes(tmp_path):
    directory = tmp_path / "t-0"
    segments = {0: [data(0, b"k", b"old"), data(1, b"x", b"")], 2: [data(2, b"k", None), data(3, b"y", b"")]}
    log = written(directory, segments, 0)
    given = replace(LATE, segment_bytes=10)
    for later_ms in (0, 10**6):
        swap = cleaned_keeping(directory, replace(given, now_ms=LATE.now_ms + later_ms))
    good = log_after(directory, log, {0: parse_batch(segments[0][0])})
    (directory / f"{0:020d}.log").write_bytes(b"".join(batch.data for batch in good[0]))
    cleaned_keeping(directory, replace(given, now_ms=LATE.now_ms + 2 * 10**6, dirty=swap.next_dirty_offset))
    found = [batch for segment in list_segments(directory) for _, batch in segment.batches()]
    assert [record.key for batch in found for record in batch.records()] == [b"x", b"y"]


def test_the_last_batch_of_a_corrupt_segment_keeps_its_header_for_the_next_start(tmp_path):
    batches = [data(0, b"a", b"1"), data(1, b"b", b"1"), data(2, b"a", b"2")]
    written(tmp_path / "t-0", {0: batches, 3: [data(3, b"a", b"3")]}, 1)
    cleaned_keeping(tmp_path / "t-0", replace(LATE, segment_bytes=10))
    first = list_segments(tmp_path / "t-0")[0]
    assert [(batch.base_offset, batch.count) for _, batch in first.batches()] == [(1, 1), (2, 0)]


def test_a_segment_that_ends_with_an_unreadable_batch_is_not_replaced(tmp_path):
    batches = [data(0, b"a", b"1"), data(1, b"b", b"1")]
    log = written(tmp_path / "t-0", {0: batches, 3: [data(3, b"a", b"3")]}, 1)
    swap = cleaned_keeping(tmp_path / "t-0", replace(LATE, segment_bytes=10))
    assert [group.parts for group in swap.groups] == [(), ()]
    assert list_segments(tmp_path / "t-0")[0].read(".log") == log.contents[0]


def test_indexes_skip_unreadable_batches_and_lead_past_them(tmp_path):
    records = [Record(n, START_MS + n, b"k%d" % n, b"v" * 50) for n in range(12)]
    batches = [encode_batch([record], base_offset=record.offset) for record in records]
    directory = tmp_path / "t-0"
    written(directory, {0: batches, 12: [data(12, b"k0", b"")]}, 5)
    cleaned_keeping(directory, replace(LATE, segment_bytes=10))
    first = list_segments(directory)[0]
    starts = {batch.last_offset: position for position, batch in first.batches()}
    entries = [first.read(".index")[at : at + 8] for at in range(0, len(first.read(".index")), 8)]
    found = {int.from_bytes(e[:4], "big"): int.from_bytes(e[4:], "big") for e in entries}
    assert 6 in found
    assert 5 not in found
    assert all(starts[offset] == position for offset, position in found.items())


def test_a_torn_length_keeps_the_segment_and_reads_on_where_the_index_leads(tmp_path):
    records = [Record(n, START_MS + n, b"k%d" % n, b"v" * 90) for n in range(20)]
    batches = [encode_batch([record], base_offset=record.offset) for record in records]
    directory = tmp_path / "t-0"
    write_log(directory, {0: [data(0, b"k19", b"old")], 1: batches[1:], 20: [data(20, b"z", b"")]})
    flip(directory / f"{1:020d}.log", 3 * len(batches[1]) + 8)
    content = (directory / f"{1:020d}.log").read_bytes()
    swap = cleaned_keeping(directory, replace(LATE, segment_bytes=10))
    (bad,) = [batch for group in swap.groups for batch in group.unreadable]
    assert (bad.position, bad.offset) == (3 * len(batches[1]), 4)
    assert bad.position + bad.size_bytes < len(content)
    assert (directory / f"{1:020d}.log").read_bytes() == content
    assert list_segments(directory)[0].read(".log") == b""
