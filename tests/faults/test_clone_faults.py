"""Crashes and failures at each step of `clone`: the source is unchanged, and the target is a whole clone or none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sediment.segment_io.manifest import MANIFEST_FILE
from tests.faults.fs_trace import Failure, Fault, FsTrace, contents, read_tree, write_tree
from tests.faults.inline_spark import inline_spark
from tests.faults.matrix import sample, sampled_by_crash
from tests.jobs.cloning.clones import logs_of
from tests.jobs.log_dirs import Outcome, make_log_dir, sediment, write_log
from tests.segments import NOW_MS

CLONE = "clone"
WAYS = {
    "copied": (),
    "compacted": ("--compact", "--set", "t:cleanup.policy=compact"),
    "linked": ("--link", "hard"),
    "split": ("--strategy", "split"),
}


@pytest.fixture(autouse=True)
def without_spark() -> Iterator[None]:
    with inline_spark():
        yield


@pytest.fixture
def source(tmp_path: Path) -> Path:
    logs = {f"{topic}-0": write_log(tmp_path / topic) for topic in ("t", "u")}
    return make_log_dir(tmp_path / "logs", logs, dirty={"t-0": 0})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the folder in which clones are made."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def run(source: Path, root: Path, way: str) -> Outcome:
    return sediment("clone", source, "--to", root / CLONE, "--json", "--quiet", "--now-ms", NOW_MS, *WAYS[way])


def assert_whole_or_none(source: Path, root: Path, way: str, expected: dict[str, object], what: str) -> None:
    """Assert that the clone has its manifest and every file, or that the next run makes it.

    Without meta.properties no broker starts on the directory, so it is written after every log.
    """
    clone = root / CLONE
    if not (clone / MANIFEST_FILE).exists():
        if (clone / "meta.properties").exists():
            assert logs_of(clone) == expected, what
        outcome = run(source, root, way)
        assert outcome.status == 0, f"{what}: {outcome.stderr}"
    problems = sediment("clone", "--check", clone, "--json").report["problems"]
    # A crash in the last rename may leave both names of the manifest.
    assert [problem for problem in problems if not problem.startswith(f"{MANIFEST_FILE}.")] == [], what
    assert logs_of(clone) == expected, what


@pytest.mark.timeout(0)
@pytest.mark.parametrize("way", WAYS)
def test_a_crash_at_any_step_leaves_a_whole_clone_or_none(source: Path, root: Path, way: str) -> None:
    before = contents(read_tree(source))
    with FsTrace(root, records=True) as trace:
        assert run(source, root, way).status == 0
    expected = logs_of(root / CLONE)
    assert len(trace.steps) > 20
    assert expected
    for image in sampled_by_crash(trace.images):
        write_tree(root, image.tree)
        assert_whole_or_none(source, root, way, expected, str(image))
        assert contents(read_tree(source)) == before, str(image)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("failure", [Failure.EIO, Failure.ENOSPC])
@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_fails_is_reported_and_the_next_run_clones(
    source: Path, root: Path, way: str, failure: Failure
) -> None:
    before, empty = contents(read_tree(source)), read_tree(root)
    with FsTrace(root) as trace:
        assert run(source, root, way).status == 0
    expected = logs_of(root / CLONE)
    numbers = range(1, len(trace.steps) + 1) if failure is Failure.EIO else sorted(trace.growing)
    for number in sample(list(numbers)):
        write_tree(root, empty)
        with FsTrace(root, fault=Fault(number, failure)):
            outcome = run(source, root, way)
        what = f"{failure} at step {number} ({trace.steps[number - 1]})"
        assert outcome.status in (0, 1), f"{what}: {outcome}"
        assert "Traceback" not in outcome.stderr, what
        assert_whole_or_none(source, root, way, expected, what)
        assert contents(read_tree(source)) == before, what
