"""The address on which the server listens, and the address that clients get."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.checkpoints import parse_count

_LOCALHOST = "localhost"
_MOST_PORT = 65_535
_MOST_HOST_CHARACTERS = 255


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def resolve(self) -> Endpoint:
        """Return the endpoint with the host's IP address; `localhost` becomes 127.0.0.1."""
        # If clients got several addresses, some would try only the first.
        host = "127.0.0.1" if self.host == _LOCALHOST else self.host
        try:
            found = socket.getaddrinfo(host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or "the name is not a host name"
            raise UsageError(
                f"{self.host} has no address: {reason.lower()}", advice="give an IP address such as 127.0.0.1"
            ) from error
        return Endpoint(str(found[0][4][0]), self.port)

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback

    @property
    def is_wildcard(self) -> bool:
        return ipaddress.ip_address(self.host).is_unspecified


def parse_endpoint(text: str, option: str, *, least_port: int = 0) -> Endpoint:
    """Parse HOST:PORT, the value of `option`; an IPv6 address must be in brackets."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    number = parse_count(port)
    is_port = number is not None and least_port <= number <= _MOST_PORT
    if (
        not colon
        or number is None
        or not is_port
        or not host
        or len(host) > _MOST_HOST_CHARACTERS
        or not host.isprintable()
    ):
        raise UsageError(f"{option} {text!r} is not HOST:PORT", advice="write 127.0.0.1:9092 or [::1]:9092")
    return Endpoint(host, number)


def choose_advertised(listen: Endpoint, bound: Endpoint, advertise: Endpoint | None) -> Endpoint:
    """`bound` is `listen` with an IP address and the actual port.

    Raises:
        UsageError: the server listens on all addresses, and `advertise` is None.
    """
    if advertise is not None:
        return advertise
    if bound.is_wildcard:
        raise UsageError(
            f"--listen {listen} means every address of this machine, but clients need a single address",
            advice="give the address for clients with --advertise HOST:PORT",
        )
    # The certificate may contain the host name, so return the name, not the resolved address.
    return bound if bound.is_loopback else Endpoint(listen.host, bound.port)
