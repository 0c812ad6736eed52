"""Formats in which `dump` writes a row to stdout: JSON, CSV, or the format that the caller gives.

Invariant: text from a row reaches a terminal without characters that the terminal interprets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sediment.jobs.dumping.message_format import MessageFormat
from sediment.jobs.dumping.plain_rows import json_text, plain_row
from sediment.segment_io.printable import printable

_Row = Mapping[str, Any]
_QUOTED = frozenset('",\r\n')


class LineOutput(Protocol):
    @property
    def head(self) -> bytes: ...

    def line(self, row: _Row) -> bytes: ...


@dataclass(frozen=True, slots=True)
class JsonLines:
    names: Sequence[str]
    head: bytes = b""

    def line(self, row: _Row) -> bytes:
        return json_text(plain_row(row, self.names)).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class CsvLines:
    """CSV with a header line; text is written unchanged; other values, such as objects and lists, are written as JSON.

    Null is an empty field, and an empty text is `""`.
    """

    names: Sequence[str]
    for_terminal: bool

    @property
    def head(self) -> bytes:
        return ",".join(self.names).encode() + b"\n"

    def line(self, row: _Row) -> bytes:
        return ",".join(map(self._field, plain_row(row, self.names).values())).encode() + b"\n"

    def _field(self, value: Any) -> str:
        if value is None:
            return ""
        text = value if isinstance(value, str) else json_text(value)
        if self.for_terminal:
            text = printable(text)
        return text if text and _QUOTED.isdisjoint(text) else '"' + text.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class FormattedLines:
    format: MessageFormat
    for_terminal: bool
    head: bytes = b""

    def line(self, row: _Row) -> bytes:
        return self.format.line(row, for_terminal=self.for_terminal)
