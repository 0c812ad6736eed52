"""Partitions cleaned in splits from the command line: the same bytes as from one task, and the fallback to one task."""

from __future__ import annotations

import random

import pytest

from benchmarks.generate import Shape, write_partition
from tests.compaction.cleanings import batch_of, flip, write_log
from tests.jobs.log_dirs import make_log_dir, sediment, tree
from tests.jobs.test_plan import SAME
from tests.logs import START_MS, LogShape, write_random_log
from tests.twin.batches import Record, encode_batch

NOW_MS = START_MS + 1_000_000
KEYS = ("cleanup.policy=compact", "index.interval.bytes=300")


def compact(log_dir, *options, segment_bytes=2500, now_ms=NOW_MS):
    topics = {path.name.rpartition("-")[0] for path in log_dir.iterdir() if path.is_dir()}
    sets = (f"--set={topic}:{key}" for topic in topics for key in (f"segment.bytes={segment_bytes}", *KEYS))
    return sediment("compact", log_dir, "--force", "--json", "--now-ms", now_ms, *sets, *options)


def cleaned_both_ways(tmp_path, sources, **given):
    """Return the trees after `whole` and after `split`, and the reports of the latter."""
    whole = make_log_dir(tmp_path / "whole", sources)
    split = make_log_dir(tmp_path / "split", sources)
    assert compact(whole, "--strategy=whole", **given).status == 0
    outcome = compact(split, "--strategy=split", **given)
    assert outcome.status == 0, outcome.stdout
    return tree(whole), tree(split), outcome.partitions()


def without_checkpoint(files):
    """Return a tree without the cleaner checkpoint, because its lines are in the order of completion."""
    return {name: content for name, content in files.items() if name != "cleaner-offset-checkpoint"}


def test_random_logs_come_out_with_the_bytes_of_the_whole(tmp_path):
    sources = {}
    for seed in range(3):
        shape = LogShape(batches=200, keys=40, codecs=random.Random(seed).choice([(0,), (0, 3, 4)]))
        write_random_log(tmp_path / f"source-{seed}", seed, shape)
        sources[f"t{seed}-0"] = tmp_path / f"source-{seed}"
    whole, split, reports = cleaned_both_ways(tmp_path, sources)
    assert without_checkpoint(split) == without_checkpoint(whole)
    assert {report["strategy"] for report in reports.values()} == {"split"}


@pytest.mark.parametrize(("segment_bytes", "little_bytes"), [(4_000_000, 30_000_000), (1 << 30, 60_000_000)])
def test_keys_that_do_not_fit_the_memory_of_a_task_are_split_and_the_plan_says_why(
    tmp_path, segment_bytes, little_bytes
):
    log_dir = tmp_path / "logs"
    shape = Shape(total_bytes=40_000_000, keys=10_000_000, value_bytes=1, segment_bytes=4_000_000)
    records = write_partition(log_dir / "t-0", shape)
    (log_dir / ".kafka_cleanshutdown").touch()

    def run(command, memory_bytes, *options):
        keys = (
            f"sediment.task.memory.bytes={memory_bytes}",
            f"segment.bytes={segment_bytes}",
            "cleanup.policy=compact",
        )
        outcome = sediment(command, log_dir, "--force", "--json", *options, *(f"--set={key}" for key in keys))
        return outcome.partitions()["t-0"]

    assert run("plan", 1_000_000_000)["strategy"] == "whole"
    planned = run("plan", little_bytes)
    assert planned["strategy"] == "split"
    assert "keys takes" in planned["strategy_reason"]
    assert run("compact", little_bytes, "--strategy=whole")["reason_code"] == "memory-budget"
    cleaned = run("compact", little_bytes)
    assert (cleaned["status"], cleaned["strategy"]) == ("compacted", "split")
    assert 0.9 * records < cleaned["messages_written"] < records


