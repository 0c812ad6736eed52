"""The number of CPUs that a process may use: its affinity, and the quotas of its cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sediment.jobs.cleaning.estimates import find_resources
from sediment.jobs.spark import executor_memory, slots
from sediment.jobs.spark.live_slots import LiveSlots
from sediment.jobs.spark.slots import available_slots


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a root of cgroups, for a process on eight CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)))
    (tmp_path / "cgroups").mkdir()
    return tmp_path / "cgroups"


def counted(cgroups: Path, own: str) -> int:
    file = cgroups.with_name("own")
    file.write_text(own)
    return available_slots(cgroups, file)


def quota(folder: Path, content: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(content)


def test_without_a_quota_the_affinity_counts(cgroups: Path) -> None:
    assert counted(cgroups, "0::/") == 8
    quota(cgroups / "a", "max 100000\n")
    assert counted(cgroups, "0::/a\n") == 8
    assert available_slots(cgroups, cgroups / "missing") == 8


@pytest.mark.parametrize(
    ("content", "cpus"),
    [("300000 100000\n", 3), ("250000 100000\n", 3), ("10000 100000\n", 1), ("9900000 100000\n", 8), ("torn", 8)],
)
def test_a_quota_is_rounded_up_and_never_above_the_affinity(cgroups: Path, content: str, cpus: int) -> None:
    quota(cgroups / "a", content)
    assert counted(cgroups, "0::/a\n") == cpus


def test_the_smallest_quota_of_a_cgroup_and_those_above_it_counts(cgroups: Path) -> None:
    quota(cgroups / "pod", "200000 100000\n")
    quota(cgroups / "pod" / "container", "600000 100000\n")
    assert counted(cgroups, "0::/pod/container\n") == 2


def test_a_container_whose_cgroup_is_the_root_of_the_mount(cgroups: Path) -> None:
    quota(cgroups, "200000 100000\n")
    assert counted(cgroups, "0::/\n") == 2
    assert counted(cgroups, "0::/outside/the/mount\n") == 2


def test_a_quota_of_cgroups_of_version_1(cgroups: Path) -> None:
    folder = cgroups / "cpu,cpuacct" / "pod"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("400000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    own = "11:cpuset:/pod\n5:cpu,cpuacct:/pod\n1:name=systemd:/pod\n"
    assert counted(cgroups, own) == 4
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert counted(cgroups, own) == 8


def test_a_run_without_spark_plans_for_the_slots_of_the_quota(cgroups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota(cgroups, "300000 100000\n")
    (cgroups.with_name("own")).write_text("0::/\n")
    monkeypatch.setattr(slots.available_slots, "__defaults__", (cgroups, cgroups.with_name("own")))
    assert find_resources(None, 1, asked=None).slots == 3


@pytest.mark.parametrize("slots_of_spark", [None, LiveSlots(3, is_local=True)], ids=["without Spark", "local"])
def test_a_local_run_plans_for_the_memory_of_its_container(
    cgroups: Path, monkeypatch: pytest.MonkeyPatch, slots_of_spark: LiveSlots | None
) -> None:
    quota(cgroups, "300000 100000\n")
    (cgroups / "memory.max").write_text(f"{2 << 30}\n")
    (cgroups.with_name("own")).write_text("0::/\n")
    for function in (slots.available_slots, executor_memory.own_host):
        monkeypatch.setattr(function, "__defaults__", (cgroups, cgroups.with_name("own")))
    found = find_resources(slots_of_spark, 1, asked=None)
    assert found.task_memory_bytes == (1 << 29) // 3, "half of what Spark's heap leaves"
