"""Parsed options of `adopt`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sediment.server.network.endpoints import Endpoint


@dataclass(frozen=True, slots=True)
class AdoptOptions:
    """Options of the command.

    An id that is None is read from meta.properties. Without this file, the node id is 1 and the cluster id is random.
    Without `listen`, the broker listens on the default address.
    """

    listen: Endpoint | None = None
    node_id: int | None = None
    cluster_id: str | None = None
    properties_file: Path | None = None
    abort_open_transactions: bool = False
    dry_run: bool = False
