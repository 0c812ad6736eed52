r"""Format strings of `dump --format`, with the tokens of kcat.

    %s  value                      %S  its length, -1 for null     %R  its length as a big-endian int32
    %k  key                        %K  its length, -1 for null
    %T  timestamp in ms            %h  headers: name=value,…; NULL for a null value
    %t  topic                      %p  partition                   %o  offset
    %%  a percent sign             \n \r \t \xHH \NNN              bytes; any other \c is c

NNN is decimal, or octal with a leading 0.  Lengths count the bytes in the log, so a format with a length prints all
records without decoding them.

Source: kcat, `format.c`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sediment.jobs.dumping.plain_rows import COLUMNS_FOR_DECODING, decoded, json_text
from sediment.segment_io.errors import UsageError
from sediment.segment_io.printable import printable

_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|(0[0-7]{0,3})|([1-9][0-9]{0,2})|(.))", re.DOTALL)
_CHARACTERS = {"n": b"\n", "r": b"\r", "t": b"\t"}
_INT32 = struct.Struct(">i")
_LARGEST_BYTE = 255


def _length(value: bytes | None) -> int:
    return -1 if value is None else len(value)


def _content(value: Any) -> bytes:
    if value is None:
        return b""
    return value if isinstance(value, bytes) else json_text(value).encode()


def _headers(headers: list[dict[str, Any]] | None) -> bytes:
    pairs = [(each["key"].encode(), b"NULL" if each["value"] is None else each["value"]) for each in headers or ()]
    return b",".join(name + b"=" + value for name, value in pairs)


def _number(value: int | None) -> bytes:
    return b"-1" if value is None else b"%d" % value


_LENGTHS = frozenset("SRK")
_Row = Mapping[str, Any]
_TOKENS: Mapping[str, tuple[str, Callable[[_Row, _Row], bytes]]] = MappingProxyType(
    {
        "s": ("value", lambda row, known: _content(known.get("value", row["value"]))),
        "S": ("value", lambda row, _known: _number(_length(row["value"]))),
        "R": ("value", lambda row, _known: _INT32.pack(_length(row["value"]))),
        "k": ("key", lambda row, known: _content(known.get("key", row["key"]))),
        "K": ("key", lambda row, _known: _number(_length(row["key"]))),
        "T": ("timestamp", lambda row, _known: _number(row["timestamp"])),
        "h": ("headers", lambda row, _known: _headers(row["headers"])),
        "t": ("topic", lambda row, _known: row["topic"].encode(errors="backslashreplace")),
        "p": ("partition", lambda row, _known: _number(row["partition"])),
        "o": ("offset", lambda row, _known: _number(row["offset"])),
    }
)
"""For each token: a column of `records`, and a function that returns the bytes for a row and its decoded fields."""


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """A parsed format; each of `parts` is either literal bytes or the letter of a token."""

    parts: tuple[bytes | str, ...]

    @classmethod
    def parse(cls, text: str) -> MessageFormat:
        parts: list[bytes | str] = []
        literal, *others = re.split(r"%(.?)", text, flags=re.DOTALL)
        parts.append(_unescaped(literal))
        for token, following in zip(others[::2], others[1::2], strict=True):
            if token != "%" and token not in _TOKENS:
                raise UsageError(
                    f"--format has the token %{printable(token)}",
                    advice=f"use {' '.join(f'%{known}' for known in _TOKENS)}, or %% for a percent sign",
                )
            parts += (b"%" if token == "%" else token, _unescaped(following))
        return cls(tuple(part for part in parts if part))

    def columns(self) -> tuple[str, ...]:
        used = [_TOKENS[part][0] for part in self.parts if isinstance(part, str)]
        return tuple(dict.fromkeys((*used, *(COLUMNS_FOR_DECODING if self._decodes else ()))))

    @property
    def _decodes(self) -> bool:
        return _LENGTHS.isdisjoint(self.parts)

    def line(self, row: _Row, *, for_terminal: bool) -> bytes:
        r"""Return a record in this format.

        For a terminal, the record's content has escapes, such as `\x1b`, in place of control characters and of bytes
        that are not UTF-8.
        """
        known = decoded(row) if self._decodes else {}
        return b"".join(
            part if isinstance(part, bytes) else _shown(_TOKENS[part][1](row, known), for_terminal=for_terminal)
            for part in self.parts
        )


def _shown(content: bytes, *, for_terminal: bool) -> bytes:
    return printable(content.decode(errors="backslashreplace")).encode() if for_terminal else content


def _unescaped(text: str) -> bytes:
    parts: list[bytes] = []
    end = 0
    for match in _ESCAPE.finditer(text):
        parts += (_raw(text[end : match.start()]), _character(match))
        end = match.end()
    return b"".join((*parts, _raw(text[end:])))


def _character(match: re.Match[str]) -> bytes:
    hexadecimal, octal, decimal, character = match.groups()
    if character is not None:
        return _CHARACTERS.get(character, _raw(character))
    value = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    if value > _LARGEST_BYTE:
        raise UsageError(f"--format has {match[0]}, and the largest byte is 255", advice=r"write \xHH")
    return bytes((value,))


def _raw(text: str) -> bytes:
    """Return the bytes of a part of a command-line argument, even if these bytes are not UTF-8."""
    return text.encode(errors="surrogateescape")
