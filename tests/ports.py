"""Ports for servers that tests start in other processes."""

from __future__ import annotations

import random
import socket

# Below the ports that Linux gives to outgoing connections, which would take a free port before its server is up.
_PORTS = range(15_000, 32_000)


def free_port() -> int:
    """Return a random port of loopback that no socket uses at the moment.

    Raises:
        OSError: a hundred ports are in use.
    """
    for port in random.sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port")
