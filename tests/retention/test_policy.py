"""The segments that expire: Kafka's scenarios, and properties of every log."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.retention.policy import (
    KeepReason,
    RetentionConfig,
    RetentionPlan,
    Rule,
    SegmentState,
    explain_retention,
    plan_retention,
)
from sediment.segment_io.format.layout import INT64_MAX

NOW_MS = 1_700_000_000_000
UNLIMITED = RetentionConfig(retention_ms=-1, retention_bytes=-1)
COMPACT = RetentionConfig(cleanup_policy=("compact",), retention_ms=0, retention_bytes=0)


def segments(*times_ms: int, log_bytes: int = 360) -> tuple[SegmentState, ...]:
    """Segments of five offsets each."""
    return tuple(SegmentState(5 * number, log_bytes, time_ms) for number, time_ms in enumerate(times_ms))


THREE = segments(NOW_MS, NOW_MS, NOW_MS)


def plan(
    config: RetentionConfig,
    log: tuple[SegmentState, ...] = THREE,
    *,
    start: int = 0,
    high_watermark: int = 15,
    end: int = 15,
    now_ms: int = NOW_MS,
    unverified_from: int | None = None,
) -> RetentionPlan:
    return plan_retention(
        log,
        config,
        log_start_offset=start,
        high_watermark=high_watermark,
        log_end_offset=end,
        now_ms=now_ms,
        unverified_from_offset=unverified_from,
    )


def gone(result: RetentionPlan) -> list[int]:
    return [fate.segment.base_offset for fate in result.deleted]


@pytest.mark.parametrize(
    ("retention_bytes", "expected", "start"),
    [(1080, [], 0), (1079, [], 0), (721, [], 0), (720, [0], 5), (719, [0], 5), (360, [0, 5], 10), (0, [0, 5, 10], 15)],
)
def test_rt_01_a_segment_goes_while_the_rest_holds_retention_bytes(retention_bytes, expected, start):
    result = plan(replace(UNLIMITED, retention_bytes=retention_bytes))
    assert (gone(result), result.log_start_offset) == (expected, start)
    assert result.rolls_active == (len(expected) == 3)


@pytest.mark.parametrize(("high_watermark", "expected"), [(0, []), (5, [0]), (9, [0]), (10, [0, 5]), (14, [0, 5])])
@pytest.mark.parametrize("config", [replace(UNLIMITED, retention_bytes=0), replace(UNLIMITED, retention_ms=0)])
def test_rt_02_nothing_above_the_high_watermark_goes(config, high_watermark, expected):
    result = plan(config, high_watermark=high_watermark, now_ms=NOW_MS + 1)
    assert gone(result) == expected
    assert result.kept[-1].kept is KeepReason.HIGH_WATERMARK


@pytest.mark.parametrize(("age_ms", "expected"), [(1000, []), (1001, [0, 5, 10])])
def test_rt_03_a_segment_goes_when_it_is_older_than_retention_ms(age_ms, expected):
    result = plan(replace(UNLIMITED, retention_ms=1000), segments(*[NOW_MS - age_ms] * 3))
    assert (gone(result), result.rolls_active) == (expected, bool(expected))


def test_rt_05_an_old_segment_after_a_newer_one_stays():
    old, new = NOW_MS - 2000, NOW_MS
    result = plan(replace(UNLIMITED, retention_ms=1000), segments(old, new, old))
    assert gone(result) == [0]
    assert [fate.kept for fate in result.kept] == [KeepReason.WITHIN_LIMITS, KeepReason.AFTER_KEPT]
    assert [fate.goes_at_ms for fate in result.fates] == [None, new + 1001, new + 1001]


def test_rt_06_without_limits_nothing_goes_whatever_the_clock():
    result = plan(UNLIMITED, now_ms=2**62)
    assert gone(result) == []
    assert {(fate.kept, fate.goes_at_ms) for fate in result.fates} == {(KeepReason.UNLIMITED, None)}


@pytest.mark.parametrize("policy", [("compact",), ()])
def test_rt_07_a_policy_without_delete_only_lets_go_what_is_below_the_log_start(policy):
    config = replace(COMPACT, cleanup_policy=policy)
    assert gone(plan(config, now_ms=2**62)) == []
    result = plan(config, start=5, now_ms=2**62)
    assert [(fate.segment.base_offset, fate.rule) for fate in result.deleted] == [(0, Rule.LOG_START)]
    assert {fate.kept for fate in result.kept} == {KeepReason.POLICY}


def test_compact_and_delete_expires_like_delete():
    config = RetentionConfig(cleanup_policy=("compact", "delete"), retention_ms=-1, retention_bytes=720)
    assert gone(plan(config)) == [0]


@pytest.mark.parametrize(("start", "expected"), [(1, []), (5, [0]), (6, [0]), (10, [0, 5]), (15, [0, 5])])
def test_rt_08_the_log_start_offset_lets_go_whole_segments_but_never_the_active_one(start, expected):
    result = plan(UNLIMITED, start=start)
    assert (gone(result), result.log_start_offset, result.rolls_active) == (expected, start, False)


@pytest.mark.parametrize(("retention_bytes", "retention_ms"), [(0, 0), (-1, 0), (0, -1)])
def test_rt_13_rt_14_rt_20_an_empty_active_segment_stays(retention_bytes, retention_ms):
    config = RetentionConfig(retention_bytes=retention_bytes, retention_ms=retention_ms)
    empty = (SegmentState(15, 0, 0),)
    result = plan(config, empty, start=15, now_ms=2**62)
    assert (gone(result), result.log_start_offset, result.fates[0].kept) == ([], 15, KeepReason.EMPTY)
    assert gone(plan(config, THREE + empty, now_ms=2**62)) == [0, 5, 10]


@pytest.mark.parametrize("records", [1, 25])
def test_rt_20_with_retention_ms_0_everything_goes_and_an_empty_segment_is_rolled(records):
    log = tuple(SegmentState(base, 72, NOW_MS - 1) for base in range(0, records, 5))
    result = plan(replace(UNLIMITED, retention_ms=0), log, high_watermark=records, end=records)
    assert len(result.deleted) == len(log)
    assert (result.rolls_active, result.log_start_offset) == (True, records)


def test_the_rules_run_one_after_the_other_on_what_the_one_before_left():
    log = segments(NOW_MS, NOW_MS, NOW_MS - 5000, NOW_MS)
    config = RetentionConfig(retention_ms=1000, retention_bytes=720)
    result = plan(config, log, start=5, high_watermark=20, end=20)
    assert [fate.rule for fate in result.deleted] == [Rule.LOG_START, Rule.SIZE, Rule.TIME]
    assert result.log_start_offset == 15


def test_nothing_of_a_tiered_log_goes_unless_it_is_no_longer_copied():
    tiered = RetentionConfig(retention_ms=0, remote_storage_enable=True)
    assert {fate.kept for fate in plan(tiered, start=10, now_ms=2**62).fates} == {KeepReason.TIERED}
    assert gone(plan(replace(tiered, remote_log_copy_disable=True), now_ms=2**62)) == [0, 5, 10]


def test_after_an_unclean_stop_nothing_from_the_recovery_point_on_goes():
    result = plan(replace(UNLIMITED, retention_ms=0), now_ms=2**62, unverified_from=5)
    assert gone(result) == [0]
    assert {(fate.kept, fate.goes_at_ms) for fate in result.kept} == {(KeepReason.UNVERIFIED, None)}


def test_without_room_to_roll_the_active_segment_stays():
    result = plan(replace(UNLIMITED, retention_bytes=0)).keeping_active()
    assert (gone(result), result.log_start_offset, result.rolls_active) == ([0, 5], 10, False)
    assert result.kept[0].kept is KeepReason.NO_ROOM
    only = plan(replace(UNLIMITED, retention_bytes=0), segments(NOW_MS), high_watermark=5, end=5).keeping_active()
    assert (gone(only), only.log_start_offset) == ([], 0)
    partial = plan(replace(UNLIMITED, retention_bytes=720))
    assert partial.keeping_active() == partial


def test_every_fate_is_explained_in_words_of_its_own():
    plans = [
        plan(UNLIMITED),
        plan(UNLIMITED, start=5),
        plan(COMPACT),
        plan(replace(UNLIMITED, retention_bytes=720)),
        plan(replace(UNLIMITED, retention_ms=0), now_ms=2**62, high_watermark=5),
        plan(replace(UNLIMITED, retention_ms=0), segments(0, NOW_MS, 0)),
        plan(replace(UNLIMITED, retention_ms=0), now_ms=2**62, unverified_from=5),
        plan(UNLIMITED, (SegmentState(15, 0, 0),)),
        plan(RetentionConfig(remote_storage_enable=True)),
        plan(replace(UNLIMITED, retention_bytes=0)).keeping_active(),
    ]
    said = {fate.rule or fate.kept: explain_retention(fate, UNLIMITED) for result in plans for fate in result.fates}
    assert set(said) == {*Rule, *KeepReason}
    assert len(set(said.values())) == len(said)
    assert said[KeepReason.POLICY] == "cleanup.policy is delete, and the segment ends at or above the log start offset"


# ------------------------------------------------------------------------------------------------- what always holds
@st.composite
def logs(draw: st.DrawFn) -> dict:
    sizes = draw(st.lists(st.integers(0, 50), min_size=1, max_size=8))
    widths = draw(st.lists(st.integers(1, 5), min_size=len(sizes), max_size=len(sizes)))
    base = first = draw(st.integers(0, 20))
    log = []
    for size, width in zip(sizes, widths, strict=True):
        log.append(SegmentState(base, size, draw(st.integers(0, 100))))
        base += width
    # An active segment without bytes ends where it begins.
    end = log[-1].base_offset if log[-1].log_bytes == 0 else base
    start = draw(st.integers(first, end))
    return {"log": tuple(log), "start": start, "end": end, "high_watermark": draw(st.integers(start, end))}


configs = st.builds(
    RetentionConfig,
    cleanup_policy=st.sampled_from([("delete",), ("compact", "delete"), ("compact",), ()]),
    retention_ms=st.integers(-1, 120),
    retention_bytes=st.integers(-1, 300),
)


@given(logs(), configs, st.integers(0, 250))
def test_what_goes_is_a_prefix_below_the_high_watermark_and_one_segment_is_left(log, config, now_ms):
    result = plan(config, now_ms=now_ms, **log)
    assert [fate.segment for fate in result.fates] == list(log["log"])
    assert [fate.rule is None for fate in result.fates] == sorted(fate.rule is None for fate in result.fates)
    assert all((fate.rule is None) != (fate.kept is None) for fate in result.fates)
    assert result.log_start_offset <= log["high_watermark"]
    assert result.log_start_offset >= log["start"]
    assert result.rolls_active == (not result.kept)
    if result.kept:
        assert log["start"] == result.log_start_offset or result.log_start_offset == result.kept[0].segment.base_offset
    else:
        assert result.log_start_offset == log["end"]


@given(logs(), configs, st.integers(0, 250), st.integers(0, 50))
def test_a_later_clock_a_higher_watermark_or_a_lower_limit_never_keeps_more(log, config, now_ms, more):
    before = len(plan(config, now_ms=now_ms, **log).deleted)
    assert len(plan(config, now_ms=now_ms + more, **log).deleted) >= before
    higher = {**log, "high_watermark": min(log["end"], log["high_watermark"] + more)}
    assert len(plan(config, now_ms=now_ms, **higher).deleted) >= before
    if config.retention_bytes >= 0:
        lower = replace(config, retention_bytes=max(0, config.retention_bytes - more))
        assert len(plan(lower, now_ms=now_ms, **log).deleted) >= before


@given(logs(), configs, st.integers(0, 250))
def test_a_second_run_finds_nothing_to_do(log, config, now_ms):
    first = plan(config, now_ms=now_ms, **log)
    left = tuple(fate.segment for fate in first.kept) or (SegmentState(log["end"], 0, now_ms),)
    again = plan(config, now_ms=now_ms, **{**log, "log": left, "start": first.log_start_offset})
    assert (again.deleted, again.log_start_offset) == ((), first.log_start_offset)


@given(logs(), configs, st.integers(0, 250))
def test_a_segment_goes_at_the_clock_that_was_foretold_and_not_before(log, config, now_ms):
    for place, fate in enumerate(plan(config, now_ms=now_ms, **log).fates):
        if fate.goes_at_ms is not None:
            assert len(plan(config, now_ms=max(now_ms, fate.goes_at_ms), **log).deleted) > place
            if fate.goes_at_ms > now_ms:
                assert len(plan(config, now_ms=fate.goes_at_ms - 1, **log).deleted) <= place


EXTREMES = st.sampled_from([0, NOW_MS, INT64_MAX - NOW_MS, INT64_MAX - 1, INT64_MAX])


@given(st.lists(EXTREMES, min_size=1, max_size=3), st.one_of(st.just(-1), EXTREMES), EXTREMES)
def test_extreme_times_go_as_unbounded_numbers_do_and_no_clock_is_foretold_that_never_comes(
    times, retention_ms, now_ms
):
    config = replace(UNLIMITED, retention_ms=retention_ms)
    result = plan(config, segments(*times), now_ms=now_ms, high_watermark=5 * len(times), end=5 * len(times))
    is_old = [retention_ms >= 0 and now_ms - time_ms > retention_ms for time_ms in times]
    assert len(result.deleted) == [*is_old, False].index(False)
    assert all(fate.goes_at_ms is None or now_ms < fate.goes_at_ms <= INT64_MAX for fate in result.kept)


def test_no_clock_lets_a_segment_go_whose_time_lies_beyond_the_last_moment():
    config = replace(UNLIMITED, retention_ms=INT64_MAX - NOW_MS)
    fates = plan(config, segments(NOW_MS - 1, NOW_MS, NOW_MS - 1)).fates
    assert [fate.goes_at_ms for fate in fates] == [INT64_MAX, None, None]
