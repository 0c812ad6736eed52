"""Record and batch columns against the plain Python twin, on random logs and at the edges of tables."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.segment import columns
from tests.logs import LogShape, write_random_log
from tests.tables import read_rows
from tests.twin.batches import Record, RecordHeader, encode_batch
from tests.twin.framing import NAMES
from tests.twin.segments import list_segments

ALL_CODECS = LogShape(codecs=(0, 1, 2, 3, 4), headers=0.4)


def twin_rows(directory):
    return [
        {
            "key": record.key,
            "value": record.value,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestampType": 1 if batch.timestamp_type == "LogAppendTime" else 0,
            "headers": [{"key": h.key.decode(), "value": h.value} for h in record.headers] or None,
            "batchBaseOffset": batch.base_offset,
            "codec": NAMES[batch.codec],
            "producerId": batch.producer_id,
            "producerEpoch": batch.producer_epoch,
            "sequence": batch.sequence_of(record),
            "transactional": batch.is_transactional,
            "control": batch.is_control,
            "leaderEpoch": batch.leader_epoch,
        }
        for segment in list_segments(directory)
        for _position, batch in segment.batches()
        for record in batch.records()
    ]


def without(rows, *names):
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def write_log(directory, content):
    directory.mkdir(exist_ok=True)
    (directory / "00000000000000000000.log").write_bytes(content)
    return directory


@pytest.mark.parametrize("seed", range(12))
def test_random_logs_read_as_the_twin_reads_them(seed, tmp_path):
    write_random_log(tmp_path / "t-0", seed, ALL_CODECS)
    assert without(read_rows(tmp_path / "t-0"), "topic", "partition", "size") == twin_rows(tmp_path / "t-0")


@pytest.mark.parametrize(("rows", "size_bytes"), [(1, 1 << 20), (7, 1 << 20), (1 << 16, 1), (1 << 16, 300)])
def test_tables_of_any_size_hold_the_same_rows(rows, size_bytes, tmp_path, monkeypatch):
    write_random_log(tmp_path / "t-0", 99, ALL_CODECS)
    expected = read_rows(tmp_path / "t-0")
    monkeypatch.setattr(columns, "TABLE_ROWS", rows)
    monkeypatch.setattr(columns, "TABLE_BYTES", size_bytes)
    monkeypatch.setattr(columns, "_HEADERS_AT_FIRST", 1)
    assert read_rows(tmp_path / "t-0") == expected


@pytest.mark.parametrize("wanted", [("key",), ("value", "offset"), ("headers",), ("offset",), ("codec", "size", "key")])
def test_columns_come_as_asked_for_and_in_that_order(wanted, tmp_path):
    write_random_log(tmp_path / "t-0", 5, ALL_CODECS)
    every = read_rows(tmp_path / "t-0")
    rows = read_rows(tmp_path / "t-0", columns=wanted)
    assert rows == [{name: row[name] for name in wanted} for row in every]
    assert tuple(rows[0]) == wanted


blobs = st.one_of(st.none(), st.binary(max_size=30), st.integers(100, 400).map(lambda size: b"x" * size))
headers = st.lists(st.builds(RecordHeader, st.text(max_size=6).map(str.encode), blobs), max_size=4).map(tuple)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2**40), blobs, blobs, headers), min_size=1, max_size=30),
    st.integers(0, 4),
    st.booleans(),
)
def test_any_records_come_back(tmp_path_factory, given_records, codec, transactional):
    records = [Record(7 + index, *fields) for index, fields in enumerate(given_records)]
    data = encode_batch(
        records,
        base_offset=7,
        codec=codec,
        producer_id=3 if transactional else -1,
        producer_epoch=1 if transactional else -1,
        base_sequence=2**31 - 4 if transactional else -1,
        transactional=transactional,
    )
    directory = write_log(tmp_path_factory.mktemp("log") / "t-0", data)
    assert without(read_rows(directory), "topic", "partition", "size") == twin_rows(directory)


def test_bf_34_an_empty_key_value_or_header_is_not_null(tmp_path):
    record = Record(0, 0, b"", b"", (RecordHeader(b"", b""), RecordHeader(b"n", None)))
    (row,) = read_rows(write_log(tmp_path / "t-0", encode_batch([record], base_offset=0)))
    assert (row["key"], row["value"]) == (b"", b"")
    assert row["headers"] == [{"key": "", "value": b""}, {"key": "n", "value": None}]


def test_header_keys_that_are_no_utf_8_have_the_replacement_character(tmp_path):
    record = Record(
        0, 0, None, None, (RecordHeader(b"ok", b"1"), RecordHeader(b"a\xff", b"2"), RecordHeader("é".encode(), b""))
    )
    (row,) = read_rows(write_log(tmp_path / "t-0", encode_batch([record], base_offset=0)))
    assert [header["key"] for header in row["headers"]] == ["ok", "a�", "é"]


def test_the_size_of_a_record_is_that_of_its_encoding(tmp_path):
    records = [Record(0, 0, b"a", b"1"), Record(1, 0, None, b"x" * 200)]
    for codec in (0, 4):
        rows = read_rows(write_log(tmp_path / f"t-{codec}", encode_batch(records, base_offset=0, codec=codec)))
        assert [row["size"] for row in rows] == [9, 2 + 1 + 1 + 1 + 1 + 2 + 200 + 1]


def test_a_batch_larger_than_a_table_is_a_table_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "TABLE_ROWS", 10)
    records = [Record(offset, 0, b"k", b"v" * 50) for offset in range(1000)]
    rows = read_rows(write_log(tmp_path / "t-0", encode_batch(records, base_offset=0)))
    assert [row["offset"] for row in rows] == list(range(1000))


def test_timestamps_that_do_not_fit_microseconds_are_the_largest_that_do(tmp_path):
    record = Record(0, 2**62, b"k", b"v")
    (row,) = read_rows(write_log(tmp_path / "t-0", encode_batch([record], base_offset=0)))
    assert row["timestamp"] == (2**63 - 1) // 1000


def test_a_compressed_batch_that_claims_more_records_than_it_can_hold_is_corrupt(tmp_path):
    from tests.twin.batches import sign_batch

    data = encode_batch([Record(0, 0, b"k", b"v")], base_offset=0, codec=4)
    claimed = sign_batch(data[:57] + (2**30).to_bytes(4, "big") + data[61:])
    with pytest.raises(CorruptBatchError, match="record count does not fit"):
        read_rows(write_log(tmp_path / "t-0", claimed))
