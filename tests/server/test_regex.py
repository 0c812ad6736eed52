"""Regular expressions of subscriptions: syntax, and limits on their work."""

from __future__ import annotations

import itertools

import pytest

from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.regex import (
    MAX_MATCH_SECONDS,
    MAX_PATTERN_LENGTH,
    check_regex,
    matching_names,
)
from tests.server.groups.consumer.group_members import refused

NAMES = ["orders", "orders-1", "Orders", "payments", "größe", "a.b"]


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("orders", {"orders"}),
        ("ord.*", {"orders", "orders-1"}),
        ("orders|payments", {"orders", "payments"}),
        ("(?i)ORDERS", {"orders", "Orders"}),
        (r"\Qa.b", {"a.b"}),
        (r"\Qa.b\E", {"a.b"}),
        (r"gr\pL+", {"größe"}),
        ("orders-[0-9]{1,3}", {"orders-1"}),
        ("rder", set()),
        ("", set()),
    ],
)
def test_patterns_match_whole_names(pattern: str, matching: set[str]) -> None:
    check_regex(pattern)
    assert matching_names(pattern, NAMES) == matching


def test_limits_keep_a_program_small() -> None:
    check_regex("x" * MAX_PATTERN_LENGTH)
    for pattern in ("x" * (MAX_PATTERN_LENGTH + 1), "(?:a{30}){30}{30}", "(?:.?){900}(?:.?){900}", "a{1,20000}"):
        refused(ErrorCode.INVALID_REGULAR_EXPRESSION, lambda pattern=pattern: check_regex(pattern))


def test_a_hundred_thousand_names_are_matched() -> None:
    names = [f"topic-{number}" for number in range(100_000)]
    assert len(matching_names("topic-.*7", names) or ()) == 10_000


def test_a_pattern_that_takes_too_long_matches_nothing() -> None:
    names = [f"topic-{number}" for number in range(100_000)]
    steps = itertools.count()
    assert matching_names(".*", names, lambda: next(steps) * MAX_MATCH_SECONDS / 4) is None
    assert next(steps) < 10
