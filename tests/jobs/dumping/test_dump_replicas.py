"""`dump` and `kafka-log` over the log directories of several brokers, or over several disks of one broker."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

import sediment
from sediment.jobs.datasource import KafkaLogSource
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.meta_properties import MetaProperties, format_meta_properties
from sediment.segment_io.format.names import META_PROPERTIES_FILE
from sediment.segment_io.internal_topics.metadata_records import encode_metadata_record
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.tables.schema import TABLES
from tests.jobs.log_dirs import Outcome, sediment_on_terminal
from tests.jobs.log_dirs import sediment as run
from tests.segments import batch_bytes, write_segment, write_snapshot
from tests.server.groups.coordinator_logs import CoordinatorLogBuilder, offset_key, offset_value
from tests.twin.batches import Record, encode_batch
from tests.twin.snapshots import ProducerEntry

LEFT_OUT = "4 replicas were left out: of each partition, the replica with the highest leader epoch and log end is read"


def write_node(log_dir: Path, node_id: int, cluster_id: str = "c") -> None:
    log_dir.mkdir(exist_ok=True)
    (log_dir / META_PROPERTIES_FILE).write_bytes(format_meta_properties(MetaProperties(1, cluster_id, node_id, None)))


@pytest.fixture
def brokers(tmp_path: Path) -> list[Path]:
    """Three brokers with the partitions t-0, t-2 and t-10; t-0 is one batch longer on the second broker."""
    log_dirs = [tmp_path / f"b{number}" for number in (1, 2, 3)]
    for number, log_dir in enumerate(log_dirs, start=1):
        write_node(log_dir, number)
        for name in ("t-10", "t-2", "t-0"):
            is_longer = (number, name) == (2, "t-0")
            batches = [batch_bytes(0, "abc"), *([batch_bytes(3, "d")] if is_longer else [])]
            write_segment(log_dir / name, 0, batches)
            write_snapshot(log_dir / name, 3, [ProducerEntry(9, epoch=0)])
    shutil.rmtree(log_dirs[2] / "t-2")
    shutil.rmtree(log_dirs[0] / "t-2")
    return log_dirs


def dumped(*arguments: object) -> tuple[list[dict[str, Any]], Outcome]:
    outcome = run("dump", *arguments, "--json")
    assert outcome.status == 0, outcome.stderr
    return [json.loads(line) for line in outcome.stdout.splitlines()], outcome


def read(paths: list[Path], **options: str) -> list[dict[str, Any]]:
    source = KafkaLogSource({"paths": json.dumps([str(path) for path in paths]), **options})
    reader = source.reader(source.schema())
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


# ------------------------------------------------------------------------------------------------------------- replicas
def test_one_replica_of_each_partition_is_read_in_the_order_of_partitions_and_one_line_says_so(
    brokers: list[Path],
) -> None:
    rows, outcome = dumped(*brokers, "--what", "records")
    places = [(row["partition"], row["offset"]) for row in rows]
    assert places == [(0, 0), (0, 1), (0, 2), (0, 3), *((number, each) for number in (2, 10) for each in range(3))]
    assert set(rows[0]) == {column.name for column in TABLES["records"]}
    assert outcome.stderr == f"{LEFT_OUT}; --replicas all reads every replica\n"
    assert run("dump", *brokers, "--what", "records", "--json", "--quiet").stderr == ""


def test_all_replicas_are_read_on_request_with_their_places(brokers: list[Path]) -> None:
    rows, outcome = dumped(*brokers, "--what", "records", "--replicas", "all")
    assert outcome.stderr == ""
    assert len(rows) == 7 * 3 + 1
    assert list(rows[0])[-2:] == ["node_id", "log_dir"]
    replicas = list(dict.fromkeys((row["partition"], row["node_id"], row["log_dir"]) for row in rows))
    b1, b2, b3 = map(str, brokers)
    assert replicas == [(0, 1, b1), (0, 2, b2), (0, 3, b3), (2, 2, b2), (10, 1, b1), (10, 2, b2), (10, 3, b3)]


def test_places_are_columns_of_every_table_on_request(brokers: list[Path]) -> None:
    log = CoordinatorLogBuilder(brokers[0])
    log.commit("readers", 1)
    log.write()
    (brokers[0] / "t-0" / "leader-epoch-checkpoint").write_text("0\n1\n3 0\n")
    for what in TABLES:
        for row in read(brokers[:1], what=what, columns="log_dir,node_id"):
            assert row == {"log_dir": str(brokers[0]), "node_id": 1}, what
        rows = read(brokers[:1], what=what, columns="log_dir")
        assert rows or what in ("offset_index", "time_index", "transactions", "open_transactions")
        assert [*sediment.LogDirectories(brokers[0]).dump(what=what, columns=["log_dir"])] == rows


@pytest.mark.parametrize(
    ("what", "best", "every"), [("segments", 3, 7), ("batches", 4, 8), ("producers", 3, 7), ("indexes", 21, 21)]
)
def test_the_default_of_every_table_is_one_replica_but_indexes_are_all_checked(
    what: str, best: int, every: int, brokers: list[Path]
) -> None:
    assert len(dumped(*brokers, "--what", what)[0]) == best
    assert len(dumped(*brokers, "--what", what, "--replicas", "all")[0]) == every
    assert len(dumped(*brokers, "--what", what, "--replicas", "best")[0]) == (9 if what == "indexes" else best)
    assert len(read(brokers, what=what)) == best
    assert len(read(brokers, what=what, replicas="all")) == every


def test_the_source_reads_the_best_replica_and_logs_what_it_left_out(
    brokers: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    assert len(read(brokers)) == 10
    assert f"{LEFT_OUT}; the option replicas=all reads every replica" in caplog.text
    caplog.clear()
    rows = read(brokers, replicas="all", topics="t", partitions="0")
    assert [row["node_id"] for row in rows] == [1] * 3 + [2] * 4 + [3] * 3
    assert len(read(brokers, partitions="0", offsets="1:")) == 3
    assert "replicas were left out" in caplog.text
    with pytest.raises(UsageError, match="replicas cannot be 'some'; give one of best, all"):
        read(brokers, replicas="some")


def test_a_table_of_people_has_the_directory_if_there_are_several(brokers: list[Path]) -> None:
    table = run("dump", *brokers).stdout
    assert "log_dir" in table
    assert [line.split()[1] for line in table.splitlines() if line.startswith(" t ")] == ["0", "2", "10"]
    assert "log_dir" not in run("dump", brokers[0]).stdout
    terminal = sediment_on_terminal("dump", *brokers, "--replicas", "all", columns=200).stdout
    assert [line.split()[0] for line in terminal.splitlines() if line.startswith(" t-")] == [
        *["t-0"] * 3,
        "t-2",
        *["t-10"] * 3,
    ]
    assert str(brokers[2]) in terminal


def test_parquet_has_the_same_rows(brokers: list[Path], tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    outcome = run("dump", *brokers, "--what", "records", "--replicas", "all", "--to", tmp_path / "out")
    assert outcome.status == 0
    assert pq.read_table(tmp_path / "out").column("node_id").to_pylist().count(2) == 10


def test_replicas_of_several_clusters_are_refused_with_what_to_do(brokers: list[Path]) -> None:
    write_node(brokers[2], 3, "other")
    outcome = run("dump", *brokers, "--what", "records")
    assert (outcome.status, outcome.stdout) == (2, "")
    assert "to cluster other; read one cluster at a time, or all replicas" in outcome.stderr
    assert len(dumped(*brokers, "--what", "records", "--replicas", "all")[0]) == 22


# --------------------------------------------------------------------------------------------------------------- groups
def test_the_lag_of_a_group_is_that_of_a_partition_on_another_disk(tmp_path: Path) -> None:
    for number, disk in enumerate(("d1", "d2", "d3")):
        write_node(tmp_path / disk, 1, "c" if number < 2 else "other")
    log = CoordinatorLogBuilder(tmp_path / "d1")
    log.commit("readers", 1)
    log.commit("readers", 1, partition=1)
    log.add(offset_key("readers", topic="payments"), offset_value(1))
    log.write()
    write_segment(tmp_path / "d2" / "orders-0", 0, [batch_bytes(0, "abc")])
    write_segment(tmp_path / "d1" / "orders-1", 0, [batch_bytes(0, "abc")])
    write_segment(tmp_path / "d2" / "orders-1", 0, [batch_bytes(0, "abcde")])
    write_segment(tmp_path / "d3" / "payments-0", 0, [batch_bytes(0, "abc")])
    disks = [tmp_path / disk for disk in ("d1", "d2", "d3")]
    expected = [("orders", 0, 3, 2), ("orders", 1, 5, 4), ("payments", 0, None, None)]
    for selected in ((), ("--partition", "__consumer_offsets-*")):
        rows, _ = dumped(*disks, "--what", "groups", *selected)
        assert [tuple(row[name] for name in ("topic", "partition", "logEndOffset", "lag")) for row in rows] == expected
    rows = read(disks, what="groups", topics="__consumer_offsets")
    assert [tuple(row[name] for name in ("topic", "partition", "logEndOffset", "lag")) for row in rows] == expected
    assert [row["lag"] for row in dumped(disks[0], "--what", "groups")[0]] == [None, 2, None]


# ------------------------------------------------------------------------------------------------------------- as-topic
def test_a_segment_of_an_internal_topic_is_decoded_wherever_it_lies(tmp_path: Path) -> None:
    log = CoordinatorLogBuilder(tmp_path / "logs")
    log.commit("readers", 7)
    log.write()
    raw = shutil.copy(log.source.directory / f"{0:020d}.log", tmp_path)
    plain, _ = dumped(raw)
    assert "hex" in plain[0]["key"]
    rows, _ = dumped(raw, "--as-topic", "__consumer_offsets")
    assert rows[0]["topic"] == "__consumer_offsets"
    assert (rows[0]["key"], rows[0]["value"]) == tuple(
        dumped(log.source.directory, "--what", "records")[0][0][name] for name in ("key", "value")
    )
    (group,), _ = dumped(tmp_path / raw, "--what", "groups", "--as-topic", "__consumer_offsets")
    assert (group["group"], group["committedOffset"]) == ("readers", 7)
    batch = encode_batch(
        [Record(0, 1, None, encode_metadata_record(m.TopicRecord(name="t", topic_id=uuid.UUID(int=1)), 0))],
        base_offset=0,
        leader_epoch=1,
    )
    metadata = write_segment(tmp_path / "backup", 0, [batch])
    (row,), _ = dumped(metadata, "--as-topic", "__cluster_metadata")
    assert (row["value"]["type"], row["value"]["data"]["name"]) == ("TOPIC_RECORD", "t")
    for option in (["--follow"], ["--to", tmp_path / "out"]):
        outcome = run("dump", raw, "--as-topic", "__consumer_offsets", *option)
        assert outcome.status == 2 and f"--as-topic does not apply to {option[0]}; leave out one" in outcome.stderr
