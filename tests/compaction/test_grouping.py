"""Groups of segments that are cleaned together (kafka-log 02 §5), and the plan."""

import pytest

from sediment.compaction.cleanable_range import cleanable_range
from sediment.compaction.config import CompactionConfig
from sediment.compaction.grouping import group_segments, plan_cleaning
from sediment.segment_io.format.layout import INT32_MAX
from sediment.segment_io.format.names import parse_partition_directory
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import SegmentRef, list_log
from sediment.segment_io.partition.log_view import open_view
from tests.corpus import cleaning_cases, load_case
from tests.segments import NOW_MS, log_view

HUGE = 2**31 - 1


def segment(base_offset, log_bytes=300, *, offset_index_bytes=80, time_index_bytes=120):
    return SegmentRef(base_offset, log_bytes, offset_index_bytes, time_index_bytes, None, 0)


def bases(segments, *, end=None, first_uncleanable=None, segment_bytes=HUGE, segment_index_bytes=HUGE):
    """Base offsets of the segments of each group; the last one ends ten offsets after its base."""
    end = (segments[-1].base_offset + 10 if segments else 0) if end is None else end
    config = CompactionConfig(segment_bytes=segment_bytes, segment_index_bytes=segment_index_bytes)
    groups = group_segments(segments, end, end if first_uncleanable is None else first_uncleanable, config)
    return [[member.base_offset for member in group.segments] for group in groups]


TEN = [segment(10 * index) for index in range(10)]
SINGLETONS = [[10 * index] for index in range(10)]
THREES = [[0, 10, 20], [30, 40, 50], [60, 70, 80], [90]]


def test_cp_35_without_limits_everything_is_one_group():
    assert bases(TEN) == [[10 * index for index in range(10)]]


def test_cp_35_a_limit_of_one_byte_makes_every_segment_a_group():
    assert bases(TEN, segment_bytes=1) == SINGLETONS
    assert bases(TEN, segment_index_bytes=1) == SINGLETONS


def test_cp_35_groups_fill_up_to_the_segment_size():
    assert bases(TEN, segment_bytes=901) == THREES
    assert bases(TEN, segment_bytes=900) == THREES
    assert bases(TEN, segment_bytes=899) == [[0, 10], [20, 30], [40, 50], [60, 70], [80, 90]]


def test_cp_35_groups_fill_up_to_the_size_of_either_index():
    assert bases([segment(10 * index, time_index_bytes=0) for index in range(10)], segment_index_bytes=241) == THREES
    assert bases([segment(10 * index, offset_index_bytes=0) for index in range(10)], segment_index_bytes=361) == THREES


def test_only_whole_index_entries_count_and_a_missing_index_counts_nothing():
    odd = [segment(10 * index, offset_index_bytes=87, time_index_bytes=None) for index in range(10)]
    assert bases(odd, segment_index_bytes=240) == THREES


def test_cp_36_a_group_spans_at_most_31_bits_of_offsets():
    first = segment(0)
    assert bases([first, segment(INT32_MAX - 5)], end=INT32_MAX + 1) == [[0, INT32_MAX - 5]]
    assert bases([first, segment(INT32_MAX - 5)], end=INT32_MAX + 2) == [[0], [INT32_MAX - 5]]
    followed = [first, segment(5), segment(INT32_MAX + 2)]
    assert bases(followed, end=INT32_MAX + 9) == [[0], [5], [INT32_MAX + 2]]


def test_cp_36_an_empty_segment_joins_whatever_its_offsets():
    assert bases([segment(0), segment(INT32_MAX + 5, log_bytes=0)]) == [[0, INT32_MAX + 5]]


def test_the_first_uncleanable_offset_and_not_the_end_bounds_the_last_segment():
    segments = [segment(0), segment(INT32_MAX - 5)]
    assert bases(segments, end=INT32_MAX, first_uncleanable=INT32_MAX + 2) == [[0], [INT32_MAX - 5]]


def test_groups_go_from_the_first_segment_through_the_one_with_the_last_mapped_offset():
    assert bases(TEN, end=31, segment_bytes=600) == [[0, 10], [20, 30]]
    assert bases(TEN, end=30, segment_bytes=600) == [[0, 10], [20]]
    assert bases(TEN, end=0) == []
    assert bases([]) == []


def test_a_segment_larger_than_the_limit_is_a_group_of_its_own():
    assert bases([segment(0, 100), segment(10, 5000), segment(20, 100)], segment_bytes=1000) == [[0], [10], [20]]


def test_a_group_knows_its_base_its_size_and_its_last_offset():
    groups = group_segments(TEN[:5], 45, 50, CompactionConfig(segment_bytes=900))
    assert [(group.base_offset, group.log_bytes, group.last_offset) for group in groups] == [
        (0, 900, 29),
        (30, 600, 49),
    ]


# ------------------------------------------------------------------------------------------------------------- plans
def plan(view):
    config = CompactionConfig(cleanup_policy=("compact",))
    found = cleanable_range(view, config, now_ms=NOW_MS, force=True)
    return plan_cleaning(view, found, config, now_ms=NOW_MS)


def test_a_plan_ends_at_the_first_uncleanable_segment():
    planned = plan(log_view([(0, 100), (10, 100), (20, 100), (30, 0)], end=30, checkpoint=10, last_stable=25))
    assert planned.end_offset == 20
    assert [group.base_offset for group in planned.groups] == [0]
    assert planned.groups[0].last_offset == 19


def test_an_empty_dirty_range_plans_nothing_and_moves_no_checkpoint():
    planned = plan(log_view([(0, 100), (10, 100)], end=20, checkpoint=15))
    assert (planned.end_offset, planned.groups) == (15, ())


RELEVANT = ("segment.bytes", "segment.index.bytes", "min.compaction.lag.ms")


@pytest.mark.parametrize("name", [name for name in cleaning_cases(magic2_only=False) if name != "small-map"])
def test_every_round_of_kafkas_cleaner_leaves_the_planned_segments(name, tmp_path):
    case = load_case(name, tmp_path)
    partition, _ = parse_partition_directory(case.partition)
    sizes = {key.replace(".", "_"): int(value) for key, value in case.configs.items() if key in RELEVANT}
    config = CompactionConfig(cleanup_policy=("compact",), **sizes)
    for given in case.rounds:
        listing = list_log(partition, given.before, Fs())
        view = open_view(
            listing,
            PartitionCheckpoints(first_dirty=given.dirty),
            Fs(),
            now_ms=given.now_ms,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
        )
        found = cleanable_range(view, config, now_ms=given.now_ms, force=True)
        planned = plan_cleaning(view, found, config, now_ms=given.now_ms)
        untouched = [ref.base_offset for ref in listing.segments if ref.base_offset >= found.first_uncleanable_offset]
        assert planned.end_offset == given.kafka.end_offset
        assert (*(group.base_offset for group in planned.groups), *untouched) == given.kafka.segments
