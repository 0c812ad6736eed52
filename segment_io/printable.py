"""Text from disk made safe to print: names, paths and file contents may hold what a terminal takes for commands."""

from __future__ import annotations

import re

_UNPRINTABLE = re.compile(
    "["
    "\\x00-\\x1f\\x7f-\\x9f"  # control characters, among them ESC and line ends
    "\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069"  # they change the order in which text is shown
    "\\u2028\\u2029"  # line ends
    "\\ud800-\\udfff"  # bytes that are not UTF-8, as Python decodes file names
    "]"
)


def printable(text: str) -> str:
    r"""Return `text` with control characters, direction marks and undecodable bytes as `\x1b` or `\udcff`."""
    return _UNPRINTABLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
