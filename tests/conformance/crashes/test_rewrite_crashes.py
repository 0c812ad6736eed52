"""Kafka's loader after a rewrite of a closed and of the active segment was killed at each step of its commit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conformance.oracle import KafkaOracle
from tests.rewrites import killed_rewrites, visible_records
from tests.segments import NOW_MS


@pytest.mark.conformance
def test_kafka_loads_each_segment_as_before_or_after_the_rewrite(oracle: KafkaOracle, tmp_path: Path):
    seen = set()
    for killed in killed_rewrites(tmp_path):
        state = oracle.load(killed.directory, now_ms=NOW_MS, configs={}, recovery_point=6)
        assert (state.log_end_offset, state.base_offsets, state.producers) == (6, (0, 3), ((9, 5),))
        found = visible_records(killed.directory, committed=False)
        assert found in killed.allowed
        seen.add(tuple(sorted(found)))
        shutil.rmtree(killed.directory)
    assert seen == {tuple(sorted(allowed)) for allowed in killed.allowed}
