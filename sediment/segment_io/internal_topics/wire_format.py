"""Kafka's protocol wire format, with the fields of all versions of a message described once, in wire order.

Numbers are big-endian, a uuid is 16 bytes.

    versions            string            bytes, array      null      end of a structure
    not flexible        i16 length        i32 length        -1        nothing
    flexible            unsigned varint, length + 1         0         tagged fields

Tagged fields:

    +-------+     +-----+------+---------+
    | count | ... | tag | size | content |      all but the content unsigned varints
    +-------+     +-----+------+---------+

Bytes are decoded to base64 text, and a uuid to 22 characters, as in the output of Kafka's own tools.

Invariant: decoding reads within the message and ends with it, or fails with ValueError or struct.error.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sediment.segment_io.format.checkpoints import format_uuid

_PRESENT = 1
_NUMBERS = {
    name: struct.Struct(f">{code}") for name, code in zip(("i8", "i16", "i32", "i64", "u16"), "bhiqH", strict=True)
}


# ------------------------------------------------------------------------------------------------------- descriptions
@dataclass(frozen=True, slots=True)
class Structure:
    """Fields in wire order; if `nullable`, a byte comes first, which is _PRESENT if the fields follow."""

    fields: Sequence[Field]
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Array:
    """Elements of one type, after their number."""

    of: FieldType


FieldType = str | Structure | Array


@dataclass(frozen=True, slots=True)
class Field:
    """Field of the versions `since` to `until`; with `tag` it is a tagged field.

    Types are i8, i16, i32, i64, u16, string, bytes, uuid, and structures and arrays of them.
    """

    name: str
    type: FieldType
    since: int = 0
    until: int = 1 << 15
    tag: int | None = None


def fields(text: str) -> tuple[Field, ...]:
    """Return the fields of `name:type name:type …`, which every version has; `[type]` is an array."""
    pairs = (pair.split(":") for pair in text.split())
    return tuple(Field(name, Array(kind[1:-1]) if kind.startswith("[") else kind) for name, kind in pairs)


# ------------------------------------------------------------------------------------------------------------ decoding
class MessageDecoder:
    """Decoder of one message of `version` that begins at `position` and reaches to the end of `data`."""

    def __init__(self, data: bytes, position: int, version: int, *, flexible: bool) -> None:
        self._data = data
        self._at = position
        self._version = version
        self._flexible = flexible

    def whole(self, fields: Sequence[Field]) -> dict[str, Any]:
        """Return the structure that fills the remaining bytes of the message, by field name.

        Raises:
            ValueError, struct.error: the message is too short, too long, or malformed.
        """
        found = self._structure(fields)
        if self._at != len(self._data):
            raise ValueError("bytes remain")
        return found

    def _structure(self, fields: Sequence[Field]) -> dict[str, Any]:
        present = [field for field in fields if field.since <= self._version <= field.until]
        found = {field.name: self._read(field.type) for field in present if field.tag is None}
        if self._flexible:
            tagged = {field.tag: field for field in present if field.tag is not None}
            for _ in range(self._varint()):
                tag, size = self._varint(), self._varint()
                content = self._take(size)
                if tag in tagged:
                    inner = MessageDecoder(content, 0, self._version, flexible=True)
                    found[tagged[tag].name] = inner._read(tagged[tag].type)
        return found

    def _read(self, kind: FieldType) -> Any:
        if isinstance(kind, Structure):
            if kind.nullable and self._number("i8") != _PRESENT:
                return None
            return self._structure(kind.fields)
        if isinstance(kind, Array):
            length = self._length("i32")
            if length is None:
                return None
            if length > len(self._data) - self._at:
                raise ValueError("an array is longer than its message")
            return [self._read(kind.of) for _ in range(length)]
        if kind in _NUMBERS:
            return self._number(kind)
        if kind == "uuid":
            return format_uuid(self._take(16))
        length = self._length("i16" if kind == "string" else "i32")
        if length is None:
            return None
        content = self._take(length)
        return content.decode() if kind == "string" else base64.b64encode(content).decode("ascii")

    def _length(self, plain: str) -> int | None:
        length = self._varint() - 1 if self._flexible else self._number(plain)
        return None if length < 0 else length

    def _number(self, kind: str) -> int:
        layout = _NUMBERS[kind]
        (number,) = layout.unpack(self._take(layout.size))
        return int(number)

    def _varint(self) -> int:
        value = shift = 0
        while shift < 35:
            (byte,) = self._take(1)
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("a varint is longer than five bytes")

    def _take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise ValueError("the message ends early")
        self._at += count
        return taken
