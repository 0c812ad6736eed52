"""Kafka's cleaner if delete.retention.ms is so large that delete horizons exceed the largest timestamp."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sediment.segment_io.format.layout import INT64_MAX
from tests.compaction.cleanings import Round, batch_of, prepare, put_in_place, write_log
from tests.compaction.test_delete_horizons import batches_of, tombstone
from tests.conformance.oracle import KafkaOracle
from tests.logs import START_MS

NOW_MS = START_MS + 1_000_000
LATER_MS = NOW_MS + 10**12


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("retention_ms", "horizon_ms"),
    [(INT64_MAX - NOW_MS, INT64_MAX), (INT64_MAX - NOW_MS + 1, None), (INT64_MAX, None)],
)
def test_tombstones_stay_and_get_no_horizon_beyond_the_last_moment(
    oracle: KafkaOracle, tmp_path: Path, retention_ms: int, horizon_ms: int | None
):
    segments = {0: [tombstone(0, b"a"), tombstone(1, b"b"), batch_of(2, b"c")], 3: [batch_of(3, b"d")]}
    ours = write_log(tmp_path / "ours-0", segments)
    kafkas = tmp_path / "kafka-0"
    shutil.copytree(ours, kafkas)
    configs = {"cleanup.policy": "compact", "segment.bytes": "100", "delete.retention.ms": str(retention_ms)}
    for now_ms in (NOW_MS, LATER_MS):
        assert oracle.clean(kafkas, now_ms=now_ms, configs=configs).error is None
        swap = prepare(ours, Round(now_ms, segment_bytes=100, delete_retention_ms=retention_ms))
        assert swap is not None
        put_in_place(swap)
        assert [batch.delete_horizon_ms for batch in batches_of(kafkas)] == [horizon_ms, horizon_ms, None]
        assert [batch.data for batch in batches_of(ours)] == [batch.data for batch in batches_of(kafkas)]
