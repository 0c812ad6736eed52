"""Limits on the memory that clients can use through groups and transactions.

* `sediment.group.members.max.bytes` limits the members of one group.
* `sediment.groups.max.bytes` limits the total of all groups, with the members and the offsets that clients add.
* `sediment.transactions.max.bytes` limits the total of all transactional ids, with their partitions.

Groups and offsets from a log directory are not counted until a client replaces them. Sizes are estimates: the bytes
sent by a client, and an allowance for each object.

Invariant: memory is reserved before it is used, so concurrent requests together cannot exceed a limit.
"""

from __future__ import annotations

import threading

GROUP_BYTES = 2048
"""The memory allowance for a group without members."""

MEMBER_BYTES = 1024
"""The memory allowance for a member, or for an id reserved for a joining client."""

OFFSET_BYTES = 256
"""The memory allowance for the committed offset of a partition."""


class ClientMemory:
    """The memory that all groups, or all transactional ids, share; any thread may call its methods."""

    def __init__(self, max_bytes: int) -> None:
        self._free_bytes = max_bytes
        self._guard = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """The bytes that are still free; negative if the commits of a state directory already exceed the limit."""
        return self._free_bytes

    def take(self, size_bytes: int) -> bool:
        with self._guard:
            if size_bytes > max(self._free_bytes, 0):
                return False
            self._free_bytes -= size_bytes
            return True

    def resize(self, change_bytes: int) -> None:
        with self._guard:
            self._free_bytes -= change_bytes
