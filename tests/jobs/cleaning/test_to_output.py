"""`compact --output`: the same result as in place, in another directory, and an unchanged source."""

import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys

import pytest

from sediment.engine.directory.lock import DirectoryLock
from sediment.jobs.cleaning import to_output
from sediment.jobs.spark.task_pool import TaskResult
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.clean_shutdown_file import NEW_DIRECTORY, format_clean_shutdown
from sediment.segment_io.stores import Store
from tests.corpus import load_case
from tests.jobs.cleaning.outputs import CLEANER, COMPACT, MANIFEST, image, kill_when, published, uri
from tests.jobs.log_dirs import (
    corpus_log_dir,
    make_log_dir,
    read_checkpoint,
    sediment,
    tree,
    write_checkpoint,
    write_log,
)
from tests.segments import NOW_MS
from tests.waiting import LIMIT_SECONDS, wait_until


@pytest.fixture
def log_dir(tmp_path):
    """Return a log directory with one compacted topic, one that is not, and every checkpoint file."""
    path = make_log_dir(
        tmp_path / "logs",
        {"t-0": write_log(tmp_path / "t"), "other-0": write_log(tmp_path / "other")},
        dirty={"t-0": 0, "gone-0": 5},
    )
    for name, offset in (("recovery-point", 20), ("log-start", 0), ("replication", 30)):
        write_checkpoint(path / f"{name}-offset-checkpoint", {"t-0": offset, "other-0": offset, "gone-0": 7})
    (path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abc\n")
    return path


@pytest.fixture
def corpus(tmp_path):
    """Return a log directory of what Kafka wrote in several cases, and the options of its topics."""
    cases = [load_case(name, tmp_path / "cases") for name in ("plain", "transactions", "everything", "tombstones")]
    return corpus_log_dir(tmp_path / "logs", [(case, case.rounds[0]) for case in cases])


@pytest.mark.parametrize(
    ("source_as", "output_as", "strategy"),
    [(str, str, "whole"), (uri, uri, "whole"), (uri, str, "split"), (str, uri, "split")],
)
def test_an_output_is_what_cleaning_in_place_leaves_and_the_source_stays(
    corpus, source_as, output_as, strategy, tmp_path
):
    source, sets = corpus
    in_place = shutil.copytree(source, tmp_path / "in-place")
    before = image(source)
    output = tmp_path / "output"
    arguments = ("--force", "--json", "--now-ms", NOW_MS, *sets)
    ours = sediment("compact", source_as(source), "--output", output_as(output), "--strategy", strategy, *arguments)
    theirs = sediment("compact", in_place, *arguments)
    assert (ours.status, theirs.status) == (0, 0), ours.stderr
    assert image(source) == before
    found, expected = published(output), tree(in_place)
    assert read_checkpoint(output / CLEANER) == read_checkpoint(in_place / CLEANER)
    del found[CLEANER], expected[CLEANER]
    assert found == expected
    for name in found:
        if "/" in name:
            assert (output / name).stat().st_mtime_ns == (in_place / name).stat().st_mtime_ns
    volatile = {"log_dir", "seconds_by_stage", "strategy"}
    for partition, report in theirs.partitions().items():
        assert report["status"] == "compacted"
        shown = ours.partitions()[partition]
        assert {k: v for k, v in shown.items() if k not in volatile} == {
            k: v for k, v in report.items() if k not in volatile
        }
        assert (shown["log_dir"], shown["strategy"]) == (source_as(source), strategy)


def test_an_output_has_no_proof_that_no_broker_has_used_it(log_dir, tmp_path):
    (log_dir / ".kafka_cleanshutdown").write_bytes(format_clean_shutdown(NEW_DIRECTORY))
    output = tmp_path / "output"
    outcome = sediment("compact", log_dir, "--output", output, "--force", "--now-ms", NOW_MS, COMPACT)
    assert outcome.status == 0, outcome.stderr
    assert (output / ".kafka_cleanshutdown").read_bytes() == b""


def test_what_is_not_compacted_and_the_checkpoints_are_there_too(log_dir, tmp_path):
    (log_dir / "t-0" / f"{0:020d}.log.deleted").write_bytes(b"old")
    (log_dir / "gone-0.c0ffee-delete").mkdir()
    output = tmp_path / "output"
    outcome = sediment("compact", log_dir, "--output", output, "--force", "--now-ms", NOW_MS, COMPACT, "--json")
    assert outcome.status == 0, outcome.stderr
    found = published(output)
    assert outcome.partitions()["other-0"]["reason_code"] == "policy-unknown"
    other = tree(log_dir / "other-0")
    assert {name: content for name, content in found.items() if name.startswith("other-0")} == {
        f"other-0/{name}": content for name, content in other.items()
    }
    assert read_checkpoint(output / CLEANER) == {"t-0": 20}
    assert read_checkpoint(output / "recovery-point-offset-checkpoint") == {"t-0": 20, "other-0": 20}
    assert read_checkpoint(output / "log-start-offset-checkpoint") == {"t-0": 0, "other-0": 0}
    assert read_checkpoint(output / "replication-offset-checkpoint") == {"t-0": 30, "other-0": 30}
    assert sorted(path.name for path in output.iterdir()) == [
        ".kafka_cleanshutdown",
        ".lock",
        CLEANER,
        "log-start-offset-checkpoint",
        "other-0",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        MANIFEST,
        "t-0",
    ]
    assert found["t-0/partition.metadata"] == (log_dir / "t-0/partition.metadata").read_bytes()
    assert "is complete" in outcome.stderr


def test_only_selected_partitions_are_in_the_output(log_dir, tmp_path):
    outcome = sediment("compact", log_dir, "--output", tmp_path / "o", "--partition", "t-*", COMPACT, "--force")
    assert outcome.status == 0, outcome.stderr
    assert {name.partition("/")[0] for name in published(tmp_path / "o") if "/" in name} == {"t-0"}
    assert read_checkpoint(tmp_path / "o" / "recovery-point-offset-checkpoint") == {"t-0": 20}


@pytest.mark.parametrize("source_as", [str, uri])
def test_a_damaged_partition_is_there_byte_for_byte_with_its_mark(log_dir, source_as, tmp_path):
    log = log_dir / "t-0" / f"{0:020d}.log"
    damaged = bytearray(log.read_bytes())
    damaged[100] ^= 1
    log.write_bytes(bytes(damaged))
    output = tmp_path / "output"
    outcome = sediment("compact", source_as(log_dir), "--output", output, "--force", COMPACT, "--json")
    assert outcome.status == 1
    report = outcome.partitions()["t-0"]
    assert report["status"] == "quarantined"
    assert f"{source_as(log_dir)}/t-0/{0:020d}.log" in report["reason"]
    assert {name: content for name, content in published(output).items() if name.startswith("t-0")} == {
        f"t-0/{name}": content for name, content in tree(log_dir / "t-0").items()
    }
    assert not (log_dir / ".sediment-uncleanable").exists()
    again = sediment("compact", output, "--force", COMPACT, "--json")
    assert again.partitions()["t-0"]["reason"].startswith("left alone since")


def test_what_was_interrupted_is_finished_in_the_output_alone(log_dir, tmp_path):
    partition = log_dir / "t-0"
    for suffix in (".log", ".index", ".timeindex"):
        file = partition / f"{0:020d}{suffix}"
        file.rename(f"{file}.swap")
    before = image(log_dir)
    output = tmp_path / "output"
    outcome = sediment("compact", log_dir, "--output", output, "--force", COMPACT, "--json")
    assert outcome.status == 0, outcome.stderr
    assert image(log_dir) == before
    assert outcome.partitions()["t-0"]["status"] == "compacted"
    assert not any(name.endswith(".swap") for name in published(output))


@pytest.mark.parametrize("source_as", [str, uri])
def test_ap_25_the_active_segment_is_rolled_in_the_output_alone(log_dir, source_as, tmp_path):
    in_place = shutil.copytree(log_dir, tmp_path / "in-place")
    before = image(log_dir)
    arguments = ("--force", "--roll-active", "--now-ms", NOW_MS, COMPACT, "--set=other:cleanup.policy=delete")
    outcome = sediment("compact", source_as(log_dir), "--output", tmp_path / "o", *arguments)
    assert outcome.status == 0, outcome.stderr
    assert sediment("compact", in_place, *arguments).status == 0
    assert image(log_dir) == before
    expected = {name: content for name, content in tree(in_place).items() if "checkpoint" not in name.split("/")[0]}
    found = published(tmp_path / "o")
    assert f"t-0/{30:020d}.log" in found
    assert {name: found[name] for name in expected if name != "meta.properties"} == {
        name: content for name, content in expected.items() if name != "meta.properties"
    }


def test_a_dry_run_writes_nothing_and_says_the_same(log_dir, tmp_path):
    output = tmp_path / "output"
    before = image(log_dir)
    arguments = ("--output", output, "--force", "--now-ms", NOW_MS, COMPACT, "--json")
    dry = sediment("compact", log_dir, "--dry-run", *arguments)
    assert dry.status == 0, dry.stderr
    assert not output.exists()
    assert image(log_dir) == before
    real = sediment("compact", log_dir, *arguments)
    keys = ("status", "messages_written", "bytes_after", "segments", "next_dirty_offset")
    for name, report in real.partitions().items():
        assert {key: dry.partitions()[name][key] for key in keys} == {key: report[key] for key in keys}


def test_several_log_directories_become_one(tmp_path):
    logs = [
        make_log_dir(tmp_path / f"logs-{n}", {f"t-{n}": write_log(tmp_path / f"t-{n}")}, dirty={f"t-{n}": 0})
        for n in range(2)
    ]
    outcome = sediment("compact", *logs, "--output", tmp_path / "o", "--force", COMPACT, "--json")
    assert outcome.status == 0, outcome.stderr
    assert {p["log_dir"] for p in outcome.report["partitions"]} == {str(path) for path in logs}
    assert read_checkpoint(tmp_path / "o" / CLEANER) == {"t-0": 20, "t-1": 20}
    (logs[1] / ".kafka_cleanshutdown").unlink()
    refused = sediment("compact", *logs, "--output", tmp_path / "o2", "--force", COMPACT)
    assert refused.status == 2
    assert "has .kafka_cleanshutdown, so they cannot be combined into one directory" in refused.stderr
    refused = sediment("compact", logs[0], make_log_dir(tmp_path / "twin", {"t-0": tmp_path / "t-0"}), "--output", "o")
    assert refused.status == 2
    assert "both contain t-0" in refused.stderr


# ------------------------------------------------------------------------------------------------------------ refusals
def test_a_complete_output_is_refused_and_stays(log_dir, tmp_path):
    output = tmp_path / "output"
    assert sediment("compact", log_dir, "--output", output, "--force", COMPACT).status == 0
    before = image(output)
    again = sediment("compact", log_dir, "--output", output, "--force", COMPACT)
    assert again.status == 2
    assert "already complete (run " in again.stderr
    assert image(output) == before


def test_an_output_on_in_or_around_the_source_is_refused(log_dir, tmp_path):
    (tmp_path / "link").symlink_to(log_dir)
    for output in (
        log_dir,
        uri(log_dir),
        tmp_path / "link",
        log_dir / "inside",
        uri(log_dir / "in" / "side"),
        tmp_path,
    ):
        for source in (log_dir, uri(log_dir)):
            before = image(log_dir)
            outcome = sediment("compact", source, "--output", output, "--force", COMPACT)
            assert outcome.status == 2, outcome.stderr
            assert "output" in outcome.stderr
            assert image(log_dir) == before


def test_an_output_inside_another_log_directory_is_refused(log_dir, tmp_path):
    other = make_log_dir(tmp_path / "broker", {}, dirty={"t-0": 0})
    outcome = sediment("compact", log_dir, "--output", other / "backup", "--force", COMPACT)
    assert outcome.status == 2
    assert "inside the log directory" in outcome.stderr
    assert not (other / "backup").exists()


def test_a_directory_with_anything_else_in_it_is_refused(log_dir, tmp_path):
    output = tmp_path / "output"
    output.mkdir()
    (output / "letter.txt").write_text("dear")
    outcome = sediment("compact", log_dir, "--output", output, "--force", COMPACT)
    assert outcome.status == 2
    assert "not empty" in outcome.stderr
    assert tree(output) == {"letter.txt": b"dear"}
    outcome = sediment("compact", log_dir, "--output", output / "letter.txt", "--force", COMPACT)
    assert outcome.status == 2
    assert "is a file" in outcome.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--hand-off", "there"),
        ("--keep-originals", "there"),
        ("--keep-before", "there"),
        ("--max-bytes", "5"),
        ("--max-seconds", "5"),
    ],
)
def test_options_that_make_no_sense_with_an_output_are_refused(log_dir, options, tmp_path):
    outcome = sediment("compact", log_dir, "--output", tmp_path / "o", *options, COMPACT)
    assert outcome.status == 2
    assert f"{options[0]}" in outcome.stderr
    assert "--output excludes --" in outcome.stderr
    assert not (tmp_path / "o").exists()


