"""What cleaning hands to the committer: prepared files and the segments they replace, as values and as JSON.

Invariant: every file named here was written and synced under an attempt-unique `.part` name; nothing was renamed.
"""

from __future__ import annotations

from dataclasses import dataclass

from sediment.segment_io.listing import SegmentRef
from sediment.segment_io.names import PartFile, TopicPartition

__all__ = ["CleanStats", "CleanedGroup", "PartFile", "PartSegment", "PreparedSwap"]


@dataclass(frozen=True, slots=True)
class PartSegment:
    """One new segment: its files in Kafka's renaming order (log, index, timeindex, txnindex where there is one)."""

    base_offset: int
    files: tuple[PartFile, ...]


@dataclass(frozen=True, slots=True)
class CleanStats:
    """Counts of one group as Kafka's cleaner counts them; messages of batches that go as a whole are not read."""

    messages_read: int = 0
    messages_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    corrupt_batches: int = 0

    def __add__(self, other: CleanStats) -> CleanStats:
        return CleanStats(
            self.messages_read + other.messages_read,
            self.messages_written + other.messages_written,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.corrupt_batches + other.corrupt_batches,
        )


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """Source segments and what replaces them; no `parts`: the cleaned files would equal the sources byte for byte.

    Usually one part; more where the result does not fit one segment file (2 GiB, or 2^31 offsets).
    """

    sources: tuple[SegmentRef, ...]
    parts: tuple[PartSegment, ...]
    stats: CleanStats


@dataclass(frozen=True, slots=True)
class PreparedSwap:
    """Everything a committer needs for one partition; groups ascend."""

    partition: TopicPartition
    directory: str
    groups: tuple[CleanedGroup, ...]
    next_dirty_offset: int
