"""`compact --keep-before`: what verify takes as BEFORE."""

from __future__ import annotations

import pytest

from tests.corpus import load_case
from tests.jobs.log_dirs import corpus_log_dir, make_log_dir, sediment, tree

NOW = "--now-ms=1700001000000"


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("corpus")
    return [load_case(name, scratch) for name in ("plain", "transactions")]


@pytest.fixture
def given(cases, tmp_path):
    return corpus_log_dir(tmp_path / "logs", [(case, case.rounds[0]) for case in cases])


def test_verify_finds_the_result_correct_against_what_was_kept(given, tmp_path):
    log_dir, sets = given
    before, kept = tree(log_dir), tmp_path / "deep" / "before"
    outcome = sediment("compact", log_dir, "--force", "--json", NOW, "--keep-before", kept, *sets)
    assert outcome.status == 0, outcome.stderr
    linked = {name: content for name, content in tree(kept).items() if name != ".sediment-before"}
    assert linked == before
    outcome = sediment("verify", kept, log_dir, "--json", NOW, *sets)
    assert {each["status"] for each in outcome.report["partitions"]} == {"correct"}, outcome.stdout
    after = tree(log_dir)
    name = next(name for name in after if name.startswith("plain-0/") and name.endswith(".log") and after[name])
    damaged = bytearray(after[name])
    damaged[70] ^= 1
    (log_dir / name).unlink()
    (log_dir / name).write_bytes(damaged)
    assert sediment("verify", kept, log_dir, "--json", NOW, *sets).status == 1


def test_a_second_run_into_the_same_directory_keeps_what_the_first_found(given, tmp_path):
    log_dir, sets = given
    kept = tmp_path / "before"
    options = ("--force", "--json", NOW, "--keep-before", kept, *sets)
    assert sediment("compact", log_dir, *options, "--partition=plain-0").status == 0
    assert {path.name for path in kept.iterdir() if path.is_dir()} == {"plain-0"}
    first = tree(kept)
    assert sediment("compact", log_dir, *options, "--from-start").status == 0
    assert {name: content for name, content in tree(kept).items() if name in first} == first
    outcome = sediment("verify", kept, log_dir, "--json", NOW, *sets)
    assert {each["status"] for each in outcome.report["partitions"]} == {"correct"}, outcome.stdout


def test_a_partition_that_is_not_changed_is_not_kept(given, tmp_path):
    log_dir, sets = given
    assert sediment("compact", log_dir, "--force", NOW, *sets).status == 0
    kept = tmp_path / "before"
    assert sediment("compact", log_dir, "--force", NOW, "--keep-before", kept, *sets).status == 0
    assert not [path for path in kept.iterdir() if path.is_dir()]


def test_a_dry_run_keeps_nothing(given, tmp_path):
    log_dir, sets = given
    assert sediment("compact", log_dir, "--force", "--dry-run", "--keep-before", tmp_path / "before", *sets).status == 0
    assert not (tmp_path / "before").exists()


def test_places_that_will_not_do_are_refused(given, tmp_path):
    log_dir, sets = given
    before = tree(log_dir)
    outcome = sediment("compact", log_dir, "--keep-before", log_dir / "before", *sets)
    assert (outcome.status, "log directory" in outcome.stderr) == (2, True)
    other = make_log_dir(tmp_path / "other", {})
    outcome = sediment("compact", log_dir, other, "--keep-before", tmp_path / "before", *sets)
    assert (outcome.status, "one log directory" in outcome.stderr) == (2, True)
    assert tree(log_dir) == before
