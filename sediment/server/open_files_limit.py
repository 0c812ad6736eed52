"""The limit on open files while servers run in this process.

A server reserves descriptors for its connections, because clients that write to thousands of partitions can use up all
others.
"""

from __future__ import annotations

import logging
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOGGER = logging.getLogger(__name__)

_WANTED = 65_536
_DESCRIPTORS_BESIDE = 64
_RESERVED_SHARE = 8


class _RaisedLimit:
    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._users = 0
        self._change: tuple[int, int] | None = None

    def acquire(self) -> int:
        with self._guard:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
            if soft != resource.RLIM_INFINITY and soft < wanted:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                self._change = (soft, wanted)
                soft = wanted
            self._users += 1
            return soft

    def release(self) -> None:
        """If this was the last server, restore the limit, unless other code has changed it in the meantime."""
        with self._guard:
            self._users -= 1
            if self._users or self._change is None:
                return
            before, raised = self._change
            self._change = None
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if soft == raised:
                resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


_raised_limit = _RaisedLimit()


@contextmanager
def raised_open_files_limit(connections: int) -> Iterator[None]:
    limit = _raised_limit.acquire()
    try:
        if limit != resource.RLIM_INFINITY and limit < connections + _DESCRIPTORS_BESIDE:
            _LOGGER.warning(
                "this process may open %d files, too few for max.connections=%d; raise the limit: ulimit -n %d",
                limit,
                connections,
                _WANTED,
            )
        yield
    finally:
        _raised_limit.release()


class ReservedDescriptors:
    """Descriptors that only connections may use, and only if the process has no other.

    At most an eighth of the limit on open files is reserved.
    """

    def __init__(self, connections: int) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._wanted = connections if soft == resource.RLIM_INFINITY else min(connections, soft // _RESERVED_SHARE)
        self._descriptors: list[int] = []
        self._guard = threading.Lock()
        self._is_closed = False

    def give_up_one(self) -> bool:
        with self._guard:
            if not self._descriptors:
                return False
            os.close(self._descriptors.pop())
            return True

    def refill(self) -> None:
        """Reserve descriptors at the start, and again after connections were closed, as far as there are any."""
        if len(self._descriptors) >= self._wanted:
            return
        with self._guard, suppress(OSError):
            while len(self._descriptors) < self._wanted and not self._is_closed:
                self._descriptors.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def close(self) -> None:
        with self._guard:
            self._is_closed = True
            while self._descriptors:
                os.close(self._descriptors.pop())
