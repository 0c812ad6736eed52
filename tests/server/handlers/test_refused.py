"""Requests that would change something: an error that no client tries again after, in every version."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey, supported_versions
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.segment_io.protocol.message import Structure
from tests.retriable_errors import RETRIABLE
from tests.segments import batch_bytes
from tests.server.handlers.clusters import served
from tests.server.live.nodes import live, new_node
from tests.server.network.listeners import Client
from tests.server.read_only.log_dirs import fingerprint, write_partition


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    write_partition(tmp_path, "t-0", 3)
    before = fingerprint(tmp_path)
    with served(tmp_path) as (connected, _):
        yield connected
    assert fingerprint(tmp_path) == before


def produce(version: int, acks: int = -1) -> Any:
    request = m.ProduceRequest
    partition = request.PartitionProduceData(index=0, records=batch_bytes(0))
    topic = request.TopicProduceData(
        name="t" if version < 13 else "",
        topic_id=uuid.uuid4() if version >= 13 else uuid.UUID(int=0),
        partition_data=[partition],
    )
    return request(acks=acks, timeout_ms=1000, topic_data=[topic])


def topic_list(structure: Any, **fields: Any) -> Any:
    return [structure(name="t", **fields)]


def requests(key: ApiKey, version: int) -> Any:
    """Return a request with something to refuse in it."""
    match key:
        case ApiKey.PRODUCE:
            return produce(version)
        case ApiKey.CREATE_TOPICS:
            return m.CreateTopicsRequest(topics=topic_list(m.CreateTopicsRequest.CreatableTopic, num_partitions=1))
        case ApiKey.DELETE_TOPICS if version < 6:
            return m.DeleteTopicsRequest(topic_names=["t"])
        case ApiKey.DELETE_TOPICS:
            return m.DeleteTopicsRequest(topics=topic_list(m.DeleteTopicsRequest.DeleteTopicState))
        case ApiKey.CREATE_PARTITIONS:
            structure = m.CreatePartitionsRequest.CreatePartitionsTopic
            return m.CreatePartitionsRequest(topics=topic_list(structure, count=3, assignments=None))
        case ApiKey.DELETE_RECORDS:
            request = m.DeleteRecordsRequest
            partitions = [request.DeleteRecordsPartition(partition_index=0, offset=1)]
            return request(topics=topic_list(request.DeleteRecordsTopic, partitions=partitions))
        case ApiKey.INIT_PRODUCER_ID:
            return m.InitProducerIdRequest(transactional_id=None)
        case ApiKey.ALTER_CONFIGS | ApiKey.INCREMENTAL_ALTER_CONFIGS:
            is_whole = key is ApiKey.ALTER_CONFIGS
            request = m.AlterConfigsRequest if is_whole else m.IncrementalAlterConfigsRequest
            kinds = [request.AlterConfigsResource(resource_type=kind, resource_name="t") for kind in (2, 4)]
            return request(resources=kinds)
        case ApiKey.DELETE_GROUPS:
            return m.DeleteGroupsRequest(groups_names=["g"])
        case ApiKey.DESCRIBE_ACLS:
            return m.DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=3, operation=1, permission_type=1)
        case ApiKey.CREATE_ACLS:
            acl = m.CreateAclsRequest.AclCreation(
                resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
            )
            return m.CreateAclsRequest(creations=[acl])
        case ApiKey.DELETE_ACLS:
            structure = m.DeleteAclsRequest.DeleteAclsFilter
            return m.DeleteAclsRequest(
                filters=[structure(resource_type_filter=2, pattern_type_filter=3, operation=1, permission_type=1)]
            )
        case ApiKey.WRITE_TXN_MARKERS:
            request = m.WriteTxnMarkersRequest
            topics = topic_list(request.WritableTxnMarkerTopic, partition_indexes=[0])
            return request(markers=[request.WritableTxnMarker(topics=topics)])
        case ApiKey.ALTER_REPLICA_LOG_DIRS:
            request = m.AlterReplicaLogDirsRequest
            topics = topic_list(request.AlterReplicaLogDirTopic, partitions=[0])
            return request(dirs=[request.AlterReplicaLogDir(path="/d", topics=topics)])
        case ApiKey.ALTER_PARTITION_REASSIGNMENTS:
            request = m.AlterPartitionReassignmentsRequest
            return request(topics=topic_list(request.ReassignableTopic))
        case ApiKey.ALTER_CLIENT_QUOTAS:
            request = m.AlterClientQuotasRequest
            entity = [request.EntityData(entity_type="user", entity_name=None)]
            ops = [request.OpData(key="producer_byte_rate", value=1.0)]
            return request(entries=[request.EntryData(entity=entity, ops=ops)])
        case ApiKey.ALTER_USER_SCRAM_CREDENTIALS:
            request = m.AlterUserScramCredentialsRequest
            return request(deletions=topic_list(request.ScramCredentialDeletion, mechanism=1))
        case ApiKey.UPDATE_FEATURES:
            request = m.UpdateFeaturesRequest
            return request(feature_updates=[request.FeatureUpdateKey(feature="group.version", max_version_level=1)])
        case _:
            assert key is ApiKey.OFFSET_DELETE
            return m.OffsetDeleteRequest(group_id="g")


def codes(response: Any) -> Iterator[int]:
    """Yield every error code that is set in a response."""
    for name in response.__slots__:
        value = getattr(response, name)
        if name.endswith("error_code") and value:
            yield value
        elif isinstance(value, (list, tuple)):
            for each in value:
                if isinstance(each, Structure):
                    yield from codes(each)


REFUSED = (
    ApiKey.PRODUCE,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.DELETE_RECORDS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.UPDATE_FEATURES,
)


@pytest.mark.parametrize("key", REFUSED, ids=lambda key: key.name)
def test_every_version_gets_an_error_that_clients_do_not_try_again_after(key: ApiKey, client: Client) -> None:
    for version in supported_versions(key):
        found = list(codes(client.ask(requests(key, version), version)))
        assert found, f"version {version} has no error"
        assert RETRIABLE.isdisjoint(found)


@pytest.mark.parametrize("key", [ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.UPDATE_FEATURES], ids=lambda key: key.name)
def test_a_server_for_writes_refuses_changes_that_it_does_not_make(key: ApiKey, tmp_path: Path) -> None:
    with live(new_node(tmp_path / "data", {"t": 1})) as server, server.connect() as connected:
        for version in supported_versions(key):
            answer = connected.ask(requests(key, version), version)
            assert set(codes(answer)) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
            assert "this server does not offer this request" in repr(answer)


def test_requests_for_acls_are_answered_as_by_a_broker_without_an_authorizer(client: Client) -> None:
    for key in (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS):
        answer = client.ask(requests(key, 3), 3)
        assert list(codes(answer)) == [ErrorCode.SECURITY_DISABLED]
        said = "configured." if key is ApiKey.DELETE_ACLS else "configured on the broker"
        assert f"No Authorizer is {said}" in repr(answer)


def test_a_producer_is_told_why(client: Client) -> None:
    (topic,) = client.ask(produce(9), 9).responses
    (partition,) = topic.partition_responses
    assert (partition.error_code, partition.error_message) == (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "this server is read-only",
    )


def test_a_producer_that_wants_no_answer_is_disconnected(client: Client) -> None:
    client.send(produce(9, acks=0), 9)
    assert client.is_closed()
