"""Regular expressions of clients: RE2 syntax, matched with whole names by Arrow's RE2.

Three limits bound the work: on the length of a pattern, on the size of its compiled program, and on the matching time.

Source: Kafka's Utils.throwIfRegularExpressionIsInvalid and GroupMetadataManager.refreshRegularExpressions, with RE2/J.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from math import prod

from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError

MAX_PATTERN_LENGTH = 1000
MAX_PROGRAM_SIZE = 10_000
MAX_MATCH_SECONDS = 2.0

_REPETITION = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_MAX_REPETITION_DIGITS = 4
_FIRST_CHARACTERS = 2000


def check_regex(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise _invalid(pattern[:100], f"it has {len(pattern)} characters; give at most {MAX_PATTERN_LENGTH}")
    if _program_size(pattern) > MAX_PROGRAM_SIZE:
        raise _invalid(pattern, "its repetitions are too large; repeat less often")
    reason = _compile_error(pattern)
    if reason is not None:
        raise _invalid(pattern, reason)


def matching_names(
    pattern: str, names: Sequence[str], clock: Callable[[], float] = time.monotonic
) -> frozenset[str] | None:
    """Return the names that match a pattern from start to end; None if the match exceeds MAX_MATCH_SECONDS."""
    found: set[str] = set()
    whole = _whole(pattern)
    first, most_characters = 0, _FIRST_CHARACTERS
    end = clock() + MAX_MATCH_SECONDS
    while first < len(names):
        if clock() > end:
            return None
        chunk = _first_names(names, first, most_characters)
        found.update(name for name, is_match in zip(chunk, _search(whole, chunk), strict=True) if is_match)
        first += len(chunk)
        most_characters *= 2 if clock() < end - MAX_MATCH_SECONDS / 2 else 1
    return frozenset(found)


def _first_names(names: Sequence[str], first: int, most_characters: int) -> Sequence[str]:
    number = first
    while number < len(names) and most_characters > 0:
        most_characters -= len(names[number]) + 1
        number += 1
    return names[first:number]


def _program_size(pattern: str) -> int:
    counts = [high or low for low, high in _REPETITION.findall(pattern)]
    if any(len(count) > _MAX_REPETITION_DIGITS for count in counts):
        return MAX_PROGRAM_SIZE + 1
    return len(pattern) * prod(max(int(count), 1) for count in counts)


def _compile_error(pattern: str) -> str | None:
    """Return RE2's error for a pattern, or for the pattern wrapped by `_whole`; None if both are valid."""
    try:
        _search(pattern, [""])
        _search(_whole(pattern), [""])
    except ValueError as error:
        return str(error).splitlines()[0].removeprefix("Invalid regular expression: ").rstrip(".")
    return None


def _whole(pattern: str) -> str:
    r"""Return a pattern that matches only whole names; an unclosed \Q quotation is closed first."""
    is_quoted = pattern.rfind(r"\Q") > pattern.rfind(r"\E")
    return r"\A(?:" + pattern + (r"\E)\z" if is_quoted else r")\z")


def _search(pattern: str, names: Sequence[str]) -> Sequence[bool]:
    # Imported late, because the import is slow, and most servers never need Arrow here.
    import pyarrow as pa
    import pyarrow.compute as pc

    found: list[bool] = pc.match_substring_regex(pa.array(names, pa.string()), pattern=pattern).to_pylist()
    return found


def _invalid(pattern: str, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {reason}.",
    )