def test_a_uri_without_an_output_is_refused(log_dir):
    outcome = sediment("compact", uri(log_dir), COMPACT)
    assert outcome.status == 2
    assert "--output" in outcome.stderr
    assert uri(log_dir) in outcome.stderr


@pytest.mark.parametrize("where", ["nosuch://host/x", "file:///no/such/directory"])
def test_a_missing_source_is_reported_by_its_uri(where, tmp_path):
    outcome = sediment("compact", where, "--output", tmp_path / "o", COMPACT)
    assert outcome.status == 2
    assert where in outcome.stderr
    assert not (tmp_path / "o").exists()


def test_an_output_in_use_is_refused(log_dir, tmp_path):
    output = tmp_path / "output"
    output.mkdir()
    with DirectoryLock(output):
        outcome = sediment("compact", log_dir, "--output", output, "--force", COMPACT)
    assert outcome.status == 1
    assert "holds the lock" in outcome.stderr
    assert os.listdir(output) == [".lock"]


# ------------------------------------------------------------------------------------------------- sources that change
def test_a_source_that_changes_meanwhile_leaves_the_output_incomplete(log_dir, tmp_path, monkeypatch):
    output = tmp_path / "output"
    original = to_output.run_on_executors

    def run_and_append(*arguments, **named):
        yield from original(*arguments, **named)
        with (log_dir / "other-0" / f"{20:020d}.log").open("ab") as active:
            active.write(b"x")

    monkeypatch.setattr(to_output, "run_on_executors", run_and_append)
    outcome = sediment("compact", log_dir, "--output", output, "--force", COMPACT, "--json")
    assert outcome.status == 1
    assert outcome.partitions()["other-0"]["reason_code"] == "source-changed"
    assert outcome.partitions()["t-0"]["status"] == "compacted"
    assert "is not complete" in outcome.stderr
    assert not (output / MANIFEST).exists()
    monkeypatch.undo()
    again = sediment("compact", log_dir, "--output", output, "--force", COMPACT)
    assert again.status == 0, again.stderr
    assert "starting over" in again.stderr
    published(output)


