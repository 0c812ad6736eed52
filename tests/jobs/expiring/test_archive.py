"""`sediment expire --archive`: every record is in the table exactly once before it is deleted."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.delta_lake import paths
from sediment.jobs.expire import ExpireOptions
from sediment.jobs.expire import expire as run_expire
from sediment.jobs.expiring import archive as archives
from sediment.jobs.expiring import archive_table, archive_task
from sediment.jobs.expiring.archive_table import ArchiveTable, archive_schema
from sediment.jobs.settings.resolve import Settings
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import ALL, plan_slices
from sediment.segment_io.tables.planning import ScanTask, TableTask
from sediment.segment_io.tables.readers import read_table
from sediment.segment_io.tables.schema import TableRequest
from tests.faults.faulty_fs import FaultyFs, Kill, Killed
from tests.jobs.expiring.expired_logs import DAY_MS, NAME, bases, deleted, make_log
from tests.jobs.log_dirs import sediment, tree
from tests.segments import ABORT, NOW_MS, batch_bytes, marker_bytes, write_segment
from tests.twin.batches import Record, RecordHeader, encode_batch
from tests.twin.legacy import encode_legacy

OLD_MS = NOW_MS - 30 * DAY_MS


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Segments of two days that are to go, and one that stays."""
    make_log(tmp_path / "logs", times_ms=(OLD_MS, OLD_MS + DAY_MS, NOW_MS))
    return tmp_path / "logs"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def expire(*arguments: object):
    return sediment("expire", *arguments, "--broker-defaults", "--json", "--quiet", f"--now-ms={NOW_MS}")


def rows(archive: Path) -> list[dict]:
    return (
        DeltaTable(archive)
        .to_pyarrow_table()
        .sort_by([("partition", "ascending"), ("offset", "ascending")])
        .to_pylist()
    )


def offsets(archive: Path) -> list[int]:
    return [row["offset"] for row in rows(archive)]


def test_records_of_the_segments_that_go_are_in_the_table_by_topic_and_day(log_dir, archive):
    report = expire(log_dir, "--archive", archive).partitions()[NAME]
    assert (report["status"], report["messages_archived"], bases(log_dir / NAME)) == ("expired", 10, [10])
    found = rows(archive)
    assert [row["offset"] for row in found] == list(range(10))
    assert {(row["key"], row["value"], row["topic"], row["partition"]) for row in found} == {
        (b"k", b"val", "orders", 0)
    }
    days = [datetime.fromtimestamp(time_ms / 1000, UTC) for time_ms in (OLD_MS, OLD_MS + DAY_MS)]
    assert [(row["timestamp"], row["day"], row["segment"]) for row in found] == [
        (day, day.date(), segment) for day, segment in zip(days, (0, 5), strict=True) for _ in range(5)
    ]
    assert DeltaTable(archive).metadata().partition_columns == ["topic", "day"]
    assert {path.parent.name for path in archive.glob("topic=orders/*/*.parquet")} == {
        f"day={day.date()}" for day in days
    }


