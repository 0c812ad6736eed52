"""The HTML report and the metrics of a run, even if the run fails."""

from __future__ import annotations

import os

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sediment.engine.directory.lock import DirectoryLock
from sediment.jobs.reporting.figures import human_bytes
from tests.corpus import load_case
from tests.jobs.log_dirs import make_log_dir, sediment, topic_sets, tree
from tests.jobs.reporting.test_html_page import Page

NOW_MS = 1_700_001_000_000


@pytest.fixture
def plain(tmp_path):
    return load_case("plain", tmp_path / "corpus")


@pytest.fixture
def log_dir(tmp_path, plain):
    return make_log_dir(tmp_path / "logs", {plain.partition: plain.before})


@pytest.fixture
def run(log_dir, plain, tmp_path):
    def run(command="compact", *options):
        return sediment(
            command,
            log_dir,
            "--json",
            "--now-ms",
            NOW_MS,
            *topic_sets("plain", plain.configs),
            f"--report={tmp_path}/run.html",
            f"--metrics={tmp_path}/run.prom",
            *options,
        )

    return run


def metrics(path):
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }


def test_a_run_leaves_a_page_and_metrics_with_the_figures_of_its_report(run, tmp_path, log_dir):
    outcome = run()
    assert outcome.status == 0, outcome.stderr
    (partition,) = outcome.report["partitions"]
    text = Page((tmp_path / "run.html").read_text()).text
    before, after = human_bytes(partition["bytes_before"]), human_bytes(partition["bytes_after"])
    for words in (outcome.report["run_id"], "plain-0", f"{before} → {after}", "2,000 → 150", "100%", str(log_dir)):
        assert words in text, words
    assert "cleanup.policy compact --set" in text
    found = metrics(tmp_path / "run.prom")
    assert found["sediment_run_success"] == 1
    assert found["sediment_run_bytes_before"] == partition["bytes_before"]
    assert found["kafka_log_cleaner_manager_max_dirty_percent"] == 100
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_the_report_knows_where_the_time_went_and_what_became_of_each_segment(run):
    report = run().report
    assert list(report["seconds_by_stage"]) >= ["clean", "commit", "list"]
    assert sum(report["seconds_by_stage"].values()) > 0
    (partition,) = report["partitions"]
    assert set(partition["seconds_by_stage"]) == {"view", "plan", "clean"}
    assert partition["dirty_ratio"] == 1.0
    before, after = partition["strip_before"], partition["strip_after"]
    assert [base for base, _, _ in after] == partition["segments"]
    assert sum(size for _, size, _ in before) == partition["bytes_before"]
    assert sum(size for _, size, _ in after) == partition["bytes_after"]
    assert before[-1][2] == after[-1][2] == "active"
    assert {state for _, _, state in before[:-1]} == {"dirty"}
    assert "rewritten" in {state for _, _, state in after}


def test_segments_below_the_cleaner_checkpoint_are_clean_and_those_with_nothing_to_drop_are_kept(
    run, log_dir, tmp_path
):
    run()
    again = run("compact", "--from-start", "--force").report["partitions"][0]
    assert {state for _, _, state in again["strip_after"]} <= {"kept", "active", "rewritten"}
    later = run("compact", "--force").report["partitions"][0]
    assert later["status"] == "skipped"
    assert {state for _, _, state in later["strip_before"][:-1]} == {"clean"}
    assert later["strip_after"] == []


def test_a_dry_run_leaves_accounts_and_nothing_else(run, tmp_path, log_dir):
    before = tree(log_dir)
    assert run("compact", "--dry-run").status == 0
    assert tree(log_dir) == before
    assert "nothing was changed" in Page((tmp_path / "run.html").read_text()).text
    assert metrics(tmp_path / "run.prom")["sediment_run_dry_run"] == 1


def test_a_damaged_partition_is_in_both(run, tmp_path, log_dir):
    segment = next(iter(sorted((log_dir / "plain-0").glob("*.log"))))
    content = bytearray(segment.read_bytes())
    content[80] ^= 0xFF
    segment.write_bytes(content)
    assert run().status == 1
    assert "fails its CRC" in Page((tmp_path / "run.html").read_text()).text
    found = metrics(tmp_path / "run.prom")
    assert found["sediment_run_success"] == 0
    assert found["kafka_log_cleaner_manager_uncleanable_partitions_count"] == 1


def test_a_run_that_could_not_begin_leaves_accounts_too(run, tmp_path, log_dir):
    run()
    succeeded = metrics(tmp_path / "run.prom")["sediment_run_last_success_timestamp_seconds"]
    with DirectoryLock(log_dir):
        outcome = run()
    assert outcome.status == 1
    assert "holds the lock" in outcome.stderr
    assert "ended without a result" in Page((tmp_path / "run.html").read_text()).text
    found = metrics(tmp_path / "run.prom")
    assert found["sediment_run_success"] == 0
    assert found["sediment_run_last_success_timestamp_seconds"] == succeeded


@pytest.mark.parametrize("command", ["plan", "recover", "expire"])
def test_other_commands_leave_them_as_well(run, tmp_path, command):
    outcome = run(command)
    assert outcome.status == 0, outcome.stderr
    assert "plain-0" in Page((tmp_path / "run.html").read_text()).text
    assert metrics(tmp_path / "run.prom")["sediment_run_success"] == 1


@pytest.mark.parametrize("option", ["--report", "--metrics"])
def test_a_place_in_a_log_directory_is_refused_before_anything_is_touched(log_dir, plain, tmp_path, option):
    (tmp_path / "link").symlink_to(log_dir)
    before = tree(log_dir)
    for place in (log_dir / "run.html", log_dir / "plain-0" / "run.html", tmp_path / "link" / "run.html"):
        outcome = sediment("compact", log_dir, *topic_sets("plain", plain.configs), option, place)
        assert outcome.status == 2, outcome.stderr
        assert "must not be inside a log directory" in outcome.stderr
    assert tree(log_dir) == before


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_touched(log_dir, plain, tmp_path):
    before = tree(log_dir)
    for place, why in ((tmp_path, "this is a directory"), (tmp_path / "no" / "run.html", "its directory is missing")):
        outcome = sediment("compact", log_dir, *topic_sets("plain", plain.configs), "--report", place)
        assert outcome.status == 2
        assert why in outcome.stderr
    assert tree(log_dir) == before


def test_an_account_that_fails_after_the_run_does_not_fail_the_run(run, tmp_path, monkeypatch):
    def no_room(*_arguments, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sediment.jobs.reporting.html_page.render_html", no_room)
    outcome = run()
    assert outcome.status == 0
    assert "the run is done, but the report could not be written" in outcome.stderr
    assert metrics(tmp_path / "run.prom")["sediment_run_success"] == 1


def test_wrong_settings_are_a_run_without_success_too(run, tmp_path):
    outcome = run("compact", "--set=clean.policy=compact")
    assert outcome.status == 2
    assert "unknown key 'clean.policy'" in Page((tmp_path / "run.html").read_text()).text
    assert metrics(tmp_path / "run.prom")["sediment_run_success"] == 0
