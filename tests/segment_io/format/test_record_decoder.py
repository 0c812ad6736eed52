"""The kernels that decode varints and records, against their plain Python twin."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.padding import PADDING_BYTES
from sediment.segment_io.compiled.status import (
    BAD_HEADERS,
    OK,
    RECORD_ENDS_EARLY,
    RECORDS_REMAIN,
)
from sediment.segment_io.format import batch_headers, record_decoder
from sediment.segment_io.format.record_decoder import RECORD_FIELDS
from tests.twin import varints
from tests.twin.batches import Record, RecordHeader, encode_batch, parse_batch
from tests.twin.errors import InvalidRecordError, TwinError


def padded(data):
    return np.frombuffer(data + b"\xff" * PADDING_BYTES, dtype=np.uint8)


def decoded(payload, count):
    """(status, records as the twin would show them, with deltas for offsets and timestamps)."""
    buffer = padded(payload)
    rows = np.zeros((max(count, 1), RECORD_FIELDS), dtype=np.int64)
    status = record_decoder.decode_records(buffer.ctypes.data, 0, len(payload), count, rows)
    if status != OK:
        return status, None

    def field(start, length):
        return None if length < 0 else payload[start : start + length]

    return status, [
        (
            int(row[record_decoder.OFFSET_DELTA]),
            int(row[record_decoder.TIMESTAMP_DELTA]),
            field(row[record_decoder.KEY_START], row[record_decoder.KEY_BYTES]),
            field(row[record_decoder.VALUE_START], row[record_decoder.VALUE_BYTES]),
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
    assert status in (OK, *batch_headers.STATUS_TEXT)


@kernel
def varint_at(data):
    value, end = record_decoder.read_varint(data.ctypes.data)
    return value, end - data.ctypes.data if end else 0


@kernel
def varlong_at(data):
    value, end = record_decoder.read_varlong(data.ctypes.data)
    return value, end - data.ctypes.data if end else 0


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
        value, end = ours(padded(data))
        try:
            expected = twin(data, 0)
        except InvalidRecordError:
            assert end == 0 or end > len(data)
        else:
            assert (value, end) == expected


def test_bf_11_records_beyond_the_count_are_an_error():
    payload = encode_batch([Record(0, 0, b"a", b"1"), Record(1, 0, b"b", b"2")], base_offset=0)[61:]
    assert decoded(payload, 1)[0] == RECORDS_REMAIN


def test_bf_12_a_batch_that_ends_before_its_count_is_an_error():
    payload = encode_batch([Record(0, 0, b"a", b"1"), Record(1, 0, b"b", b"2")], base_offset=0)[61:]
    assert decoded(payload, 3)[0] == RECORD_ENDS_EARLY


def test_bf_14_a_record_longer_than_its_content_is_an_error():
    payload = bytearray(encode_batch([Record(0, 0, b"a", b"1"), Record(1, 0, b"b", b"2")], base_offset=0)[61:])
    payload[0] += 2
    assert decoded(bytes(payload), 2)[0] in batch_headers.STATUS_TEXT


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
