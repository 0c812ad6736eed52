"""A live server and a stock broker take over each other's directory, in turns."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka as confluent
import pytest

from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata, read_cluster_metadata
from tests.consumers import UNCOMMITTED, Records, committed_offsets, confluent_records, ends
from tests.e2e.kraft import KafkaNode, running
from tests.e2e.test_clone import assert_no_trouble, cloned_node, produce
from tests.served import serving, unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

NAMES = ["empty-0", "prices-0", "orders-0", "orders-1"]
PER_TURN = 20


def metadata_of(node: KafkaNode) -> ClusterMetadata:
    found = read_cluster_metadata(node.data, Fs())
    assert found is not None
    return found


def turn(bootstrap: str, written: int) -> Records:
    """Add records and commit their end, and return all records."""
    produce(bootstrap, "empty", PER_TURN, enable_idempotence="true")
    end = confluent.TopicPartition("empty", 0, written + PER_TURN)
    consumer = confluent.Consumer({"bootstrap.servers": bootstrap, "group.id": "turns"})
    consumer.commit(offsets=[end], asynchronous=False)
    consumer.close()
    assert ends(bootstrap, ["empty-0"])["empty-0"][1] == written + PER_TURN
    return confluent_records(bootstrap, NAMES, UNCOMMITTED)


def serve_in_turn(node: KafkaNode, written: int) -> Records:
    with serving(node.data, "--config", node.config_file(), "--flush-acks") as served:
        wait_for_groups(served.bootstrap)
        return turn(served.bootstrap, written)


def wait_for_groups(bootstrap: str) -> None:
    """Wait until the groups are loaded."""
    committed_offsets(bootstrap, "billing", ["orders-0"])


def test_a_directory_goes_from_a_server_to_a_broker_and_back(tmp_path: Path) -> None:
    source = unpacked(tmp_path / "source")
    node, _ = cloned_node(tmp_path, source)
    seen = serve_in_turn(node, 0)
    next_id = metadata_of(node).next_producer_id
    for written in (PER_TURN, 3 * PER_TURN):
        with running(node):
            assert_no_trouble(node)
            assert confluent_records(node.bootstrap, NAMES, UNCOMMITTED) == seen
            assert committed_offsets(node.bootstrap, "turns", ["empty-0"])["empty-0"][0] == written
            assert committed_offsets(node.bootstrap, "billing", ["orders-0"])["orders-0"][0] == 5
            seen = turn(node.bootstrap, written)
            node.stop()
        with serving(node.data, "--config", node.config_file()) as served:
            assert confluent_records(served.bootstrap, NAMES, UNCOMMITTED) == seen
            offsets = committed_offsets(served.bootstrap, "turns", ["empty-0"])
            assert offsets["empty-0"][0] == written + PER_TURN
        seen = serve_in_turn(node, written + PER_TURN)
        assert metadata_of(node).next_producer_id >= next_id + 2000
        next_id = metadata_of(node).next_producer_id
    assert not list(node.data.glob("*-stray"))
