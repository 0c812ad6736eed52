"""Holes and short ends of a log: what is a loss, what is none, and what only a person can decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sediment.engine.directory.missing_records import (
    HOLE,
    LOG_END,
    KnownOfLog,
    LogCut,
    SegmentEnd,
    doubtful_cut,
    missing_after_cut,
    missing_at_end,
    missing_between,
    orphans_of,
    records_were_removed,
    repeated_between,
)
from sediment.segment_io.fs import Fs
from tests.segments import batch_bytes, write_segment
from tests.twin.batches import Record, encode_batch, encode_empty_batch, parse_batch

DELETED = KnownOfLog(compacts=False, other_nodes=None, high_watermark=None, recovery_point=None, first_dirty=None)
WHOLE = (SegmentEnd(0, 5), SegmentEnd(5, 9), SegmentEnd(9, 12))
WITH_HOLE = (SegmentEnd(0, 5), SegmentEnd(9, 12))
ORPHAN = {5: "00000000000000000005.index"}
CUT = LogCut("00000000000000000009.log", 11, "the batch fails its CRC", 0, -1, (), 0, 11)


def never(_base_offset: int) -> bool:
    return False


def always(_base_offset: int) -> bool:
    return True


# ------------------------------------------------------------------------------------------------------------- the end
@pytest.mark.parametrize("reached", [None, 0, 11, 12])
def test_a_log_that_reaches_its_checkpoints_lacks_nothing(reached: int | None) -> None:
    assert missing_at_end(WHOLE, replace(DELETED, high_watermark=reached, recovery_point=reached), {}) is None
    assert missing_at_end((), replace(DELETED, high_watermark=reached), {}) is None


def test_offsets_below_the_high_watermark_are_missing() -> None:
    lost = missing_at_end(WHOLE, replace(DELETED, high_watermark=20, recovery_point=14), {})
    assert lost is not None and (lost.kind, lost.first_offset, lost.last_offset) == (LOG_END, 12, 19)
    assert str(lost) == (
        "offsets 12 to 19 (8 offsets) are missing at the end of the log: the broker had written the high watermark 20, "
        "and the broker had flushed the log up to offset 14; another replica, if there is one, may have them: let that "
        "replica lead the partition before this broker starts, because a leader that lacks them makes the others drop "
        "them too"
    )


@pytest.mark.parametrize(
    ("nodes", "advice"),
    [((2, 3), "the replica on node 2 or 3 may have them"), ((), "restore the partition from a backup, or accept")],
)
def test_the_advice_names_the_other_replicas(nodes: tuple[int, ...], advice: str) -> None:
    lost = missing_at_end(WHOLE, replace(DELETED, other_nodes=nodes, high_watermark=13), {})
    assert lost is not None and advice in lost.advice and "(1 offset)" in lost.what


def test_a_cut_loses_readable_batches_and_later_segments_but_not_a_torn_batch() -> None:
    assert missing_after_cut(CUT, DELETED) is None
    known = replace(DELETED, high_watermark=12)
    inside = missing_after_cut(replace(CUT, following_offset=15), known)
    assert inside is not None and (inside.kind, inside.first_offset, inside.last_offset) == (HOLE, 11, 14)
    assert missing_after_cut(replace(CUT, following_offset=11), known) is None
    twice = replace(CUT, following_offset=11, good_batches=1, last_offset=11, next_offset=12)
    assert missing_after_cut(twice, DELETED) is not None
    torn = missing_after_cut(CUT, known)
    assert torn is not None and (torn.first_offset, torn.last_offset) == (11, 11)
    removed = ("00000000000000000015.log",)
    cut = replace(CUT, good_batches=2, last_offset=14, removed=removed, removed_bytes=9, next_offset=21)
    lost = missing_after_cut(cut, known)
    assert lost is not None and (lost.first_offset, lost.last_offset) == (11, 20)
    assert (
        "cuts the log off at offset 11 (the batch fails its CRC), with 2 readable batches after it and 1 later segment"
        in lost.what
    )


def test_an_index_after_the_log_end_shows_a_lost_segment() -> None:
    lost = missing_at_end(WHOLE, DELETED, {30: "00000000000000000030.index"})
    assert lost is not None and (lost.first_offset, lost.last_offset) == (12, 29)
    # A broker that rolls a segment may be stopped before the log of the new one is on disk.
    assert missing_at_end(WHOLE, DELETED, {12: "00000000000000000012.index"}) is None


# ----------------------------------------------------------------------------------------------------------- the middle
def test_segments_that_follow_each_other_have_no_hole() -> None:
    assert missing_between(WHOLE, DELETED, {}, never) == ((), ())
    assert missing_between(WHOLE, replace(DELETED, compacts=None), ORPHAN, never) == ((), ())


@pytest.mark.parametrize(
    ("compacts", "first_dirty", "orphans", "was_cleaned", "outcome"),
    [
        (False, None, {}, never, "lost"),
        (False, 0, {}, never, "lost"),
        (False, 9, {}, never, "unless the log was compacted earlier"),
        (False, None, {}, always, "unless the log was compacted earlier"),
        (False, 9, ORPHAN, always, "lost"),
        (None, None, {}, never, "if the topic was never compacted"),
        (None, None, {}, always, ""),
        (None, 9, {}, never, ""),
        (None, None, ORPHAN, always, "lost"),
        (True, None, {}, never, ""),
        (True, None, ORPHAN, never, "unless compaction removed them"),
    ],
)
def test_a_hole_is_a_loss_a_warning_or_nothing(
    compacts: bool | None, first_dirty: int | None, orphans: dict[int, str], was_cleaned, outcome: str
) -> None:
    known = replace(DELETED, compacts=compacts, first_dirty=first_dirty)
    lost, warnings = missing_between(WITH_HOLE, known, orphans, was_cleaned)
    assert [(each.kind, each.first_offset, each.last_offset) for each in lost] == [(HOLE, 5, 8)] * (outcome == "lost")
    assert len(warnings) == (outcome not in ("", "lost"))
    assert all(outcome in warning and "offsets 5 to 8 (4 offsets)" in warning for warning in warnings)
    assert all(("without its log" in each.what) == bool(orphans) for each in lost)


def test_no_segment_is_read_where_the_policy_says_enough() -> None:
    def fail(base_offset: int) -> bool:
        raise AssertionError(base_offset)

    assert missing_between(WITH_HOLE, replace(DELETED, compacts=True), {}, fail) == ((), ())
    assert missing_between(WHOLE, DELETED, {}, fail) == ((), ())


def test_a_segment_that_a_start_cuts_before_the_last_one_leaves_a_hole_in_any_log() -> None:
    cut = replace(CUT, name="00000000000000000000.log", log_end_offset=5)
    (lost,), warnings = missing_between(WITH_HOLE, replace(DELETED, compacts=True), {}, never, [cut])
    assert "because a start cuts segment 0 off at offset 5 (the batch fails its CRC)" in lost.what
    assert not warnings


# ------------------------------------------------------------------------------------------------------------- evidence
def test_an_index_is_an_orphan_unless_its_log_is_there_under_any_suffix() -> None:
    names = ["00000000000000000000.log", "00000000000000000000.index", "00000000000000000005.timeindex"]
    names += ["00000000000000000005.index", "00000000000000000007.index", "00000000000000000007.log.deleted"]
    names += ["00000000000000000009.snapshot", "leader-epoch-checkpoint", "7.index"]
    assert orphans_of(names) == {5: "00000000000000000005.index"}


def segment_of(tmp_path: Path, batches: Sequence[bytes]) -> bool:
    write_segment(tmp_path, 0, list(batches))
    return records_were_removed(tmp_path, 0, Fs())


def batch_of(offsets: Sequence[int], **fields: int) -> bytes:
    return encode_batch([Record(offset, 0, b"k", b"v") for offset in offsets], base_offset=offsets[0], **fields)


def test_batches_without_a_gap_show_no_cleaning(tmp_path: Path) -> None:
    assert not segment_of(tmp_path, [batch_of([0, 1, 2]), batch_of([3]), batch_of([4, 5])])
    assert not records_were_removed(tmp_path, 7, Fs())


@pytest.mark.parametrize(
    "batches",
    [
        [batch_of([1])],  # the segment's base offset is 0
        [batch_of([0]), batch_of([2])],
        [batch_of([0, 2])],
        [encode_empty_batch(parse_batch(batch_of([0])))],
    ],
)
def test_a_gap_or_a_batch_with_fewer_records_than_offsets_shows_a_cleaning(
    tmp_path: Path, batches: Sequence[bytes]
) -> None:
    assert segment_of(tmp_path, batches)


def test_a_torn_segment_shows_what_its_whole_batches_show(tmp_path: Path) -> None:
    log = write_segment(tmp_path, 0, [batch_bytes(0), batch_bytes(2)])
    log.write_bytes(log.read_bytes()[:-4])
    assert not records_were_removed(tmp_path, 0, Fs())


def test_segments_that_overlap_are_said() -> None:
    (warning,) = repeated_between((SegmentEnd(0, 12), SegmentEnd(10, 15)))
    assert warning.startswith("offsets 10 to 11 are in segment 0 and again in segment 10; ")
    assert repeated_between(WHOLE) == repeated_between(WITH_HOLE) == ()


def test_a_cut_of_one_unreadable_batch_is_a_doubt_only_if_no_checkpoint_knows_it() -> None:
    warning = doubtful_cut(CUT, DELETED)
    assert warning is not None and f"{CUT.name} off at offset 11 (the batch fails its CRC)" in warning
    for known in (replace(DELETED, high_watermark=0), replace(DELETED, recovery_point=0)):
        assert doubtful_cut(CUT, known) is None
    assert doubtful_cut(replace(CUT, good_batches=1), DELETED) is None  # a loss, which is said elsewhere
