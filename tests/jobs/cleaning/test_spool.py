"""`sediment compact --hand-off`: a Spark job cleans the logs of a running engine, and the engine commits them."""

from __future__ import annotations

import threading

import pytest

from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.live.log_manager import LogManager
from sediment.engine.live.scheduler import Clock
from tests.engine.managed import T0, T1, advance, append, latest_of, records_of, running, topic_config
from tests.jobs.log_dirs import read_checkpoint, sediment
from tests.spool_replies import read_replies
from tests.waiting import wait_until

EAGER = topic_config("compact", min_cleanable_dirty_ratio=0.0, segment_bytes=20_000)
SETTINGS = [
    "--set",
    "t:cleanup.policy=compact",
    "--set",
    "t:min.cleanable.dirty.ratio=0",
    "--set",
    "t:segment.bytes=20000",
]


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "logs"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "hand-off"


@pytest.fixture
def engine(logs, folder):
    with running(logs, topic=EAGER, hand_off=folder, log_cleaner_enable=False) as manager:
        for partition in (T0, T1):
            log = manager.create_log(partition)
            append(log, *[(f"k{number % 7}", f"{partition}:{number}") for number in range(900)])
            log.flush()
        checkpoint(manager)
        yield manager


def checkpoint(manager: LogManager) -> None:
    manager.checkpoint_recovery_points()
    manager.checkpoint_high_watermarks()


def compact(logs, folder, *options):
    return sediment("compact", logs, "--hand-off", folder, *SETTINGS, "--json", *options)


def files_in(logs, partition="t-0"):
    return {path.name: path.read_bytes() for path in (logs / partition).iterdir()}


def test_a_job_leaves_parts_and_swaps_and_changes_nothing_else(engine, logs, folder):
    before = {name: files_in(logs, name) for name in ("t-0", "t-1")}
    outcome = compact(logs, folder)
    assert outcome.status == 0, outcome.stderr
    for name, report in outcome.partitions().items():
        assert (report["status"], report["reason_code"]) == ("compacted", "handed-off")
        assert str(folder) in report["reason"]
        assert report["bytes_after"] < report["bytes_before"]
        after = files_in(logs, name)
        parts = {file for file in after if file.endswith(".part")}
        assert parts and {file: after[file] for file in after.keys() - parts} == before[name]
    run_id = outcome.report["run_id"]
    assert {path.name for path in folder.glob("t-*")} == {f"t-{number}.{run_id}.json" for number in (0, 1)}
    assert read_checkpoint(logs / "cleaner-offset-checkpoint") == {}
    assert not (logs / ".sediment-run").exists()


def test_a_job_that_keeps_tombstones_for_an_unstated_retention_says_so_beside_the_folder(engine, logs, folder):
    append(engine.get_log(T0), *[(f"gone{number}", None) for number in range(300)], ("k1", "rolls"))
    engine.get_log(T0).flush()
    engine.get_log(T0).roll()
    checkpoint(engine)
    outcome = compact(logs, folder, "--fail-on-unknown")
    report = outcome.partitions()["t-0"]
    assert (outcome.status, report["status"], report["reason_code"]) == (1, "compacted", "handed-off")
    assert str(folder) in report["reason"] and "delete.retention.ms is not stated" in report["reason"]


def test_the_engine_commits_what_a_job_left_while_it_is_appended_to(engine, logs, folder):
    assert compact(logs, folder).status == 0
    for partition in (T0, T1):
        append(engine.get_log(partition), ("k1", "late"), ("new", "1"))
    before = {partition: latest_of(engine.get_log(partition)) for partition in (T0, T1)}
    advance(engine, 15_000)
    assert [answer.refusal for answer in read_replies(folder)] == [None, None]
    for partition in (T0, T1):
        log = engine.get_log(partition)
        assert latest_of(log) == before[partition]
        assert len(records_of(log)) < 500
        assert not any(name.endswith(".part") for name in files_in(logs, str(partition)))
    assert set(read_checkpoint(logs / "cleaner-offset-checkpoint")) == {"t-0", "t-1"}
    again = compact(logs, folder)
    assert {report["status"] for report in again.partitions().values()} == {"skipped"}


def test_a_job_that_follows_another_cleans_what_came_since(engine, logs, folder):
    for _ in range(2):
        assert compact(logs, folder).status == 0
        advance(engine, 15_000)
        assert [answer.refusal for answer in read_replies(folder)] == [None, None]
        for partition in (T0, T1):
            log = engine.get_log(partition)
            append(log, *[(f"k{number % 7}", f"again:{number}") for number in range(600)])
            log.flush()
        checkpoint(engine)


