"""The run of all benchmarks of the page: its steps, its check of the disk, and the tables that it writes."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.all import FREE_BYTES, Step, check_free, run, steps, write_page
from benchmarks.race import PAGE
from benchmarks.reporting.comparisons import Comparisons
from benchmarks.reporting.race_results import Results
from tests.benchmarks.reporting.test_comparisons import RUN
from tests.benchmarks.reporting.test_race_results import outcome
from tests.benchmarks.reporting.test_serve_results import RESULTS


def test_results_of_all_steps_fill_every_mark_of_the_page(tmp_path: Path):
    race, serve, commands = (step.results for step in steps(tmp_path, is_quick=False))
    Results({"cores": "2"}, [outcome()]).write(race)
    RESULTS.write(serve)
    Comparisons({}, [replace(RUN, data="of this test")]).write(commands)
    page = tmp_path / "page.md"
    shutil.copy(PAGE, page)
    write_page(page, tmp_path, "commit abc")
    text = page.read_text()
    for part in ("data of first", "fetch, CPU s per GB", "of this test", "commit abc"):
        assert part in text
    assert set(re.findall(r"<!-- /(\w+) -->", text)) == {"tree", "race", "stages", "serve", "commands"}


def test_a_disk_that_is_too_full_is_refused_before_anything_runs(tmp_path: Path):
    check_free(tmp_path, 1)
    with pytest.raises(SystemExit, match="name another directory with --scratch"):
        check_free(tmp_path, 1 << 60)
    assert FREE_BYTES > 14 * 10**9


def test_a_step_without_results_ends_the_run(tmp_path: Path):
    silent = Step("compileall", tmp_path / "none.json")
    assert silent.command(tmp_path)[:3] == [sys.executable, "-m", "compileall"]
    with pytest.raises(SystemExit, match="without all results; the page is unchanged"):
        run([silent], tmp_path)


def test_a_step_that_fails_after_its_first_results_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "failing.py").write_text(
        "import pathlib, sys\npathlib.Path(sys.argv[2]).write_text('{}')\nraise ValueError('half of it is missing')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    failing = Step("failing", tmp_path / "failing.json")
    with pytest.raises(SystemExit, match="failing ended with status 1 without all results"):
        run([failing], tmp_path)
    assert failing.results.exists()
