"""The walk over the records of two logs finds what the rules in plain Python find, with any limit of memory."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.sources import find_sources
from sediment.verification import rules as r
from sediment.verification.cleaned_range import CleanedRange
from sediment.verification.comparison import scan_log_headers
from sediment.verification.record_rules import Log, compare_records
from sediment.verification.tally import Tally
from tests.segments import marker_bytes, write_segment
from tests.twin.batches import ControlType, Record, RecordHeader, encode_batch, encode_empty_batch, parse_batch
from tests.twin.verification import Rules, record_differences

NOW_MS = 10_000
COMPARED = ("records", "lost", "tombstones", "superseded", "latest_committed", "latest_uncommitted")
CODECS = (0, 0, 0, 3, 4)


def random_log(random: Random) -> list[bytes]:
    """Return batches with few keys, some of them in transactions, with gaps between their offsets."""
    batches, offset, opened = [], random.randrange(3), set()
    for _ in range(random.randrange(2, 14)):
        if opened and random.random() < 0.4:
            producer_id = random.choice(sorted(opened))
            opened.discard(producer_id)
            kind = random.choice((ControlType.ABORT, ControlType.COMMIT))
            batches.append(marker_bytes(offset, kind, producer_id=producer_id))
            offset += 1
            continue
        producer_id = random.choice((-1, 1, 2))
        if producer_id >= 0:
            opened.add(producer_id)
        records = []
        for number in range(random.randrange(1, 5)):
            records.append(random_record(random, offset + number))
        batches.append(
            encode_batch(
                records,
                base_offset=offset,
                codec=random.choice(CODECS),
                delete_horizon_ms=random.choice((None, None, NOW_MS - 1, NOW_MS + 1)),
                producer_id=producer_id,
                producer_epoch=0 if producer_id >= 0 else -1,
                base_sequence=offset if producer_id >= 0 else -1,
                transactional=producer_id >= 0,
            )
        )
        offset += len(records) + random.randrange(2)
    return batches


def random_record(random: Random, offset: int) -> Record:
    key = None if random.random() < 0.1 else bytes([random.randrange(4)]) * random.choice((1, 5, 20))
    value = None if random.random() < 0.3 else bytes([random.randrange(256)]) * random.randrange(20)
    headers = () if random.random() < 0.7 else (RecordHeader(b"h", random.choice((None, b"", b"x"))),)
    return Record(offset, random.randrange(1000), key, value, headers)


def changed_log(random: Random, batches: list[bytes]) -> list[bytes]:
    """Return the log without some of its records and batches, and with a few other records."""
    dropped, changed = random.choice((0.1, 0.5)), random.choice((0.0, 0.1))
    found = []
    for data in batches:
        batch = parse_batch(data)
        if random.random() < 0.1:
            continue
        if batch.is_control:
            found.append(data)
            continue
        records = [record for record in batch.records() if random.random() > dropped]
        records = [
            replace(random_record(random, record.offset), key=random.choice((record.key, b"k")))
            if random.random() < changed
            else record
            for record in records
        ]
        if not records:
            found.append(encode_empty_batch(batch))
            continue
        found.append(
            encode_batch(
                records,
                base_offset=batch.base_offset,
                last_offset=batch.last_offset,
                codec=batch.codec,
                delete_horizon_ms=batch.delete_horizon_ms,
                producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch,
                base_sequence=batch.base_sequence + (random.random() < changed and batch.producer_id >= 0),
                transactional=batch.is_transactional,
            )
        )
    return found


def written(
    directory: Path, batches: list[bytes], segments: int = 1, threads: int = 1, interval_bytes: int = 4096
) -> Log:
    shutil.rmtree(directory, ignore_errors=True)
    size = -(-len(batches) // segments)
    for number, at in enumerate(range(0, len(batches), max(size, 1)) or [0]):
        base_offset = 0 if number == 0 else parse_batch(batches[at]).base_offset
        write_segment(directory, base_offset, batches[at : at + size], index_interval_bytes=interval_bytes)
    (source,) = find_sources([directory], Fs())
    return scan_log_headers(source, Fs(), threads)


def walked(folder: Path, before: list[bytes], after: list[bytes], rules: r.PairRules, limit_bytes: int) -> Tally:
    logs = [written(folder / "before" / "t-0", before), written(folder / "after" / "t-0", after)]
    tally = Tally()
    compare_records(*logs, rules, limit_bytes, Fs(), tally)
    return tally


def pair_rules(rules: Rules) -> r.PairRules:
    return r.PairRules(
        cleaned=CleanedRange(rules.first_dirty, rules.limit, rules.end, rules.end, rules.is_claimed, ()),
        stable_before=rules.stable_before,
        stable_after=rules.stable_after,
        legacy_end=-INT64_MAX,
        corrupt_from=None,
        delete_retention_ms=1000,
        producer_id_expiration_ms=None,
        now_ms=rules.now_ms,
        now_is_exact=False,
        since_ms=None,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_walk_finds_what_the_rules_in_plain_python_find(folder, seed):
    random = Random(seed)
    before = random_log(random)
    after = changed_log(random, before)
    end = parse_batch(before[-1]).next_offset
    limit = random.randrange(end + 1)
    rules = Rules(
        first_dirty=random.randrange(limit + 1),
        limit=limit,
        end=random.randrange(limit, end + 1),
        is_claimed=random.random() < 0.7,
        stable_before=random.choice((end, random.randrange(end + 1))),
        stable_after=random.choice((end, random.randrange(end + 1))),
        now_ms=NOW_MS,
    )
    expected = list(record_differences(*(list(map(parse_batch, log)) for log in (before, after)), rules))
    tally = walked(folder, before, after, pair_rules(rules), 0)
    counts = Counter(check for check, *_ in expected)
    assert {check: tally.counts[check] for check in COMPARED} == {check: counts[check] for check in COMPARED}
    few = {check for check in COMPARED if counts[check] <= 10}
    shown = {(d.check, d.offset, d.what) for d in tally.first() if d.check in few}
    assert shown == {difference for difference in expected if difference[0] in few}


def test_keys_that_do_not_fit_the_memory_are_walked_in_parts(tmp_path):
    random = Random(7)
    records = [Record(offset, 0, str(random.randrange(3000)).encode(), b"v") for offset in range(6000)]
    before = [encode_batch(records[at : at + 50], base_offset=at) for at in range(0, 6000, 50)]
    after = changed_log(random, before)
    rules = pair_rules(Rules(3000, 5500, 5500, True, 6000, 6000, NOW_MS))
    small, large = (walked(tmp_path, before, after, rules, limit) for limit in (0, 1 << 24))
    assert small.counts == large.counts
    assert small.first() == large.first()
    assert min(large.counts[check] for check in ("lost", "superseded", "latest_committed")) > 100


def test_batches_that_do_not_ascend_are_compared_in_the_order_of_offsets(tmp_path):
    records = [Record(offset, 0, str(offset % 7).encode(), b"v") for offset in range(60)]
    batches = [encode_batch(records[at : at + 3], base_offset=at) for at in range(0, 60, 3)]
    swapped = [batch for at in range(0, 20, 2) for batch in (batches[at + 1], batches[at])]
    rules = pair_rules(Rules(0, 60, 60, False, 60, 60, NOW_MS))
    assert walked(tmp_path, swapped, batches, rules, 0).counts == Counter()
    assert walked(tmp_path, batches, swapped, rules, 0).counts == Counter()
    assert walked(tmp_path, swapped, swapped[1:], rules, 0).counts == Counter()


def copies(*tags: bytes) -> list[bytes]:
    """Return batches at the same offsets, 4 and 5, with the same keys and other values (KAFKA-19407)."""
    return [encode_batch([Record(4 + n, 0, b"ab"[n : n + 1], tag) for n in range(2)], base_offset=4) for tag in tags]


@pytest.mark.parametrize("end", [6, 8])
def test_offsets_that_are_in_a_log_twice_stay_twice_and_neither_supersedes_the_other(tmp_path, end):
    first = encode_batch([Record(n, 0, b"k%d" % n, b"v") for n in range(4)], base_offset=0)
    last = encode_batch([Record(6 + n, 0, b"z%d" % n, b"v") for n in range(2)], base_offset=6)
    rules = pair_rules(Rules(0, end, end, True, 8, 8, NOW_MS))
    one, two = copies(b"one", b"two")
    before = [first, one, two, last]
    assert walked(tmp_path, before, before, rules, 0).counts == Counter()
    for after in ([first, one, last], [first, two, last]):
        lost = walked(tmp_path, before, after, rules, 0).counts
        assert lost["lost"] == 2 and lost["superseded"] == 0
    assert walked(tmp_path, before, [first, two, one, last], rules, 0).counts["records"] > 0


def test_a_later_record_supersedes_both_copies_of_an_offset(tmp_path):
    later = encode_batch([Record(6 + n, 0, b"ab"[n : n + 1], b"new") for n in range(2)], base_offset=6)
    rules = pair_rules(Rules(0, 8, 8, True, 8, 8, NOW_MS))
    before = [*copies(b"one", b"two"), later]
    assert walked(tmp_path, before, [later], rules, 0).counts == Counter()
    assert walked(tmp_path, before, before, rules, 0).counts["superseded"] == 4
    # One copy of a batch may go while the other one stays for another reason, such as being its producer's last.
    assert walked(tmp_path, before, [encode_empty_batch(parse_batch(before[1])), later], rules, 0).counts == Counter()
