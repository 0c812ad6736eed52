"""Number of tasks that Spark's default master `local[*]` runs at the same time: one for each CPU of this process.

    affinity   `taskset`, or a container's set of CPUs
    cgroup     a quota of CPU time: `docker run --cpus`, a Kubernetes limit, systemd's CPUQuota

The smallest limit counts, and a fraction of a CPU counts as a whole one, as in Java.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def available_slots(cgroups: Path = _CGROUPS, own_cgroups: Path = _OWN_CGROUPS) -> int:
    return max(1, min([len(os.sched_getaffinity(0)), *_quotas(cgroups, own_cgroups)]))


def _quotas(cgroups: Path, own_cgroups: Path) -> Iterator[int]:
    for line in _text(own_cgroups).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root = cgroups
        elif "cpu" in controllers.split(","):
            root = cgroups / controllers if (cgroups / controllers).is_dir() else cgroups / "cpu"
        else:
            continue
        own = root / path.lstrip("/")
        # Inside a container, the container's cgroup is often the root of the mount.
        for folder in (own, *own.parents):
            if controllers:
                quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
            else:
                quota, _, period = _text(folder / "cpu.max").partition(" ")
            if quota.strip().isdecimal() and period.strip().isdecimal() and int(period):
                yield -(-int(quota) // int(period))
            if folder == root:
                break


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
