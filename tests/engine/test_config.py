from __future__ import annotations

import pytest

from sediment.compaction.config import CompactionConfig
from sediment.engine.config import LogConfig
from sediment.retention.config import RetentionConfig


def log_config(policy: str, max_lag_ms: int, segment_ms: int) -> LogConfig:
    policies = tuple(policy.split(","))
    compaction = CompactionConfig(cleanup_policy=policies, max_compaction_lag_ms=max_lag_ms)
    return LogConfig(compaction, RetentionConfig(cleanup_policy=policies), segment_ms=segment_ms)


@pytest.mark.parametrize(
    ("policy", "max_lag_ms", "expected_ms"),
    [("compact", 50, 50), ("compact,delete", 50, 50), ("compact", 150, 100), ("compact", 0, 100), ("delete", 50, 100)],
)
def test_only_a_compacted_log_rolls_by_its_maximum_lag(policy: str, max_lag_ms: int, expected_ms: int) -> None:
    assert log_config(policy, max_lag_ms, segment_ms=100).max_segment_ms == expected_ms


def test_the_policy_says_what_is_done() -> None:
    both = log_config("compact,delete", 1, 1)
    assert both.compacts and both.retention.deletes
    assert not LogConfig().compacts and LogConfig().retention.deletes


def test_one_topic_has_one_policy() -> None:
    with pytest.raises(ValueError, match="two cleanup policies"):
        LogConfig(compaction=CompactionConfig(cleanup_policy=("compact",)))
