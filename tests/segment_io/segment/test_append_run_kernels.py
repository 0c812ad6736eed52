"""Requests of a run: what the compiled loop finds is what a reader in Python finds, and nothing else is read."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.segment_io.compiled.padding import padded_copy
from sediment.segment_io.protocol.primitives import MalformedError, read_unsigned_varint, write_unsigned_varint
from sediment.segment_io.segment.append_run_kernels import (
    RUN_BATCH,
    RUN_BATCH_BYTES,
    RUN_CORRELATION,
    RUN_END,
    RUN_FIELDS,
    repeated_requests,
)

START = b"\x00\x00\x00\x0c" + b"\x11\x22\x33\x44" + b"client and topic"
KEPT = np.frombuffer(START, dtype=np.uint8)
TAILS = {True: b"\0\0\0", False: b""}


def request(records: bytes, *, correlation: int = 7, is_flexible: bool = True) -> bytes:
    size = write_unsigned_varint(len(records) + 1) if is_flexible else struct.pack(">i", len(records))
    body = START[:4] + struct.pack(">i", correlation) + START[8:] + size + records + TAILS[is_flexible]
    return struct.pack(">i", len(body)) + body


def found(
    data: bytes, *, is_flexible: bool = True, largest: int = 1000, rows: int = 10
) -> list[tuple[int, int, bytes]]:
    """Return (correlation id, end, records) of each request."""
    table = np.zeros((rows, RUN_FIELDS), dtype=np.int64)
    buffer = padded_copy(data)
    count = repeated_requests(buffer.ctypes.data, len(data), largest, KEPT, is_flexible, len(TAILS[is_flexible]), table)
    return [
        (row[RUN_CORRELATION], row[RUN_END], data[row[RUN_BATCH] : row[RUN_BATCH] + row[RUN_BATCH_BYTES]])
        for row in table[:count].tolist()
    ]


def expected(data: bytes, *, is_flexible: bool) -> list[tuple[int, int, bytes]]:
    """Return what `found` returns, read by Python's slices."""
    result = []
    position = 0
    while len(data) - position >= 4:
        (size,) = struct.unpack_from(">i", data, position)
        body = data[position + 4 : position + 4 + size]
        if not 0 < size <= min(1000, len(data) - position - 4):
            break
        if body[:4] != START[:4] or body[8 : len(START)] != START[8:]:
            break
        try:
            if is_flexible:
                length, at = read_unsigned_varint(memoryview(body), len(START))
                length -= 1
            else:
                (length,) = struct.unpack_from(">i", body, len(START))
                at = len(START) + 4
        except (IndexError, MalformedError, struct.error):
            break
        end = len(body) - len(TAILS[is_flexible])
        if length < 0 or at + length != end or body[end:] != TAILS[is_flexible] or length < 4:
            break
        position += 4 + size
        result.append((struct.unpack_from(">i", body, 4)[0], position, body[at:end]))
    return result


@settings(deadline=None, max_examples=400)
@given(
    st.booleans(),
    st.lists(st.tuples(st.binary(min_size=4, max_size=200), st.integers(-(2**31), 2**31 - 1)), max_size=5),
    st.one_of(st.none(), st.tuples(st.integers(0, 10**6), st.integers(0, 255))),
    st.one_of(st.none(), st.integers(0, 10**6)),
)
def test_the_requests_are_those_that_python_finds(
    is_flexible: bool,
    records: list[tuple[bytes, int]],
    change: tuple[int, int] | None,
    cut: int | None,
) -> None:
    """A byte is changed, and the end is cut off."""
    data = b"".join(request(each, correlation=number, is_flexible=is_flexible) for each, number in records)
    if change is not None and data:
        at = change[0] % len(data)
        data = data[:at] + bytes([change[1]]) + data[at + 1 :]
    if cut is not None and data:
        data = data[: cut % len(data)]
    assert found(data, is_flexible=is_flexible) == expected(data, is_flexible=is_flexible)


@pytest.mark.parametrize("is_flexible", [True, False])
@pytest.mark.parametrize("size", [-(2**31), -1, 0, 1, 2**31 - 1])
def test_a_size_outside_the_received_bytes_ends_the_search(is_flexible: bool, size: int) -> None:
    good = request(b"records", is_flexible=is_flexible)
    assert len(found(good * 2, is_flexible=is_flexible)) == 2
    assert len(found(good + struct.pack(">i", size) + good[4:], is_flexible=is_flexible)) == 1


@pytest.mark.parametrize("is_flexible", [True, False])
@pytest.mark.parametrize("length", [b"\xff" * 10, b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x00", b"\x80\x00\x00\x00"])
def test_a_length_that_does_not_fit_is_refused(is_flexible: bool, length: bytes) -> None:
    body = START + length + b"records" + TAILS[is_flexible]
    assert found(struct.pack(">i", len(body)) + body, is_flexible=is_flexible) == []


def test_a_large_request_and_a_full_table_end_the_search() -> None:
    assert len(found(request(b"1234") + request(bytes(2000)))) == 1
    assert len(found(request(b"1234") * 5, rows=3)) == 3
