"""Conditions under which a command runs: other users, read-only folders, locales, and limits of CPU and memory."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.other_users import ATTACKER, VICTIM, give
from tests.platforms.environments import LIMIT_SECONDS, Environment, MissingError

SMALL_MEMORY_BYTES = 2 << 30

_READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
_IN_GROUP = 'echo $$ > "$1" && shift && exec "$@"'
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Condition:
    """Words before a command, and variables of its environment; None: the variable is not set."""

    before: tuple[str, ...] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict)
    user: int | None = None

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
        """Make a folder for the results of a command."""
        path.mkdir(parents=True)
        if self.user is not None:
            give(path, self.user)
        return path


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
        yield Condition(_as(ATTACKER), {"HOME": "/no/such/home"}, ATTACKER)
    elif name == "unnamed user":
        yield Condition(_as(VICTIM), {"HOME": None}, VICTIM)
    elif name == "read-only":
        yield Condition(("unshare", "--mount", "sh", "-c", _READ_ONLY, "sh", str(environment.folder)))
    else:
        with _memory_group(SMALL_MEMORY_BYTES) as processes:
            yield Condition(("taskset", "--cpu-list", "0", "sh", "-c", _IN_GROUP, "sh", str(processes)))


def _as(user: int) -> tuple[str, ...]:
    if shutil.which("setpriv") is None:
        raise MissingError("setpriv is not installed")
    # The environment is in a private folder of root.
    read = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    return ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *read)


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
        group.rmdir()
