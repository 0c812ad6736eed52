"""The encodings that may be asked for, and the tasks of a partition."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from sediment.compaction.config import CompactionConfig
from sediment.compaction.reencode.plan import Encoding, plan_reencode
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.layout import CODEC_GZIP, CODEC_NONE, CODEC_SNAPPY, CODEC_ZSTD, INT64_MAX
from tests.segments import log_view


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no new encoding is requested"),
        ({"level": 3, "batch_bytes": 1000}, "no codec has no levels"),
        ({"codec": CODEC_SNAPPY, "level": 1}, "snappy has no levels"),
        ({"codec": CODEC_NONE, "level": 1}, "none has no levels"),
        ({"codec": CODEC_GZIP, "level": 10}, "level 10 is outside 1 to 9"),
        ({"codec": CODEC_ZSTD, "batch_bytes": 61}, "cannot contain a record"),
    ],
)
def test_an_encoding_that_makes_no_sense_is_refused(given: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        Encoding(**given)


def test_each_segment_with_a_batch_below_the_bound_has_a_task():
    view = log_view([(10, 1), (20, 1), (30, 0), (40, 1)], end=45, high_watermark=40, checkpoint=15)
    tasks = plan_reencode(view, Encoding(CODEC_ZSTD, 19), CompactionConfig())
    assert [(task.segment.base_offset, task.end_offset, task.bound) for task in tasks] == [(10, 20, 40), (20, 30, 40)]
    assert pickle.loads(pickle.dumps(tasks)) == tasks


def test_the_offsets_of_the_active_segment_have_no_end():
    (task,) = plan_reencode(log_view([(10, 1)], end=45), Encoding(CODEC_ZSTD), CompactionConfig())
    assert task.end_offset == INT64_MAX
