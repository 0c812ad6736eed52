"""A working directory of somebody else, whose modules no process may import."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sediment.jobs.diagnostics.spark_setup import _worker_python
from sediment.jobs.spark import cds_options
from sediment.jobs.spark.worker_python import _has_package, safe_path_variables
from tests.segments import batch_bytes, write_segment
from tests.waiting import LIMIT_SECONDS

_IMPORTED_EARLY = ("importlib", "json", "pathlib", "platform", "random", "socket", "trap")


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists once a module of the working directory was imported."""
    sprung = tmp_path / "sprung"
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in _IMPORTED_EARLY:
        (folder / f"{name}.py").write_text(f"open({str(sprung)!r}, 'a').close()\nraise ImportError({name!r})\n")
    monkeypatch.chdir(folder)
    return sprung


def make_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cds_options, "_MAKER", "trap")
    monkeypatch.setattr(cds_options, "is_worth_making", lambda: True)
    before = set(threading.enumerate())
    cds_options.make_archive_in_background()
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT_SECONDS)


def test_the_tasks_of_a_run_import_nothing_from_it(trap: Path) -> None:
    for base_offset in (0, 3, 6):
        write_segment(Path("t-0"), base_offset, [batch_bytes(base_offset, "abc")])
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sediment", "compact", ".", "--dry-run", "--set=t:cleanup.policy=compact"],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert not trap.exists()
    assert done.returncode == 0, done.stderr
    assert "1 would be compacted" in done.stdout


def test_the_maker_of_the_class_archive_imports_nothing_from_it(
    trap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_archive(monkeypatch)
    assert not trap.exists()
    monkeypatch.syspath_prepend(Path.cwd())  # this process imports modules from there itself, as in a source tree
    make_archive(monkeypatch)
    assert trap.exists()


def test_checks_of_a_python_import_nothing_from_it(trap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    _worker_python({})
    _has_package.__wrapped__(sys.executable)
    assert not trap.exists()


def test_a_removed_working_directory_is_not_imported_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert safe_path_variables() == {"PYTHONSAFEPATH": "1"}
