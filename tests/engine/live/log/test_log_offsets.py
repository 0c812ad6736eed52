"""The offsets of a live log keep their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.engine.live.log.log_offsets import LogOffsets
from sediment.segment_io.errors import UsageError

OFFSETS = LogOffsets(10, 20, 15, 30)
_OFFSET = st.integers(0, 50)


def within(offsets: LogOffsets) -> bool:
    """Return True if `offsets` keep the invariants."""
    return offsets.log_start <= offsets.high_watermark <= offsets.log_end >= offsets.recovery_point


@st.composite
def offsets(draw: st.DrawFn) -> LogOffsets:
    start, high_watermark, end = sorted(draw(st.tuples(_OFFSET, _OFFSET, _OFFSET)))
    return LogOffsets(start, high_watermark, draw(st.integers(0, end)), end)


@given(_OFFSET, _OFFSET, _OFFSET, _OFFSET)
def test_the_constructor_refuses_what_is_out_of_order(start: int, high_watermark: int, point: int, end: int) -> None:
    if start <= high_watermark <= end and point <= end:
        assert within(LogOffsets(start, high_watermark, point, end))
    else:
        with pytest.raises(UsageError, match="out of order"):
            LogOffsets(start, high_watermark, point, end)


def test_the_recovery_point_may_lag_behind_the_log_start() -> None:
    assert LogOffsets(10, 20, 0, 30).recovery_point == 0


def test_an_append_moves_the_log_end_alone() -> None:
    assert OFFSETS.appended_to(31) == LogOffsets(10, 20, 15, 31)
    with pytest.raises(UsageError):
        OFFSETS.appended_to(19)


def test_a_flush_raises_the_recovery_point_within_the_log() -> None:
    assert OFFSETS.flushed_to(25).recovery_point == 25
    assert OFFSETS.flushed_to(12) == OFFSETS
    assert OFFSETS.flushed_to(31).recovery_point == 30


def test_a_truncation_lowers_every_offset_that_is_above() -> None:
    assert OFFSETS.truncated_to(30) is OFFSETS.truncated_to(99) is OFFSETS
    assert OFFSETS.truncated_to(25) == LogOffsets(10, 20, 15, 25)
    assert OFFSETS.truncated_to(12) == LogOffsets(10, 12, 12, 12)
    assert OFFSETS.truncated_to(5) == LogOffsets(5, 5, 5, 5)


def test_an_emptied_log_starts_at_its_end_or_below() -> None:
    assert OFFSETS.emptied_at(99) == LogOffsets(99, 99, 15, 99)
    assert OFFSETS.emptied_at(12) == LogOffsets(12, 12, 12, 12)
    assert OFFSETS.emptied_at(29, 18) == LogOffsets(18, 20, 15, 29)
    with pytest.raises(UsageError):
        OFFSETS.emptied_at(29, 30)


def test_the_log_start_rises_up_to_the_high_watermark_and_takes_the_recovery_point_along() -> None:
    assert OFFSETS.started_at(10) is OFFSETS.started_at(3) is OFFSETS
    assert OFFSETS.started_at(14) == LogOffsets(14, 20, 15, 30)
    assert OFFSETS.started_at(18) == LogOffsets(18, 20, 18, 30)
    with pytest.raises(UsageError):
        OFFSETS.started_at(21)


def test_the_high_watermark_stays_within_the_log() -> None:
    assert [OFFSETS.with_high_watermark(offset).high_watermark for offset in (0, 10, 25, 30, 40)] == [
        10,
        10,
        25,
        30,
        30,
    ]


def test_replication_only_raises_the_high_watermark_and_not_above_the_log_end() -> None:
    assert OFFSETS.replicated_to(20) is OFFSETS.replicated_to(3) is OFFSETS
    assert OFFSETS.replicated_to(30) == LogOffsets(10, 30, 15, 30)
    with pytest.raises(UsageError):
        OFFSETS.replicated_to(31)


@given(offsets(), _OFFSET)
def test_every_method_keeps_the_order_or_raises(before: LogOffsets, offset: int) -> None:
    assert within(before.flushed_to(offset))
    assert within(before.truncated_to(offset))
    assert within(before.emptied_at(offset))
    assert within(before.with_high_watermark(offset))
    assert before.flushed_to(offset).recovery_point >= before.recovery_point
    assert before.truncated_to(offset).log_end == min(before.log_end, offset)
    for move in (before.appended_to, before.started_at, before.replicated_to):
        try:
            assert within(move(offset))
        except UsageError:
            assert offset < max(before.high_watermark, before.recovery_point) or offset > before.high_watermark
