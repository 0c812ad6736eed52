"""The columns of verdicts."""

from __future__ import annotations

import numpy as np
import pytest

from sediment.compaction.rewrite.verdicts import Action, NotReached, Reason, Verdict, Verdicts
from sediment.segment_io.errors import UsageError


def columns(verdicts: Verdicts) -> list[tuple[int, Action, bytes]]:
    return [
        (int(offset), Action(action), verdicts.replacement(index))
        for index, (offset, action) in enumerate(zip(verdicts.offsets, verdicts.actions, strict=True))
    ]


ROWS = [
    Verdict(7, Action.REPLACE_VALUE, b"seven"),
    Verdict(3, Action.DROP),
    Verdict(5, Action.REPLACE_KEY, b""),
    Verdict(4, Action.TOMBSTONE),
    Verdict(9, Action.REPLACE_KEY, b"nine"),
]


def test_rows_become_columns_by_ascending_offset():
    assert columns(Verdicts.of(ROWS)) == [
        (3, Action.DROP, b""),
        (4, Action.TOMBSTONE, b""),
        (5, Action.REPLACE_KEY, b""),
        (7, Action.REPLACE_VALUE, b"seven"),
        (9, Action.REPLACE_KEY, b"nine"),
    ]
    assert columns(Verdicts.of([])) == []


@pytest.mark.parametrize("first", range(2, 12))
@pytest.mark.parametrize("end", range(2, 12))
def test_a_range_has_its_own_replacements(first: int, end: int):
    every = Verdicts.of(ROWS)
    within = every.between(first, end)
    assert columns(within) == [row for row in columns(every) if first <= row[0] < end]
    assert within.replacements.size == sum(len(replacement) for _, _, replacement in columns(within))


@pytest.mark.parametrize(
    ("offsets", "actions", "edges", "replacements", "text"),
    [
        ([2, 1], [0, 0], [0, 0, 0], b"", "each must be above the previous offset"),
        ([1, 1], [0, 0], [0, 0, 0], b"", "each must be above the previous offset"),
        ([-1], [0], [0, 0], b"", "negative"),
        ([1], [4], [0, 0], b"", "unknown action"),
        ([1], [0, 0], [0, 0], b"", "different lengths"),
        ([1], [0], [0], b"", "different lengths"),
        ([1], [2], [0, 2], b"a", "edges"),
        ([1, 2], [2, 2], [0, 2, 1], b"a", "edges"),
        ([1], [2], [1, 1], b"a", "edges"),
        ([1], [0], [0, 1], b"a", "must not have a replacement"),
        ([1], [1], [0, 1], b"a", "must not have a replacement"),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(
    offsets: list[int], actions: list[int], edges: list[int], replacements: bytes, text: str
):
    with pytest.raises(UsageError, match=text):
        Verdicts(
            np.array(offsets, dtype=np.int64),
            np.array(actions, dtype=np.uint8),
            np.array(edges, dtype=np.int64),
            np.frombuffer(replacements, dtype=np.uint8),
        )


def test_columns_of_another_type_are_refused():
    verdicts = Verdicts.of(ROWS)
    with pytest.raises(UsageError, match="int32"):
        Verdicts(verdicts.offsets.astype(np.int32), verdicts.actions, verdicts.edges, verdicts.replacements)


def test_reasons_are_joined_by_offset_and_counted():
    joined = NotReached.joined(
        [NotReached.of(np.array([5, 9]), Reason.NO_RECORD), NotReached.of(np.array([7]), Reason.NO_KEY)]
    )
    assert (joined.offsets.tolist(), joined.reasons.tolist()) == ([5, 7, 9], [0, 2, 0])
    assert joined.by_reason() == {Reason.NO_RECORD: 2, Reason.NO_KEY: 1}
    assert len(NotReached.joined([])) == 0
    assert Reason.ABOVE_HIGH_WATERMARK.code == "above-high-watermark"
