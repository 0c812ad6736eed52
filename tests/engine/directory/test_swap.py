import errno
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations, count, product
from pathlib import Path

import pytest

from sediment.compaction.prepared_swap import CleanedGroup, CleanStats, PartSegment, PreparedSwap
from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.lockstep import perform
from sediment.engine.directory.originals.backup_links import link_replaced_files
from sediment.engine.directory.repair import Repair
from sediment.engine.directory.swap import commit, commit_steps, discard_parts
from sediment.segment_io.errors import (
    CommitStateUnknownError,
    CorruptDataError,
    LockLostError,
    ReplacedFilesLeftError,
    SourceChangedError,
    UsageError,
)
from sediment.segment_io.format.names import PartFile
from sediment.segment_io.fs import Fs
from sediment.segment_io.segment.batch_boundaries import next_offset_of
from tests.corpus import load_loading_case
from tests.faults.faulty_fs import Fail, FaultyFs, Kill, Killed, read_image, write_image
from tests.faults.swap_scenario import Scenario, committed_groups, full_scenario, prepare
from tests.segments import batch_bytes, write_segment, write_snapshot
from tests.twin.vectors import V1_GZIP

INDEXES = (".index", ".timeindex")


def segment(directory: Path, base: int, offsets: Sequence[int], state: str = "") -> None:
    """Write a segment with one batch at each of `offsets`; its files get the suffix `state`."""
    log = write_segment(directory, base, [batch_bytes(offset) for offset in offsets], index_interval_bytes=0)
    if state:
        for suffix in (".log", *INDEXES):
            log.with_suffix(suffix).rename(directory / f"{log.stem}{suffix}{state}")


def name(base: int, suffix: str) -> str:
    return f"{base:020d}{suffix}"


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def segment_names(*bases: int) -> set[str]:
    return {name(base, suffix) for base in bases for suffix in (".log", *INDEXES)}


def offsets_of(log: Path) -> list[int]:
    content, offsets = log.read_bytes(), []
    while content:
        offsets.append(int.from_bytes(content[:8], "big"))
        content = content[12 + int.from_bytes(content[8:12], "big") :]
    return offsets


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "topic-0"


@pytest.fixture
def scenario(tmp_path: Path) -> tuple[Path, Scenario]:
    return full_scenario(tmp_path)


# ------------------------------------------------------------------------------------------------------- loading passes
def test_rc_01_cleaned_files_go_and_the_log_stays(directory: Path):
    segment(directory, 0, [0, 1], ".cleaned")
    segment(directory, 0, [0, 1, 2])
    segment(directory, 3, [3])
    before = read_image(directory)
    repairs = finish_interrupted(directory, Fs())
    assert {repair.name for repair in repairs} == {name(0, f"{s}.cleaned") for s in (".log", *INDEXES)}
    assert names(directory) == segment_names(0, 3)
    assert read_image(directory).items() <= before.items()


def test_rc_02_a_log_that_is_swap_goes_while_its_index_is_still_cleaned(directory: Path):
    segment(directory, 0, [0, 1, 2])
    before = read_image(directory)
    (directory / name(0, ".log.swap")).write_bytes(batch_bytes(1))
    (directory / name(0, ".index.cleaned")).write_bytes(b"")
    finish_interrupted(directory, Fs())
    assert read_image(directory) == before


def two_old_segments_and_a_complete_replacement(directory: Path) -> bytes:
    segment(directory, 0, [1, 3], ".swap")
    segment(directory, 0, [0, 1])
    segment(directory, 2, [2, 3])
    segment(directory, 4, [4])
    write_snapshot(directory, 2)
    write_snapshot(directory, 4)
    return (directory / name(0, ".log.swap")).read_bytes()


def test_rc_03_a_complete_replacement_deletes_what_its_offsets_cover_and_takes_the_final_names(directory: Path):
    cleaned = two_old_segments_and_a_complete_replacement(directory)
    repairs = finish_interrupted(directory, Fs())
    assert names(directory) == segment_names(0, 4) | {name(4, ".snapshot")}
    assert (directory / name(0, ".log")).read_bytes() == cleaned
    assert [repair.action for repair in repairs] == ["deleted"] * 7 + ["renamed"] * 3
    assert [repair.name for repair in repairs[7:]] == [name(0, f"{s}.swap") for s in (".log", *INDEXES)]


