from __future__ import annotations

import struct

import pytest

from sediment.segment_io.internal_topics.wire_format import Array, Field, MessageDecoder, Structure, fields


def decode(described, data: bytes, *, version: int = 0, flexible: bool = True):
    return MessageDecoder(data, 0, version, flexible=flexible).whole(described)


def test_fields_of_a_message_before_flexible_versions_have_plain_lengths():
    described = fields("a:string b:bytes c:[i16] d:i8 e:u16")
    data = b"\0\2hi" + b"\0\0\0\1\xff" + b"\0\0\0\2\0\1\xff\xff" + b"\xff" + b"\xff\xff"
    assert decode(described, data, flexible=False) == {"a": "hi", "b": "/w==", "c": [1, -1], "d": -1, "e": 65535}


def test_flexible_lengths_are_one_more_and_zero_is_null():
    assert decode(fields("a:string b:[i8] c:string"), b"\3hi\2\7\0\0") == {"a": "hi", "b": [7], "c": None}


def test_tagged_fields_are_read_by_tag_and_others_are_passed_over():
    described = (Field("a", "i8"), Field("b", "i16", tag=3))
    assert decode(described, b"\1" + b"\2" + b"\1\5abcde" + b"\3\2\0\7") == {"a": 1, "b": 7}
    assert decode(described, b"\1\0") == {"a": 1}


def test_a_field_is_there_in_its_versions_only():
    described = (Field("a", "i8", since=1), Field("b", "i8", until=1))
    read = [decode(described, data, version=version) for version, data in enumerate((b"\1\0", b"\1\2\0", b"\1\0"))]
    assert read == [{"b": 1}, {"a": 1, "b": 2}, {"a": 1}]


def test_a_nullable_structure_is_there_or_not():
    described = (Field("a", Structure(fields("b:i8"), nullable=True)), Field("c", Array(Structure(fields("d:i8")))))
    assert decode(described, b"\1\5\0" + b"\2\6\0" + b"\0") == {"a": {"b": 5}, "c": [{"d": 6}]}
    assert decode(described, b"\xff" + b"\1" + b"\0") == {"a": None, "c": []}


@pytest.mark.parametrize(
    ("described", "data"),
    [
        ("a:i64", b"\0" * 7),
        ("a:string", b"\5abc\0"),
        ("a:string", b"\3\xff\xff\0"),
        ("a:[i8]", b"\xff\xff\xff\xff\x0f\0"),
        ("a:string", b"\xff\xff\xff\xff\xff\xff\0"),
        ("a:i8", b"\0"),
        ("a:i8", b"\0\0\0"),
        ("a:i8", b"\0\xff\xff\xff\xff\x0f"),
    ],
)
def test_what_is_cut_off_too_long_or_no_text_is_an_error(described, data):
    with pytest.raises((ValueError, struct.error)):
        decode(fields(described), data)
