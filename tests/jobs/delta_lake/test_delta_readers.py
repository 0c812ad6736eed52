"""Every Delta table that Sediment writes, read by delta-rs, by polars and by DuckDB through Arrow."""

from __future__ import annotations

import duckdb
import polars
import pytest
from deltalake import DeltaTable

from sediment.jobs import snapshot as snapshots
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.snapshot import SnapshotOptions
from tests.jobs.log_dirs import sediment
from tests.jobs.snapshots import Log, session_with_delta
from tests.segments import NOW_MS, batch_bytes, write_segment

DAY_MS = 86_400_000
DELETION_VECTORS = "deletionVectors"


def protocol(path):
    """(reader version, writer version, the features of both) of a table."""
    found = DeltaTable(str(path)).protocol()
    features = {*(found.reader_features or ()), *(found.writer_features or ())}
    return found.min_reader_version, found.min_writer_version, features


def read_by_all(path, columns):
    """Return the rows of `columns` that all three readers find, sorted."""
    table = DeltaTable(str(path)).to_pyarrow_table(columns=list(columns))
    found = {
        "delta-rs": [tuple(row.values()) for row in table.to_pylist()],
        "polars": polars.read_delta(str(path), columns=list(columns)).rows(),
        "duckdb": duckdb.connect().from_arrow(table).fetchall(),
    }
    rows = sorted(found["delta-rs"])
    assert {reader: sorted(rows) for reader, rows in found.items()} == dict.fromkeys(found, rows)
    return rows


def test_a_ledger_is_read_by_other_engines(tmp_path):
    for number in range(3):
        write_segment(tmp_path / "logs" / f"t-{number}", 0, [batch_bytes(0, "abc")])
    run = sediment("recover", tmp_path / "logs", "--dry-run", "--json", "--quiet", "--ledger", tmp_path / "ledger")
    partitions = sorted(run.partitions())
    assert partitions == ["t-0", "t-1", "t-2"]
    rows = read_by_all(tmp_path / "ledger" / "partitions", ["partition", "status"])
    assert [name for name, _ in rows] == partitions
    ((command, dry_run),) = read_by_all(tmp_path / "ledger" / "runs", ["command", "dry_run"])
    assert (command, dry_run) == ("recover", True)


def test_an_archive_is_read_by_other_engines(tmp_path):
    directory = tmp_path / "logs" / "orders-0"
    for base, age_days in ((0, 30), (5, 29), (10, 0)):
        stamp = NOW_MS - age_days * DAY_MS
        write_segment(directory, base, [batch_bytes(base, "abcde", timestamp=stamp)], mtime_ms=stamp)
    settings = ("--set", "cleanup.policy=delete", "--set", f"retention.ms={7 * DAY_MS}")
    run = sediment(
        *("expire", tmp_path / "logs", "--archive", tmp_path / "archive", *settings, "--json", "--quiet"),
        f"--now-ms={NOW_MS}",
    )
    assert run.partitions()["orders-0"]["messages_archived"] == 10
    rows = read_by_all(tmp_path / "archive", ["topic", "partition", "offset", "key", "value"])
    assert rows == [("orders", 0, offset, b"abcde"[offset % 5 :][:1], b"value") for offset in range(10)]


@pytest.fixture(scope="module")
def spark(sc):
    with session_with_delta() as session:
        yield session


@pytest.fixture
def log(tmp_path):
    (tmp_path / "logs").mkdir()
    return Log(tmp_path / "logs" / "t-0").append(a="1", b="2", c="3").append(a="4")


def refresh(spark, tmp_path):
    common = CommonOptions(
        log_dirs=(tmp_path / "logs",), settings=Settings.load(None, []), now_ms=NOW_MS, as_json=True, quiet=True
    )
    return snapshots.refresh(common, SnapshotOptions(str(tmp_path / "table")), None, spark)


@pytest.mark.delta
def test_a_snapshot_is_read_by_other_engines_after_every_refresh(spark, tmp_path, log):
    log.write()
    refresh(spark, tmp_path)
    assert read_by_all(tmp_path / "table", ["key", "value"]) == [(b"a", b"4"), (b"b", b"2"), (b"c", b"3")]
    log.append(b=None, c="5", d="6").write()
    assert refresh(spark, tmp_path).rows_deleted == 1
    assert read_by_all(tmp_path / "table", ["key", "value"]) == [(b"a", b"4"), (b"c", b"5"), (b"d", b"6")]
    reader, _, features = protocol(tmp_path / "table")
    assert reader == 1
    assert DELETION_VECTORS not in features


@pytest.mark.delta
def test_a_snapshot_that_was_made_with_deletion_vectors_keeps_them(spark, tmp_path, log):
    log.write()
    to = ("--to", tmp_path / "table", "--enable-deletion-vectors", f"--now-ms={NOW_MS}")
    assert sediment("snapshot", tmp_path / "logs", *to, "--json", "--quiet").status == 0
    log.append(b=None, c="5", d="6").write()
    assert refresh(spark, tmp_path).rows_deleted == 1
    found = spark.read.format("delta").load(str(tmp_path / "table")).select("key", "value").collect()
    assert sorted((bytes(row.key), bytes(row.value)) for row in found) == [(b"a", b"4"), (b"c", b"5"), (b"d", b"6")]
    assert DELETION_VECTORS in protocol(tmp_path / "table")[2]
