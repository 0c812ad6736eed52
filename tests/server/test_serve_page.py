"""The page on `serve`: its server and its Python code run as they are written."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.corpus import load_case
from tests.project.pages import run_page
from tests.served import unpacked

PAGE = Path(__file__).parents[2] / "docs" / "query" / "serve.md"


def test_the_servers_and_the_code_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    unpacked(tmp_path / "data")
    case = load_case("plain", tmp_path / "case")
    for stage, folder in (("before", "before"), ("after-1", "after")):
        shutil.copytree(case.directory / stage, tmp_path / folder / "prices-0")
    ran = run_page(PAGE, tmp_path, {})
    assert ran == ["sediment serve", "python", "sediment serve", "python", "python", "python", "python"]
