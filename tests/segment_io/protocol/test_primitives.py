from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sediment.segment_io.protocol.primitives import (
    MalformedError,
    read_long_length,
    read_long_string_length,
    read_unsigned_varint,
    records_size_bytes,
    skip_tagged_fields,
    write_unsigned_varint,
)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2097151, "ffff7f"),
        (2097152, "80808001"),
        (2**31 - 1, "ffffffff07"),
    ],
)
def test_a_varint_has_seven_bits_a_byte_the_lowest_first(value, written):
    assert write_unsigned_varint(value).hex() == written


@given(st.integers(0, 2**31 - 1), st.binary(max_size=3), st.binary(max_size=3))
@example(2**31 - 1, b"", b"")
def test_a_varint_is_read_as_it_was_written(value, before, after):
    written = write_unsigned_varint(value)
    for buffer in (before + written + after, memoryview(before + written + after)):
        assert read_unsigned_varint(buffer, len(before)) == (value, len(before) + len(written))


@pytest.mark.parametrize("written", ["ffffffff08", "ffffffff0f", "808080808000", "ffffffffff01"])
def test_a_varint_above_31_bits_or_five_bytes_is_malformed(written):
    with pytest.raises(MalformedError):
        read_unsigned_varint(bytes.fromhex(written), 0)


def test_a_varint_that_ends_early_is_an_index_error():
    with pytest.raises(IndexError):
        read_unsigned_varint(b"\x80", 0)


def test_a_compact_length_is_one_more_than_the_length():
    written = write_unsigned_varint(201)
    assert read_long_length(written, 1) == (200, 2)
    assert read_long_string_length(write_unsigned_varint(32768), 1) == (32767, 3)
    with pytest.raises(MalformedError):
        read_long_string_length(write_unsigned_varint(32769), 1)


def test_tagged_fields_are_passed_over_up_to_the_end_of_the_message():
    fields = b"\0\3abc" + b"\x80\1\0"
    assert skip_tagged_fields(fields, 0, len(fields), 2) == len(fields)
    with pytest.raises(MalformedError):
        skip_tagged_fields(fields, 0, 4, 2)


def test_the_size_of_records_is_that_of_their_bytes():
    assert [records_size_bytes(records) for records in (b"abc", bytearray(b"ab"), memoryview(b"abcd"))] == [3, 2, 4]
