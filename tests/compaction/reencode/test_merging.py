"""The headers of neighbours that may become one batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sediment.compaction.reencode.merging import MergeRule
from sediment.compaction.reencode.plan import Encoding
from sediment.segment_io.format.batch_headers import BATCH_ROW
from sediment.segment_io.format.layout import (
    CODEC_LZ4,
    CODEC_ZSTD,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    INT32_MAX,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.segment.reader import Rows

NO_ROWS = np.zeros(0, dtype=BATCH_ROW)


def rows_of(*changes: dict[str, Any], producer_id: int = 7, sequence: int = 10) -> Rows:
    """Return one batch of two offsets after another, each with its changed fields."""
    rows = np.zeros(len(changes), dtype=BATCH_ROW)
    for index, changed in enumerate(changes):
        fields = {
            "position": 100 * index,
            "base_offset": 2 * index,
            "last_offset": 2 * index + 1,
            "magic": 2,
            "record_count": 2,
            "producer_id": producer_id,
            "base_sequence": sequence + 2 * index if producer_id >= 0 else -1,
            "base_timestamp": 1000 + index,
            "max_timestamp": 2000 + index,
            "leader_epoch": 3,
            **changed,
        }
        for name, value in fields.items():
            rows[name][index] = value
    return rows


def rule_of(*, bound: int = 100, last: tuple[int, ...] = (), keeps_codec: bool = True) -> MergeRule:
    codec = None if keeps_codec else CODEC_LZ4
    return MergeRule(Encoding(codec, batch_bytes=1 << 16), bound, np.array(last, dtype=np.int64))


def joins(second: dict[str, Any], first: dict[str, Any] | None = None, **fields: Any) -> bool:
    rows = rows_of(first or {}, second, **fields)
    answers = rule_of().marks(rows, NO_ROWS).joins.tolist()
    assert answers[0] is False
    # The first batch may be in the chunk before.
    assert rule_of().marks(rows[1:], rows[:1]).joins.tolist() == answers[1:]
    return bool(answers[1])


@pytest.mark.parametrize("producer_id", [-1, 7])
def test_neighbours_whose_headers_agree_join(producer_id: int):
    assert joins({}, producer_id=producer_id)


@pytest.mark.parametrize(
    "changed",
    [
        {"magic": 1},
        {"attributes": CONTROL_BIT},
        {"record_count": 0},
        {"last_offset": 100},
        {"base_offset": 3},
        {"leader_epoch": 4},
        {"producer_id": 8},
        {"producer_epoch": 1},
        {"base_sequence": 13},
        {"attributes": TRANSACTIONAL_BIT},
        {"attributes": TIMESTAMP_TYPE_BIT},
        {"attributes": DELETE_HORIZON_BIT},
        {"attributes": CODEC_ZSTD},
        {"attributes": 5},
    ],
    ids=str,
)
def test_a_difference_keeps_neighbours_apart(changed: dict[str, Any]):
    assert not joins(changed)
    assert not joins({}, changed)


@pytest.mark.parametrize(
    ("flag", "field"), [(TIMESTAMP_TYPE_BIT, "max_timestamp"), (DELETE_HORIZON_BIT, "base_timestamp")]
)
def test_the_time_of_a_header_has_to_be_that_of_both(flag: int, field: str):
    assert joins({"attributes": flag, field: 5}, {"attributes": flag, field: 5})
    assert not joins({"attributes": flag, field: 6}, {"attributes": flag, field: 5})


def test_sequence_numbers_wrap():
    assert joins({"base_sequence": 0}, sequence=INT32_MAX - 1)
    assert joins({"base_sequence": 1}, sequence=INT32_MAX)
    assert not joins({"base_sequence": 0}, sequence=INT32_MAX)


def test_the_last_batches_of_producers_and_the_codec():
    rows = rows_of({}, {}, {}, {"attributes": CODEC_ZSTD})
    assert rule_of(last=(200,)).marks(rows, NO_ROWS).joins.tolist() == [False, True, False, False]
    assert rule_of(last=(200,)).marks(rows, NO_ROWS).changes.all()
    assert rule_of(keeps_codec=False).marks(rows, NO_ROWS).joins.tolist() == [False, True, True, True]
    assert not MergeRule(Encoding(CODEC_LZ4), 100, np.zeros(0, dtype=np.int64)).marks(rows, NO_ROWS).joins.any()
