"""Every step of a swap and of its repair, interrupted by a kill, an error, a torn write or a power loss."""

import errno
import multiprocessing
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.swap import commit, discard_parts
from sediment.segment_io.errors import CommitStateUnknownError, SourceChangedError
from sediment.segment_io.fs import Fs
from tests.faults.faulty_fs import Disk, Fail, FaultyFs, Image, Kill, read_image, write_image
from tests.faults.swap_scenario import (
    TEMPORARY,
    Scenario,
    assert_run_completes,
    assert_start_repairs,
    assert_whole,
    committed_groups,
    full_scenario,
    prepare,
    survivor_scenario,
    whole_run,
)

Work = Callable[[FaultyFs], object]

STRAYS: dict[str, dict[str, bytes]] = {
    "nothing": {},
    "parts of a run that died": {
        "00000000000000000000.log.dead-0.part": b"half",
        "00000000000000000023.txnindex.dead-7.part": b"",
    },
    "a replacement that had not begun to rename": {
        "00000000000000000009.log.cleaned": b"half a segment",
        "00000000000000000009.index.cleaned": b"",
    },
    "a replacement in the middle of its renames": {
        "00000000000000000020.log.cleaned": b"whatever",
        "00000000000000000020.index.swap": b"whatever",
        "00000000000000000023.log.swap": b"whatever",
        "00000000000000000023.index.swap": b"whatever",
    },
    "deleted files": {
        "00000000000000000003.log.deleted": b"old",
        "00000000000000000003.snapshot.deleted": b"old",
        "00000000000000000030.log.deleted": b"old",
    },
    "indexes without a log": {"00000000000000000005.index": b"", "00000000000000000035.txnindex": b""},
}


@dataclass(frozen=True, slots=True)
class Crashed:
    """The directory after an operation, as a kill leaves it; `log` names the operations until then.

    `without_power` are the states that a power loss could leave instead: without the unsynced changes of names, with
    the first one, and so on.
    """

    image: Image
    log: tuple[str, ...]
    without_power: tuple[Image, ...]


def crashes(directory: Path, start: Image, work: Work) -> list[Crashed]:
    """Return what a crash after each operation of `work` on `directory`, which holds `start` at first, would leave.

    The directory is read after each operation of one undisturbed run: a killed process does nothing more.
    """
    write_image(directory, start)
    fs = FaultyFs(disk=Disk(directory))
    found: list[Crashed] = []

    def note() -> None:
        found.append(Crashed(read_image(directory), tuple(fs.log), tuple(lost_power(fs))))

    fs.after_each = note
    work(fs)
    assert len(found) == fs.operations
    return found


class Starts:
    """A cache of what a start, and a run, make of an image: the same files have the same result."""

    def __init__(self, directory: Path, given: Scenario) -> None:
        self._directory = directory
        self._given = given
        self._known: dict[frozenset[tuple[str, tuple[bytes, int]]], int] = {}
        self._completed: set[frozenset[tuple[str, tuple[bytes, int]]]] = set()

    def committed(self, image: Image) -> int:
        """Return the number of new groups after a start over `image`."""
        key = frozenset(image.items())
        if key not in self._known:
            write_image(self._directory, image)
            self._known[key] = assert_start_repairs(self._directory, self._given)
        return self._known[key]

    def completed(self, image: Image) -> int:
        """Return the same, and assert that a run over the repaired directory ends like an undisturbed one."""
        write_image(self._directory, image)
        committed = assert_start_repairs(self._directory, self._given)
        key = frozenset(read_image(self._directory).items())
        if key not in self._completed:
            assert_run_completes(self._directory, self._given)
            self._completed.add(key)
        return committed


def crashes_of_a_commit(directory: Path, given: Scenario) -> list[Crashed]:
    swap = prepare(directory, given.groups, FaultyFs())
    return crashes(directory, read_image(directory), partial(commit, swap))


@pytest.fixture
def scenario(tmp_path: Path) -> tuple[Path, Scenario]:
    return full_scenario(tmp_path)


def with_strays(image: Image, strays: dict[str, bytes]) -> Image:
    return image | {name: (content, 1) for name, content in strays.items()}


