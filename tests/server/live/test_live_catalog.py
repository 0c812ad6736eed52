"""The partitions of topics in the catalog of a live server."""

from __future__ import annotations

from pathlib import Path

from sediment.segment_io.protocol import messages as m
from tests.server.live.nodes import live, new_node


def test_the_partitions_of_a_topic_are_listed_once_per_change(tmp_path: Path) -> None:
    with live(new_node(tmp_path / "data", {"t": 2, "u": 1})) as server, server.connect() as client:
        catalog = server.server.catalog
        before, other = (catalog.topic(name).all_partitions for name in "tu")
        assert list(before) == [0, 1]
        assert catalog.topic("t").all_partitions is before
        request = m.CreatePartitionsRequest
        grown = request(topics=[request.CreatePartitionsTopic(name="t", count=3, assignments=None)], timeout_ms=10_000)
        assert client.ask(grown, 3).results[0].error_code == 0
        assert list(catalog.topic("t").all_partitions) == [0, 1, 2]
        assert catalog.topic("u").all_partitions is other
