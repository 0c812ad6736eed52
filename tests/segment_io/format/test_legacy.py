"""Messages of magic 0 and 1 against golden vectors of Kafka's and against their plain Python twin."""

import zlib

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sediment.segment_io.compiled.padding import PADDING_BYTES
from sediment.segment_io.compiled.status import OK
from sediment.segment_io.errors import CorruptBatchError, SedimentError
from sediment.segment_io.format import batch_headers, record_decoder
from sediment.segment_io.format.legacy import crc32, decode_entry, unwrap
from sediment.segment_io.format.record_decoder import RECORD_FIELDS
from tests.tables import read_rows
from tests.twin import framing, vectors
from tests.twin.batches import Record
from tests.twin.errors import TwinError
from tests.twin.legacy import encode_legacy, encode_legacy_record, parse_legacy_batch

LIMIT_BYTES = 1 << 20
BARE = [(100, b"a", b"1"), (101, None, b"v"), (102, b"b", None)]


def unwrapped(wrapper):
    """(offset, timestamp, key, value) of each message."""
    found = unwrap(wrapper, limit_bytes=LIMIT_BYTES)
    return [fields(found.buffer.tobytes(), row) for row in found.records]


def fields(data, row):
    def part(start, length):
        return None if row[length] < 0 else data[row[start] : row[start] + row[length]]

    key, value = (
        part(record_decoder.KEY_START, record_decoder.KEY_BYTES),
        part(record_decoder.VALUE_START, record_decoder.VALUE_BYTES),
    )
    return int(row[record_decoder.OFFSET_DELTA]), int(row[record_decoder.TIMESTAMP_DELTA]), key, value


def rows_of(content, tmp_path, **options):
    directory = tmp_path / "t-0"
    directory.mkdir(exist_ok=True)
    (directory / "00000000000000000000.log").write_bytes(content)
    return read_rows(directory, **options)


def wrapper(offset, payload, *, magic=1, attributes=framing.GZIP, timestamp=0):
    value = None if payload is None else framing.compress(attributes & 7, payload, magic=magic)
    return encode_legacy_record(Record(offset, timestamp, None, value), magic=magic, attributes=attributes)


def inner(offsets, magic):
    return b"".join(encode_legacy_record(Record(offset, offset, b"k", b"v"), magic=magic) for offset in offsets)


@pytest.mark.parametrize(
    ("data", "timestamps", "kind"),
    [
        (vectors.V0, [-1, -1, -1], -1),
        (vectors.V1, [1000, 1010, 990], 0),
        (vectors.V1_APPEND_TIME, [5000, 5000, 5000], 1),
    ],
)
def test_bf_22_uncompressed_messages_are_rows_of_one_batch_each(data, timestamps, kind, tmp_path):
    rows = rows_of(data, tmp_path)
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == BARE
    assert [row["timestamp"] for row in rows] == timestamps
    assert {row["timestampType"] for row in rows} == {kind}
    batches = rows_of(data, tmp_path, what="batches")
    assert [(batch["baseOffset"], batch["lastOffset"], batch["recordCount"]) for batch in batches] == [
        (offset, offset, 1) for offset, _, _ in BARE
    ]
    assert all(batch["valid"] for batch in batches)


@pytest.mark.parametrize("data", [vectors.V1_GZIP, vectors.V1_LZ4])
def test_bf_23_a_wrapper_of_magic_1_has_relative_offsets(data, tmp_path):
    assert [(row["offset"], row["key"], row["value"]) for row in rows_of(data, tmp_path)] == BARE
    assert [row["timestamp"] for row in rows_of(data, tmp_path)] == [1000, 1010, 990]
    (batch,) = rows_of(data, tmp_path, what="batches")
    assert (batch["baseOffset"], batch["lastOffset"], batch["recordCount"]) == (100, 102, 3)
    assert (batch["maxTimestamp"], batch["valid"]) == (1010, True)


@pytest.mark.parametrize("data", [vectors.V0_GZIP, vectors.V0_LZ4])
def test_a_wrapper_of_magic_0_has_absolute_offsets_and_no_timestamps(data, tmp_path):
    rows = rows_of(data, tmp_path)
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == BARE
    assert {(row["timestamp"], row["timestampType"], row["batchBaseOffset"]) for row in rows} == {(-1, -1, 100)}


def test_bf_24_wrapper_offset_0_means_base_0_and_one_below_its_messages_is_corrupt():
    payload = inner((0, 1, 2), magic=1)
    assert [row[0] for row in unwrapped(wrapper(0, payload))] == [0, 1, 2]
    with pytest.raises(CorruptBatchError, match="offset 1, below"):
        unwrapped(wrapper(1, payload))


