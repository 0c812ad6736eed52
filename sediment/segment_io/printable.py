"""Escaping of text from disk for printing and encoding: names, paths and contents of files may contain any bytes.

A terminal executes control characters as commands.  If bytes of a file name are not UTF-8, Python decodes them to
surrogates, which cannot be encoded as UTF-8.
"""

from __future__ import annotations

import re

from sediment.segment_io.uris import without_credentials

_UNPRINTABLE = re.compile(
    "["
    "\\x00-\\x1f\\x7f-\\x9f"  # control characters, among them ESC and line ends
    "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069"  # direction marks change the order in which text is displayed
    "\\u2028\\u2029"  # line ends
    "\\ud800-\\udfff"  # bytes that are not UTF-8, as Python decodes file names
    "]"
)


def printable(text: str) -> str:
    r"""Return `text` with control characters, direction marks and undecodable bytes escaped, as `\x1b` or `\udcff`."""
    return _UNPRINTABLE.sub(_escaped, text)


def printable_json(text: str) -> str:
    r"""Return JSON with the same characters escaped as in `printable`, but as `\u009b`; the value does not change."""
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def error_line(text: str) -> str:
    return without_credentials(printable(text))


def encodable(text: str) -> str:
    r"""Return `text` with undecodable bytes escaped as `\udcff`, for tables and pages; all else is unchanged."""
    return text.encode(errors="backslashreplace").decode()


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