def test_rc_04_a_replacement_whose_sources_are_half_deleted_is_completed(directory: Path):
    cleaned = two_old_segments_and_a_complete_replacement(directory)
    (directory / name(0, ".log")).rename(directory / name(0, ".log.deleted"))
    finish_interrupted(directory, Fs())
    assert names(directory) == segment_names(0, 4) | {name(4, ".snapshot")}
    assert (directory / name(0, ".log")).read_bytes() == cleaned


def test_rc_05_indexes_that_are_still_swap_get_their_final_names_and_delete_nothing(directory: Path):
    segment(directory, 0, [1, 3])
    segment(directory, 4, [4])
    write_snapshot(directory, 2)
    for suffix in INDEXES:
        (directory / name(0, suffix)).rename(directory / name(0, f"{suffix}.swap"))
    finish_interrupted(directory, Fs())
    assert names(directory) == segment_names(0, 4) | {name(2, ".snapshot")}


@pytest.mark.parametrize("swap_bases", [(), (100,)], ids=["all cleaned", "the higher one swap"])
def test_rc_06_a_split_that_is_not_all_swap_is_dropped(swap_bases: tuple[int, ...], directory: Path):
    for base, offsets in ((0, [0, 50]), (100, [100, 150])):
        segment(directory, base, offsets, ".swap" if base in swap_bases else ".cleaned")
    segment(directory, 0, [0, 50, 100, 150])
    finish_interrupted(directory, Fs())
    assert names(directory) == segment_names(0)
    assert offsets_of(directory / name(0, ".log")) == [0, 50, 100, 150]


@pytest.mark.parametrize("old_is_deleted", [False, True])
def test_rc_06_a_split_that_is_all_swap_is_completed(old_is_deleted: bool, directory: Path):
    segment(directory, 0, [0, 50], ".swap")
    segment(directory, 100, [100, 150], ".swap")
    segment(directory, 0, [0, 50, 100, 150], ".deleted" if old_is_deleted else "")
    segment(directory, 151, [151])
    finish_interrupted(directory, Fs())
    assert names(directory) == segment_names(0, 100, 151)
    assert offsets_of(directory / name(0, ".log")) == [0, 50]
    assert offsets_of(directory / name(100, ".log")) == [100, 150]


def test_rc_07_deleted_files_and_indexes_without_a_log_go(directory: Path):
    segment(directory, 0, [0])
    segment(directory, 5, [5], ".deleted")
    for orphan in (name(77, ".index"), name(78, ".timeindex"), name(79, ".txnindex"), "80.index"):
        (directory / orphan).write_bytes(b"")
    finish_interrupted(directory, Fs())
    assert names(directory) == segment_names(0)


def test_rc_28_a_directory_without_leftovers_is_not_touched(directory: Path):
    segment(directory, 0, [0])
    write_snapshot(directory, 7)
    for other in ("leader-epoch-checkpoint", "partition.metadata", "readme.txt", "0-0.checkpoint.deleted", "x.part"):
        (directory / other).write_text("kept")
    fs = FaultyFs()
    before = read_image(directory)
    assert finish_interrupted(directory, fs) == ()
    assert fs.operations == 0
    assert read_image(directory) == before


def test_sub_directories_are_ignored_whatever_their_names(directory: Path):
    segment(directory, 0, [0])
    (directory / name(5, ".log.deleted")).mkdir()
    assert finish_interrupted(directory, Fs()) == ()


def test_an_empty_replacement_is_completed_when_the_log_that_it_replaces_is_gone(directory: Path):
    segment(directory, 0, [], ".swap")
    segment(directory, 0, [0, 1])
    segment(directory, 2, [2, 3])
    (directory / name(0, ".log")).rename(directory / name(0, ".log.deleted"))
    finish_interrupted(directory, Fs())
    assert names(directory) == segment_names(0, 2)
    assert (directory / name(0, ".log")).read_bytes() == b""
    assert offsets_of(directory / name(2, ".log")) == [2, 3]


# ------------------------------------------------------------------------------------------------ what is not whole
def damaged(log: Path, damage: str) -> None:
    content = bytearray(log.read_bytes())
    if damage == "a flipped bit":
        content[-1] ^= 1
    cut = {"a torn batch": -5, "a lost batch": content.rfind(batch_bytes(3)[:12]), "no byte": 0}
    log.write_bytes(content[: cut.get(damage, len(content))] + (bytes(40) if damage == "zeros after it" else b""))


