"""The largest timestamp of a segment."""

from __future__ import annotations

import pytest

from sediment.segment_io.partition.log_view import largest_timestamp_or_mtime_ms


@pytest.mark.parametrize(
    ("timestamp_ms", "expected_ms"),
    [(1000, 1000), (9000, 9000), (0, 0), (-1, 5000)],
    ids=["older than the file", "newer than the file", "zero is a timestamp", "no timestamp"],
)
def test_the_modification_time_counts_only_without_a_timestamp(timestamp_ms, expected_ms):
    assert largest_timestamp_or_mtime_ms(timestamp_ms, mtime_ns=5_000_999_999) == expected_ms
