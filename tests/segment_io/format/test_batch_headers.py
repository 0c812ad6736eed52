"""The kernels over batch headers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.segment_io.compiled.padding import PADDING_BYTES
from sediment.segment_io.compiled.status import (
    BAD_CONTROL_RECORD,
    BAD_LENGTH,
    BAD_MAGIC,
    INCOMPLETE,
)
from sediment.segment_io.format import batch_headers
from sediment.segment_io.format.batch_headers import BATCH_ROW
from sediment.segment_io.format.layout import NO_CONTROL_RECORD
from tests.twin.batches import Record, encode_batch


def padded(data):
    return np.frombuffer(data + b"\xff" * PADDING_BYTES, dtype=np.uint8)


def headers_of(data):
    buffer = padded(data)
    rows = np.zeros(64, dtype=BATCH_ROW)
    status, count, position, size = batch_headers.read_headers(buffer.ctypes.data, 0, len(data), 0, rows)
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
    assert status == INCOMPLETE or status in batch_headers.STATUS_TEXT
    assert 0 <= position <= len(mutated)
    assert all(row["size_bytes"] >= 14 for row in rows)
