"""The levels of features in each release that a clone may be for, as the newest Kafka maps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.engine.clone.features import RELEASES as TARGETS
from sediment.engine.clone.features import clone_features
from sediment.segment_io.internal_topics.metadata_log import KRAFT_VERSION
from tests.versions.node import Node
from tests.versions.releases import RELEASES

pytestmark = [pytest.mark.versions]


def test_the_levels_of_every_target_are_those_that_kafka_maps_to_the_release(tmp_path: Path) -> None:
    node = Node(tmp_path, RELEASES[-1])
    for target in TARGETS:
        said = node.tool("kafka.tools.StorageTool", "version-mapping", "--release-version", target)
        levels = {
            name: int(level.split()[0])
            for name, _, level in (line.partition("=") for line in said.splitlines())
            if level
        }
        levels.pop(KRAFT_VERSION)
        assert clone_features(None, target) == {name: level for name, level in levels.items() if level}
