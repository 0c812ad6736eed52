"""Records that a refresh has to read, by the state of the log and of the table."""

from __future__ import annotations

import json

import pytest

from sediment.jobs.delta_lake.refresh_plan import (
    LATEST,
    LogState,
    PartitionProgress,
    Rebuild,
    Refresh,
    RefreshProgress,
    parse_progress,
    plan_refresh,
    progress_after,
    progress_json,
)
from sediment.segment_io.format.checkpoints import EpochEntry
from sediment.segment_io.tables.log_marks import LogMark, LogMatch, RecordMark

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
EPOCHS = (EpochEntry(2, 0), EpochEntry(5, 40))


def facts(**changes) -> LogState:
    given = {
        "log_start_offset": 10,
        "end_offset": 100,
        "first_dirty_offset": None,
        "cleaner_unknown": False,
        "topic_id": "A",
        "leader_epochs": EPOCHS,
        "match": LogMatch.SAME,
    }
    return LogState(**{**given, **changes})


def progress(**changes) -> PartitionProgress:
    given = {"next_offset": 60, "log_start_offset": 10, "mark": LogMark("A"), "leader_epoch": 5, "now_ms": NOW_MS}
    return PartitionProgress(**{**given, **changes})


def plan(given: LogState, known: PartitionProgress | None, now_ms: int = NOW_MS, **options) -> Refresh:
    return plan_refresh(given, known, now_ms=now_ms, delete_retention_ms=DAY_MS, **options)


def test_what_was_appended_since_is_read():
    assert plan(facts(), progress()) == Refresh(60, 100, None, None)
    assert plan(facts(), progress()).is_needed()


def test_nothing_is_needed_where_nothing_was_appended():
    refresh = plan(facts(end_offset=60), progress())
    assert refresh == Refresh(60, 60, None, None)
    assert not refresh.is_needed()


def test_a_partition_that_the_table_does_not_know_is_read_from_the_log_start():
    assert plan(facts(), None) == Refresh(10, 100, Rebuild.FIRST_TIME, None)


def test_a_log_start_that_moved_drops_what_lies_below():
    assert plan(facts(log_start_offset=30), progress()) == Refresh(60, 100, None, 30)
    assert plan(facts(log_start_offset=80), progress()) == Refresh(80, 100, None, 80)
    assert plan(facts(log_start_offset=30, end_offset=60), progress()).is_needed()


@pytest.mark.parametrize(
    ("given", "known", "reason"),
    [
        (facts(topic_id="B", match=LogMatch.OTHER), progress(), Rebuild.OTHER_TOPIC),
        (facts(topic_id=None, match=LogMatch.OTHER), progress(mark=LogMark()), Rebuild.CREATED_AGAIN),
        (facts(end_offset=59), progress(), Rebuild.ENDS_EARLIER),
        (facts(), progress(log_start_offset=11), Rebuild.STARTS_EARLIER),
        (facts(end_offset=60), progress(log_start_offset=60), Rebuild.STARTS_EARLIER),
        (facts(), progress(leader_epoch=4), Rebuild.OTHER_LEADER_EPOCH),
        (facts(leader_epochs=(*EPOCHS, EpochEntry(6, 59))), progress(), Rebuild.OTHER_LEADER_EPOCH),
    ],
)
def test_another_log_is_read_from_its_start(given, known, reason):
    assert plan(given, known) == Refresh(10, given.end_offset, reason, None)


@pytest.mark.parametrize(
    ("given", "known"),
    [
        (facts(topic_id=None, match=LogMatch.UNKNOWN), progress()),
        (facts(match=LogMatch.UNKNOWN), progress(mark=LogMark())),
        (facts(leader_epochs=()), progress()),
        (facts(), progress(leader_epoch=None)),
        (facts(leader_epochs=(*EPOCHS, EpochEntry(6, 60))), progress()),
    ],
)
def test_missing_or_higher_values_do_not_indicate_another_log(given, known):
    assert plan(given, known).rebuild is None


def test_it_can_be_asked_for():
    assert plan(facts(), progress(), from_start=True) == Refresh(10, 100, Rebuild.ASKED, None)
    assert plan(facts(end_offset=60), progress(), from_start=True).is_needed()


