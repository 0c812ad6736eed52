"""Coverage: every scenario of the live log, of retention and of the cleaner has a test; and their count."""

from __future__ import annotations

import re
from pathlib import Path

from tests.project.scenarios import all_scenarios, counted, scenarios_in

OF_THE_ENGINE = ("ix", "cp", "cm", "rt", "ap", "rd", "tr", "rc", "ps", "lm")


def names_of_tests() -> set[str]:
    names = set()
    for path in Path(__file__).parents[1].rglob("test_*.py"):
        source = path.read_text()
        names.update(re.findall(r"def (test_\w+)", source))
        for ids in re.findall(r"ids=\[([^\]]*)\]", source):
            names.update(re.findall(r'"([^"]*)"', ids))
    return names


def test_every_scenario_of_the_engine_has_a_test() -> None:
    tested = {found for name in names_of_tests() for found in scenarios_in(name)}
    assert {one for one in all_scenarios() if one.startswith(OF_THE_ENGINE)} - tested == set()


def test_names_tell_their_scenarios() -> None:
    assert scenarios_in("tests/t.py::test_rt_13_rt_14_an_empty_log_stays") == {"rt_13", "rt_14"}
    assert scenarios_in("test_a_batch[cp_30]") == {"cp_30"}
    assert scenarios_in("test_start_07_and_rt_99_and_ap_100") == set()


def test_a_scenario_counts_once_and_not_where_one_of_its_tests_failed() -> None:
    line = counted(["test_ap_01_a", "test_ap_01_b", "test_ap_02_c", "test_other"], ["test_ap_02_d"])
    assert line == "scenarios: AP 1/34; failed: ap_02"
    assert counted(["test_other"], []) == ""
