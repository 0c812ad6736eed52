"""Messages of magic 0 and 1 in the cleaner, against the plain Python twin."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sediment.compaction import chunk_reader
from sediment.compaction.clean_log import clean_log
from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import Fs
from tests.compaction.cleanings import Round, clean_both, flip, prepare, put_in_place, renumbered, write_log
from tests.compaction.splittings import Splitting, assert_another_content_is_noticed, assert_same_as_whole, plan_of
from tests.logs import START_MS, LogShape, write_random_log
from tests.twin import cleaner as twin
from tests.twin.batches import Record, encode_batch
from tests.twin.errors import IllegalStateError
from tests.twin.legacy import encode_legacy, encode_legacy_record
from tests.twin.segments import LegacyBatch, file_batches

LEGACY_CODECS = (0, 1, 2, 3)
MAGICS = ((0,), (1,), (0, 1), (1, 2), (0, 1, 2))


def twin_gives_up(directory: Path, given: Round) -> bool:
    """Return True if Kafka would throw: a last message would have to stay empty."""
    copy = directory.with_name(directory.name + "-try")
    shutil.copytree(directory, copy)
    try:
        twin.clean_directory(
            copy, config=given.keys(), now_ms=given.now_ms, first_dirty_offset=given.dirty, map_bytes=given.map_bytes
        )
    except IllegalStateError:
        return True
    finally:
        shutil.rmtree(copy)
    return False


def legacy_shape(chooser: random.Random) -> LogShape:
    magics = chooser.choice(MAGICS)
    return LogShape(
        codecs=chooser.choice([(0,), LEGACY_CODECS, LEGACY_CODECS]),
        transactional=chooser.choice([0, 0.4]) if 2 in magics else 0,
        idempotent=0.2,
        keys=chooser.choice([5, 30]),
        batches=chooser.choice([20, 60]),
        magics=magics,
    )


@pytest.mark.parametrize("block", range(6))
def test_random_logs_of_old_formats_come_out_as_the_twin_has_them(tmp_path, block):
    cleaned = 0
    for seed in range(20 * block, 20 * block + 20):
        chooser = random.Random(seed)
        shape = legacy_shape(chooser)
        directory = tmp_path / f"t-{seed}"
        end = write_random_log(directory, seed, shape)
        now_ms = START_MS + chooser.choice([0, 20_000, 200_000])
        dirty = chooser.choice([None, chooser.randrange(end)])
        map_bytes = chooser.choice([None, None, 24 * 8, 24 * 20])
        for _ in range(2):
            retention_ms = chooser.choice([0, 60_000, None, INT64_MAX])
            given = Round(now_ms, chooser.choice([2500, 9000]), retention_ms, map_bytes, dirty)
            if twin_gives_up(directory, given):
                assert prepare(directory, given) is not None
                break
            end_offset = clean_both(directory, given, compressed=shape.codecs != (0,))
            if end_offset is None:
                break
            cleaned += 1
            dirty = end_offset
            now_ms += chooser.choice([1000, 70_000])
    assert cleaned > 15


@pytest.mark.parametrize("chunk_bytes", [64, 200, 1000])
def test_chunks_of_any_size_give_the_same_bytes_for_old_formats(tmp_path, monkeypatch, chunk_bytes):
    monkeypatch.setattr(chunk_reader, "CHUNK_BYTES", chunk_bytes)
    for seed in range(12):
        directory = tmp_path / f"t-{seed}"
        write_random_log(directory, seed, legacy_shape(random.Random(seed)))
        if not twin_gives_up(directory, Round(START_MS + 200_000)):
            clean_both(directory, Round(START_MS + 200_000), compressed=True)


@pytest.mark.parametrize("block", range(2))
def test_any_splits_give_the_bytes_of_the_whole_for_old_formats(tmp_path, block):
    compared = 0
    for seed in range(10 * block, 10 * block + 10):
        chooser = random.Random(seed)
        directory = tmp_path / f"t-{seed}"
        end = write_random_log(directory, seed, legacy_shape(chooser))
        dirty = chooser.choice([None, chooser.randrange(end)])
        plan = plan_of(
            directory,
            Round(START_MS + 200_000, chooser.choice([1000, 2500]), chooser.choice([1000, None]), None, dirty),
        )
        if plan is None:
            continue
        indexes = range(1, len(plan.groups))
        splitting = Splitting(
            bounds=tuple(sorted(chooser.sample(indexes, chooser.randint(0, len(indexes))))),
            run_limit=chooser.choice([1, 20, 1000]),
            ranges=chooser.choice([2, 16]),
            scanned=True,
        )
        assert_same_as_whole(directory, plan, splitting)
        compared += 1
    assert compared > 5


def legacy_log(directory: Path, *entries: bytes, end: int) -> Path:
    """Write one segment of `entries` and an active one at `end`."""
    write_log(directory, {end: [encode_batch([Record(end, START_MS, b"z", b"")], base_offset=end, leader_epoch=0)]})
    for suffix, content in ((".log", b"".join(entries)), (".index", b""), (".timeindex", b"")):
        (directory / f"{0:020d}{suffix}").write_bytes(content)
    (directory / f"{end + 1:020d}.log").unlink()
    return directory


def cleaned_log(directory: Path, given: Round) -> list[object]:
    swap = prepare(directory, given)
    assert swap is not None
    put_in_place(swap)
    return [batch for _, batch in file_batches((directory / f"{0:020d}.log").read_bytes())]


NOW = Round(START_MS + 1_000_000)


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_that_differs_from_the_first_sweeps_changes_nothing(tmp_path, magic, codec):
    def entries(key: bytes) -> bytes:
        records = [Record(offset, START_MS, key if offset == 4 else b"k", b"v") for offset in range(10)]
        return encode_legacy(records, magic=magic, codec=codec)

    directory = legacy_log(tmp_path / "t-0", entries(b"a"), end=10)
    assert_another_content_is_noticed(directory, 0, entries(b"b"))


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("magic", [0, 1])
def test_an_emptied_last_message_of_an_old_format_is_kept_as_it_is(tmp_path, magic, codec):
    last = encode_legacy([Record(7, -1 if magic == 0 else START_MS, None, b"no key")], magic=magic, codec=codec)
    first = encode_legacy([Record(0, -1 if magic == 0 else START_MS, b"a", b"1")], magic=magic)
    directory = legacy_log(tmp_path / "t-0", first, last, end=8)
    assert twin_gives_up(directory, NOW)
    plan = plan_of(directory, NOW)
    assert plan is not None
    assert_same_as_whole(directory, plan, Splitting(scanned=True))
    kept = clean_log(plan, Fs(), Attempt("dropped", "0")).groups[0].stats
    assert (kept.messages_written, kept.records_without_key) == (2, 0)
    for part in directory.glob("*.part"):
        part.unlink()
    batches = cleaned_log(directory, NOW)
    assert [batch.last_offset for batch in batches] == [0, 7]
    assert isinstance(batches[1], LegacyBatch)
    assert batches[1].data == last
    again = prepare(directory, Round(START_MS + 2_000_000))
    assert again is not None
    assert [group.parts for group in again.groups] == [()]


@pytest.mark.parametrize(("age_ms", "stays"), [(60_000, True), (60_001, False)])
def test_a_tombstone_of_an_old_format_goes_by_the_modification_times_of_segments(tmp_path, age_ms, stays):
    directory = tmp_path / "t-0"
    tombstone = encode_legacy([Record(0, START_MS, b"a", None), Record(1, START_MS, b"b", b"")], magic=1)
    write_log(directory, {10: [], 20: [encode_batch([Record(20, START_MS, b"c", b"")], base_offset=20)]})
    for suffix, content in ((".log", tombstone), (".index", b""), (".timeindex", b"")):
        (directory / f"{0:020d}{suffix}").write_bytes(content)
    clean_ms = START_MS + 500_000
    os.utime(directory / f"{10:020d}.log", ns=(clean_ms * 10**6, clean_ms * 10**6))
    old_ns = (clean_ms - age_ms + 1) * 10**6
    os.utime(directory / f"{0:020d}.log", ns=(old_ns, old_ns))
    given = Round(START_MS + 1_000_000, dirty=20, segment_bytes=10)
    shutil.copytree(directory, tmp_path / "copy")
    batches = cleaned_log(directory, given)
    assert [batch.base_offset for batch in batches] == ([0, 1] if stays else [1])
    shutil.rmtree(directory)
    (tmp_path / "copy").rename(directory)
    clean_both(directory, given, compressed=False)


# ------------------------------------------------------------------------------------------------------------ bad input
def wrapper_of(inner: bytes, *, offset: int, magic: int = 1, codec: int = 1) -> bytes:
    from tests.twin import framing

    value = framing.compress(codec, inner, magic=magic)
    return encode_legacy_record(Record(offset, START_MS, None, value), magic=magic, attributes=codec)


def inner_of(*offsets: int, magic: int = 1) -> bytes:
    records = [Record(offset, START_MS, b"k%d" % offset, b"v") for offset in offsets]
    return b"".join(encode_legacy_record(record, magic=magic) for record in records)


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (wrapper_of(wrapper_of(inner_of(0), offset=0), offset=4), "contains compressed messages"),
        (wrapper_of(b"", offset=4), "holds no messages"),
        (wrapper_of(inner_of(0, 9), offset=4), "below the offsets"),
        (wrapper_of(inner_of(3, 2, magic=0), offset=4, magic=0), "do not increase"),
        (wrapper_of(inner_of(3, 2**40, magic=0), offset=4, magic=0), "too far apart"),
        (wrapper_of(b"\0" * 8 + (3).to_bytes(4, "big") + b"\0" * 30, offset=4), "smaller"),
        (encode_legacy_record(Record(4, START_MS, None, b"no stream"), magic=1, attributes=1), "gzip"),
        (encode_legacy_record(Record(4, START_MS, None, None), magic=1, attributes=1), "no value"),
        (encode_legacy_record(Record(4, START_MS, None, b"x"), magic=1, attributes=4), "zstd"),
        (encode_legacy_record(Record(4, START_MS, None, b"x"), magic=1, attributes=5), "codec 5"),
    ],
)
@pytest.mark.parametrize("map_bytes", [None, 24 * 100])
def test_a_malformed_message_is_an_error_with_its_place_and_nothing_is_left(tmp_path, entry, what, map_bytes):
    first = encode_legacy([Record(0, START_MS, b"a", b"1")], magic=1)
    directory = legacy_log(tmp_path / "t-0", first, first, entry, end=2**33)
    before = sorted(path.name for path in directory.iterdir())
    with pytest.raises(CorruptBatchError, match=what) as raised:
        prepare(directory, Round(NOW.now_ms, map_bytes=map_bytes))
    assert raised.value.position == 2 * len(first)
    assert raised.value.partition == "t-0"
    assert sorted(path.name for path in directory.iterdir()) == before


def test_a_message_with_a_wrong_checksum_is_an_error_with_its_place(tmp_path):
    first = encode_legacy([Record(0, START_MS, b"a", b"1")], magic=0)
    directory = legacy_log(tmp_path / "t-0", first, first, first, end=9)
    flip(directory / f"{0:020d}.log", len(first) + 20)
    with pytest.raises(CorruptBatchError, match="CRC") as raised:
        prepare(directory, NOW)
    assert raised.value.position == len(first)


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("offset", [9, 2**40, -1])
def test_a_message_whose_offset_is_not_one_of_its_segment_is_an_error(tmp_path, magic, codec, offset):
    first, second = (encode_legacy([Record(n, START_MS, b"k", b"v")], magic=magic, codec=codec) for n in range(2))
    directory = legacy_log(tmp_path / "t-0", renumbered(first, offset), second, end=9)
    with pytest.raises(CorruptBatchError, match="outside its segment") as raised:
        prepare(directory, NOW)
    assert (raised.value.position, raised.value.offset) == (0, offset)


def test_no_bytes_whatever_crash_the_cleaner(tmp_path):
    failed = cleaned = 0
    for seed in range(150):
        chooser = random.Random(seed)
        records = [Record(n, START_MS, b"k%d" % (n % 3), b"v" * chooser.randrange(40)) for n in range(6)]
        magic = chooser.choice([0, 1])
        content = bytearray(encode_legacy(records, magic=magic, codec=chooser.choice(LEGACY_CODECS)))
        for _ in range(chooser.randint(1, 3)):
            content[chooser.randrange(8, len(content))] = chooser.randrange(256)
        sealed = resealed(bytes(content))
        directory = legacy_log(tmp_path / f"t-{seed}", sealed, end=2**33)
        try:
            prepare(directory, NOW)
            cleaned += 1
        except CorruptBatchError:
            failed += 1
    assert failed > 20
    assert cleaned > 20


def resealed(entries: bytes) -> bytes:
    """Return the entries with the checksums of their current bytes, as far as lengths lead to them."""
    import zlib

    content, position = bytearray(entries), 0
    while position + 26 <= len(content):
        end = position + 12 + int.from_bytes(content[position + 8 : position + 12], "big", signed=True)
        if not position + 26 <= end <= len(content):
            break
        content[position + 12 : position + 16] = zlib.crc32(content[position + 16 : end]).to_bytes(4, "big")
        position = end
    return bytes(content)


def test_a_wrapper_that_expands_beyond_the_bound_is_an_error(tmp_path):
    bomb = encode_legacy([Record(0, START_MS, b"k", b"\0" * 4_000_000)], magic=1, codec=1)
    directory = legacy_log(tmp_path / "t-0", bomb, end=9)
    plan = plan_of(directory, NOW)
    assert plan is not None
    bounded = replace(plan, config=replace(plan.config, max_decompressed_batch_bytes=1_000_000))
    with pytest.raises(CorruptBatchError, match="1000000"):
        clean_log(bounded, Fs(), Attempt("r", "0"))


def test_wrappers_that_expand_beyond_what_is_held_ahead_are_decompressed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(chunk_reader, "_AHEAD_CHUNKS", 0)
    for seed in range(6):
        directory = tmp_path / f"t-{seed}"
        write_random_log(directory, seed, LogShape(codecs=(1, 3), magics=(0, 1), transactional=0))
        if not twin_gives_up(directory, NOW):
            clean_both(directory, NOW, compressed=True)


def test_what_is_kept_may_outgrow_the_segment_size(tmp_path):
    messages = encode_legacy([Record(n, -1, b"%02d" % n, b"") for n in range(60)], magic=0)
    directory = legacy_log(tmp_path / "t-0", messages, end=60)
    given = replace(NOW, segment_bytes=len(messages))
    clean_both(directory, given, compressed=False)
    assert (directory / f"{0:020d}.log").stat().st_size > 2 * len(messages)
