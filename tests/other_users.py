"""Processes of other users, for tests of what one user can do to another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

VICTIM, ATTACKER = 23456, 65534

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


def run_as(
    user: int, command: Sequence[str], *, environment: Mapping[str, str], umask: int = 0o022
) -> subprocess.CompletedProcess[str]:
    """Run a command as another user; skip the test where that is impossible.

    The user may read everything, because the interpreter may be in a private folder, but may write only its own files.
    """
    if not _can_run_as_others():
        pytest.skip("only root may run a program as another user, with setpriv")
    return subprocess.run(
        [*_as(user), *command], env=dict(environment), umask=umask, cwd="/", capture_output=True, text=True, check=False
    )


def give(path: Path, user: int) -> None:
    """Give a folder and everything in it to another user."""
    for place in (path, *path.rglob("*")):
        os.chown(place, user, user)


def _as(user: int) -> list[str]:
    capabilities = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *capabilities]


@cache
def _can_run_as_others() -> bool:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return False
    return subprocess.run([*_as(ATTACKER), sys.executable, "-c", ""], capture_output=True, check=False).returncode == 0
