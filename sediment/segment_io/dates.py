"""Dates of records for people, and dates that look wrong: in another unit than milliseconds, or in the future.

Kafka's timestamps are milliseconds.  A producer that writes seconds dates its records near 1970, so that retention
deletes them at once.  A producer that writes microseconds dates them thousands of years ahead, so that retention never
deletes them, nor anything after them.
"""

from __future__ import annotations

from datetime import UTC, datetime

_DAY_MS = 86_400_000
_YEAR_MS = 31_556_952_000
_YEAR_2000_MS = 946_684_800_000
_NEAR_1970_MS = _YEAR_MS
_COARSER_UNITS = ((1000, "seconds"),)
_FINER_UNITS = ((1000, "microseconds"), (1_000_000, "nanoseconds"))


def date_text(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"the year {1970 + timestamp_ms // _YEAR_MS}"


def at_date(timestamp_ms: int) -> str:
    text = date_text(timestamp_ms)
    return f"in {text}" if text.startswith("the year") else f"at {text}"


def suspect_date(timestamp_ms: int, now_ms: int) -> str | None:
    """Return a participle for a date that looks wrong, such as `dated in the year 58769 (microseconds?)`, else None.

    A date looks wrong if it is more than a day after `now_ms`, or in the first year after 1970-01-01.  The likely unit
    is the one in which the number would be a date between the year 2000 and `now_ms`.
    """
    latest_ms = now_ms + _DAY_MS
    if timestamp_ms > latest_ms:
        units = [unit for factor, unit in _FINER_UNITS if _YEAR_2000_MS <= timestamp_ms // factor <= latest_ms]
        guess = f"({units[0]}?)" if units else "(in the future)"
    elif timestamp_ms < _NEAR_1970_MS < now_ms:
        units = [unit for factor, unit in _COARSER_UNITS if _YEAR_2000_MS <= timestamp_ms * factor <= latest_ms]
        guess = f"({units[0]}?)" if units else "(near 1970)"
    else:
        return None
    return f"dated {at_date(timestamp_ms).removeprefix('at ')} {guess}"
