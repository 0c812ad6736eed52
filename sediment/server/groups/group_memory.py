"""Limits on the memory that clients make groups hold.  Kafka limits only the number of members.

    members of one group                      `sediment.group.members.max.bytes`
    groups, members and offsets of clients    `sediment.groups.max.bytes`, all groups together

Groups and offsets of a log directory do not count until a client replaces them.  Sizes are rough: the bytes of a client
and an allowance for each object.

Invariant: memory is taken before it is used, so that concurrent requests cannot pass a limit together.
"""

from __future__ import annotations

import threading

GROUP_BYTES = 2048
"""Allowance for a group without members."""

MEMBER_BYTES = 1024
"""Allowance for a member, or for an id that was given to a client that is about to join."""

OFFSET_BYTES = 256
"""Allowance for the committed offset of a partition."""


class GroupMemory:
    """Bytes that all groups may take together.  Safe for several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._free_bytes = max_bytes
        self._guard = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """Bytes that may still be taken; negative if the commits of a state directory take more than the limit."""
        return self._free_bytes

    def take(self, size_bytes: int) -> bool:
        """Take bytes and return True; return False if they would pass the limit."""
        with self._guard:
            if size_bytes > max(self._free_bytes, 0):
                return False
            self._free_bytes -= size_bytes
            return True

    def resize(self, change_bytes: int) -> None:
        """Count a change of what is held already or was taken before; negative gives bytes back."""
        with self._guard:
            self._free_bytes -= change_bytes
