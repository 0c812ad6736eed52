"""The latest record of each key of a slice, as a snapshot task returns it; without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sediment.jobs.delta_lake import latest_per_key
from sediment.jobs.delta_lake.latest_per_key import (
    REQUEST,
    SUMMARY_TOPIC,
    LatestPerKey,
    PartitionPart,
    ReadSummary,
    latest_of,
    parse_read_summary,
    read_latest,
)
from sediment.segment_io.errors import SourceChangedError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.sources import find_sources
from sediment.segment_io.segment import columns
from sediment.segment_io.tables.planning import plan_table
from sediment.segment_io.tables.schema import arrow_schema
from tests.jobs.snapshots import Log, committed_records, latest_rows
from tests.logs import LogShape, write_random_log
from tests.twin.segments import list_segments


def scan_tasks_of(directory, slice_bytes=1 << 20):
    tasks = plan_table(REQUEST, find_sources([directory], Fs()), Fs(), task_bytes=slice_bytes)
    return [scan_task for task in tasks for scan_task in task.scan_tasks]


def split(batches):
    """(record rows, summaries)."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    summaries = {row["partition"]: parse_read_summary(row["value"]) for row in rows if row["topic"] == SUMMARY_TOPIC}
    return [row for row in rows if row["topic"] != SUMMARY_TOPIC], summaries


@pytest.mark.parametrize("held_bytes", [1, latest_per_key.HELD_BYTES])
def test_the_highest_offset_of_each_key_is_its_latest_record(tmp_path, monkeypatch, held_bytes):
    monkeypatch.setattr(latest_per_key, "HELD_BYTES", held_bytes)
    monkeypatch.setattr(columns, "TABLE_ROWS", 32)
    directory = tmp_path / "t-3"
    write_random_log(directory, 5, LogShape(batches=150, codecs=(0, 4)))
    scan_tasks = scan_tasks_of(directory, 4096)
    assert len(scan_tasks) > 2
    parts = [PartitionPart(0, tuple(scan_tasks[:2])), PartitionPart(1, tuple(scan_tasks[2:]))]
    records, summaries = split([batch for part in parts for batch in read_latest(part, Fs())])
    newest = {}
    for row in records:
        if row["key"] not in newest or row["offset"] > newest[row["key"]]["offset"]:
            newest[row["key"]] = row
    found = {key: (row["offset"], row["value"]) for key, row in newest.items() if row["value"] is not None}
    assert found == {row[0]: (row[4], row[1]) for row in latest_rows(directory)}
    assert sorted(summaries) == [0, 1]
    assert sum(summary.messages_read for summary in summaries.values()) == len(committed_records(directory))
    assert all(summary.reason is None for summary in summaries.values())
    assert all((summary.emissions > 1) == (held_bytes == 1) for summary in summaries.values())


def test_a_part_has_one_row_a_key_unless_it_is_too_much_to_hold(tmp_path):
    log = Log(tmp_path / "t-0")
    for number in range(50):
        log.append(a=str(number), b=None)
    log.roll().append(a="last")
    records, summaries = split(read_latest(PartitionPart(0, tuple(scan_tasks_of(log.write()))), Fs()))
    assert [(row["key"], row["value"], row["offset"]) for row in records] == [(b"b", None, 99), (b"a", b"last", 100)]
    assert summaries == {0: ReadSummary(messages_read=101, emissions=1)}


def test_records_without_a_key_are_read_and_left_out(tmp_path):
    log = Log(tmp_path / "t-0").append_records([(None, "x"), (b"", "y"), (None, None)])
    records, summaries = split(read_latest(PartitionPart(0, tuple(scan_tasks_of(log.write()))), Fs()))
    assert [row["key"] for row in records] == [b""]
    assert summaries[0].messages_read == 3


def test_a_part_that_cannot_be_read_says_so_in_its_summary_and_the_next_is_read(tmp_path):
    log = Log(tmp_path / "t-0").append(a="1").roll().append(a="2")
    directory = log.write()
    broken = list_segments(directory)[0].path(".log")
    broken.write_bytes(broken.read_bytes()[:-2] + b"??")
    parts = [PartitionPart(number, (scan_task,)) for number, scan_task in enumerate(scan_tasks_of(directory))]
    records, summaries = split([batch for part in parts for batch in read_latest(part, Fs())])
    assert [row["value"] for row in records] == [b"2"]
    assert summaries[0].reason_code == "corrupt-batch"
    assert str(broken) in summaries[0].reason
    assert summaries[1] == ReadSummary(messages_read=1, emissions=1)


def test_a_part_that_is_read_again_gives_the_same_rows_or_an_error(tmp_path):
    directory = Log(tmp_path / "t-0").append(a="1", b="1").roll().append(a="2").write()
    parts = [PartitionPart(number, (scan_task,)) for number, scan_task in enumerate(scan_tasks_of(directory))]
    first = [batch for part in parts for batch in read_latest(part, Fs())]
    ids = pa.RecordBatch.from_pydict({"id": [0]})
    read_again = LatestPerKey([parts])  # no job of Spark has said that its errors are looked at
    segment = list_segments(directory)[0].path(".log")
    content = segment.read_bytes()
    segment.rename(f"{segment}.deleted")
    segment.write_bytes(content[: len(content) // 2])
    assert list(read_again(iter([ids]))) == first
    segment.with_name(f"{segment.name}.deleted").unlink()
    with pytest.raises(SourceChangedError, match="the segment was replaced or removed after it was listed"):
        list(read_again(iter([ids])))


def test_every_batch_has_the_schema_declared_to_spark(tmp_path):
    directory = Log(tmp_path / "t-0").append(a="1").write()
    for batch in read_latest(PartitionPart(0, tuple(scan_tasks_of(directory))), Fs()):
        assert batch.schema == arrow_schema(REQUEST.selected())


def test_of_equal_keys_the_last_row_stays_in_its_order():
    table = pa.table({"key": [b"a", b"b", b"a", b"c", b"b"], "n": [0, 1, 2, 3, 4]})
    assert latest_of(table).column("n").to_pylist() == [2, 3, 4]