def test_the_engine_refuses_what_a_job_left_of_segments_that_changed(engine, logs, folder):
    assert compact(logs, folder, "--partition", "t-0").status == 0
    append(engine.get_log(T0), ("k1", "late"))
    assert engine.cleaner.clean_filthiest() and engine.cleaner.clean_filthiest()
    before = latest_of(engine.get_log(T0))
    advance(engine, 15_000)
    (answer,) = read_replies(folder)
    assert "not the one that was cleaned" in answer.refusal
    assert not any(name.endswith(".part") for name in files_in(logs))
    assert latest_of(engine.get_log(T0)) == before


@pytest.mark.parametrize(
    "option", ["--dry-run", "--roll-active", "--keep-originals=elsewhere", "--keep-before=elsewhere"]
)
def test_options_that_do_not_go_with_it_are_wrong_use(engine, logs, folder, option):
    outcome = compact(logs, folder, option)
    assert outcome.status == 2
    assert option.partition("=")[0] in outcome.stderr and "--hand-off" in outcome.stderr


def test_without_a_running_engine_it_is_wrong_use(logs, folder):
    with running(logs, topic=EAGER, hand_off=folder) as manager:
        append(manager.create_log(T0), ("a", "1"))
        (folder / "copy").write_bytes((folder / "engine.json").read_bytes())
    assert compact(logs, folder).status == 2
    (folder / "copy").rename(folder / "engine.json")
    outcome = compact(logs, folder)
    assert outcome.status == 2
    assert "no running engine" in outcome.stderr
    assert not (logs / ".sediment-run").exists()


def test_two_jobs_at_once_the_second_is_refused(engine, logs, folder):
    with DirectoryLock(folder):
        outcome = compact(logs, folder)
    assert outcome.status == 1
    assert str(folder / ".lock") in outcome.stderr
    assert not any(name.endswith(".part") for name in files_in(logs))


def test_nothing_beyond_the_recovery_point_is_cleaned(engine, logs, folder):
    """Unflushed records could be lost, and earlier records that they supersede must therefore stay."""
    log = engine.get_log(T0)
    durable = read_checkpoint(logs / "recovery-point-offset-checkpoint")["t-0"]
    append(log, *[(f"k{number % 7}", "volatile") for number in range(900)])
    report = compact(logs, folder, "--partition", "t-0").partitions()["t-0"]
    assert report["status"] == "compacted"
    assert report["next_dirty_offset"] <= durable


def test_a_quarantined_partition_is_left_alone_and_the_marks_are_the_engines(engine, logs, folder):
    path = logs / "t-0" / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[65] ^= 1
    path.write_bytes(content)
    first = compact(logs, folder)
    assert first.status == 1
    assert first.partitions()["t-0"]["status"] == "quarantined"
    assert first.partitions()["t-1"]["reason_code"] == "handed-off"
    assert not (logs / ".sediment-uncleanable").exists()
    assert not any(name.endswith(".part") for name in files_in(logs))


def test_jobs_and_a_busy_engine_at_once_leave_the_latest_value_of_every_key(logs, folder):
    """Appends, rolls, flushes, checkpoints and commits go on in threads while jobs read the same directory."""
    stop, latest = threading.Event(), {}

    def write():
        number = 0
        while not stop.is_set():
            append(log, (f"k{number % 11}", str(number)))
            latest[f"k{number % 11}".encode()] = str(number).encode()
            number += 1
            stop.wait(0.0005)

    with running(
        logs,
        topic=EAGER,
        hand_off=folder,
        clock=Clock(),
        background_threads=3,
        log_cleaner_enable=False,
        log_cleaner_backoff_ms=10,
        log_initial_task_delay_ms=0,
        log_flush_offset_checkpoint_interval_ms=10,
        replica_high_watermark_checkpoint_interval_ms=10,
    ) as engine:
        log = engine.create_log(T0)
        append(log, *[(f"k{number % 11}", "first") for number in range(900)])
        writing = threading.Thread(target=write)
        writing.start()
        committed = 0
        try:
            for _ in range(4):
                outcome = compact(logs, folder)
                report = outcome.partitions()["t-0"]
                assert report["status"] in ("compacted", "skipped"), report
                wait_until(lambda: not list(folder.glob("t-0.*.json")))
                answers = read_replies(folder)
                assert [answer.refusal for answer in answers] in ([], [None])
                committed += report["status"] == "compacted"
        finally:
            stop.set()
            writing.join()
        assert committed >= 1
        assert latest_of(log) == latest
        assert len(records_of(log)) < log.log_end_offset
    with running(logs, topic=EAGER) as engine:
        assert latest_of(engine.get_log(T0)) == latest
