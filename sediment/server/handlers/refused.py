"""Requests that a server rejects: requests about ACLs, and requests for changes that the server does not make.

Every response contains an error that clients do not retry. A producer with acks=0 gets no response; its connection is
closed, as in Kafka.

Source: Kafka's KafkaApis, for a principal that lacks the permission.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sediment.segment_io.errors import UsageError
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.requests import Handler, Request

READ_ONLY = "this server is read-only"
NO_QUORUM = "this server has no quorum"
# The messages of Kafka's AclApis; they differ between the requests.
NO_AUTHORIZER = "No Authorizer is configured on the broker"
NO_AUTHORIZER_TO_DELETE = "No Authorizer is configured."

_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_BROKER_RESOURCES = frozenset({4, 8})  # ConfigResource.Type: BROKER, BROKER_LOGGER
_NO_ACKS = 0


class RefusedHandlers:
    def __init__(self, reason: str) -> None:
        self._reason = reason

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.PRODUCE: self._produce,
            ApiKey.CREATE_TOPICS: self._create_topics,
            ApiKey.DELETE_TOPICS: self._delete_topics,
            ApiKey.CREATE_PARTITIONS: self._create_partitions,
            ApiKey.DELETE_RECORDS: self._delete_records,
            ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
            ApiKey.ALTER_CONFIGS: self._alter_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self._incremental_alter_configs,
            ApiKey.DELETE_GROUPS: self._delete_groups,
            ApiKey.OFFSET_DELETE: self._offset_delete,
            ApiKey.WRITE_TXN_MARKERS: self._write_txn_markers,
            ApiKey.ALTER_REPLICA_LOG_DIRS: self._alter_replica_log_dirs,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self._alter_partition_reassignments,
            ApiKey.ALTER_CLIENT_QUOTAS: self._alter_client_quotas,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: self._alter_user_scram_credentials,
            ApiKey.UPDATE_FEATURES: self._update_features,
            ApiKey.DESCRIBE_QUORUM: self._describe_quorum,
            ApiKey.DESCRIBE_ACLS: self._describe_acls,
            ApiKey.CREATE_ACLS: self._create_acls,
            ApiKey.DELETE_ACLS: self._delete_acls,
        }

    def _produce(self, request: Request) -> Any:
        message, response = request.message, m.ProduceResponse
        if message.acks == _NO_ACKS:
            raise UsageError(self._reason, advice="send to a broker")
        return response(
            responses=[
                response.TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[
                        response.PartitionProduceResponse(
                            index=each.index, error_code=_TOPIC, base_offset=-1, error_message=self._reason
                        )
                        for each in topic.partition_data
                    ],
                )
                for topic in message.topic_data
            ]
        )

    def _create_topics(self, request: Request) -> Any:
        response = m.CreateTopicsResponse
        return response(
            topics=[
                response.CreatableTopicResult(name=topic.name, error_code=_TOPIC, error_message=self._reason)
                for topic in request.message.topics
            ]
        )

    def _delete_topics(self, request: Request) -> Any:
        result = m.DeleteTopicsResponse.DeletableTopicResult
        by_state = [
            result(name=topic.name, topic_id=topic.topic_id, error_code=_TOPIC, error_message=self._reason)
            for topic in request.message.topics
        ]
        by_name = [
            result(name=name, error_code=_TOPIC, error_message=self._reason) for name in request.message.topic_names
        ]
        return m.DeleteTopicsResponse(responses=by_state + by_name)

    def _create_partitions(self, request: Request) -> Any:
        response = m.CreatePartitionsResponse
        return response(
            results=[
                response.CreatePartitionsTopicResult(name=topic.name, error_code=_TOPIC, error_message=self._reason)
                for topic in request.message.topics
            ]
        )

    def _delete_records(self, request: Request) -> Any:
        response = m.DeleteRecordsResponse
        return response(
            topics=[
                response.DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[
                        response.DeleteRecordsPartitionResult(
                            partition_index=each.partition_index, low_watermark=-1, error_code=_TOPIC
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.message.topics
            ]
        )

    def _init_producer_id(self, request: Request) -> Any:
        is_transactional = request.message.transactional_id is not None
        return m.InitProducerIdResponse(error_code=_TRANSACTION if is_transactional else _CLUSTER, producer_epoch=-1)

    def _alter_configs(self, request: Request) -> Any:
        return self._altered(request, m.AlterConfigsResponse)

    def _incremental_alter_configs(self, request: Request) -> Any:
        return self._altered(request, m.IncrementalAlterConfigsResponse)

    def _altered(self, request: Request, response: Any) -> Any:
        return response(
            responses=[
                response.AlterConfigsResourceResponse(
                    error_code=_CLUSTER if each.resource_type in _BROKER_RESOURCES else _TOPIC,
                    error_message=self._reason,
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                )
                for each in request.message.resources
            ]
        )

    def _delete_groups(self, request: Request) -> Any:
        response = m.DeleteGroupsResponse
        return response(
            results=[
                response.DeletableGroupResult(group_id=name, error_code=_GROUP) for name in request.message.groups_names
            ]
        )

    def _offset_delete(self, request: Request) -> Any:
        return m.OffsetDeleteResponse(error_code=_GROUP)

    def _write_txn_markers(self, request: Request) -> Any:
        response = m.WriteTxnMarkersResponse
        return response(
            markers=[
                response.WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        response.WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                response.WritableTxnMarkerPartitionResult(partition_index=number, error_code=_CLUSTER)
                                for number in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.message.markers
            ]
        )

    def _alter_replica_log_dirs(self, request: Request) -> Any:
        response = m.AlterReplicaLogDirsResponse
        return response(
            results=[
                response.AlterReplicaLogDirTopicResult(
                    topic_name=topic.name,
                    partitions=[
                        response.AlterReplicaLogDirPartitionResult(partition_index=number, error_code=_CLUSTER)
                        for number in topic.partitions
                    ],
                )
                for log_dir in request.message.dirs
                for topic in log_dir.topics
            ]
        )

    def _alter_partition_reassignments(self, _request: Request) -> Any:
        return m.AlterPartitionReassignmentsResponse(error_code=_CLUSTER, error_message=self._reason)

    def _alter_client_quotas(self, request: Request) -> Any:
        response = m.AlterClientQuotasResponse
        return response(
            entries=[
                response.EntryData(
                    error_code=_CLUSTER,
                    error_message=self._reason,
                    entity=[
                        response.EntityData(entity_type=each.entity_type, entity_name=each.entity_name)
                        for each in entry.entity
                    ],
                )
                for entry in request.message.entries
            ]
        )

    def _alter_user_scram_credentials(self, request: Request) -> Any:
        message, response = request.message, m.AlterUserScramCredentialsResponse
        names = dict.fromkeys(each.name for each in (*message.deletions, *message.upsertions))
        return response(
            results=[
                response.AlterUserScramCredentialsResult(user=name, error_code=_CLUSTER, error_message=self._reason)
                for name in names
            ]
        )

    def _update_features(self, request: Request) -> Any:
        """Refuse each feature; version 2 and later have one error for all."""
        response = m.UpdateFeaturesResponse
        return response(
            error_code=_CLUSTER,
            error_message=self._reason,
            results=[
                response.UpdatableFeatureResult(feature=each.feature, error_code=_CLUSTER, error_message=self._reason)
                for each in request.message.feature_updates
            ],
        )

    def _describe_quorum(self, _request: Request) -> Any:
        return m.DescribeQuorumResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=NO_QUORUM)

    def _describe_acls(self, _request: Request) -> Any:
        """Refuse the request, because the server has no ACLs, like a broker without `authorizer.class.name`."""
        return m.DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)

    def _create_acls(self, request: Request) -> Any:
        response = m.CreateAclsResponse
        return response(
            results=[
                response.AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
                for _ in request.message.creations
            ]
        )

    def _delete_acls(self, request: Request) -> Any:
        response = m.DeleteAclsResponse
        return response(
            filter_results=[
                response.DeleteAclsFilterResult(
                    error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER_TO_DELETE
                )
                for _ in request.message.filters
            ]
        )
