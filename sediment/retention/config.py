"""The part of a topic's config that retention uses.

Field names are Kafka's keys with underscores, and defaults are Kafka's own (kafka-log 06 §1).  The tests in
tests/jobs/settings compare the defaults with the table of Kafka's keys.
"""

from __future__ import annotations

from dataclasses import dataclass

DELETE = "delete"


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """The effective retention config of one topic."""

    cleanup_policy: tuple[str, ...] = (DELETE,)
    """Any of `compact` and `delete`; without `delete`, segments expire only by the log start offset (03 §2)."""

    retention_ms: int = 604_800_000
    """A segment expires when its newest record is older than this; -1: never by age."""

    retention_bytes: int = -1
    """The oldest segments expire while the rest still holds this many bytes; below 0: never by size."""

    remote_storage_enable: bool = False
    """The log is tiered: a segment may expire only after it was copied to remote storage (03 §6)."""

    remote_log_copy_disable: bool = False
    """The tiered log no longer copies segments, and the ordinary rules apply again."""

    @property
    def is_tiered(self) -> bool:
        """Return True if the log is tiered and the rules for local segments apply (03 §6)."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def deletes(self) -> bool:
        """Return True if the cleanup policy expires segments by age and size."""
        return DELETE in self.cleanup_policy
