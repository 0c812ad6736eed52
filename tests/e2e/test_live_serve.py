"""A live server and a stock broker take over each other's directory, in turns."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

import pytest

from sediment.engine.clone.server_properties import server_properties
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata, read_cluster_metadata
from sediment.server.live.owned_node import open_node
from tests.consumers import UNCOMMITTED, Records, commit_offsets, committed_offsets, confluent_records, ends
from tests.e2e.kraft import KafkaNode, running
from tests.e2e.test_clone import assert_no_trouble, produce
from tests.served import serving, unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

NAMES = ["empty-0", "prices-0", "orders-0", "orders-1"]
PER_TURN = 20


def two_free_ports() -> int:
    """Return a port that is free, as is the next one; the system gives neither to a connection."""
    chance = random.Random()
    while True:
        port = chance.randrange(20_000, 30_000)
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port


def node_on(data: Path, home: Path) -> KafkaNode:
    """Return a node that is to start on `data`."""
    text = server_properties(
        data,
        open_node([data], None, Fs()).node,
        host="127.0.0.1",
        port=two_free_ports(),
        partition_counts={"__consumer_offsets": 2, "__transaction_state": 2},
        is_held=True,
    )
    file = data / "server.properties"
    file.write_text(text)
    return KafkaNode(home, file=file)


def metadata_of(data: Path) -> ClusterMetadata:
    found = read_cluster_metadata(data, Fs())
    assert found is not None
    return found


class Turns:
    """The records and offsets that each turn finds, and adds to."""

    def __init__(self) -> None:
        self.written = 0
        self.seen: Records | None = None

    def take(self, bootstrap: str) -> None:
        """Check what the turn before left, add records, and commit their end."""
        assert committed_offsets(bootstrap, "billing", ["orders-0"])["orders-0"][0] == 5
        if self.seen is not None:
            assert confluent_records(bootstrap, NAMES, UNCOMMITTED) == self.seen
            assert committed_offsets(bootstrap, "turns", ["empty-0"])["empty-0"][0] == self.written
        produce(bootstrap, "empty", PER_TURN, enable_idempotence="true")
        self.written += PER_TURN
        commit_offsets(bootstrap, "turns", {"empty-0": self.written})
        assert ends(bootstrap, ["empty-0"])["empty-0"][1] == self.written
        self.seen = confluent_records(bootstrap, NAMES, UNCOMMITTED)


def test_a_directory_goes_from_a_server_to_a_broker_and_back(tmp_path: Path) -> None:
    data = unpacked(tmp_path / "data")
    before = metadata_of(data)
    turns = Turns()
    next_ids = []
    for number in range(3):
        with serving(data, "--flush-acks") as served:
            turns.take(served.bootstrap)
        next_ids.append(metadata_of(data).next_producer_id)
        if number < 2:
            with running(node_on(data, tmp_path / f"node-{number}")) as node:
                turns.take(node.bootstrap)
                assert_no_trouble(node)
                node.stop()
            next_ids.append(metadata_of(data).next_producer_id)
    after = metadata_of(data)
    assert (after.topic_ids, after.topic_configs) == (before.topic_ids, before.topic_configs)
    assert next_ids == sorted(set(next_ids))
    assert not list(data.glob("*-stray"))
