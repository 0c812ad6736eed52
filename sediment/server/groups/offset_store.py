"""OffsetStore: durable committed offsets; GroupStore: durable groups and deletions.

StateDirectory    of a read-only server, outside the log directories; offsets only
OffsetsTopic      of a live server, in `__consumer_offsets`, where a broker finds them; both
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sediment.server.groups.group_offsets import CommittedOffset, GroupOffsets
from sediment.server.groups.group_requests import StableGroup


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


class GroupStore(Protocol):
    """A store of groups; safe for several threads.

    With `wait`, a change counts as replicated when the call returns; without it, soon after.
    """

    def partition_of(self, group_id: str) -> int | None:
        """Return the partition of the store that a group is in; None if the store does not exist yet."""

    def store_group(self, group_id: str, group: StableGroup, *, wait: bool = True) -> None:
        """Store a generation of a group.

        Raises:
            OSError, SedimentError: the generation may be lost.
        """

    def store_records(self, group_id: str, records: Sequence[tuple[bytes, bytes | None]], *, wait: bool = True) -> None:
        """Store records of a group, given as (key, value), all or none.

        Raises:
            OSError, SedimentError: the records may be lost.
        """

    def delete_offsets(self, offsets: Mapping[str, Sequence[tuple[str, int]]]) -> None:
        """Delete the offsets of groups, given as (topic, number) by group id; the groups are in one partition.

        Raises:
            OSError, SedimentError: some of the offsets may still be there.
        """

    def delete_group(
        self,
        group_id: str,
        partitions: Sequence[tuple[str, int]],
        *,
        keys: Sequence[bytes] | None = None,
        wait: bool = True,
    ) -> None:
        """Delete a group with its offsets, those of `partitions`; `keys` are its records, by default a classic group's.

        Raises:
            OSError, SedimentError: the group, or some of its offsets, may still be there.
        """
