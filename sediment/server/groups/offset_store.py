"""Stores of a group coordinator: OffsetStore for committed offsets, GroupStore for groups and deletions.

* `StateDirectory` is the OffsetStore of a read-only server, outside the log directories.
* `OffsetsTopic` is both stores of a live server, in `__consumer_offsets`, where a broker finds the records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sediment.server.groups.group_offsets import CommittedOffset, GroupOffsets
from sediment.server.groups.group_requests import StableGroup


class OffsetStore(Protocol):
    """A store of commits (topic, partition, offset); any thread may call its methods."""

    @property
    def offsets(self) -> Mapping[str, GroupOffsets]:
        """The stored offsets by group id; the coordinator uses them instead of the offsets from the log directory."""

    def append(
        self, group_id: str, commits: Sequence[tuple[str, int, CommittedOffset]]
    ) -> Sequence[tuple[str, int, CommittedOffset]]:
        """Store commits of a group, and return them with the offsets of their records.

        Raises:
            OSError, SedimentError: the commits may be lost; the caller must treat them as failed.
        """


class GroupStore(Protocol):
    """A store of groups; any thread may call its methods.

    If `wait` is set, a call returns when its change is replicated.  Otherwise the call does not wait for the
    replication.
    """

    def partition_of(self, group_id: str) -> int | None:
        """Return the partition of the store that contains a group; None if the store does not exist yet."""

    def store_group(self, group_id: str, group: StableGroup, *, wait: bool = True) -> None:
        """Store a generation of a group.

        Raises:
            OSError, SedimentError: the generation may be lost.
        """

    def store_records(self, group_id: str, records: Sequence[tuple[bytes, bytes | None]], *, wait: bool = True) -> None:
        """Store all or none of the given records (key, value) of a group.

        Raises:
            OSError, SedimentError: the records may be lost.
        """

    def delete_offsets(self, offsets: Mapping[str, Sequence[tuple[str, int]]]) -> None:
        """Delete the offsets of groups, given as (topic, number) by group id; all groups must be in the same partition.

        Raises:
            OSError, SedimentError: some of the offsets may still exist.
        """

    def delete_group(
        self,
        group_id: str,
        partitions: Sequence[tuple[str, int]],
        *,
        keys: Sequence[bytes] | None = None,
        wait: bool = True,
    ) -> None:
        """Delete a group and its committed offsets for `partitions`.

        `keys` are the group's record keys, by default those of a classic group.

        Raises:
            OSError, SedimentError: the group, or some of its offsets, may still exist.
        """
