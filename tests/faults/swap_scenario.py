"""A partition whose replacement is interrupted at every step: segments, their replacements, and the allowed results.

    group          sources          new segments        reason
    three merged   0, 3, 6          0                   two bases and a transaction index are removed
    one rewritten  9                9                   names of old and new are the same
    skipped        12               -                   it must not change
    split          20, 25           20, 23, 28          several `.log.swap`, one range
    one rewritten  30               30
    active         40               -

Every group's new segments end past the base of its last source, so each group is wholly old or wholly new after a
start; the other case is `survivor_scenario`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sediment.compaction.prepared_swap import CleanedGroup, CleanStats, PartSegment, PreparedSwap
from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.swap import commit
from sediment.segment_io.format.names import (
    Attempt,
    PartFile,
    SegmentFileKind,
    TopicPartition,
    parse_segment_file,
    part_file_name,
    segment_file_name,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import list_log
from tests.faults.faulty_fs import FaultyFs, Image, read_image
from tests.segments import NOW_MS, batch_bytes, write_segment, write_snapshot
from tests.twin.indexes import AbortedTransaction

PARTITION = TopicPartition("topic", 0)
NEXT_DIRTY_OFFSET = 40
TEMPORARY = (".part", ".cleaned", ".swap", ".deleted")
FILE_KINDS = (
    SegmentFileKind.LOG,
    SegmentFileKind.OFFSET_INDEX,
    SegmentFileKind.TIME_INDEX,
    SegmentFileKind.TRANSACTION_INDEX,
)

Files = dict[str, bytes]
Offsets = Mapping[int, Sequence[int]]
"""Segments by base offset; their batches hold one record each, at these offsets."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sources and their replacements; `old` and `new` are live files by name."""

    bases: tuple[int, ...]
    new_bases: tuple[int, ...]
    old: Files
    new: Files

    def files_of(self, name_to_content: Files) -> Files:
        """Return the given files with a base of this group."""
        bases = {*self.bases, *self.new_bases}
        return {name: content for name, content in name_to_content.items() if _base_of(name) in bases}


@dataclass(frozen=True, slots=True)
class Scenario:
    """The directory before the replacement, and the groups to replace."""

    image: Image
    groups: tuple[Group, ...]

    def untouched(self) -> Files:
        """Return the files outside all groups, without snapshots."""
        grouped = {name for group in self.groups for name in group.old}
        return {name: content for name, (content, _) in self.image.items() if name not in grouped and _is_kept(name)}

    def snapshots(self) -> Files:
        return {name: content for name, (content, _) in self.image.items() if name.endswith(".snapshot")}

    def cleaned_files(self) -> Files:
        """Return the whole directory after a commit."""
        files = self.untouched()
        removed = {base for group in self.groups for base in group.bases if base not in group.new_bases}
        files |= {name: content for name, content in self.snapshots().items() if _base_of(name) not in removed}
        for group in self.groups:
            files |= group.new
        return files

    def expected_state(self, committed: int) -> Files:
        """Return the live segment files after the first `committed` groups."""
        files = self.untouched()
        for number, group in enumerate(self.groups):
            files |= group.new if number < committed else group.old
        return files


