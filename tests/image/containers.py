"""Containers without a container engine: a folder as root filesystem, in namespaces of its own, with a limit of memory.

A container shares with this machine only its network.  Its mounts, and the processes that it starts, end with it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sediment.jobs.spark.cgroups import own_folders, read_text
from tests.waiting import remove_when_left

LIMIT_SECONDS = 1800
NO_MOUNTS: Mapping[str, Path] = {}
NO_VARIABLES: Mapping[str, str] = {}

_PROGRAMS = ("chroot", "mount", "unshare")
_OWN_SPACES = ("--mount", "--pid", "--cgroup", "--fork", "--kill-child")

# $1 is the root, $2 is "ro" or "rw", $3 the version of the memory cgroup or "-"; then pairs of a folder here and its
# place in the root until --, then the command.
_ENTER = """
set -eu
root=$1 access=$2 limited_by=$3; shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
[ "$access" = rw ] || mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o size=64m,mode=1777 shm "$root/dev/shm"
mount -t tmpfs sys "$root/sys"
mkdir -p "$root/sys/fs/cgroup"
if [ "$limited_by" = v1 ]; then
    mkdir "$root/sys/fs/cgroup/memory"
    mount -t cgroup -o ro,memory cgroup "$root/sys/fs/cgroup/memory"
elif [ "$limited_by" = v2 ]; then
    mount -t cgroup2 -o ro cgroup2 "$root/sys/fs/cgroup"
fi
while [ "$1" != -- ]; do mount --bind "$1" "$root$2"; shift 2; done
shift
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Ran:
    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A memory cgroup of this machine, for the processes of one container after another."""

    folder: Path
    version: str

    @property
    def peak_bytes(self) -> int:
        name = "memory.max_usage_in_bytes" if self.version == "v1" else "memory.peak"
        return int((self.folder / name).read_text())

    @property
    def kills(self) -> int:
        """Return how many processes the kernel has killed because the limit was reached."""
        name = "memory.oom_control" if self.version == "v1" else "memory.events"
        (count,) = re.findall(r"^oom_kill (\d+)$", (self.folder / name).read_text(), re.MULTILINE)
        return int(count)


@contextmanager
def limited_memory(limit_bytes: int) -> Iterator[MemoryLimit]:
    """Yield a cgroup below the own one of this process.

    Raises:
        OSError: this machine gives no control over memory.
    """
    above, is_first_version = next(own_folders("memory"))
    limit = MemoryLimit(above / f"sediment-{os.getpid()}", "v1" if is_first_version else "v2")
    limit.folder.mkdir()
    try:
        names = ("memory.limit_in_bytes",) if is_first_version else ("memory.max", "memory.swap.max")
        (limit.folder / names[0]).write_text(str(limit_bytes))
        for name in names[1:]:
            (limit.folder / name).write_text("0")
        yield limit
    finally:
        remove_when_left(limit.folder)


def why_no_containers() -> str | None:
    """Return why this machine cannot run the containers of this module, or None."""
    if os.geteuid() != 0:
        return "only root may mount and change its root folder"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    done = subprocess.run(["unshare", *_OWN_SPACES, "true"], capture_output=True, text=True, check=False)
    return done.stderr.strip() or "unshare fails" if done.returncode else None


def run_in(
    root: Path,
    command: Sequence[str],
    *,
    user: str,
    folder: str,
    environment: Mapping[str, str],
    mounts: Mapping[str, Path] = NO_MOUNTS,
    is_read_only: bool = False,
    limit: MemoryLimit | None = None,
) -> Ran:
    """Run a command as `user` (UID:GID); `mounts` are folders here by their path in the container."""
    for place in mounts:
        (root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
    home = {"HOME": _home(root, user.partition(":")[0])}
    done = subprocess.run(
        [
            *_join(limit),
            *("unshare", *_OWN_SPACES, "sh", "-c", _ENTER, "sh", str(root), "ro" if is_read_only else "rw"),
            "-" if limit is None else limit.version,
            *(word for place, source in mounts.items() for word in (str(source), place)),
            *("--", "chroot", f"--userspec={user}", str(root), "/bin/sh", "-c", 'cd "$0" && exec "$@"', folder),
            *command,
        ],
        env={**home, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def _join(limit: MemoryLimit | None) -> list[str]:
    if limit is None:
        return []
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(limit.folder / "cgroup.procs")]


def _home(root: Path, user: str) -> str:
    """Return the home of a user, or / as container engines do for a user without a name."""
    lines = (line.split(":") for line in read_text(root / "etc" / "passwd").splitlines())
    return next((fields[5] for fields in lines if fields[2] == user), "/")
