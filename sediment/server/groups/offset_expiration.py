"""The expiration of committed offsets: which offsets of a group without members have expired.

An offset expires when both its commit and the time without members are `offsets.retention.minutes` old.  The time
without members counts from when this process first saw it, so it begins again at a start.  Offsets that an open
transaction may replace stay.

Source: Kafka's OffsetMetadataManager.cleanupExpiredOffsets and ClassicGroup.offsetExpirationCondition.
"""

from __future__ import annotations

from dataclasses import dataclass

from sediment.server.groups.group_offsets import GroupOffsets

MS_PER_MINUTE = 60_000
_NEVER_SEEN = -2  # below every generation


@dataclass(slots=True)
class TimeWithoutMembers:
    """The time since which a group is known to have no members; a new generation starts it again."""

    generation: int = _NEVER_SEEN
    since_ms: int = 0

    def begin(self, generation: int, now_ms: int) -> int:
        """Return the time since which the group, now without members in this generation, has had none."""
        if generation != self.generation:
            self.generation, self.since_ms = generation, now_ms
        return self.since_ms

    def end(self) -> None:
        """Start again with the next call of `begin`, because the group has members."""
        self.generation = _NEVER_SEEN


def expired_offsets(offsets: GroupOffsets, *, since_ms: int, now_ms: int, retention_ms: int) -> list[tuple[str, int]]:
    """Return (topic, partition) of each expired offset of a group that has had no members since `since_ms`."""
    return [
        (topic, number)
        for topic, number, value in offsets
        if now_ms - max(since_ms, value.commit_timestamp_ms) >= retention_ms and not offsets.is_unstable(topic, number)
    ]
