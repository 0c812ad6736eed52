"""Tables of a race, and its results in a file and in a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reporting.race_results import Outcome, Results, fill_page_of_race, outcomes_table, stages_table


def outcome(course: str = "first", sediment: tuple[float, ...] = (1.0, 2.0, 1.0), target: float | None = 9) -> Outcome:
    return Outcome(
        course=course,
        title=f"data of {course}",
        log_bytes=500_000_000,
        partitions=2,
        bytes_after=50_000_000,
        kafka={1: [30.0, 30.0, 30.0], 2: [10.0, 16.0, 12.0]},
        sediment=list(sediment),
        limit={1: [0.5, 0.5, 0.6], 2: [0.25, 0.25, 0.25]},
        target=target,
        target_of_limit=2.5,
        stages=[{"list": 0.1, "clean": 0.7}, {"list": 0.3}, {"list": 0.2, "clean": 0.9}],
    )


def test_ratios_are_taken_round_by_round_against_the_faster_kafka() -> None:
    assert outcome().ratio() == [10.0, 8.0, 12.0]
    assert outcome().ratios(1) == [30.0, 15.0, 30.0]
    assert "| 10.0 (8.0 to 12.0) | ≥ 9, and at most 2.5 × limit: met |" in outcomes_table([outcome()])


@pytest.mark.parametrize(("sediment", "target", "met"), [((1, 2, 1), 11, False), ((1.3, 1.3, 1.3), 9, False)])
def test_a_target_is_met_only_with_the_limit_kept(sediment: tuple[float, ...], target: float, met: bool) -> None:
    assert outcome(sediment=sediment, target=target).meets() is met
    assert outcome(target=None).meets() is None


def test_stages_are_medians_of_all_rounds() -> None:
    assert stages_table([outcome()]).splitlines()[-1] == "| data of first | 1.00 s | 0.200 | 0.700 |"


def test_a_course_that_is_run_again_replaces_only_itself(tmp_path: Path) -> None:
    results = Results({"cores": "2"}, [outcome("first"), outcome("lz4")])
    results.write(tmp_path / "results" / "race.json")
    read = Results.read(tmp_path / "results" / "race.json")
    assert (read.machine, read.outcomes) == (results.machine, results.outcomes)
    read.add(outcome("first", (3.0, 3.0, 3.0)))
    assert [(there.course, there.sediment[0]) for there in read.outcomes] == [("first", 3.0), ("lz4", 1.0)]
    assert Results.read(tmp_path / "none.json") == Results()


def test_a_page_is_filled_between_its_marks_as_often_as_one_likes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- race -->\nold\n<!-- /race -->\nb\n<!-- stages -->\nold\n<!-- /stages -->\nc\n")
    results = Results({"cores": "2"}, [outcome()])
    fill_page_of_race(page, results)
    once = page.read_text()
    assert once.startswith("a\n<!-- race -->\n\n| data |") and once.endswith("<!-- /stages -->\nc\n")
    assert "cores 2; medians of 3 rounds." in once and "old" not in once
    fill_page_of_race(page, results)
    assert page.read_text() == once


def test_a_page_without_a_place_is_refused_and_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="has no mark race"):
        fill_page_of_race(page, Results({}, [outcome()]))
    assert page.read_text() == "nothing"