def test_the_output_of_an_unclean_directory_is_as_unclean(log_dir, tmp_path):
    (log_dir / ".kafka_cleanshutdown").unlink()
    with (log_dir / "t-0" / f"{20:020d}.log").open("ab") as active:
        active.write(b"torn")
    outcome = sediment("compact", log_dir, "--output", tmp_path / "o", "--force", COMPACT, "--json")
    assert outcome.status == 0, outcome.stderr
    found = published(tmp_path / "o")
    assert ".kafka_cleanshutdown" not in found
    active = f"t-0/{20:020d}.log"
    assert found[active] == (log_dir / active).read_bytes()


def test_the_owner_of_secrets_in_a_uri_does_not_find_them_in_messages(log_dir):
    where = "s3://AKIDEXAMPLE:wJalrXUtnFEMI@bucket/logs?scheme=http&endpoint_override=127.0.0.1:1&connect_timeout=1"
    outcome = sediment("compact", log_dir, "--output", where, "--force", COMPACT)
    assert outcome.status in (1, 2)
    assert "wJalrXUtnFEMI" not in outcome.stderr
    assert "s3://bucket/logs" in outcome.stderr


# ------------------------------------------------------------------------------------------------ crashes, full disks


def test_killed_in_the_middle_it_leaves_no_manifest_and_the_next_run_starts_over(log_dir, tmp_path):
    before = image(log_dir)
    output, straight = tmp_path / "output", tmp_path / "straight"
    arguments = ("--force", "--now-ms", NOW_MS, COMPACT)
    slow = "--set=log.cleaner.io.max.bytes.per.second=500"
    kill_when(lambda: list(output.glob("other-0/*.log*")), "compact", log_dir, "--output", output, slow, *arguments)
    assert not (output / MANIFEST).exists()
    assert image(log_dir) == before
    again = sediment("compact", log_dir, "--output", output, *arguments)
    assert again.status == 0, again.stderr
    assert "left incomplete by run" in again.stderr
    assert sediment("compact", log_dir, "--output", straight, *arguments).status == 0
    assert published(output) == published(straight)
    assert not (output / ".sediment-output").exists()


