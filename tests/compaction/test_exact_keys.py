"""Comparison of whole keys: keys that have the same XXH3 hash under a known seed."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import xxhash

from sediment.compaction import chunk_reader, cleaner, exact_keys
from sediment.compaction.clean_log import CleaningMode, clean_log
from sediment.compaction.cleanable_range import cleanable_range
from sediment.compaction.corrupt_regions import find_corrupt_regions
from sediment.compaction.grouping import CleaningPlan, plan_cleaning
from sediment.segment_io.errors import HashCollisionError, MemoryBudgetError
from sediment.segment_io.format import hashing
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import DryRunFs, Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import open_view
from tests.compaction.cleanings import ALL_CODECS, NOW, PARTITION, Round, batch_of, flip, put_in_place, write_log
from tests.compaction.test_legacy_cleaning import legacy_shape
from tests.corpus import assert_same_log
from tests.jobs.log_dirs import tree
from tests.logs import START_MS, LogShape, write_random_log
from tests.twin import cleaner as twin
from tests.twin.batches import Record, encode_batch
from tests.twin.segments import file_batches

SEED = 0x1234_5678_9ABC_DEF0
_MASK = (1 << 64) - 1


def pair_of_one_hash(tail: bytes = b"sixteen bytes...") -> tuple[bytes, bytes]:
    """Return two keys of 32 bytes with one 128-bit hash under SEED.

    Of their first 16 bytes the hash keeps the product of two masked words and their sum; each key makes another factor
    zero, and the sums are equal.
    """
    masks = np.frombuffer(hashing.hash_secrets(0)[:16].tobytes(), dtype="<u8")
    zero_first, zero_second = (int(masks[0]) + SEED) & _MASK, (int(masks[1]) - SEED) & _MASK
    other = 0x0123_4567_89AB_CDEF
    balance = (zero_first + other - zero_second) & _MASK
    first, second = (
        low.to_bytes(8, "little") + high.to_bytes(8, "little") + tail
        for low, high in ((zero_first, other), (balance, zero_second))
    )
    return first, second


ONE, OTHER = pair_of_one_hash()


def plan_of(directory, given: Round = NOW, **config) -> CleaningPlan:
    fs = Fs()
    settings = replace(given.config(), **config)
    view = open_view(
        list_log(PARTITION, directory, fs),
        PartitionCheckpoints(first_dirty=given.dirty),
        fs,
        now_ms=given.now_ms,
        producer_id_expiration_ms=settings.producer_id_expiration_ms,
    )
    cleanable = cleanable_range(view, settings, now_ms=given.now_ms, force=True)
    return plan_cleaning(view, cleanable, settings, now_ms=given.now_ms)


def cleaned(directory, given: Round = NOW, *, exact: bool, name: str = "cleaned", **options):
    """Return a cleaned copy of `directory`."""
    copy = directory.with_name(f"{name}-{exact}")
    shutil.copytree(directory, copy)
    put_in_place(clean_log(plan_of(copy, given), Fs(), Attempt("r", "0"), CleaningMode(exact_keys=exact, **options)))
    return copy


def cleaned_by_the_twin(directory, given: Round = NOW):
    copy = directory.with_name("twin")
    shutil.copytree(directory, copy)
    twin.clean_directory(
        copy, config=given.keys(), now_ms=given.now_ms, first_dirty_offset=given.dirty, map_bytes=given.map_bytes
    )
    return copy


def survivors(directory) -> list[tuple[bytes, bytes]]:
    logs = [path.read_bytes() for path in sorted(directory.glob("*.log"))]
    batches = [batch for log in logs for _, batch in file_batches(log) if not batch.is_control]
    return [(record.key, record.value) for batch in batches for record in batch.records()]


@pytest.fixture
def seeds(monkeypatch):
    """Return the list of seeds drawn: SEED, under which ONE and OTHER collide, and then others."""
    drawn: list[int] = []

    def draw() -> int:
        drawn.append(SEED if len(drawn) % 2 == 0 else random.Random(len(drawn)).getrandbits(63))
        return drawn[-1]

    monkeypatch.setattr(cleaner, "draw_seed", draw)
    return drawn


def always_seed(monkeypatch) -> None:
    monkeypatch.setattr(cleaner, "draw_seed", lambda: SEED)


def compressed(offset, key, codec):
    record = Record(offset, START_MS + offset, key, b"v")
    return encode_batch([record], base_offset=offset, leader_epoch=0, codec=codec)


def aborted(offset, key):
    transaction = {"producer_id": 5, "producer_epoch": 0, "transactional": True, "leader_epoch": 0}
    data = encode_batch([Record(offset, START_MS, key, b"a")], base_offset=offset, base_sequence=0, **transaction)
    marker = Record(offset + 1, START_MS, b"\0\0\0\0", b"\0" * 6)
    return [data, encode_batch([marker], base_offset=offset + 1, control=True, **transaction)]


LOGS = {
    "plain": {0: [batch_of(0, ONE), batch_of(1, b"k"), batch_of(2, OTHER, b"w")]},
    "compressed": {0: [compressed(n, key, n % 4 + 1) for n, key in enumerate((ONE, b"k", OTHER, b"k"))]},
    "segments": {0: [batch_of(0, ONE)], 10: [batch_of(10, b"k")], 20: [batch_of(20, OTHER)]},
    "scanned": {0: [batch_of(0, ONE), *aborted(1, ONE), batch_of(3, b"k"), batch_of(4, OTHER)]},
    "careful": {0: [batch_of(offset, key) for offset, key in ((0, ONE), (3, b"k"), (2, b"l"), (9, OTHER), (5, b"k"))]},
}


def test_the_keys_have_one_hash_by_the_library_too():
    assert ONE != OTHER
    assert xxhash.xxh3_128_intdigest(ONE, SEED) == xxhash.xxh3_128_intdigest(OTHER, SEED)
    assert xxhash.xxh3_128_intdigest(ONE, SEED + 1) != xxhash.xxh3_128_intdigest(OTHER, SEED + 1)


@pytest.mark.parametrize("given", [NOW, Round(NOW.now_ms, map_bytes=24 * 20)], ids=["unbounded", "bounded"])
@pytest.mark.parametrize("log", LOGS)
def test_keys_of_one_hash_are_told_apart_where_whole_keys_are_compared(tmp_path, seeds, log, given):
    directory = write_log(tmp_path / "t-0", LOGS[log])
    expected = cleaned_by_the_twin(directory, given)
    exactly = cleaned(directory, given, exact=True)
    assert dict(survivors(expected)).keys() >= {ONE, OTHER}
    assert len(seeds) == (4 if log == "careful" and given is NOW else 2)
    assert sorted(path.name for path in exactly.iterdir()) == sorted(path.name for path in expected.iterdir())
    assert_same_log(exactly, expected, log == "compressed")


@pytest.mark.parametrize("map_bytes", [None, 24 * 20])
@pytest.mark.parametrize("log", LOGS)
def test_keys_of_one_hash_are_one_key_if_hashes_are_compared(tmp_path, monkeypatch, log, map_bytes):
    always_seed(monkeypatch)
    directory = write_log(tmp_path / "t-0", LOGS[log])
    found = dict(survivors(cleaned(directory, replace(NOW, map_bytes=map_bytes), exact=False)))
    assert (ONE in found, OTHER in found) == (False, True)


def test_a_key_of_the_clean_part_is_distinguished_from_one_of_the_dirty_part(tmp_path, seeds):
    directory = write_log(tmp_path / "t-0", {0: [batch_of(0, ONE), batch_of(1, b"k")], 10: [batch_of(10, OTHER)]})
    given = replace(NOW, dirty=10)
    assert ONE not in dict(survivors(cleaned(directory, given, exact=False)))
    seeds.clear()
    assert {ONE, OTHER} <= dict(survivors(cleaned(directory, given, exact=True))).keys()


def test_two_keys_of_the_clean_part_need_not_be_distinguished(tmp_path, seeds):
    directory = write_log(tmp_path / "t-0", {0: [batch_of(0, ONE), batch_of(1, OTHER)], 10: [batch_of(10, b"k")]})
    assert {ONE, OTHER} <= dict(survivors(cleaned(directory, replace(NOW, dirty=10), exact=True))).keys()
    assert seeds == [SEED]


def test_keys_after_a_corrupt_batch_are_distinguished_too(tmp_path, seeds):
    batches = [batch_of(0, ONE), batch_of(1, b"k"), batch_of(2, b"k"), batch_of(3, OTHER)]
    directory = write_log(tmp_path / "t-0", {0: batches})
    flip(directory / f"{0:020d}.log", len(batches[0]) + 66)
    assert find_corrupt_regions(plan_of(directory), Fs(), lambda _count: None).by_segment
    # The corrupt batch is met under another seed.
    seeds.append(0)
    put_in_place(
        clean_log(plan_of(directory), Fs(), Attempt("r", "0"), CleaningMode(exact_keys=True, keep_unreadable=True))
    )
    for batch in (batches[0], batches[3]):
        assert batch in (directory / f"{0:020d}.log").read_bytes()
    assert len(seeds) == 4


def test_keys_that_collide_under_every_seed_leave_the_partition_as_it_is(tmp_path, monkeypatch):
    always_seed(monkeypatch)
    directory = write_log(tmp_path / "t-0", LOGS["segments"])
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(HashCollisionError) as raised:
        clean_log(plan_of(directory), Fs(), Attempt("r", "0"), CleaningMode(exact_keys=True))
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert raised.value.offset == 0
    for word in ("t-0", "offset 0", "--key-equality hash"):
        assert word in str(raised.value)


def test_random_logs_are_cleaned_as_by_the_twin(tmp_path, monkeypatch):
    for seed in range(24):
        chooser = random.Random(seed)
        monkeypatch.setattr(chunk_reader, "CHUNK_BYTES", chooser.choice([200, 1 << 20]))
        shape = LogShape(codecs=chooser.choice([(0,), ALL_CODECS]), transactional=chooser.choice([0, 0.4]), batches=60)
        folder = tmp_path / str(seed)
        folder.mkdir()
        write_random_log(folder / "t-0", seed, shape)
        given = Round(START_MS + 200_000, map_bytes=chooser.choice([None, 24 * 20]))
        ours, twins = cleaned(folder / "t-0", given, exact=True), cleaned_by_the_twin(folder / "t-0", given)
        assert_same_log(ours, twins, shape.codecs != (0,))


@pytest.mark.parametrize("ahead_chunks", [0, 8])
def test_old_formats_and_batches_not_decompressed_ahead_are_cleaned_alike(tmp_path, monkeypatch, ahead_chunks):
    monkeypatch.setattr(chunk_reader, "_AHEAD_CHUNKS", ahead_chunks)
    for seed in range(8):
        folder = tmp_path / str(seed)
        folder.mkdir()
        shape = legacy_shape(random.Random(seed)) if seed % 2 else LogShape(codecs=ALL_CODECS, batches=60)
        write_random_log(folder / "t-0", seed, shape)
        given = Round(START_MS + 200_000, map_bytes=None if seed % 4 < 2 else 24 * 20)
        exactly, by_hash = (cleaned(folder / "t-0", given, exact=exact) for exact in (True, False))
        assert tree(exactly) == tree(by_hash)


def test_more_keys_than_the_first_buffers_hold_are_all_compared(tmp_path, seeds):
    keys = [b"%08d" % n + b"x" * (n % 50) for n in range(30_000)]
    batches = []
    for start in range(0, len(keys), 6000):
        records = [Record(start + n, START_MS, key, b"v") for n, key in enumerate(keys[start : start + 6000])]
        batches.append(encode_batch(records, base_offset=start, leader_epoch=0))
    directory = write_log(tmp_path / "t-0", {0: batches, 40_000: [batch_of(40_000, ONE), batch_of(40_001, OTHER)]})
    found = cleaned(directory, replace(NOW, segment_bytes=1 << 24), exact=True)
    assert [key for key, _ in survivors(found)] == [*keys, ONE, OTHER]
    assert len(seeds) == 2


def test_keys_that_do_not_fit_the_memory_of_a_task_leave_the_partition_as_it_is(tmp_path):
    keys = [b"%06d" % n * 100 for n in range(3000)]
    directory = write_log(tmp_path / "t-0", {0: [batch_of(n, key) for n, key in enumerate(keys)]})
    before = sorted(path.name for path in directory.iterdir())
    given = replace(NOW, segment_bytes=1 << 24)
    enough = plan_of(directory, given, task_memory_bytes=9_500_000)
    little = plan_of(directory, given, task_memory_bytes=6_500_000)
    clean_log(enough, DryRunFs(), Attempt("r", "0"), CleaningMode(exact_keys=True))
    clean_log(little, DryRunFs(), Attempt("r", "0"))
    with pytest.raises(MemoryBudgetError):
        clean_log(little, DryRunFs(), Attempt("r", "0"), CleaningMode(exact_keys=True))
    assert sorted(path.name for path in directory.iterdir()) == before


def test_keys_are_equal_if_their_bytes_are(tmp_path):
    chooser = random.Random(3)
    for _ in range(2000):
        length = chooser.choice([0, 1, 7, 8, 9, 16, 23, 40])
        key = chooser.randbytes(length)
        changed = bytearray(key)
        for _ in range(chooser.randrange(2)):
            if changed:
                changed[chooser.randrange(length)] ^= 1 << chooser.randrange(8)
        stored = np.frombuffer(len(key).to_bytes(4, "big") + key, dtype=np.uint8)
        other = np.frombuffer(bytes(changed) + b"\0", dtype=np.uint8)
        found = exact_keys._is_key(stored.ctypes.data, other.ctypes.data, len(changed))
        assert found == (bytes(changed) == key)
        assert not exact_keys._is_key(stored.ctypes.data, other.ctypes.data, length + 1)