def build(directory: Path, old: Offsets, new: Sequence[tuple[Sequence[int], Offsets]], scratch: Path) -> Scenario:
    """Write the segments `old` into `directory`; `new` pairs source bases with their replacements.

    Segments at a multiple of three have a transaction index, new ones at a multiple of nine.
    """
    for base, offsets in old.items():
        _write(directory, base, offsets, with_aborted=base % 3 == 0 and base > 0)
        if base:
            write_snapshot(directory, base)
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (directory / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    groups = []
    for number, (bases, segments) in enumerate(new):
        folder = scratch / str(number)
        folder.mkdir(parents=True)
        for base, offsets in segments.items():
            _write(folder, base, offsets, with_aborted=base % 9 == 0 and base > 0, later_ms=1000)
        before = {
            name: content
            for name, content in _contents(directory).items()
            if _base_of(name) in bases and _is_kept(name)
        }
        groups.append(Group(tuple(bases), tuple(segments), before, _contents(folder)))
    assert all(group.old[name] != group.new[name] for group in groups for name in set(group.old) & set(group.new))
    return Scenario(read_image(directory), tuple(groups))


def full_scenario(tmp_path: Path) -> tuple[Path, Scenario]:
    """Lay out the table above below `tmp_path`."""
    directory = tmp_path / "logs" / str(PARTITION)
    old = {
        0: range(3),
        3: range(3, 6),
        6: range(6, 9),
        9: range(9, 12),
        12: range(12, 15),
        20: range(20, 25),
        25: range(25, 30),
        30: range(30, 33),
        40: range(40, 42),
    }
    new: list[tuple[list[int], Offsets]] = [
        ([0, 3, 6], {0: [1, 4, 8]}),
        ([9], {9: [9, 11]}),
        ([20, 25], {20: [20, 22], 23: [23, 27], 28: [28]}),
        ([30], {30: [31]}),
    ]
    return directory, build(directory, old, new, tmp_path / "new")


def survivor_scenario(tmp_path: Path, kept: Sequence[int]) -> tuple[Path, Scenario]:
    """Lay out segments 30 and 33 to be merged into one that holds `kept` and may end before 33 begins."""
    directory = tmp_path / "logs" / str(PARTITION)
    old = {30: range(30, 33), 33: range(33, 36), 36: range(36, 39), 40: range(40, 42)}
    return directory, build(directory, old, [([30, 33], {30: kept})], tmp_path / "new")


def _write(directory: Path, base: int, offsets: Sequence[int], *, with_aborted: bool, later_ms: int = 0) -> None:
    aborted = (
        [AbortedTransaction(later_ms, min(offsets), max(offsets), min(offsets))] if with_aborted and offsets else []
    )
    # Sizes and times distinguish files that would be equal otherwise.
    value = b"v" * (1 + len(offsets))
    batches = [batch_bytes(offset, value=value, timestamp=NOW_MS + offset + later_ms) for offset in offsets]
    write_segment(directory, base, batches, aborted=aborted, index_interval_bytes=0, mtime_ms=NOW_MS + base)


def _contents(directory: Path) -> Files:
    return {name: content for name, (content, _) in read_image(directory).items()}


def _is_kept(name: str) -> bool:
    return not name.endswith((".snapshot", *TEMPORARY))


def _base_of(name: str) -> int:
    parsed = parse_segment_file(name)
    return -1 if parsed is None else parsed.base_offset


# ------------------------------------------------------------------------------------------------------------- the work
def prepare(directory: Path, groups: Sequence[Group], fs: Fs, *, synced: bool = True) -> PreparedSwap:
    """Write the parts of `groups` as tasks do, by default synced; the other segments are skipped.

    The active segment is in no group.
    """
    segments = {segment.base_offset: segment for segment in list_log(PARTITION, directory, Fs()).segments[:-1]}
    replaced = {base for group in groups for base in group.bases}
    cleaned = [CleanedGroup((segment,), (), CleanStats()) for base, segment in segments.items() if base not in replaced]
    for group in groups:
        parts = []
        for base in group.new_bases:
            files = []
            for kind in FILE_KINDS:
                name = segment_file_name(base, kind)
                if name not in group.new:
                    continue
                part_name = part_file_name(base, kind, Attempt("run", "1"))
                fs.write_new(directory / part_name, [group.new[name]])
                if synced:
                    fs.sync_file(directory / part_name)
                files.append(PartFile(part_name, name, len(group.new[name])))
            parts.append(PartSegment(base, tuple(files)))
        cleaned.append(CleanedGroup(tuple(segments[base] for base in group.bases), tuple(parts), CleanStats()))
    ascending = sorted(cleaned, key=lambda group: group.sources[0].base_offset)
    return PreparedSwap(PARTITION, str(directory), tuple(ascending), NEXT_DIRTY_OFFSET)


def whole_run(directory: Path, scenario: Scenario, fs: Fs) -> None:
    """Do a whole run: finish interrupted replacements, write the parts, commit."""
    finish_interrupted(directory, fs)
    done = committed_groups(directory, scenario)
    commit(prepare(directory, scenario.groups[done:], fs), fs)


# ----------------------------------------------------------------------------------------------------------- the checks
def committed_groups(directory: Path, scenario: Scenario) -> int:
    """Return the number of new groups; each must be old or new, and the new ones a prefix."""
    return _committed({name: content for name, content in _contents(directory).items() if _is_kept(name)}, scenario)


def _committed(live: Files, scenario: Scenario) -> int:
    states = []
    for group in scenario.groups:
        found = group.files_of(live)
        assert found in (group.old, group.new), f"group {group.bases} is neither old nor new: {sorted(found)}"
        states.append(found == group.new)
    assert states == sorted(states, reverse=True), f"a group is new after one that is old: {states}"
    return sum(states)


def assert_whole(directory: Path, scenario: Scenario) -> int:
    """Assert no leftovers, each group old or new, all else unchanged; return the number of new groups."""
    files = _contents(directory)
    assert [name for name in files if name.endswith(TEMPORARY)] == []
    live = {name: content for name, content in files.items() if _is_kept(name)}
    committed = _committed(live, scenario)
    assert live == scenario.expected_state(committed)
    snapshots = {name: content for name, content in files.items() if name.endswith(".snapshot")}
    assert snapshots.items() <= scenario.snapshots().items()
    safe = {base for group in scenario.groups[:committed] for base in group.bases}
    lost = {_base_of(name) for name in scenario.snapshots().keys() - snapshots.keys()}
    assert lost <= safe, "a snapshot of a segment that is still there is gone"
    return committed


def assert_start_repairs(directory: Path, scenario: Scenario) -> int:
    """Assert that a start makes the directory whole and a second changes nothing; return the number of new groups."""
    finish_interrupted(directory, FaultyFs())
    committed = assert_whole(directory, scenario)
    assert finish_interrupted(directory, FaultyFs()) == ()
    return committed


def assert_run_completes(directory: Path, scenario: Scenario) -> None:
    """Assert that a run after a crash ends like an undisturbed one; stray snapshots may be left to the loader."""
    whole_run(directory, scenario, FaultyFs())
    assert assert_whole(directory, scenario) == len(scenario.groups)


def copy_of(directory: Path, parent: Path) -> Path:
    """Return a copy of a partition directory below `parent`, with the same name."""
    target = parent / directory.name
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(directory, target)
    return target