def test_bf_25_offsets_inside_of_magic_0_are_taken_as_they_are():
    assert [row[0] for row in unwrapped(wrapper(77, inner((5, 6, 9), magic=0), magic=0))] == [5, 6, 9]


@pytest.mark.parametrize(
    ("payload", "attributes", "text"),
    [
        (inner((0,), magic=1), framing.ZSTD, "zstd is not allowed"),
        (wrapper(0, inner((0,), magic=1)), framing.GZIP, "contains compressed messages"),
        (b"", framing.GZIP, "holds no messages"),
        (None, framing.GZIP, "has no value"),
        (b"\0" * 8 + (13).to_bytes(4, "big") + b"\0" * 13, framing.GZIP, "batch length"),
    ],
)
def test_bf_26_wrappers_that_kafka_refuses_are_corrupt(payload, attributes, text):
    with pytest.raises(CorruptBatchError, match=text):
        unwrapped(wrapper(0, payload, attributes=attributes))


def test_bf_27_a_wrapper_of_append_time_gives_its_timestamp_to_all(tmp_path):
    records = [Record(offset, offset, b"k", b"v") for offset in (1, 2, 3)]
    data = encode_legacy(records, magic=1, codec=framing.GZIP, append_time=5000)
    assert [row[:2] for row in unwrapped(data)] == [(1, 5000), (2, 5000), (3, 5000)]
    assert {row["timestampType"] for row in rows_of(data, tmp_path)} == {1}


def test_messages_inside_of_a_wrapper_are_read_by_their_own_magic():
    payload = inner((5,), magic=0) + inner((6,), magic=1)
    append_time = wrapper(6, payload, attributes=framing.GZIP | 8, timestamp=5000)
    assert [row[:2] for row in unwrapped(append_time)] == [(5, -1), (6, 5000)]


def test_a_wrong_checksum_of_a_message_or_wrapper_is_told(tmp_path):
    for data in (vectors.V0, vectors.V1_GZIP):
        changed = data[:-1] + bytes([data[-1] ^ 1])
        with pytest.raises(CorruptBatchError, match="fails its CRC"):
            rows_of(changed, tmp_path)
        assert rows_of(changed, tmp_path, what="batches")[-1]["valid"] is False


@given(st.binary(max_size=300), st.integers(0, 8))
def test_the_checksum_is_zips(data, shift):
    buffer = np.frombuffer(bytes(shift) + data + bytes(PADDING_BYTES), dtype=np.uint8)
    assert crc32(buffer.ctypes.data + shift, len(data)) == zlib.crc32(data)


blobs = st.one_of(st.none(), st.binary(max_size=20))
messages = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 2**40), blobs, blobs), min_size=1, max_size=6)


@st.composite
def message_sets(draw):
    offset, records = draw(st.integers(0, 1000)), []
    for gap, timestamp, key, value in draw(messages):
        records.append(Record(offset, timestamp, key, value))
        offset += gap
    return records


@settings(max_examples=150)
@given(message_sets(), st.sampled_from([0, 1]), st.sampled_from([1, 2, 3]), st.one_of(st.none(), st.just(777)))
def test_wrappers_read_as_the_twin_reads_them(records, magic, codec, append_time):
    data = encode_legacy(records, magic=magic, codec=codec, append_time=append_time if magic else None)
    expected = [(r.offset, r.timestamp, r.key, r.value) for r in parse_legacy_batch(data).records()]
    assert unwrapped(data) == expected


@settings(max_examples=400)
@given(message_sets(), st.sampled_from([0, 1]), st.data())
def test_mutated_wrappers_are_accepted_and_read_exactly_when_the_twin_does(records, magic, data):
    payload = bytearray(b"".join(encode_legacy_record(record, magic=magic) for record in records))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    offset = data.draw(st.sampled_from([0, records[-1].offset, 2000]))
    wrapped = wrapper(offset, payload, magic=magic, attributes=framing.SNAPPY)
    try:
        found = unwrapped(wrapped)
    except SedimentError as error:
        assume("unknown magic" not in str(error))
        with pytest.raises(TwinError):
            parse_legacy_batch(wrapped).records()
    else:
        assert found == [(r.offset, r.timestamp, r.key, r.value) for r in parse_legacy_batch(wrapped).records()]


@given(st.binary(min_size=26, max_size=120))
def test_arbitrary_entries_never_leave_their_bounds(data):
    buffer = np.frombuffer(data + b"\xff" * PADDING_BYTES, dtype=np.uint8)
    row = np.zeros(RECORD_FIELDS, dtype=np.int64)
    status = decode_entry(buffer.ctypes.data, 0, len(data), row)
    assert status in (OK, *batch_headers.STATUS_TEXT)
    if status == OK:
        assert row[record_decoder.VALUE_START] + max(row[record_decoder.VALUE_BYTES], 0) <= len(data)
