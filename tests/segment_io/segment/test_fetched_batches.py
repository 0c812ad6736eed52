"""Records of a fetch, against what Kafka read from its own files and against the plain Python twin."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.transaction_index import parse_transaction_index
from sediment.segment_io.segment.fetched_batches import (
    Batch,
    ControlType,
    Record,
    batches,
    next_offset,
    read_columns,
    read_records,
)
from tests.corpus import DumpedBatch, cleaning_cases, load_case
from tests.logs import LogShape, write_random_log
from tests.segments import ABORT, COMMIT, NOW_MS, batch_bytes, marker_bytes
from tests.twin.batches import Record as TwinRecord
from tests.twin.batches import RecordHeader, encode_batch, encode_empty_batch, parse_batch, sign_batch
from tests.twin.indexes import AbortedTransaction
from tests.twin.legacy import encode_legacy, encode_legacy_record
from tests.twin.segments import AnyBatch, file_batches

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def as_twin(record: Record) -> TwinRecord:
    headers = tuple(RecordHeader(key, value) for key, value in record.headers)
    return TwinRecord(record.offset, record.timestamp_ms, record.key, record.value, headers)


def offsets(data: bytes, **options: object) -> list[int]:
    return [record.offset for record in read_records(data, **options)]  # type: ignore[arg-type]


def columns(data: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
    return [
        (offset, run.keys[at], run.value(at))
        for run in read_columns(data)
        for at, offset in enumerate(run.offsets.tolist())
    ]


# ---------------------------------------------------------------------------------------------------- Kafka's own files
@pytest.mark.parametrize("name", cleaning_cases(magic2_only=False))
def test_records_and_headers_are_those_that_kafka_reads_from_its_files(name: str, tmp_path: Path) -> None:
    case = load_case(name, tmp_path)
    for stage in ("before", "after-1"):
        for segment in case.dump(stage):
            data = (case.directory / stage / f"{segment.base_offset:020d}.log").read_bytes()
            expected = [record for batch in segment.batches for record in batch.records]
            assert list(map(as_twin, read_records(data, with_control=True))) == expected
            assert [of_ours(batch) for batch in batches(data)] == [of_kafka(batch) for batch in segment.batches]


def of_kafka(batch: DumpedBatch) -> tuple[object, ...]:
    return (
        *(batch.position, batch.size_bytes, batch.last_offset, batch.magic, batch.codec, batch.max_timestamp),
        *(batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.leader_epoch),
        *(batch.is_transactional, batch.is_control, batch.delete_horizon_ms),
        batch.timestamp_type == "LogAppendTime",
    )


def of_ours(batch: Batch) -> tuple[object, ...]:
    return (
        *(batch.position, batch.size_bytes, batch.last_offset, batch.magic, batch.codec, batch.max_timestamp_ms),
        *(batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.leader_epoch),
        *(batch.is_transactional, batch.is_control, batch.delete_horizon_ms),
        batch.is_append_time,
    )


# ---------------------------------------------------------------------------------------------------------- random logs
def random_segments(tmp_path: Path, seed: int, magics: tuple[int, ...]) -> list[Path]:
    shape = LogShape(batches=80, codecs=(0, 1, 2, 3, 4), magics=magics)
    write_random_log(tmp_path / "t-0", seed, shape)
    return sorted((tmp_path / "t-0").glob("*.log"))


def committed(data: bytes, aborted: list[AbortedTransaction]) -> list[TwinRecord]:
    """Return the records of data batches that lie outside of aborted transactions, by their whole ranges."""
    return [
        record
        for _, batch in file_batches(data)
        if not batch.is_control and not is_aborted(batch, aborted)
        for record in batch.records()
    ]


def is_aborted(batch: AnyBatch, aborted: list[AbortedTransaction]) -> bool:
    return batch.is_transactional and any(
        entry.producer_id == batch.producer_id and entry.first_offset <= batch.base_offset <= entry.last_offset
        for entry in aborted
    )


@pytest.mark.parametrize("magics", [(2,), (0, 1, 2)], ids=["magic 2", "all magics"])
@pytest.mark.parametrize("seed", range(8))
def test_a_random_log_is_read_as_the_twin_reads_it(tmp_path: Path, seed: int, magics: tuple[int, ...]) -> None:
    chance = random.Random(seed)
    for path in random_segments(tmp_path, seed, magics):
        data = path.read_bytes()
        expected = [record for _, batch in file_batches(data) for record in batch.records()]
        control = {record.offset for _, batch in file_batches(data) if batch.is_control for record in batch.records()}
        assert list(map(as_twin, read_records(data, with_control=True))) == expected
        data_records = [record for record in expected if record.offset not in control]
        assert offsets(data) == [record.offset for record in data_records]
        assert columns(data) == [(record.offset, record.key, record.value) for record in data_records]
        at = chance.choice([record.offset for record in expected] or [0])
        assert offsets(data, from_offset=at, with_control=True) == [r.offset for r in expected if r.offset >= at]
        index = path.with_suffix(".txnindex")
        if index.exists():
            aborted = list(parse_transaction_index(index.read_bytes()).transactions())
            assert list(map(as_twin, read_records(data, aborted=aborted))) == committed(data, aborted)


def test_records_after_the_first_table_of_headers_and_of_records_are_read() -> None:
    small = b"".join(batch_bytes(offset) for offset in range(600))
    assert offsets(small) == list(range(600))
    assert [offset for offset, _, _ in columns(small)] == list(range(600))
    large = batch_bytes(600, "k" * 5000) + batch_bytes(5600, "k" * 3000) + batch_bytes(8600, "k" * 3000, codec=3)
    assert offsets(small + large + batch_bytes(11600)) == list(range(11601))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer_is_read(kind: type) -> None:
    assert offsets(kind(batch_bytes(3, "abc") + batch_bytes(6, "d", codec=1))) == [3, 4, 5, 6]


# -------------------------------------------------------------------------------------------------------------- a fetch
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_fetch_may_begin_below_its_offset_and_end_inside_a_batch(codec: int) -> None:
    whole = batch_bytes(10, "abc", codec=codec) + batch_bytes(13, "def", codec=codec)
    last = batch_bytes(16, "ghi", codec=codec)
    for cut in range(len(last)):
        data = whole + last[:cut]
        assert offsets(data, from_offset=12) == [12, 13, 14, 15]
        assert next_offset(data, 12) == 16
    assert list(read_records(b"")) == list(read_records(last[:30])) == list(batches(last[:60])) == []
    assert next_offset(last[:30], 16) == 16


def test_batches_that_cleaning_emptied_still_take_their_offsets() -> None:
    emptied = encode_empty_batch(parse_batch(batch_bytes(4, "abcd")))
    assert offsets(batch_bytes(3) + emptied) == [3]
    assert next_offset(batch_bytes(3) + emptied, 3) == 8
    assert [batch.record_count for batch in batches(batch_bytes(3) + emptied)] == [1, 0]


def test_a_record_carries_the_header_of_its_batch() -> None:
    data = batch_bytes(5, "ab", producer_id=9, producer_epoch=2, sequence=77, transactional=True)
    for record in read_records(data):
        batch = record.batch
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.leader_epoch) == (9, 2, 77, 0)
        assert batch.is_transactional and not batch.is_control and batch.control_type is None
        assert (batch.base_offset, batch.next_offset, batch.record_count, batch.codec) == (5, 7, 2, "none")


def test_aborted_records_are_left_out_until_the_marker_of_their_transaction() -> None:
    def sent(offset: int, producer_id: int) -> bytes:
        return batch_bytes(offset, producer_id=producer_id, transactional=True)

    data = b"".join(
        [
            *(sent(0, 1), sent(1, 2), batch_bytes(2), sent(3, 1), marker_bytes(4, ABORT, producer_id=1)),
            *(sent(5, 1), marker_bytes(6, COMMIT, producer_id=2), marker_bytes(7, COMMIT, producer_id=1)),
        ]
    )
    aborted = [AbortedTransaction(1, 0, 4, 1)]
    assert offsets(data) == [0, 1, 2, 3, 5]
    assert offsets(data, aborted=aborted) == [1, 2, 5]
    assert offsets(data, aborted=[]) == offsets(data, aborted=None) == [0, 1, 2, 3, 5]
    markers = [batch for batch in batches(data) if batch.is_control]
    assert [batch.control_type for batch in markers] == [ControlType.ABORT, ControlType.COMMIT, ControlType.COMMIT]
    assert [batch.coordinator_epoch for batch in markers] == [0, 0, 0]
    assert [batch.control_timestamp_ms for batch in markers] == [NOW_MS] * 3
    assert offsets(data, aborted=aborted, with_control=True) == [1, 2, 4, 5, 6, 7]


def test_a_control_type_of_a_later_version_is_unknown() -> None:
    record = TwinRecord(0, NOW_MS, b"\0\0\0\x63", b"")
    [batch] = batches(encode_batch([record], base_offset=0, control=True))
    assert batch.control_type is ControlType.UNKNOWN


# ----------------------------------------------------------------------------------------------------------- corruption
def test_a_corrupt_batch_is_reported_after_the_records_before_it() -> None:
    good = batch_bytes(0, "abc")
    bad = batch_bytes(3, "def")
    data = good + bad[:-1] + b"!" + batch_bytes(6)
    found = read_records(data)
    assert [next(found).offset for _ in range(3)] == [0, 1, 2]
    with pytest.raises(CorruptBatchError, match=rf"fails its CRC \(position {len(good)}, offset 3\)"):
        next(found)


@pytest.mark.parametrize("codec", [0, 3])
def test_a_batch_with_a_correct_checksum_over_malformed_records_is_reported(codec: int) -> None:
    good = batch_bytes(0, "abc")
    bad = bytearray(batch_bytes(3, "def", codec=codec))
    bad[57:61] = (4).to_bytes(4, "big")  # the record count
    found = read_records(good + sign_batch(bytes(bad)))
    assert [next(found).offset for _ in range(3)] == [0, 1, 2]
    with pytest.raises(CorruptBatchError, match=f"position {len(good)}, offset 3"):
        next(found)


def test_a_batch_that_expands_beyond_the_limit_is_refused() -> None:
    bomb = batch_bytes(0, value=bytes(1 << 20), codec=4)
    assert len(bomb) < 2000
    assert offsets(bomb) == [0]
    with pytest.raises(CorruptBatchError, match="expand beyond 1000000 bytes"):
        list(read_records(bomb, limit_bytes=1_000_000))


def test_an_unknown_codec_is_corruption_in_every_message_format() -> None:
    wrapper = encode_legacy_record(TwinRecord(0, NOW_MS, None, b"stream"), magic=1, attributes=6)
    batch = bytearray(batch_bytes(0))
    batch[22] |= 6
    for data in (wrapper, sign_batch(bytes(batch))):
        with pytest.raises(CorruptBatchError, match="unknown codec"):
            list(read_records(data))
    assert [found.codec for found in batches(wrapper)] == ["6"]


def some_fetch(chance: random.Random) -> bytes:
    records = [TwinRecord(n, NOW_MS, b"k%d" % n, b"v" * 40, (RecordHeader(b"h", None),)) for n in range(5)]
    magic = chance.choice([0, 1, 2])
    codec = chance.choice([0, 1, 2, 3] if magic < 2 else [0, 1, 2, 3, 4])
    if magic == 2:
        return encode_batch(records, base_offset=0, codec=codec) + marker_bytes(5, ABORT, producer_id=1)
    return encode_legacy(records, magic=magic, codec=codec)


@pytest.mark.parametrize("signed", [False, True])
def test_changed_bytes_end_in_records_or_in_one_kind_of_error(signed: bool) -> None:
    chance = random.Random(4)
    outcomes = set()
    for _ in range(1500):
        data = bytearray(some_fetch(chance))
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        if signed:
            data = bytearray(resigned(bytes(data)))
        try:
            outcomes.add(len(list(read_records(bytes(data), with_control=True, limit_bytes=1 << 20))))
        except CorruptBatchError as error:
            outcomes.add(error.what)
            assert error.position is not None
    assert len(outcomes) > (12 if signed else 5)


def resigned(data: bytes) -> bytes:
    """Return `data` with correct checksums, as far as its batches can be told apart."""
    try:
        parts = [batch.data for _, batch in file_batches(data)]
    except Exception:
        return data
    return b"".join(sign_batch(part) if part[16] == 2 and len(part) > 61 else signed_entry(part) for part in parts)


def signed_entry(part: bytes) -> bytes:
    return part[:12] + zlib.crc32(part[16:]).to_bytes(4, "big") + part[16:]