@pytest.fixture
def one_process(monkeypatch):
    """Tasks one after the other in this process, where faults can be put under them."""

    def run_in_process(_sc, items, perform, weight, *, group, is_stopped, **_more):
        assert not is_stopped()
        for number, item in enumerate(sorted(items, key=weight)):
            yield [TaskResult(pickle.loads(pickle.dumps(item)), perform(item, f"{group}.{number}"), None)]

    monkeypatch.setattr(to_output, "run_on_executors", run_in_process)


@pytest.mark.parametrize("full_at", range(6))
def test_a_full_disk_leaves_the_output_incomplete_and_the_next_run_starts_over(
    log_dir, full_at, one_process, tmp_path, monkeypatch
):
    before = image(log_dir)
    write, written = Store.write, []

    def write_until_full(self, name, chunks):
        if name.startswith(("t-0", "other-0")):
            written.append(name)
            if len(written) > 4 * full_at:
                write(self, name, [b"half"])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{self}/{name}")
        return write(self, name, chunks)

    output = tmp_path / "output"
    arguments = ("--output", output, "--force", "--now-ms", NOW_MS, COMPACT)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "write", write_until_full)
        outcome = sediment("compact", log_dir, *arguments, "--json")
    assert outcome.status == 1
    assert "no-space" in {p["reason_code"] for p in outcome.report["partitions"]}
    assert "is not complete; run again to start over" in outcome.stderr
    assert not (output / MANIFEST).exists()
    assert image(log_dir) == before
    again = sediment("compact", log_dir, *arguments)
    assert again.status == 0, again.stderr
    published(output)


