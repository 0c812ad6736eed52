"""The range in which a log could be cleaned, and differences that segments alone show."""

from dataclasses import replace

import pytest

from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.verification.cleaned_range import LogFacts, SegmentFacts, cleaned_range, segment_differences

NOW_MS = 1_000_000


def facts(*bases, end, first_open=None, **checkpoints):
    """Return a log of full segments at `bases`, the last one up to `end`."""
    segments = tuple(
        SegmentFacts(base, 100, 500, *((base, following - 1, 10 * following) if following > base else (None, None)))
        for base, following in zip(bases, [*bases[1:], end], strict=True)
    )
    return LogFacts(segments, first_open, PartitionCheckpoints(**checkpoints))


def range_of(before, after=None, *, lag_ms=0, retention_ms=100):
    after = before if after is None else after
    return cleaned_range(before, after, now_ms=NOW_MS, min_lag_ms=lag_ms, delete_retention_ms=retention_ms)


def found(before, after):
    return [d.check for d in segment_differences(before, after, range_of(before, after))]


@pytest.mark.parametrize(
    ("log", "first_uncleanable"),
    [
        (facts(0, 10, 20, 30, end=40), 30),
        (facts(0, 10, 20, 30, end=30), 30),
        (facts(0, 10, 20, 30, end=40, first_open=25), 20),
        (facts(0, 10, 20, 30, end=40, high_watermark=19, high_watermark_file=True), 10),
        (facts(0, 10, 20, 30, end=40, high_watermark_file=True), 0),
        (facts(5, end=40), 5),
    ],
)
def test_a_log_is_cleaned_below_its_active_segment_and_what_is_not_stable(log, first_uncleanable):
    cleaned = range_of(log)
    assert (cleaned.first_uncleanable, cleaned.limit, cleaned.end) == (first_uncleanable,) * 3
    assert not cleaned.is_claimed


def test_young_segments_end_the_range_from_the_first_dirty_one_on():
    log = facts(0, 10, 20, 30, end=40)
    assert range_of(log, lag_ms=NOW_MS - 150).first_uncleanable == 10
    later = replace(log, checkpoints=PartitionCheckpoints(first_dirty=20))
    assert range_of(later, lag_ms=NOW_MS - 150).first_uncleanable == 20
    assert range_of(log, lag_ms=NOW_MS - 1000).first_uncleanable == 30


def test_a_checkpoint_claims_offsets_and_touches_whole_segments():
    before = facts(0, 10, 20, 30, end=40)
    cleaned = range_of(before, replace(before, checkpoints=PartitionCheckpoints(first_dirty=15)))
    assert (cleaned.limit, cleaned.end, cleaned.is_claimed) == (15, 20, True)


def test_a_rolled_active_segment_could_be_cleaned():
    before, after = facts(0, 10, end=20), facts(0, 10, 20, end=20)
    assert range_of(before, after).first_uncleanable == 20
    assert found(before, after) == []


def test_tombstones_of_old_formats_go_by_the_age_of_their_segment():
    log = facts(0, 10, 20, 30, end=40, first_dirty=20)
    old, *rest = log.segments
    aged = replace(log, segments=(replace(old, modified_ms=400), *rest))
    assert range_of(aged).legacy_expired == (0,)
    assert range_of(aged, retention_ms=101).legacy_expired == ()
    assert range_of(replace(aged, checkpoints=PartitionCheckpoints())).legacy_expired == ()


@pytest.mark.parametrize(
    ("after", "checks"),
    [
        (facts(0, 20, 30, end=40), []),
        (facts(0, 10, 30, end=41), ["log_end"]),
        (facts(0, 15, 30, end=40), ["segments"]),
        (facts(10, 20, 30, end=40), ["log_start", "segments"]),
        (facts(0, 10, 20, end=40), ["untouched"]),
        (facts(0, 10, 20, 30, end=40, log_start=7), ["log_start"]),
        (facts(0, 10, 20, 30, end=40, first_dirty=31), ["checkpoint"]),
        (facts(0, 10, 20, 30, end=40, first_dirty=30), []),
        (facts(0, 10, 20, 30, end=40, high_watermark=40, high_watermark_file=True), []),
    ],
)
def test_segments_and_ends_that_no_compaction_leaves_are_named(after, checks):
    assert found(facts(0, 10, 20, 30, end=40), after) == checks


