"""Rules that depend on settings: results if no source states a setting, and with the largest values."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.sources import Source, find_sources
from sediment.verification import rules as r
from sediment.verification.cleaned_range import CleanedRange
from sediment.verification.header_scan import scan_headers, scan_tasks
from sediment.verification.record_rules import Log, compare_records
from sediment.verification.tally import Tally
from tests.corpus import load_case
from tests.jobs.broken_logs import BREAKAGES, Edited
from tests.jobs.log_dirs import make_log_dir

DAY_MS = 86_400_000
NEVER_MS = INT64_MAX

RULES = r.PairRules(
    cleaned=CleanedRange(0, INT64_MAX, INT64_MAX, INT64_MAX, False, ()),
    stable_before=INT64_MAX,
    stable_after=INT64_MAX,
    legacy_end=-INT64_MAX,
    corrupt_from=None,
    delete_retention_ms=DAY_MS,
    producer_id_expiration_ms=DAY_MS,
    now_ms=1_700_001_000_000,
    now_is_exact=True,
    since_ms=None,
)


@pytest.mark.parametrize(
    ("changes", "horizons"),
    [
        ({}, (RULES.now_ms + DAY_MS, RULES.now_ms + DAY_MS)),
        ({"now_is_exact": False}, (DAY_MS, RULES.now_ms + DAY_MS)),
        ({"since_ms": 5}, (5 + DAY_MS, RULES.now_ms + DAY_MS)),
        ({"delete_retention_ms": None}, None),
        ({"delete_retention_ms": NEVER_MS}, (INT64_MAX, INT64_MAX)),
        ({"delete_retention_ms": INT64_MAX - RULES.now_ms + 1}, (INT64_MAX, INT64_MAX)),
        ({"now_ms": INT64_MAX}, (INT64_MAX, INT64_MAX)),
    ],
)
def test_new_horizons_are_the_clock_plus_the_retention_and_never_overflow(changes, horizons):
    assert replace(RULES, **changes).new_horizons() == horizons


@pytest.mark.parametrize(
    ("since_ms", "retention_ms", "horizon"),
    [(None, 7, None), (5, None, None), (5, 7, 12), (5, NEVER_MS, INT64_MAX)],
)
def test_the_first_of_several_rounds_gave_a_horizon_only_if_a_retention_is_stated(since_ms, retention_ms, horizon):
    assert replace(RULES, since_ms=since_ms, delete_retention_ms=retention_ms).first_round_horizon() == horizon


@pytest.mark.parametrize(
    ("expiration_ms", "idle_since_ms"),
    [(DAY_MS, RULES.now_ms - DAY_MS), (None, -INT64_MAX), (INT64_MAX, RULES.now_ms - INT64_MAX)],
)
def test_producers_expire_only_by_a_stated_setting(expiration_ms, idle_since_ms):
    assert replace(RULES, producer_id_expiration_ms=expiration_ms).idle_since_ms() == idle_since_ms


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """(BEFORE, AFTER, clock of the cleaning) by what is there to see."""
    scratch = tmp_path_factory.mktemp("rules")
    case = load_case("tombstones", scratch)
    first, *_, last = case.rounds
    idempotent = load_case("idempotent", scratch).rounds[0]
    log_dirs = [
        make_log_dir(scratch / name, {"t-0": directory})
        for name, directory in (("before", idempotent.before), ("after", idempotent.after))
    ]
    BREAKAGES["the last batch of a producer is gone"].do(Edited(*log_dirs, "t-0", DAY_MS))
    return int(case.configs["delete.retention.ms"]), {
        "new horizons": (first.before, first.after, first.now_ms),
        "expired horizons": (last.before, last.after, last.now_ms),
        "horizons come and go": (first.before, last.after, last.now_ms),
        "an idle producer is gone": (log_dirs[0] / "t-0", log_dirs[1] / "t-0", RULES.now_ms + 2 * DAY_MS),
    }


def log_of(source: Source, fs: Fs) -> Log:
    tasks = tuple(scan_tasks(source, fs))
    return Log(tasks, scan_headers(source, tasks, fs))


def judged(pairs: list[tuple[Path, Path, r.PairRules]]) -> list[tuple[Counter, str]]:
    """Return the number of differences of each check in each pair, and the first texts."""
    fs = Fs()
    found = []
    for before, after, rules in pairs:
        sources = [find_sources([path], fs)[0] for path in (before, after)]
        tally = Tally()
        compare_records(*(log_of(source, fs) for source in sources), rules, 1 << 20, fs, tally)
        found.append((tally.counts, " ".join(difference.what for difference in tally.first())))
    return found


def test_without_stated_settings_only_horizons_that_are_there_count(results):
    retention_ms, logs = results
    stated = replace(RULES, delete_retention_ms=retention_ms)
    unstated = replace(RULES, delete_retention_ms=None, producer_id_expiration_ms=None)
    since_ms = logs["new horizons"][2]
    pairs = [
        (before, after, replace(rules, now_ms=now_ms, since_ms=since_ms if name == "horizons come and go" else None))
        for rules in (stated, unstated)
        for name, (before, after, now_ms) in logs.items()
    ]
    found = judged(pairs)
    *right, (gone, _) = found[: len(logs)]
    new, expired, both, kept = found[len(logs) :]
    assert [checks for checks, _ in right] == [Counter()] * 3
    assert gone["producers"] == 0
    assert set(new[0]) == {"horizons"}
    assert "delete.retention.ms is not stated; give it with --set" in new[1]
    assert expired[0] == Counter()
    assert both[0]["tombstones"] > 0
    assert kept[0]["producers"] > 0


def test_a_lost_horizon_is_a_difference(results):
    retention_ms, logs = results
    before, after, now_ms = logs["new horizons"]
    rules = replace(RULES, delete_retention_ms=retention_ms, now_ms=now_ms)
    ((checks, texts),) = judged([(after, before, rules)])
    assert checks["horizons"] > 0
    assert "delete horizon none, but in BEFORE " in texts


def test_the_largest_settings_and_clocks_are_judged_like_others(results):
    _, logs = results
    before, after, now_ms = logs["new horizons"]
    never = replace(RULES, delete_retention_ms=NEVER_MS, producer_id_expiration_ms=NEVER_MS)
    found = judged(
        [
            (before, before, never),
            (before, after, replace(never, now_ms=now_ms)),
            (before, before, replace(never, now_ms=INT64_MAX, since_ms=INT64_MAX)),
            (before, before, replace(never, now_ms=INT64_MAX + 1)),
        ],
    )
    assert [set(checks) for checks, _ in found] == [set(), {"horizons"}, set(), set()]
    assert f"but delete.retention.ms is {NEVER_MS}" in found[1][1]
