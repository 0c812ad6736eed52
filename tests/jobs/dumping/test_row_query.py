"""Records by key, by header and from the end, compared with a full read."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from sediment.jobs.dumping.plain_rows import rows_of
from sediment.jobs.dumping.record_selection import RecordSelection
from sediment.jobs.dumping.row_query import RowQuery
from sediment.segment_io.errors import UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition import slices
from sediment.segment_io.partition.slices import Bounds
from sediment.segment_io.partition.sources import find_sources
from sediment.segment_io.tables.schema import READ_COMMITTED, TableRequest
from tests.segments import ABORT, COMMIT, NOW_MS, batch_bytes, marker_bytes, write_segment
from tests.twin.batches import Record, RecordHeader, encode_batch


def selection(*keys: str, header: tuple[str, ...] = (), key_format: str = "text") -> RecordSelection:
    return RecordSelection.parse(keys, key_format, header, messages_only=False)


def offsets(path: Path, chosen: RecordSelection, last: int | None = None, **request: Any) -> list[int]:
    wanted = TableRequest(columns=("offset",), **request)
    query = RowQuery(wanted, find_sources([path], Fs()), chosen, last)
    batches = list(query.batches(Fs(), lambda _unreadable: None))
    assert all(batch.num_rows and batch.schema.names == ["offset"] for batch in batches)
    return [row["offset"] for batch in batches for row in rows_of(batch)]


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Transactions of producer 1 (committed) and 2 (aborted), and records with headers."""
    headers = (RecordHeader(b"trace", b"a"), RecordHeader(b"trace", b"b"), RecordHeader(b"empty", None))
    records = [
        Record(6, NOW_MS, b"x", b"1", headers),
        Record(7, NOW_MS, None, b"2"),
        Record(8, NOW_MS, b"\xff", b"3", (RecordHeader(b"other", b"a"),)),
    ]
    batches = [
        batch_bytes(0, "xy", producer_id=1, transactional=True),
        batch_bytes(2, "xz", producer_id=2, transactional=True),
        marker_bytes(4, COMMIT, producer_id=1),
        marker_bytes(5, ABORT, producer_id=2),
        encode_batch(records, base_offset=6, leader_epoch=0),
    ]
    write_segment(tmp_path / "t-0", 0, batches)
    return tmp_path / "t-0"


def test_keys_select_records_by_their_bytes(partition: Path) -> None:
    assert offsets(partition, selection("x")) == [0, 2, 6]
    assert offsets(partition, selection("y", "z")) == [1, 3]
    assert offsets(partition, selection("ff", key_format="hex")) == [8]
    assert offsets(partition, selection("eA==", key_format="base64"), isolation=READ_COMMITTED) == [0, 6]
    assert offsets(partition, selection("absent")) == []


def test_headers_select_records_that_have_all_of_them(partition: Path) -> None:
    assert offsets(partition, selection(header=("trace",))) == [6]
    assert offsets(partition, selection(header=("trace=b",))) == [6]
    assert offsets(partition, selection(header=("trace=b", "empty"))) == [6]
    assert offsets(partition, selection(header=("trace=b", "other"))) == []
    assert offsets(partition, selection(header=("empty=",))) == []
    assert offsets(partition, selection("x", header=("other",))) == []


def test_only_messages_of_applications_are_selected_if_asked(partition: Path) -> None:
    messages = RecordSelection(messages_only=True)
    assert offsets(partition, messages) == [0, 1, 2, 3, 6, 7, 8]
    assert offsets(partition, messages, isolation=READ_COMMITTED) == [0, 1, 6, 7, 8]


@pytest.mark.parametrize(("keys", "key_format"), [(("zz",), "hex"), (("a",), "base64"), (("\udcff",), "text")])
def test_a_malformed_key_is_wrong_use_and_not_quoted(keys: tuple[str, ...], key_format: str) -> None:
    with pytest.raises(UsageError) as caught:
        selection(*keys, key_format=key_format)
    assert caught.value.what == f"a key of --key is not in format {key_format}"
    with pytest.raises(UsageError):
        selection(header=("=a",))


