"""Bytes that are read for given bounds, cuts of segments, and slices whose files change."""

import shutil
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.segment_io.errors import SourceChangedError
from sediment.segment_io.format.offset_index import OffsetIndex
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.live_segments import live_segments
from sediment.segment_io.partition.slices import (
    ALL,
    Bounds,
    current_slices,
    is_replaced,
    opened,
    plan_slices,
    slices_from_end,
)
from sediment.segment_io.partition.sources import find_sources
from sediment.segment_io.tables.planning import plan_table
from sediment.segment_io.tables.readers import read_table
from sediment.segment_io.tables.schema import TableRequest
from tests.logs import LogShape, write_random_log
from tests.segments import batch_bytes, write_segment
from tests.tables import read_rows
from tests.twin.batches import Record
from tests.twin.legacy import encode_legacy
from tests.twin.segments import list_segments

START_MS = 1_700_000_000_000
BATCHES = 200


@pytest.fixture
def partition(tmp_path):
    """Write three segments of 200 batches of three records, with rising timestamps, indexed every 500 bytes."""
    directory = tmp_path / "logs" / "t-0"
    for base in (0, 600, 1200):
        batches = [
            batch_bytes(offset, "abc", value=b"v" * 60, timestamp=START_MS + offset)
            for offset in range(base, base + 3 * BATCHES, 3)
        ]
        write_segment(directory, base, batches, index_interval_bytes=500)
    write_segment(directory, 1800)
    return directory


def source_of(directory):
    (source,) = find_sources([directory], Fs())
    return source


def slices(directory, bounds=ALL, *, slice_bytes=1 << 30):
    return plan_slices(source_of(directory), bounds, Fs(), slice_bytes=slice_bytes)


def offsets(directory, bounds, **options):
    return [row["offset"] for row in read_rows(directory, bounds=bounds, columns=("offset",), **options)]


LOG_BYTES = BATCHES * len(batch_bytes(0, "abc", value=b"v" * 60, timestamp=START_MS))


# -------------------------------------------------------------------------------------------------------- pushed bounds
def test_an_unbounded_scan_reads_every_byte_once(partition, log_bytes_read):
    assert offsets(partition, ALL) == list(range(1800))
    assert log_bytes_read == {f"{base:020d}.log": LOG_BYTES for base in (0, 600, 1200)}


def test_offset_bounds_skip_segments_and_ranges_of_segments(partition, log_bytes_read):
    assert offsets(partition, Bounds(first_offset=900, end_offset=930)) == list(range(900, 930))
    assert set(log_bytes_read) == {f"{600:020d}.log"}
    assert log_bytes_read[f"{600:020d}.log"] < LOG_BYTES / 8


def test_a_lower_timestamp_bound_skips_segments_and_the_head_of_one(partition, log_bytes_read):
    assert offsets(partition, Bounds(first_timestamp_ms=START_MS + 1110)) == list(range(1110, 1800))
    assert set(log_bytes_read) == {f"{600:020d}.log", f"{1200:020d}.log"}
    assert log_bytes_read[f"{600:020d}.log"] < LOG_BYTES / 4


def test_bounds_between_segments_read_nothing(partition, log_bytes_read):
    assert offsets(partition, Bounds(first_offset=1800)) == []
    assert offsets(partition, Bounds(end_offset=0)) == []
    assert offsets(partition, Bounds(first_timestamp_ms=START_MS + 5000)) == []
    assert not log_bytes_read


def test_a_column_less_selection_by_partition_opens_no_other(partition, log_bytes_read):
    shutil.copytree(partition, partition.with_name("t-1"))
    request = TableRequest(partitions=frozenset({1}), bounds=Bounds(end_offset=3), columns=("partition",))
    assert [row["partition"] for row in read_rows(partition.parent, request)] == [1, 1, 1]
    assert sum(log_bytes_read.values()) < LOG_BYTES / 8


@settings(max_examples=60, deadline=None)
@given(*[st.integers(-5, 1900)] * 4, st.integers(500, 20000))
def test_any_bounds_give_exactly_the_records_within(shared_partition, first, end, first_ms, end_ms, task_bytes):
    bounds = Bounds(first, end, START_MS + first_ms, START_MS + end_ms)
    expected = list(range(max(first, first_ms, 0), min(end, end_ms, 1800)))
    assert offsets(shared_partition, bounds, task_bytes=task_bytes) == expected


