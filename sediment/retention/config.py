"""What a topic's config says about retention.

Field names are Kafka's keys with underscores, defaults are Kafka's own (kafka-log 06 §1).
"""

from __future__ import annotations

from dataclasses import dataclass

DELETE = "delete"


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """The effective config of one topic, as far as the deletion of its segments depends on it."""

    cleanup_policy: tuple[str, ...] = (DELETE,)
    """Any of `compact` and `delete`; without `delete` only the log start offset lets segments go (03 §2)."""

    retention_ms: int = 604_800_000
    """A segment goes when its newest record is older than this; -1: never by age."""

    retention_bytes: int = -1
    """The oldest segments go while the others still hold this much; below 0: never by size."""

    remote_storage_enable: bool = False
    """The log is tiered: a segment may go only once it is in remote storage (03 §6)."""

    remote_log_copy_disable: bool = False
    """A tiered log whose segments are no longer copied: the ordinary rules hold for it again."""

    @property
    def is_tiered(self) -> bool:
        """Whether remote storage decides with: rules of its own hold for the local segments (03 §6)."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def deletes(self) -> bool:
        """Whether the cleanup policy lets segments go by age and size."""
        return DELETE in self.cleanup_policy