def test_everything_a_segment_holds_is_in_the_table(tmp_path, archive):
    directory = tmp_path / "logs" / NAME
    headers = (RecordHeader(b"h", b"1"), RecordHeader(b"h", None))
    records = [
        Record(0, OLD_MS, None, b"no key", headers),
        Record(1, OLD_MS, b"tombstone", None),
        Record(2, OLD_MS, b"", b""),
    ]
    write_segment(
        directory,
        0,
        [
            encode_batch(records, base_offset=0, leader_epoch=3, codec=4),
            batch_bytes(3, "ab", timestamp=-1),
            batch_bytes(5, timestamp=OLD_MS, producer_id=9, transactional=True),
            marker_bytes(6, ABORT, producer_id=9, timestamp=OLD_MS),
        ],
        mtime_ms=OLD_MS,
    )
    write_segment(directory, 7, [batch_bytes(7)])
    report = expire(tmp_path / "logs", "--archive", archive).partitions()[NAME]
    assert (deleted(report), report["messages_archived"]) == ([0], 7)
    found = rows(archive)
    assert [(row["key"], row["value"]) for row in found[:3]] == [(None, b"no key"), (b"tombstone", None), (b"", b"")]
    assert found[0]["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert [row["day"] is None for row in found] == [False, False, False, True, True, False, False]
    assert [(row["transactional"], row["control"]) for row in found[5:]] == [(True, False), (True, True)]
    assert {row["codec"] for row in found[:3]} == {"zstd"}


@pytest.mark.parametrize("magic", [0, 1])
def test_records_of_old_message_formats_are_counted_one_by_one(tmp_path, archive, magic):
    directory = tmp_path / "logs" / NAME
    records = [Record(offset, OLD_MS if magic else -1, b"k", b"v") for offset in range(5)]
    write_segment(directory, 0, [encode_legacy(records, magic=magic, codec=1)], mtime_ms=OLD_MS)
    write_segment(directory, 5, [batch_bytes(5)])
    report = expire(tmp_path / "logs", "--archive", archive).partitions()[NAME]
    assert (report["status"], report["messages_archived"]) == ("expired", 5), report
    assert offsets(archive) == list(range(5))


@pytest.mark.parametrize("name_of", [str, Path.as_uri], ids=["path", "local uri"])
@pytest.mark.parametrize("is_remote", [False, True], ids=["in threads", "in the thread of the caller"])
def test_the_rows_of_each_segment_are_counted_at_a_path_and_at_a_uri(tmp_path, monkeypatch, name_of, is_remote):
    make_log(tmp_path / "logs", times_ms=(OLD_MS, NOW_MS))
    if is_remote:
        for module in (archive_table, archive_task, paths):
            monkeypatch.setattr(module, "local_directory", lambda _: None)
    partition = TopicPartition("orders", 0)
    table = ArchiveTable(name_of(tmp_path / "an archive"))
    digests = {}
    for work in archives._works((tmp_path / "logs", partition), [0, 5], "run", Fs()):
        digests[work.base_offset] = archive_task._measure(work).digest
        for found in plan_slices(work.source, ALL, Fs()):
            task = ScanTask(found, ALL)
            with archive_task._Files(
                archive_task.WriteWork(work, digests[work.base_offset], task, table.path), "0"
            ) as files:
                for batch in read_table(TableRequest(), TableTask(scan_tasks=(task,)), Fs()):
                    files.add(batch)
            table.commit(files.written, [f"segment-{work.base_offset}"], "run")
    assert table.counts(partition, [0, 5]) == dict.fromkeys(digests.items(), 5)


def test_several_partitions_share_a_table_and_later_runs_add_to_it(tmp_path, archive):
    for name in ("orders-0", "orders-1", "events-0"):
        make_log(tmp_path / "logs", name, times_ms=(OLD_MS, NOW_MS - DAY_MS, NOW_MS))
    first = expire(tmp_path / "logs", "--archive", archive).partitions()
    assert {report["messages_archived"] for report in first.values()} == {5}
    second = expire(tmp_path / "logs", "--archive", archive, f"--set=retention.ms={DAY_MS // 2}").partitions()
    assert {report["messages_archived"] for report in second.values()} == {5}
    counts = Counter((row["topic"], row["partition"]) for row in rows(archive))
    assert counts == {("orders", 0): 10, ("orders", 1): 10, ("events", 0): 10}
    # One commit a run, after the one that made the table.
    assert DeltaTable(archive).version() == 2


# --------------------------------------------------------------------------------------------------------- exactly once
def run(log_dir: Path, archive: Path, fault: Kill | None = None) -> None:
    options = CommonOptions(
        log_dirs=(log_dir,),
        settings=Settings.load(None, [], broker_defaults=True),
        now_ms=NOW_MS,
        as_json=True,
        quiet=True,
    )
    run_expire(options, ExpireOptions(archive=str(archive)), fs=FaultyFs(fault))


def run_until_killed(log_dir: Path, archive: Path, fault: Kill) -> None:
    with pytest.raises(Killed):
        run(log_dir, archive, fault)


def test_a_run_killed_after_the_commit_is_repeated_without_a_second_copy(log_dir, archive):
    run_until_killed(log_dir, archive, Kill(1))
    assert offsets(archive) == list(range(10))
    assert bases(log_dir / NAME) == [0, 5, 10]
    report = expire(log_dir, "--archive", archive).partitions()[NAME]
    assert (report["status"], report["messages_archived"], bases(log_dir / NAME)) == ("expired", 10, [10])
    assert offsets(archive) == list(range(10))


def test_a_run_killed_in_the_middle_of_its_deletions_is_repeated_without_a_second_copy(log_dir, archive):
    kills = 0
    for number in itertools.count(4, 4):
        try:
            run(log_dir, archive, Kill(number))
        except Killed:
            kills += 1
        else:
            break
    assert kills > 2
    assert bases(log_dir / NAME) == [10]
    assert offsets(archive) == list(range(10))


def test_a_process_that_gets_sigkill_in_the_archive_is_repeated_without_a_second_copy(log_dir, archive):
    command = ["expire", str(log_dir), "--broker-defaults", "--archive", str(archive), f"--now-ms={NOW_MS}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "sediment.jobs.cli", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while process.poll() is None and not list(archive.glob("topic=*/day=*/*.parquet")):
        time.sleep(0.001)
    with contextlib.suppress(ProcessLookupError):  # it was over before it could be killed
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    left = bases(log_dir / NAME)
    kept = [offset for base in left for offset in range(base, base + 5)]
    archived = offsets(archive) if (archive / "_delta_log").exists() else []
    assert set(kept) | set(archived) == set(range(15))
    assert expire(log_dir, "--archive", archive).status == 0
    assert bases(log_dir / NAME) == [10]
    assert offsets(archive) == list(range(10))


@pytest.mark.parametrize("left", [0, 40])
def test_a_commit_that_a_loss_of_power_cut_off_is_named_and_once_it_is_gone_the_run_is_repeated(log_dir, archive, left):
    expire(log_dir, "--archive", archive)
    make_log(log_dir, "orders-1", times_ms=(OLD_MS, NOW_MS))
    torn = archive / "_delta_log" / f"{2:020d}.json"
    torn.write_bytes((archive / "_delta_log" / f"{1:020d}.json").read_bytes()[:left])
    before = tree(log_dir)
    outcome = expire(log_dir, "--archive", archive)
    if left:
        assert outcome.status == 2
        assert str(torn) in outcome.stderr and "remove this file and run again" in outcome.stderr
        assert tree(log_dir) == before
        torn.unlink()
        assert expire(log_dir, "--archive", archive).status == 0
    assert {(row["partition"], row["offset"]) for row in rows(archive) if row["partition"] == 1} == {
        (1, offset) for offset in range(5)
    }


def test_another_log_under_the_same_name_is_archived_too(log_dir, archive):
    expire(log_dir, "--archive", archive)
    shutil.rmtree(log_dir / NAME)
    make_log(log_dir, times_ms=(OLD_MS + 1, OLD_MS + 1, NOW_MS))
    report = expire(log_dir, "--archive", archive).partitions()[NAME]
    assert (report["status"], report["messages_archived"]) == ("expired", 10)
    assert Counter(offsets(archive)) == dict.fromkeys(range(10), 2)


def records_of(*offsets: int) -> list[bytes]:
    return [batch_bytes(n, value=b"val", timestamp=OLD_MS, producer_id=-1) for n in offsets]


@pytest.mark.parametrize(
    ("changed", "offsets_after"),
    [
        pytest.param({0: (0, 1, 2, 3, 4), 5: (5, 6, 7, 8, 9, 10, 11)}, range(12), id="appended to"),
        pytest.param({0: (1, 3, 7)}, range(10), id="cleaned"),
        pytest.param({0: (0, 1, 2), 3: (3, 4, 5, 6, 7, 8, 9)}, range(10), id="rolled elsewhere"),
    ],
)
def test_a_log_that_changed_after_a_run_was_killed_is_archived_without_a_second_copy(
    tmp_path, archive, changed, offsets_after
):
    log_dir = tmp_path / "logs"
    for base in (0, 5):
        write_segment(log_dir / NAME, base, records_of(*range(base, base + 5)))
    (log_dir / ".kafka_cleanshutdown").touch()
    run_until_killed(log_dir, archive, Kill(1))
    assert offsets(archive) == list(range(10))
    shutil.rmtree(log_dir / NAME)
    for base, kept in changed.items():
        write_segment(log_dir / NAME, base, records_of(*kept))
    report = expire(log_dir, "--archive", archive).partitions()[NAME]
    assert (report["status"], report["messages_archived"]) == ("expired", sum(map(len, changed.values())))
    assert offsets(archive) == list(offsets_after)


def test_a_changed_log_that_is_killed_after_its_second_commit_is_counted_with_the_first(tmp_path, archive):
    log_dir = tmp_path / "logs"
    for kept in (range(5), range(7)):
        shutil.rmtree(log_dir, ignore_errors=True)
        write_segment(log_dir / NAME, 0, records_of(*kept))
        (log_dir / ".kafka_cleanshutdown").touch()
        run_until_killed(log_dir, archive, Kill(1))
        assert offsets(archive) == list(kept)
    assert expire(log_dir, "--archive", archive).partitions()[NAME]["messages_archived"] == 7
    assert offsets(archive) == list(range(7))


def test_replicas_whose_segments_begin_elsewhere_are_archived_once(tmp_path, log_dir, archive):
    other = tmp_path / "copy"
    batches = [
        batch_bytes(n, value=b"val", timestamp=(OLD_MS, OLD_MS + DAY_MS)[n // 5], producer_id=-1) for n in range(10)
    ]
    write_segment(other / NAME, 0, batches[:7])
    write_segment(other / NAME, 7, batches[7:])
    (other / ".kafka_cleanshutdown").touch()
    outcome = expire(log_dir, other, "--archive", archive)
    assert [report["messages_archived"] for report in outcome.report["partitions"]] == [10, 10]
    assert offsets(archive) == list(range(10))


def test_of_two_replicas_that_are_archived_at_once_the_later_one_is_left_to_another_run(tmp_path, log_dir, archive):
    other = tmp_path / "copy"
    write_segment(other / NAME, 0, records_of(*range(3)))
    (other / ".kafka_cleanshutdown").touch()
    commit = ArchiveTable.commit

    def commit_second(self, *given):
        with patch.object(ArchiveTable, "commit", commit):
            run(other, archive)
        commit(self, *given)

    with patch.object(ArchiveTable, "commit", commit_second):
        report = expire(log_dir, "--archive", archive).partitions()[NAME]
    assert report["status"] == "failed" and "nothing was deleted; run again" in report["reason"]
    assert expire(log_dir, "--archive", archive).partitions()[NAME]["status"] == "expired"
    assert max(Counter(offsets(archive)).values()) == 1


def test_two_copies_of_one_log_are_archived_once(tmp_path, log_dir, archive):
    shutil.copytree(log_dir, tmp_path / "copy")
    outcome = expire(log_dir, tmp_path / "copy", "--archive", archive)
    assert [report["messages_archived"] for report in outcome.report["partitions"]] == [10, 10]
    assert offsets(archive) == list(range(10))
    assert bases(log_dir / NAME) == bases(tmp_path / "copy" / NAME) == [10]


# --------------------------------------------------------------------------------------------------------- nothing goes
def test_nothing_goes_of_a_partition_that_cannot_be_read_and_the_others_go(log_dir, archive):
    make_log(log_dir, "orders-1", times_ms=(OLD_MS, NOW_MS))
    log = log_dir / NAME / f"{5:020d}.log"
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    before = tree(log_dir / NAME)
    outcome = expire(log_dir, "--archive", archive)
    reports = outcome.partitions()
    assert outcome.status == 1
    assert (reports[NAME]["status"], reports[NAME]["reason_code"]) == ("failed", "corrupt-batch")
    assert (deleted(reports[NAME]), reports[NAME]["segments"]) == ([], [0, 5, 10])
    assert tree(log_dir / NAME) == before
    assert (reports["orders-1"]["status"], bases(log_dir / "orders-1")) == ("expired", [5])
    assert {(row["partition"], row["offset"]) for row in rows(archive)} == {(1, offset) for offset in range(5)}


def test_nothing_goes_that_the_table_has_lost_again(log_dir, archive):
    run_until_killed(log_dir, archive, Kill(1))
    DeltaTable(archive).delete("offset = 3")
    outcome = expire(log_dir, "--archive", archive)
    report = outcome.partitions()[NAME]
    assert (outcome.status, report["reason_code"]) == (1, "archive-incomplete")
    assert "contains 5 records, but 4 are in the archive" in report["reason"]
    assert bases(log_dir / NAME) == [0, 5, 10]


def test_nothing_goes_where_the_table_cannot_be_written(log_dir, archive):
    expire(log_dir, "--archive", archive)
    make_log(log_dir, "orders-1", times_ms=(OLD_MS, NOW_MS))
    (archive / "topic=orders").rename(archive / "gone")
    (archive / "topic=orders").touch()
    outcome = expire(log_dir, "--archive", archive)
    assert (outcome.status, outcome.partitions()["orders-1"]["status"]) == (1, "failed")
    assert bases(log_dir / "orders-1") == [0, 5]


def test_a_table_of_something_else_is_refused(log_dir, archive):
    write_deltalake(archive, pa.table({"x": [1]}))
    before = tree(log_dir)
    outcome = expire(log_dir, "--archive", archive)
    assert outcome.status == 2
    assert "is not an archive" in outcome.stderr and outcome.stderr.count("\n") == 1
    assert tree(log_dir) == before


@pytest.mark.parametrize("rule", ["NOT NULL", "constraint", "type"])
def test_a_table_whose_rules_records_would_break_is_refused(log_dir, archive, rule):
    schema = archive_schema()
    if rule == "NOT NULL":
        schema = schema.append(pa.field("owner", pa.string(), nullable=False))
    elif rule == "type":
        schema = schema.set(schema.get_field_index("offset"), pa.field("offset", pa.string()))
    table = DeltaTable.create(archive, schema, partition_by=["topic", "day"])
    if rule == "constraint":
        table.alter.add_constraint({"positive": "offset > 5"})
    before = tree(log_dir)
    outcome = expire(log_dir, "--archive", archive)
    assert outcome.status == 2
    expected = {"NOT NULL": "column owner is NOT NULL", "constraint": "constraint positive", "type": "not an archive"}
    assert expected[rule] in outcome.stderr and outcome.stderr.count("\n") == 1
    assert tree(log_dir) == before


def test_a_dry_run_makes_no_table(log_dir, archive):
    assert expire(log_dir, "--archive", archive, "--dry-run").status == 0
    assert not archive.exists()


def test_a_run_without_anything_to_delete_makes_no_table(log_dir, archive):
    assert expire(log_dir, "--archive", archive, "--set=retention.ms=-1").status == 0
    assert not archive.exists()


def test_no_token_and_no_other_file_is_left_in_the_log_directory(log_dir, archive):
    expire(log_dir, "--archive", archive)
    assert {path.name for path in log_dir.iterdir()} == {
        NAME,
        ".lock",
        ".kafka_cleanshutdown",
        "log-start-offset-checkpoint",
    }


@pytest.mark.delta
def test_spark_reads_the_table_by_topic_and_day(log_dir, archive):
    from tests.jobs.snapshots import session_with_delta

    expire(log_dir, "--archive", archive)
    with session_with_delta() as spark:
        found = spark.read.format("delta").load(str(archive)).groupBy("topic", "day").count().orderBy("day").collect()
    assert [(row["topic"], row["count"]) for row in found] == [("orders", 5), ("orders", 5)]
