"""Conditions under which a command runs: other users, read-only folders, locales, and limits of CPU and memory."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.other_users import ATTACKER, VICTIM, give
from tests.platforms.environments import LIMIT_SECONDS, Environment, MissingError
from tests.waiting import remove_when_left

SMALL_MEMORY_BYTES = 2 << 30

_READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
# In a name space of its own, private folders are empty and open, and below them are only the folders before --.
_OPENED = """
set -e
held=$1 private=$2; shift 2
mount --make-rprivate /
number=0
for each; do
    [ "$each" != -- ] || break
    number=$((number + 1)); mkdir -p "$held/$number"; mount --bind "$each" "$held/$number"
done
IFS=:
for each in $private; do mount -t tmpfs -o mode=755 private "$each"; done
number=0
while [ "$1" != -- ]; do
    number=$((number + 1)); mkdir -p "$1"; mount --bind "$held/$number" "$1"; shift
done
shift
exec "$@"
"""
_IN_GROUP = 'echo $$ > "$1" && shift && exec "$@"'
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Condition:
    """Words before a command, and variables of its environment; None: the variable is not set.

    `user` is another one than that of the test, whose results are in `place`.
    """

    before: tuple[str, ...] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict)
    user: int | None = None
    place: Path | None = None

    def run(self, environment: Environment, *command: object) -> subprocess.CompletedProcess[str]:
        """Run a program of `environment`; its output is text in UTF-8, whatever the locale is.

        Raises:
            AssertionError: it failed.
        """
        variables = {
            name: value for name, value in {**environment.variables(), **self.variables}.items() if value is not None
        }
        words = [*self.before, environment.program(str(command[0])), *map(str, command[1:])]
        done = subprocess.run(
            words,
            env=variables,
            cwd="/",
            capture_output=True,
            encoding="utf-8",
            timeout=LIMIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def folder(self, path: Path) -> Path:
        """Make a folder for the results of a command, at `path` or in the place of the user."""
        made = path if self.place is None else self.place / path.name
        made.mkdir(parents=True)
        if self.user is not None:
            give(made, self.user)
        return made


@contextmanager
def condition(name: str, environment: Environment) -> Iterator[Condition]:
    """Yield the condition of this name; commands run under it within the block.

    Raises:
        MissingError: it needs root, or control groups.
    """
    if name == "C locale":
        yield Condition(variables={"LC_ALL": "C", "LANG": None, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
        return
    if name == "spaces":
        yield Condition()
        return
    if os.geteuid() != 0:
        raise MissingError("only root can run programs as another user, change mounts or limit memory")
    if name == "no home":
        with _other_user(ATTACKER, "/no/such/home", environment) as given:
            yield given
    elif name == "unnamed user":
        with _other_user(VICTIM, None, environment) as given:
            yield given
    elif name == "read-only":
        yield Condition(("unshare", "--mount", "sh", "-c", _READ_ONLY, "sh", str(environment.folder)))
    else:
        with _memory_group(SMALL_MEMORY_BYTES) as processes:
            yield Condition(("taskset", "--cpu-list", "0", "sh", "-c", _IN_GROUP, "sh", str(processes)))


@contextmanager
def _other_user(user: int, home: str | None, environment: Environment) -> Iterator[Condition]:
    """Yield the condition of a user without any right of its own, who reaches only the environment and its Python."""
    if shutil.which("setpriv") is None:
        raise MissingError("setpriv is not installed")
    needed = (environment.folder, Path(environment.program("python")).resolve().parents[1])
    private = {folder for place in needed for folder in _first_private(place)}
    with tempfile.TemporaryDirectory(prefix="sediment-platforms-") as name:
        place = Path(name)
        place.chmod(0o755)
        opened = ("unshare", "--mount", "sh", "-c", _OPENED, "sh", name, ":".join(private), *map(str, needed), "--")
        yield Condition(
            (*opened, "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"), {"HOME": home}, user, place
        )


def _first_private(place: Path) -> list[str]:
    private = [str(folder) for folder in reversed(place.parents) if not folder.stat().st_mode & stat.S_IXOTH]
    return private[:1]


@contextmanager
def _memory_group(limit_bytes: int) -> Iterator[Path]:
    """Yield the file to which a process of a new control group with this limit writes its id."""
    is_first_version = (_CGROUPS / "memory").is_dir()
    group = (_CGROUPS / "memory" if is_first_version else _CGROUPS) / f"sediment-platforms-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if is_first_version else "memory.max")
    try:
        group.mkdir()
        limit.write_text(str(limit_bytes))
    except OSError as error:
        raise MissingError(f"no control group can be made: {error.strerror}") from error
    try:
        yield group / "cgroup.procs"
    finally:
        remove_when_left(group)
