"""Options of `adopt`, as values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sediment.server.network.endpoints import Endpoint


@dataclass(frozen=True, slots=True)
class AdoptOptions:
    """Options of the command.

    An id of None is read from meta.properties; if that is missing too, it is node 1 or a random cluster id.  Without
    `listen`, the broker listens on the default address.
    """

    listen: Endpoint | None = None
    node_id: int | None = None
    cluster_id: str | None = None
    properties_file: Path | None = None
    abort_open_transactions: bool = False
    dry_run: bool = False
