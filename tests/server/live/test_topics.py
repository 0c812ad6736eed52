"""Topics that clients create, change and delete on a live server."""

from __future__ import annotations

import json
import lzma
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import (
    ClusterMetadata,
    read_bootstrap_records,
    read_cluster_metadata,
)
from sediment.segment_io.partition.checkpoint_files import read_offset_checkpoint
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from tests.engine.live_logs import batch
from tests.engine.managed import FailingFs
from tests.served import unpacked
from tests.server.live.admin_script import DELETE, RECORDED, SET, AdminScript, topic
from tests.server.live.nodes import fetch_request, live, new_node, produce, produce_request, topic_id
from tests.server.network.listeners import Client
from tests.waiting import wait_until

TOPIC = 2


def create(client: Client, *topics: Any) -> list[Any]:
    return list(client.ask(m.CreateTopicsRequest(topics=list(topics), timeout_ms=1000), 7).topics)


def created(client: Client, name: str, count: int = 1, configs: Mapping[str, str] | None = None) -> uuid.UUID:
    """Create a topic, and return its id."""
    (result,) = create(client, topic(name, count, 1, configs))
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    return result.topic_id


def delete(client: Client, *names: str) -> list[ErrorCode]:
    states = [m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
    found = {each.name: each for each in client.ask(m.DeleteTopicsRequest(topics=states), 6).responses}
    return [ErrorCode(found[name].error_code) for name in names]


def alter(client: Client, name: str, key: str, operation: int, value: str | None) -> ErrorCode:
    request = m.IncrementalAlterConfigsRequest
    config = request.AlterableConfig(name=key, config_operation=operation, value=value)
    resource = request.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[config])
    return ErrorCode(client.ask(request(resources=[resource]), 1).responses[0].error_code)


def partitions_of(client: Client) -> dict[str, list[int]]:
    response = client.ask(m.MetadataRequest(topics=None), 12)
    return {each.name: sorted(found.partition_index for found in each.partitions) for each in response.topics}


def operations(bits: int) -> set[int]:
    """Return the numbers of AclOperation in a field of a response."""
    return {number for number in range(32) if bits >> number & 1}


def stored(path: Path) -> ClusterMetadata:
    found = read_cluster_metadata(path, Fs()) or read_bootstrap_records(path, Fs())
    assert found is not None
    return found


def values(path: Path, name: str) -> int:
    """Start a server, and return the high watermark of partition 0."""
    with live(path, topic_config=None) as server:
        partition = server.server.catalog.partition(name, 0)
        assert partition is not None
        return partition.high_watermark


