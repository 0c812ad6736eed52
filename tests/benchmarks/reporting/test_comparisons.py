"""Tables of the benchmarks of single commands, and their results in a file and in a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.reporting.comparisons import Comparison, Comparisons, fill_page_of_commands, page_table

RUN = Comparison(
    name="archive",
    command="`expire --archive`",
    data="8 × 64 MB",
    reference="100 MB/s",
    aim=1,
    is_speed=True,
    seconds=[4.0, 2.0, 5.0],
    reference_seconds=[4.0, 5.0, 5.0],
    cpu_seconds=[6.0, 6.0, 6.0],
)


def test_a_ratio_is_the_median_of_the_rounds_and_its_bound_depends_on_the_kind():
    assert (RUN.ratio(), RUN.meets()) == (1.0, True)
    slower = replace(RUN, is_speed=False, seconds=[4.0, 8.0, 5.0], aim=1.5)
    assert (slower.ratio(), slower.meets()) == (1.0, True)
    assert replace(slower, seconds=[8.0, 8.0, 8.0]).meets() is False
    assert replace(RUN, aim=None).meets() is None


def test_cpu_seconds_have_a_ratio_only_beside_those_of_the_reference():
    assert RUN.cpu_ratio() is None
    assert replace(RUN, reference_cpu_seconds=[3.0, 12.0, 3.0]).cpu_ratio() == 0.5


def test_rounds_without_a_partner_are_refused():
    with pytest.raises(ValueError, match="zip"):
        replace(RUN, reference_seconds=[4.0]).ratio()


def test_a_comparison_that_is_run_again_replaces_only_itself(tmp_path: Path):
    results = Comparisons({"machine": "2 cores"}, [RUN, replace(RUN, name="scan")])
    results.write(tmp_path / "results" / "commands.json")
    read = Comparisons.read(tmp_path / "results" / "commands.json")
    assert read == results
    read.add(replace(RUN, aim=2))
    assert [(one.name, one.aim) for one in read.found] == [("archive", 2), ("scan", 1)]
    assert Comparisons.read(tmp_path / "none.json") == Comparisons()


def test_the_page_has_a_row_for_each_comparison(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- commands -->\nold\n<!-- /commands -->\nb\n")
    fill_page_of_commands(page, Comparisons({}, [RUN]))
    row = "| `expire --archive` | 8 × 64 MB | 4.00 s | 100 MB/s | 5.00 s | 1.00 | ≥ 1 met |"
    assert page_table([RUN]).splitlines()[-1] == row
    assert row in page.read_text() and "old" not in page.read_text()
