"""One directory for a live server and a broker, with the same properties."""

from __future__ import annotations

from pathlib import Path

from sediment.engine.clone.server_properties import server_properties
from sediment.segment_io.fs import Fs
from sediment.server.live.owned_node import open_node
from tests.e2e.kraft import KafkaNode
from tests.e2e.test_live_serve import two_free_ports

_QUICK = "transaction.abort.timed.out.transaction.cleanup.interval.ms=500\n"


def node_file(data: Path) -> Path:
    """Write the properties of the node of `data`, on free ports, and return their file."""
    text = server_properties(
        data,
        open_node([data], None, Fs()).node.node_id,
        host="127.0.0.1",
        port=two_free_ports(),
        partition_counts={"__consumer_offsets": 2, "__transaction_state": 2},
        is_held=False,
    )
    file = data.with_name(f"{data.name}.properties")
    file.write_text(text + _QUICK)
    return file


def node_on(data: Path, home: Path) -> KafkaNode:
    """Return a broker that is to start on `data`, with its log in `home`."""
    return KafkaNode(home, file=node_file(data))
