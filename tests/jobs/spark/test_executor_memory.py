"""The memory of a task on a cluster: its share of what its own executor has for Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sediment.compaction.config import CompactionConfig
from sediment.jobs.cleaning import estimates
from sediment.jobs.cleaning.estimates import Shares, task_resources
from sediment.jobs.cleaning.options import CleaningTask, CompactOptions
from sediment.jobs.spark.executor_memory import ExecutorMemory, Host, own_host, task_memory
from sediment.jobs.spark.live_slots import LiveSlots
from sediment.jobs.spark.task_environment import RateLimit
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import LogListing

GIB = 1 << 30
PLAIN = ExecutorMemory(None, None, GIB)
SLOTS = LiveSlots(200, 50)
HOST = Host(16 * GIB, 4)


@pytest.mark.parametrize(
    ("executor", "expected", "words"),
    [
        (replace(PLAIN, python_bytes=8 * GIB, overhead_bytes=GIB), GIB, "spark.executor.pyspark.memory over 4"),
        (replace(PLAIN, overhead_bytes=4 * GIB), GIB // 2, "spark.executor.memoryOverhead over 4"),
        (PLAIN, 15 * GIB // 8, "host or container beside"),
        (replace(PLAIN, heap_bytes=32 * GIB), 16 << 20, "host or container beside"),
    ],
)
def test_the_first_limit_that_is_known_counts(executor: ExecutorMemory, expected: int, words: str) -> None:
    found = task_memory(executor.at(SLOTS), HOST)
    assert found.bytes == expected
    assert words in found.source


def test_executors_share_their_host() -> None:
    two = replace(PLAIN.at(SLOTS), executors_on_host=2)
    assert task_memory(two, HOST).bytes == 14 * GIB // 16
    assert "2 of them on a host" in task_memory(two, HOST).source


def test_executors_that_the_cpus_of_a_host_allow_have_their_share_before_they_register() -> None:
    found = task_memory(PLAIN.at(LiveSlots(4, 1)), Host(64 * GIB, 16))
    assert found.bytes == 60 * GIB // 32
    assert "4 of them on a host of 16 CPUs" in found.source


def test_more_executors_of_the_same_kind_change_nothing() -> None:
    few, many = (task_memory(PLAIN.at(LiveSlots(4 * n, n)), HOST) for n in (1, 500))
    assert few == many


@pytest.mark.parametrize(
    ("own", "name"), [("0::/pod", "memory.max"), ("4:memory:/pod", "memory.limit_in_bytes")], ids=["v2", "v1"]
)
def test_the_limit_of_a_container_counts(tmp_path: Path, own: str, name: str) -> None:
    folder = tmp_path / ("pod" if own.startswith("0") else "memory/pod")
    folder.mkdir(parents=True)
    (tmp_path / "own").write_text(own + "\n")
    whole = own_host(tmp_path, tmp_path / "own").memory_bytes
    (folder / name).write_text("268435456\n")
    assert own_host(tmp_path, tmp_path / "own").memory_bytes == 256 << 20 < whole
    (folder / name).write_text("max\n")
    assert own_host(tmp_path, tmp_path / "own").memory_bytes == whole


def given(slots: LiveSlots, executor: ExecutorMemory | None, **config: int) -> CleaningTask:
    listing = LogListing(TopicPartition("t", 0), Path("/d/t-0"), (), (), ())
    task = CleaningTask(
        listing,
        PartitionCheckpoints(),
        CompactionConfig(**config),
        CompactOptions(),
        1,
        "run",
        rate_limit=RateLimit(1000.0, "name"),
    )
    return Shares(1, None, executor).given(task, slots)


@pytest.mark.parametrize("asked_bytes", [1, 1 << 40])
def test_on_a_cluster_the_setting_lowers_and_raises_the_memory(asked_bytes: int) -> None:
    found = task_resources(given(SLOTS, PLAIN, task_memory_bytes=asked_bytes))
    assert (found.task_memory_bytes, found.memory_source) == (asked_bytes, "sediment.task.memory.bytes")


def test_on_a_cluster_the_host_of_the_driver_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    task = given(SLOTS, PLAIN)
    monkeypatch.setattr(estimates, "own_host", lambda: Host(9 * GIB, 4))  # in the task, on the executor's host
    assert task_resources(task).task_memory_bytes == GIB
    assert task_resources(task).slots == 200


def test_under_a_local_master_the_setting_only_lowers_the_memory() -> None:
    here = LiveSlots(2, is_local=True)
    usual = task_resources(given(here, None))
    assert task_resources(given(here, None, task_memory_bytes=1 << 50)) == usual
    assert task_resources(given(here, None, task_memory_bytes=5)).task_memory_bytes == 5
    assert usual.memory_source == ""


def test_the_rate_is_divided_by_the_executors_at_the_start_of_a_task() -> None:
    assert [given(LiveSlots(4 * n, n), PLAIN).rate_limit.executors for n in (1, 5, 50)] == [1, 5, 50]
