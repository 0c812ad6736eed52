"""A listener with the handlers of groups, offsets and transactions, on topics that exist only by name."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sediment.segment_io.fs import Fs
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.server.delayed import Timer
from sediment.server.groups.group_coordinator import GroupCoordinator
from sediment.server.groups.state_directory import StateDirectory
from sediment.server.groups.stored_groups import StoredGroup
from sediment.server.handlers.committed_offsets import CommittedOffsetHandlers
from sediment.server.handlers.groups import GroupHandlers
from sediment.server.requests import Handler
from sediment.server.server_config import ServerConfig
from tests.server.network.listeners import Client, Running, listener

NODE = (7, "127.0.0.1", 9092)
NOW_MS = 1_700_000_000_000


def subscription(user_data: bytes = b"") -> bytes:
    """Return the metadata of a consumer of `orders`: version 0 of Kafka's ConsumerProtocolSubscription."""
    return b"\0\0" + b"\0\0\0\1" + b"\0\6orders" + len(user_data).to_bytes(4, "big") + user_data


@dataclass(frozen=True)
class NamedTopic:
    name: str
    id: uuid.UUID
    partitions: range
    missing: range = range(0)


ORDERS = NamedTopic("orders", uuid.UUID(int=1), range(3))
PAYMENTS = NamedTopic("payments", uuid.UUID(int=2), range(1))


class NamedTopics:
    def topic(self, name: str) -> NamedTopic | None:
        return next((topic for topic in (ORDERS, PAYMENTS) if topic.name == name), None)

    def topic_by_id(self, topic_id: uuid.UUID) -> NamedTopic | None:
        return next((topic for topic in (ORDERS, PAYMENTS) if topic.id == topic_id), None)


@contextlib.contextmanager
def group_server(
    stored: Mapping[str, StoredGroup] | None = None, state: Path | None = None, *, load: bool = True, **config: Any
) -> Iterator[tuple[Running, GroupCoordinator]]:
    """Run a server of groups; `stored` are those of its directory."""
    given = {"group_initial_rebalance_delay_ms": 0, "group_min_session_timeout_ms": 50, **config}
    directory = None if state is None else StateDirectory(state, [], Fs())
    made: list[GroupCoordinator] = []

    def handlers(timer: Timer) -> Mapping[ApiKey, Handler]:
        coordinator = GroupCoordinator(ServerConfig(**given), timer, time.monotonic_ns, directory)
        if load:
            coordinator.load(stored or {})
        made.append(coordinator)
        offsets = CommittedOffsetHandlers(coordinator, NamedTopics(), lambda: NOW_MS)
        return {**GroupHandlers(coordinator, NODE).handlers(), **offsets.handlers()}

    with listener(make_handlers=handlers, **given) as running:
        try:
            yield running, made[0]
        finally:
            made[0].close()
            if directory is not None:
                directory.close()


# ------------------------------------------------------------------------------------------------------------- requests
def join_request(group: str = "readers", member_id: str = "", **fields: Any) -> Any:
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=subscription())
    given = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 30_000,
        "protocol_type": "consumer",
        "protocols": [protocol],
        **fields,
    }
    return m.JoinGroupRequest(group_id=group, member_id=member_id, **given)


def join(client: Client, version: int = 9, group: str = "readers", **fields: Any) -> Any:
    """Join in as many steps as the version takes, and return the last response."""
    response = client.ask(join_request(group, **fields), version)
    if response.error_code == 79:
        response = client.ask(join_request(group, response.member_id, **fields), version)
    return response


def sync_request(generation: int, member_id: str, assignments: Mapping[str, bytes] | None = None, **fields: Any) -> Any:
    one = m.SyncGroupRequest.SyncGroupRequestAssignment
    return m.SyncGroupRequest(
        group_id="readers",
        generation_id=generation,
        member_id=member_id,
        assignments=[one(member_id=key, assignment=value) for key, value in (assignments or {}).items()],
        **{"protocol_type": "consumer", "protocol_name": "range", **fields},
    )


def stable(client: Client) -> Any:
    """Make a stable group of one member, and return its JoinGroup response."""
    joined = join(client)
    client.ask(sync_request(joined.generation_id, joined.member_id, {joined.member_id: b"assigned"}), 5)
    return joined


def commit_request(
    offsets: Mapping[int, int], *, group: str = "readers", topic: str = "orders", metadata: str = "", **fields: Any
) -> Any:
    request = m.OffsetCommitRequest
    return request(
        group_id=group,
        topics=[
            request.OffsetCommitRequestTopic(
                name=topic,
                topic_id=fields.pop("topic_id", uuid.UUID(int=0)),
                partitions=[
                    request.OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=3,
                        committed_metadata=metadata,
                    )
                    for partition, offset in offsets.items()
                ],
            )
        ],
        **fields,
    )


def commit(client: Client, offsets: Mapping[int, int], version: int = 9, **fields: Any) -> list[int]:
    """Commit offsets of `orders`, and return the error of each."""
    response = client.ask(commit_request(offsets, **fields), version)
    return [partition.error_code for topic in response.topics for partition in topic.partitions]


def fetch(
    client: Client, group: str = "readers", partitions: list[int] | None = None, *, require_stable: bool = False
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return (offset, error) of the partitions of `orders`, or of everything that the group committed."""
    request = m.OffsetFetchRequest
    topics = None
    if partitions is not None:
        topics = [request.OffsetFetchRequestTopics(name="orders", partition_indexes=partitions)]
    asked = request.OffsetFetchRequestGroup(group_id=group, topics=topics)
    (found,) = client.ask(request(groups=[asked], require_stable=require_stable), 9).groups
    assert found.error_code == 0
    return {
        (topic.name, each.partition_index): (each.committed_offset, each.error_code)
        for topic in found.topics
        for each in topic.partitions
    }
