"""The aborted transactions that a cleaning takes into account (kafka-log 02 §4.2)."""

from __future__ import annotations

from sediment.compaction.cleanable_range import cleanable_range
from sediment.compaction.config import CompactionConfig
from sediment.compaction.grouping import plan_cleaning
from sediment.compaction.transaction_scan import aborted_of_round
from sediment.segment_io.format.transaction_index import AbortedTxn
from tests.segments import NOW_MS, log_view


def test_a_round_knows_aborted_transactions_whose_markers_lie_above_its_range() -> None:
    crossing, above = AbortedTxn(1, 8, 25, 26), AbortedTxn(2, 20, 28, 29)
    view = log_view([(0, 100), (10, 100), (20, 100)], end=30, aborted=[crossing, above])
    config = CompactionConfig(cleanup_policy=("compact",))
    plan = plan_cleaning(view, cleanable_range(view, config, now_ms=NOW_MS, force=True), config, now_ms=NOW_MS)
    assert (plan.end_offset, aborted_of_round(plan)) == (20, (crossing,))