def test_offsets_belong_into_their_segment_and_ascend_unless_they_never_did():
    before = facts(0, 10, 20, end=30)
    one, two, three = before.segments
    for segments in (
        (replace(one, last_offset=12), two, three),
        (one, replace(two, first_offset=9), three),
        (one, replace(two, disorder=2), three),
    ):
        after = replace(before, segments=segments)
        assert found(before, after) == ["order"]
        assert found(replace(before, segments=(replace(one, disorder=1), two, three)), after) == []
    alone = replace(before, segments=(one, replace(two, disorder=1), three))
    (difference,) = segment_differences(before, alone, range_of(before, alone))
    assert difference.what == "segment 10 has 1 batch whose offsets are not above the previous batch"


def test_a_segment_that_began_below_the_end_of_the_one_before_it_may_stay_so():
    before = facts(0, 10, 20, end=25)
    one, two, three = before.segments
    overlap = replace(before, segments=(replace(one, last_offset=12), two, three))
    assert found(overlap, overlap) == []
    assert found(before, overlap) == ["order"]
    merged = replace(before, segments=(replace(one, last_offset=19, disorder=1), three))
    assert found(overlap, merged) == []
    assert found(overlap, replace(merged, segments=(replace(one, last_offset=19, disorder=2), three))) == ["order"]


def test_a_checkpoint_neither_goes_back_nor_away_but_a_wrong_one_is_mended():
    before = facts(0, 10, 20, end=30, first_dirty=10)
    assert found(before, facts(0, 10, 20, end=30, first_dirty=5)) == ["checkpoint"]
    assert found(before, facts(0, 10, 20, end=30)) == ["checkpoint"]
    beyond = replace(before, checkpoints=PartitionCheckpoints(first_dirty=99))
    assert found(beyond, facts(0, 10, 20, end=30, first_dirty=20)) == []


@pytest.mark.parametrize(
    ("checkpoints", "checks"),
    [
        ({"high_watermark": 39, "high_watermark_file": True}, ["checkpoint"]),
        ({"high_watermark_file": True}, ["checkpoint"]),
        ({}, []),
        ({"high_watermark": 41, "high_watermark_file": True}, []),
    ],
)
def test_a_high_watermark_does_not_go_back(checkpoints, checks):
    before = facts(0, 10, 20, end=40, high_watermark=40, high_watermark_file=True)
    assert found(before, facts(0, 10, 20, end=40, **checkpoints)) == checks


def test_a_segment_holds_no_more_offsets_than_an_index_can_tell_unless_it_did():
    wide = facts(0, 2**31 + 1, 2**31 + 2, end=2**31 + 3)
    before = facts(0, 10, 2**31 + 1, 2**31 + 2, end=2**31 + 3)
    assert found(before, wide) == ["order"]
    assert found(wide, wide) == []


def modified(log, **times):
    """`log` with other modification times, by base offset."""
    segments = (
        replace(segment, modified_ms=times.get(f"at_{segment.base_offset}", segment.modified_ms))
        for segment in log.segments
    )
    return replace(log, segments=tuple(segments))


def test_modification_times_are_kept_where_retention_or_old_formats_go_by_them():
    times = {"at_0": 100, "at_10": 200, "at_20": 300}
    before = modified(facts(0, 10, 20, 30, end=40), **times)
    merged = facts(0, 20, 30, end=40)
    right, wrong = modified(merged, at_0=200, at_20=300), modified(merged, at_0=100, at_20=300)
    assert found(before, right) == found(before, wrong) == []

    def without_timestamps(log):
        return replace(log, segments=tuple(replace(segment, largest_ms=-1) for segment in log.segments))

    def with_an_old_message(log):
        return replace(log, segments=(*log.segments[:-1], replace(log.segments[-1], has_legacy=True)))

    for change in (without_timestamps, with_an_old_message):
        assert found(before, change(right)) == []
        assert found(before, change(wrong)) == ["modified"]
