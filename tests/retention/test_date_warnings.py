"""Warnings about segments that retention.ms deletes or keeps because of a date that looks wrong."""

from dataclasses import replace

from sediment.retention.date_warnings import date_warnings
from sediment.retention.policy import RetentionConfig, SegmentState, plan_retention

NOW_MS = 1_790_000_000_000
WEEK = RetentionConfig(retention_ms=604_800_000)


def warnings_of(*timestamps_ms: int, config: RetentionConfig = WEEK) -> tuple[str, ...]:
    segments = [SegmentState(10 * number, 100, each) for number, each in enumerate(timestamps_ms)]
    end = 10 * len(segments)
    plan = plan_retention(segments, config, log_start_offset=0, high_watermark=end, log_end_offset=end, now_ms=NOW_MS)
    return date_warnings(plan, config, now_ms=NOW_MS)


def test_segments_that_go_by_seconds_are_named_with_their_date():
    assert warnings_of(NOW_MS // 1000, NOW_MS // 1000, NOW_MS) == (
        "the newest record of segment 0 is dated 1970-01-21 17:13:20 UTC (seconds?), and by such a date retention.ms "
        "deletes segment 0 and 1 more",
    )


def test_the_first_segment_that_stays_by_microseconds_is_named():
    assert warnings_of(5 * NOW_MS // 10, NOW_MS * 1000, NOW_MS * 1000) == (
        "the newest record of segment 10 is dated in the year 58692 (microseconds?), and until that date retention.ms "
        "keeps this segment and all later ones",
    )


def test_dates_that_decide_nothing_are_not_mentioned():
    assert warnings_of(NOW_MS // 1000, config=replace(WEEK, retention_ms=-1, retention_bytes=0)) == ()
    assert warnings_of(NOW_MS * 1000, config=replace(WEEK, cleanup_policy=("compact",))) == ()
    assert warnings_of(NOW_MS - 1, NOW_MS) == ()
