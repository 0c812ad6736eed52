"""Sizes and time spans on the command line: a plain number, or a number with a unit, as in `10GB` or `7d`.

    k m g t              2^10, 2^20, 2^30, 2^40 bytes; also KiB, MiB, GiB, TiB
    kB MB GB TB          10^3, 10^6, 10^9, 10^12 bytes
    ms s m h d w         milliseconds, seconds, minutes, hours, days, weeks

The letters of a size may be upper or lower case.  A size may have a fraction; the result is rounded down.
"""

from __future__ import annotations

import re
from contextlib import suppress
from decimal import Decimal
from typing import Any

import click

from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.layout import INT64_MAX

_BINARY = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DECIMAL = {"k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BYTES = {
    "": 1,
    "b": 1,
    **_BINARY,
    **{f"{letter}ib": unit for letter, unit in _BINARY.items()},
    **{f"{letter}b": unit for letter, unit in _DECIMAL.items()},
}
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{1,9})?)"
_SIZE = re.compile(rf"{_NUMBER}({'|'.join(_BYTES)})", re.IGNORECASE)
_SPAN = re.compile(rf"([0-9]{{1,18}})({'|'.join(_UNIT_MS)})")


def parse_bytes(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not a size", advice="give bytes, or a number with a unit, such as 64k or 10GB")
    return int(Decimal(found[1]) * _BYTES[found[2].lower()])


def parse_duration(text: str) -> int:
    found = _SPAN.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not a duration", advice="give a number and a unit, such as 7d, 36h or 2w")
    span_ms = int(found[1]) * _UNIT_MS[found[2]]
    if span_ms > INT64_MAX:
        raise UsageError(f"{text!r} is too long a duration", advice=f"give at most {INT64_MAX}ms")
    return span_ms


class ByteSize(click.ParamType[int]):
    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        try:
            return parse_bytes(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


class Seconds(click.ParamType[float]):
    """A time span in seconds; a plain number is seconds."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number of seconds that a number or text gives; infinity means no limit."""
        seconds = _seconds(str(value))
        if seconds is None or not seconds >= 0:  # also refuses NaN
            self.fail(f"{value!r} is not a duration; give seconds, or a number with a unit, such as 90m", param, ctx)
        return seconds


def _seconds(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    with suppress(UsageError):
        return parse_duration(text) / 1000
    return None
