"""Offsets by time, by end and by leader epoch over real sockets, in every version."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey, supported_versions
from sediment.segment_io.protocol.error_codes import ErrorCode
from tests.corpus import load_case
from tests.logs import LogShape, write_random_log
from tests.server.handlers.clusters import only, served
from tests.server.network.listeners import Client
from tests.server.read_only.log_dirs import write_checkpoint, write_epochs, write_partition
from tests.server.read_only.logs import Scan

VERSIONS = list(supported_versions(ApiKey.LIST_OFFSETS))
NEWEST = VERSIONS[-1]


def listed(
    client: Client,
    timestamp: int,
    *,
    version: int = NEWEST,
    isolation: int = 0,
    topic: str = "t",
    partition: int = 0,
    replica_id: int = -1,
    epoch: int = -1,
) -> tuple[int, int, int, int]:
    """Return error code, timestamp, offset and leader epoch."""
    request = m.ListOffsetsRequest
    each = request.ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
    response = client.ask(
        request(
            replica_id=replica_id,
            isolation_level=isolation,
            topics=[request.ListOffsetsTopic(name=topic, partitions=[each])],
        ),
        version,
    )
    answer = only(only(response.topics).partitions)
    return answer.error_code, answer.timestamp, answer.offset, answer.leader_epoch


@pytest.mark.parametrize("version", VERSIONS)
def test_ends_times_and_epochs_in_every_version(version: int, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    end = write_random_log(logs / "t-0", 5, LogShape(batches=80, transactional=0.5, emptied=0))
    write_epochs(logs / "t-0", (3, 0))
    write_checkpoint(logs / "replication-offset-checkpoint", {"t-0": end - 5})
    scan = Scan(logs / "t-0")
    has_epoch = version >= 4
    with served(logs) as (client, catalog):
        log = catalog.partition("t", 0)
        epoch = 3 if has_epoch else -1
        assert listed(client, -1, version=version) == (0, -1, end - 5, epoch)
        assert listed(client, -1, version=version, replica_id=-2) == (0, -1, end, epoch)
        assert listed(client, -2, version=version) == (0, -1, scan.log_start, epoch)
        if version >= 2:
            assert listed(client, -1, version=version, isolation=1) == (0, -1, log.last_stable_offset, epoch)
        records = [(record.timestamp, record.offset) for found in scan.batches for record in found.batch.records()]
        code, timestamp, offset, _ = listed(client, records[30][0], version=version)
        assert code == 0
        assert (timestamp, offset) in records
        assert timestamp >= records[30][0]
        assert listed(client, 2**60, version=version) == (0, -1, -1, -1)
        latest = max(timestamp for timestamp, _ in records)
        hidden = next(offset for timestamp, offset in records if timestamp == latest) >= end - 5
        for negative, first, wanted in (
            (-3, 7, None if hidden else latest),
            (-4, 8, -1),
            (-5, 9, None),
            (-6, 11, None),
            (-7, 99, None),
        ):
            code, timestamp, offset, _ = listed(client, negative, version=version)
            if version < first:
                assert (code, offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)
            elif wanted is None:
                assert (code, timestamp, offset) == (0, -1, -1)
            else:
                assert (code, timestamp) == (0, wanted)
                assert offset >= 0


def test_a_record_at_or_above_the_end_of_the_isolation_is_not_found(tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", 10)
    write_checkpoint(tmp_path / "replication-offset-checkpoint", {"t-0": 0})
    with served(tmp_path) as (client, _):
        assert listed(client, 0) == (0, -1, -1, -1)
        assert listed(client, -3) == (0, -1, -1, -1)
        assert listed(client, 0, replica_id=-2)[2] == 0


def test_errors_are_those_of_the_partition(tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", 1, epoch=2)
    write_partition(tmp_path, "t-2", 1)
    with served(tmp_path) as (client, _):
        unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1)
        assert listed(client, -1, partition=3) == unknown
        for version in VERSIONS:
            elsewhere = listed(client, -1, partition=1, version=version)
            assert elsewhere == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, -1)
        assert epoch_end(client, 0, 3, partition=1)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert listed(client, -1, topic="../t") == unknown
        assert listed(client, -1, epoch=1)[0] == ErrorCode.FENCED_LEADER_EPOCH
        assert listed(client, -1, epoch=3)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
        request = m.ListOffsetsRequest
        twice = [request.ListOffsetsPartition(partition_index=0, timestamp=-1) for _ in range(2)]
        response = client.ask(
            request(replica_id=-1, topics=[request.ListOffsetsTopic(name="t", partitions=twice)]), NEWEST
        )
        assert {each.error_code for each in only(response.topics).partitions} == {ErrorCode.INVALID_REQUEST}


def epoch_end(client: Client, epoch: int, version: int, *, partition: int = 0, current: int = -1) -> Any:
    request = m.OffsetForLeaderEpochRequest
    each = request.OffsetForLeaderPartition(partition=partition, leader_epoch=epoch, current_leader_epoch=current)
    response = client.ask(request(topics=[request.OffsetForLeaderTopic(topic="t", partitions=[each])]), version)
    answer = only(only(response.topics).partitions)
    return answer.error_code, answer.leader_epoch, answer.end_offset


@pytest.mark.parametrize("version", list(supported_versions(ApiKey.OFFSET_FOR_LEADER_EPOCH)))
def test_epochs_end_where_the_next_one_begins(version: int, tmp_path: Path) -> None:
    case = load_case("epochs", tmp_path / "case")
    shutil.copytree(case.before, tmp_path / "logs" / "t-0")
    lines = (tmp_path / "logs" / "t-0" / "leader-epoch-checkpoint").read_text().split("\n")[2:]
    entries = [(int(epoch), int(offset)) for epoch, offset in (line.split() for line in lines if line)]
    with served(tmp_path / "logs") as (client, catalog):
        log = catalog.partition("t", 0)
        ends = [offset for _, offset in entries[1:]] + [log.log_end_offset]
        for (epoch, _), end in zip(entries, ends, strict=True):
            assert epoch_end(client, epoch, version) == (0, epoch, end)
        assert epoch_end(client, entries[-1][0] + 1, version) == (0, -1, -1)
        assert epoch_end(client, 0, version, partition=5)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        latest = entries[-1][0]
        assert epoch_end(client, 0, version, current=latest - 1)[0] == ErrorCode.FENCED_LEADER_EPOCH
        assert epoch_end(client, 0, version, current=latest + 1)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert epoch_end(client, latest, version, current=latest) == (0, latest, log.log_end_offset)
