"""Threads that compare two logs in ranges of offsets count the differences that one thread finds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.sources import find_sources
from sediment.verification import header_scan, record_rules
from sediment.verification.comparison import scan_log_headers
from sediment.verification.record_rules import Log, compare_records, count_in_ranges, offset_ranges
from sediment.verification.tally import Tally
from tests.twin.batches import Record, encode_batch, parse_batch, sign_batch
from tests.twin.legacy import encode_legacy_record
from tests.twin.verification import Rules
from tests.verification.test_record_rules import NOW_MS, changed_log, pair_rules, random_log, written

LIMIT_BYTES = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranges")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(header_scan, "PART_BYTES", 300)


def in_parts(folder: Path, batches: list[bytes], segments: int, threads: int) -> Log:
    """Write a log that can be divided at nearly every batch."""
    return written(folder / "t-0", batches, segments, threads, interval_bytes=0)


def long_log(random: Random) -> list[bytes]:
    """Return a log of several random logs, one after the other."""
    batches: list[bytes] = []
    for _ in range(3):
        start = parse_batch(batches[-1]).next_offset if batches else 0
        batches += [moved(batch, start) for batch in random_log(random)]
    return batches


def moved(data: bytes, by: int) -> bytes:
    """Return the batch with other offsets; the checksum does not cover the base offset."""
    return (int.from_bytes(data[:8], "big") + by).to_bytes(8, "big") + data[8:]


def random_rules(random: Random, end: int) -> Rules:
    limit = random.randrange(end + 1)
    return Rules(
        first_dirty=random.randrange(limit + 1),
        limit=limit,
        end=random.randrange(limit, end + 1),
        is_claimed=random.random() < 0.7,
        stable_before=random.choice((end, random.randrange(end + 1))),
        stable_after=random.choice((end, random.randrange(end + 1))),
        now_ms=NOW_MS,
    )


def both_ways(folder: Path, before: list[bytes], after: list[bytes], rules: Rules, random: Random):
    """Return the differences that one thread finds, and the counts of several threads."""
    segments, threads = random.choice((1, 2, 4)), random.choice((2, 3, 4))
    logs = [in_parts(folder / name, log, segments, threads) for name, log in (("b", before), ("a", after))]
    tally = Tally()
    compare_records(*logs, pair_rules(rules), LIMIT_BYTES, Fs(), tally)
    return tally, count_in_ranges(*logs, pair_rules(rules), LIMIT_BYTES, Fs(), threads)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_ranges_have_the_differences_of_the_whole_logs(folder, seed):
    random = Random(seed)
    before = long_log(random)
    after = changed_log(random, before)
    rules = random_rules(random, parse_batch(before[-1]).next_offset)
    tally, counts = both_ways(folder, before, after, rules, random)
    assert counts is None or counts == +tally.counts


@pytest.mark.parametrize("seed", range(8))
def test_a_single_lost_or_left_record_is_counted_whatever_the_ranges(folder, seed):
    random = Random(seed)
    keys = [str(random.randrange(12)).encode() for _ in range(90)]
    records = [Record(at, 0, key, None if random.random() < 0.1 else b"v") for at, key in enumerate(keys)]
    before = [encode_batch(records[at : at + 3], base_offset=at) for at in range(0, 90, 3)]
    last = {key: at for at, key in enumerate(keys)}
    kept = {at for at in range(90) if at >= 75 or max(n for n in range(75) if keys[n] == keys[at]) == at}
    rules = Rules(random.randrange(75), 75, 75, True, 90, 90, NOW_MS)
    assert max(last.values()) == 89
    for change in (set(), {random.choice(sorted(kept))}, {random.choice(sorted(set(range(75)) - kept))}):
        survivors = [records[at] for at in sorted(kept ^ change)]
        after = [
            encode_batch(mine, base_offset=at, last_offset=at + 2)
            for at in range(0, 90, 3)
            if (mine := [record for record in survivors if at <= record.offset < at + 3])
        ]
        tally, counts = both_ways(folder, before, after, rules, random)
        assert counts == +tally.counts
        assert bool(set(counts) - {"producers", "superseded"}) <= bool(change)


def test_equal_logs_are_read_once_and_others_twice(folder, monkeypatch):
    random = Random(3)
    before = long_log(random)
    rules = Rules(0, 0, 0, False, 10**6, 10**6, NOW_MS)
    passes = []
    walk = record_rules._Walk.fold
    monkeypatch.setattr(record_rules._Walk, "fold", lambda *args: passes.append(args[0]._offsets) or walk(*args))
    for after, expected in ((before, 2), (before[:-1], 3)):
        passes.clear()
        tally = Tally()
        logs = [in_parts(folder / name, log, 4, 2) for name, log in (("b", before), ("a", after))]
        compare_records(*logs, pair_rules(rules), LIMIT_BYTES, Fs(), tally, 2)
        assert len(passes) == expected
        assert bool(tally.counts) == (expected == 3)


def test_logs_that_cannot_be_divided_are_compared_by_one_thread(folder):
    records = [Record(at, 0, b"k%d" % at, b"v" * 50) for at in range(40)]
    ascending = [encode_batch(records[at : at + 2], base_offset=at) for at in range(0, 40, 2)]
    swapped = [batch for at in range(0, 20, 2) for batch in (ascending[at + 1], ascending[at])]
    corrupt = [*ascending[:5], ascending[5][:-1] + b"\xff", *ascending[6:]]
    legacy = [encode_legacy_record(record, magic=1) for record in records[:20]]
    merged = [encode_batch(records[at : at + 10], base_offset=at) for at in range(0, 40, 10)]
    rules = Rules(0, 0, 0, False, 40, 40, NOW_MS)
    for before, after in ((swapped, ascending), (ascending, swapped), (corrupt, corrupt), (legacy, legacy)):
        logs = [written(folder / name / "t-0", log, 1, 2) for name, log in (("b", before), ("a", after))]
        assert min(len(log.parts) for log in logs) == 0
        assert count_in_ranges(*logs, pair_rules(rules), LIMIT_BYTES, Fs(), 2) is None
    logs = [in_parts(folder / name, log, 1, 4) for name, log in (("b", ascending), ("a", merged))]
    assert count_in_ranges(*logs, pair_rules(rules), LIMIT_BYTES, Fs(), 4) is None
    logs = [in_parts(folder / name, ascending, 2, 2) for name in ("b", "a")]
    assert count_in_ranges(*logs, pair_rules(rules), LIMIT_BYTES, Fs(), 2) == Counter()
    assert count_in_ranges(*logs, replace(pair_rules(rules), may_be_reencoded=True), LIMIT_BYTES, Fs(), 2) is None


def test_an_undecodable_batch_that_is_only_in_one_log_is_a_difference_without_an_offset(folder):
    batches = [encode_batch([Record(at, 0, b"k%d" % at, b"v")], base_offset=at) for at in range(3)]
    batches[1] = sign_batch(batches[1][:61] + b"\xff" * 5 + batches[1][66:])
    for before, after, what in (
        (batches, batches[::2], "an unreadable batch of BEFORE is missing"),
        (batches[::2], batches, "a batch of AFTER cannot be read"),
    ):
        logs = [written(folder / name / "t-0", log, 1, 1) for name, log in (("b", before), ("a", after))]
        tally = Tally()
        compare_records(*logs, pair_rules(Rules(0, 0, 0, False, 3, 3, NOW_MS)), LIMIT_BYTES, Fs(), tally, 1)
        (found,) = [each for each in tally.first() if each.check == "crc"]
        assert (found.offset, found.what.startswith(what)) == (None, True)


def test_keys_that_do_not_fit_the_memory_of_the_ranges_are_compared_by_one_thread(folder):
    records = [Record(at, 0, b"%d" % at, b"v") for at in range(4000)]
    batches = [encode_batch(records[at : at + 50], base_offset=at) for at in range(0, 4000, 50)]
    logs = [in_parts(folder / name, batches, 2, 2) for name in ("b", "a")]
    rules = pair_rules(Rules(0, 4000, 4000, False, 4000, 4000, NOW_MS))
    assert count_in_ranges(*logs, rules, 0, Fs(), 2) is None
    in_two = 2 * 4096 * 24 * 3 // 2  # each range fits, but not all keys in the table of the first range
    assert count_in_ranges(*logs, rules, in_two, Fs(), 2) is None
    assert count_in_ranges(*logs, rules, 2 * in_two, Fs(), 2) == Counter()


@pytest.mark.parametrize("seed", range(10))
def test_threads_collect_the_same_facts_from_headers(folder, seed):
    random = Random(seed)
    before = long_log(random)
    directory = folder / "facts" / "t-0"
    one = in_parts(folder / "facts", before, random.choice((1, 3)), 1)
    (source,) = find_sources([directory], Fs())
    several = scan_log_headers(source, Fs(), 3)
    assert len(several.parts) > 2
    assert several.parts[0].first_offset == parse_batch(before[0]).base_offset
    for facts in (one.facts, several.facts):
        facts.sample.clear()
    for name in ("bases", "producers", "markers", "outcomes"):
        assert getattr(one.facts.transactions, name).tolist() == getattr(several.facts.transactions, name).tolist()
    assert sorted(one.facts.remembered()) == sorted(several.facts.remembered())
    for name in ("segments", "records", "unreadable", "has_producers", "_producers"):
        assert getattr(one.facts, name) == getattr(several.facts, name)


def test_ranges_begin_with_parts_of_before_and_have_about_the_same_size(folder):
    records = [Record(at, 0, b"k", b"v" * 100) for at in range(60)]
    batches = [encode_batch([record], base_offset=record.offset) for record in records]
    before = in_parts(folder / "b", batches, 1, 2)
    after = in_parts(folder / "a", batches[45:], 1, 2)
    ranges = offset_ranges(before.parts, after.parts, 3)
    assert [low for low, _ in ranges[1:]] == [high for _, high in ranges[:-1]]
    lows = {part.first_offset for part in before.parts}
    assert all(low in lows for low, _ in ranges[1:])
    first, second = (low for low, _ in ranges[1:])
    assert 20 <= first <= 30
    assert 44 <= second <= 50
    assert len(offset_ranges(before.parts, (), 3)) == len(offset_ranges(before.parts, after.parts, 1)) == 1
