"""The part of a topic's config that retention uses.

Field names are Kafka's keys with underscores, and defaults are Kafka's own (kafka-log 06 §1).  tests/jobs/settings
compare the defaults with the table of Kafka's keys.
"""

from __future__ import annotations

from dataclasses import dataclass

DELETE = "delete"


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """The effective retention config of one topic."""

    cleanup_policy: tuple[str, ...] = (DELETE,)
    """Any of `compact` and `delete`; without `delete` only the log start offset expires segments (03 §2)."""

    retention_ms: int = 604_800_000
    """A segment expires when its newest record is older than this; -1: never by age."""

    retention_bytes: int = -1
    """The oldest segments expire as long as the others still hold this many bytes; below 0: never by size."""

    remote_storage_enable: bool = False
    """The log is tiered: a segment may expire only once it is in remote storage (03 §6)."""

    remote_log_copy_disable: bool = False
    """The tiered log stops copying segments, and the ordinary rules apply again."""

    @property
    def is_tiered(self) -> bool:
        """Return True if the log is tiered and the rules for local segments apply (03 §6)."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def deletes(self) -> bool:
        """Return True if the cleanup policy expires segments by age and size."""
        return DELETE in self.cleanup_policy
