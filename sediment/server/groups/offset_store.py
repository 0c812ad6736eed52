"""OffsetStore: durable committed offsets.

StateDirectory    of a read-only server, outside the log directories
OffsetsTopic      of a live server, in `__consumer_offsets`, where a broker finds them
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sediment.server.groups.group_offsets import CommittedOffset, GroupOffsets


class OffsetStore(Protocol):
    """A store of commits (topic, partition, offset); any thread may use it."""

    @property
    def offsets(self) -> Mapping[str, GroupOffsets]:
        """The stored offsets by group id; they replace the offsets from the log directory."""

    def append(
        self, group_id: str, commits: Sequence[tuple[str, int, CommittedOffset]]
    ) -> Sequence[tuple[str, int, CommittedOffset]]:
        """Store commits of a group, and return them with the offsets of their records.

        Raises:
            OSError, SedimentError: the commits may be lost; the caller must treat them as failed.
        """
