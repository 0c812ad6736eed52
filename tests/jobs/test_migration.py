"""Older command lines without the settings that are needed now: what each does, and what its message says to add."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from tests.archives import unpack
from tests.jobs.expiring.expired_logs import make_log
from tests.jobs.log_dirs import Outcome, sediment, tree
from tests.segments import NOW_MS

KRAFT = Path(__file__).parents[1] / "data" / "kraft" / "log-dir.tar.gz"
OLD_MS = NOW_MS - 30 * 86_400_000


def run(line: str, **places: Path) -> Outcome:
    return sediment(*line.format(**places).split(), f"--now-ms={NOW_MS}")


@pytest.fixture
def disks(tmp_path: Path) -> dict[str, Path]:
    """Both disks of a node, the second without the metadata log, and the broker's file."""
    one, two = tmp_path / "one", tmp_path / "two"
    with tarfile.open(KRAFT) as archive:
        unpack(archive, one)
    two.mkdir()
    shutil.copy(one / "meta.properties", two)
    for name in ("plain-0", "both-0", "compacted-0"):
        shutil.rmtree(one / name)
        make_log(two, name, times_ms=(OLD_MS,) * 3)
    config = tmp_path / "server.properties"
    config.write_text(f"node.id=7\nlog.dirs={one},{two}\nlog.cleanup.policy=compact\nlog.retention.hours=24\n")
    return {"one": one, "two": two, "config": config}


@pytest.mark.parametrize("command", ["expire {two}", "expire {two} --quiet --json", "compact {two} --force"])
def test_a_nightly_script_for_the_second_disk_stops_and_names_the_options(disks, command):
    before = tree(disks["two"])
    outcome = run(command, **disks)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert "--metadata" in outcome.stderr and "--config" in outcome.stderr
    assert tree(disks["two"]) == before


def test_the_same_script_works_once_the_brokers_file_is_given(disks):
    outcome = run("expire {two} --json --config {config}", **disks)
    assert outcome.status == 0, outcome.stderr
    reports = outcome.partitions()
    assert reports["both-0"]["status"] == "expired"  # by the topic's own retention.ms
    assert {reports[name]["status"] for name in ("plain-0", "compacted-0")} == {"skipped"}  # both are compacted


def test_a_script_for_all_disks_goes_on_and_leaves_what_only_the_file_states(disks):
    outcome = run("expire {one} {two} --json", **disks)
    assert outcome.status == 0, outcome.stderr
    assert outcome.partitions()["plain-0"]["reason_code"] == "policy-unknown"
    assert "--config FILE" in outcome.partitions()["plain-0"]["reason"]
    assert run("expire {one} {two} --json --fail-on-unknown", **disks).status == 1


@pytest.mark.parametrize("command", ["plan", "compact", "expire", "recover", "dump"])
def test_a_mistyped_glob_is_an_error(disks, command):
    places = {"config": disks["config"], **disks}
    more = "" if command == "dump" else " --metadata {one}"
    outcome = sediment(*f"{command} {{two}}{more} --partition plian-*".format(**places).split())
    assert (outcome.status, outcome.stdout) == (2, "")
    assert "plain-0" in outcome.stderr
