"""The expiration of committed offsets in groups without members.

An offset expires when its commit is `offsets.retention.minutes` old and the group has had no members for that time.
The time without members begins when this process first sees the group empty, so it begins again after each start.
Offsets that an open transaction may replace do not expire.

Source: Kafka's OffsetMetadataManager.cleanupExpiredOffsets and ClassicGroup.offsetExpirationCondition.
"""

from __future__ import annotations

from dataclasses import dataclass

from sediment.server.groups.group_offsets import GroupOffsets

MS_PER_MINUTE = 60_000
_NEVER_SEEN = -2  # below every generation


@dataclass(slots=True)
class TimeWithoutMembers:
    """The time at which a group was first seen without members; a new generation resets this time."""

    generation: int = _NEVER_SEEN
    since_ms: int = 0

    def begin(self, generation: int, now_ms: int) -> int:
        """Record that the group has no members in this generation; return the time at which this was first recorded."""
        if generation != self.generation:
            self.generation, self.since_ms = generation, now_ms
        return self.since_ms

    def end(self) -> None:
        """Forget the time, because the group has members; the next call of `begin` sets it again."""
        self.generation = _NEVER_SEEN


def expired_offsets(offsets: GroupOffsets, *, since_ms: int, now_ms: int, retention_ms: int) -> list[tuple[str, int]]:
    """Return (topic, partition) of each expired offset of a group that has had no members since `since_ms`."""
    return [
        (topic, number)
        for topic, number, value in offsets
        if now_ms - max(since_ms, value.commit_timestamp_ms) >= retention_ms and not offsets.is_unstable(topic, number)
    ]
