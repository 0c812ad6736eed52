"""Options of `adopt`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sediment.jobs.cloning.options import check_cluster_id, listen_option, properties_file_option
from sediment.jobs.command_line.declaration import ONE_COMMAND, File, NodeId, option
from sediment.server.network.endpoints import Endpoint


@dataclass(frozen=True, slots=True)
class AdoptOptions:
    node_id: NodeId | None = option(
        None, "Give the node this id (default: from meta.properties, else 1).", from_settings=ONE_COMMAND
    )
    cluster_id: str | None = option(
        None,
        "Use this cluster id (default: from meta.properties, else a new one).",
        metavar="ID",
        parse=check_cluster_id,
        from_settings=ONE_COMMAND,
    )
    listen: Endpoint | None = listen_option()
    properties_file: File | None = properties_file_option(parse=Path.absolute)
    abort_open_transactions: bool = option(False, "End open transactions with ABORT markers.")
    dry_run: bool = option(
        False,
        "Change nothing; show the partitions to adopt and the metadata records to write.",
        from_settings=ONE_COMMAND,
    )
    yes: bool = option(False, "Adopt without asking; required if stdin or stderr is not a terminal.", of_terminal=True)
