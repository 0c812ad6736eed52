"""Crashes and failures at each step of `adopt` into a metadata log: the directory is as before, or adopted.

A start reads the metadata log up to its first torn batch; `tests/engine/clone/test_metadata_append.py` tears the append
at every byte.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import read_cluster_metadata
from tests.faults.fs_trace import Failure, Fault, FsTrace, Tree, contents, read_tree, write_tree
from tests.faults.matrix import sample, sampled_by_crash
from tests.jobs.log_dirs import Outcome, sediment
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.served import unpacked

FOREIGN = "foreign-0"
ARGUMENTS = ("--yes", "--json", "--quiet", "--abort-open-transactions", "--now-ms", NOW_MS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = unpacked(tmp_path / "root")
    batches = [batch_bytes(0), batch_bytes(1, producer_id=9, transactional=True)]
    write_segment(found / FOREIGN, 0, batches)
    return found


def run(root: Path) -> Outcome:
    return sediment("adopt", root, *ARGUMENTS)


def assert_whole(root: Path, before: Tree, what: str) -> None:
    """Assert that a start finds the old topics, that every record is there, and that the next run adopts the folder."""
    old = topics(root, before)
    write_tree(root, now := read_tree(root))
    found = topics(root, now)
    assert found in (old, old | {FOREIGN.partition("-")[0]}), what
    for name, content in contents(before).items():
        if name.endswith(".log"):
            assert contents(now)[name].startswith(content), f"{what}: {name}"
        elif not name.startswith((FOREIGN, "__cluster_metadata")) and not name.endswith("-offset-checkpoint"):
            assert contents(now)[name] == content, f"{what}: {name}"
    if found != old:
        assert f"{FOREIGN}/partition.metadata" in now, what
    outcome = run(root)
    assert outcome.status == 0, f"{what}: {outcome.stderr}"
    assert topics(root, read_tree(root)) == old | {FOREIGN.partition("-")[0]}


def topics(root: Path, tree: Tree) -> frozenset[str]:
    write_tree(root, tree)
    metadata = read_cluster_metadata(root, Fs())
    assert metadata is not None
    return frozenset(metadata.topic_ids)


@pytest.mark.timeout(0)
def test_a_crash_at_any_step_leaves_the_directory_as_before_or_adopted(root: Path) -> None:
    before = read_tree(root)
    with FsTrace(root, records=True) as trace:
        assert run(root).status == 0
    assert len(trace.steps) > 10
    for image in sampled_by_crash(trace.images):
        write_tree(root, image.tree)
        assert_whole(root, before, str(image))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("failure", [Failure.EIO, Failure.ENOSPC])
def test_a_step_that_fails_is_reported_and_the_next_run_adopts(root: Path, failure: Failure) -> None:
    before = read_tree(root)
    with FsTrace(root) as trace:
        assert run(root).status == 0
    numbers = range(1, len(trace.steps) + 1) if failure is Failure.EIO else sorted(trace.growing)
    for number in sample(list(numbers)):
        write_tree(root, before)
        with FsTrace(root, fault=Fault(number, failure)):
            outcome = run(root)
        what = f"{failure} at step {number} ({trace.steps[number - 1]})"
        assert outcome.status in (0, 1), f"{what}: {outcome}"
        assert "Traceback" not in outcome.stderr, what
        assert_whole(root, before, what)


def test_a_full_disk_under_the_append_leaves_the_metadata_log_readable(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_tree(root)
    real = os.pwrite

    def half(descriptor: int, content: memoryview, position: int) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == root / "__cluster_metadata-0" / "00000000000000000000.log":
            real(descriptor, bytes(content)[: len(content) // 2], position)
            raise OSError(28, os.strerror(28))
        return real(descriptor, content, position)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", half)
        outcome = run(root)
    assert outcome.status == 1
    assert "run again" in outcome.stderr
    assert_whole(root, before, "half of the append")
