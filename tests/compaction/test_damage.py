"""Unreadable batches that are kept: whatever they hold, no value that a reader sees is made wrong by the cleaning.

A log is damaged, cleaned, and then the damaged batches are taken to have been anything: the batches that they were,
other keys and values, markers.  For each of these the log before and the log after must show the same latest values,
and still do so when the damage is mended and the log cleaned again.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sediment.compaction.cleaner import clean_log
from sediment.compaction.handoff import PreparedSwap
from sediment.segment_io.fs import Fs
from tests.compaction.test_cleaner import Round, flip, put_in_place
from tests.compaction.test_split import plan_of
from tests.logs import START_MS, LogShape, write_random_log
from tests.twin.batches import Batch, ControlType, Record, encode_batch, parse_batch
from tests.twin.legacy import LegacyBatch
from tests.twin.segments import AnyBatch, file_batches, list_segments

LATE = Round(START_MS + 10_000_000, 4000, 1000)


def clean_keeping(directory: Path, given: Round) -> PreparedSwap | None:
    plan = plan_of(directory, given)
    if plan is None:
        return None
    return clean_log(plan, Fs(), run_id="r", attempt="0", keep_unreadable=True)


# ----------------------------------------------------------------------------------------------------------- the oracle
def latest_values(batches: Sequence[AnyBatch]) -> dict[bytes, bytes]:
    """What a reader of committed data is left with; a transaction ends as the next marker of its producer says."""
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
class Damaged:
    """A damaged log: batches as they were and bytes as they are, by segment; `bad` are damaged bytes by last offset."""

    segments: Mapping[int, list[AnyBatch]]
    contents: Mapping[int, bytes]
    bad: Mapping[int, bytes]


def damage(directory: Path, chooser: random.Random, positions: Callable[[int], Sequence[int]]) -> Damaged | None:
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
    return Damaged(batches, {s.base_offset: s.read(".log") for s in segments}, bad)


Assignment = Callable[[AnyBatch], AnyBatch]


def log_before(log: Damaged, assigned: Mapping[int, AnyBatch]) -> list[AnyBatch]:
    return [assigned.get(batch.last_offset, batch) for found in log.segments.values() for batch in found]


def log_after(directory: Path, log: Damaged, assigned: Mapping[int, AnyBatch]) -> dict[int, list[AnyBatch]]:
    """The cleaned segments with the damaged batches replaced; each of those must be there once, byte for byte."""
    after = {}
    for segment in list_segments(directory):
        content = segment.read(".log")
        if content == log.contents.get(segment.base_offset):
            after[segment.base_offset] = [
                assigned.get(batch.last_offset, batch) for batch in log.segments[segment.base_offset]
            ]
            continue
        following = next((s.base_offset for s in list_segments(directory) if s.base_offset > segment.base_offset), None)
        batches: list[AnyBatch] = []
        for offset, damaged_bytes in log.bad.items():
            if segment.base_offset <= offset and (following is None or offset < following):
                assert content.count(damaged_bytes) == 1
                readable, _, content = content.partition(damaged_bytes)
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
    """A batch with the same offsets and producer, and any keys and values."""

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
    """One damaged log, cleaned and looked at under several assignments; False where there was nothing to clean."""
    chooser = random.Random(seed)
    end = write_random_log(directory, seed, shape)
    dirty = None
    if chooser.random() < 0.5:
        # A clean part is one that was cleaned: every tombstone that is left in it has nothing below it to hide.
        clean_once(directory)
        dirty = chooser.choice([None, chooser.randrange(end), chooser.randrange(end)])
    log = damage(directory, chooser, positions)
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
    if shape.transactional:
        assignments += [a_marker(chooser) for _ in range(4)]
    for assignment in assignments:
        assigned = {offset: assignment(original[offset]) for offset in log.bad}
        before = latest_values(log_before(log, assigned))
        after = log_after(directory, log, assigned)
        assert latest_values([b for found in after.values() for b in found]) == before
    assigned = {offset: other_records(chooser, shape.keys)(original[offset]) for offset in log.bad}
    mended_and_cleaned_again(directory, log, assigned, replace(given, dirty=next_dirty(directory, swap)))
    return True


def clean_once(directory: Path) -> None:
    swap = clean_keeping(directory, replace(LATE, now_ms=START_MS, segment_bytes=900))
    if swap is not None:
        put_in_place(swap)


def next_dirty(directory: Path, swap: PreparedSwap) -> int:
    """The checkpoint, or below it the last segment that is not active: the dirty part of a round to come."""
    last = max((s.base_offset for s in list_segments(directory)[:-1]), default=0)
    return min(last, swap.next_dirty_offset)


def mended_and_cleaned_again(directory: Path, log: Damaged, assigned: Mapping[int, AnyBatch], given: Round) -> None:
    """What was unreadable can be read again; the next rounds, from the checkpoint that was left, end right too."""
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
    return [8, 9, 10, 11, 16, 17, 25, 40, size - 1]


@pytest.mark.parametrize("positions", [covered, anything_but_the_offset])
@pytest.mark.parametrize("transactional", [0, 0.5])
def test_whatever_unreadable_batches_hold_no_latest_value_is_made_wrong(tmp_path, transactional, positions):
    cleaned = 0
    for seed in range(40):
        shape = LogShape(
            keys=random.Random(seed).choice([6, 30]),
            tombstones=0.35,
            transactional=transactional,
            segment_bytes=900,
            horizons=0.5,
            gaps=0.05,
        )
        cleaned += checked(seed, tmp_path / f"t-{seed}", shape, positions)
    assert cleaned > 20
