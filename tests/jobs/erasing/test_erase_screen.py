"""The screen of `erase`: places that were not reached take one line for each kind."""

from __future__ import annotations

import io

from rich.console import Console

from sediment.jobs.erasing.places import NOT_VISIBLE, Place
from sediment.jobs.erasing.report import EraseRunReport, print_report
from sediment.jobs.reporting.screen import Screen

ADVICE = "the next start of the broker removes it"


def lines(*places: Place) -> list[str]:
    report = EraseRunReport(
        run_id="r",
        command="erase",
        now_ms=0,
        seconds=0.0,
        partitions=(),
        dry_run=True,
        not_reached=(*places, *NOT_VISIBLE),
    )
    text = io.StringIO()
    print_report(report, Screen(Console(file=text, width=80)))
    return [line for line in text.getvalue().splitlines() if line.startswith("not reached: ")]


def test_places_of_one_kind_share_a_line() -> None:
    leftovers = [Place("leftover", f"/logs/t-0/{number}.log.deleted", ADVICE) for number in range(80)]
    replicas = Place("other-replicas", None, "broker 2 has replicas of t-0; erase there too")
    assert lines(*leftovers, replicas) == [
        f"not reached: leftover, 80 paths such as /logs/t-0/0.log.deleted; {ADVICE}; --json lists all",
        "not reached: other-replicas; broker 2 has replicas of t-0; erase there too",
    ]
    assert lines(leftovers[0]) == [f"not reached: leftover /logs/t-0/0.log.deleted; {ADVICE}"]
