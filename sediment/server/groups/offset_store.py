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
        """After an OSError or a SedimentError, the commits may be lost; the caller must treat them as failed."""


class GroupStore(Protocol):
    """A store of groups; any thread may call its methods.

    If `wait` is set, a call returns when its change is replicated. Otherwise the call does not wait for the
    replication.
    """

    def partition_of(self, group_id: str) -> int | None: ...
    def store_group(self, group_id: str, group: StableGroup, *, wait: bool = True) -> None: ...
    def store_records(
        self, group_id: str, records: Sequence[tuple[bytes, bytes | None]], *, wait: bool = True
    ) -> None: ...
    def delete_offsets(self, offsets: Mapping[str, Sequence[tuple[str, int]]]) -> None:
        """Delete offsets, given as (topic, number) by group id; all groups must be in the same partition."""

    def delete_group(
        self,
        group_id: str,
        partitions: Sequence[tuple[str, int]],
        *,
        keys: Sequence[bytes] | None = None,
        wait: bool = True,
    ) -> None:
        """`keys` are the group's record keys, by default those of a classic group."""
