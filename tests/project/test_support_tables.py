"""The tables of tested versions: pages and results agree, and the code and pyproject.toml promise what was tested."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks.reporting.pages import filled
from sediment.jobs.spark.release import JAVAS, PYTHONS, SPARKS, minor
from tests import support_tables
from tests.platforms.platforms import NAMES
from tests.platforms.platforms import PLATFORMS as SUITE
from tests.project.distributions import ROOT
from tests.support_tables import BLOCKS, FAILED, PASSED, PLATFORMS, TABLES, Row, Table, could_not_run, record, releases

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


# ----------------------------------------------------------------------------------------------------------- the pages
@pytest.mark.parametrize(("page", "mark", "text"), BLOCKS, ids=lambda given: given if isinstance(given, str) else "")
def test_a_page_has_what_the_suite_saw(page: Path, mark: str, text: Callable[[], str]) -> None:
    assert page.read_text() == filled(page, mark, text())


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_nothing_that_failed_is_in_a_table(table: Table) -> None:
    assert [row.name for row in table.rows() if row.seen == FAILED] == []


def test_the_table_of_platforms_has_every_row_of_the_suite() -> None:
    assert [row.name for row in PLATFORMS.rows()] == list(NAMES)


def test_the_suite_tries_every_release_that_the_code_calls_tested() -> None:
    tried = {platform.python for platform in SUITE}, {platform.java for platform in SUITE}
    assert tried == (set(PYTHONS), set(JAVAS))
    assert {minor(platform.spark) for platform in SUITE} == set(SPARKS)
    assert {minor(version) for version in PLATFORMS.tested("Spark")} <= set(SPARKS)
    assert {minor(version) for version in PLATFORMS.tested("Python")} <= set(PYTHONS)


def test_an_installation_allows_the_releases_that_were_tested() -> None:
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    named = [line.rpartition(" :: ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert named == list(PYTHONS)
    (spark,) = (
        each for line in PROJECT["optional-dependencies"]["spark"] if (each := Requirement(line)).name == "pyspark"
    )
    with_sources = [release for release in SPARKS if not release.startswith("3.")]
    assert [release for release in SPARKS if f"{release}.99" in spark.specifier] == with_sources


# ----------------------------------------------------------------------------------------------------------- recording
@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setattr(support_tables, "FOLDER", tmp_path)
    monkeypatch.setattr(support_tables, "BLOCKS", ())
    return Table("versions", tmp_path / "page.md")


def test_a_row_replaces_what_was_seen_before_and_stands_in_the_order_of_the_suite(table: Table) -> None:
    record(table, Row("gone", {"Kafka": "2.8"}), ("gone",))
    for name, seen in (("b", FAILED), ("a", PASSED), ("b", PASSED)):
        record(table, Row(name, {"Kafka": f"3.{name}"}, seen, "2026-01-01"), ("a", "b"))
    assert table.tested("Kafka") == ["3.a", "3.b"]
    assert table.text().splitlines() == [
        "| Kafka | seen | on |",
        "| --- | --- | --- |",
        "| 3.a | passed | 2026-01-01 |",
        "| 3.b | passed | 2026-01-01 |",
    ]


def test_what_a_machine_lacks_does_not_replace_what_another_has_seen(table: Table) -> None:
    for reason in ("not run yet", "not run: no Java 99"):
        could_not_run(table, Row("a", {"Java": "99"}, reason), ("a",))
        assert [row.seen for row in table.rows()] == [reason]
    record(table, Row("a", {"Java": "99"}), ("a",))
    could_not_run(table, Row("a", {"Java": "99"}, "not run: no Java 99"), ("a",))
    assert [row.seen for row in table.rows()] == [PASSED]


def test_releases_are_sorted_as_numbers() -> None:
    assert releases(["3.14.8", "3.9.1", "3.14.0"], 2) == "3.9, 3.14"
    assert releases(["17.0.15", "25"], 1) == "17, 25"
