"""The table `groups`: committed offsets, members and lag, from records as coordinators write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import sediment
from sediment.jobs.datasource import KafkaLogSource
from sediment.jobs.dump import command
from sediment.jobs.table_readers.read_rows import read_rows
from sediment.segment_io.errors import CorruptBatchError, SedimentError, UnsupportedDataError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.sources import find_sources
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.tables.planning import plan_table
from sediment.segment_io.tables.schema import TABLES, TableRequest
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.server.groups.coordinator_logs import (
    CoordinatorLogBuilder,
    group_key,
    group_value,
    offset_key,
    offset_value,
    versioned,
)


@pytest.fixture
def log(tmp_path: Path) -> CoordinatorLogBuilder:
    """Two partitions of `orders`, which end at 3 and 10, and an empty `__consumer_offsets-0`."""
    write_segment(tmp_path / "orders-0", 0, [batch_bytes(0, "abc")])
    write_segment(tmp_path / "orders-1", 10)
    return CoordinatorLogBuilder(tmp_path)


def rows(log_dir: Path, *columns: str, **options: Any) -> list[tuple[Any, ...]]:
    logs = sediment.LogDirectories(log_dir, partitions=options.pop("partitions", ()))
    dumped = logs.dump(what="groups", columns=columns or None, **options)
    return [tuple(row.values()) for row in dumped]


def member(name: str) -> m.GroupMetadataValue.MemberMetadata:
    return m.GroupMetadataValue.MemberMetadata(
        member_id=name,
        client_id="c",
        client_host="h",
        rebalance_timeout=1,
        session_timeout=1,
        subscription=b"",
        assignment=b"",
    )


def test_a_row_has_the_offset_the_end_of_the_log_and_the_lag(log: CoordinatorLogBuilder, tmp_path: Path) -> None:
    log.commit("readers", 1)
    log.add(offset_key("readers", partition=1), offset_value(12, version=4, leader_epoch=5))
    log.add(offset_key("readers", topic="elsewhere"), offset_value(7))
    log.write()
    assert rows(tmp_path) == [
        ("readers", "classic", 0, "elsewhere", 0, 7, None, "", NOW_MS, False, None, None),
        ("readers", "classic", 0, "orders", 0, 1, None, "", NOW_MS, False, 3, 2),
        ("readers", "classic", 0, "orders", 1, 12, 5, "", NOW_MS, False, 10, -2),
    ]
    assert rows(tmp_path, "lag", "group", partitions="__consumer_offsets-*")[1] == (2, "readers")
    assert rows(tmp_path, "group", partitions="orders-*") == []


def test_members_of_every_kind_of_group_are_counted(log: CoordinatorLogBuilder, tmp_path: Path) -> None:
    value = m.GroupMetadataValue(
        protocol_type="consumer", generation=1, protocol=None, leader=None, members=[member("a"), member("b")]
    )
    log.add(group_key("classic"), group_value())
    log.add(group_key("classic"), versioned(3, value, 3))
    for number, name, member_key, member_value, key, group in (
        (
            5,
            "modern",
            m.ConsumerGroupMemberMetadataKey,
            m.ConsumerGroupMemberMetadataValue,
            3,
            m.ConsumerGroupMetadataKey,
        ),
        (10, "shared", m.ShareGroupMemberMetadataKey, m.ShareGroupMemberMetadataValue, 11, m.ShareGroupMetadataKey),
    ):
        for each in ("a", "b", "gone"):
            log.add(versioned(number, member_key(group_id=name, member_id=each)), versioned(0, member_value()))
        log.add(versioned(number, member_key(group_id=name, member_id="gone")), None)
        value_type = m.ConsumerGroupMetadataValue if key == 3 else m.ShareGroupMetadataValue
        log.add(versioned(key, group(group_id=name)), versioned(0, value_type(epoch=1)))
    log.commit("modern", 3)
    log.add(versioned(3, m.ConsumerGroupMetadataKey(group_id="deleted")), None)
    log.write()
    assert rows(tmp_path, "group", "kind", "members", "topic", "committedOffset", "pending", "lag") == [
        ("classic", "classic", 2, None, None, None, None),
        ("modern", "consumer", 2, "orders", 3, False, 0),
        ("shared", "share", 2, None, None, None, None),
    ]


def test_an_offset_of_a_transaction_counts_once_it_is_committed(log: CoordinatorLogBuilder, tmp_path: Path) -> None:
    log.commit("readers", 1)
    log.commit("readers", 2, producer_id=9)
    log.write()
    assert rows(tmp_path, "committedOffset", "pending") == [(1, True)]
    log.end(9, commit=True)
    log.write()
    assert rows(tmp_path, "committedOffset", "pending") == [(2, False)]


@pytest.mark.parametrize("topic", ["../secret", "/etc/x", "..", "orders-0/../orders"])
def test_a_topic_name_in_a_record_is_not_a_path(topic: str, log: CoordinatorLogBuilder, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    write_segment(tmp_path / "secret-0", 0, [batch_bytes(0, "abc")])
    hostile = CoordinatorLogBuilder(inside)
    hostile.add(offset_key("g", topic=topic), offset_value(1))
    hostile.write()
    assert rows(inside, "topic", "logEndOffset", "lag") == [(topic, None, None)]


def test_what_cannot_be_read_is_an_error_unless_it_is_skipped(log: CoordinatorLogBuilder, tmp_path: Path) -> None:
    log.commit("readers", 1)
    log.add(b"\x7f\xffnew", b"?")
    log.write()

    def fails(kind: type[SedimentError]) -> str:
        with pytest.raises(kind) as caught:
            rows(tmp_path)
        return str(caught.value)

    assert "records that cannot be decoded: 1" in fails(UnsupportedDataError)
    assert rows(tmp_path, "committedOffset", on_corruption="skip") == [(1,)]
    path = log.source.directory / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert "fails its CRC" in fails(CorruptBatchError)
    arguments = [str(tmp_path), "--what", "groups", "--json", "--columns", "group", "--on-corruption", "skip"]
    result = CliRunner().invoke(command, arguments)
    assert json.loads(result.stdout) == {"group": "readers"}
    assert result.stderr.startswith("1 unreadable batches")


def test_the_data_source_reads_the_same_rows(log: CoordinatorLogBuilder, tmp_path: Path) -> None:
    log.commit("readers", 1)
    log.write()
    source = KafkaLogSource({"path": str(tmp_path), "what": "groups"})
    reader = source.reader(source.schema())
    found = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert pa.Table.from_batches(found) == sediment.LogDirectories(tmp_path).dump(what="groups").to_arrow()


def test_every_subset_of_the_columns_has_its_schema(log: CoordinatorLogBuilder, tmp_path: Path) -> None:
    log.commit("readers", 1)
    log.write()
    for column in TABLES["groups"]:
        request = TableRequest(what="groups", columns=(column.name,))
        for task in plan_table(request, find_sources([tmp_path], Fs()), Fs()):
            (batch,) = read_rows(request, task, Fs())
            assert (batch.schema.names, batch.num_rows) == ([column.name], 1)
