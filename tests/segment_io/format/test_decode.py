"""The decoding kernels against their plain Python twin."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.status import (
    BAD_CONTROL_RECORD,
    BAD_HEADERS,
    BAD_LENGTH,
    BAD_MAGIC,
    INCOMPLETE,
    OK,
    RECORD_ENDS_EARLY,
    RECORDS_REMAIN,
)
from sediment.segment_io.format import decode
from sediment.segment_io.format.decode import BATCH_ROW, PADDING_BYTES, RECORD_FIELDS
from sediment.segment_io.format.layout import NO_CONTROL_RECORD
from tests.twin import varints
from tests.twin.batches import Record, RecordHeader, encode_batch, parse_batch
from tests.twin.errors import InvalidRecordError, TwinError


def padded(data):
    return np.frombuffer(data + b"\xff" * PADDING_BYTES, dtype=np.uint8)


def decoded(payload, count):
    """(status, records as the twin would show them, with deltas for offsets and timestamps)."""
    buffer = padded(payload)
    rows = np.zeros((max(count, 1), RECORD_FIELDS), dtype=np.int64)
    status = decode.decode_records(buffer.ctypes.data, 0, len(payload), count, rows)
    if status != OK:
        return status, None

    def field(start, length):
        return None if length < 0 else payload[start : start + length]

    return status, [
        (
            int(row[decode.OFFSET_DELTA]),
            int(row[decode.TIMESTAMP_DELTA]),
            field(row[decode.KEY_START], row[decode.KEY_BYTES]),
            field(row[decode.VALUE_START], row[decode.VALUE_BYTES]),
        )
        for row in rows[:count]
    ]


def twin_decoded(payload, count):
    header = encode_batch([Record(0, 0, None, None)], base_offset=0)[:61]
    patched = header[:57] + count.to_bytes(4, "big", signed=True)
    length = (61 + len(payload) - 12).to_bytes(4, "big")
    batch = parse_batch(patched[:8] + length + patched[12:] + payload)
    return [(record.offset, record.timestamp, record.key, record.value) for record in batch.records()]


blobs = st.one_of(st.none(), st.binary(max_size=40), st.integers(100, 300).map(lambda size: b"x" * size))
records = st.builds(
    lambda delta, timestamp, key, value, headers: (delta, timestamp, key, value, headers),
    st.integers(1, 100_000),
    st.integers(-(2**62), 2**62),
    blobs,
    blobs,
    st.lists(st.builds(RecordHeader, st.binary(max_size=5), blobs), max_size=3),
)


@st.composite
def payloads(draw):
    offset, made = 0, []
    for delta, timestamp, key, value, headers in draw(st.lists(records, min_size=1, max_size=8)):
        made.append(Record(offset, timestamp, key, value, tuple(headers)))
        offset += delta
    batch = encode_batch(made, base_offset=0)
    base = made[0].timestamp
    expected = [(record.offset, record.timestamp - base, record.key, record.value) for record in made]
    return batch[61:], len(made), expected


@given(payloads())
def test_records_decode_as_they_were_encoded(case):
    payload, count, expected = case
    status, found = decoded(payload, count)
    assert status == OK
    assert found == expected


@settings(max_examples=600)
@given(payloads(), st.data())
def test_mutated_records_are_accepted_and_read_exactly_when_the_twin_does(case, data):
    payload, count, _ = case
    mutated = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    payload = bytes(mutated[: data.draw(st.integers(1, len(mutated)))])
    count = max(0, count + data.draw(st.integers(-1, 1)))
    status, found = decoded(payload, count)
    if count == 0:
        return
    try:
        expected = twin_decoded(payload, count)
    except TwinError:
        assert status != OK
    else:
        assert status == OK
        assert found == expected


@given(st.binary(min_size=1, max_size=200), st.integers(1, 20))
def test_arbitrary_bytes_never_leave_the_buffer(payload, count):
    status, _ = decoded(payload, count)
    assert status in (OK, *decode.STATUS_TEXT)


@kernel
def varint_at(data):
    value, behind = decode.read_varint(data.ctypes.data)
    return value, behind - data.ctypes.data if behind else 0


@kernel
def varlong_at(data):
    value, behind = decode.read_varlong(data.ctypes.data)
    return value, behind - data.ctypes.data if behind else 0


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (2147483647, "feffffff0f"),
        (-2147483648, "ffffffff0f"),
    ],
)
def test_bf_07_varints_decode(value, encoded):
    data = bytes.fromhex(encoded)
    assert varint_at(padded(data)) == (value, len(data))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (2147483648, "8080808010"),
        (9223372036854775807, "feffffffffffffffff01"),
        (-9223372036854775808, "ffffffffffffffffff01"),
    ],
)
def test_bf_08_varlongs_decode(value, encoded):
    data = bytes.fromhex(encoded)
    assert varlong_at(padded(data)) == (value, len(data))


def test_bf_09_a_varint_of_six_bytes_is_refused():
    assert varint_at(padded(bytes.fromhex("ffffffffff01"))) == (0, 0)


@given(st.binary(min_size=1, max_size=11))
def test_varints_read_as_the_twin_reads_them(data):
    for ours, twin in ((varint_at, varints.decode_varint), (varlong_at, varints.decode_varlong)):
        value, behind = ours(padded(data))
        try:
            expected = twin(data, 0)
        except InvalidRecordError:
            assert behind == 0 or behind > len(data)
        else:
            assert (value, behind) == expected


def test_bf_11_records_beyond_the_count_are_an_error():
    payload = encode_batch([Record(0, 0, b"a", b"1"), Record(1, 0, b"b", b"2")], base_offset=0)[61:]
    assert decoded(payload, 1)[0] == RECORDS_REMAIN


def test_bf_12_a_batch_that_ends_before_its_count_is_an_error():
    payload = encode_batch([Record(0, 0, b"a", b"1"), Record(1, 0, b"b", b"2")], base_offset=0)[61:]
    assert decoded(payload, 3)[0] == RECORD_ENDS_EARLY


def test_bf_14_a_record_longer_than_its_content_is_an_error():
    payload = bytearray(encode_batch([Record(0, 0, b"a", b"1"), Record(1, 0, b"b", b"2")], base_offset=0)[61:])
    payload[0] += 2
    assert decoded(bytes(payload), 2)[0] in decode.STATUS_TEXT


@pytest.mark.parametrize("header_count", [b"\x01", b"\xfe\x01"])
def test_bf_15_header_counts_that_do_not_fit_are_an_error(header_count):
    body = b"\x00\x00\x00\x02a\x021" + header_count
    payload = bytes([2 * len(body)]) + body
    assert decoded(payload, 1)[0] == BAD_HEADERS


def test_bf_15_a_negative_header_key_length_is_an_error():
    body = b"\x00\x00\x00\x02a\x021\x02\x01\x01"
    assert decoded(bytes([2 * len(body)]) + body, 1)[0] == BAD_HEADERS


def test_bf_34_an_empty_key_and_value_are_not_null():
    payload = encode_batch([Record(0, 0, b"", b"")], base_offset=0)[61:]
    assert decoded(payload, 1)[1] == [(0, 0, b"", b"")]


# ------------------------------------------------------------------------------------------------ headers
def headers_of(data):
    buffer = padded(data)
    rows = np.zeros(64, dtype=BATCH_ROW)
    status, count, position, size = decode.read_headers(buffer.ctypes.data, 0, len(data), 0, rows)
    return status, rows[:count], position, size


def test_header_rows_carry_every_field():
    data = encode_batch(
        [Record(100, 1000, b"a", b"1"), Record(105, 990, b"b", None)],
        base_offset=100,
        leader_epoch=5,
        producer_id=7,
        producer_epoch=3,
        base_sequence=12,
        transactional=True,
    )
    status, rows, position, _ = headers_of(data)
    assert (status, position) == (INCOMPLETE, len(data))
    (row,) = rows
    assert (row["base_offset"], row["last_offset"], row["leader_epoch"], row["magic"]) == (100, 105, 5, 2)
    assert (row["producer_id"], row["producer_epoch"], row["base_sequence"], row["record_count"]) == (7, 3, 12, 2)
    assert (row["base_timestamp"], row["max_timestamp"], row["attributes"]) == (1000, 1000, 0x10)
    assert row["control_type"] == NO_CONTROL_RECORD


COMMIT = bytes.fromhex(
    "0000000000000014000000420000000502a00010bb00300000000000000000000007d000000000000007d0"
    "00000000000000070003ffffffff000000012000000008000000010c00000000000900"
)


def test_bf_28_a_commit_marker_decodes():
    (row,) = headers_of(COMMIT)[1]
    assert (row["base_offset"], row["control_type"], row["coordinator_epoch"]) == (20, 1, 9)
    assert (row["attributes"] & 0x30, row["base_sequence"], row["control_timestamp"]) == (0x30, -1, 2000)


@pytest.mark.parametrize(("key", "expected"), [("00000063", 99), ("00050001", 1)])
def test_bf_29_unknown_control_types_and_higher_versions_are_read(key, expected):
    data = COMMIT[:66] + bytes.fromhex(key) + COMMIT[70:]
    assert headers_of(data)[1]["control_type"].tolist() == [expected]


def test_bf_29_a_negative_control_key_version_is_an_error():
    assert headers_of(COMMIT[:66] + b"\xff\xff\x00\x01" + COMMIT[70:])[0] == BAD_CONTROL_RECORD


def test_bf_31_seventeen_trailing_bytes_end_the_walk_and_eighteen_with_a_bad_size_are_an_error():
    batch = encode_batch([Record(0, 0, b"a", b"1")], base_offset=0)
    assert headers_of(batch + b"\x00" * 17)[0] == INCOMPLETE
    tail = b"\x00" * 8 + (13).to_bytes(4, "big") + b"\x00" * 6
    assert headers_of(batch + tail)[0] == BAD_LENGTH
    tail = b"\x00" * 8 + (1000).to_bytes(4, "big") + b"\x00" * 4 + b"\x02\x00"
    status, rows, position, size = headers_of(batch + tail)
    assert (status, len(rows), position, size) == (INCOMPLETE, 1, len(batch), 1012)


def test_bf_32_magic_3_is_an_error():
    batch = bytearray(encode_batch([Record(0, 0, b"a", b"1")], base_offset=0))
    batch[16] = 3
    assert headers_of(bytes(batch))[0] == BAD_MAGIC


@settings(max_examples=400)
@given(st.data())
def test_mutated_batches_walk_to_a_status_and_never_past_their_end(data):
    whole = encode_batch([Record(5, 1, b"k", b"v"), Record(9, 2, b"k", None)], base_offset=5) + COMMIT
    mutated = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 5))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    status, rows, position, _ = headers_of(bytes(mutated))
    assert status == INCOMPLETE or status in decode.STATUS_TEXT
    assert 0 <= position <= len(mutated)
    assert all(row["size_bytes"] >= 14 for row in rows)
