"""`sediment clone --compact`: the result is that of a clone and a later `compact` in it; the source stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.engine.clone.clone_directory import CloneDirectory
from tests.corpus import load_case
from tests.jobs.cloning.clones import clone, logs_of
from tests.jobs.log_dirs import corpus_log_dir, make_log_dir, sediment, tree, write_log
from tests.served import contents

pytestmark = pytest.mark.usefixtures("without_spark")

CASES = ("plain", "transactions", "everything", "tombstones")
POLICY = "--set=t:cleanup.policy=compact"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    logs = {f"{topic}-0": write_log(tmp_path / topic) for topic in ("t", "other")}
    return make_log_dir(tmp_path / "logs", logs, dirty={"t-0": 0})


def test_the_result_is_that_of_a_clone_and_a_later_compaction_in_it(tmp_path: Path) -> None:
    cases = [load_case(name, tmp_path / "cases") for name in CASES]
    source, sets = corpus_log_dir(tmp_path / "logs", [(case, case.rounds[0]) for case in cases])
    now_ms = max(case.rounds[0].now_ms for case in cases)
    before = contents(source)
    at_once = clone(source, tmp_path / "at-once", "--compact", *sets, "--now-ms", now_ms)
    assert contents(source) == before
    plain = clone(source, tmp_path / "later", *sets, "--now-ms", now_ms)
    later = sediment("compact", tmp_path / "later", "--json", *sets, "--now-ms", now_ms)
    assert later.status == 0, later.stderr
    assert logs_of(tmp_path / "at-once") == logs_of(tmp_path / "later")
    found = at_once.partitions()
    assert sum(row["status"] == "compacted" for row in later.partitions().values()) >= 3
    for name, row in later.partitions().items():
        assert found[name]["compacted"] == (row["status"] == "compacted")
        assert (found[name]["bytes_before"], found[name]["bytes"]) == (row["bytes_before"], row["bytes_after"])
        assert plain.partitions()[name]["bytes"] == row["bytes_before"]
        if found[name]["compacted"]:
            counts = ("messages_read", "messages_written")
            assert [found[name][count] for count in counts] == [row[count] for count in counts]
    assert sediment("clone", "--check", tmp_path / "at-once").status == 0
    assert sediment("recover", tmp_path / "at-once", "--dry-run").status == 0


def test_a_new_encoding_is_that_of_a_later_compaction_with_the_same_options(source: Path, tmp_path: Path) -> None:
    encoding = ("--codec", "zstd", "--level", 9, "--batch-bytes", "64k")
    clone(source, tmp_path / "at-once", "--compact", POLICY, *encoding)
    clone(source, tmp_path / "later")
    later = sediment("compact", tmp_path / "later", "--json", POLICY, *encoding)
    assert later.status == 0, later.stderr
    assert later.partitions()["t-0"]["batches_encoded"] > 0
    assert logs_of(tmp_path / "at-once") == logs_of(tmp_path / "later")


def test_an_encoding_without_a_compaction_is_refused_and_nothing_is_written(source: Path, tmp_path: Path) -> None:
    outcome = clone(source, tmp_path / "clone", "--codec", "zstd", status=2)
    assert "need --compact" in outcome.stderr
    assert not (tmp_path / "clone").exists()


def test_a_topic_without_a_stated_policy_is_left_as_copied_and_the_report_says_why(
    source: Path, tmp_path: Path
) -> None:
    outcome = clone(source, tmp_path / "clone", "--compact", POLICY)
    other = outcome.partitions()["other-0"]
    assert (other["status"], other["compacted"], other["reason_code"]) == ("cloned", False, "policy-unknown")
    assert outcome.partitions()["t-0"]["compacted"]
    assert any("1 partition compacted" in note and "1 not compacted" in note for note in outcome.report["notes"])
    copied, given = tree(tmp_path / "clone" / "other-0"), tree(source / "other-0")
    assert {name: copied[name] for name in given if name.endswith(".log")} == {
        name: content for name, content in given.items() if name.endswith(".log")
    }
    assert clone(source, tmp_path / "unknown", "--compact", POLICY, "--fail-on-unknown", status=1).report["is_complete"]


def test_a_bare_policy_for_several_topics_is_refused_and_nothing_is_written(source: Path, tmp_path: Path) -> None:
    outcome = clone(source, tmp_path / "clone", "--compact", "--set", "cleanup.policy=compact", status=2)
    assert "would apply to all 2 topics" in outcome.stderr
    assert not (tmp_path / "clone").exists()


@pytest.mark.parametrize("link", ["copy", "hard"])
def test_a_corrupt_log_stays_as_it_is_and_is_reported(source: Path, tmp_path: Path, link: str) -> None:
    log = min((source / "t-0").glob("*.log"))
    content = bytearray(log.read_bytes())
    content[80] ^= 1
    log.write_bytes(content)
    before = contents(source)
    outcome = clone(source, tmp_path / "clone", "--compact", POLICY, "--link", link, status=1)
    row = outcome.partitions()["t-0"]
    assert (row["status"], row["reason_code"], row["compacted"]) == ("quarantined", "corrupt-batch", False)
    assert (tmp_path / "clone" / "t-0" / log.name).read_bytes() == bytes(content)
    assert not list((tmp_path / "clone").rglob("*.part"))
    assert contents(source) == before


def test_hard_links_to_the_source_end_where_the_compaction_replaces_files(source: Path, tmp_path: Path) -> None:
    before = contents(source)
    clone(source, tmp_path / "clone", "--compact", POLICY, "--link", "hard")
    copied = tmp_path / "copied"
    clone(source, copied, "--compact", POLICY)
    assert contents(source) == before
    assert logs_of(tmp_path / "clone") == logs_of(copied)


def test_a_killed_run_is_no_clone_and_the_next_one_starts_over(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_arguments: object) -> None:
        raise Killed

    to = tmp_path / "clone"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(CloneDirectory, "add", die)  # the first partition is compacted and has no name yet
        clone(source, to, "--compact", POLICY)
    assert not (to / "sediment-manifest.json").exists() and not (to / "meta.properties").exists()
    clone(source, tmp_path / "whole", "--compact", POLICY)
    clone(source, to, "--compact", POLICY)
    assert logs_of(to) == logs_of(tmp_path / "whole")
