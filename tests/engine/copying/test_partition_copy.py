"""A copy has the bytes of its source, and an incremental one reads and writes only what changed."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sediment.engine.copying.check import check_copy
from sediment.engine.copying.earlier_copy import open_earlier_copy
from sediment.engine.copying.partition_copy import (
    SETTLED_NS,
    CopiedFile,
    CopyMethod,
    CopyRules,
    PartitionCopy,
    closed_files,
    copy_partition,
)
from sediment.engine.directory.output import LinkKind, Publisher
from sediment.segment_io.errors import SourceChangedError, UsageError
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.manifest import MANIFEST_FILE, ManifestPartition
from sediment.segment_io.stores import Store

KINDS = (SegmentFileKind.LOG, SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX)
LOG = segment_file_name(0, SegmentFileKind.LOG)
ACTIVE = segment_file_name(20, SegmentFileKind.LOG)
HELD = CopyRules(holds_unchanged=True)
LINKED = CopyRules(earlier_links=(LinkKind.REFLINK, LinkKind.HARD))


def write_partition(root: Path, name: str, *, size_bytes: int = 1000, seed: int = 0) -> Path:
    """Write files with the names of three segments, last changed a while ago."""
    directory = root / name
    directory.mkdir(parents=True)
    for base in (0, 10, 20):
        for kind in KINDS:
            content = f"{name} {base} {kind} {seed} ".encode()
            (directory / segment_file_name(base, kind)).write_bytes(content * (size_bytes // len(content)))
    (directory / "leader-epoch-checkpoint").write_text("0\n0\n")
    return directory


@pytest.fixture
def settled(monkeypatch):
    """Let stamps count at once, as if all files had been left alone for a while."""
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + 2 * SETTLED_NS)


@pytest.fixture
def logs(tmp_path, settled):
    for name in ("a-0", "b-0"):
        write_partition(tmp_path / "logs", name)
    return tmp_path / "logs"


def copied(
    logs: Path,
    to: Path | str,
    *,
    since: Path | str | None = None,
    rules: CopyRules = HELD,
    topic_ids: dict[str, str] | None = None,
    read: list[int] | None = None,
) -> dict[str, CopiedFile]:
    """Copy every partition of a log directory; return the files by name."""
    source, target = Store(str(logs)), Store(str(to))
    publisher = Publisher(target, "run")
    publisher.begin()
    earlier = None if since is None else open_earlier_copy(str(since), target)
    listed = source.files()
    found: list[CopiedFile] = []
    names = sorted({name.partition("/")[0] for name in listed})
    ids = {name: (topic_ids or {}).get(name, "an id") for name in names}
    for name in names:
        files = {file.partition("/")[2]: listed[file] for file in listed if file.startswith(f"{name}/")}
        work = PartitionCopy(
            source,
            name,
            files,
            name,
            closed=closed_files(files),
            earlier=None if earlier is None else earlier.files_of(name, ids[name]),
            rules=rules,
        )
        count = [].append if read is None else read.append
        found += copy_partition(work, publisher, attempt="1", on_bytes=count)
    partitions = [ManifestPartition(name, ids[name]) for name in names]
    publisher.finish([each.file for each in found], sources=[str(source)], now_ms=7, partitions=partitions)
    return {each.file.name: each for each in found}


def tree(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != MANIFEST_FILE
    }


def methods(files: dict[str, CopiedFile]) -> set[CopyMethod]:
    return {file.method for file in files.values()}


def traffic(files: dict[str, CopiedFile]) -> tuple[int, int]:
    return sum(file.read_bytes for file in files.values()), sum(file.written_bytes for file in files.values())


def append(logs: Path, name: str, file: str = ACTIVE) -> None:
    with (logs / name / file).open("ab") as log:
        log.write(b"more")


def test_a_copy_is_its_source_byte_for_byte(logs, tmp_path):
    read: list[int] = []
    files = copied(logs, tmp_path / "copy", read=read)
    assert tree(tmp_path / "copy") == tree(logs)
    assert methods(files) == {CopyMethod.COPIED}
    whole = sum(map(len, tree(logs).values()))
    assert traffic(files) == (whole, whole) and sum(read) == whole
    checked = check_copy(Store(str(tmp_path / "copy")))
    assert not checked.differences and checked.read_bytes == whole
    for name in tree(logs):
        assert (tmp_path / "copy" / name).stat().st_mtime_ns == (logs / name).stat().st_mtime_ns


def test_files_of_closed_segments_are_those_below_the_active_one():
    names = [segment_file_name(base, kind) for base in (0, 10, 20) for kind in SegmentFileKind]
    assert closed_files(names) == {name for name in names if name < segment_file_name(20, SegmentFileKind.LOG)[:20]}
    assert closed_files(names, below_offset=19) == {name for name in names if int(name[:20]) < 10}
    assert closed_files(names, below_offset=9) == set()
    assert closed_files([*names[:5], f"{LOG}.swap", "leader-epoch-checkpoint", f"{10:020d}.log.deleted"]) == set()


@pytest.mark.parametrize("rules", [HELD, LINKED], ids=["held", "linked"])
def test_unchanged_closed_segments_are_neither_read_nor_written_again(logs, tmp_path, rules):
    copied(logs, tmp_path / "day-1", rules=rules)
    append(logs, "a-0")
    files = copied(logs, tmp_path / "day-2", since=tmp_path / "day-1", rules=rules)
    closed = {f"{name}/{file}" for name in ("a-0", "b-0") for file in closed_files(os.listdir(logs / name))}
    assert len(closed) == 12
    assert {name for name, file in files.items() if file.method is not CopyMethod.COPIED} == closed
    open_files = sum(len(content) for name, content in tree(logs).items() if name not in closed)
    assert traffic(files) == (open_files, open_files)
    checked = check_copy(Store(str(tmp_path / "day-2")))
    assert not checked.differences
    assert {file.sha256 is None for file in checked.manifest.files} == {False}
    if rules is LINKED:
        assert tree(tmp_path / "day-2") == tree(logs)


def test_a_chain_is_flat_so_that_each_manifest_names_the_copy_that_has_the_file(logs, tmp_path):
    copied(logs, tmp_path / "day-1")
    copied(logs, tmp_path / "day-2", since=tmp_path / "day-1" / MANIFEST_FILE)
    third = copied(logs, tmp_path / "day-3", since=tmp_path / "day-2")
    assert {file.file.held_in for file in third.values()} == {None, "../day-1"}
    assert not check_copy(Store(str(tmp_path / "day-3"))).differences
    # A chain may be moved, because it names neighbours.
    (tmp_path / "vault").mkdir()
    for day in ("day-1", "day-3"):
        (tmp_path / day).rename(tmp_path / "vault" / day)
    assert not check_copy(Store(str(tmp_path / "vault" / "day-3"))).differences


def test_a_changed_closed_segment_is_copied_again(logs, tmp_path):
    copied(logs, tmp_path / "day-1")
    append(logs, "a-0", LOG)
    same_size = logs / "b-0" / LOG
    stamp = same_size.stat()
    same_size.write_bytes(bytes(stamp.st_size))
    os.utime(same_size, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # only the ctime shows this
    files = copied(logs, tmp_path / "day-2", since=tmp_path / "day-1")
    changed = {f"a-0/{LOG}", f"b-0/{LOG}"}
    assert {files[name].method for name in changed} == {CopyMethod.COPIED}
    for name in changed:
        assert (tmp_path / "day-2" / name).read_bytes() == (logs / name).read_bytes()


def test_a_file_with_another_stamp_is_compared_by_its_digest(logs, tmp_path):
    copied(logs, tmp_path / "day-1")
    os.utime(logs / "a-0" / LOG)
    files = copied(logs, tmp_path / "day-2", since=tmp_path / "day-1")
    found = files[f"a-0/{LOG}"]
    assert found.method is CopyMethod.HELD
    assert (found.read_bytes, found.written_bytes) == (found.file.size_bytes, 0)


def test_a_stamp_does_not_count_if_the_file_changed_just_before(tmp_path):
    write_partition(tmp_path / "logs", "a-0")
    files = copied(tmp_path / "logs", tmp_path / "day-1")
    assert {file.file.source for file in files.values()} == {None}
    files = copied(tmp_path / "logs", tmp_path / "day-2", since=tmp_path / "day-1")
    assert traffic(files)[0] == sum(map(len, tree(tmp_path / "logs").values()))
    assert CopyMethod.HELD in methods(files)


def test_a_topic_that_was_created_again_is_copied_whole(logs, tmp_path):
    copied(logs, tmp_path / "day-1")
    files = copied(logs, tmp_path / "day-2", since=tmp_path / "day-1", topic_ids={"a-0": "another"})
    assert {file.method for name, file in files.items() if name.startswith("a-0/")} == {CopyMethod.COPIED}
    assert CopyMethod.HELD in {file.method for name, file in files.items() if name.startswith("b-0/")}


def test_files_are_held_only_by_a_copy_beside_the_new_one(logs, tmp_path):
    copied(logs, tmp_path / "day-1")
    files = copied(logs, tmp_path / "elsewhere" / "day-2", since=tmp_path / "day-1")
    assert methods(files) == {CopyMethod.COPIED}
    assert tree(tmp_path / "elsewhere" / "day-2") == tree(logs)


def test_a_hard_link_is_made_of_closed_segments_only_and_has_no_stamp(logs, tmp_path):
    rules = CopyRules(links=(LinkKind.HARD,), digests_links=False)
    files = copied(logs, tmp_path / "copy", rules=rules)
    linked = {name for name, file in files.items() if file.method is CopyMethod.HARD_LINKED}
    assert linked == {f"{name}/{file}" for name in ("a-0", "b-0") for file in closed_files(os.listdir(logs / name))}
    for name in files:
        assert (tmp_path / "copy" / name).samefile(logs / name) == (name in linked)
        assert (files[name].file.sha256 is None) == (name in linked)
    assert {files[name].file.source for name in linked} == {None}
    checked = check_copy(Store(str(tmp_path / "copy")))
    assert not checked.differences and checked.files_without_digest == len(linked)
    digested = copied(logs, tmp_path / "other", rules=replace(rules, digests_links=True))
    assert {file.file.sha256 is None for file in digested.values()} == {False}


def test_a_filesystem_without_reflinks_gets_a_copy(logs, tmp_path):
    files = copied(logs, tmp_path / "copy", rules=CopyRules(links=(LinkKind.REFLINK,)))
    assert len(methods(files)) == 1 and methods(files) < {CopyMethod.COPIED, CopyMethod.REFLINKED}
    assert tree(tmp_path / "copy") == tree(logs)
    for name in files:
        assert not (tmp_path / "copy" / name).samefile(logs / name)


def test_a_file_that_changes_while_it_is_read_is_an_error(logs, tmp_path):
    source, target = Store(str(logs)), Store(str(tmp_path / "copy"))
    publisher = Publisher(target, "run")
    publisher.begin()
    files = {LOG: source.files()[f"a-0/{LOG}"]}
    work = PartitionCopy(source, "a-0", files, "a-0")

    def change(_: int) -> None:
        append(logs, "a-0", LOG)

    with pytest.raises(SourceChangedError, match="grew while it was read"):
        copy_partition(work, publisher, attempt="1", on_bytes=change)
    with pytest.raises(SourceChangedError, match="listed"):
        copy_partition(work, publisher, attempt="2", on_bytes=[].append)


def test_an_incomplete_copy_cannot_be_continued(logs, tmp_path):
    (tmp_path / "day-1").mkdir()
    with pytest.raises(UsageError, match="not a complete copy"):
        copied(logs, tmp_path / "day-2", since=tmp_path / "day-1")
    copied(logs, tmp_path / "day-3")
    with pytest.raises(UsageError, match="is the output"):
        open_earlier_copy(str(tmp_path / "day-3"), Store(str(tmp_path / "day-3")))


def test_the_second_copy_of_a_large_directory_moves_the_bytes_of_the_changed_partition_alone(tmp_path, settled):
    """The kernel counts the bytes of this process, so that no layer can read a file unseen."""

    def moved() -> tuple[int, int]:
        counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(counters["rchar"]), int(counters["wchar"])

    def bytes_of(*arguments, **named) -> tuple[int, int]:
        before = moved()
        copied(*arguments, **named)
        read, written = moved()
        return read - before[0], written - before[1]

    logs, large = tmp_path / "logs", 8 << 20
    for number in range(4):
        write_partition(logs, f"t-{number}", size_bytes=large)
    for number in range(4):  # the open segments are small
        for kind in KINDS:
            (logs / f"t-{number}" / segment_file_name(20, kind)).write_bytes(b"x")
    whole = sum(map(len, tree(logs).values()))
    first = bytes_of(logs, tmp_path / "day-1")
    assert min(first) >= whole
    append(logs, "t-2", LOG)
    second = bytes_of(logs, tmp_path / "day-2", since=tmp_path / "day-1")
    changed = (logs / "t-2" / LOG).stat().st_size
    assert changed <= min(second) and max(second) < changed + (1 << 20) < whole / 10
    assert not check_copy(Store(str(tmp_path / "day-2"))).differences
