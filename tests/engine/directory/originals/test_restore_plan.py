"""Plans of restores: values in, values out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sediment.engine.directory.originals.catalogue import OriginalFile, OriginalPartition
from sediment.engine.directory.originals.restore_plan import Refusal, RestorePlan, merged_epochs, plan_restore
from sediment.segment_io.format.checkpoints import EpochEntry

LOG_START = "log-start-offset-checkpoint"


def file(base: int, kind: str = "log", *, inode: int, size: int = 100, mtime: int = 7) -> OriginalFile:
    return OriginalFile(f"{base:020d}.{kind}", size, mtime, inode)


def entry(
    files: list[OriginalFile], new: list[OriginalFile] | None, unchanged: list[OriginalFile] | None = None
) -> OriginalPartition:
    made = None if new is None else tuple(new)
    return OriginalPartition("t-0", "/logs", {LOG_START: None}, None, tuple(files), made, tuple(unchanged or ()))


def plan(
    partition: OriginalPartition, live: list[OriginalFile], kept: list[OriginalFile], *, is_done: bool = True
) -> RestorePlan | Refusal:
    def named(files: list[OriginalFile]) -> dict[str, OriginalFile]:
        return {each.name: each for each in files}

    return plan_restore(partition, named(live), named(kept), is_done=is_done, log_start_checkpoint=None)


OLD = [file(0, inode=1), file(0, "index", inode=2, size=8), file(5, inode=3), file(5, "index", inode=4, size=8)]
NEW = [file(0, inode=11, size=60), file(0, "index", inode=12, size=8)]
ACTIVE = file(10, inode=9)
MERGED = entry(OLD, NEW, [ACTIVE])


def test_merged_segments_are_replaced_by_their_sources_as_one_group() -> None:
    found = plan(MERGED, [*NEW, ACTIVE], OLD)
    assert isinstance(found, RestorePlan)
    (group,) = found.groups
    assert (group.sources, [each.base_offset for each in group.segments]) == ((0,), [0, 5])
    assert all(each.is_kept for segment in group.segments for each in segment.files)


def test_an_index_of_the_run_counts_as_its_own_even_if_it_has_the_size_and_time_of_the_old_one() -> None:
    found = plan(MERGED, [*NEW, ACTIVE], OLD)
    assert isinstance(found, RestorePlan)
    (segment, _) = found.groups[0].segments
    assert [each.file.inode for each in segment.files] == [1, 2]


def test_nothing_is_left_to_do_after_a_restore_although_indexes_are_copies() -> None:
    copies = [each if each.name.endswith(".log") else replace(each, inode=each.inode + 50) for each in OLD]
    found = plan(MERGED, [*copies, ACTIVE], OLD)
    assert isinstance(found, RestorePlan) and found.is_empty


def test_a_source_that_a_crash_left_beside_the_new_segment_is_replaced_too() -> None:
    found = plan(MERGED, [*NEW, *OLD[2:], ACTIVE], OLD)
    assert isinstance(found, RestorePlan)
    assert found.groups[0].sources == (0, 5)


def test_the_plan_for_the_files_after_a_plan_is_empty() -> None:
    found = plan(MERGED, [*NEW, ACTIVE], OLD)
    assert isinstance(found, RestorePlan)
    live = {each.name: each for each in (*NEW, ACTIVE)}
    again = plan(MERGED, list(found.applied(live).values()), OLD)
    assert isinstance(again, RestorePlan) and again.is_empty


@pytest.mark.parametrize(
    ("live", "code"),
    [
        ([file(0, inode=77, size=60), ACTIVE], "changed-since"),
        ([ACTIVE], "changed-since"),
        (NEW, "changed-since"),
        ([*NEW, file(3, inode=50), ACTIVE], "changed-since"),
        ([*NEW, file(10, inode=9, size=50)], "changed-since"),
        ([*NEW, file(10, inode=60, size=500)], "changed-since"),
    ],
    ids=["cleaned again", "deleted", "active deleted", "made between", "truncated", "another active"],
)
def test_a_log_that_is_neither_as_before_nor_as_after_is_refused(live: list[OriginalFile], code: str) -> None:
    found = plan(MERGED, live, OLD)
    assert isinstance(found, Refusal) and found.reason_code == code


@pytest.mark.parametrize(
    "later", [[file(10, inode=9, size=500)], [file(10, inode=9, size=500), file(20, inode=30)]], ids=["grown", "rolled"]
)
def test_what_was_appended_stays(later: list[OriginalFile]) -> None:
    found = plan(MERGED, [*NEW, *later], OLD)
    assert isinstance(found, RestorePlan)
    assert (found.removed, found.emptied, len(found.groups)) == ((), (), 1)


def test_an_original_that_is_gone_or_changed_is_refused() -> None:
    for kept in (OLD[1:], [replace(OLD[0], size_bytes=50), *OLD[1:]]):
        found = plan(MERGED, [*NEW, ACTIVE], kept)
        assert isinstance(found, Refusal) and found.reason_code == "originals-missing"


def test_a_killed_run_that_listed_no_new_files_changed_nothing_or_is_refused() -> None:
    planned = entry([*OLD, ACTIVE], None)
    found = plan(planned, [*OLD, ACTIVE], [], is_done=False)
    assert isinstance(found, RestorePlan) and found.is_empty
    refused = plan(planned, [*NEW, ACTIVE], OLD, is_done=False)
    assert isinstance(refused, Refusal) and refused.reason_code == "unfinished-run"


def test_a_killed_run_is_undone_as_far_as_it_came() -> None:
    planned = entry([*OLD, ACTIVE], NEW)
    found = plan(planned, [*NEW, ACTIVE], OLD, is_done=False)
    assert isinstance(found, RestorePlan) and found.groups[0].sources == (0,)
    untouched = plan(planned, [*OLD, ACTIVE], OLD, is_done=False)
    assert isinstance(untouched, RestorePlan) and untouched.is_empty


def test_later_leader_epochs_stay() -> None:
    before = (EpochEntry(0, 0), EpochEntry(2, 7))
    assert merged_epochs(before, (EpochEntry(2, 9),)) == before
    assert merged_epochs(before, (EpochEntry(2, 9), EpochEntry(5, 20))) == (*before, EpochEntry(5, 20))
