"""The config of the server.

Field names are Kafka's keys with underscores, without the prefix `sediment`. The defaults are Kafka's, with three
exceptions: `auto.create.topics.enable`, and the keys `max.connections` and `queued.max.request.bytes`, which have no
limit in Kafka.

Source: Kafka's SocketServerConfigs, ServerConfigs, QuotaConfig and GroupCoordinatorConfig.
"""

from __future__ import annotations

from dataclasses import dataclass

from sediment.engine.value_ranges import (
    AT_LEAST_ONE,
    COUNT,
    INT,
    POSITIVE_INT,
    OneOf,
    Range,
    Truth,
    Whole,
    check_ranges,
)
from sediment.segment_io.errors import SettingsError
from sediment.segment_io.format.layout import INT32_MAX

SYSTEM_DEFAULT = -1
"""The size of a socket's buffer that leaves the choice to the operating system."""

_BUFFER = Whole(1, INT32_MAX, also=(SYSTEM_DEFAULT,))
MIGRATION_POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")
"""Values of `group.consumer.migration.policy`; capital letters are also accepted."""

CONSUMER_ASSIGNORS = ("uniform", "range")
"""Values of `group.consumer.assignors`; the first configured assignor is the default of a group."""

_RANGES: dict[str, Range] = {
    "num_network_threads": POSITIVE_INT,
    "num_io_threads": POSITIVE_INT,
    "queued_max_requests": POSITIVE_INT,
    "queued_max_request_bytes": AT_LEAST_ONE,
    "socket_send_buffer_bytes": _BUFFER,
    "socket_receive_buffer_bytes": _BUFFER,
    "socket_request_max_bytes": POSITIVE_INT,
    "socket_listen_backlog_size": POSITIVE_INT,
    "max_connections": INT,
    "max_connections_per_ip": INT,
    "connections_max_idle_ms": AT_LEAST_ONE,
    "connection_failed_authentication_delay_ms": INT,
    "request_receive_timeout_ms": AT_LEAST_ONE,
    "fetch_max_bytes": Whole(1024, INT32_MAX),
    "group_min_session_timeout_ms": INT,
    "group_max_session_timeout_ms": INT,
    "group_initial_rebalance_delay_ms": INT,
    "group_max_size": POSITIVE_INT,
    "group_consumer_session_timeout_ms": POSITIVE_INT,
    "group_consumer_min_session_timeout_ms": POSITIVE_INT,
    "group_consumer_max_session_timeout_ms": POSITIVE_INT,
    "group_consumer_heartbeat_interval_ms": POSITIVE_INT,
    "group_consumer_min_heartbeat_interval_ms": POSITIVE_INT,
    "group_consumer_max_heartbeat_interval_ms": POSITIVE_INT,
    "group_consumer_max_size": POSITIVE_INT,
    "group_consumer_assignors": OneOf(CONSUMER_ASSIGNORS, several=True),
    "group_consumer_migration_policy": OneOf((*MIGRATION_POLICIES, *(each.upper() for each in MIGRATION_POLICIES))),
    "group_members_max_bytes": AT_LEAST_ONE,
    "groups_max_bytes": AT_LEAST_ONE,
    "offset_metadata_max_bytes": INT,
    "offsets_retention_check_interval_ms": AT_LEAST_ONE,
    "transaction_max_timeout_ms": POSITIVE_INT,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": POSITIVE_INT,
    "transaction_remove_expired_transaction_cleanup_interval_ms": POSITIVE_INT,
    "transaction_state_log_num_partitions": POSITIVE_INT,
    "transactions_max_bytes": AT_LEAST_ONE,
    "auto_create_topics_enable": Truth(),
    "num_partitions": POSITIVE_INT,
    "offsets_topic_num_partitions": POSITIVE_INT,
    "node_id": COUNT,
}


