"""Directories that `compact --output` writes: their files, and what must not change."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys

from tests.jobs.log_dirs import tree
from tests.waiting import wait_until

MANIFEST = "sediment-manifest.json"
CLEANER = "cleaner-offset-checkpoint"
COMPACT = "--set=t:cleanup.policy=compact"


def image(path):
    """Everything that a change of a directory could change."""
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.stat().st_ino, file.read_bytes())
        for file in sorted(path.rglob("*"))
        if file.is_file()
    } | {str(path): sorted(str(file) for file in path.rglob("*"))}


def published(output):
    """Return the files of an output, after a check of its manifest."""
    found = tree(output)
    manifest = json.loads(found.pop(MANIFEST))
    assert {file["name"]: (file["size_bytes"], file["sha256"]) for file in manifest["files"]} == {
        name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in found.items()
    }
    return found


def uri(path):
    return f"file://{path}"


def kill_when(condition, *arguments):
    """Run the command in a process group of its own and kill all of it as soon as `condition` holds."""
    running = subprocess.Popen(
        [sys.executable, "-m", "sediment.jobs.cli", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: condition() or running.poll() is not None)
        assert running.poll() is None, "it ended before it was killed"
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
