"""The cleanable range: Kafka's scenarios (kafka-log 07 D), its own rounds, and the rules that block."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.compaction.cleanable_range import BlockingRule, cleanable_range
from sediment.compaction.config import CompactionConfig
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import parse_partition_directory
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import open_view
from sediment.segment_io.partition.producer_state import ProducerEntry
from tests.corpus import cleaning_cases, load_case
from tests.segments import NOW_MS, log_view

HOUR_MS = 3_600_000


def config(**changes):
    return CompactionConfig(cleanup_policy=("compact",), **changes)


def range_of(view, *, now_ms=NOW_MS, force=False, from_start=False, **changes):
    return cleanable_range(view, config(**changes), now_ms=now_ms, force=force, from_start=from_start)


def with_ratio(clean_bytes, dirty_bytes):
    """Return a log of ten clean and ten dirty offsets in these bytes, and an empty active segment."""
    return log_view([(0, clean_bytes), (10, dirty_bytes), (20, 0)], end=20, checkpoint=10)


# --------------------------------------------------------------------------------------------------------- the ratio
def test_cm_03_a_ratio_equal_to_the_minimum_is_not_enough():
    assert range_of(with_ratio(50, 50)).blocked_by is BlockingRule.DIRTY_RATIO
    assert range_of(with_ratio(49, 51)).blocked_by is None


# -------------------------------------------------------------------------------------------------- the first offset
def test_cm_04_a_checkpoint_beyond_the_log_end_falls_back_to_the_log_start():
    found = range_of(log_view([(0, 100), (10, 100)], end=20, checkpoint=200))
    assert (found.first_dirty_offset, found.force_checkpoint) == (0, 0)


def test_cm_05_a_checkpoint_below_the_log_start_is_raised_even_if_the_log_is_not_selected():
    found = range_of(log_view([(0, 100), (20, 100)], end=30, start=10, checkpoint=0), min_cleanable_dirty_ratio=1.0)
    assert (found.first_dirty_offset, found.force_checkpoint) == (10, 10)
    assert found.blocked_by is BlockingRule.DIRTY_RATIO


def test_cm_06_an_emptied_log_selects_nothing_and_raises_its_checkpoint():
    found = range_of(log_view([(20, 0)], end=20, start=20, checkpoint=15), force=True)
    assert (found.blocked_by, found.force_checkpoint) == (BlockingRule.NOTHING_DIRTY, 20)


def test_cm_07_a_first_dirty_offset_inside_the_active_segment_selects_nothing():
    start_inside = range_of(log_view([(0, 100)], end=5, start=2, checkpoint=0), force=True)
    assert (start_inside.first_dirty_offset, start_inside.blocked_by) == (2, BlockingRule.ACTIVE_SEGMENT)
    checkpoint_inside = range_of(log_view([(0, 100)], end=5, start=2, checkpoint=3), force=True)
    assert (checkpoint_inside.first_dirty_offset, checkpoint_inside.blocked_by) == (3, BlockingRule.ACTIVE_SEGMENT)


def test_a_checkpoint_at_the_log_end_is_accepted():
    found = range_of(log_view([(0, 100), (10, 100)], end=20, checkpoint=20), force=True)
    assert (found.first_dirty_offset, found.force_checkpoint) == (20, None)
    assert found.blocked_by is BlockingRule.NOTHING_DIRTY


def test_a_checkpoint_at_the_log_start_is_not_rewritten():
    assert range_of(log_view([(0, 100), (10, 0)], end=10, start=4, checkpoint=4)).force_checkpoint is None


def test_from_start_ignores_the_checkpoint_and_does_not_correct_it():
    view = log_view([(0, 100), (10, 100), (20, 0)], end=20, checkpoint=200)
    found = range_of(view, from_start=True)
    assert (found.first_dirty_offset, found.force_checkpoint, found.cleanable_bytes) == (0, None, 200)


# -------------------------------------------------------------------------------------------------- the last offset
def test_cm_08_the_high_watermark_bounds_and_is_rounded_down_to_a_segment_base():
    found = range_of(log_view([(0, 100), (2, 100), (4, 100)], end=6, high_watermark=3))
    assert found.first_uncleanable_offset == 2
    assert found.cleanable_bytes == 100


def test_cm_09_segments_younger_than_the_minimum_lag_wait():
    early, late = NOW_MS, NOW_MS + HOUR_MS + 1
    segments = [(base, 100, early if base < 30 else late) for base in range(0, 80, 10)]
    found = range_of(log_view(segments, end=80), now_ms=late, min_compaction_lag_ms=HOUR_MS)
    assert found.first_uncleanable_offset == 30
    same_time = [(base, 100, early) for base in range(0, 80, 10)]
    found = range_of(log_view(same_time, end=80), now_ms=late, min_compaction_lag_ms=HOUR_MS)
    assert found.first_uncleanable_offset == 70


def test_cm_10_a_segment_is_old_enough_exactly_when_its_lag_has_passed():
    view = log_view([(0, 100, 5000), (10, 0)], end=10)
    young = range_of(view, now_ms=5999, min_compaction_lag_ms=1000)
    assert (young.blocked_by, young.unblocks_at_ms) == (BlockingRule.MIN_COMPACTION_LAG, 6000)
    assert range_of(view, now_ms=6000, min_compaction_lag_ms=1000).blocked_by is None


def test_a_young_segment_holds_back_older_ones_after_it():
    view = log_view([(0, 100, 1000), (10, 100, 9000), (20, 100, 1000), (30, 0)], end=30)
    assert range_of(view, now_ms=9500, min_compaction_lag_ms=1000).first_uncleanable_offset == 10


def test_a_young_segment_below_the_first_dirty_offset_does_not_count():
    view = log_view([(0, 100, 9000), (10, 300, 1000), (20, 0)], end=20, checkpoint=10)
    assert range_of(view, now_ms=9500, min_compaction_lag_ms=1000).first_uncleanable_offset == 20


def test_cm_11_an_open_transaction_bounds_until_its_marker_and_then_the_lag_does():
    lag = {"min_compaction_lag_ms": HOUR_MS}
    opened = range_of(log_view([(0, 100, NOW_MS), (3, 0)], end=3, last_stable=0), now_ms=NOW_MS, **lag)
    assert (opened.first_uncleanable_offset, opened.blocked_by) == (0, BlockingRule.OPEN_TRANSACTION)
    assert opened.unblocks_at_ms is None
    later = NOW_MS + HOUR_MS
    aborted = log_view([(0, 100, NOW_MS), (3, 78, later), (4, 0)], end=4)
    assert range_of(aborted, now_ms=later, **lag).first_uncleanable_offset == 3
    assert range_of(aborted, now_ms=later + HOUR_MS, **lag).first_uncleanable_offset == 4


def test_a_transaction_open_since_before_the_checkpoint_bounds_at_the_checkpoint():
    found = range_of(log_view([(0, 100), (10, 100), (20, 0)], end=20, checkpoint=15, last_stable=5), force=True)
    assert found.first_uncleanable_offset == 10
    assert (found.cleanable_bytes, found.blocked_by) == (0, BlockingRule.OPEN_TRANSACTION)


def test_nothing_from_the_recovery_points_segment_on_is_cleaned_after_an_unclean_stop():
    view = log_view([(0, 100), (10, 100), (20, 100), (30, 0)], end=30, unverified_from=20)
    assert range_of(view).first_uncleanable_offset == 20
    all_unverified = range_of(log_view([(0, 100), (10, 0)], end=10, unverified_from=0), force=True)
    assert (all_unverified.blocked_by, all_unverified.unblocks_at_ms) == (BlockingRule.UNCLEAN, None)


# -------------------------------------------------------------------------------------------------- bytes and ratio
def test_cm_24_clean_and_cleanable_bytes_leave_out_what_is_uncleanable():
    found = range_of(log_view([(0, 100), (2, 100), (4, 100)], end=6, checkpoint=2))
    assert (found.clean_bytes, found.cleanable_bytes, found.cleanable_ratio) == (100, 100, 0.5)


def test_a_segment_with_the_checkpoint_in_its_middle_counts_twice():
    found = range_of(log_view([(0, 100), (10, 100), (20, 100), (30, 0)], end=30, checkpoint=15))
    assert (found.clean_bytes, found.cleanable_bytes, found.cleanable_ratio) == (200, 200, 0.5)


def test_the_log_start_need_not_be_a_segment_base():
    found = range_of(log_view([(0, 100), (10, 100), (20, 0)], end=20, start=5))
    assert (found.first_dirty_offset, found.clean_bytes, found.cleanable_bytes) == (5, 100, 200)


# --------------------------------------------------------------------------------------------------- the maximum lag
def test_cm_12_a_dirty_batch_older_than_the_maximum_lag_selects_the_log():
    def overdue(first_batch_ms, now_ms):
        view = log_view([(0, 900), (10, 100), (20, 0)], end=20, checkpoint=10, first_batch_ms=[1, first_batch_ms])
        return range_of(view, now_ms=now_ms, max_compaction_lag_ms=1000)

    assert overdue(5000, 6001).blocked_by is None
    waiting = overdue(5000, 6000)
    assert (waiting.blocked_by, waiting.unblocks_at_ms) == (BlockingRule.DIRTY_RATIO, 6001)
    for ignored_ms in (0, -1):
        assert overdue(ignored_ms, 6001).blocked_by is BlockingRule.DIRTY_RATIO
        assert overdue(ignored_ms, 6001).unblocks_at_ms is None


def test_cm_13_exceeded_lag_does_not_select_a_log_without_dirty_bytes():
    view = log_view([(0, 100), (10, 0), (20, 100)], end=25, checkpoint=10, first_batch_ms=[1, 1])
    found = range_of(view, now_ms=NOW_MS, max_compaction_lag_ms=1000)
    assert (found.must_compact, found.cleanable_bytes) == (True, 0)
    assert found.blocked_by is BlockingRule.ACTIVE_SEGMENT


# ---------------------------------------------------------------------------------------------------- what blocks
def test_force_ignores_the_ratio_and_nothing_else():
    assert range_of(with_ratio(99, 1)).blocked_by is BlockingRule.DIRTY_RATIO
    assert range_of(with_ratio(99, 1), force=True).blocked_by is None
    assert range_of(log_view([(0, 100)], end=10), force=True).blocked_by is BlockingRule.ACTIVE_SEGMENT


def test_a_topic_without_compaction_is_left_alone_with_its_checkpoint():
    view = log_view([(0, 100), (10, 100)], end=20, checkpoint=200)
    found = cleanable_range(view, CompactionConfig(cleanup_policy=("delete",)), now_ms=NOW_MS, force=True)
    assert (found.blocked_by, found.force_checkpoint) == (BlockingRule.NOT_COMPACTED, None)


def test_an_unknown_high_watermark_blocks():
    found = range_of(log_view([(0, 100), (10, 0)], end=10, high_watermark=None), force=True)
    assert found.blocked_by is BlockingRule.NO_HIGH_WATERMARK


def test_a_high_watermark_inside_the_first_dirty_segment_blocks():
    found = range_of(log_view([(0, 100), (10, 0)], end=10, high_watermark=7), force=True)
    assert found.blocked_by is BlockingRule.HIGH_WATERMARK


def test_segments_without_bytes_are_nothing_dirty():
    assert range_of(log_view([(0, 0), (10, 0)], end=10)).blocked_by is BlockingRule.NOTHING_DIRTY


def test_a_directory_without_segments_is_nothing_dirty():
    found = range_of(log_view([], end=7, start=7), force=True)
    assert (found.first_dirty_offset, found.blocked_by) == (7, BlockingRule.NOTHING_DIRTY)


# ----------------------------------------------------------------------------------------------- when time unblocks
def test_the_lag_of_more_segments_can_be_needed_to_exceed_the_ratio():
    view = log_view([(0, 100), (10, 60, 1000), (20, 60, 4000), (30, 60, 3000), (40, 0)], end=40, checkpoint=10)
    found = range_of(view, now_ms=1500, min_compaction_lag_ms=1000)
    assert (found.blocked_by, found.unblocks_at_ms) == (BlockingRule.MIN_COMPACTION_LAG, 5000)
    at_the_first = range_of(view, now_ms=2000, min_compaction_lag_ms=1000)
    assert (at_the_first.blocked_by, at_the_first.unblocks_at_ms) == (BlockingRule.DIRTY_RATIO, 5000)
    assert range_of(view, now_ms=4999, min_compaction_lag_ms=1000).blocked_by is BlockingRule.DIRTY_RATIO
    assert range_of(view, now_ms=5000, min_compaction_lag_ms=1000).blocked_by is None


def test_time_does_not_unblock_what_an_open_transaction_holds_back():
    view = log_view([(0, 100, 5000), (10, 0)], end=10, last_stable=4)
    found = range_of(view, now_ms=5500, min_compaction_lag_ms=1000)
    assert (found.blocked_by, found.unblocks_at_ms) == (BlockingRule.OPEN_TRANSACTION, None)


def test_the_maximum_lag_can_come_before_the_ratio():
    view = log_view([(0, 900), (10, 100, 1000), (20, 0)], end=20, checkpoint=10, first_batch_ms=[900, 800])
    found = range_of(view, now_ms=1500, min_compaction_lag_ms=1000, max_compaction_lag_ms=5000)
    assert (found.blocked_by, found.unblocks_at_ms) == (BlockingRule.MIN_COMPACTION_LAG, 5801)


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (log_view([(0, 100), (10, 0)], end=10), "offsets 0 to 10 can be cleaned at dirty ratio 1.000"),
        (with_ratio(90, 10), "dirty ratio 0.100 is not above min.cleanable.dirty.ratio 0.5"),
        (log_view([(0, 100)], end=10), "in the active segment 0"),
        (log_view([(0, 0)], end=0), "no records at or above first dirty offset 0"),
        (log_view([(0, 100), (10, 0)], end=10, last_stable=4), "begins at offset 4 ended at or above the high wat"),
        (log_view([(0, 100), (10, 0)], end=10, high_watermark=7), "high watermark 7"),
        (log_view([(0, 100), (10, 0)], end=10, high_watermark=None), "high watermark is unknown"),
        (log_view([(0, 100), (10, 0)], end=10, unverified_from=0), "segment 0 and all later ones are not cleaned"),
    ],
)
def test_the_reason_is_one_sentence_with_its_numbers(view, words):
    assert words in range_of(view).reason


OPEN = ProducerEntry(4001, 3, timestamp_ms=NOW_MS - 90 * 24 * HOUR_MS, current_txn_first_offset=4)
LATER = ProducerEntry(4002, 0, timestamp_ms=NOW_MS, current_txn_first_offset=6)


def test_a_transaction_that_blocks_is_named_with_the_commands_that_end_it():
    view = log_view([(0, 100), (10, 0)], end=10, last_stable=4, producers=[LATER, OPEN])
    assert range_of(view).reason == (
        "producer 4001 (epoch 3) began a transaction at offset 4, last wrote 90 days ago, and has not ended it (1 more "
        "open after it); start the broker, so that the transaction's coordinator can end it; if it stays open, it "
        "hangs: abort it on the running cluster with `kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic "
        "t --partition 0 --start-offset 4`, on this node while it is stopped with `sediment recover "
        "--abort-open-transactions .`, or in a copy with `sediment clone --abort-open-transactions . --to DIR`"
    )


def test_a_transaction_that_ends_the_cleanable_range_is_named_too():
    segments = [(0, 100), (3, 100), (8, 100), (12, 0)]
    found = range_of(log_view(segments, end=12, last_stable=4, producers=[OPEN]))
    assert (found.blocked_by, found.first_uncleanable_offset) == (None, 3)
    assert "offsets 0 to 3 can be cleaned" in found.reason
    assert "producer 4001 (epoch 3) began a transaction at offset 4" in found.reason
    in_the_active_segment = range_of(log_view(segments, end=14, last_stable=12, producers=[OPEN]))
    assert "producer" not in in_the_active_segment.reason


@pytest.mark.parametrize(
    ("age_ms", "words"),
    [
        (-1, "last wrote at a time in the future"),
        (1000, "last wrote 1 second ago"),
        (119_999, "last wrote 119 seconds ago"),
        (2 * HOUR_MS, "last wrote 2 hours ago"),
        (47 * HOUR_MS, "last wrote 47 hours ago"),
    ],
)
def test_the_age_of_a_transaction_is_that_of_its_producers_last_batch(age_ms, words):
    view = log_view([(0, 100), (10, 0)], end=10, last_stable=4, producers=[replace(OPEN, timestamp_ms=NOW_MS - age_ms)])
    assert words in range_of(view).reason


def test_the_lag_and_the_policy_are_explained_too():
    view = log_view([(0, 100, NOW_MS), (10, 0)], end=10)
    lag = config(min_compaction_lag_ms=1000)
    sentence = cleanable_range(view, lag, now_ms=NOW_MS).reason
    assert sentence == "segment 0 contains records younger than min.compaction.lag.ms 1000"
    delete = CompactionConfig()
    found = cleanable_range(view, delete, now_ms=NOW_MS)
    assert found.reason == "cleanup.policy does not contain compact"


# ------------------------------------------------------------------------------------------------ Kafka's own rounds
@pytest.mark.parametrize("name", cleaning_cases(magic2_only=False))
def test_every_round_of_kafkas_cleaner_has_the_same_range_and_ratio(name, tmp_path):
    case = load_case(name, tmp_path)
    partition, _ = parse_partition_directory(case.partition)
    own = config(min_compaction_lag_ms=int(case.configs.get("min.compaction.lag.ms", 0)))
    for asked in case.rounds:
        view = open_view(
            list_log(partition, asked.before, Fs()),
            PartitionCheckpoints(first_dirty=asked.dirty),
            Fs(),
            now_ms=asked.now_ms,
            producer_id_expiration_ms=own.producer_id_expiration_ms,
        )
        found = cleanable_range(view, own, now_ms=asked.now_ms, force=True)
        assert found.blocked_by is None
        assert found.first_dirty_offset == asked.kafka.first_dirty_offset
        bases = [segment.base_offset for segment in view.listing.segments]
        assert found.first_uncleanable_offset == max(base for base in bases if base <= asked.kafka.uncleanable_offset)
        assert found.cleanable_ratio == pytest.approx(asked.kafka.ratio, abs=1e-6)


# --------------------------------------------------------------------------------------------------- extreme values
EXTREMES = st.sampled_from([-1, 0, 1, NOW_MS, INT64_MAX - NOW_MS, INT64_MAX - 1, INT64_MAX])
TIMES = st.one_of(EXTREMES, st.just(-INT64_MAX - 1))


@given(
    st.lists(st.tuples(EXTREMES, TIMES), min_size=2, max_size=4),
    st.sampled_from([0, NOW_MS, INT64_MAX - 1, INT64_MAX]),
    EXTREMES,
    EXTREMES,
    st.booleans(),
)
def test_extreme_times_and_lags_block_as_unbounded_numbers_do(times, now_ms, min_lag_ms, max_lag_ms, force):
    view = log_view(
        [(10 * number, 100, largest_ms) for number, (largest_ms, _) in enumerate(times)],
        end=10 * len(times),
        first_batch_ms=[first_ms for _, first_ms in times],
    )
    lags = {"min_compaction_lag_ms": min_lag_ms, "max_compaction_lag_ms": max_lag_ms}
    found = range_of(view, now_ms=now_ms, force=force, **lags)
    rolled = times[:-1]
    is_young = [min_lag_ms > 0 and largest_ms > now_ms - min_lag_ms for largest_ms, _ in rolled]
    young = is_young.index(True) if True in is_young else len(rolled)
    assert found.first_uncleanable_offset == 10 * young
    firsts = [first_ms for _, first_ms in rolled if first_ms > 0]
    assert found.must_compact == (bool(firsts) and now_ms - min(firsts) > max(max_lag_ms, 0))
    if found.unblocks_at_ms is not None:
        assert now_ms < found.unblocks_at_ms <= INT64_MAX
        assert range_of(view, now_ms=found.unblocks_at_ms, force=force, **lags).blocked_by is None
        assert range_of(view, now_ms=found.unblocks_at_ms - 1, force=force, **lags).blocked_by is not None