def test_an_exact_plan_of_a_partition_that_is_cleaned_in_splits_is_what_compact_then_does(tmp_path):
    log_dir = tmp_path / "logs"
    shape = Shape(total_bytes=12_000_000, keys=10_000_000, value_bytes=1, segment_bytes=2_000_000)
    write_partition(log_dir / "t-0", shape)
    (log_dir / ".kafka_cleanshutdown").touch()

    def run(command, *options):
        keys = ("sediment.task.memory.bytes=12000000", "segment.bytes=2000000", "cleanup.policy=compact")
        given = (f"--set={key}" for key in keys)
        outcome = sediment(command, log_dir, "--force", "--json", "--now-ms", NOW_MS, *given, *options)
        return outcome.partitions()["t-0"]

    before = tree(log_dir)
    planned = run("plan", "--exact")
    assert tree(log_dir) == before
    done = run("compact")
    assert (planned["status"], planned["strategy"], planned["is_exact"]) == ("cleanable", "split", True)
    assert {name: planned[name] for name in SAME} == {name: done[name] for name in SAME}
    assert planned["bytes_back"] == done["bytes_before"] - done["bytes_after"]


def test_transactions_known_only_from_the_oldest_segment_are_scanned_and_split(tmp_path):
    transaction = {"producer_id": 5, "producer_epoch": 0, "transactional": True, "leader_epoch": 0}
    old = [
        encode_batch([Record(n, START_MS, b"k", b"v")], base_offset=n, base_sequence=n, **transaction) for n in range(3)
    ]
    commit = encode_batch([Record(3, START_MS, b"\0\0\0\1", b"\0" * 6)], base_offset=3, control=True, **transaction)
    segments = {0: [*old, commit]} | {
        10 * n: [batch_of(10 * n + m, b"k%d" % (m % 3)) for m in range(10)] for n in range(1, 8)
    }
    sources = {"t-0": write_log(tmp_path / "log", segments)}
    # So late that no producer is active any more.
    whole, split, reports = cleaned_both_ways(tmp_path, sources, segment_bytes=800, now_ms=START_MS + 10 * 86_400_000)
    assert split == whole
    assert reports["t-0"]["strategy"] == "split"


def test_offsets_that_do_not_increase_are_cleaned_as_a_whole(tmp_path):
    first = [batch_of(offset, b"k%d" % (offset % 5)) for offset in (0, 3, 2, 9, 5, 10)]
    sources = {"t-0": write_log(tmp_path / "log", {0: first, 20: [batch_of(20 + n, b"k%d" % n) for n in range(5)]})}
    whole, split, reports = cleaned_both_ways(tmp_path, sources, segment_bytes=500)
    assert split == whole
    assert reports["t-0"]["strategy"] == "whole"


@pytest.mark.parametrize("batch", [2, 25])
def test_a_damaged_batch_marks_the_partition_and_leaves_no_part(tmp_path, batch):
    source = write_log(
        tmp_path / "log", {10 * n: [batch_of(10 * n + m, b"k%d" % m) for m in range(10)] for n in range(4)}
    )
    flip(source / f"{batch // 10 * 10:020d}.log", batch % 10 * len(batch_of(0, b"k0")) + 66)
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": source})
    before = tree(log_dir / "t-0")
    outcome = compact(log_dir, "--strategy=split", segment_bytes=800)
    assert outcome.status == 1
    report = outcome.partitions()["t-0"]
    assert report["status"] == "quarantined"
    assert f"offset {batch}" in report["reason"]
    assert tree(log_dir / "t-0") == before


def test_a_dry_run_in_splits_writes_nothing_and_reports_the_same(tmp_path):
    write_random_log(tmp_path / "source", 4, LogShape(batches=150))
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": tmp_path / "source"})
    before = tree(log_dir)
    dry = compact(log_dir, "--strategy=split", "--dry-run").partitions()["t-0"]
    assert tree(log_dir) == before
    real = compact(log_dir, "--strategy=split").partitions()["t-0"]
    for partition in (dry, real):
        del partition["seconds_by_stage"]
    assert dry == real


def test_a_bounded_map_is_filled_by_one_task_whatever_was_asked_for(tmp_path):
    write_random_log(tmp_path / "source", 4, LogShape(batches=100))
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": tmp_path / "source"})
    outcome = compact(log_dir, "--strategy=split", "--set=log.cleaner.dedupe.buffer.size=2400")
    assert outcome.partitions()["t-0"]["strategy"] == "whole"
