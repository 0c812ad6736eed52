"""Commands in a Python without PySpark and pandas: those that need neither run, the others say what to install."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sediment.segment_io.extras import install_command
from tests.jobs.log_dirs import make_log_dir, tree, write_checkpoint
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


def test_plan_and_a_compaction_with_nothing_to_clean_run(log_dir: Path) -> None:
    sets = ("--json", "--set=t:cleanup.policy=compact", "--broker-defaults")
    planned = run("plan", log_dir, *sets)
    assert (planned.returncode, planned.stderr) == (0, "")
    assert json.loads(planned.stdout)["partitions"][0]["status"] == "cleanable"
    write_checkpoint(log_dir / "cleaner-offset-checkpoint", {"t-0": 2})
    before = tree(log_dir)
    compacted = run("compact", log_dir, *sets)
    assert (compacted.returncode, compacted.stderr) == (0, "")
    [partition] = json.loads(compacted.stdout)["partitions"]
    assert (partition["status"], partition["reason_code"]) == ("skipped", "active-segment")
    assert tree(log_dir) == before


def test_every_command_can_be_loaded_and_so_shows_its_help() -> None:
    names = ["expire", "verify", "erase", "plan", "snapshot", "serve", "clone", "adopt", "reencode", "restore"]
    loads = f"import importlib\nfor name in {names}: importlib.import_module('sediment.jobs.' + name).command"
    source = _WITHOUT.replace("main(sys.argv[1:])", loads)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [("compact", "--force"), ("dump", "--master=local[1]", "--to")])
def test_a_command_that_needs_spark_says_what_to_install_and_changes_nothing(
    log_dir: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    if arguments[0] == "compact":
        done = run("compact", log_dir, "--set=t:cleanup.policy=compact", *arguments[1:])
    else:
        done = run("dump", log_dir, "--what=records", *arguments[1:], tmp_path / "to")
    assert done.returncode == 2 and done.stdout == ""
    assert f"the Python package pyspark is missing; {install_command('spark')}" in done.stderr
    assert not (tmp_path / "to").exists()
