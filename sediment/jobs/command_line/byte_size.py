"""Sizes in bytes on the command line: a number, or a number with a unit, as in `64k`."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SIZE = re.compile(r"(\d+)([kmg]?)", re.IGNORECASE)


class ByteSize(click.ParamType[int]):
    """A size in bytes; k, m and g are 2^10, 2^20 and 2^30."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes of a number or text."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        found = _SIZE.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            self.fail(f"{value!r} is not a size; give bytes, or a number with k, m or g", param, ctx)
        return int(found[1]) * _UNITS[found[2].lower()]