# ------------------------------------------------------------------------------------------------------ nothing happens
@pytest.mark.parametrize("left", STRAYS)
def test_an_undisturbed_run_replaces_every_group_whatever_lies_there(left: str, scenario: tuple[Path, Scenario]):
    directory, given = scenario
    write_image(directory, with_strays(given.image, STRAYS[left]))
    whole_run(directory, given, Fs())
    assert {name: content for name, (content, _) in read_image(directory).items()} == given.cleaned_files()


def test_names_of_two_groups_are_never_there_at_once(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    for crash in crashes_of_a_commit(directory, given):
        names = [name for name in crash.image if name.endswith((".cleaned", ".swap", ".deleted"))]
        assert sum(bool(group.files_of(dict.fromkeys(names, b""))) for group in given.groups) <= 1


# --------------------------------------------------------------------------------------------------------------- killed
@pytest.mark.parametrize("left", STRAYS)
def test_a_start_makes_whole_what_a_kill_after_any_step_of_a_run_left(left: str, scenario: tuple[Path, Scenario]):
    directory, given = scenario
    start = with_strays(given.image, STRAYS[left])
    starts = Starts(directory, given)
    run = crashes(directory, start, partial(whole_run, directory, given))
    committed = [starts.completed(crash.image) for crash in run]
    assert committed == sorted(committed)
    assert set(committed) == set(range(len(given.groups) + 1))


def test_the_next_repair_completes_one_killed_after_any_step(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    starts = Starts(directory, given)
    for crash in crashes_of_a_commit(directory, given):
        whole = starts.committed(crash.image)
        for again in crashes(directory, crash.image, partial(finish_interrupted, directory)):
            assert starts.committed(again.image) == whole


def test_a_process_that_got_sigkill_after_any_step_is_repaired_by_the_next_one(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    swap = prepare(directory, given.groups, FaultyFs())
    with_parts = read_image(directory)
    fork = multiprocessing.get_context("fork")
    committed = []
    for number in count(1):
        write_image(directory, with_parts)
        process = fork.Process(target=commit, args=(swap, FaultyFs(Kill(number, for_real=True))))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        committed.append(assert_start_repairs(directory, given))
    assert committed == sorted(committed)
    assert set(committed) == set(range(len(given.groups) + 1))


# -------------------------------------------------------------------------------------------------------- without power
def test_a_start_makes_whole_whatever_prefix_of_unsynced_renames_reached_the_disk(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    starts = Starts(directory, given)
    committed = set()
    for crash in crashes(directory, given.image, partial(whole_run, directory, given)):
        without_loss = starts.committed(crash.image)
        found = [starts.committed(survivors) for survivors in crash.without_power]
        assert max(found) <= without_loss
        assert found == sorted(found)
        committed.update(found)
    assert committed == set(range(len(given.groups) + 1))


def test_parts_that_tasks_left_unsynced_are_durable_before_anything_is_renamed(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    starts = Starts(directory, given)
    commit(prepare(directory, given.groups[:2], FaultyFs()), FaultyFs())
    half = read_image(directory)
    for crash in crashes(
        directory, half, lambda fs: commit(prepare(directory, given.groups[2:], fs, synced=False), fs)
    ):
        assert {starts.committed(survivors) for survivors in crash.without_power} <= {2, 3, 4}


def test_power_lost_while_repairing_is_repaired_too(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    starts = Starts(directory, given)
    for crash in crashes_of_a_commit(directory, given):
        whole = starts.committed(crash.image)
        for again in crashes(directory, crash.image, partial(finish_interrupted, directory)):
            assert {starts.committed(survivors) for survivors in again.without_power} == {whole}


def test_a_repair_is_durable_when_it_returns(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    for crash in crashes_of_a_commit(directory, given):
        write_image(directory, crash.image)
        fs = FaultyFs(disk=Disk(directory))
        finish_interrupted(directory, fs)
        assert lost_power(fs) == [read_image(directory)]


def test_a_group_is_durable_when_the_next_one_begins(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    swap = prepare(directory, given.groups, FaultyFs())
    fs = FaultyFs(disk=Disk(directory))
    durable: list[list[int]] = []

    def look() -> None:
        assert fs.disk is not None
        now = read_image(directory)
        durable.append([])
        for survivors in fs.disk.after_power_loss():
            write_image(directory, survivors)
            durable[-1].append(committed_after_start(directory, given))
        write_image(directory, now)

    commit(swap, fs, before_group=look)
    assert [set(found) for found in durable] == [{number} for number in range(len(given.groups))]


def committed_after_start(directory: Path, given: Scenario) -> int:
    finish_interrupted(directory, FaultyFs())
    return committed_groups(directory, given)


def lost_power(fs: FaultyFs) -> list[Image]:
    assert fs.disk is not None
    return fs.disk.after_power_loss()


# --------------------------------------------------------------------------------------------------- failing operations
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_an_error_leaves_everything_as_it_was_or_says_that_the_state_is_unknown(
    code: int, scenario: tuple[Path, Scenario]
):
    directory, given = scenario
    swap = prepare(directory, given.groups, FaultyFs())
    with_parts = read_image(directory)
    outcomes = set()
    for number in count(1):
        write_image(directory, with_parts)
        fs = FaultyFs(Fail(number, code))
        try:
            commit(swap, fs)
        except OSError as error:
            assert error.errno == code
            outcomes.add("untouched")
            committed = committed_groups(directory, given)
            discard_parts(directory, "run", Fs())
            assert assert_whole(directory, given) == committed
        except CommitStateUnknownError as error:
            assert error.partition == "topic-0"
            assert isinstance(error.__cause__, OSError)
            assert "next run" in str(error)
            outcomes.add("unknown")
            assert_start_repairs(directory, given)
        else:
            break
    assert outcomes == {"untouched", "unknown"}


def test_a_torn_part_is_removed_and_never_committed(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    torn = 0
    for number in count(1):
        write_image(directory, given.image)
        fs = FaultyFs(Fail(number, errno.ENOSPC, torn=True))
        try:
            prepare(directory, given.groups, fs)
        except OSError:
            torn += 1
            discard_parts(directory, "run", Fs())
            assert read_image(directory) == given.image
        else:
            break
    assert torn > len(given.groups)


def test_a_part_that_lost_its_end_is_refused_before_anything_is_renamed(scenario: tuple[Path, Scenario]):
    directory, given = scenario
    swap = prepare(directory, given.groups, FaultyFs())
    last = directory / swap.groups[-1].parts[0].files[0].part_name
    last.write_bytes(last.read_bytes()[:-1])
    before = read_image(directory)
    with pytest.raises(SourceChangedError, match="another size"):
        commit(swap, Fs())
    assert read_image(directory) == before


# ----------------------------------------------------------------------------- what Kafka's rule by numbers brings back
def test_a_source_after_the_end_of_the_new_segment_survives_a_crash_in_mid_swap(tmp_path: Path):
    directory, given = survivor_scenario(tmp_path, kept=[31])
    (group,) = given.groups
    survivor = {name: content for name, content in group.old.items() if name.startswith(f"{33:020d}")}
    seen = []
    for crash in crashes_of_a_commit(directory, given):
        complete = crash.log.count(f"rename {30:020d}.timeindex.cleaned {30:020d}.timeindex.swap") == 1
        renamed = crash.log.count(f"rename {33:020d}.log {33:020d}.log.deleted") == 1
        expected = group.new if renamed else group.new | survivor if complete else group.old
        write_image(directory, crash.image)
        finish_interrupted(directory, FaultyFs())
        files = {name: content for name, (content, _) in read_image(directory).items()}
        assert not any(name.endswith(TEMPORARY) for name in files)
        live = {name: content for name, content in files.items() if not name.endswith(".snapshot")}
        assert group.files_of(live) == expected
        assert (f"{33:020d}.snapshot" in files) or renamed
        seen.append((complete, renamed))
    assert set(seen) == {(False, False), (True, False), (True, True)}


@pytest.mark.parametrize("kept", [[], [30], [30, 31, 32, 34]], ids=["nothing", "one record", "records of both"])
def test_no_index_of_the_old_segment_survives_beside_a_new_log_that_has_none(kept: list[int], tmp_path: Path):
    directory, given = survivor_scenario(tmp_path, kept)
    (group,) = given.groups
    old_index = f"{30:020d}.txnindex"
    assert old_index in group.old and old_index not in group.new
    for crash in crashes_of_a_commit(directory, given):
        write_image(directory, crash.image)
        finish_interrupted(directory, FaultyFs())
        is_new = (directory / f"{30:020d}.log").read_bytes() == group.new[f"{30:020d}.log"]
        assert (directory / old_index).exists() is not is_new
