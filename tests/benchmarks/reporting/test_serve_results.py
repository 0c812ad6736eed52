"""The table of the benchmark of `serve`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.reporting.serve_results import Ratio, ServeResults, fill_page_of_serve, rows

FETCH = Ratio("fetch, CPU s per GB", sediment=0.3, kafka=0.4, bar=0.8)
RESULTS = ServeResults((FETCH,), 5000, open_seconds=(1.8, 1.2), open_bar_seconds=5.0)


def test_results_are_read_as_they_were_written(tmp_path: Path):
    RESULTS.write(tmp_path / "results" / "serve.json")
    assert ServeResults.read(tmp_path / "results" / "serve.json") == RESULTS


def test_one_missed_bar_is_enough():
    assert RESULTS.holds
    assert not replace(RESULTS, open_seconds=(5.0, 1.2)).holds
    assert not replace(RESULTS, ratios=(FETCH, replace(FETCH, at_least=True))).holds


def test_the_page_shows_each_ratio_with_its_target(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- serve -->\n<!-- /serve -->\nb\n")
    fill_page_of_serve(page, RESULTS)
    assert "| fetch, CPU s per GB | 0.300 | 0.400 | 0.75 | ≤ 0.8 met |" in page.read_text()
    assert rows(replace(RESULTS, open_seconds=(6.0, 1.2)))[1][-1] == "< 5 s not met"
