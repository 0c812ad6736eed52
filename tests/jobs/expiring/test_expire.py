"""`sediment expire`: the deleted segments, the remaining files, and the messages."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable

from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.expire import expire as run_expire
from sediment.jobs.settings.resolve import Settings
from tests.jobs.expiring.expired_logs import LOG_START, NAME, bases, deleted, make_log
from tests.jobs.log_dirs import read_checkpoint, sediment, tree, write_checkpoint
from tests.segments import NOW_MS, batch_bytes, write_segment, write_snapshot
from tests.twin.snapshots import ProducerEntry, parse_snapshot
from tests.waiting import wait_until

HIGH_WATERMARK = "replication-offset-checkpoint"
BASE = ("--json", "--quiet", "--broker-defaults")


def expire(log_dir: Path, *sets: str, now_ms: int = NOW_MS, more: tuple[object, ...] = ()) -> dict:
    outcome = sediment("expire", log_dir, *BASE, f"--now-ms={now_ms}", *(f"--set={s}" for s in sets), *more)
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    return outcome.partitions()[NAME]


@pytest.mark.parametrize(
    ("retention_bytes", "gone", "left", "start"),
    [
        (1080, [], [0, 5, 10], 0),
        (1079, [], [0, 5, 10], 0),
        (721, [], [0, 5, 10], 0),
        (720, [0], [5, 10], 5),
        (719, [0], [5, 10], 5),
        (360, [0, 5], [10], 10),
        (0, [0, 5, 10], [15], 15),
    ],
)
def test_rt_01_segments_go_while_the_rest_holds_retention_bytes(tmp_path, retention_bytes, gone, left, start):
    directory = make_log(tmp_path)
    report = expire(tmp_path, f"retention.bytes={retention_bytes}", "retention.ms=-1")
    assert (deleted(report), report["segments"], bases(directory)) == (gone, left, left)
    assert report["log_start_offset"] == start
    assert report["bytes_after"] == sum(path.stat().st_size for path in directory.glob("*.log"))


@pytest.mark.parametrize(("high_watermark", "gone"), [(0, []), (5, [0]), (9, [0]), (10, [0, 5])])
@pytest.mark.parametrize("rule", [("retention.bytes=0", "retention.ms=-1"), ("retention.ms=1000",)])
def test_rt_02_nothing_above_the_high_watermark_goes(tmp_path, high_watermark, gone, rule):
    directory = make_log(tmp_path, times_ms=(NOW_MS - 1001,) * 3)
    write_checkpoint(tmp_path / HIGH_WATERMARK, {NAME: high_watermark})
    assert deleted(expire(tmp_path, *rule)) == gone
    assert bases(directory) == [base for base in (0, 5, 10) if base not in gone]


@pytest.mark.parametrize(("age_ms", "gone", "left"), [(1000, [], [0, 5, 10]), (1001, [0, 5, 10], [15])])
def test_rt_03_segments_older_than_retention_ms_go(tmp_path, age_ms, gone, left):
    directory = make_log(tmp_path, times_ms=(NOW_MS - age_ms,) * 3)
    report = expire(tmp_path, "retention.ms=1000")
    assert (deleted(report), bases(directory)) == (gone, left)
    if gone:
        assert (directory / f"{15:020d}.log").stat().st_size == 0
        assert report["log_start_offset"] == report["log_end_offset"] == 15
        assert {segment["rule"] for segment in report["deleted_segments"]} == {"retention.ms"}


def test_rt_04_with_a_file_delete_delay_the_files_wait_under_deleted_until_the_next_start(tmp_path):
    directory = make_log(tmp_path, times_ms=(NOW_MS - 1001,) * 3)
    names = {path.name for path in directory.iterdir()} - {f"{15:020d}.snapshot"}
    expire(tmp_path, "retention.ms=1000", "file.delete.delay.ms=60000")
    left = {path.name for path in directory.iterdir()}
    assert {name for name in left if name.endswith(".deleted")} == {f"{name}.deleted" for name in names}
    live = {f"{15:020d}{kind}" for kind in (".log", ".index", ".timeindex", ".snapshot")}
    assert {name for name in left if not name.endswith(".deleted")} == live
    expire(tmp_path, "retention.ms=1000", "file.delete.delay.ms=60000")
    assert {path.name for path in directory.iterdir()} == live


def test_rt_04_without_a_delay_asked_for_the_files_go_at_once(tmp_path):
    directory = make_log(tmp_path, times_ms=(NOW_MS - 1001,) * 3)
    expire(tmp_path, "retention.ms=1000")
    assert not list(directory.glob("*.deleted"))


def test_rt_05_the_time_rule_stops_at_the_first_segment_that_is_not_expired(tmp_path):
    directory = make_log(tmp_path, times_ms=(NOW_MS - 5000, NOW_MS, NOW_MS - 5000))
    assert deleted(expire(tmp_path, "retention.ms=1000")) == [0]
    assert bases(directory) == [5, 10]


def test_rt_06_without_limits_nothing_ever_goes(tmp_path):
    make_log(tmp_path)
    before = tree(tmp_path)
    report = expire(tmp_path, "retention.ms=-1", "retention.bytes=-1", now_ms=NOW_MS * 100)
    assert (report["status"], report["reason_code"]) == ("skipped", "nothing-to-delete")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("policy", ["compact", ""])
def test_rt_07_without_delete_only_the_log_start_offset_counts(tmp_path, policy):
    directory = make_log(tmp_path)
    sets = (f"cleanup.policy={policy}", "retention.ms=0", "retention.bytes=0")
    assert deleted(expire(tmp_path, *sets, now_ms=NOW_MS * 2)) == []
    write_checkpoint(tmp_path / LOG_START, {NAME: 5})
    assert deleted(expire(tmp_path, *sets, now_ms=NOW_MS * 2)) == [0]
    assert bases(directory) == [5, 10]


@pytest.mark.parametrize(
    ("start", "gone", "entries"), [(1, [], {NAME: 1}), (6, [0], {NAME: 6}), (15, [0, 5], {NAME: 15}), (10, [0, 5], {})]
)
def test_rt_08_what_lies_below_the_log_start_goes_and_the_start_stays(tmp_path, start, gone, entries):
    directory = make_log(tmp_path)
    write_checkpoint(tmp_path / LOG_START, {NAME: start, "other-1": 3})
    report = expire(tmp_path, "retention.ms=-1")
    assert (deleted(report), report["log_start_offset"]) == (gone, start)
    assert bases(directory) == [base for base in (0, 5, 10) if base not in gone]
    assert read_checkpoint(tmp_path / LOG_START) == {**entries, "other-1": 3}


@pytest.mark.parametrize(
    ("before", "after"),
    [([(0, 0), (1, 5), (2, 10)], [(1, 5), (2, 10)]), ([(0, 0), (1, 7), (2, 10)], [(0, 5), (1, 7), (2, 10)])],
)
def test_rt_10_leader_epochs_begin_at_the_new_log_start(tmp_path, before, after):
    def text(entries):
        return "\n".join(["0", str(len(entries)), *(f"{epoch} {start}" for epoch, start in entries)]) + "\n"

    directory = make_log(tmp_path, epochs=text(before))
    expire(tmp_path, "retention.ms=-1", "retention.bytes=720")
    assert (directory / "leader-epoch-checkpoint").read_text() == text(after)


def test_rt_11_when_everything_goes_one_leader_epoch_is_left(tmp_path):
    directory = make_log(tmp_path, epochs="0\n2\n0 0\n1 13\n")
    expire(tmp_path, "retention.ms=0", now_ms=NOW_MS + 1)
    assert (directory / "leader-epoch-checkpoint").read_text() == "0\n1\n1 15\n"


@pytest.mark.parametrize(("age_ms", "gone"), [(1000, []), (1001, [0, 5, 10])])
def test_rt_12_segments_without_timestamps_age_by_their_files(tmp_path, age_ms, gone):
    make_log(tmp_path, times_ms=(-1, -1, -1), mtime_ms=NOW_MS - age_ms)
    assert deleted(expire(tmp_path, "retention.ms=1000")) == gone


def test_rt_13_rt_14_an_empty_log_stays_as_it_is(tmp_path):
    directory = make_log(tmp_path)
    assert deleted(expire(tmp_path, "retention.ms=0", now_ms=NOW_MS + 1)) == [0, 5, 10]
    before = tree(tmp_path)
    report = expire(tmp_path, "retention.ms=0", "retention.bytes=0", now_ms=NOW_MS * 2)
    assert (deleted(report), report["log_start_offset"], report["log_end_offset"]) == ([], 15, 15)
    assert (bases(directory), tree(tmp_path)) == ([15], before)


def test_rt_14_an_empty_active_segment_is_what_is_left(tmp_path):
    directory = make_log(tmp_path, empty_active=True)
    assert deleted(expire(tmp_path, "retention.ms=0", now_ms=NOW_MS + 1)) == [0, 5, 10]
    assert bases(directory) == [15]


def test_rt_17_producers_outlive_their_segments(tmp_path):
    directory = make_log(tmp_path)
    producer = ProducerEntry(7, 0, 4, 4, 4, NOW_MS, -1, -1)
    for offset in (10, 15):
        write_snapshot(directory, offset, [producer])
    assert deleted(expire(tmp_path, "retention.ms=-1", "retention.bytes=720")) == [0]
    outcome = sediment("recover", tmp_path, "--json", "--quiet", f"--now-ms={NOW_MS + 1}")
    assert outcome.partitions()[NAME]["producers"] == [[7, 4]]


def test_rt_17_the_snapshot_at_the_log_end_is_taken_when_everything_goes(tmp_path):
    directory = make_log(tmp_path)
    (directory / f"{15:020d}.snapshot").unlink()
    producer = ProducerEntry(7, 0, 4, 4, 4, NOW_MS, -1, -1)
    write_snapshot(directory, 10, [producer])
    expire(tmp_path, "retention.ms=0", now_ms=NOW_MS + 1)
    assert parse_snapshot((directory / f"{15:020d}.snapshot").read_bytes()) == {7: producer}


def test_rt_18_snapshots_of_the_segments_that_stay_stay(tmp_path):
    directory = make_log(tmp_path)
    expire(tmp_path, "retention.ms=-1", "retention.bytes=360")
    assert sorted(int(path.stem) for path in directory.glob("*.snapshot")) == [10, 15]


def test_rt_19_a_partition_that_fails_leaves_the_others_alone(tmp_path):
    make_log(tmp_path, "orders-0")
    healthy = make_log(tmp_path, "orders-1")
    (tmp_path / "orders-0" / "leader-epoch-checkpoint").write_text("nonsense")
    outcome = sediment(
        "expire", tmp_path, "--broker-defaults", "--json", "--quiet", f"--now-ms={NOW_MS * 2}", "--set=retention.ms=0"
    )
    reports = outcome.partitions()
    assert outcome.status == 1
    assert (reports["orders-0"]["status"], reports["orders-1"]["status"]) == ("failed", "expired")
    assert "leader-epoch-checkpoint" in reports["orders-0"]["reason"]
    assert bases(healthy) == [15]


@pytest.mark.parametrize("segments", [1, 5])
def test_rt_20_with_retention_ms_0_one_empty_segment_is_left(tmp_path, segments):
    directory = make_log(tmp_path, times_ms=(NOW_MS,) * segments)
    assert deleted(expire(tmp_path, "retention.ms=0", now_ms=NOW_MS + 1)) == [5 * n for n in range(segments)]
    assert bases(directory) == [5 * segments]


def test_rt_20_a_log_without_records_stays(tmp_path):
    directory = make_log(tmp_path, times_ms=(), empty_active=True)
    assert deleted(expire(tmp_path, "retention.ms=0", now_ms=NOW_MS * 2)) == []
    assert bases(directory) == [0]


def test_a_deletion_by_dates_near_1970_is_announced_before_it_happens(tmp_path, caplog):
    for base in (0, 1):
        write_segment(tmp_path / NAME, base, [batch_bytes(base, timestamp=NOW_MS // 1000)])
    dry = sediment("expire", tmp_path, "--broker-defaults", "--dry-run", "--now-ms", NOW_MS)
    assert f"{NAME}: the newest record of segment 0 is dated 1970-01-20" in dry.stdout
    done = sediment("expire", tmp_path, "--broker-defaults", "--json", "--now-ms", NOW_MS)
    assert deleted(done.partitions()[NAME]) == [0, 1]
    assert (
        "(seconds?), and by such a date retention.ms deletes segment 0 and 1 more"
        in done.partitions()[NAME]["warnings"][0]
    )
    assert [f"{NAME}: {done.partitions()[NAME]['warnings'][0]}"] == caplog.messages


def test_a_topic_that_needs_what_goes_is_named_and_future_dates_are_explained(tmp_path, caplog):
    write_segment(tmp_path / "_schemas-0", 0, [batch_bytes(0)])
    write_segment(tmp_path / NAME, 0, [batch_bytes(0, timestamp=NOW_MS * 1000)])
    found = sediment("expire", tmp_path, "--broker-defaults", "--json", "--now-ms", 2 * NOW_MS)
    rows = found.partitions()
    assert "the topic of a schema registry" in rows["_schemas-0"]["warnings"][0]
    assert "_schemas-0: by its name" in caplog.text
    assert (rows[NAME]["status"], "(microseconds?)" in rows[NAME]["warnings"][0]) == ("skipped", True)


# ----------------------------------------------------------------------------------------------------- what is left out
def test_a_tiered_topic_is_left_to_its_broker(tmp_path):
    make_log(tmp_path)
    before = tree(tmp_path)
    report = expire(tmp_path, "remote.storage.enable=true", "retention.ms=0", now_ms=NOW_MS * 2)
    assert (report["status"], report["reason_code"]) == ("skipped", "tiered")
    assert tree(tmp_path) == before
    assert deleted(expire(tmp_path, "remote.storage.enable=true", "remote.log.copy.disable=true", "retention.ms=0"
                          , now_ms=NOW_MS * 2)) == [0, 5, 10]  # fmt: skip


def test_local_retention_of_a_tiered_topic_is_refused(tmp_path):
    make_log(tmp_path)
    before = tree(tmp_path)
    sets = ("--set=orders:remote.storage.enable=true", "--set=orders:local.retention.ms=1000")
    outcome = sediment("expire", tmp_path, "--broker-defaults", *sets)
    assert outcome.status == 2
    assert "local.retention.ms" in outcome.stderr and "orders" in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert tree(tmp_path) == before


def test_a_partition_that_the_replication_checkpoint_does_not_list_is_left_out(tmp_path):
    make_log(tmp_path)
    write_checkpoint(tmp_path / HIGH_WATERMARK, {"other-0": 15})
    report = expire(tmp_path, "retention.ms=0", now_ms=NOW_MS * 2)
    assert (report["status"], report["reason_code"]) == ("skipped", "no-high-watermark")


def test_a_compacted_partition_of_which_no_setting_speaks_is_left_out(tmp_path):
    directory = make_log(tmp_path)
    write_checkpoint(tmp_path / "cleaner-offset-checkpoint", {NAME: 10})
    report = expire(tmp_path, now_ms=NOW_MS * 2)
    assert (report["status"], report["reason_code"]) == ("skipped", "policy-unknown")
    assert "cleanup.policy" in report["reason"]
    assert deleted(expire(tmp_path, "orders:cleanup.policy=compact,delete", now_ms=NOW_MS * 2)) == [0, 5, 10]
    assert bases(directory) == [15]


def test_after_an_unclean_stop_nothing_from_the_recovery_point_on_goes(tmp_path):
    directory = make_log(tmp_path)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    write_checkpoint(tmp_path / "recovery-point-offset-checkpoint", {NAME: 7})
    assert deleted(expire(tmp_path, "retention.ms=0", now_ms=NOW_MS * 2)) == [0]
    assert bases(directory) == [5, 10]


def test_what_an_interrupted_replacement_left_is_finished_first_but_not_by_a_dry_run(tmp_path):
    directory = make_log(tmp_path)
    (directory / f"{5:020d}.log.cleaned").write_bytes(b"half")
    before = tree(tmp_path)
    report = expire(tmp_path, "retention.bytes=720", "retention.ms=-1", more=("--dry-run",))
    assert (report["reason_code"], tree(tmp_path)) == ("interrupted", before)
    assert deleted(expire(tmp_path, "retention.bytes=720", "retention.ms=-1")) == [0]
    assert not list(directory.glob("*.cleaned"))


# ---------------------------------------------------------------------------------------------------------- the command
def test_a_dry_run_changes_nothing_and_predicts_the_run(tmp_path):
    make_log(tmp_path)
    before = tree(tmp_path)
    foretold = expire(tmp_path, "retention.ms=0", now_ms=NOW_MS + 1, more=("--dry-run",))
    assert tree(tmp_path) == before
    assert not (tmp_path / ".lock").exists()
    assert foretold == expire(tmp_path, "retention.ms=0", now_ms=NOW_MS + 1)


def test_the_json_is_one_object_in_the_shape_of_the_other_commands(tmp_path):
    make_log(tmp_path)
    outcome = sediment(
        "expire",
        tmp_path,
        "--broker-defaults",
        "--json",
        "--set=retention.bytes=720",
        "--set=retention.ms=-1",
        "--now-ms=5",
    )
    report = outcome.report
    assert {name: report[name] for name in ("schema", "command", "now_ms", "dry_run", "archive")} == {
        "schema": 1,
        "command": "expire",
        "now_ms": 5,
        "dry_run": False,
        "archive": None,
    }
    assert report["partitions"] == [
        {
            "partition": NAME,
            "log_dir": str(tmp_path),
            "node_id": None,
            "status": "expired",
            "reason_code": None,
            "reason": None,
            "log_start_offset": 5,
            "high_watermark": 15,
            "log_end_offset": 15,
            "bytes_before": 1080,
            "bytes_after": 720,
            "segments_before": 3,
            "segments": [5, 10],
            "deleted_segments": [{"base_offset": 0, "bytes": 360, "rule": "retention.bytes"}],
            "messages_archived": None,
            "warnings": [],
        }
    ]


def test_the_table_for_people_says_what_went(tmp_path):
    make_log(tmp_path)
    outcome = sediment("expire", tmp_path, "--broker-defaults", "--set=retention.bytes=720", "--set=retention.ms=-1")
    assert "3 → 2" in outcome.stdout
    assert "1 expired; 1 segment with 360 B deleted" in outcome.stdout


def test_several_directories_and_topics_follow_their_own_settings(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    make_log(one, "a-0")
    make_log(one, "b-0")
    make_log(other, "a-1")
    outcome = sediment(
        *("expire", one, other, *BASE, f"--now-ms={NOW_MS + 1}"),
        *("--set=a:retention.ms=0", "--set=b:retention.ms=-1"),
    )
    assert {name: deleted(report) for name, report in outcome.partitions().items()} == {
        "a-0": [0, 5, 10],
        "a-1": [0, 5, 10],
        "b-0": [],
    }


def test_a_directory_that_another_process_locks_is_left_alone(tmp_path):
    make_log(tmp_path)
    before = tree(tmp_path)
    locked = tmp_path.with_name(tmp_path.name + "-locked")
    child = os.fork()
    if child == 0:  # POSIX locks are those of a process
        try:
            descriptor = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            locked.touch()
            signal.pause()
        finally:
            os._exit(1)
    try:
        wait_until(locked.exists)
        outcome = sediment("expire", tmp_path, "--broker-defaults", "--set=retention.ms=0")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert outcome.status == 1
    assert f"process {child} holds the lock" in outcome.stderr
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--set=retention.ms=-2"], "retention.ms"),
        (["--set=retention.ms=soon"], "retention.ms"),
        (["--set=retention.m=1"], "retention.ms"),
        (["--archive={log_dir}/archive"], "archive"),
        (["--archive={log_dir}/../taken"], "taken"),
        (["{log_dir}/nowhere"], "nowhere"),
    ],
)
def test_wrong_use_is_one_sentence_and_changes_nothing(tmp_path, arguments, word):
    log_dir = tmp_path / "logs"
    make_log(log_dir)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    before = tree(tmp_path)
    outcome = sediment(
        "expire", log_dir, "--broker-defaults", *(argument.format(log_dir=log_dir) for argument in arguments)
    )
    assert outcome.status == 2
    assert outcome.stderr.count("\n") == 1 and word in outcome.stderr, outcome.stderr
    assert tree(tmp_path) == before


def test_a_run_that_is_stopped_before_it_deletes_says_so_and_deletes_nothing(tmp_path):
    make_log(tmp_path)
    before = tree(tmp_path)
    stop = threading.Event()
    stop.set()
    options = CommonOptions(
        log_dirs=(tmp_path,),
        settings=Settings.load(None, ["retention.ms=0"], broker_defaults=True),
        now_ms=NOW_MS * 2,
        as_json=True,
        quiet=True,
    )
    run = run_expire(options, stop=stop)
    assert run.failed
    assert run.partitions[0].reason_code == "stopped"
    assert tree(tmp_path) == before


def test_a_run_is_in_the_ledger(tmp_path):
    make_log(tmp_path / "logs")
    ledger = tmp_path / "ledger"
    report = expire(tmp_path / "logs", "retention.bytes=720", "retention.ms=-1", more=("--ledger", ledger))
    assert report["status"] == "expired"
    [row] = DeltaTable(ledger / "partitions").to_pyarrow_table().to_pylist()
    assert (row["command"], row["partition"], row["bytes_before"], row["bytes_after"]) == ("expire", NAME, 1080, 720)
    assert json.loads(row["other"])["deleted_segments"] == report["deleted_segments"]


def test_partitions_beyond_one_write_of_the_checkpoint_are_all_expired(tmp_path):
    names = [f"orders-{number}" for number in range(70)]
    for name in names:
        make_log(tmp_path, name, times_ms=(NOW_MS - 2000, NOW_MS))
    outcome = sediment(
        "expire", tmp_path, "--broker-defaults", "--json", "--quiet", f"--now-ms={NOW_MS}", "--set=retention.ms=1000"
    )
    assert {name: deleted(report) for name, report in outcome.partitions().items()} == {name: [0] for name in names}
    assert {name: bases(tmp_path / name) for name in names} == {name: [5] for name in names}
    assert read_checkpoint(tmp_path / LOG_START) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_new_files_belong_to_the_owner_of_the_log(tmp_path):
    directory = make_log(tmp_path, epochs="0\n1\n0 0\n")
    write_checkpoint(tmp_path / LOG_START, {"other-0": 3})
    (directory / f"{15:020d}.snapshot").unlink()
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, 1234, 1234)
    (tmp_path / LOG_START).unlink()
    expire(tmp_path, "retention.ms=0", now_ms=NOW_MS + 1)
    assert (tmp_path / LOG_START).exists() and (directory / f"{15:020d}.snapshot").exists()
    assert {(path.stat().st_uid, path.stat().st_gid) for path in tmp_path.rglob("*")} == {(1234, 1234)}


def test_partitions_that_were_skipped_are_counted_by_reason_with_the_option_to_give(tmp_path):
    make_log(tmp_path, "a-0")
    make_log(tmp_path, "b-0")
    outcome = sediment("expire", tmp_path, "--set=a:cleanup.policy=delete", "--set=a:retention.ms=-1")
    assert outcome.status == 0
    assert "b-0: cleanup.policy is not stated; give" in outcome.stdout
    assert "skipped: nothing-to-delete" in outcome.stdout


def test_a_log_start_above_the_log_end_deletes_nothing(tmp_path):
    directory = make_log(tmp_path)
    write_checkpoint(tmp_path / LOG_START, {NAME: 1000})
    before = tree(tmp_path)
    outcome = sediment("expire", tmp_path, *BASE, "--set=retention.ms=-1")
    assert outcome.status == 1
    report = outcome.partitions()[NAME]
    assert (report["status"], report["reason_code"]) == ("failed", "corrupt-checkpoint")
    assert "1000" in report["reason"] and "15" in report["reason"]
    assert tree(tmp_path) == before and bases(directory) == [0, 5, 10]


def test_recover_deletes_nothing_by_a_log_start_above_the_end_of_a_log_that_was_stopped_cleanly(tmp_path):
    directory = make_log(tmp_path)
    write_checkpoint(tmp_path / LOG_START, {NAME: 1000})
    for _ in range(2):
        outcome = sediment("recover", tmp_path, "--json", f"--now-ms={NOW_MS}")
        assert outcome.status == 1
        assert outcome.partitions()[NAME]["reason_code"] == "corrupt-checkpoint"
        assert bases(directory) == [0, 5, 10]


def test_a_malformed_leader_epoch_file_fails_the_partition_before_its_log_start_moves(tmp_path):
    directory = make_log(tmp_path, times_ms=(NOW_MS - 1001,) * 3)
    (directory / "leader-epoch-checkpoint").write_text("garbage\n")
    before = tree(tmp_path)
    outcome = sediment("expire", tmp_path, *BASE, f"--now-ms={NOW_MS}", "--set=retention.ms=1000")
    report = outcome.partitions()[NAME]
    assert (outcome.status, report["status"], report["reason_code"]) == (1, "failed", "corrupt-checkpoint")
    assert tree(tmp_path) == before
