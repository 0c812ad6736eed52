"""The public encoder and reader of record batches: what is built is read, by Sediment and by the plain Python twin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sediment
from sediment import records as r
from tests.twin.batches import parse_batch

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "records.md"
NOW_MS = 1_700_000_000_000
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1

contents = st.none() | st.binary(max_size=200)
new_records = st.builds(
    r.NewRecord,
    st.integers(-1, INT64_MAX),
    contents,
    contents,
    st.lists(st.tuples(st.binary(max_size=20), contents), max_size=3).map(tuple),
)
producers = st.builds(
    r.Producer, st.integers(0, INT64_MAX), st.integers(0, 32767), st.integers(0, INT32_MAX), st.booleans()
)


# ----------------------------------------------------------------------------------------------------------- round trip
@given(
    st.lists(new_records, min_size=1, max_size=40),
    st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]),
    st.none() | producers,
    st.integers(0, 2**62),
    st.integers(-1, INT32_MAX),
    st.none() | st.integers(0, INT64_MAX),
)
def test_what_is_built_is_read(new, codec, producer, base_offset, leader_epoch, append_time_ms):
    data = r.build_batch(
        new,
        codec=codec,
        producer=producer,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        append_time_ms=append_time_ms,
    )
    read = list(r.read_records(data))
    assert [record.offset for record in read] == list(range(base_offset, base_offset + len(new)))
    for record, given_ in zip(read, new, strict=True):
        assert (record.key, record.value, record.headers) == (given_.key, given_.value, given_.headers)
        assert record.timestamp_ms == (given_.timestamp_ms if append_time_ms is None else append_time_ms)
    [batch] = r.batches(data)
    assert read[0].batch == batch
    assert (batch.position, batch.size_bytes, batch.magic, batch.codec) == (0, len(data), 2, codec)
    assert (batch.base_offset, batch.next_offset) == (base_offset, base_offset + len(new))
    assert (batch.leader_epoch, batch.record_count, batch.is_control) == (leader_epoch, len(new), False)
    if producer is None:
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.is_transactional) == (-1, -1, -1, 0)
    else:
        assert batch.producer_id == producer.producer_id and batch.producer_epoch == producer.epoch
        assert batch.base_sequence == producer.base_sequence
        assert batch.is_transactional == producer.is_transactional
    twin = parse_batch(data)
    assert twin.is_valid()
    assert [(t.offset, t.timestamp, t.key, t.value) for t in twin.records()] == [entry[:4] for entry in read]


def test_records_that_were_read_can_be_built_again():
    first = r.build_batch([r.NewRecord(NOW_MS, b"k", None, ((b"h", b"x"),)), r.NewRecord(NOW_MS + 5, None, b"")])
    assert r.build_batch(r.read_records(first)) == first
    again = r.build_batch(r.read_records(first, from_offset=1), base_offset=1, codec="zstd", level=19)
    assert [(record.offset, record.value) for record in r.read_records(again)] == [(1, b"")]


@pytest.mark.parametrize(("codec", "levels"), [("gzip", (-1, 1, 9)), ("lz4", (1, 17)), ("zstd", (-5, -1, 22))])
def test_every_level_of_kafka_is_accepted(codec, levels):
    new = r.NewRecord(NOW_MS, b"k", b"value " * 100)
    for level in levels:
        [record] = r.read_records(r.build_batch([new], codec=codec, level=level))
        assert record.value == new.value


@pytest.mark.parametrize("control_type", [r.ControlType.ABORT, r.ControlType.COMMIT])
def test_a_transaction_marker_is_read_as_one(control_type):
    data = r.transaction_marker(
        control_type, producer_id=9, producer_epoch=3, coordinator_epoch=7, timestamp_ms=NOW_MS, base_offset=40
    )
    [batch] = r.batches(data)
    assert len(data) == 78
    assert batch.is_control and batch.is_transactional and batch.control_type is control_type
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 3, -1)
    assert (batch.coordinator_epoch, batch.control_timestamp_ms, batch.next_offset) == (7, NOW_MS, 41)
    assert list(r.read_records(data)) == []
    assert [record.offset for record in r.read_records(data, with_control=True)] == [40]


# ------------------------------------------------------------------------------------------------------------ wrong use
ONE = r.NewRecord(NOW_MS, b"k", b"v")


@pytest.mark.parametrize(
    ("records", "options", "text"),
    [
        ([], {}, "needs a record"),
        ([ONE], {"codec": "brotli"}, "codec 'brotli' does not exist"),
        ([ONE], {"codec": "gzip", "level": 10}, "codec gzip has no level 10"),
        ([ONE], {"codec": "snappy", "level": 1}, "codec snappy has no level 1"),
        ([ONE], {"base_offset": -1}, "base_offset is -1"),
        ([ONE, ONE], {"base_offset": INT64_MAX}, "base_offset is"),
        ([ONE], {"leader_epoch": -2}, "leader_epoch is -2"),
        ([ONE], {"append_time_ms": -1}, "append_time_ms is -1"),
        ([ONE], {"producer": r.Producer(-1, 0, 0)}, "producer_id is -1"),
        ([ONE], {"producer": r.Producer(1, 1 << 15, 0)}, "epoch is 32768"),
        ([ONE], {"producer": r.Producer(1, 0, -1)}, "base_sequence is -1"),
        ([ONE, r.NewRecord(-2, b"k", b"v")], {}, "timestamp of a record is -2; give milliseconds"),
        ([ONE, r.NewRecord("now", b"k", b"v")], {}, "cannot be encoded"),  # type: ignore[arg-type]
        ([r.NewRecord(1 << 63, b"k", b"v")], {}, "cannot be encoded"),
        ([r.NewRecord(NOW_MS, "k", b"v")], {}, "cannot be encoded"),  # type: ignore[arg-type]
        ([r.NewRecord(NOW_MS, b"k", 5)], {}, "cannot be encoded"),  # type: ignore[arg-type]
        ([r.NewRecord(NOW_MS, b"k", memoryview(b"abcd").cast("i"))], {}, "is not bytes"),  # type: ignore[arg-type]
        ([r.NewRecord(NOW_MS, b"k", b"v", ((None, b"x"),))], {}, "record header has no key"),  # type: ignore[arg-type]
        ([r.NewRecord(NOW_MS, b"k", b"v", ((b"x",),))], {}, "cannot be encoded"),  # type: ignore[arg-type]
    ],
)
def test_a_batch_that_cannot_be_is_refused(records: list[r.NewRecord], options: dict[str, Any], text: str) -> None:
    with pytest.raises(r.UsageError, match=text):
        r.build_batch(records, **options)


def test_a_marker_ends_a_transaction_or_is_refused():
    with pytest.raises(r.UsageError, match="LEADER_CHANGE"):
        r.transaction_marker(
            r.ControlType.LEADER_CHANGE, producer_id=9, producer_epoch=3, coordinator_epoch=7, timestamp_ms=NOW_MS
        )
    with pytest.raises(r.UsageError, match="timestamp of a record is -5"):
        r.transaction_marker(
            r.ControlType.COMMIT, producer_id=9, producer_epoch=3, coordinator_epoch=7, timestamp_ms=-5
        )


# --------------------------------------------------------------------------------------------------------------- import
def test_the_module_is_an_attribute_of_the_package_and_its_import_neither_loads_spark_nor_compiles(tmp_path):
    code = (
        "import sys, sediment\n"
        "assert 'numba' not in sys.modules\n"
        "assert sediment.records.Record\n"
        "assert not {'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "SEDIMENT_KERNEL_CACHE": str(tmp_path)})
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    with pytest.raises(AttributeError, match="has no attribute 'recodrs'"):
        sediment.recodrs  # noqa: B018


def test_the_module_names_its_public_api():
    assert all(hasattr(r, name) for name in r.__all__)


# ----------------------------------------------------------------------------------------------------------------- page
def test_the_code_of_the_page_runs_and_prints_what_the_page_shows(capsys, tmp_path, monkeypatch):
    text = PAGE.read_text()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for kind, block in re.findall(r"```(python|text)\n(.*?)```", text, re.DOTALL):
        if kind == "python":
            exec(block, names)
        else:
            assert capsys.readouterr().out == block


def test_the_page_tells_every_public_name():
    told = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", PAGE.read_text()))))
    assert set(r.__all__) <= told