@pytest.fixture(params=["bootstrap", "log"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A node that was never started, and one that Kafka has run."""
    if request.param == "bootstrap":
        return new_node(tmp_path / "data", {"t": 1})
    return unpacked(tmp_path / "data")


# ---------------------------------------------------------------------------------------------------- Kafka's answers
def test_answers_and_messages_are_those_of_a_broker(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {})
    with live(path, topic_config=None) as server, server.connect() as client:
        lines = json.loads(json.dumps(AdminScript(client).run()))
    recorded = json.loads(lzma.decompress(RECORDED.read_bytes()))
    assert [line for line, _ in lines] == [line for line, _ in recorded]
    assert [line for line, theirs in zip(lines, recorded, strict=True) if line != theirs] == []


def test_a_created_topic_is_described_with_every_config(tmp_path: Path) -> None:
    with live(new_node(tmp_path / "data", {}), topic_config=None) as server, server.connect() as client:
        (result,) = create(client, topic("t", 3, 1, {"retention.ms": "5"}))
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        configs = {each.name: (each.value, each.config_source) for each in result.configs}
        assert list(configs) == sorted(configs)
        assert (configs["retention.ms"], configs["segment.bytes"]) == (("5", 1), ("1073741824", 5))


# ------------------------------------------------------------------------------------------------------------- create
def test_a_new_topic_takes_records_at_once_and_after_a_restart(path: Path) -> None:
    with live(path, topic_config=None) as server, server.connect() as client:
        before = partitions_of(client)
        new_id = created(client, "new", 2, {"max.message.bytes": "200"})
        assert produce(client, batch(), topic="new", asked_id=new_id).error_code == ErrorCode.NONE
        large = batch(("k", "v" * 300))
        assert produce(client, large, topic="new", asked_id=new_id).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert stored(path).topic_ids["new"] == format_uuid(new_id.bytes)
    with live(path, topic_config=None) as server, server.connect() as client:
        assert partitions_of(client) == {**before, "new": [0, 1]}
        assert produce(client, batch(), topic="new", asked_id=new_id).base_offset == 1
    assert stored(path).topic_configs["new"] == {"max.message.bytes": "200"}
    assert not [each for each in path.iterdir() if each.name.endswith(("-stray", "-delete"))]


def test_a_created_partition_is_in_a_checkpoint_when_it_is_answered(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {})
    with live(path) as server, server.connect() as client:
        created(client, "new")
        assert (path / "new-0" / "partition.metadata").exists()
        listed = read_offset_checkpoint(Fs(), path / "recovery-point-offset-checkpoint")
        assert {str(partition): offset for partition, offset in (listed or {}).items()} == {"new-0": 0}


class CountingFs(Fs):
    """A disk that counts the syncs of partition folders and their files."""

    def __init__(self, log_dir: Path) -> None:
        self.syncs = 0
        self._log_dir = log_dir

    def sync_file(self, path: Path) -> None:
        self.syncs += path.parent != self._log_dir
        super().sync_file(path)

    def sync_directory(self, path: Path) -> None:
        self.syncs += path != self._log_dir
        super().sync_directory(path)


def test_a_new_partition_needs_two_syncs(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {})
    fs = CountingFs(path)
    with live(path, fs=fs) as server, server.connect() as client:
        results = create(client, *(topic(f"t{number}", 1, 1) for number in range(50)))
        assert Counter(each.error_code for each in results) == {ErrorCode.NONE: 50}
        assert fs.syncs == 2 * 50
        assert len(partitions_of(client)) == 50


def test_more_than_10000_records_in_one_request_are_refused(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {})
    with live(path) as server, server.connect() as client:
        (result,) = create(client, topic("t", 10_000, 1))
        assert result.error_code == ErrorCode.POLICY_VIOLATION
        assert partitions_of(client) == {}
    assert stored(path).topic_ids == {}


def test_partitions_are_added(path: Path) -> None:
    with live(path) as server, server.connect() as client:
        created(client, "new")
        request = m.CreatePartitionsRequest
        asked = request.CreatePartitionsTopic(name="new", count=3, assignments=None)
        (result,) = client.ask(request(topics=[asked]), 3).results
        assert result.error_code == ErrorCode.NONE
        assert partitions_of(client)["new"] == [0, 1, 2]
    with live(path) as server, server.connect() as client:
        assert partitions_of(client)["new"] == [0, 1, 2]


def test_a_topic_whose_folder_cannot_be_made_is_reported_and_completed_by_the_next_start(tmp_path: Path) -> None:
    class Full(FailingFs):
        def make_unsynced_directory(self, path: Path, *, like: Path) -> None:
            raise OSError(28, "no space", str(path))

    path = new_node(tmp_path / "data", {})
    with live(path, fs=Full()) as server, server.connect() as client:
        (result,) = create(client, topic("new", 2, 1))
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    with live(path) as server, server.connect() as client:
        assert partitions_of(client) == {"new": [0, 1]}


# ------------------------------------------------------------------------------------------------------------- delete
def test_a_deleted_topic_is_gone_and_a_new_one_of_its_name_is_empty(path: Path) -> None:
    with live(path, topic_config=None) as server, server.connect() as client:
        first = created(client, "new", 2, {"retention.ms": "5"})
        produce(client, batch(), topic="new", asked_id=first)
        assert delete(client, "new") == [ErrorCode.NONE]
        assert "new" not in partitions_of(client)
        assert produce(client, batch(), topic="new", asked_id=first).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert sorted(each.name[:6] for each in path.glob("new-*")) == ["new-0.", "new-1."]
        second = created(client, "new")
        assert second != first
        assert produce(client, batch(), topic="new", asked_id=second).base_offset == 0
    assert values(path, "new") == 1
    assert "new" not in stored(path).topic_configs


def test_a_fetch_and_a_produce_that_wait_for_a_deleted_topic_are_answered(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    with live(path) as server, server.connect() as client, server.connect() as waiting:
        waiting.send(fetch_request((0, 0), max_wait_ms=200_000), 13)
        wait_until(lambda: len(server.server.backend._delayed) == 1)
        assert delete(client, "t") == [ErrorCode.NONE]
        _, response = waiting.receive(m.FetchRequest.API_KEY, 13)
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        answer = client.ask(produce_request(batch(), version=9), 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_internal_topics_are_not_deleted(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"__consumer_offsets": 1, "t": 1})
    with live(path) as server, server.connect() as client:
        assert delete(client, "__consumer_offsets", "t") == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
        assert list(partitions_of(client)) == ["__consumer_offsets"]


def test_internal_topics_get_no_more_partitions(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"__consumer_offsets": 1})
    with live(path) as server, server.connect() as client:
        request = m.CreatePartitionsRequest
        asked = request.CreatePartitionsTopic(name="__consumer_offsets", count=3, assignments=None)
        for validate_only in (True, False):
            (result,) = client.ask(request(topics=[asked], validate_only=validate_only), 3).results
            assert result.error_code == ErrorCode.INVALID_REQUEST
        assert partitions_of(client) == {"__consumer_offsets": [0]}


def test_a_deletion_of_topics_that_do_not_exist_writes_nothing(path: Path) -> None:
    with live(path) as server, server.connect() as client:
        before = stored(path)
        assert delete(client, "none", "__consumer_offsets")[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert stored(path) == before
        created(client, "new")


def test_the_removal_of_a_topic_stays_in_the_bootstrap_checkpoint(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"a": 1, "b": 1})
    with live(path) as server, server.connect() as client:
        delete(client, "a")
        assert stored(path).removed_topic_ids == {format_uuid(topic_id("a").bytes)}
        delete(client, "b")
    found = stored(path)
    ids = {format_uuid(topic_id(name).bytes) for name in ("a", "b")}
    assert (found.topic_ids, found.removed_topic_ids) == ({}, ids)


# ------------------------------------------------------------------------------------------------------------ configs
def test_a_changed_config_applies_at_once_and_after_a_restart(path: Path) -> None:
    with live(path, topic_config=None) as server, server.connect() as client:
        new_id = created(client, "new")
        assert alter(client, "new", "max.message.bytes", SET, "100") == ErrorCode.NONE
        large = batch(("k", "v" * 300))
        assert produce(client, large, topic="new", asked_id=new_id).error_code == ErrorCode.MESSAGE_TOO_LARGE
    with live(path, topic_config=None) as server, server.connect() as client:
        assert produce(client, large, topic="new", asked_id=new_id).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert alter(client, "new", "max.message.bytes", DELETE, None) == ErrorCode.NONE
        assert produce(client, large, topic="new", asked_id=new_id).error_code == ErrorCode.NONE
    assert "new" not in stored(path).topic_configs


def test_a_config_that_the_engine_cannot_use_is_refused_before_it_is_stored(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    with live(path, topic_config=None) as server, server.connect() as client:
        assert alter(client, "t", "segment.index.bytes", SET, "4") == ErrorCode.INVALID_CONFIG
        assert alter(client, "t", "internal.segment.bytes", SET, "0") == ErrorCode.INVALID_CONFIG
    assert stored(path).topic_configs == {}


def test_configs_of_another_broker_are_not_changed(tmp_path: Path) -> None:
    with live(new_node(tmp_path / "data", {})) as server, server.connect() as client:
        request = m.IncrementalAlterConfigsRequest
        config = request.AlterableConfig(name="log.retention.ms", config_operation=SET, value="1")
        for kind, name in ((4, "8"), (4, "+-5"), (4, "7" * 5000), (8, "7"), (99, "7")):
            resource = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
            assert client.ask(request(resources=[resource]), 1).responses[0].error_code == ErrorCode.INVALID_REQUEST


def test_clients_may_do_what_this_server_does(tmp_path: Path) -> None:
    with live(new_node(tmp_path / "data", {"t": 1})) as server, server.connect() as client:
        request = m.MetadataRequest
        asked = request(topics=[request.MetadataRequestTopic(name="t")], include_topic_authorized_operations=True)
        (found,) = client.ask(asked, 12).topics
        assert operations(found.topic_authorized_operations) == {3, 4, 5, 6, 7, 8, 10, 11}
        cluster = client.ask(m.DescribeClusterRequest(include_cluster_authorized_operations=True), 1)
        assert operations(cluster.cluster_authorized_operations) == {5, 7, 8, 10, 12}


# ------------------------------------------------------------------------------------------------------------ records
def test_deleted_records_stay_deleted_and_their_segments_go(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {})
    with live(path, topic_config=None) as server, server.connect() as client:
        new_id = created(client, "new", 1, {"internal.segment.bytes": "200", "file.delete.delay.ms": "0"})
        for _ in range(5):
            produce(client, batch(("k", "v" * 100)), topic="new", asked_id=new_id)
        request = m.DeleteRecordsRequest
        partition = request.DeleteRecordsPartition(partition_index=0, offset=3)
        asked = request(topics=[request.DeleteRecordsTopic(name="new", partitions=[partition])], timeout_ms=1000)
        (result,) = client.ask(asked, 2).topics[0].partitions
        assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 3)
        assert sorted(file.name for file in (path / "new-0").glob("*.log")) == [f"{base:020d}.log" for base in (3, 4)]
        listed = read_offset_checkpoint(Fs(), path / "log-start-offset-checkpoint")
        assert listed is not None
    with live(path, topic_config=None) as server:
        partition = server.server.catalog.partition("new", 0)
        assert (partition.log_start_offset, partition.high_watermark) == (3, 5)


# -------------------------------------------------------------------------------------------------------- coordinators
def test_the_offsets_topic_is_created_when_the_coordinator_of_a_group_is_asked_for(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    with live(path, topic_config=None, offsets_topic_num_partitions=3) as server, server.connect() as client:
        for _ in range(2):
            found = client.ask(m.FindCoordinatorRequest(coordinator_keys=["g"]), 6).coordinators[0]
            assert (found.error_code, found.node_id) == (ErrorCode.NONE, 7)
        assert partitions_of(client)["__consumer_offsets"] == [0, 1, 2]
    assert stored(path).topic_configs["__consumer_offsets"] == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }


@pytest.mark.parametrize("version", [0, 1])
def test_a_reassignment_keeps_the_only_replica_and_refuses_others_with_the_errors_of_kafka(
    version: int, tmp_path: Path
) -> None:
    request = m.AlterPartitionReassignmentsRequest
    asked = [(0, [7]), (1, [7, 7]), (0, [8, 7]), (0, []), (0, None), (5, [7])]
    partitions = [request.ReassignablePartition(partition_index=number, replicas=each) for number, each in asked]
    topics = [request.ReassignableTopic(name=name, partitions=partitions) for name in ("t", "unknown")]
    with live(new_node(tmp_path / "data", {"t": 2})) as server, server.connect() as client:
        response = client.ask(request(topics=topics), version)
        listed = client.ask(m.ListPartitionReassignmentsRequest(topics=None), 0)
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    known, unknown = (
        [(each.error_code, each.error_message) for each in topic.partitions] for topic in response.responses
    )
    refused, assignment = ErrorCode.INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes"
    assert known == [
        (ErrorCode.NONE, None),
        (refused, f"{assignment} the broker 7 more than once."),
        (refused, f"{assignment} broker 8, but no such broker is registered."),
        (refused, f"{assignment} an empty replica list."),
        (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition t:5."),
    ]
    assert set(unknown) == {(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find a topic named unknown.")}
    assert listed.topics == ()
