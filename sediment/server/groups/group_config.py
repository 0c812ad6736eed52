"""GroupConfig: Kafka's settings of the group coordinator."""

from __future__ import annotations

from dataclasses import dataclass

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Settings with Kafka's defaults; the key of each is in the comment beside it."""

    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    max_size: int = INT32_MAX  # group.max.size
    offset_metadata_max_bytes: int = 4_096  # offset.metadata.max.bytes
    idle_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
