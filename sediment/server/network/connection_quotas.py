"""Limits on the number of connections: `max.connections` and `max.connections.per.ip` (Kafka's ConnectionQuotas)."""

from __future__ import annotations

import threading
from collections import Counter

from sediment.segment_io.errors import SedimentError


class TooManyConnectionsError(SedimentError):
    """A connection exceeds a limit (Kafka's TooManyConnectionsException)."""

    pass


class ConnectionQuotas:
    def __init__(self, max_connections: int, max_connections_per_ip: int) -> None:
        self._max = max_connections
        self._max_per_ip = max_connections_per_ip
        self._by_address: Counter[str] = Counter()
        self._total = 0
        self._guard = threading.Lock()

    @property
    def total(self) -> int:
        return self._total

    def take(self, address: str) -> None:
        with self._guard:
            if self._total >= self._max:
                raise TooManyConnectionsError(f"max.connections={self._max} is reached")
            if self._by_address[address] >= self._max_per_ip:
                raise TooManyConnectionsError(f"max.connections.per.ip={self._max_per_ip} is reached")
            self._by_address[address] += 1
            self._total += 1

    def give_back(self, address: str) -> None:
        with self._guard:
            self._total -= 1
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
