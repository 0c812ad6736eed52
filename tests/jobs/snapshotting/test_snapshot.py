"""Snapshot tables against the latest values by the plain Python twin, while logs grow, shrink, change and fail."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality

from sediment.jobs import snapshot as snapshots
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.delta_lake.latest_per_key import ReadSummary
from sediment.jobs.delta_lake.refresh_plan import LATEST, RefreshProgress, parse_progress
from sediment.jobs.delta_lake.snapshot_table import SnapshotTable
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.selection import Selection
from sediment.jobs.snapshot import SnapshotOptions, parse_as_of
from sediment.jobs.snapshotting import reading
from sediment.jobs.snapshotting.planned_logs import AsOf
from sediment.segment_io.errors import SedimentError, SourceChangedError, UsageError
from sediment.segment_io.format.checkpoints import format_partition_metadata
from tests.jobs.log_dirs import sediment, write_checkpoint
from tests.jobs.snapshots import SCHEMA, Log, committed_records, first_segments, latest_rows, session_with_delta
from tests.logs import LogShape, write_random_log
from tests.twin.batches import ControlType
from tests.twin.segments import list_segments

pytestmark = pytest.mark.delta

NOW_MS = 1_700_000_100_000
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def spark(sc):
    with session_with_delta() as session:
        yield session


@pytest.fixture
def log_dir(tmp_path):
    path = tmp_path / "logs"
    path.mkdir()
    return path


@pytest.fixture
def to(tmp_path):
    return tmp_path / "table"


def options(log_dir, *, now_ms=NOW_MS, partitions=(), sets=()):
    settings = Settings.load(None, list(sets), broker_defaults=True)
    return CommonOptions(
        log_dirs=(log_dir,),
        selection=Selection(tuple(partitions)),
        settings=settings,
        now_ms=now_ms,
        as_json=True,
        quiet=True,
    )


def refresh(spark, log_dir, to, *, as_of=None, from_start=False, **common):
    own = SnapshotOptions(str(to), from_start=from_start)
    return snapshots.refresh(options(log_dir, **common), own, as_of, spark)


def table(spark, to):
    return spark.read.format("delta").load(str(to))


def assert_holds(spark, to, rows):
    expected = spark.createDataFrame(rows, SCHEMA)
    assert_df_equality(table(spark, to), expected, ignore_row_order=True, ignore_nullable=True)


def versions(spark, to):
    from delta.tables import DeltaTable

    return [row.version for row in DeltaTable.forPath(spark, str(to)).history().select("version").collect()]


def values(spark, to):
    return {bytes(row.key).decode(): bytes(row.value).decode() for row in table(spark, to).collect()}


# ------------------------------------------------------------------------------------------------------ what it holds
def test_a_new_table_holds_the_latest_value_of_each_key_of_each_partition(spark, log_dir, to):
    expected = []
    for number, codecs in enumerate([(0,), (1, 2, 3, 4), (0, 4)]):
        directory = log_dir / f"t-{number}"
        write_random_log(directory, 40 + number, LogShape(batches=120, codecs=codecs))
        expected += latest_rows(directory)
    report = refresh(spark, log_dir, to)
    assert_holds(spark, to, expected)
    assert {partition.status for partition in report.partitions} == {"refreshed"}
    assert report.rows_inserted == len(expected)
    assert [partition.messages_read for partition in report.partitions] == [
        len(committed_records(log_dir / partition.partition)) for partition in report.partitions
    ]


def test_a_refresh_corrects_headers_and_timestamp_types(spark, log_dir, to):
    from delta.tables import DeltaTable

    write_random_log(log_dir / "t-0", 40, LogShape(batches=20))
    refresh(spark, log_dir, to)
    other = {"headers": "array(named_struct('key', 'other', 'value', cast('x' as binary)))", "timestampType": "7"}
    for column, value in other.items():
        DeltaTable.forPath(spark, str(to)).update(set={column: value})
        report = refresh(spark, log_dir, to, from_start=True)
        assert report.rows_updated
        assert_holds(spark, to, latest_rows(log_dir / "t-0"))


def test_files_have_no_dictionary_of_keys_and_values_and_statistics_only_of_columns_with_bounds(spark, log_dir, to):
    write_random_log(log_dir / "t-3", 40, LogShape(batches=20))
    refresh(spark, log_dir, to)
    files = list(to.rglob("*.parquet"))
    assert files
    for file in files:
        group = pq.ParquetFile(file).metadata.row_group(0)
        columns = {found.path_in_schema: found for found in map(group.column, range(group.num_columns))}
        assert not any(columns[name].has_dictionary_page for name in ("key", "value"))
        assert columns["timestamp"].physical_type == "INT64"
    commits = [json.loads(line) for file in sorted((to / "_delta_log").glob("*.json")) for line in file.open()]
    bounds = [json.loads(commit["add"]["stats"])["minValues"] for commit in commits if "add" in commit]
    assert [(set(each), each["partition"]) for each in bounds] == [({"partition", "offset", "timestamp"}, 3)]


def test_a_table_whose_creation_failed_at_its_commit_is_made_by_the_next_refresh(spark, log_dir, to):
    write_random_log(log_dir / "t-0", 40, LogShape(batches=20))
    (to / "_delta_log" / "_staged_commits").mkdir(parents=True)
    (to / "_delta_log" / ".00000000000000000000.json.a1b2.tmp").write_bytes(b'{"torn')
    assert refresh(spark, log_dir, to).partitions[0].status == "refreshed"
    assert_holds(spark, to, latest_rows(log_dir / "t-0"))


def test_a_tables_log_that_holds_anything_else_is_left_as_it_is(spark, log_dir, to):
    write_random_log(log_dir / "t-0", 40, LogShape(batches=20))
    (to / "_delta_log").mkdir(parents=True)
    names = [".00000000000000000000.json.a1b2.tmp", "notes"]
    for name in names:
        (to / "_delta_log" / name).write_bytes(b"what")
    with pytest.raises(SedimentError, match="cannot be read or written"):
        refresh(spark, log_dir, to)
    assert sorted(path.name for path in (to / "_delta_log").iterdir()) == [
        ".00000000000000000000.json.a1b2.tmp",
        "notes",
    ]


@pytest.mark.parametrize("seed", [7, 8])
def test_refreshes_of_a_growing_log_lead_where_a_new_table_does(spark, tmp_path, log_dir, to, seed):
    grown = tmp_path / "grown" / "t-0"
    write_random_log(grown, seed, LogShape(batches=150, segment_bytes=4000, transactional=0.5))
    segments = len(list_segments(grown))
    for count in (segments // 3, segments // 2, segments):
        partition = first_segments(grown, log_dir / "t-0", count)
        refresh(spark, log_dir, to)
        assert_holds(spark, to, latest_rows(partition))


def test_a_partition_that_several_tasks_read_has_one_row_a_key(spark, log_dir, to, monkeypatch):
    monkeypatch.setattr(reading, "_PART_BYTES", 1)
    directory = log_dir / "t-0"
    write_random_log(directory, 31, LogShape(batches=80, segment_bytes=1500))
    for from_start in (False, True):
        refresh(spark, log_dir, to, from_start=from_start)
        assert_holds(spark, to, latest_rows(directory))


def test_a_refresh_reads_only_what_was_appended_and_commits_nothing_when_nothing_was(spark, log_dir, to):
    log = Log(log_dir / "t-0").append(a="1", b="1").append(c="1")
    log.write()
    refresh(spark, log_dir, to)
    before = versions(spark, to)
    [partition] = refresh(spark, log_dir, to).partitions
    assert partition.status == "unchanged"
    assert versions(spark, to) == before
    log.append(a="2").roll().append(b=None)
    log.write()
    report = refresh(spark, log_dir, to)
    [partition] = report.partitions
    assert (partition.first_offset, partition.next_offset, partition.messages_read) == (3, 5, 2)
    assert (report.rows_inserted, report.rows_updated, report.rows_deleted) == (0, 1, 1)
    assert values(spark, to) == {"a": "2", "c": "1"}


def test_a_tombstone_deletes_an_empty_value_counts_and_a_null_key_does_not(spark, log_dir, to):
    log = Log(log_dir / "t-0").append(gone="1", empty="1", back="1")
    log.append_records([(None, "no key"), (b"", "empty key")])
    log.write()
    refresh(spark, log_dir, to)
    assert values(spark, to) == {"gone": "1", "empty": "1", "back": "1", "": "empty key"}
    log.append(gone=None, empty="", back=None).append(back="2", never=None)
    log.write()
    refresh(spark, log_dir, to)
    assert values(spark, to) == {"empty": "", "back": "2", "": "empty key"}


def test_only_committed_data_below_the_high_watermark_is_taken(spark, log_dir, to):
    log = Log(log_dir / "t-0").append(a="1", b="1")
    log.transact(11, 0, a="aborted").end(11, ControlType.ABORT)
    log.transact(11, 1, b="committed").end(11, ControlType.COMMIT)
    log.append(c="1").transact(12, 0, a="open").append(c="after the open transaction")
    log.write()
    refresh(spark, log_dir, to)
    assert values(spark, to) == {"a": "1", "b": "committed", "c": "1"}
    log.end(12, ControlType.COMMIT).append(d="above the high watermark")
    log.write()
    write_checkpoint(log_dir / "replication-offset-checkpoint", {"t-0": log.next_offset - 1})
    [partition] = refresh(spark, log_dir, to).partitions
    assert partition.next_offset == log.next_offset - 1
    assert values(spark, to) == {"a": "open", "b": "committed", "c": "after the open transaction"}
    write_checkpoint(log_dir / "replication-offset-checkpoint", {"other-0": 5})
    [partition] = refresh(spark, log_dir, to).partitions
    assert (partition.status, partition.reason_code) == ("skipped", "no-high-watermark")


def test_the_clusters_own_topics_are_taken_only_when_they_are_named(spark, log_dir, to):
    for name in ("t-0", "__consumer_offsets-3"):
        Log(log_dir / name).append(a=name).write()
    refresh(spark, log_dir, to)
    assert values(spark, to) == {"a": "t-0"}
    refresh(spark, log_dir, to, partitions=["__consumer_offsets-*"])
    assert [row.topic for row in table(spark, to).orderBy("topic").collect()] == ["__consumer_offsets", "t"]


# ------------------------------------------------------------------------------------------ logs that are not as before
def test_rows_below_a_log_start_that_moved_on_go(spark, log_dir, to):
    log = Log(log_dir / "t-0").append(a="1", b="1").append(c="1")
    log.write()
    Log(log_dir / "t-1").append(a="other").write()
    refresh(spark, log_dir, to)
    write_checkpoint(log_dir / "log-start-offset-checkpoint", {"t-0": 2})
    refresh(spark, log_dir, to)
    assert {(row.partition, bytes(row.key)) for row in table(spark, to).collect()} == {(0, b"c"), (1, b"a")}


def test_rows_of_segments_that_a_restore_put_back_return(spark, log_dir, to, tmp_path):
    Log(log_dir / "t-0").append(a="1", b="1").roll().append(c="1").write()
    kept = tmp_path / "kept"
    expired = sediment(
        *("expire", log_dir, "--json", "--quiet", "--broker-defaults", f"--now-ms={NOW_MS}"),
        *("--set=retention.bytes=70", "--set=retention.ms=-1", f"--keep-originals={kept}"),
    )
    assert expired.status == 0, expired.stderr
    refresh(spark, log_dir, to)
    assert values(spark, to) == {"c": "1"}
    undone = sediment("restore", log_dir, f"--from={kept}", f"--run={expired.report['run_id']}", "--yes")
    assert undone.status == 0, undone.stderr
    (row,) = refresh(spark, log_dir, to).partitions
    assert (row.status, row.reason_code, row.first_offset) == ("rebuilt", "log-starts-earlier", 0)
    assert_holds(spark, to, latest_rows(log_dir / "t-0"))


def test_a_table_that_was_restored_to_an_earlier_version_is_filled_anew(spark, log_dir, to):
    log = Log(log_dir / "t-0").append(a="1", b="1")
    log.write()
    refresh(spark, log_dir, to)
    log.append(a="2", b=None, c="2").write()
    refresh(spark, log_dir, to)
    spark.sql(f"RESTORE TABLE delta.`{to}` TO VERSION AS OF 1")
    assert values(spark, to) == {"a": "1", "b": "1"}
    refresh(spark, log_dir, to)
    assert_holds(spark, to, latest_rows(log_dir / "t-0"))
    (row,) = refresh(spark, log_dir, to).partitions
    assert row.status == "unchanged"


def test_a_topic_without_an_id_that_was_created_again_replaces_all_rows_of_its_partition(spark, log_dir, to):
    Log(log_dir / "t-0").append(a="1", b="1").write()
    refresh(spark, log_dir, to)
    shutil.rmtree(log_dir / "t-0")
    Log(log_dir / "t-0").append(b="2", c="2").append(d="2").write()
    (row,) = refresh(spark, log_dir, to).partitions
    assert (row.status, row.reason_code, row.first_offset) == ("rebuilt", "created-again", 0)
    assert_holds(spark, to, latest_rows(log_dir / "t-0"))


@pytest.mark.parametrize("change", ["topic id", "shorter", "leader epoch"])
def test_another_log_under_the_same_name_replaces_all_rows_of_its_partition(spark, log_dir, to, change):
    first = Log(log_dir / "t-0").append(a="1", b="1").append(c="1")
    first.write()
    Log(log_dir / "t-1").append(x="1").write()
    (log_dir / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n3 0\n")
    (log_dir / "t-0" / "partition.metadata").write_bytes(format_partition_metadata("AAAAAAAAAAAAAAAAAAAAAQ"))
    refresh(spark, log_dir, to)
    second = Log(log_dir / "t-0").append(b="2")
    if change != "shorter":
        second.append(d="2", e="2")
    second.write()
    epochs = "0\n2\n3 0\n5 1\n" if change == "leader epoch" else "0\n1\n3 0\n"
    topic_id = "AAAAAAAAAAAAAAAAAAAAAg" if change == "topic id" else "AAAAAAAAAAAAAAAAAAAAAQ"
    (log_dir / "t-0" / "leader-epoch-checkpoint").write_text(epochs)
    (log_dir / "t-0" / "partition.metadata").write_bytes(format_partition_metadata(topic_id))
    partition = refresh(spark, log_dir, to).partitions[0]
    assert partition.status == "rebuilt"
    assert_holds(spark, to, latest_rows(log_dir / "t-0") + latest_rows(log_dir / "t-1"))


def test_a_compaction_in_between_changes_nothing(spark, log_dir, to, tmp_path):
    log = Log(log_dir / "t-0").append(a="1", b="1").append(a="2", c="1").roll().append(b=None).roll().append(d="1")
    log.write()
    refresh(spark, log_dir, to)
    log.append(a="3", c=None).roll().append(e="1").roll()
    log.write()
    expected = latest_rows(log_dir / "t-0")
    compacted = sediment("compact", log_dir, "--force", "--set=cleanup.policy=compact", "--now-ms", NOW_MS, "--json")
    assert compacted.status == 0, compacted.stderr
    refresh(spark, log_dir, to, now_ms=NOW_MS + 1000)
    assert_holds(spark, to, expected)


def test_a_tombstone_that_was_cleaned_away_before_a_refresh_saw_it_still_deletes(spark, log_dir, to):
    Log(log_dir / "t-0").append(a="1", b="1").roll().write()
    refresh(spark, log_dir, to)
    # The log once a tombstone of `a` at offset 2 has been cleaned, and cleaned away.
    cleaned = Log(log_dir / "t-0")
    cleaned.next_offset = 1
    cleaned.append(b="1")
    cleaned.next_offset = 3
    cleaned.roll().append(c="1").write()
    write_checkpoint(log_dir / "cleaner-offset-checkpoint", {"t-0": 3})
    [partition] = refresh(spark, log_dir, to, now_ms=NOW_MS + DAY_MS).partitions
    assert (partition.status, partition.reason_code) == ("rebuilt", "tombstones-may-be-gone")
    assert values(spark, to) == {"b": "1", "c": "1"}


def test_from_start_reads_the_selected_partitions_anew_and_leaves_the_others(spark, log_dir, to):
    for name in ("t-0", "t-1"):
        Log(log_dir / name).append(a="1").write()
    refresh(spark, log_dir, to)
    spark.sql(f"DELETE FROM delta.`{to}`")
    [partition] = refresh(spark, log_dir, to, partitions=["t-1"], from_start=True).partitions
    assert (partition.status, partition.reason_code) == ("rebuilt", "asked")
    assert_holds(spark, to, latest_rows(log_dir / "t-1"))


# -------------------------------------------------------------------------------------------------- what goes wrong
def test_the_jobs_of_a_refresh_are_named_by_its_run_and_its_partitions(spark, log_dir, to):
    Log(log_dir / "t-0").append(a="1").write()
    report = refresh(spark, log_dir, to)
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(report.run_id)]
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    assert {"read t-0", "write the latest of t-0"} <= {stage.name for stage in stages}


def test_a_corrupt_partition_keeps_its_rows_and_progress_and_the_others_go_on(spark, log_dir, to):
    logs = [Log(log_dir / f"t-{number}").append(a="1") for number in range(2)]
    for log in logs:
        log.write()
    refresh(spark, log_dir, to)
    for log in logs:
        log.append(a="2").roll().append(b="2").write()
    broken = list_segments(log_dir / "t-0")[0].path(".log")
    good = broken.read_bytes()
    broken.write_bytes(good[:-3] + b"???")
    report = refresh(spark, log_dir, to)
    assert [partition.status for partition in report.partitions] == ["failed", "refreshed"]
    assert report.partitions[0].reason_code == "corrupt-batch"
    assert report.failed
    rows = {(row.partition, bytes(row.key), bytes(row.value)) for row in table(spark, to).collect()}
    assert rows == {(0, b"a", b"1"), (1, b"a", b"2"), (1, b"b", b"2")}
    broken.write_bytes(good)
    report = refresh(spark, log_dir, to)
    assert [partition.status for partition in report.partitions] == ["refreshed", "unchanged"]
    assert_holds(spark, to, latest_rows(log_dir / "t-0") + latest_rows(log_dir / "t-1"))


def test_a_log_that_is_replaced_while_it_is_read_is_read_again(spark, log_dir, to, monkeypatch):
    log = Log(log_dir / "t-0").append(a="1", b="1").roll().append(c="1")
    log.write()
    split = snapshots.split_by_result
    times = []

    def replaced_afterwards(*arguments):
        times.append(1)
        if len(times) == 1:
            replace_a_segment(log_dir / "t-0")
        return split(*arguments)

    monkeypatch.setattr(snapshots, "split_by_result", replaced_afterwards)
    refresh(spark, log_dir, to)
    assert len(times) == 2
    assert_holds(spark, to, latest_rows(log_dir / "t-0"))


def replace_a_segment(directory):
    segment = list_segments(directory)[0].path(".log")
    shutil.copy(segment, segment.with_suffix(".swap"))
    segment.with_suffix(".swap").rename(segment)


def kept_rows(spark):
    """Return the numbers of the RDDs in which executors keep rows that were read."""
    kept = dict(spark.sparkContext._jsc.getPersistentRDDs())
    return [number for number, rdd in kept.items() if "MapInArrow" in (rdd.name() or "")]  # Delta keeps others


def lose_kept_rows(spark):
    """Remove kept rows as if their executors were lost."""
    assert kept_rows(spark)
    for number in kept_rows(spark):
        spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().blockManager().master().removeRdd(number, True)


def before_a_commit(monkeypatch, do):
    for name in ("fill", "merge"):
        commit = getattr(SnapshotTable, name)

        def after_that(*arguments, commit=commit):
            do()
            commit(*arguments)

        monkeypatch.setattr(SnapshotTable, name, after_that)


def test_rows_that_are_lost_before_a_commit_are_read_again(spark, log_dir, to, monkeypatch):
    logs = [Log(log_dir / f"t-{number}").append(a="1", b="1") for number in range(3)]
    before_a_commit(monkeypatch, lambda: lose_kept_rows(spark))
    for log in logs:
        log.write()
    refresh(spark, log_dir, to)
    assert_holds(spark, to, [row for log in logs for row in latest_rows(log.directory)])
    for log in logs:
        log.append(a="2", b=None).roll().append(c="2").write()
    kept = [row for row in table(spark, to).collect() if row.partition == 2]
    broken = list_segments(logs[2].directory)[1].path(".log")
    broken.write_bytes(broken.read_bytes()[:-2] + b"??")
    report = refresh(spark, log_dir, to)
    assert [row.status for row in report.partitions] == ["refreshed", "refreshed", "failed"]
    assert_holds(spark, to, [*latest_rows(logs[0].directory), *latest_rows(logs[1].directory), *kept])
    assert not kept_rows(spark)


def test_kept_rows_are_not_read_again(spark, log_dir, to, monkeypatch):
    log = Log(log_dir / "t-0").append(a="1", b="1")
    before_a_commit(monkeypatch, lambda: replace_a_segment(log_dir / "t-0"))  # which a task would refuse
    for value in ("2", "3"):
        log.append(a=value).write()
        refresh(spark, log_dir, to)
        assert_holds(spark, to, latest_rows(log_dir / "t-0"))


def test_rows_of_an_attempt_that_could_not_read_the_log_are_not_committed(spark, log_dir, to, monkeypatch):
    Log(log_dir / "t-0").append(a="1").write()
    broken = list_segments(log_dir / "t-0")[0].path(".log")
    content = broken.read_bytes()
    broken.write_bytes(content[:-2] + b"??")
    with monkeypatch.context() as patch:
        patch.setattr(reading, "parse_read_summary", lambda _: ReadSummary(1, 1))  # that of the attempt that could
        with pytest.raises(SedimentError, match="one of two attempts of a task could not read the log"):
            refresh(spark, log_dir, to)
    assert versions(spark, to) == [0]
    broken.write_bytes(content)
    refresh(spark, log_dir, to)
    assert_holds(spark, to, latest_rows(log_dir / "t-0"))


def test_rows_that_were_lost_and_cannot_be_read_again_fail_the_run_and_the_table_stays(spark, log_dir, to, monkeypatch):
    log = Log(log_dir / "t-0").append(a="1").roll().append(b="1")
    log.write()
    refresh(spark, log_dir, to)
    log.append(a="2").write()
    before = versions(spark, to)

    def lose():
        lose_kept_rows(spark)
        replace_a_segment(log_dir / "t-0")

    with monkeypatch.context() as patch:
        before_a_commit(patch, lose)
        with pytest.raises(SedimentError, match="the segment was replaced or removed after it was listed"):
            refresh(spark, log_dir, to, from_start=True)
    assert versions(spark, to) == before
    assert not kept_rows(spark)
    refresh(spark, log_dir, to)
    assert_holds(spark, to, latest_rows(log_dir / "t-0"))


def test_of_two_refreshes_from_the_same_progress_the_second_changes_nothing(spark, log_dir, to, monkeypatch):
    log = Log(log_dir / "t-0").append(a="1")
    log.write()
    refresh(spark, log_dir, to)
    log.append(a="2", b="2").write()
    merge = SnapshotTable.merge
    others = []

    def after_another(self, rows, stale, topics, progress):
        if not others:
            others.append(RefreshProgress(LATEST, "another", progress.sequence, progress.partitions))
            merge(self, rows.where("key = 'a'"), stale, topics, others[0])
            log.append(b=None).write()
        merge(self, rows, stale, topics, progress)

    monkeypatch.setattr(SnapshotTable, "merge", after_another)
    [partition] = refresh(spark, log_dir, to).partitions
    # What the other run claimed to have done stands; the refused one planned anew from there.
    assert (partition.first_offset, partition.next_offset) == (3, 4)
    assert values(spark, to) == {"a": "2"}


def test_a_log_that_always_changes_is_refused_and_the_table_stays(spark, log_dir, to, monkeypatch):
    log = Log(log_dir / "t-0").append(a="1")
    log.write()
    refresh(spark, log_dir, to)
    log.append(a="2").write()
    before = versions(spark, to)
    monkeypatch.setattr(snapshots, "refuse_replaced", lambda planned: (_ for _ in ()).throw(SourceChangedError("x")))
    with pytest.raises(SourceChangedError):
        refresh(spark, log_dir, to)
    assert versions(spark, to) == before


def test_progress_that_the_tables_log_has_forgotten_is_made_anew(spark, log_dir, to):
    Log(log_dir / "t-0").append(a="1", b="1").write()
    refresh(spark, log_dir, to)
    jvm = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(to)).checkpoint()
    spark.sql(f"ALTER TABLE delta.`{to}` SET TBLPROPERTIES ('kept.by' = 'someone')")
    for version in (0, 1):
        (to / "_delta_log" / f"{version:020d}.json").unlink()
    Log(log_dir / "t-0").append(b="2", c="2").write()
    [partition] = refresh(spark, log_dir, to).partitions
    assert partition.first_offset == 0
    assert_holds(spark, to, latest_rows(log_dir / "t-0"))
    [partition] = refresh(spark, log_dir, to).partitions
    assert partition.status == "unchanged"


# ------------------------------------------------------------------------------------------------- killed and repeated
def test_killed_before_and_after_its_commit_a_refresh_happens_exactly_once(spark, log_dir, to):
    log = Log(log_dir / "t-0").append(a="1", b="1", c="1")
    log.write()
    refresh(spark, log_dir, to)

    log.append(a="2", b=None, d="2").write()
    data_files = _data_files(to)
    _kill_when(log_dir, to, lambda: _data_files(to) > data_files)
    assert not _is_committed(to, 2)
    assert_holds(spark, to, latest_rows_at(log_dir, 3))

    _kill_when(log_dir, to, lambda: _is_committed(to, 2))
    assert_holds(spark, to, latest_rows(log_dir / "t-0"))

    log.append(d=None, e="3").write()
    [partition] = refresh(spark, log_dir, to).partitions
    assert (partition.first_offset, partition.next_offset, partition.messages_read) == (6, 8, 2)
    assert_holds(spark, to, latest_rows(log_dir / "t-0"))
    assert [progress.sequence for progress in progress_of_commits(spark, to)] == [2 + 1, 2, 1, 0]


def latest_rows_at(log_dir, end_offset):
    entries = [entry for entry in committed_records(log_dir / "t-0") if entry.record.offset < end_offset]
    return latest_rows(log_dir / "t-0", entries)


def progress_of_commits(spark, to):
    from delta.tables import DeltaTable

    rows = DeltaTable.forPath(spark, str(to)).history().select("version", "userMetadata").collect()
    return [parse_progress(row.userMetadata) for row in sorted(rows, reverse=True)]


def _data_files(to):
    return {path.name for path in to.rglob("*.parquet") if "_delta_log" not in path.parts}


def _is_committed(to, version):
    return (to / "_delta_log" / f"{version:020d}.json").exists()


def _kill_when(log_dir, to, condition):
    """Run the command in a process group of its own and kill all of it as soon as `condition` holds."""
    command = [sys.executable, "-m", "sediment.jobs.cli", "snapshot", log_dir, "--to", to, "--master", "local[1]"]
    running = subprocess.Popen(
        list(map(str, command)), start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 200
    try:
        while not condition():
            assert running.poll() is None, running.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()


# ------------------------------------------------------------------------------------------------------------- moments
def test_as_of_an_offset_the_table_holds_the_state_right_after_it(spark, log_dir, to):
    directory = log_dir / "t-0"
    write_random_log(directory, 21, LogShape(batches=120))
    entries = committed_records(directory)
    for index in (len(entries) // 3, len(entries) // 2):
        offset = entries[index].record.offset
        refresh(spark, log_dir, to, as_of=AsOf({"t-0": offset}, None))
        assert_holds(spark, to, latest_rows(directory, entries[: index + 1]))


def test_as_of_a_time_the_table_holds_the_latest_of_the_records_up_to_it(spark, log_dir, to):
    directory = log_dir / "t-0"
    write_random_log(directory, 22, LogShape(batches=120))
    entries = committed_records(directory)
    moment_ms = entries[len(entries) // 2].record.timestamp
    refresh(spark, log_dir, to, as_of=AsOf({}, moment_ms))
    assert_holds(spark, to, latest_rows(directory, [entry for entry in entries if entry.record.timestamp <= moment_ms]))


def test_a_snapshot_below_the_compacted_range_is_reported_as_incomplete(spark, log_dir, to):
    Log(log_dir / "t-0").append(a="1", b="1").append(c="1").write()
    write_checkpoint(log_dir / "cleaner-offset-checkpoint", {"t-0": 3})
    [partition] = refresh(spark, log_dir, to, as_of=AsOf({"t-0": 1}, None)).partitions
    assert partition.reason_code == "compacted"
    assert values(spark, to) == {"a": "1", "b": "1"}


def test_a_table_of_the_latest_and_one_of_a_moment_do_not_mix(spark, log_dir, to, tmp_path):
    Log(log_dir / "t-0").append(a="1").write()
    refresh(spark, log_dir, to)
    with pytest.raises(UsageError, match="contains the latest values"):
        refresh(spark, log_dir, to, as_of=AsOf({}, NOW_MS))
    moment = tmp_path / "moment"
    refresh(spark, log_dir, moment, as_of=AsOf({}, NOW_MS))
    with pytest.raises(UsageError, match="contains the state as of an offset or time"):
        refresh(spark, log_dir, moment)
    foreign = tmp_path / "foreign"
    spark.range(3).write.format("delta").save(str(foreign))
    with pytest.raises(UsageError, match="was not made by snapshot"):
        refresh(spark, log_dir, foreign)


def test_a_bare_offset_is_for_one_partition():
    assert parse_as_of([], None, ["a-0"]) is None
    assert parse_as_of(["5"], None, ["a-0"]) == AsOf({"a-0": 5}, None)
    assert parse_as_of(["b-1:7", "a-0:5"], 9, ["a-0", "b-1"]) == AsOf({"b-1": 7, "a-0": 5}, 9)
    for wrong in (["5"], ["c-0:5"], ["a-0:x"], ["a-0:"]):
        with pytest.raises(UsageError):
            parse_as_of(wrong, None, ["a-0", "b-1"])


# ---------------------------------------------------------------------------------------------------------- command
def test_the_command_reports_in_json_and_keeps_the_ledger(spark, log_dir, to, tmp_path):
    Log(log_dir / "t-0").append(a="1", b="1").write()
    outcome = sediment("snapshot", log_dir, "--to", to, "--json", "--now-ms", NOW_MS, "--ledger", tmp_path / "ledger")
    assert outcome.status == 0, outcome.stderr
    assert outcome.report["partitions"][0]["next_offset"] == 2
    assert (outcome.report["version"], outcome.report["rows_inserted"]) == (1, 2)
    history = sediment("history", tmp_path / "ledger", "--json").report
    assert [run["run_id"] for run in history["runs"]] == [outcome.report["run_id"]]
    assert history["runs"][0]["partitions"][0]["other"]["first_offset"] == 0


@pytest.mark.parametrize("place", ["inside", "file", "directory"])
def test_a_place_that_no_table_can_be_at_is_refused_before_spark_starts(log_dir, tmp_path, place):
    Log(log_dir / "t-0").append(a="1").write()
    to = {"inside": log_dir / "table", "file": tmp_path / "file", "directory": tmp_path / "full"}[place]
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    started = time.monotonic()
    outcome = sediment("snapshot", log_dir, "--to", to)
    assert outcome.status == 2
    assert str(to) in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1
    assert time.monotonic() - started < 20
    assert not (log_dir / "table").exists()
