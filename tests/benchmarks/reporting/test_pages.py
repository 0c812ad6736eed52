"""The tables that benchmarks write into the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reporting.pages import fill_page, markdown_table


def test_a_block_replaces_what_is_between_its_marks_and_only_tables_exceed_120_columns(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- rows -->\n\nold\n\n<!-- /rows -->\n\nafter\n")
    table = markdown_table(("step", "seconds"), [("a" * 150, "1.0")])
    fill_page(page, "rows", f"Measured with {'`python` ' * 30}\n\n{table}")
    lines = page.read_text().split("\n")
    assert (lines[0], lines[-2], "old" in lines) == ("before", "after", False)
    assert table in page.read_text()
    assert all(len(line) <= 120 for line in lines if not line.startswith("|"))
    assert sum(line.count("`python`") for line in lines) == 30


def test_a_page_without_the_mark_is_refused(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("<!-- others -->\n<!-- /others -->\n")
    with pytest.raises(ValueError, match="has no mark rows"):
        fill_page(page, "rows", "text")
