"""Sizes and time spans with units."""

from __future__ import annotations

from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.jobs.command_line.units import ByteSize, Seconds, parse_bytes, parse_duration
from sediment.jobs.reporting.figures import human_bytes, show_plain_bytes
from sediment.segment_io.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("64k", 65536),
        ("64K", 65536),
        ("1m", 1 << 20),
        ("64KiB", 65536),
        ("10GB", 10**10),
        ("10gb", 10**10),
        ("1.5kB", 1500),
        ("2TiB", 2 << 40),
        ("7B", 7),
    ],
)
def test_sizes_have_binary_and_decimal_units(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "k", "-1", "1e3", "64x", "6 4k", "1..5k", "٣k"])
def test_other_texts_are_not_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("7d", 604_800_000),
        ("36h", 129_600_000),
        ("90m", 5_400_000),
        ("30s", 30_000),
        ("500ms", 500),
        ("2592000000ms", 2_592_000_000),
    ],
)
def test_time_spans_have_units(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


def test_a_duration_fits_into_64_bits() -> None:
    assert parse_duration("106751991167d") == 106_751_991_167 * 86_400_000
    with pytest.raises(UsageError, match="'106751991168d' is too long a duration; give at most 9223372036854775807ms"):
        parse_duration("106751991168d")


@pytest.mark.parametrize("text", ["", "7", "7 days", "-1d", "7D", "d"])
def test_a_duration_has_a_unit(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        parse_duration(text)


@given(st.integers(0, 10**18 - 1))
def test_plain_numbers_are_bytes_and_seconds(number: int) -> None:
    assert ByteSize().convert(str(number), None, None) == number
    assert ByteSize().convert(number, None, None) == number
    assert Seconds().convert(str(number), None, None) == float(number)


@pytest.mark.parametrize(("value", "seconds"), [("90m", 5400.0), ("0.5", 0.5), (2.5, 2.5), ("1500ms", 1.5)])
def test_seconds_may_have_a_unit(value: Any, seconds: float) -> None:
    assert Seconds().convert(value, None, None) == seconds


@pytest.mark.parametrize(("text", "seconds"), [(".5", 0.5), ("5.", 5.0), ("1e3", 1000.0), ("inf", float("inf"))])
def test_seconds_are_any_number_of_python(text: str, seconds: float) -> None:
    assert Seconds().convert(text, None, None) == seconds


@pytest.mark.parametrize("kind", [ByteSize(), Seconds()])
@pytest.mark.parametrize("value", ["-1", True, "many", "", float("nan"), "nan", "-inf"])
def test_a_wrong_value_is_refused(kind: click.ParamType[Any], value: Any) -> None:
    with pytest.raises(click.BadParameter, match="is not a"):
        kind.convert(value, None, None)


def test_sizes_are_plain_bytes_only_while_they_are_wanted() -> None:
    end = show_plain_bytes()
    try:
        assert human_bytes(1500) == "1500"
    finally:
        end()
    assert human_bytes(1500) == "1.5 kB"
