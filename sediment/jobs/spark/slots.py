"""Number of tasks that Spark's default master `local[*]` runs at the same time: one for each CPU of this process.

    affinity   `taskset`, or a container's set of CPUs
    cgroup     a quota of CPU time: `docker run --cpus`, a Kubernetes limit, systemd's CPUQuota

The smallest limit counts, and a fraction of a CPU counts as a whole one, as in Java.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sediment.jobs.spark.cgroups import CGROUPS, OWN_CGROUPS, own_folders, read_text


def available_slots(cgroups: Path = CGROUPS, own_cgroups: Path = OWN_CGROUPS) -> int:
    return max(1, min([len(os.sched_getaffinity(0)), *_quotas(cgroups, own_cgroups)]))


def _quotas(cgroups: Path, own_cgroups: Path) -> Iterator[int]:
    for folder, is_first_version in own_folders("cpu", cgroups, own_cgroups):
        if is_first_version:
            quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
        else:
            quota, _, period = read_text(folder / "cpu.max").partition(" ")
        if quota.strip().isdecimal() and period.strip().isdecimal() and int(period):
            yield -(-int(quota) // int(period))
