"""Commands in a Python without PySpark and pandas: those that need neither run, the others say what to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.log_dirs import make_log_dir
from tests.segments import batch_bytes, write_segment

_WITHOUT = """
import sys
class WithoutPandas:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, WithoutPandas())
sys.modules["pyspark"] = None
from sediment.jobs.cli import main
main(sys.argv[1:])
"""


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    write_segment(tmp_path / "source", 0, [batch_bytes(0), batch_bytes(1)])
    write_segment(tmp_path / "source", 2, [batch_bytes(2)])
    return make_log_dir(tmp_path / "logs", {"t-0": tmp_path / "source"})


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _WITHOUT, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_dump_and_recover_run(log_dir: Path) -> None:
    dumped = run("dump", log_dir, "--what", "records", "--json")
    assert (dumped.returncode, dumped.stderr) == (0, "")
    assert [json.loads(line)["offset"] for line in dumped.stdout.splitlines()] == [0, 1, 2]
    recovered = run("recover", log_dir, "--dry-run", "--json")
    assert recovered.returncode == 0, recovered.stderr
    assert json.loads(recovered.stdout)["partitions"][0]["log_end_offset"] == 3


@pytest.mark.parametrize("arguments", [("compact", "--force"), ("dump", "--what=records", "--to")])
def test_a_command_that_needs_spark_says_what_to_install_and_changes_nothing(
    log_dir: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    if arguments[0] == "compact":
        done = run("compact", log_dir, "--set=t:cleanup.policy=compact", *arguments[1:])
    else:
        done = run("dump", log_dir, *arguments[1:], tmp_path / "to")
    assert done.returncode == 2 and done.stdout == ""
    assert "the Python package pyspark is missing; pip install 'kafka-sediment[spark]'" in done.stderr
    assert not (tmp_path / "to").exists()
