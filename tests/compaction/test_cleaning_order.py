"""The order in which dirty logs are cleaned."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sediment.compaction.cleanable_range import filthiest_first
from tests.compaction.test_cleanable_range import range_of, with_ratio
from tests.segments import log_view


def test_cm_01_the_log_with_the_largest_ratio_comes_first():
    logs = {
        "clean": log_view([(0, 20), (20, 0)], end=20, checkpoint=20),
        "a fifth": with_ratio(20, 5),
        "a third": with_ratio(20, 10),
    }
    ranges = {name: range_of(view, min_cleanable_dirty_ratio=0.05) for name, view in logs.items()}
    assert [ranges[name].cleanable_ratio for name in logs] == [0, 0.2, pytest.approx(1 / 3)]
    assert filthiest_first(ranges.items()) == ["a third", "a fifth"]


def test_cm_02_a_log_that_is_left_out_makes_way_for_the_next():
    ranges = [
        ("a third", range_of(with_ratio(20, 10), force=True)),
        ("a fifth", range_of(with_ratio(20, 5), force=True)),
    ]
    assert filthiest_first(ranges[1:]) == ["a fifth"]
    assert filthiest_first([]) == []


def test_exceeded_lag_makes_a_log_eligible_but_not_first():
    overdue = log_view([(0, 90), (10, 10), (20, 0)], end=20, checkpoint=10, first_batch_ms=[1, 1])
    ranges = [
        ("overdue", range_of(overdue, max_compaction_lag_ms=1000)),
        ("filthy", range_of(with_ratio(10, 90), max_compaction_lag_ms=1000)),
    ]
    assert [found.must_compact for _, found in ranges] == [True, False]
    assert filthiest_first(ranges) == ["filthy", "overdue"]


def test_the_order_needs_no_live_log():
    asked = """
import sys
import sediment.compaction.cleanable_range
print([name for name in sys.modules if name.startswith("sediment.engine.live.") and "cleaning_order" not in name])
"""
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