@dataclass(frozen=True, slots=True)
class ServerConfig:
    num_network_threads: int = 3
    """Processors of the listener."""

    num_io_threads: int = 8
    """Threads that handle requests."""

    queued_max_requests: int = 500
    """Number of requests that may wait for a handler before the processors stop reading."""

    queued_max_request_bytes: int = 268_435_456
    """Limit on the bytes of all requests that are being received, queued or handled; Kafka has none by default.

    It is also the limit on the bytes of all responses, without records, that clients have not read yet.
    """

    socket_send_buffer_bytes: int = 102_400
    """SO_SNDBUF of a connection; -1 means the system's default."""

    socket_receive_buffer_bytes: int = 102_400
    """SO_RCVBUF of a connection; -1 means the system's default."""

    socket_request_max_bytes: int = 104_857_600
    """Largest request."""

    socket_listen_backlog_size: int = 50
    """Number of connections that the operating system queues until the server accepts them."""

    max_connections: int = 1024
    """Limit on the number of open connections; Kafka has none by default."""

    max_connections_per_ip: int = INT32_MAX
    """Limit on the number of open connections from one address."""

    connections_max_idle_ms: int = 600_000
    """Time without activity after which a connection is closed."""

    connection_failed_authentication_delay_ms: int = 100
    """Delay of the response to a failed authentication."""

    request_receive_timeout_ms: int = 30_000
    """Time limit for receiving a request, extended by a second for each MiB; also the limit for authentication."""

    fetch_max_bytes: int = 57_671_680
    """Largest response to a fetch, even if the client requests more."""

    group_min_session_timeout_ms: int = 6_000
    """Smallest session timeout of a member."""

    group_max_session_timeout_ms: int = 1_800_000
    """Largest session timeout of a member."""

    group_initial_rebalance_delay_ms: int = 3_000
    """Time that a group waits for further members after the first member has joined."""

    group_max_size: int = INT32_MAX
    """Limit on the number of members of one group."""

    group_consumer_session_timeout_ms: int = 45_000
    """Session timeout of the members of a consumer group."""

    group_consumer_min_session_timeout_ms: int = 45_000
    """Smallest session timeout that a group's own config may have."""

    group_consumer_max_session_timeout_ms: int = 60_000
    """Largest session timeout that a group's own config may have."""

    group_consumer_heartbeat_interval_ms: int = 5_000
    """Interval at which members of a consumer group send heartbeats."""

    group_consumer_min_heartbeat_interval_ms: int = 5_000
    """Smallest heartbeat interval that a group's own config may have."""

    group_consumer_max_heartbeat_interval_ms: int = 15_000
    """Largest heartbeat interval that a group's own config may have."""

    group_consumer_max_size: int = INT32_MAX
    """Limit on the number of members of one consumer group."""

    group_consumer_assignors: tuple[str, ...] = CONSUMER_ASSIGNORS
    """Assignors that members may ask for."""

    group_consumer_migration_policy: str = "bidirectional"
    """Directions in which a group may change its protocol while it has members."""

    group_members_max_bytes: int = 16_777_216
    """Memory limit for the members of one group: their metadata and assignments, and 1 KiB for each member."""

    groups_max_bytes: int = 134_217_728
    """Memory limit for the groups, members and offsets that clients add, as the sum over all groups."""

    offset_metadata_max_bytes: int = 4_096
    """Largest metadata of a committed offset."""

    offsets_retention_minutes: int | None = None
    """Time after which the offsets of a group without members expire; None if they never expire."""

    offsets_retention_check_interval_ms: int = 600_000
    """Interval of the checks for expired offsets."""

    auto_create_topics_enable: bool = False
    """Create a topic if a client requests one that does not exist; True by default in Kafka."""

    num_partitions: int = 1
    """Number of partitions of a new topic if the client does not state one."""

    offsets_topic_num_partitions: int = 50
    """Partitions of `__consumer_offsets` if the server creates it."""

    transaction_max_timeout_ms: int = 900_000
    """Largest timeout that a producer may give its transactions."""

    transactional_id_expiration_ms: int | None = None
    """Time without a transaction after which a transactional id is removed; None if the ids never expire."""

    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    """Interval at which transactions that have timed out are aborted."""

    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    """Interval at which expired transactional ids are removed."""

    transaction_state_log_num_partitions: int = 50
    """Partitions of `__transaction_state` if the server creates it."""

    transactions_max_bytes: int = 67_108_864
    """Memory limit for the transactional ids and partitions that clients add."""

    node_id: int = 0
    """Id of this node, in thread names and in responses to clients."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
        if self.offsets_retention_minutes is not None:
            check_ranges(self, {"offsets_retention_minutes": POSITIVE_INT})
        if self.transactional_id_expiration_ms is not None:
            check_ranges(self, {"transactional_id_expiration_ms": POSITIVE_INT})
        if self.queued_max_request_bytes < self.socket_request_max_bytes:
            raise SettingsError(
                f"queued.max.request.bytes is {self.queued_max_request_bytes}, less than socket.request.max.bytes",
                advice=f"give at least {self.socket_request_max_bytes}, or lower socket.request.max.bytes",
            )
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise SettingsError(
                "group.min.session.timeout.ms is above group.max.session.timeout.ms",
                advice="lower the first or raise the second",
            )
        if not self.group_consumer_assignors:
            raise SettingsError("group.consumer.assignors is empty", advice="give at least one assignor")
        for name in ("session_timeout", "heartbeat_interval"):
            self._check_between(name)

    def _check_between(self, name: str) -> None:
        low, value, high = (getattr(self, f"group_consumer_{limit}{name}_ms") for limit in ("min_", "", "max_"))
        if not low <= value <= high:
            key = f"group.consumer.{name}.ms".replace("_", ".")
            raise SettingsError(
                f"{key} is {value}, outside its limits {low} and {high}", advice="change it, or the limits"
            )
