"""Crashes and failures at each step of `recover --abort-open-transactions`: the transaction is open, or it is aborted.

A broker's start, here `load_log` with what the checkpoint files say, decides which; the next run aborts it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.engine.clone.partition_clone import note_producers_of_bare_copy
from sediment.engine.directory.loading.log_loader import load_log
from sediment.engine.log_config import LogConfig
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints, read_checkpoints
from tests.faults.fs_trace import Failure, Fault, FsTrace, Tree, contents, read_tree, write_tree
from tests.faults.matrix import sample, sampled_by_crash
from tests.jobs.log_dirs import Outcome, sediment
from tests.segments import NOW_MS, batch_bytes, write_segment

OPEN, FIRST, END = 9, 1, 3
PARTITION = TopicPartition("t", 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    found = tmp_path / "root"
    hanging = batch_bytes(FIRST, producer_id=OPEN, transactional=True)
    write_segment(found / str(PARTITION), 0, [batch_bytes(0), hanging, batch_bytes(2)])
    (found / ".kafka_cleanshutdown").touch()
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (found / name).write_text(f"0\n1\nt 0 {END}\n")
    note_producers_of_bare_copy(PARTITION, found / str(PARTITION), PartitionCheckpoints(clean_shutdown=True), Fs())
    assert sediment("recover", found).status == 0
    return found


def run(root: Path) -> Outcome:
    return sediment("recover", root, "--abort-open-transactions", "--yes", "--json", "--quiet", "--now-ms", NOW_MS)


def assert_whole(root: Path, before: Tree, what: str) -> None:
    """Assert that a start finds every record and the transaction or its end, and that the next run ends it."""
    for name, content in contents(before).items():
        if name.endswith(".log"):
            assert contents(read_tree(root))[name] == content, f"{what}: {name}"
    checkpoints = read_checkpoints(root, Fs()).of(PARTITION)
    now = read_tree(root)
    log = load_log(PARTITION, root / str(PARTITION), LogConfig(), checkpoints, Fs(), now_ms=NOW_MS)
    is_aborted = [entry.producer_id for entry in log.aborted] == [OPEN]
    assert log.log_end_offset == (END + 1 if is_aborted else END), what
    assert log.producers.entries[OPEN].has_open_transaction is not is_aborted, what
    write_tree(root, now)
    outcome = run(root)
    assert outcome.status == 0, f"{what}: {outcome.stderr}"
    row = outcome.partitions()[str(PARTITION)]
    assert (row["log_end_offset"], row["first_unstable_offset"]) == (END + 1, None), what
    assert [each[:3] for each in row["aborted"]] == [[OPEN, FIRST, END]], what
    assert (root / ".kafka_cleanshutdown").exists(), what


@pytest.mark.timeout(0)
def test_a_crash_at_any_step_leaves_the_transaction_open_or_aborted(root: Path) -> None:
    before = read_tree(root)
    with FsTrace(root, records=True) as trace:
        assert run(root).status == 0
    assert len(trace.steps) > 10
    for image in sampled_by_crash(trace.images):
        write_tree(root, image.tree)
        assert_whole(root, before, str(image))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("failure", [Failure.EIO, Failure.ENOSPC])
def test_a_step_that_fails_is_reported_and_the_next_run_aborts(root: Path, failure: Failure) -> None:
    before = read_tree(root)
    with FsTrace(root) as trace:
        assert run(root).status == 0
    assert len(trace.steps) > 10
    numbers = range(1, len(trace.steps) + 1) if failure is Failure.EIO else sorted(trace.growing)
    for number in sample(list(numbers)):
        write_tree(root, before)
        with FsTrace(root, fault=Fault(number, failure)):
            outcome = run(root)
        what = f"{failure} at step {number} ({trace.steps[number - 1]})"
        assert outcome.status in (0, 1), f"{what}: {outcome}"
        assert "Traceback" not in outcome.stderr, what
        assert_whole(root, before, what)
