"""The chart of speed: it shows the table of the page, and is drawn anew with it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.reporting.race_results import outcomes_table
from benchmarks.reporting.speed_chart import CHART, PAGE, Bar, bars, chart, draw
from tests.benchmarks.reporting.test_race_results import outcome


def test_each_row_of_the_table_is_a_bar() -> None:
    table = outcomes_table([outcome("first"), outcome("lz4", (5.0, 8.0, 12.0), target=None)])
    found = bars(f"a\n<!-- race -->\n\n{table}\n\n<!-- /race -->\n")
    assert found == [Bar("data of first", 10.0, 8.0, 12.0), Bar("data of lz4", 2.0, 1.0, 2.0)]


def test_a_page_without_a_race_is_refused() -> None:
    with pytest.raises(ValueError, match="no marks of the race"):
        bars("nothing")


def test_bars_are_as_long_as_their_ratios_and_text_is_no_markup() -> None:
    root = ElementTree.fromstring(chart([Bar("a < b & `c`", 4.0, 2.0, 8.0), Bar("d", 2.0, 2.0, 2.0)]))
    widths = [float(each.attrib["width"]) for each in root.iter() if each.attrib.get("class") == "bar"]
    assert widths[0] == 2 * widths[1] > 0
    assert "a < b & `c`" in [each.text for each in root.iter()]


def test_the_chart_is_that_of_the_page(tmp_path) -> None:
    draw(PAGE, tmp_path / "speed.svg")
    assert CHART.read_text() == (tmp_path / "speed.svg").read_text()
