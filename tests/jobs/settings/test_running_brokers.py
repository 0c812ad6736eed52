"""Commands that only read, on a log directory that a running broker uses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sediment.engine.directory.lock import DirectoryLock, lock_holder
from tests.corpus import load_case
from tests.jobs.log_dirs import make_log_dir, sediment, topic_sets, write_checkpoint

NOW_MS = 1_700_001_000_000
_HOLDS = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    plain = load_case("plain", tmp_path / "corpus")
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": plain.before}, clean=False)
    write_checkpoint(log_dir / "recovery-point-offset-checkpoint", {"plain-0": 0})
    return log_dir


@pytest.fixture
def broker(log_dir: Path) -> Iterator[int]:
    """Provide the process that holds the directory's lock."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS, log_dir / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        running.stdout.readline()
        yield running.pid
        running.kill()


@pytest.fixture
def sets() -> list[str]:
    return topic_sets("plain", {"cleanup.policy": "compact", "delete.retention.ms": "0"})


@pytest.mark.parametrize("command", [["compact", "--dry-run"], ["plan"], ["expire", "--dry-run"]], ids=" ".join)
def test_a_running_broker_is_named_and_no_repair_is_advised(
    command: list[str], log_dir: Path, broker: int, sets: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    outcome = sediment(*command, log_dir, "--json", "--now-ms", NOW_MS, *sets)
    told = "\n".join([outcome.stdout, outcome.stderr, *caplog.messages])
    assert f"a broker or another run uses this directory (process {broker})" in told
    assert "sediment recover" not in told and "last stop of the broker" not in told


@pytest.mark.parametrize("command", [["compact", "--dry-run"], ["plan"]], ids=" ".join)
def test_after_an_unclean_stop_a_repair_is_advised(command: list[str], log_dir: Path, sets: list[str]) -> None:
    partition = sediment(*command, log_dir, "--json", "--now-ms", NOW_MS, *sets).partitions()["plain-0"]
    assert partition["reason_code"] == "unclean"
    assert "sediment recover" in partition["reason"]


def test_asking_who_holds_a_lock_neither_takes_nor_drops_it(log_dir: Path, broker: int) -> None:
    assert lock_holder(log_dir) == broker
    assert lock_holder(log_dir.parent) is None
    other = log_dir.parent / "other"
    other.mkdir()
    with DirectoryLock(other):
        assert lock_holder(other) is not None
        at_once = _HOLDS.replace("LOCK_EX", "LOCK_EX | fcntl.LOCK_NB")
        taken = subprocess.run([sys.executable, "-c", at_once, other / ".lock"], capture_output=True, check=False)
        assert taken.returncode != 0
