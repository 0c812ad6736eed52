"""Folders of the control groups that this process belongs to, with the limits of a container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def own_folders(
    controller: str, cgroups: Path = CGROUPS, own_cgroups: Path = OWN_CGROUPS
) -> Iterator[tuple[Path, bool]]:
    """Yield the folder of each cgroup of this process that may limit `controller`; True: of version 1.

    The folders of a cgroup's parents come after its own.
    """
    for line in read_text(own_cgroups).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root = cgroups
        elif controller in controllers.split(","):
            root = cgroups / controllers if (cgroups / controllers).is_dir() else cgroups / controller
        else:
            continue
        own = root / path.lstrip("/")
        # Inside a container, the container's cgroup is often the root of the mount.
        for folder in (own, *own.parents):
            yield folder, bool(controllers)
            if folder == root:
                break


def read_text(path: Path) -> str:
    """Return the content of a file, or "" if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