@pytest.mark.parametrize(
    ("first_dirty_offset", "cleaner_unknown", "later_ms", "rebuilt"),
    [
        (61, False, DAY_MS, True),
        (61, False, DAY_MS - 1, False),
        (60, False, 9 * DAY_MS, False),
        (None, False, 9 * DAY_MS, False),
        (None, True, DAY_MS, True),
    ],
)
def test_tombstones_may_be_gone_once_the_cleaner_passed_the_progress_and_their_retention_is_over(
    first_dirty_offset, cleaner_unknown, later_ms, rebuilt
):
    given = facts(first_dirty_offset=first_dirty_offset, cleaner_unknown=cleaner_unknown)
    refresh = plan(given, progress(), now_ms=NOW_MS + later_ms)
    assert (refresh.rebuild is Rebuild.TOMBSTONES_GONE) == rebuilt


def test_tombstones_may_be_gone_at_once_where_their_retention_is_not_stated():
    given, now_ms = facts(first_dirty_offset=61), NOW_MS - 1
    found = plan_refresh(given, progress(), now_ms=now_ms, delete_retention_ms=None)
    assert found.rebuild is Rebuild.TOMBSTONES_GONE
    uncleaned = facts(first_dirty_offset=60)
    assert plan_refresh(uncleaned, progress(), now_ms=now_ms, delete_retention_ms=None).rebuild is None


def test_where_nothing_was_appended_no_tombstone_can_be_gone():
    given = facts(end_offset=60, cleaner_unknown=True)
    assert plan(given, progress(), now_ms=NOW_MS + 9 * DAY_MS).rebuild is None


@pytest.mark.parametrize(
    ("mark", "fields"),
    [
        (LogMark("A"), {"topic_id": "A"}),
        (
            LogMark(None, "7-1", RecordMark(99, 12)),
            {"topic_id": None, "directory": "7-1", "record": {"offset": 99, "crc": 12}},
        ),
    ],
)
def test_progress_survives_the_commits_metadata(mark, fields):
    after = progress_after(Refresh(60, 100, None, None), facts(), mark, NOW_MS + 1)
    assert after == PartitionProgress(100, 10, mark, 5, NOW_MS + 1)
    known = {"next_offset": 100, "log_start_offset": 10, "leader_epoch": 5, "now_ms": NOW_MS + 1}
    found = json.loads(progress_json(RefreshProgress(LATEST, "run", 7, {"t-0": after})))
    assert found["partitions"] == {"t-0": {**known, **fields}}
    given = RefreshProgress(LATEST, "run", 7, {"topic-with-dash-0": after})
    assert parse_progress(progress_json(given)) == given


@pytest.mark.parametrize(
    "text", [None, "", "null", "5", '"x"', "[]", "{}", '{"sediment.snapshot": 2}', '{"sediment.snapshot": 1}', "{"]
)
def test_unrelated_metadata_is_not_read_as_progress(text):
    assert parse_progress(text) is None


ODD = [None, True, -1, 1.5, "x", [], {}, 1 << 63]


@pytest.mark.parametrize("name", ["kind", "run_id", "sequence", "partitions", "topic_id", "next_offset", "now_ms"])
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_metadata_of_other_types_is_not_read_as_progress(name, odd):
    mark = LogMark(None, "1-2", RecordMark(3, 4))
    given = RefreshProgress(LATEST, "run", 7, {"t-0": PartitionProgress(5, 0, mark, 1, NOW_MS)})
    found = json.loads(progress_json(given))
    (found if name in found else found["partitions"]["t-0"])[name] = odd
    parsed = parse_progress(json.dumps(found))
    is_right = {"run_id": odd == "x", "partitions": odd == {}, "topic_id": odd in (None, "x")}.get(name, False)
    assert (parsed is not None) is is_right


@pytest.mark.parametrize("odd", [*ODD, {"offset": 1}, {"offset": "1", "crc": 1}, {"offset": 1, "crc": True}], ids=repr)
def test_a_mark_of_other_types_is_not_read_as_progress(odd):
    mark = LogMark(None, "1-2", RecordMark(3, 4))
    given = RefreshProgress(LATEST, "run", 7, {"t-0": PartitionProgress(5, 0, mark, 1, NOW_MS)})
    found = json.loads(progress_json(given))
    found["partitions"]["t-0"]["record"] = odd
    assert (parse_progress(json.dumps(found)) is None) is (odd is not None)
