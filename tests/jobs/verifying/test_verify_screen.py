"""The screen of `verify`: wrong partitions come first, and partitions without records or changes are counted."""

from __future__ import annotations

from rich.console import Console

from sediment.jobs.reporting.screen import Screen
from sediment.jobs.verifying.report import VerificationReport, print_report
from sediment.verification.report import Difference, PairReport
from tests.jobs.terminal_text import StreamText


def test_a_terminal_counts_partitions_without_records_and_lists_wrong_ones_first() -> None:
    empty = [PairReport(f"e-{number}", "b", "a", "correct") for number in range(20)]
    right = PairReport("r-0", "b", "a", "correct", records_before=9, records_after=3)
    wrong = PairReport(
        "w-0", "b", "a", "wrong", checks={"lost": 1}, differences=(Difference("lost", 4, "a record is gone"),)
    )
    report = VerificationReport(run_id="r", command="verify", now_ms=0, seconds=1.0, partitions=(*empty, right, wrong))
    text = StreamText(is_terminal=True)
    print_report(report, Screen(Console(file=text, width=80, force_terminal=True, color_system=None)))
    lines = text.getvalue().splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["w-0", "r-0"]
    assert lines[-1] == "21 of 22 partitions are a correct compaction, 20 of them without records; 1.0 s (run r)"


def test_unchanged_partitions_are_counted_without_a_size_because_their_files_are_not_compared() -> None:
    unchanged = [
        PairReport(f"u-{number}", "b", "a", "skipped", "not-changed", "it did not change") for number in range(129)
    ]
    right = PairReport("r-0", "b", "a", "correct", records_before=9, records_after=3)
    report = VerificationReport(run_id="r", command="verify", now_ms=0, seconds=1.0, partitions=(right, *unchanged))
    text = StreamText(is_terminal=True)
    print_report(report, Screen(Console(file=text, width=80, force_terminal=True, color_system=None)))
    assert "not-changed: 129 partitions; for example u-0: it did not change" in text.getvalue().splitlines()
