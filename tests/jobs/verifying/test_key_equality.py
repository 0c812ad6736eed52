"""`--key-equality exact` on the command line: its memory, its plan, and the options that it excludes.

That keys of one hash are told apart is shown in tests/compaction/test_exact_keys.py.
"""

from __future__ import annotations

import pytest

from tests.jobs.log_dirs import make_log_dir, sediment, tree
from tests.logs import START_MS, LogShape, write_random_log

NOW_MS = START_MS + 1_000_000
EXACT = "--key-equality=exact"


@pytest.fixture
def log_dir(tmp_path):
    write_random_log(tmp_path / "source", 4, LogShape(batches=200, keys=120))
    return make_log_dir(tmp_path / "logs", {"t-0": tmp_path / "source"})


def run(command, log_dir, *options):
    sets = ("cleanup.policy=compact", "segment.bytes=2500", "index.interval.bytes=300")
    given = (f"--set=t:{key}" for key in sets)
    return sediment(command, log_dir, "--force", "--json", "--now-ms", NOW_MS, *given, *options)


def test_whole_keys_are_compared_by_one_task_and_the_plan_says_why(log_dir):
    planned = run("plan", log_dir, EXACT, "--exact").partitions()["t-0"]
    assert (planned["status"], planned["strategy"]) == ("cleanable", "whole")
    assert "whole keys are compared" in planned["strategy_reason"]
    cleaned = run("compact", log_dir, EXACT).partitions()["t-0"]
    assert (cleaned["status"], cleaned["strategy"], cleaned["key_equality"]) == ("compacted", "whole", "exact")
    assert (cleaned["bytes_after"], cleaned["segments"]) == (planned["bytes_after"], planned["segments"])


def test_keys_without_a_common_hash_come_out_alike_either_way(log_dir, tmp_path):
    other = make_log_dir(tmp_path / "other", {"t-0": log_dir / "t-0"})
    assert run("compact", log_dir, EXACT).status == 0
    cleaned = run("compact", other).partitions()["t-0"]
    assert cleaned["key_equality"] == "hash"
    assert tree(log_dir) == tree(other)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_splits_know_hashes_only_and_are_refused(log_dir, tmp_path, elsewhere):
    before = tree(log_dir)
    options = ("--output", tmp_path / "out") if elsewhere else ()
    outcome = run("compact", log_dir, EXACT, "--strategy=split", *options)
    assert outcome.status == 2
    assert "--strategy split excludes --key-equality exact" in outcome.stderr
    assert tree(log_dir) == before
    assert not (tmp_path / "out").exists()


def test_keys_that_only_splits_could_hold_are_refused_by_plan_and_run_alike(log_dir):
    little = "--set=sediment.task.memory.bytes=10000"
    assert run("plan", log_dir, little).partitions()["t-0"]["strategy"] == "whole"
    less = "--set=sediment.task.memory.bytes=4000"
    assert run("plan", log_dir, less).partitions()["t-0"]["strategy"] == "split"
    before = tree(log_dir)
    for command in ("plan", "compact"):
        outcome = run(command, log_dir, less, EXACT)
        refused = outcome.partitions()["t-0"]
        assert (outcome.status, refused["status"], refused["reason_code"]) == (1, "failed", "memory-budget")
        for words in ("whole keys takes", "a task may use 4000", "--key-equality hash"):
            assert words in refused["reason"], refused["reason"]
    assert {name: tree(log_dir)[name] for name in before} == before