def test_a_scratch_disk_that_is_too_small_is_reported_before_any_download(log_dir, one_process, tmp_path, monkeypatch):
    monkeypatch.setattr(Fs, "free_bytes", lambda self, path: 10)
    arguments = ("--force", "--roll-active", COMPACT, "--json")
    outcome = sediment("compact", uri(log_dir), "--output", tmp_path / "o", *arguments)
    assert outcome.status == 1
    (reason,) = {p["reason"] for p in outcome.report["partitions"] if p["partition"] == "t-0"}
    assert "--scratch" in reason


def test_nothing_is_left_in_the_scratch_directory(log_dir, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    arguments = ("--output", tmp_path / "o", "--scratch", scratch, "--force", COMPACT)
    assert sediment("compact", uri(log_dir), *arguments).status == 0
    assert list(scratch.iterdir()) == []


def test_a_signal_once_every_partition_is_written_still_ends_with_a_complete_output(log_dir, tmp_path, monkeypatch):
    original = to_output.run_on_executors

    def run_and_kill(*given, **more):
        yield from original(*given, **more)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(to_output, "run_on_executors", run_and_kill)
    outcome = sediment("compact", log_dir, "--output", tmp_path / "output", "--force", COMPACT)
    assert outcome.status == 0, outcome.stderr
    assert (tmp_path / "output" / MANIFEST).exists()


def test_an_os_signal_ends_the_run_with_an_incomplete_output(log_dir, tmp_path):
    output = tmp_path / "output"
    slow = "--set=log.cleaner.io.max.bytes.per.second=500"
    running = subprocess.Popen(
        [sys.executable, "-m", "sediment.jobs.cli", "compact", log_dir, "--output", output, slow, "--force", COMPACT],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: list(output.glob("other-0/*.log*")) or running.poll() is not None)
        running.send_signal(signal.SIGTERM)
        stdout, stderr = running.communicate(timeout=LIMIT_SECONDS)
    finally:
        running.kill()
    assert running.returncode == 1, stderr
    assert "stopped" in stdout, stderr
    assert not (output / MANIFEST).exists()
