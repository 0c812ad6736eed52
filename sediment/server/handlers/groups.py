"""Handlers of groups and their members.

This module handles the differences between message versions; the coordinator does not depend on versions.

Source: Kafka's KafkaApis and GroupCoordinatorService.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sediment.segment_io.internal_topics.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError
from sediment.server.groups.classic_group import GroupState
from sediment.server.groups.consumer.consumer_group import ConsumerGroup
from sediment.server.groups.consumer.group_changes import Heartbeat
from sediment.server.groups.consumer.group_records import topic_partitions
from sediment.server.groups.consumer.members import Assignment, ConsumerMember, SubscribableTopics, assignment_of
from sediment.server.groups.group_coordinator import GroupCoordinator, GroupDescription
from sediment.server.groups.group_requests import JoinAnswer, JoinRequest, MemberIdentity, SyncAnswer, SyncRequest
from sediment.server.requests import Handler, Request

_GROUP_KEY, _TRANSACTION_KEY = 0, 1
_TOPICS = {_GROUP_KEY: CONSUMER_OFFSETS, _TRANSACTION_KEY: TRANSACTION_STATE}
_NO_NODE = (-1, "", -1)
_UNKNOWN_KEY_TYPE = "only groups and transactions have a coordinator here"

# The versions in which an API first differs from its earlier versions.
_FIND_COORDINATOR_BATCH = 4
_JOIN_REBALANCE_TIMEOUT = 1
_JOIN_KNOWN_MEMBER_ID = 4
_JOIN_NULLABLE_PROTOCOL = 7
_JOIN_SKIP_ASSIGNMENT = 9
_SYNC_PROTOCOL = 5
_LEAVE_SEVERAL = 3
_DESCRIBE_GROUP_ID_NOT_FOUND = 6

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1
_GROUP_OPERATIONS = (3, 6, 8, 10, 11)  # READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS
_ALL_GROUP_OPERATIONS = sum(1 << operation for operation in _GROUP_OPERATIONS)


def _make_no_topic(_name: str) -> None:
    return None


class GroupHandlers:
    """Handlers of group requests; `node` is the (id, host, port) under which clients reach this server.

    `topics` are the topics of consumer groups, or None if the new protocol is not offered.
    """

    def __init__(
        self,
        coordinator: GroupCoordinator,
        node: tuple[int, str, int],
        make_topic: Callable[[str], None] = _make_no_topic,
        topics: SubscribableTopics | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._node = node
        self._make_topic = make_topic
        self._topics = topics

    def handlers(self) -> Mapping[ApiKey, Handler]:
        new_protocol = {} if self._topics is None else {ApiKey.CONSUMER_GROUP_DESCRIBE: self._describe_consumer_groups}
        return new_protocol | {
            ApiKey.FIND_COORDINATOR: self._find_coordinator,
            ApiKey.JOIN_GROUP: self._join_group,
            ApiKey.SYNC_GROUP: self._sync_group,
            ApiKey.HEARTBEAT: self._heartbeat,
            ApiKey.LEAVE_GROUP: self._leave_group,
            ApiKey.CONSUMER_GROUP_HEARTBEAT: self._consumer_group_heartbeat,
            ApiKey.DESCRIBE_GROUPS: self._describe_groups,
            ApiKey.LIST_GROUPS: self._list_groups,
        }

    # ---------------------------------------------------------------------------------------------------- coordinator
    def _find_coordinator(self, request: Request) -> Any:
        message = request.message
        error, text = self._ready_coordinator(message.key_type)
        node_id, host, port = self._node if error is ErrorCode.NONE else _NO_NODE
        if request.api_version < _FIND_COORDINATOR_BATCH:
            return m.FindCoordinatorResponse(
                error_code=error, error_message=text or error.name, node_id=node_id, host=host, port=port
            )
        coordinator = m.FindCoordinatorResponse.Coordinator
        return m.FindCoordinatorResponse(
            coordinators=[
                coordinator(key=key, node_id=node_id, host=host, port=port, error_code=error, error_message=text)
                for key in message.coordinator_keys
            ]
        )

    def _ready_coordinator(self, key_type: int) -> tuple[ErrorCode, str]:
        topic = _TOPICS.get(key_type)
        if topic is None:
            return ErrorCode.INVALID_REQUEST, _UNKNOWN_KEY_TYPE
        try:
            self._make_topic(topic)
        except ApiError as error:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, error.what
        return ErrorCode.NONE, ""

    # -------------------------------------------------------------------------------------------------------- members
    def _join_group(self, request: Request) -> None:
        message, version = request.message, request.api_version
        has_rebalance_timeout = version >= _JOIN_REBALANCE_TIMEOUT
        join = JoinRequest(
            member_id=message.member_id,
            group_instance_id=message.group_instance_id,
            client_id=request.client_id or "",
            client_host=request.connection.client_host,
            session_timeout_ms=message.session_timeout_ms,
            rebalance_timeout_ms=message.rebalance_timeout_ms if has_rebalance_timeout else message.session_timeout_ms,
            protocol_type=message.protocol_type,
            protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in message.protocols),
            requires_known_member_id=version >= _JOIN_KNOWN_MEMBER_ID,
            supports_skipping_assignment=version >= _JOIN_SKIP_ASSIGNMENT,
        )
        request.begin_wait()
        self._coordinator.join(message.group_id, join, lambda answer: request.respond(_join_response(answer, version)))

    def _sync_group(self, request: Request) -> Any:
        message = request.message
        if request.api_version >= _SYNC_PROTOCOL and None in (message.protocol_type, message.protocol_name):
            return m.SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        sync = SyncRequest(
            member_id=message.member_id,
            group_instance_id=message.group_instance_id,
            generation=message.generation_id,
            protocol_type=message.protocol_type,
            protocol_name=message.protocol_name,
            assignments=tuple((each.member_id, bytes(each.assignment)) for each in message.assignments),
        )
        request.begin_wait()
        self._coordinator.sync(message.group_id, sync, lambda answer: request.respond(_sync_response(answer)))
        return None

    def _heartbeat(self, request: Request) -> Any:
        message = request.message
        identity = MemberIdentity(message.member_id, message.group_instance_id)
        error = self._coordinator.heartbeat(message.group_id, identity, message.generation_id)
        return m.HeartbeatResponse(error_code=error)

    def _leave_group(self, request: Request) -> Any:
        message = request.message
        if request.api_version < _LEAVE_SEVERAL:
            error, errors = self._coordinator.leave(message.group_id, [MemberIdentity(message.member_id)])
            return m.LeaveGroupResponse(error_code=error or errors[0])
        identities = [MemberIdentity(each.member_id, each.group_instance_id) for each in message.members]
        error, errors = self._coordinator.leave(message.group_id, identities)
        response = m.LeaveGroupResponse
        return response(
            error_code=error,
            members=[
                response.MemberResponse(
                    member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=member_error
                )
                for identity, member_error in zip(identities, errors, strict=bool(errors))
            ],
        )

    def _consumer_group_heartbeat(self, request: Request) -> Any:
        """Respond to a member; if the new protocol is not offered, respond with an error that stops the consumer.

        If the server did not offer the API at all, librdkafka would wait forever.
        """
        message, response = request.message, m.ConsumerGroupHeartbeatResponse
        names, owned = message.subscribed_topic_names, message.topic_partitions
        heartbeat = Heartbeat(
            member_id=message.member_id,
            epoch=message.member_epoch,
            instance_id=message.instance_id,
            rack_id=message.rack_id,
            rebalance_timeout_ms=message.rebalance_timeout_ms,
            topic_names=None if names is None else frozenset(names),
            topic_regex=message.subscribed_topic_regex,
            assignor=message.server_assignor,
            owned=None if owned is None else assignment_of((each.topic_id, each.partitions) for each in owned),
            client_id=request.client_id or "",
            client_host=request.connection.client_host,
        )
        answer = self._coordinator.consumer_heartbeat(message.group_id, heartbeat, request.api_version)
        return response(
            error_code=answer.error,
            error_message=answer.message,
            member_id=answer.member_id,
            member_epoch=answer.epoch,
            heartbeat_interval_ms=answer.heartbeat_interval_ms,
            assignment=(
                None
                if answer.assignment is None
                else response.Assignment(topic_partitions=topic_partitions(response.TopicPartitions, answer.assignment))
            ),
        )

    # ---------------------------------------------------------------------------------------------------------- views
    def _describe_consumer_groups(self, request: Request) -> Any:
        message, response = request.message, m.ConsumerGroupDescribeResponse
        groups = []
        for group_id in dict.fromkeys(message.group_ids):
            try:
                group = self._coordinator.describe_consumer_group(group_id)
            except ApiError as error:
                groups.append(
                    response.DescribedGroup(group_id=group_id, error_code=error.code, error_message=error.message)
                )
                continue
            groups.append(_described_consumer_group(group, self._coordinator.default_assignor, self._topics))
            if message.include_authorized_operations:
                groups[-1].authorized_operations = _ALL_GROUP_OPERATIONS
        return response(groups=groups)

    def _describe_groups(self, request: Request) -> Any:
        message, version = request.message, request.api_version
        operations = _ALL_GROUP_OPERATIONS if message.include_authorized_operations else None
        return m.DescribeGroupsResponse(
            groups=[
                _described_group(group_id, *self._coordinator.describe(group_id), operations, version)
                for group_id in dict.fromkeys(message.groups)
            ]
        )

    def _list_groups(self, request: Request) -> Any:
        states = {state.strip().lower() for state in request.message.states_filter}
        kinds = {kind.lower() for kind in request.message.types_filter}
        error, groups = self._coordinator.list_groups()
        response = m.ListGroupsResponse
        return response(
            error_code=error,
            groups=[
                response.ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    group_state=group.state.value,
                    group_type=group.kind.value,
                )
                for group in groups
                if (not states or group.state.value.lower() in states) and (not kinds or group.kind.value in kinds)
            ],
        )


# ----------------------------------------------------------------------------------------------------------- responses
def _join_response(answer: JoinAnswer, version: int) -> Any:
    response = m.JoinGroupResponse
    # Before version 7, the protocol name must not be null.
    name = answer.protocol_name if version >= _JOIN_NULLABLE_PROTOCOL else answer.protocol_name or ""
    return response(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            response.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=member.metadata
            )
            for member in answer.members
        ],
    )


def _sync_response(answer: SyncAnswer) -> Any:
    return m.SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


def _described_group(
    group_id: str, error: ErrorCode, group: GroupDescription | None, operations: int | None, version: int
) -> Any:
    response = m.DescribeGroupsResponse
    if group is None:
        is_absent = error is ErrorCode.GROUP_ID_NOT_FOUND
        described = response.DescribedGroup(group_id=group_id, error_code=error)
        if is_absent:
            described.group_state = GroupState.DEAD.value
        if is_absent and version < _DESCRIBE_GROUP_ID_NOT_FOUND:
            described.error_code = ErrorCode.NONE
        elif is_absent:
            described.error_message = f"Group {group_id} not found."
    else:
        is_stable = group.state is GroupState.STABLE
        described = response.DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type,
            protocol_data=group.protocol_name if is_stable else "",
            members=[
                response.DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
                    member_assignment=member.assignment,
                )
                for member in group.members
            ],
        )
    if operations is not None and described.error_code == ErrorCode.NONE:
        described.authorized_operations = operations
    return described


def _described_consumer_group(group: ConsumerGroup, default_assignor: str, topics: SubscribableTopics | None) -> Any:
    response = m.ConsumerGroupDescribeResponse

    def described(assignment: Assignment) -> Any:
        # Deleted topics have no name, so they are left out.
        partitions = topic_partitions(response.TopicPartitions, assignment)
        for each in partitions:
            topic = None if topics is None else topics.topic_by_id(each.topic_id)
            each.topic_name = None if topic is None else topic.name
        return response.Assignment(topic_partitions=[each for each in partitions if each.topic_name is not None])

    def described_member(member: ConsumerMember) -> Any:
        return response.Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topic_names),
            subscribed_topic_regex=member.topic_regex,
            assignment=described(member.assigned),
            target_assignment=described(group.targets.get(member.member_id, {})),
            member_type=_CLASSIC_MEMBER if member.classic is not None else _CONSUMER_MEMBER,
        )

    return response.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor(default_assignor),
        members=[described_member(member) for member in group.members.values()],
    )
