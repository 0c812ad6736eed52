"""Dates for people, and the units that a wrong date suggests."""

import pytest

from sediment.segment_io.dates import at_date, date_text, suspect_date

NOW_MS = 1_790_000_000_000
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (0, "1970-01-01 00:00:00 UTC"),
        (1_792_424_604_800_010, "the year 58769"),
        (2**63 - 1, "the year 292278994"),
        (-(2**63), "the year -292275055"),
    ],
)
def test_a_date_outside_the_calendar_is_shown_by_its_year(timestamp_ms, text):
    assert date_text(timestamp_ms) == text


def test_a_date_has_the_preposition_that_fits():
    assert at_date(0) == "at 1970-01-01 00:00:00 UTC"
    assert at_date(NOW_MS * 1000) == "in the year 58692"


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (NOW_MS * 1000, "dated in the year 58692 (microseconds?)"),
        (NOW_MS * 1_000_000, "dated in the year 56724811 (nanoseconds?)"),
        (NOW_MS // 1000, "dated 1970-01-21 17:13:20 UTC (seconds?)"),
        (NOW_MS + 400 * DAY_MS, "dated 2027-10-26 14:13:20 UTC (in the future)"),
        (5, "dated 1970-01-01 00:00:00 UTC (near 1970)"),
    ],
)
def test_a_wrong_unit_or_clock_is_suspected_by_the_date(timestamp_ms, text):
    assert suspect_date(timestamp_ms, NOW_MS) == text


@pytest.mark.parametrize("timestamp_ms", [NOW_MS, NOW_MS + DAY_MS, NOW_MS - 3000 * DAY_MS, 400 * DAY_MS])
def test_other_dates_are_not_suspected(timestamp_ms):
    assert suspect_date(timestamp_ms, NOW_MS) is None


def test_a_clock_near_1970_makes_no_date_suspect():
    assert suspect_date(5, 10) is None
