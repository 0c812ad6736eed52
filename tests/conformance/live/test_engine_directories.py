"""Kafka's log manager and Sediment's in turn on the same log directories; each continues the cleaning of the other.

SEDIMENT_CONFORMANCE_TURNS is the number of directories (8), SEDIMENT_CONFORMANCE_SEED the first seed (0).
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from sediment.engine.live.log_manager import LogManager
from sediment.segment_io.format.names import TopicPartition
from tests.clocks import ManualClock
from tests.conformance.oracle import BrokerRun, KafkaOracle
from tests.engine.managed import advance, append, clock_of, latest_of, records_of, running, topic_config

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(0)]

FIRST = int(os.environ.get("SEDIMENT_CONFORMANCE_SEED", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SEDIMENT_CONFORMANCE_TURNS", "8")))
SEGMENT_BYTES = 900
START_MS = 1_700_000_000_000

TOPICS = {
    "compacted": topic_config("compact", min_cleanable_dirty_ratio=0.0, segment_bytes=SEGMENT_BYTES),
    "both": topic_config(
        "compact", "delete", min_cleanable_dirty_ratio=0.0, segment_bytes=SEGMENT_BYTES, retention_ms=3_600_000
    ),
    "deleted": topic_config("delete", segment_bytes=SEGMENT_BYTES, retention_bytes=3000),
}
KAFKA_TOPICS = {
    name: {
        "cleanup.policy": ",".join(config.cleanup_policy),
        "min.cleanable.dirty.ratio": "0.0",
        "internal.segment.bytes": str(SEGMENT_BYTES),
        "segment.index.bytes": "1000",
        "retention.bytes": str(config.retention.retention_bytes),
        "retention.ms": str(config.retention.retention_ms),
    }
    for name, config in TOPICS.items()
}
PARTITIONS = [TopicPartition(topic, number) for topic in TOPICS for number in (0, 1)]


def write_some(manager: LogManager, chance: random.Random) -> None:
    """Random records, now and then a roll, a flush or a higher log start; the background tasks in between."""
    for _ in range(chance.randrange(60, 160)):
        log = manager.create_log(chance.choice(PARTITIONS))
        value = None if chance.random() < 0.1 else f"value-{log.log_end_offset}"
        append(log, (f"key-{chance.randrange(9)}", value))
        if chance.random() < 0.03:
            log.roll()
        if chance.random() < 0.03:
            log.flush()
        if chance.random() < 0.02:
            log.maybe_increment_log_start_offset(chance.randrange(log.log_end_offset + 1))
        if chance.random() < 0.1:
            advance(manager, chance.randrange(1, 40_000))
    advance(manager, 15_000)
    for _ in range(60):
        append(manager.create_log(PARTITIONS[0]), (f"key-{chance.randrange(9)}", "late"))


def facts(manager: LogManager) -> dict[str, tuple[object, ...]]:
    return {
        str(log.partition): (
            log.log_start_offset,
            log.log_end_offset,
            log.high_watermark,
            log.last_stable_offset,
            log.recovery_point,
            tuple((segment.base_offset, segment.log_bytes) for segment in log.segments()),
        )
        for log in manager.all_logs()
    }


def kafka_facts(run: BrokerRun) -> dict[str, tuple[object, ...]]:
    return {
        name: (
            state.log_start_offset,
            state.log_end_offset,
            state.high_watermark,
            state.last_stable_offset,
            state.recovery_point,
            tuple((segment.base_offset, segment.log_bytes) for segment in state.segments),
        )
        for name, state in run.partitions.items()
    }


def visible(manager: LogManager) -> dict[TopicPartition, object]:
    """What readers may rely on: all records of what is only deleted from, the latest values of what is compacted."""
    return {log.partition: latest_of(log) if log.config.compacts else records_of(log) for log in manager.all_logs()}


@pytest.mark.parametrize("seed", SEEDS)
def test_kafka_starts_on_what_the_engine_left_and_the_engine_on_what_kafka_left(
    oracle: KafkaOracle, tmp_path: Path, seed: int
) -> None:
    logs, chance, clock = tmp_path / "logs", random.Random(seed), ManualClock(START_MS)
    for turn in range(3):
        with running(logs, topic=TOPICS, clock=clock) as manager:
            write_some(manager, chance)
            expected = visible(manager)
        with running(logs, topic=TOPICS, clock=clock, log_cleaner_enable=False) as manager:
            loaded = facts(manager)
            assert visible(manager) == expected
        shutil.copytree(logs, tmp_path / f"copy-{turn}")
        found = oracle.broker(tmp_path / f"copy-{turn}", now_ms=clock.now_ms(), topics=KAFKA_TOPICS)
        assert kafka_facts(found) == loaded
        cleaned = oracle.broker(logs, now_ms=clock.now_ms(), topics=KAFKA_TOPICS, tasks=["clean"])
        assert "compacted-0" in cleaned.cleaned and not cleaned.errors
        with running(logs, topic=TOPICS, clock=clock, log_cleaner_enable=False) as manager:
            assert visible(manager) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_kafka_recovers_the_image_of_an_engine_that_died_as_the_engine_does(
    oracle: KafkaOracle, tmp_path: Path, seed: int
) -> None:
    logs, chance, clock = tmp_path / "logs", random.Random(seed), ManualClock(START_MS)
    with running(logs, topic=TOPICS, clock=clock) as manager:
        write_some(manager, chance)
        shutil.copytree(logs, tmp_path / "ours")
        shutil.copytree(logs, tmp_path / "kafkas")
        expected = visible(manager)
        assert clock_of(manager) is clock
    found = oracle.broker(tmp_path / "kafkas", now_ms=clock.now_ms(), topics=KAFKA_TOPICS)
    with running(tmp_path / "ours", topic=TOPICS, clock=clock, log_cleaner_enable=False) as manager:
        assert kafka_facts(found) == facts(manager)
        recovered = visible(manager)
    for partition, content in expected.items():
        if partition.topic == "compacted":
            assert recovered[partition] == content
