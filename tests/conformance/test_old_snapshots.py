"""Kafka 4.2's cleaner on a log with a producer snapshot of Kafka 0.11, which names a marker, not a data batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sediment.engine.clone.partition_clone import note_producers
from sediment.segment_io.fs import Fs
from tests.compaction.cleanings import PARTITION
from tests.compaction.test_last_data_batches import END, OF_MARKER, kept, write_log
from tests.conformance.oracle import KafkaOracle
from tests.segments import NOW_MS


@pytest.mark.conformance
def test_kafka_drops_the_last_data_batch_unless_it_has_rebuilt_the_snapshot(
    oracle: KafkaOracle, tmp_path: Path
) -> None:
    rebuilt = replace(OF_MARKER, last_offset=1, offset_delta=1)
    for entry, wanted in ((OF_MARKER, []), (rebuilt, [(0, 1, 0)])):
        directory = write_log(tmp_path / str(len(wanted)) / "t-0", entry=entry)
        oracle.clean(directory, now_ms=NOW_MS, configs={"cleanup.policy": "compact"})
        assert kept(directory) == wanted


@pytest.mark.conformance
def test_kafka_keeps_the_last_data_batch_of_a_copy(oracle: KafkaOracle, tmp_path: Path) -> None:
    directory = write_log(tmp_path / "t-0")
    assert note_producers(PARTITION, directory, 0, END, Fs())
    oracle.clean(directory, now_ms=NOW_MS, configs={"cleanup.policy": "compact"})
    assert kept(directory) == [(0, 1, 0)]
