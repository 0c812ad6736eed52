"""`compact --keep-before`: the BEFORE directory of `verify`."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sediment.engine.directory.lock import DirectoryLock
from tests.corpus import load_case
from tests.jobs.log_dirs import corpus_log_dir, make_log_dir, sediment, tree, write_checkpoint
from tests.segments import batch_bytes, write_segment
from tests.twin.snapshots import encode_snapshot, parse_snapshot

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
    after = {name: content for name, content in tree(kept).items() if name in first}
    marks = [json.loads(files.pop(".sediment-before")) for files in (first, after)]
    assert after == first
    assert marks == [marks[0], {**marks[0], "is_reused": True}]
    outcome = sediment("verify", kept, log_dir, "--json", NOW, *sets)
    assert {each["status"] for each in outcome.report["partitions"]} == {"correct"}, outcome.stdout


def test_each_of_several_disks_keeps_its_own_files_beside_itself(cases, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    disks = [
        corpus_log_dir(tmp_path / f"disk{number}" / "logs", [(case, case.rounds[0])])
        for number, case in enumerate(cases)
    ]
    log_dirs = [log_dir for log_dir, _ in disks]
    sets = [word for _, words in disks for word in words]
    before = {log_dir: tree(log_dir) for log_dir in log_dirs}
    kept = ("--keep-before=before", "--keep-originals={log_dir}-originals")
    outcome = sediment("compact", *log_dirs, "--force", "--json", NOW, *kept, *sets)
    assert outcome.status == 0, outcome.stderr
    assert outcome.report["before"] == "{log_dir}-before"
    assert outcome.report["originals"] == "{log_dir}-originals"
    assert outcome.report["catalogue"] == f"{{log_dir}}-originals/catalogue-{outcome.report['run_id']}.json"
    for log_dir, words in disks:
        assert tree(log_dir) != before[log_dir]
        verified = sediment("verify", f"{log_dir}-before", log_dir, "--json", NOW, *words)
        assert {row["status"] for row in verified.report["partitions"]} == {"correct"}, verified.stdout
        run = ("--from", f"{log_dir}-originals", "--run", outcome.report["run_id"], "--yes")
        restored = sediment("restore", log_dir, "--json", *run)
        assert restored.status == 0, restored.stderr
        assert {name: tree(log_dir)[name] for name in before[log_dir] if ".log" in name} == {
            name: content for name, content in before[log_dir].items() if ".log" in name
        }


def test_records_that_a_broker_appends_after_the_run_make_no_difference(tmp_path):
    partition, kept, sets = tmp_path / "logs" / "t-0", tmp_path / "before", ["--set=t:cleanup.policy=compact"]
    batches = [batch_bytes(offset, "ab") for offset in range(0, 20, 2)]
    write_segment(partition, 0, batches[:5])
    write_segment(partition, 10, batches[5:])
    checkpoint = tmp_path / "logs" / "replication-offset-checkpoint"
    write_checkpoint(checkpoint, {"t-0": 20})
    (partition / f"{20:020d}.snapshot").write_bytes(encode_snapshot({}))
    (tmp_path / "logs" / ".kafka_cleanshutdown").touch()
    outcome = sediment("compact", tmp_path / "logs", NOW, "--force", "--keep-before", kept, *sets)
    assert (outcome.status, f"the files before the run are in {kept}" in outcome.stdout) == (0, True), outcome.stdout
    with (partition / f"{10:020d}.log").open("ab") as log:
        log.write(batch_bytes(20, "abc"))
    checkpoint.unlink()  # a broker replaces the file
    write_checkpoint(checkpoint, {"t-0": 23})
    (partition / f"{20:020d}.snapshot").rename(partition / f"{23:020d}.snapshot")
    outcome = sediment("verify", kept, tmp_path / "logs", "--json", NOW, *sets)
    assert outcome.partitions()["t-0"]["differences"] == []
    assert outcome.status == 0
    shutil.copytree(kept, tmp_path / "copy")  # its records are those of the log, but nothing shows that a broker did it
    outcome = sediment("verify", tmp_path / "copy", tmp_path / "logs", "--json", NOW, *sets)
    assert outcome.status == 1


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
    assert (outcome.status, "several log directories" in outcome.stderr) == (2, True)
    same = ("--keep-before={log_dir}-kept", "--keep-originals={log_dir}/../logs-kept")
    outcome = sediment("compact", log_dir, *same, *sets)
    assert (outcome.status, "name the same directory" in outcome.stderr) == (2, True)
    assert tree(log_dir) == before


@pytest.mark.parametrize("option", ["--keep-before", "--keep-originals"])
def test_a_run_that_is_refused_leaves_no_directory(nothing_to_remove, tmp_path, option):
    log_dir, mine = nothing_to_remove, tmp_path / "mine"
    mine.mkdir()
    sets = ("--set=t:cleanup.policy=compact",)
    with DirectoryLock(log_dir):
        assert sediment("compact", log_dir, option, tmp_path / "deep" / "before", *sets).status == 1
        assert sediment("compact", log_dir, option, mine, *sets).status == 1
    assert not (tmp_path / "deep").exists()
    assert mine.is_dir()


def test_a_run_that_keeps_no_originals_leaves_no_directory(nothing_to_remove, tmp_path):
    kept = tmp_path / "deep" / "kept"
    assert sediment("compact", nothing_to_remove, "--keep-originals", kept, "--set=t:cleanup.policy=delete").status == 0
    assert not (tmp_path / "deep").exists()


OFFSETS = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class Rescue:
    """A log directory of which a run with --keep-before changed `changed` alone, and what it kept."""

    log_dir: Path
    kept: Path
    sets: list
    changed: str = f"{OFFSETS}-0"

    def verify(self, *options):
        return sediment("verify", self.kept, self.log_dir, "--json", NOW, *self.sets, *options)


@pytest.fixture
def rescue(cases, tmp_path):
    """Return the situation of runbook.md: partitions of __consumer_offsets, most of them empty, and another topic."""
    full, other = (case.rounds[0].before for case in cases)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / f"{0:020d}.log").touch()
    log_dir = make_log_dir(
        tmp_path / "logs", {f"{OFFSETS}-0": full, f"{OFFSETS}-1": empty, f"{OFFSETS}-2": empty, "orders-0": other}
    )
    rescued = Rescue(log_dir, tmp_path / "before", [f"--set={OFFSETS}:cleanup.policy=compact"])
    outcome = sediment(
        "compact",
        log_dir,
        f"--partition={OFFSETS}-*",
        "--force",
        "--json",
        NOW,
        "--keep-before",
        rescued.kept,
        *rescued.sets,
    )
    assert outcome.status == 0, outcome.stderr
    assert {path.name for path in rescued.kept.iterdir() if path.is_dir()} == {rescued.changed}
    return rescued


def test_partitions_that_did_not_change_are_skipped(rescue):
    outcome = rescue.verify(f"--partition={OFFSETS}-*")
    found = {name: (each["status"], each["reason_code"]) for name, each in outcome.partitions().items()}
    skipped = ("skipped", "not-changed")
    assert found == {f"{OFFSETS}-0": ("correct", None), f"{OFFSETS}-1": skipped, f"{OFFSETS}-2": skipped}
    assert outcome.status == 0
    everything = rescue.verify()
    assert everything.partitions()["orders-0"]["status"] == "skipped"
    assert everything.status == 0


@pytest.mark.parametrize("command", ["originals", "vacuum"])
def test_a_directory_of_keep_before_is_no_directory_of_originals(rescue, command):
    before = tree(rescue.kept)
    outcome = sediment(command, rescue.kept, *(["--older-than=1d", "--yes"] if command == "vacuum" else []))
    assert (outcome.status, outcome.stdout) == (2, "")
    assert "this is a directory of --keep-before" in outcome.stderr
    assert tree(rescue.kept) == before


def test_the_table_counts_partitions_that_did_not_change_apart(rescue):
    outcome = sediment("verify", rescue.kept, rescue.log_dir, NOW, *rescue.sets, "--quiet")
    assert "1 of 1 partition is a correct compaction, 3 did not change" in outcome.stdout
    assert "orders-0" in outcome.stdout
    assert "skipped: not-changed" in outcome.stdout


def _replace_segment(partition):
    """By a file of the same name, size, content and modification time."""
    path = next(partition.glob("*.log"))
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").rename(path)


def test_a_partition_that_changed_without_links_is_wrong(rescue):
    shutil.rmtree(rescue.kept / rescue.changed)
    _replace_segment(rescue.log_dir / f"{OFFSETS}-1")
    shutil.rmtree(rescue.log_dir / f"{OFFSETS}-2")
    write_checkpoint(rescue.log_dir / "log-start-offset-checkpoint", {"orders-0": 7})
    shutil.copytree(rescue.log_dir / "orders-0", rescue.log_dir / "orders-1")
    outcome = rescue.verify()
    assert outcome.status == 1
    found = {
        name: (each["status"], [difference["what"] for difference in each["differences"]])
        for name, each in outcome.partitions().items()
    }
    assert found == {
        f"{OFFSETS}-0": ("wrong", ["the partition changed, but BEFORE has no links to it"]),
        f"{OFFSETS}-1": ("wrong", ["the partition changed, but BEFORE has no links to it"]),
        f"{OFFSETS}-2": ("wrong", ["AFTER does not have the partition"]),
        "orders-0": ("wrong", ["the log start checkpoint is 7, but in BEFORE 0"]),
        "orders-1": ("wrong", ["BEFORE does not have the partition"]),
    }


def test_without_fingerprints_no_partition_is_known_to_be_unchanged(rescue):
    mark = rescue.kept / ".sediment-before"
    mark.write_text(json.loads(mark.read_text())["log_dir"])
    outcome = rescue.verify(f"--partition={OFFSETS}-1")
    assert (outcome.status, [each["status"] for each in outcome.report["partitions"]]) == (1, ["wrong"])


def test_a_copy_does_not_tell_whether_a_partition_changed(rescue, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(rescue.log_dir, copy)
    outcome = sediment("verify", rescue.kept, copy, "--json", "--partition=orders-0")
    (report,) = outcome.report["partitions"]
    assert report["status"] == "wrong"
    assert str(rescue.log_dir) in report["differences"][0]["what"]


def test_a_run_that_changed_nothing_at_all_is_verified(given, tmp_path):
    log_dir, sets = given
    assert sediment("compact", log_dir, "--force", NOW, *sets).status == 0
    for file in (*log_dir.glob("*checkpoint"), log_dir / ".kafka_cleanshutdown"):
        file.unlink()
    kept = tmp_path / "before"
    deleted = [f"--set={topic}:cleanup.policy=delete" for topic in ("plain", "transactions")]
    assert sediment("compact", log_dir, "--keep-before", kept, *deleted).status == 0
    outcome = sediment("verify", kept, log_dir, "--json")
    assert {each["status"] for each in outcome.report["partitions"]} == {"skipped"}, outcome.stdout
    assert outcome.status == 0


@pytest.fixture
def nothing_to_remove(tmp_path):
    """Return a log directory with one partition of unique keys, of which no segment is written anew."""
    write_segment(tmp_path / "logs" / "t-0", 0, [batch_bytes(0, "abc")])
    return make_log_dir(tmp_path / "given", {"t-0": tmp_path / "logs" / "t-0"})


def test_a_roll_is_a_change_even_if_nothing_is_cleaned(nothing_to_remove, tmp_path):
    log_dir, kept = nothing_to_remove, tmp_path / "before"
    sets, before = ("--set=t:cleanup.policy=compact",), tree(log_dir)
    outcome = sediment("compact", log_dir, "--roll-active", "--force", "--json", "--keep-before", kept, *sets)
    assert (outcome.status, outcome.partitions()["t-0"]["groups_rewritten"]) == (0, 0)
    assert {name for name in tree(log_dir) if name.endswith(".log")} == {f"t-0/{base:020d}.log" for base in (0, 3)}
    assert {name: content for name, content in tree(kept).items() if name != ".sediment-before"} == before
    outcome = sediment("verify", kept, log_dir, "--json", *sets)
    assert [each["status"] for each in outcome.report["partitions"]] == ["correct"], outcome.stdout


def test_what_an_interrupted_run_left_is_a_change(nothing_to_remove, tmp_path):
    log_dir, kept = nothing_to_remove, tmp_path / "before"
    (log_dir / "t-0" / f"{0:020d}.log.cleaned").touch()
    outcome = sediment("compact", log_dir, "--json", "--keep-before", kept, "--set=t:cleanup.policy=compact")
    assert (outcome.status, outcome.partitions()["t-0"]["status"]) == (0, "skipped")
    assert not list(log_dir.rglob("*.cleaned"))
    outcome = sediment("verify", kept, log_dir, "--json")
    assert [each["status"] for each in outcome.report["partitions"]] == ["correct"], outcome.stdout


def test_the_snapshot_of_a_rolled_segment_holds_the_producers_of_the_log(tmp_path):
    write_segment(tmp_path / "given" / "t-0", 0, [batch_bytes(0, "abab", producer_id=7, sequence=5)])
    log_dir, kept = make_log_dir(tmp_path / "logs", {"t-0": tmp_path / "given" / "t-0"}), tmp_path / "before"
    sets = ("--set=t:cleanup.policy=compact",)
    assert sediment("compact", log_dir, "--roll-active", "--force", NOW, "--keep-before", kept, *sets).status == 0
    assert sediment("verify", kept, log_dir, "--json", NOW, *sets).status == 0
    path = log_dir / "t-0" / f"{4:020d}.snapshot"
    entry = parse_snapshot(path.read_bytes())[7]
    path.write_bytes(encode_snapshot({7: replace(entry, last_sequence=entry.last_sequence - 1)}))
    outcome = sediment("verify", kept, log_dir, "--json", NOW, *sets)
    (report,) = outcome.report["partitions"]
    assert [difference["check"] for difference in report["differences"]] == ["snapshots"]