def test_the_last_records_are_the_end_of_a_full_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On random logs with missing offsets, in every range and isolation."""
    monkeypatch.setattr(slices, "_LAST_SLICE_BYTES", 200)
    draw = random.Random(20)
    for number in range(12):
        path, offset = tmp_path / f"t-{number}", 0
        for base in range(draw.randrange(1, 4)):
            batches = []
            first = offset
            for _ in range(draw.randrange(0 if base else 1, 12)):
                batches.append(batch_bytes(offset, "".join(draw.choices("abc", k=draw.randrange(1, 6)))))
                offset += draw.choice((5, 6, 90, 1000))
            write_segment(path, first, batches, index_interval_bytes=64)
            offset += 5
        for _ in range(12):
            keys = tuple(draw.sample("abc", draw.randrange(3)))
            count = draw.choice((0, 1, 2, 7, 1000))
            bounds = Bounds(draw.randrange(offset), draw.randrange(offset + 1)) if draw.random() < 0.5 else Bounds()
            isolation = draw.choice((READ_COMMITTED, "read_uncommitted"))
            everything = offsets(path, selection(*keys), bounds=bounds, isolation=isolation)
            found = offsets(path, selection(*keys), count, bounds=bounds, isolation=isolation)
            assert found == everything[len(everything) - min(count, len(everything)) :]


def test_the_last_records_of_a_damaged_log_are_the_end_of_a_full_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each corrupt batch is a row once, in its place, and is reported once."""
    monkeypatch.setattr(slices, "_LAST_SLICE_BYTES", 200)
    draw = random.Random(21)
    for number in range(8):
        path, offset = tmp_path / f"t-{number}", 0
        for _ in range(draw.randrange(1, 4)):
            first, batches = offset, []
            for _ in range(draw.randrange(2, 40)):
                batch = bytearray(batch_bytes(offset, "abcdefghij", value=b"v" * draw.choice((10, 3000))))
                if draw.random() < 0.3:
                    batch[-1] ^= 0xFF
                batches.append(bytes(batch))
                offset += 10
            write_segment(path, first, batches, index_interval_bytes=64)
        everything, _ = damaged_rows(path, "rows", None)
        for count in (1, 9, 10, 11, 100, draw.randrange(1, 300), 10_000):
            found, reported = damaged_rows(path, "rows", count)
            assert found == everything[-count:]
            assert len(reported) == len(set(reported))
            skipped, reported = damaged_rows(path, "skip", count)
            assert skipped == [row for row in everything if row[1] is None][-count:]
            assert len(reported) == len(set(reported))


def damaged_rows(path: Path, on_corruption: str, last: int | None) -> tuple[list[tuple[int, str | None]], list[object]]:
    """Return (offset, corruption) of the last rows, and the places that were reported."""
    columns = ("offset", "corruption") if on_corruption == "rows" else ("offset",)
    request = TableRequest(columns=columns, on_corruption=on_corruption)
    reported: list[object] = []
    query = RowQuery(request, find_sources([path], Fs()), last=last)
    rows = [
        (row["offset"], row.get("corruption"))
        for batch in query.batches(Fs(), lambda each: reported.append((each.scan_task.slice.path, each.position)))
        for row in rows_of(batch)
    ]
    return rows, reported


@pytest.mark.parametrize("isolation", [READ_COMMITTED, "read_uncommitted"])
def test_the_last_records_of_one_segment_are_those_before_its_end(isolation: str, tmp_path: Path) -> None:
    first = write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abc")])
    last = write_segment(tmp_path / "t-0", 1000, [batch_bytes(1000, "def")])
    removed = first.with_name(f"{5000:020d}.log.deleted")
    removed.write_bytes(batch_bytes(5000, "xyz"))
    assert offsets(first, RecordSelection(), 2, isolation=isolation) == [1, 2]
    assert offsets(last, RecordSelection(), 2, isolation=isolation) == [1001, 1002]
    assert offsets(first, RecordSelection(), 9, bounds=Bounds(1, 900), isolation=isolation) == [1, 2]
    assert offsets(removed, RecordSelection(), 2) == [5001, 5002]


def test_the_last_records_are_those_of_each_partition(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abc")])
    write_segment(tmp_path / "t-1", 0, [batch_bytes(0, "de")])
    write_segment(tmp_path / "t-2", 0)
    assert offsets(tmp_path, RecordSelection(), 2) == [1, 2, 0, 1]