@pytest.fixture(scope="module")
def shared_partition(tmp_path_factory):
    directory = tmp_path_factory.mktemp("logs") / "t-0"
    for base in (0, 600, 1200):
        batches = [batch_bytes(o, "abc", timestamp=START_MS + o) for o in range(base, base + 600, 3)]
        # Three records of a batch share a timestamp in the helper; these tests want one each.
        write_segment(directory, base, [spread_times(batch) for batch in batches], index_interval_bytes=300)
    write_segment(directory, 1800)
    return directory


def spread_times(data):
    from tests.twin.batches import encode_batch, parse_batch

    batch = parse_batch(data)
    records = [Record(r.offset, START_MS + r.offset, r.key, r.value) for r in batch.records()]
    return encode_batch(records, base_offset=batch.base_offset, leader_epoch=0)


@pytest.mark.parametrize("seed", range(6))
def test_random_logs_with_disordered_times_lose_nothing_to_bounds(seed, tmp_path):
    directory = tmp_path / "t-0"
    write_random_log(directory, seed, LogShape(codecs=(0, 3)))
    rows = read_rows(directory, columns=("offset", "timestamp"))
    times = sorted(row["timestamp"] for row in rows)
    for first_ms, end_ms in ((times[len(times) // 2], times[-1]), (times[-3], 2**62), (-1, times[len(times) // 3])):
        expected = [row for row in rows if first_ms <= row["timestamp"] < end_ms]
        bounds = Bounds(first_timestamp_ms=first_ms, end_timestamp_ms=end_ms)
        assert read_rows(directory, bounds=bounds, columns=("offset", "timestamp"), task_bytes=700) == expected


# ----------------------------------------------------------------------------------------------------------------- cuts
def test_a_segment_is_cut_at_index_positions_into_slices_that_join(partition):
    found = [piece for piece in slices(partition, slice_bytes=2000) if piece.segment.base_offset == 0]
    assert len(found) > LOG_BYTES // 2600
    assert [piece.end_position for piece in found[:-1]] == [piece.start_position for piece in found[1:]]
    assert [piece.end_offset for piece in found[:-1]] == [piece.start_offset for piece in found[1:]]
    assert (found[0].start_position, found[-1].end_position) == (0, LOG_BYTES)
    positions = {position for position, _batch in list_segments(partition)[0].batches()}
    assert {piece.start_position for piece in found} <= positions


def test_slices_of_one_segment_go_to_several_tasks_whose_rows_are_the_whole(partition, log_bytes_read):
    request = TableRequest(columns=("offset",))
    tasks = plan_table(request, [source_of(partition)], Fs(), task_bytes=4000)
    assert len(tasks) > 10
    log_bytes_read.clear()
    rows = [row["offset"] for task in tasks for b in read_table(request, task, Fs()) for row in b.to_pylist()]
    assert rows == list(range(1800))
    assert sum(log_bytes_read.values()) == 3 * LOG_BYTES


def test_small_segments_share_a_task(tmp_path):
    for number in range(30):
        write_segment(tmp_path / f"t-{number}", 0, [batch_bytes(0)])
    tasks = plan_table(TableRequest(), find_sources([tmp_path], Fs()), Fs(), task_bytes=10 << 20)
    assert [len(task.scan_tasks) for task in tasks] == [10, 10, 10]


@pytest.mark.parametrize("damage", ["positions", "offsets", "garbage", "missing", "empty"])
def test_a_wrong_index_costs_cuts_but_no_rows(damage, partition):
    index = partition / f"{0:020d}.index"
    entries = np.frombuffer(index.read_bytes(), dtype=">i4").reshape(-1, 2).copy()
    if damage == "positions":
        entries[:, 1] += 1
    elif damage == "offsets":
        entries[:, 0] -= 3
    index.write_bytes(entries.tobytes() if damage in ("positions", "offsets") else b"garbage!" * 9)
    if damage == "missing":
        index.unlink()
    elif damage == "empty":
        index.write_bytes(b"")
    assert offsets(partition, Bounds(first_offset=300, end_offset=320), task_bytes=2000) == list(range(300, 320))
    assert offsets(partition, ALL, task_bytes=2000) == list(range(1800))
    cuts = [piece for piece in slices(partition, slice_bytes=2000) if piece.segment.base_offset == 0]
    assert len(cuts) == 1 or damage == "offsets"


def test_an_index_written_before_4_1_names_the_last_offset_of_an_append(partition):
    segment = list_segments(partition)[0]
    batches = segment.batches()
    appends = [(batches[at][0], batches[at + 4][1].last_offset) for at in range(5, BATCHES - 5, 5)]
    positions, ends = zip(*appends, strict=True)
    index = OffsetIndex(0, np.array(ends, dtype=np.int64), np.array(positions, dtype=np.int64))
    (partition / f"{0:020d}.index").write_bytes(index.to_bytes())
    cuts = [piece for piece in slices(partition, slice_bytes=2000) if piece.segment.base_offset == 0]
    assert len(cuts) > 5
    for first in (14, 15, 29, 31, 44, 45, 599):
        assert offsets(partition, Bounds(first, first + 2)) == [first, first + 1]


def test_a_segment_of_compressed_messages_of_magic_1_is_not_cut(tmp_path):
    records = [Record(offset, START_MS, b"k", b"v" * 50) for offset in range(400)]
    sets = [encode_legacy(records[at : at + 4], magic=1, codec=1) for at in range(0, 400, 4)]
    write_segment(tmp_path / "t-0", 0, sets, index_interval_bytes=200)
    assert len(slices(tmp_path / "t-0", slice_bytes=1000)) == 1
    assert offsets(tmp_path / "t-0", Bounds(122, 125)) == [122, 123, 124]


def test_the_zeros_of_a_preallocated_index_are_not_read(partition, log_bytes_read, monkeypatch):
    index = partition / f"{1200:020d}.index"
    for base in (1800,):
        for suffix in (".log", ".index", ".timeindex"):
            (partition / f"{base:020d}{suffix}").unlink()
    index.write_bytes(index.read_bytes() + bytes(1 << 20))
    assert offsets(partition, Bounds(1500, 1503)) == [1500, 1501, 1502]
    assert log_bytes_read[f"{1200:020d}.log"] < LOG_BYTES / 4


# -------------------------------------------------------------------------------------------------------- changing logs
def test_a_slice_of_a_segment_that_grew_is_still_good(partition):
    path = partition / f"{1200:020d}.log"
    for suffix in (".log", ".index", ".timeindex"):
        (partition / f"{1800:020d}{suffix}").unlink()
    piece = slices(partition)[-1]
    with path.open("ab") as file:
        file.write(batch_bytes(1800))
    with opened(piece) as descriptor:
        assert descriptor is not None


def test_a_slice_is_stale_if_a_larger_file_got_the_inode_of_its_file(partition):
    path = partition / f"{600:020d}.log"
    (piece,) = [piece for piece in slices(partition) if piece.segment.base_offset == 600]
    assert not is_replaced(piece)
    content = path.read_bytes()
    path.unlink()
    time.sleep(0.02)  # a kernel's clock may advance only every 10 ms
    path.write_bytes(content + batch_bytes(1200))
    reused = replace(piece, inode=path.stat().st_ino)
    with opened(reused) as descriptor:
        assert descriptor is None
    assert is_replaced(reused)
    path.unlink()
    assert is_replaced(piece)


def test_a_slice_of_a_replaced_segment_is_stale_and_its_offsets_are_found_again(partition):
    stale = [piece for piece in slices(partition, slice_bytes=4000) if piece.segment.base_offset == 600][2]
    path = partition / f"{600:020d}.log"
    content = path.read_bytes()
    path.with_suffix(".new").write_bytes(content[: LOG_BYTES // 2])
    path.with_suffix(".new").rename(path)
    with opened(stale) as descriptor:
        assert descriptor is None
    (piece,) = current_slices(stale, Fs())
    assert (piece.start_offset, piece.end_offset) == (stale.start_offset, stale.end_offset)
    assert piece.start_position <= stale.start_position


def read_planned(tasks, request, **options):
    batches = [batch for task in tasks for batch in read_table(request, task, Fs(), **options)]
    return [row["offset"] for batch in batches for row in batch.to_pylist()]


def test_rows_planned_before_a_compaction_are_those_that_it_left(partition):
    request = TableRequest(columns=("offset",))
    tasks = plan_table(request, [source_of(partition)], Fs(), task_bytes=4000)
    merged = [batch for base in (0, 600) for batch in range(base, base + 600, 6)]
    for base in (0, 600):
        for suffix in (".log", ".index", ".timeindex"):
            path = partition / f"{base:020d}{suffix}"
            path.rename(path.with_name(path.name + ".deleted"))
    write_segment(partition, 0, [batch_bytes(offset, "abc") for offset in merged], index_interval_bytes=500)
    kept = [offset + delta for offset in merged for delta in range(3)]
    assert read_planned(tasks, request) == kept + list(range(1200, 1800))


def delete_as_a_broker_does(partition, base):
    """Rename the files of a segment; return what they are called now."""
    paths = [partition / f"{base:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")]
    return [path.rename(path.with_name(path.name + ".deleted")) for path in paths]


def test_rows_without_following_are_those_planned_as_long_as_their_file_exists(partition):
    request = TableRequest(columns=("offset",))
    tasks = plan_table(request, [source_of(partition)], Fs(), task_bytes=4000)
    deleted = delete_as_a_broker_does(partition, 600)
    write_segment(partition, 600, [batch_bytes(600, "abc")], index_interval_bytes=500)
    assert read_planned(tasks, request, follow=False) == list(range(1800))
    for path in deleted:
        path.unlink()
    with pytest.raises(SourceChangedError, match=r"after it was listed.*load the directory again"):
        read_planned(tasks, request, follow=False)


def test_bytes_of_a_corrupt_batch_are_those_planned_or_an_error(partition):
    log = partition / f"{600:020d}.log"
    content = bytearray(log.read_bytes())
    content[80] ^= 1
    log.write_bytes(bytes(content))
    request = TableRequest(columns=("value", "corruption"), on_corruption="rows")
    tasks = plan_table(request, [source_of(partition)], Fs())

    def shown():
        batches = [batch for task in tasks for batch in read_table(request, task, Fs(), follow=False)]
        return [row["value"] for batch in batches for row in batch.to_pylist() if row["corruption"]]

    delete_as_a_broker_does(partition, 600)
    write_segment(partition, 600, [batch_bytes(600, "abc", value=b"another")], index_interval_bytes=500)
    size = len(shown()[0])
    assert shown() == [bytes(content[:size])]


def test_rows_that_retention_removed_meanwhile_are_an_error_or_told(partition):
    request = TableRequest(columns=("offset",))
    tasks = plan_table(request, [source_of(partition)], Fs(), task_bytes=1 << 30)
    for suffix in (".log", ".index", ".timeindex"):
        (partition / f"{0:020d}{suffix}").unlink()
    with pytest.raises(SourceChangedError, match="begins at offset 600"):
        read_planned(tasks, request)
    lost = []
    rows = read_planned(tasks, request, on_lost=lambda piece, first: lost.append((piece.start_offset, first)))
    assert rows == list(range(600, 1800))
    assert lost == [(0, 600)]


def test_a_partition_that_is_gone_is_an_error(partition):
    request = TableRequest(columns=("offset",))
    tasks = plan_table(request, [source_of(partition)], Fs())
    shutil.rmtree(partition)
    with pytest.raises(SourceChangedError, match="was removed while"):
        read_planned(tasks, request)


def test_a_segment_listed_and_gone_before_it_was_opened_is_looked_for_anew(partition, monkeypatch):
    source = source_of(partition)
    listed = live_segments(source, Fs())
    monkeypatch.setattr("sediment.segment_io.partition.slices.live_segments", lambda *_: listed)
    path = partition / f"{600:020d}.log"
    path.rename(path.with_suffix(".aside"))
    request = TableRequest(columns=("offset",))
    tasks = plan_table(request, [source], Fs())
    path.with_suffix(".aside").rename(path)
    monkeypatch.undo()
    assert read_planned(tasks, request) == list(range(1800))


@pytest.mark.parametrize("bounds", [ALL, Bounds(300, 1500), Bounds(601), Bounds(first_timestamp_ms=START_MS + 700)])
def test_slices_from_the_end_are_small_first_and_join_to_the_planned_bytes(bounds, partition, monkeypatch):
    monkeypatch.setattr("sediment.segment_io.partition.slices._LAST_SLICE_BYTES", 1000)
    (source,) = find_sources([partition], Fs())
    found = list(slices_from_end(source, bounds, Fs()))
    for planned in plan_slices(source, bounds, Fs()):
        parts = [part for part in found if part.path == planned.path]
        assert parts[0].size_bytes < 2000 < parts[1].size_bytes
        assert (parts[-1].start_position, parts[0].end_position) == (planned.start_position, planned.end_position)
        assert (parts[-1].start_offset, parts[0].end_offset) == (planned.start_offset, planned.end_offset)
        for later, earlier in pairwise(parts):
            assert (earlier.end_position, earlier.end_offset) == (later.start_position, later.start_offset)
    assert sorted(found, key=lambda part: part.start_offset, reverse=True) == found