DAMAGE = ["a flipped bit", "a torn batch", "a lost batch", "zeros after it", "no byte"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_replacement_that_is_not_whole_is_undone_while_the_old_segments_are_there(damage: str, directory: Path):
    two_old_segments_and_a_complete_replacement(directory)
    (directory / name(0, ".txnindex")).write_bytes(b"of the old log")
    old = {n: content for n, content in read_image(directory).items() if not n.endswith(".swap")}
    damaged(directory / name(0, ".log.swap"), damage)
    repairs = finish_interrupted(directory, Fs())
    assert read_image(directory) == old
    assert "is not whole" in str(repairs[0])
    assert "the old segments contain its records" in str(repairs[0])
    assert not any("was complete" in str(repair) for repair in repairs)
    assert finish_interrupted(directory, Fs()) == ()


@pytest.mark.parametrize("damage", DAMAGE)
def test_undoing_a_replacement_can_be_cut_off_anywhere(damage: str, directory: Path):
    two_old_segments_and_a_complete_replacement(directory)
    old = {n: content for n, content in read_image(directory).items() if not n.endswith(".swap")}
    damaged(directory / name(0, ".log.swap"), damage)
    before = read_image(directory)
    for step in count(1):
        write_image(directory, before)
        try:
            finish_interrupted(directory, FaultyFs(Kill(step)))
        except Killed:
            finish_interrupted(directory, Fs())
            assert read_image(directory) == old
        else:
            break
    assert step > 3


@pytest.mark.parametrize("damage", ["a torn batch", "a lost batch", "zeros after it", "no byte"])
def test_a_replacement_that_is_not_whole_is_refused_when_an_old_segment_is_gone(damage: str, directory: Path):
    two_old_segments_and_a_complete_replacement(directory)
    damaged(directory / name(0, ".log.swap"), damage)
    (directory / name(0, ".log")).rename(directory / name(0, ".log.deleted"))
    before = read_image(directory)
    with pytest.raises(CorruptDataError, match=r"is not whole .* old segments are missing") as raised:
        finish_interrupted(directory, Fs())
    assert raised.value.path == str(directory / name(0, ".log.swap"))
    assert ".deleted" in str(raised.value)
    assert read_image(directory) == before


@pytest.mark.parametrize("is_old_log_there", [True, False])
def test_a_damaged_batch_that_a_cleaning_kept_does_not_hold_a_replacement_up(is_old_log_there: bool, directory: Path):
    segment(directory, 0, [1, 3], ".swap")
    segment(directory, 0, [0, 1, 3])
    segment(directory, 4, [4])
    for log in (name(0, ".log"), name(0, ".log.swap")):
        damaged(directory / log, "a flipped bit")
    old, kept = ((directory / log).read_bytes() for log in (name(0, ".log"), name(0, ".log.swap")))
    if not is_old_log_there:
        (directory / name(0, ".log")).rename(directory / name(0, ".log.deleted"))
    finish_interrupted(directory, Fs())
    assert names(directory) == segment_names(0, 4)
    assert (directory / name(0, ".log")).read_bytes() == (old if is_old_log_there else kept)


def test_a_damaged_new_segment_is_refused_when_a_whole_old_one_would_go_for_it(directory: Path):
    two_old_segments_and_a_complete_replacement(directory)
    damaged(directory / name(0, ".log.swap"), "a flipped bit")
    (directory / name(0, ".log")).rename(directory / name(0, ".log.deleted"))
    before = read_image(directory)
    with pytest.raises(CorruptDataError, match="old segments are missing"):
        finish_interrupted(directory, Fs())
    assert read_image(directory) == before


def test_a_split_with_one_new_segment_that_is_not_whole_is_undone_as_a_whole(directory: Path):
    segment(directory, 0, [0, 1], ".swap")
    segment(directory, 2, [2, 3], ".swap")
    segment(directory, 0, [0, 1, 2, 3])
    old = {n: content for n, content in read_image(directory).items() if not n.endswith(".swap")}
    damaged(directory / name(2, ".log.swap"), "a torn batch")
    finish_interrupted(directory, Fs())
    assert read_image(directory) == old


def test_an_empty_replacement_without_indexes_is_refused_when_no_old_segment_is_there(directory: Path):
    segment(directory, 0, [0, 1])
    segment(directory, 4, [4])
    (directory / name(2, ".log.swap")).write_bytes(b"")
    with pytest.raises(CorruptDataError, match="its indexes are missing"):
        finish_interrupted(directory, Fs())


@pytest.mark.parametrize("suffix", INDEXES)
def test_an_index_that_is_still_swap_and_does_not_fit_its_log_goes(suffix: str, directory: Path):
    segment(directory, 0, [0, 1])
    before = read_image(directory)
    (directory / name(0, f"{suffix}.swap")).write_bytes(b"\x7f" * 48)
    (repair,) = finish_interrupted(directory, Fs())
    assert (repair.action, repair.name) == ("deleted", name(0, f"{suffix}.swap"))
    assert "the log ends at offset 2, and an index has offset" in repair.why
    assert read_image(directory) == before


def test_a_new_segment_without_an_old_one_is_not_deleted_for_a_cleaned_file(directory: Path):
    segment(directory, 0, [0, 1])
    segment(directory, 2, [2, 3], ".swap")
    (directory / name(0, ".index.cleaned")).write_bytes(b"")
    before = read_image(directory)
    with pytest.raises(CorruptDataError, match="no old segment beside it"):
        finish_interrupted(directory, Fs())
    assert read_image(directory) == before


def test_an_old_log_between_two_new_segments_stays(directory: Path):
    for base in (0, 4):
        segment(directory, base, [base, base + 1], ".swap")
    for base in (0, 2, 4, 6):
        segment(directory, base, [base, base + 1])
    write_snapshot(directory, 2)
    finish_interrupted(directory, Fs())
    assert names(directory) == segment_names(0, 2, 4, 6) | {name(2, ".snapshot")}
    assert offsets_of(directory / name(2, ".log")) == [2, 3]


def test_an_old_log_that_reaches_into_the_next_new_segment_goes(directory: Path):
    for base in (0, 4):
        segment(directory, base, [base], ".swap")
    segment(directory, 0, [0, 1])
    segment(directory, 2, [2, 3, 4])
    finish_interrupted(directory, Fs())
    assert names(directory) == segment_names(0, 4)


def test_a_new_segment_whose_name_has_too_few_digits_stops_before_anything_is_touched(directory: Path):
    segment(directory, 0, [0, 1])
    (directory / "0.log.swap").write_bytes(batch_bytes(0))
    before = read_image(directory)
    with pytest.raises(CorruptDataError, match="20 digits"):
        finish_interrupted(directory, Fs())
    assert read_image(directory) == before


@pytest.mark.parametrize("odd", ["x.log.cleaned", "x.index.swap", f"{2**63}.log.swap"])
def test_a_leftover_without_an_offset_stops_before_anything_is_touched(odd: str, directory: Path):
    segment(directory, 0, [0], ".deleted")
    (directory / odd).write_bytes(b"")
    before = read_image(directory)
    with pytest.raises(CorruptDataError, match="no offset") as raised:
        finish_interrupted(directory, Fs())
    assert raised.value.path == str(directory / odd)
    assert read_image(directory) == before


STACKS = ["".join(stack) for length in (1, 2, 3) for stack in product((".cleaned", ".swap", ".deleted"), repeat=length)]


@pytest.mark.parametrize("stack", [*STACKS, ".run-0.part.swap", ".run-0.part.swap.swap"])
def test_one_call_finishes_names_with_several_suffixes(stack: str, directory: Path):
    for base in (0, 10, 20):
        segment(directory, base, range(base, base + 10, 2))
    whole = read_image(directory)
    for odd in chain(
        [(kind,) for kind in (".log", *INDEXES, ".txnindex", ".snapshot", ".checkpoint")],
        combinations((".log", *INDEXES), 2),
    ):
        write_image(directory, whole)
        for suffix in odd:
            content, _ = whole.get(name(10, suffix), (b"", 0))
            (directory / name(10, f"{suffix}{stack}")).write_bytes(content)
        finish_interrupted(directory, Fs())
        after = read_image(directory)
        assert finish_interrupted(directory, Fs()) == ()
        assert read_image(directory) == after
        assert names(directory) >= {name(base, ".log") for base in (0, 10, 20)}


def test_a_name_with_several_suffixes_can_be_cut_off_anywhere(directory: Path):
    for base in (0, 10, 20):
        segment(directory, base, range(base, base + 10, 2))
    whole = read_image(directory)
    odd = whole | {name(10, ".log.cleaned.swap"): (b"", 0), name(20, ".log.swap.swap"): whole[name(20, ".log")]}
    for step in count(1):
        write_image(directory, odd)
        try:
            finish_interrupted(directory, FaultyFs(Kill(step)))
        except Killed:
            finish_interrupted(directory, Fs())
            assert read_image(directory) == whole
        else:
            break
    assert read_image(directory) == whole and step > 2


def test_repairs_are_sentences(directory: Path):
    segment(directory, 0, [0])
    (directory / name(5, ".index")).write_bytes(b"")
    (repair,) = finish_interrupted(directory, Fs())
    assert repair == Repair("deleted", name(5, ".index"), "it is the index of a log that does not exist")
    assert str(repair) == f"{name(5, '.index')} deleted: it is the index of a log that does not exist"


@pytest.mark.parametrize(
    "case", ["leftover-cleaned", "leftover-swap", "leftover-swap-clean", "leftover-deleted", "orphan-index"]
)
def test_leftovers_are_finished_as_kafkas_loader_finished_them(case: str, tmp_path: Path):
    given = load_loading_case(case, tmp_path / "case")
    mine = tmp_path / given.partition
    shutil.copytree(given.before, mine)
    assert finish_interrupted(mine, Fs())
    assert names(mine) - {n for n in names(mine) if n.endswith(".snapshot")} == {
        n for n in names(given.after) if not n.endswith(".snapshot")
    }
    logs = [n for n in names(mine) if n.endswith(".log")]
    assert {n: (mine / n).read_bytes() for n in logs} == {n: (given.after / n).read_bytes() for n in logs}


# ---------------------------------------------------------------------------------------------------------- next offset
def next_offset(directory: Path, content: bytes, base: int = 10) -> int:
    directory.mkdir(exist_ok=True)
    path = directory / name(base, ".log.swap")
    path.write_bytes(content)
    return next_offset_of(path, base, Fs())


def test_the_next_offset_is_after_the_last_whole_batch(directory: Path):
    whole = batch_bytes(10, "abc") + batch_bytes(20, "ab")
    assert next_offset(directory, b"") == 10
    assert next_offset(directory, whole) == 22
    assert next_offset(directory, whole + bytes(17)) == 22
    assert next_offset(directory, whole + batch_bytes(30)[:-1]) == 22
    assert next_offset(directory, whole + batch_bytes(30)[:18]) == 22


def test_the_next_offset_is_found_across_large_and_many_batches(directory: Path):
    large = batch_bytes(10, value=bytes(200_000))
    many = b"".join(batch_bytes(offset) for offset in range(11, 2011))
    assert next_offset(directory, large + many + large.replace(large[:8], (3000).to_bytes(8, "big"), 1)) == 3001


def test_the_next_offset_of_a_legacy_wrapper_is_after_the_offset_it_carries(directory: Path):
    assert next_offset(directory, V1_GZIP) == 103


# --------------------------------------------------------------------------------------------------------------- commit
def test_a_commit_replaces_groups_and_leaves_skipped_segments_alone(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    assert perform(commit_steps(prepare(directory, given.groups, Fs()), Fs())) is True
    assert {n: content for n, (content, _) in read_image(directory).items()} == given.cleaned_files()


def test_modification_times_of_parts_are_kept(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    swap = prepare(directory, given.groups, Fs())
    for part in swap.groups[0].parts[0].files:
        Fs().set_mtime_ns(directory / part.part_name, 12345)
    commit(swap, Fs())
    assert [(directory / name(0, s)).stat().st_mtime_ns for s in (".log", *INDEXES)] == [12345] * 3


def test_cp_42_snapshots_of_merged_bases_go_and_those_of_new_bases_stay(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    commit(prepare(directory, given.groups, Fs()), Fs())
    snapshots = {n for n in names(directory) if n.endswith(".snapshot")}
    assert snapshots == {name(base, ".snapshot") for base in (9, 12, 20, 30, 40)}


def test_an_old_file_that_cannot_be_removed_is_not_called_an_interrupted_replacement(
    scenario: tuple[Path, Scenario],
):
    directory, given = scenario

    class Stuck(Fs):
        def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
            raise PermissionError(1, "Operation not permitted", str(path))

    with pytest.raises(ReplacedFilesLeftError) as raised:
        commit(prepare(directory, given.groups[2:3], Fs()), Stuck())
    assert raised.value.reason_code == "replaced-files-left"
    assert "is replaced, but some of its old files, which end in .deleted, could not be removed" in str(raised.value)
    assert "interrupted" not in str(raised.value)
    left = {each for each in names(directory) if each.endswith(".deleted")}
    assert left and not [each for each in names(directory) if each.endswith((".swap", ".cleaned"))]
    finish_interrupted(directory, Fs())
    assert not left & names(directory)


def test_renames_follow_kafkas_order(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    fs = FaultyFs()
    commit(prepare(directory, given.groups[2:3], Fs()), fs)
    new = [name(base, s) for base in (20, 23, 28) for s in (".log", *INDEXES)]
    descending = [name(base, s) for base in (28, 23, 20) for s in (".log", *INDEXES)]
    old = [name(base, s) for base in (20, 25) for s in (".log", *INDEXES)]
    snapshot = name(25, ".snapshot")
    steps = [line for line in fs.log if not line.startswith("sync 0")]
    assert [line.split()[-1] if line.startswith("rename") else line for line in steps] == [
        "sync topic-0/",
        *(f"{n}.cleaned" for n in new),
        *(f"{n}.swap" for n in descending),
        "sync topic-0/",
        *(f"{n}.deleted" for n in old),
        "sync topic-0/",
        *new,
        "sync topic-0/",
        f"{snapshot}.deleted",
        *(f"unlink {n}.deleted" for n in [*old, snapshot]),
    ]


def test_old_files_are_kept_as_links_that_are_durable_before_the_first_rename(
    scenario: tuple[Path, Scenario], tmp_path: Path
):
    directory, given = scenario
    swap = prepare(directory, given.groups, Fs())
    kept = link_replaced_files(swap, tmp_path / "kept", Fs())
    assert link_replaced_files(swap, tmp_path / "kept", Fs()) == kept, "once more changes nothing"
    commit(swap, Fs())
    found = {path.name: path.read_bytes() for path in kept}
    old = {n: content for group in given.groups for n, content in group.old.items()}
    assert {name: found[name] for name in old} == old
    assert all(name.endswith(".snapshot") for name in set(found) - set(old))
    assert {path.stat().st_nlink for path in kept} == {1}, "the log has none of them any more"


def with_parts(swap: PreparedSwap) -> list[CleanedGroup]:
    return [group for group in swap.groups if group.parts]


def test_a_stop_ends_a_commit_between_two_groups(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    asked: list[int] = []
    done: list[CleanedGroup] = []
    swap = prepare(directory, given.groups, Fs())
    should_stop = lambda: asked.append(0) or len(asked) > 2  # noqa: E731
    assert perform(commit_steps(swap, Fs(), should_stop=should_stop, after_group=done.append)) is False
    assert committed_groups(directory, given) == 2
    assert done == with_parts(swap)[:2]
    discard_parts(directory, "run", Fs())
    assert not list(directory.glob("*.part"))


def test_a_lost_lock_ends_a_commit_between_two_groups(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    done: list[CleanedGroup] = []

    def check() -> None:
        if done:
            finish_interrupted(directory, Fs())  # the new owner of the lock removes the parts
            raise LockLostError("lost")

    swap = prepare(directory, given.groups, Fs())
    with pytest.raises(LockLostError):
        perform(commit_steps(swap, Fs(), before_group=check, after_group=done.append))
    assert committed_groups(directory, given) == 1
    assert done == with_parts(swap)[:1]


def test_a_group_is_reported_only_after_its_last_rename_is_durable(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    done: list[CleanedGroup] = []

    class LastSyncFails(Fs):
        def sync_directory(self, path: Path) -> None:
            if not list(path.glob("*.swap")) and list(path.glob("*.deleted")):
                raise OSError(errno.EIO, "the disk does not answer")
            super().sync_directory(path)

    with pytest.raises(CommitStateUnknownError):
        perform(commit_steps(prepare(directory, given.groups, Fs()), LastSyncFails(), after_group=done.append))
    assert done == []


def test_a_swap_without_parts_touches_nothing(scenario: tuple[Path, Scenario]):
    directory, _ = scenario
    before = read_image(directory)
    assert perform(commit_steps(prepare(directory, [], Fs()), Fs())) is True
    assert read_image(directory) == before


def refuse(directory: Path, swap: PreparedSwap, error: type[Exception], match: str) -> None:
    before = read_image(directory)
    with pytest.raises(error, match=match):
        commit(swap, Fs())
    assert read_image(directory) == before


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex"])
def test_a_source_of_another_size_is_refused(suffix: str, scenario: tuple[Path, Scenario]):
    directory, given = scenario
    swap = prepare(directory, given.groups, Fs())
    path = directory / name(30, suffix)
    mtime_ns = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes() + b"x")
    Fs().set_mtime_ns(path, mtime_ns)
    refuse(directory, swap, SourceChangedError, f"not the one that was cleaned.*{name(30, '.log')}")


def test_a_source_of_another_time_is_refused(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    swap = prepare(directory, given.groups, Fs())
    Fs().set_mtime_ns(directory / name(6, ".log"), 1)
    refuse(directory, swap, SourceChangedError, name(6, ".log"))


def test_a_source_that_is_gone_is_refused(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    swap = prepare(directory, given.groups, Fs())
    (directory / name(25, ".log")).unlink()
    refuse(directory, swap, SourceChangedError, name(25, ".log"))


def test_a_segment_that_appeared_between_two_sources_is_refused(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    swap = prepare(directory, given.groups, Fs())
    segment(directory, 4, [4])
    refuse(directory, swap, SourceChangedError, name(6, ".log"))


def test_a_source_that_changed_while_other_groups_were_committed_is_refused(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    swap = prepare(directory, given.groups, Fs())
    asked: list[int] = []

    def change_a_later_source() -> None:
        asked.append(0)
        if len(asked) == 2:
            Fs().set_mtime_ns(directory / name(9, ".log"), 1)

    with pytest.raises(SourceChangedError, match=name(9, ".log")):
        commit(swap, Fs(), before_group=change_a_later_source)
    assert committed_groups(directory, given) == 1


@pytest.mark.parametrize("state", [".cleaned", ".swap"])
@pytest.mark.parametrize("base", [0, 12, 99])
def test_files_of_another_replacement_are_refused(base: int, state: str, scenario: tuple[Path, Scenario]):
    directory, given = scenario
    swap = prepare(directory, given.groups, Fs())
    (directory / name(base, f".log{state}")).write_bytes(b"")
    refuse(directory, swap, SourceChangedError, "interrupted replacement")


def test_deleted_files_and_parts_of_others_do_not_stand_in_the_way(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    swap = prepare(directory, given.groups, Fs())
    (directory / name(3, ".log.deleted")).write_bytes(b"")
    (directory / name(3, ".log.other-0.part")).write_bytes(b"")
    commit(swap, Fs())
    assert committed_groups(directory, given) == len(given.groups)
    assert {n for n in names(directory) if not n.startswith("0")} == {"leader-epoch-checkpoint", "partition.metadata"}


def malformed(swap: PreparedSwap) -> Mapping[str, tuple[CleanedGroup, ...]]:
    merged, rewritten, _, split, last = swap.groups
    (new,) = merged.parts
    disordered = replace(new, files=(new.files[1], new.files[0], new.files[2]))
    misnamed = replace(new, files=(replace(new.files[0], final_name="x.log"), *new.files[1:]))
    half_named = replace(new, files=(replace(new.files[0], final_name=name(0, ".log.swap")), *new.files[1:]))
    return {
        "groups descend": (rewritten, merged),
        "groups overlap": (replace(merged, sources=merged.sources + rewritten.sources), rewritten),
        "a part in the next group": (replace(merged, parts=(new, replace(new, base_offset=9))), rewritten),
        "sources descend": (replace(split, sources=split.sources[::-1]),),
        "no sources": (replace(split, sources=()),),
        "parts descend": (replace(split, parts=split.parts[::-1]),),
        "another first base": (replace(last, parts=split.parts),),
        "an index before its log": (replace(merged, parts=(disordered,)),),
        "no segment file": (replace(merged, parts=(misnamed,)),),
        "a temporary name": (replace(merged, parts=(half_named,)),),
        "names of another segment": (replace(rewritten, parts=(replace(new, base_offset=9),)),),
        "no files": (replace(merged, parts=(PartSegment(0, ()),)),),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "groups descend",
        "groups overlap",
        "a part in the next group",
        "sources descend",
        "no sources",
        "parts descend",
        "another first base",
        "an index before its log",
        "no segment file",
        "a temporary name",
        "names of another segment",
        "no files",
    ],
)
def test_a_malformed_swap_is_refused(kind: str, scenario: tuple[Path, Scenario]):
    directory, given = scenario
    swap = prepare(directory, given.groups, Fs())
    refuse(directory, replace(swap, groups=malformed(swap)[kind]), UsageError, "malformed")


def test_a_failing_first_rename_is_an_ordinary_error(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    swap = prepare(directory, given.groups, Fs())
    before = read_image(directory)
    syncs = sum(len(part.files) for group in swap.groups for part in group.parts) + 1
    fs = FaultyFs(Fail(syncs + 1, errno.EIO))
    with pytest.raises(OSError, match="Input/output") as raised:
        commit(swap, fs)
    assert fs.log[-1].startswith("rename")
    assert raised.value.errno == errno.EIO
    assert read_image(directory) == before


def test_indexes_of_a_source_go_when_the_new_segment_has_none(directory: Path):
    segment(directory, 0, [0, 1])
    segment(directory, 2, [2])
    swap = prepare(directory, [], Fs())
    part = directory / f"{name(0, '.log')}.run-1.part"
    part.write_bytes(batch_bytes(1))
    files = (PartFile(part.name, name(0, ".log"), part.stat().st_size),)
    group = CleanedGroup((swap.groups[0].sources[0],), (PartSegment(0, files),), CleanStats())
    commit(replace(swap, groups=(group,)), Fs())
    assert names(directory) == segment_names(2) | {name(0, ".log")}


# ------------------------------------------------------------------------------------------------ parts and checkpoints
def test_parts_of_one_run_or_one_attempt_are_discarded(directory: Path):
    directory.mkdir()
    part_names = [name(0, f".{kind}.{tag}.part") for tag in ("ab-1", "ab-12", "abc-1") for kind in ("log", "txnindex")]
    for part_name in [*part_names, "ab-1.part", name(0, ".log")]:
        (directory / part_name).write_bytes(b"")
    assert set(discard_parts(directory, "ab", Fs(), attempt="1")) == set(part_names[:2])
    assert set(discard_parts(directory, "ab", Fs())) == set(part_names[2:4])
    assert names(directory) == {*part_names[4:], "ab-1.part", name(0, ".log")}


def test_parts_that_somebody_else_commits_are_kept(directory: Path):
    directory.mkdir()
    part_names = [name(0, f".{kind}.ab-{attempt}.part") for attempt in (1, 2) for kind in ("log", "index")]
    for part_name in part_names:
        (directory / part_name).write_bytes(b"")
    assert set(discard_parts(directory, "ab", Fs(), keep=part_names[:2])) == set(part_names[2:])
    assert names(directory) == set(part_names[:2])


def test_parts_of_any_run_go_when_a_run_begins(directory: Path):
    segment(directory, 0, [0])
    (directory / name(0, ".log.ab-1.part")).write_bytes(b"")
    (directory / name(7, ".txnindex.cd-0-1.part")).write_bytes(b"")
    finish_interrupted(directory, Fs())
    assert names(directory) == segment_names(0)


@pytest.mark.parametrize("is_linked", [True, False], ids=["a link to an original", "the only file"])
def test_an_incomplete_replacement_is_undone_if_its_new_segments_are_links_to_originals(
    is_linked: bool, tmp_path: Path
):
    directory = tmp_path / "topic-0"
    write_segment(directory, 0, [batch_bytes(0)])
    old = (directory / f"{0:020d}.log").read_bytes()
    write_segment(tmp_path / "kept", 10, [batch_bytes(10)])
    swap = directory / f"{10:020d}.log.swap"
    swap.hardlink_to(tmp_path / "kept" / f"{10:020d}.log")
    (directory / f"{0:020d}.log.cleaned").write_bytes(b"half")
    if not is_linked:
        (tmp_path / "kept" / f"{10:020d}.log").unlink()
        with pytest.raises(CorruptDataError, match="no old segment"):
            finish_interrupted(directory, Fs())
        assert swap.exists()
        return
    finish_interrupted(directory, Fs())
    assert not swap.exists() and (directory / f"{0:020d}.log").read_bytes() == old
    assert (tmp_path / "kept" / f"{10:020d}.log").exists()
