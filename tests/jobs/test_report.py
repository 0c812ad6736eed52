"""The table for people as it comes out where nobody looks at a terminal."""

from __future__ import annotations

import pytest

from sediment.jobs.report import SKIPPED, PartitionReport, RunReport, print_report, result_console

LONG = "a_topic_whose_name_is_about_as_long_as_kafka_lets_anybody_make_one_without_being_asked_why_and_then_some-0"


def _print_one() -> None:
    partition = PartitionReport(LONG, "/logs", SKIPPED, "active-segment", "all of it is in the active segment")
    print_report(RunReport("run", "compact", 0, 0.0, False, (partition,)), result_console())


def test_names_are_not_folded_where_stdout_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    _print_one()
    lines = capsys.readouterr().out.splitlines()
    assert sum(LONG in line for line in lines) == 1
    assert max(map(len, lines)) < 2 * len(LONG)


def test_the_width_that_columns_asks_for_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    _print_one()
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 70
