"""Kafka's loader on every state that an interrupted `expire` can leave."""

from __future__ import annotations

import pytest

from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_checkpoints
from tests.conformance.oracle import KafkaOracle
from tests.faults.test_expire_faults import PARTITION, Log, crashes, log, records_of
from tests.segments import NOW_MS

__all__ = ["log"]


@pytest.mark.conformance
@pytest.mark.parametrize("clean", [True, False])
def test_kafka_opens_what_any_crash_left_and_nothing_that_retention_keeps_is_gone(
    clean: bool, oracle: KafkaOracle, log: Log
):
    starts = set()
    for crash in crashes(log):
        log.lay_out(crash.killed)
        checkpoint = read_checkpoints(log.log_dir, Fs()).of(PARTITION).log_start or 0
        state = oracle.load(
            log.directory,
            now_ms=NOW_MS,
            configs={"cleanup.policy": "delete"},
            clean=clean,
            recovery_point=15,
            log_start_offset=checkpoint,
        )
        assert state.log_end_offset == 15
        assert state.log_start_offset <= log.start_after
        kept = {offset: value for offset, value in log.records.items() if offset >= state.log_start_offset}
        found = records_of(log.directory)
        assert {offset: found[offset] for offset in found if offset >= state.log_start_offset} == kept
        starts.add(state.log_start_offset)
    assert starts == {0, log.start_after}
