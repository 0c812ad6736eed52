"""The plan of a rewrite: tasks, reasons for offsets out of reach, and the cleaner checkpoint."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from sediment.compaction.config import CompactionConfig
from sediment.compaction.rewrite.plan import RewritePlan, plan_rewrite
from sediment.compaction.rewrite.verdicts import Action, Reason, Verdict, Verdicts
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.partition.log_view import LogView
from tests.segments import log_view

SEGMENTS = [(10, 1), (20, 1), (30, 1)]


def planned(view: LogView, *offsets: int, actions: Mapping[int, Action] | None = None) -> RewritePlan:
    verdicts = Verdicts.of(Verdict(offset, (actions or {}).get(offset, Action.DROP)) for offset in offsets)
    return plan_rewrite(view, verdicts, CompactionConfig())


def reasons(plan: RewritePlan) -> dict[int, Reason]:
    pairs = zip(plan.not_reached.offsets, plan.not_reached.reasons, strict=True)
    return {int(offset): Reason(reason) for offset, reason in pairs}


def test_a_task_has_the_verdicts_of_its_segment_and_only_segments_with_verdicts_have_one():
    plan = planned(log_view(SEGMENTS, end=40), 10, 19, 30, 39)
    assert [(task.segment.base_offset, task.end_offset, task.verdicts.offsets.tolist()) for task in plan.tasks] == [
        (10, 20, [10, 19]),
        (30, INT64_MAX, [30, 39]),
    ]
    assert reasons(plan) == {}
    assert len(pickle.loads(pickle.dumps(plan.tasks[0])).verdicts) == 2


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (log_view(SEGMENTS, end=40), {9: "NO_RECORD", 40: "NO_RECORD", 99: "NO_RECORD"}),
        (
            log_view(SEGMENTS, end=40, high_watermark=25),
            {9: "NO_RECORD", 25: "ABOVE_HIGH_WATERMARK", 39: "ABOVE_HIGH_WATERMARK", 40: "NO_RECORD", 99: "NO_RECORD"},
        ),
        (
            log_view(SEGMENTS, end=40, high_watermark=39, last_stable=25),
            {9: "NO_RECORD", 25: "OPEN_TRANSACTION", 39: "ABOVE_HIGH_WATERMARK", 40: "NO_RECORD", 99: "NO_RECORD"},
        ),
        (
            log_view(SEGMENTS, end=40, last_stable=30, unverified_from=30),
            {9: "NO_RECORD", 39: "UNVERIFIED", 40: "NO_RECORD", 99: "NO_RECORD"},
        ),
        (
            log_view(SEGMENTS, end=40, high_watermark=None),
            {
                9: "NO_RECORD",
                **dict.fromkeys((10, 25, 39), "ABOVE_HIGH_WATERMARK"),
                40: "NO_RECORD",
                99: "NO_RECORD",
            },
        ),
        (log_view([], end=10, start=10), dict.fromkeys((9, 10, 25, 39, 40, 99), "NO_RECORD")),
    ],
    ids=["whole log", "high watermark", "open transaction", "unclean stop", "no high watermark", "no segments"],
)
def test_offsets_out_of_reach_have_a_reason(view: LogView, expected: dict[int, str]):
    plan = planned(view, 9, 10, 25, 39, 40, 99)
    assert {offset: reason.name for offset, reason in reasons(plan).items()} == expected
    in_tasks = {int(offset) for task in plan.tasks for offset in task.verdicts.offsets}
    assert in_tasks | set(expected) == {9, 10, 25, 39, 40, 99} and not in_tasks & set(expected)


def test_records_below_the_log_start_offset_that_are_still_on_disk_are_rewritten():
    plan = planned(log_view(SEGMENTS, end=40, start=15), 12)
    assert [task.verdicts.offsets.tolist() for task in plan.tasks] == [[12]]


@pytest.mark.parametrize(
    ("checkpoint", "new_key", "expected"), [(None, None, 10), (30, None, 30), (30, 22, 22), (20, 22, 20)]
)
def test_the_cleaner_goes_back_to_the_first_new_key(checkpoint: int | None, new_key: int | None, expected: int):
    view = log_view(SEGMENTS, end=40, checkpoint=checkpoint)
    actions = {} if new_key is None else {new_key: Action.REPLACE_KEY}
    assert planned(view, 11, *actions, actions=actions).next_dirty_offset == expected
