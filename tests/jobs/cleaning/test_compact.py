"""`sediment compact` for people and scripts: what it refuses, with which message, and that nothing changes then."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from sediment.jobs.rewriting import run as rewriting_run
from sediment.segment_io.fs import Fs
from tests.corpus import load_case
from tests.jobs.log_dirs import (
    make_log_dir,
    read_checkpoint,
    sediment,
    sediment_process,
    topic_sets,
    tree,
    write_checkpoint,
)
from tests.segments import batch_bytes, write_segment
from tests.waiting import LIMIT_SECONDS, wait_until

NOW_MS = 1_700_001_000_000


@pytest.fixture
def plain(tmp_path):
    return load_case("plain", tmp_path / "corpus")


@pytest.fixture
def log_dir(tmp_path, plain):
    return make_log_dir(tmp_path / "logs", {plain.partition: plain.before})


def compact(log_dir, plain, *options):
    return sediment("compact", log_dir, "--json", "--now-ms", NOW_MS, *topic_sets("plain", plain.configs), *options)


def assert_refused(outcome, status, *words):
    assert outcome.status == status, outcome.stderr
    said = "\n".join(line for line in outcome.stderr.strip().splitlines() if "below Kafka's minimum" not in line)
    for word in words:
        assert word in said
    assert "Traceback" not in said
    assert said.count("\n") == 0, said


# --------------------------------------------------------------------------------------------------------- what it does
def test_the_table_says_what_happened(log_dir, plain):
    outcome = sediment("compact", log_dir, "--now-ms", NOW_MS, *topic_sets("plain", plain.configs))
    assert outcome.status == 0, outcome.stderr
    for word in ("plain-0", "compacted", "2,000 → 150", "172.6 kB → 13.8 kB", "1 compacted"):
        assert word in outcome.stdout, outcome.stdout


def test_the_json_keeps_its_contract(log_dir, plain):
    outcome = compact(log_dir, plain)
    report = outcome.report
    assert (report["schema"], report["command"], report["now_ms"]) == (1, "compact", NOW_MS)
    (partition,) = report["partitions"]
    assert set(partition) >= {
        "partition",
        "log_dir",
        "status",
        "reason_code",
        "reason",
        "strategy",
        "first_dirty_offset",
        "first_uncleanable_offset",
        "next_dirty_offset",
        "messages_read",
        "messages_written",
        "bytes_before",
        "bytes_after",
        "segments",
        "groups_rewritten",
        "groups_skipped",
        "corrupt_batches",
    }
    assert partition["strategy"] == "whole"
    assert partition["bytes_after"] == sum(f.stat().st_size for f in (log_dir / "plain-0").glob("*.log"))
    assert partition["segments"] == sorted(int(f.stem) for f in (log_dir / "plain-0").glob("*.log"))


def test_partitions_are_committed_together_and_one_that_cannot_be_is_left_alone(tmp_path, plain, monkeypatch):
    class OneDiskAreaIsBroken(Fs):
        def sync_file(self, path: Path) -> None:
            if path.parent.name == "plain-1" and path.name.endswith(".part"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            super().sync_file(path)

    monkeypatch.setattr(rewriting_run, "Fs", OneDiskAreaIsBroken)
    log_dir = make_log_dir(tmp_path / "logs", {f"plain-{number}": plain.before for number in range(3)})
    before = tree(log_dir / "plain-1")
    outcome = compact(log_dir, plain)
    partitions = outcome.partitions()
    assert {name: partition["status"] for name, partition in partitions.items()} == {
        "plain-0": "compacted",
        "plain-1": "failed",
        "plain-2": "compacted",
    }
    assert "Input/output error" in partitions["plain-1"]["reason"]
    assert tree(log_dir / "plain-1") == before
    assert set(read_checkpoint(log_dir / "cleaner-offset-checkpoint")) == {"plain-0", "plain-2"}


def test_a_stop_between_two_groups_reports_what_is_replaced(tmp_path, plain, monkeypatch):
    class InterruptedFs(Fs):
        def rename(self, source: Path, target: Path) -> None:
            super().rename(source, target)
            if source.name.endswith(".log.swap"):
                signal.raise_signal(signal.SIGTERM)

    log_dir = make_log_dir(tmp_path / "logs", {plain.partition: plain.before})
    whole = compact(log_dir, plain, "--dry-run").partitions()["plain-0"]
    assert whole["groups_rewritten"] > 2
    monkeypatch.setattr(rewriting_run, "Fs", InterruptedFs)
    outcome = compact(log_dir, plain)
    partition = outcome.partitions()["plain-0"]
    assert (outcome.status, partition["status"], partition["reason_code"]) == (1, "failed", "stopped")
    assert partition["reason"] == (
        f"1 of {whole['groups_rewritten']} groups of segments is replaced; "
        "the run was stopped before this partition was done"
    )
    logs = sorted((log_dir / "plain-0").glob("*.log"))
    assert partition["segments"] == [int(log.stem) for log in logs]
    assert whole["bytes_after"] < partition["bytes_after"] < partition["bytes_before"]
    assert partition["bytes_after"] == sum(log.stat().st_size for log in logs)
    assert partition["next_dirty_offset"] is None
    assert not (log_dir / "cleaner-offset-checkpoint").exists()

    again = make_log_dir(tmp_path / "again", {plain.partition: plain.before})
    shown = sediment("compact", again, "--now-ms", NOW_MS, *topic_sets("plain", plain.configs)).stdout
    assert "stopped" in shown and "172.6 kB → " in shown and "172.6 kB shrank to " in shown


@pytest.mark.parametrize("keeps_originals", [False, True])
def test_an_old_file_that_is_left_after_a_stop_is_reported_once(tmp_path, plain, monkeypatch, keeps_originals):
    class InterruptedFs(Fs):
        def rename(self, source: Path, target: Path) -> None:
            super().rename(source, target)
            if source.name.endswith(".log.swap"):
                signal.raise_signal(signal.SIGTERM)

        def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
            if path.name.endswith(".log.deleted"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            super().unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(rewriting_run, "Fs", InterruptedFs)
    log_dir = make_log_dir(tmp_path / "logs", {plain.partition: plain.before})
    more = [f"--keep-originals={tmp_path / 'kept'}"] if keeps_originals else []
    partition = compact(log_dir, plain, *more).partitions()["plain-0"]
    assert (partition["status"], partition["reason_code"]) == ("failed", "stopped")
    assert "the run was stopped before this partition was done; the group of segments at offset" in partition["reason"]
    assert partition["reason"].count("could not be removed") == 1


def test_a_second_run_has_nothing_to_do_even_with_force(log_dir, plain):
    compact(log_dir, plain)
    before = tree(log_dir)
    outcome = compact(log_dir, plain, "--force")
    assert outcome.status == 0
    assert outcome.partitions()["plain-0"]["reason_code"] == "nothing-dirty"
    assert tree(log_dir) == before


def test_from_start_ignores_the_checkpoint_and_changes_no_byte_the_second_time(log_dir, plain):
    compact(log_dir, plain)
    before = tree(log_dir)
    outcome = compact(log_dir, plain, "--force", "--from-start")
    assert outcome.partitions()["plain-0"]["status"] == "compacted"
    after = compact(log_dir, plain, "--force", "--from-start").partitions()["plain-0"]
    assert (after["groups_rewritten"], after["messages_written"]) == (0, 150)
    assert {name for name in tree(log_dir) if name.endswith(".log")} <= set(before)


def test_a_dry_run_reports_the_same_and_changes_nothing(log_dir, plain):
    before = tree(log_dir)
    dry = compact(log_dir, plain, "--dry-run").partitions()
    assert tree(log_dir) == before
    real = compact(log_dir, plain).partitions()
    for report in (dry["plain-0"], real["plain-0"]):
        assert set(report.pop("seconds_by_stage")) == {"view", "plan", "clean"}
    assert dry == real


def test_the_active_segment_of_a_copy_with_nothing_but_logs_is_rolled_and_cleaned(tmp_path):
    for base in (0, 4):
        write_segment(tmp_path / "logs" / "t-0", base, [batch_bytes(base, "ab"), batch_bytes(base + 2, "ab")])
    for path in (tmp_path / "logs" / "t-0").glob("*index"):
        path.unlink()
    arguments = (
        "compact",
        tmp_path / "logs",
        "--json",
        *topic_sets("t", {"cleanup.policy": "compact"}),
        "--roll-active",
    )
    tried, done = sediment(*arguments, "--force", "--dry-run"), sediment(*arguments, "--force")
    for outcome in (tried, done):
        (row,) = outcome.report["partitions"]
        assert (row["status"], row["reason"], row["messages_written"]) == ("compacted", None, 2)
    assert sorted(path.name for path in (tmp_path / "logs" / "t-0").glob("*.log"))[-1] == f"{8:020d}.log"


def test_a_low_dirty_ratio_is_left_alone_without_force(log_dir, plain):
    write_checkpoint(log_dir / "cleaner-offset-checkpoint", {"plain-0": 1900})
    assert compact(log_dir, plain).partitions()["plain-0"]["reason_code"] == "dirty-ratio"
    assert compact(log_dir, plain, "--force").partitions()["plain-0"]["status"] == "compacted"


def test_the_checkpoint_keeps_other_entries(log_dir, plain):
    write_checkpoint(log_dir / "cleaner-offset-checkpoint", {"other-3": 77})
    compact(log_dir, plain)
    assert read_checkpoint(log_dir / "cleaner-offset-checkpoint") == {"other-3": 77, "plain-0": 2000}


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (["--set=plain:cleanup.policy=delete"], "not-compacted", "cleanup.policy is delete"),
        (["--set=plain:cleanup.policy="], "not-compacted", "cleanup.policy is empty"),
        (["--broker-defaults"], "not-compacted", "cleanup.policy is delete"),
        ([], "policy-unknown", "cleanup.policy is not stated"),
    ],
)
def test_a_policy_without_compact_is_left_alone(log_dir, options, code, reason):
    before = tree(log_dir)
    outcome = sediment("compact", log_dir, "--json", *options)
    assert outcome.status == 0
    report = outcome.partitions()["plain-0"]
    assert report["reason_code"] == code and report["reason"].startswith(reason)
    assert tree(log_dir) == before


def test_partitions_are_selected_by_glob_over_several_directories(tmp_path, plain):
    first = make_log_dir(tmp_path / "a", {"plain-0": plain.before, "plain-1": plain.before})
    second = make_log_dir(tmp_path / "b", {"plain-2": plain.before, "zz-0": plain.before})
    outcome = sediment(
        "compact", first, second, "--partition", "plain-[12]", "--json", "--set=plain:cleanup.policy=compact"
    )
    assert sorted(outcome.partitions()) == ["plain-1", "plain-2"]
    assert {p["status"] for p in outcome.partitions().values()} == {"compacted"}


def test_data_is_cleaned_when_its_abort_marker_lies_in_the_active_segment(tmp_path):
    from tests.logs import LogShape, write_segment
    from tests.twin.batches import Record, encode_batch, parse_batch
    from tests.twin.snapshots import ProducerStates, encode_snapshot

    transaction = {"producer_id": 5, "producer_epoch": 0, "transactional": True, "leader_epoch": 0}
    data = encode_batch([Record(0, NOW_MS, b"a", b"1")], base_offset=0, base_sequence=0, **transaction)
    kept = encode_batch([Record(1, NOW_MS, b"b", b"1")], base_offset=1, leader_epoch=0)
    abort = encode_batch([Record(2, NOW_MS, b"\0\0\0\0", b"\0\0\0\0\0\7")], base_offset=2, control=True, **transaction)
    directory = tmp_path / "source"
    directory.mkdir()
    states = ProducerStates()
    write_segment(directory, 0, [parse_batch(data), parse_batch(kept)], states, LogShape())
    write_segment(directory, 2, [parse_batch(abort)], states, LogShape())
    (directory / f"{3:020d}.snapshot").write_bytes(encode_snapshot(states.entries))
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": directory})
    outcome = sediment("compact", log_dir, "--json", "--force", "--now-ms", NOW_MS, "--set=t:cleanup.policy=compact")
    assert outcome.status == 0, outcome.stderr
    partition = outcome.partitions()["t-0"]
    # The data batch is the last of its producer, so its header stays; its record goes.
    assert (partition["messages_read"], partition["messages_written"]) == (2, 1)


def test_owner_group_and_mode_of_the_replaced_files_are_kept(log_dir, plain):
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    nobody = pwd.getpwnam("nobody")
    for file in (log_dir / "plain-0").iterdir():
        os.chown(file, nobody.pw_uid, nobody.pw_gid)
        file.chmod(0o640)
    assert compact(log_dir, plain).status == 0
    for file in (log_dir / "plain-0").iterdir():
        status = file.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (nobody.pw_uid, nobody.pw_gid, 0o640)


def test_a_new_cleaner_checkpoint_belongs_to_the_owner_of_the_log_directory(log_dir, plain):
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    nobody = pwd.getpwnam("nobody")
    for path in (log_dir, *log_dir.rglob("*")):
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    assert not (log_dir / "cleaner-offset-checkpoint").exists()
    assert compact(log_dir, plain).status == 0
    assert (log_dir / "cleaner-offset-checkpoint").stat().st_uid == nobody.pw_uid


def leave_complete_swap(partition: Path) -> None:
    """Write the files of a swap whose new segment was complete when the process died."""
    for suffix in (".log", ".index", ".timeindex"):
        name = f"{0:020d}{suffix}"
        (partition / (name + ".swap")).write_bytes((partition / name).read_bytes())
        (partition / name).unlink()


def test_what_was_interrupted_is_finished_before_anything_else(log_dir, plain, tmp_path):
    untouched = make_log_dir(tmp_path / "untouched", {plain.partition: plain.before})
    leave_complete_swap(log_dir / "plain-0")
    (log_dir / "plain-0" / f"{448:020d}.log.an-old-run-0.part").write_bytes(b"half")
    assert compact(log_dir, plain).status == 0
    assert compact(untouched, plain).status == 0
    assert tree(log_dir / "plain-0") == tree(untouched / "plain-0")


def test_a_dry_run_leaves_what_was_interrupted_to_a_real_one(log_dir, plain):
    leave_complete_swap(log_dir / "plain-0")
    before = tree(log_dir)
    assert compact(log_dir, plain, "--dry-run").partitions()["plain-0"]["reason_code"] == "interrupted"
    assert tree(log_dir) == before


def test_files_whose_deletion_began_and_parts_of_a_killed_run_are_no_hindrance_to_a_dry_run(log_dir, plain):
    for name in (f"{0:020d}.log.deleted", f"{0:020d}.log.an-old-run-0.part"):
        (log_dir / "plain-0" / name).write_bytes(b"gone")
    before = tree(log_dir)
    dry = compact(log_dir, plain, "--dry-run").partitions()["plain-0"]
    assert tree(log_dir) == before
    done = compact(log_dir, plain).partitions()["plain-0"]
    assert dry["status"] == "compacted"
    assert {**dry, "seconds_by_stage": None} == {**done, "seconds_by_stage": None}
    assert not [path for path in (log_dir / "plain-0").iterdir() if path.suffix in (".deleted", ".part")]


# ----------------------------------------------------------------------------------------------------------- bad input
def test_a_checkpoint_that_cannot_be_read_is_one_sentence(log_dir, plain):
    (log_dir / "cleaner-offset-checkpoint").mkdir()
    assert_refused(compact(log_dir, plain), 1, "cleaner-offset-checkpoint")


def test_a_missing_directory_is_refused(tmp_path):
    assert_refused(sediment("compact", tmp_path / "nowhere"), 2, "no such directory", str(tmp_path / "nowhere"))


def test_a_directory_that_is_not_a_log_directory_is_refused(tmp_path, caplog):
    (tmp_path / "letters").mkdir()
    assert_refused(sediment("compact", tmp_path), 2, "not a Kafka log directory")
    assert not [message for message in caplog.messages if "letters" in message]


def test_a_partition_directory_is_refused_with_what_to_write_instead(log_dir):
    assert_refused(sediment("compact", log_dir / "plain-0"), 2, "one partition", "--partition plain-0")


def test_an_unknown_key_is_refused_with_the_nearest_known_one(log_dir):
    before = tree(log_dir)
    assert_refused(sediment("compact", log_dir, "--set=cleanup.polcy=compact"), 2, "cleanup.polcy", "cleanup.policy")
    assert tree(log_dir) == before


def test_one_policy_for_several_topics_is_refused(tmp_path, plain):
    log_dir = make_log_dir(tmp_path / "logs", {"a-0": plain.before, "b-0": plain.before})
    before = tree(log_dir)
    assert_refused(sediment("compact", log_dir, "--set=cleanup.policy=compact"), 2, "cleanup.policy")
    assert tree(log_dir) == before


def test_a_directory_in_use_is_refused(log_dir, plain):
    before = tree(log_dir)
    with (log_dir / ".lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        outcome = sediment_process("compact", log_dir, *topic_sets("plain", plain.configs))
    assert_refused(outcome, 1, "holds the lock", str(log_dir))
    assert tree(log_dir) == before


def test_a_corrupt_batch_leaves_its_partition_alone_and_the_others_go_on(tmp_path, plain):
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": plain.before, "plain-1": plain.before})
    segment = log_dir / "plain-1" / f"{448:020d}.log"
    content = bytearray(segment.read_bytes())
    content[5000] ^= 1
    segment.write_bytes(bytes(content))
    before = tree(log_dir / "plain-1")
    outcome = compact(log_dir, plain)
    assert outcome.status == 1
    partitions = outcome.partitions()
    assert partitions["plain-0"]["status"] == "compacted"
    bad = partitions["plain-1"]
    assert (bad["status"], bad["reason_code"]) == ("quarantined", "corrupt-batch")
    for word in ("CRC", "plain-1", str(segment), "position", "offset"):
        assert word in bad["reason"]
    assert tree(log_dir / "plain-1") == before
    assert "plain-1" not in read_checkpoint(log_dir / "cleaner-offset-checkpoint")


def test_an_unclean_directory_is_left_alone_until_recovered(tmp_path, plain):
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": plain.before}, clean=False)
    write_checkpoint(log_dir / "recovery-point-offset-checkpoint", {"plain-0": 0})
    before = tree(log_dir / "plain-0")
    partition = compact(log_dir, plain).partitions()["plain-0"]
    assert (partition["status"], partition["reason_code"]) == ("skipped", "unclean")
    assert "recover" in partition["reason"]
    assert tree(log_dir / "plain-0") == before


def test_what_lies_below_the_recovery_point_of_an_unclean_directory_is_cleaned(tmp_path, plain, caplog):
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": plain.before}, clean=False)
    write_checkpoint(log_dir / "recovery-point-offset-checkpoint", {"plain-0": 1400})
    partition = compact(log_dir, plain).partitions()["plain-0"]
    assert (partition["status"], partition["next_dirty_offset"]) == ("compacted", 1345)
    assert [message for message in caplog.messages if "was not clean" in message and str(log_dir) in message]


def test_a_bare_copy_is_not_said_to_be_unclean(tmp_path, plain, caplog):
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": plain.before}, clean=False)
    assert compact(log_dir, plain).partitions()["plain-0"]["status"] == "compacted"
    assert not [message for message in caplog.messages if "clean" in message]


def test_a_torn_tail_of_the_active_segment_is_not_an_error(tmp_path, plain):
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": plain.before})
    active = log_dir / "plain-0" / f"{2000:020d}.log"
    torn = (log_dir / "plain-0" / f"{1787:020d}.log").read_bytes()[:1000]
    active.write_bytes(torn)
    outcome = compact(log_dir, plain)
    assert outcome.partitions()["plain-0"]["status"] == "compacted"
    assert active.read_bytes() == torn


def test_a_bare_copy_without_any_checkpoint_is_cleaned(tmp_path, plain):
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": plain.before}, clean=False)
    assert compact(log_dir, plain).partitions()["plain-0"]["messages_written"] == 150


def test_nothing_above_the_high_watermark_is_touched(tmp_path, plain):
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": plain.before, "plain-1": plain.before})
    write_checkpoint(log_dir / "replication-offset-checkpoint", {"plain-0": 1000})
    untouched = [(log_dir / "plain-0" / f"{base:020d}.log").read_bytes() for base in (894, 1345, 1787)]
    partitions = compact(log_dir, plain).partitions()
    assert partitions["plain-0"]["first_uncleanable_offset"] == 894
    assert [(log_dir / "plain-0" / f"{base:020d}.log").read_bytes() for base in (894, 1345, 1787)] == untouched
    assert partitions["plain-1"]["reason_code"] == "no-high-watermark"


@contextmanager
def small_disk(path: Path, size: str):
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)], check=False)
    if mounted.returncode:
        pytest.skip("this user cannot mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize(("size", "words"), [("164k", "bytes free"), ("228k", "the disk is full")])
def test_a_full_disk_changes_nothing(tmp_path, size, words):
    case = load_case("all-unique", tmp_path / "corpus")
    disk = tmp_path / "disk"
    with small_disk(disk, size):
        log_dir = disk / "logs"
        try:
            make_log_dir(log_dir, {case.partition: case.before})
        except OSError:
            pytest.skip("the pages of this kernel are larger than the test reckons with")
        before = tree(log_dir / case.partition)
        outcome = sediment(
            "compact",
            log_dir,
            "--json",
            "--force",
            *topic_sets(case.partition.rpartition("-")[0], {**case.configs, "index.interval.bytes": "100"}),
        )
        partition = outcome.partitions()[case.partition]
        assert outcome.status == 1
        assert (partition["status"], partition["reason_code"]) == ("failed", "no-space")
        assert words in partition["reason"]
        assert tree(log_dir / case.partition) == before


def test_a_disk_that_holds_what_survives_is_large_enough(tmp_path):
    disk = tmp_path / "disk"
    with small_disk(disk, "200k"):
        path = tmp_path / "t-0"
        write_segment(path, 0, [batch_bytes(offset, "k", value=bytes(1000)) for offset in range(120)])
        write_segment(path, 120)
        log_dir = make_log_dir(disk / "logs", {"t-0": path})
        assert shutil.disk_usage(disk).free < (path / f"{0:020d}.log").stat().st_size
        outcome = sediment("compact", log_dir, "--json", "--set=t:cleanup.policy=compact")
        assert outcome.partitions()["t-0"]["messages_written"] == 1, outcome.stdout


def without_privileges(*arguments):
    """Run the command as root without the capabilities that let root ignore owners and modes."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can lay down privileges, with setpriv")
    dropped = "--bounding-set=-chown,-dac_override,-dac_read_search,-fowner"
    return subprocess.run(
        ["setpriv", dropped, sys.executable, "-m", "sediment.jobs.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def change_owner_to_nobody(*paths):
    nobody = pwd.getpwnam("nobody")
    for path in paths:
        os.chown(path, nobody.pw_uid, nobody.pw_gid)


def test_no_permission_is_said_and_nothing_changes(log_dir, plain):
    change_owner_to_nobody(log_dir)
    before = tree(log_dir)
    finished = without_privileges("compact", log_dir, *topic_sets("plain", plain.configs))
    assert finished.returncode == 1
    assert "permission" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert tree(log_dir) == before


def test_an_owner_that_cannot_be_kept_is_said_and_nothing_changes(log_dir, plain):
    change_owner_to_nobody(*(log_dir / "plain-0").iterdir())
    before = tree(log_dir / "plain-0")
    finished = without_privileges("compact", log_dir, "--json", *topic_sets("plain", plain.configs))
    assert finished.returncode == 1, finished.stderr
    (partition,) = json.loads(finished.stdout)["partitions"]
    assert (partition["status"], partition["reason_code"]) == ("failed", "owner-not-kept")
    assert "owner" in partition["reason"]
    assert tree(log_dir / "plain-0") == before


def test_sigterm_finishes_reports_and_exits_1(tmp_path):
    case = load_case("everything", tmp_path / "corpus")
    log_dir = make_log_dir(tmp_path / "logs", {f"everything-{number}": case.before for number in range(600)})
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "sediment.jobs.cli", "compact", str(log_dir), "--json", "--force"),
            *topic_sets("everything", case.configs),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: (log_dir / "cleaner-offset-checkpoint").exists() or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 1, stderr
    partitions = json.loads(stdout)["partitions"]
    assert len(partitions) == 600
    stopped = [p for p in partitions if p["reason_code"] == "stopped"]
    assert stopped
    assert {p["reason_code"] for p in partitions} == {None, "stopped"}
    changed = [p for p in stopped if tree(log_dir / p["partition"]) != tree(case.before)]
    assert len(changed) <= 16  # the run commits up to 16 partitions at the same time
    assert all(
        "segments is replaced" in each["reason"] or "segments are replaced" in each["reason"] for each in changed
    )
    assert not list(log_dir.rglob("*.part"))
