"""Kafka 4.2.0 and a PartitionLog must write the same files for the same appends, rolls, truncations and markers.

SEDIMENT_CONFORMANCE_LIVE is the number of random logs (60), SEDIMENT_CONFORMANCE_SEED the first seed (0).  With codecs
the compressed streams differ, and so do sizes; then Kafka's description of the directory is compared without them.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sediment.engine.live.log.partition_log import PartitionLog
from tests.conformance.engine_writer import EngineWriter
from tests.conformance.logs import SPEC, continued, random_spec, writing_steps
from tests.conformance.oracle import KafkaFailedError, KafkaOracle, LogState
from tests.twin.snapshots import parse_snapshot

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(0)]

FIRST = int(os.environ.get("SEDIMENT_CONFORMANCE_SEED", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SEDIMENT_CONFORMANCE_LIVE", "60")))
EXPIRATION_MS = 86_400_000


def facts_of(log: PartitionLog) -> dict[str, Any]:
    """State of an open log, of either side."""
    return {
        "log_start": log.log_start_offset,
        "log_end": log.log_end_offset,
        "high_watermark": log.high_watermark,
        "lso": log.last_stable_offset,
        "unstable": log.first_unstable_offset,
        "recovery_point": log.recovery_point,
        "producers": tuple(sorted((key, entry.last_sequence) for key, entry in log.producers.entries.items())),
        "remembered": tuple(
            (producer_id, batch.last_sequence, batch.last_offset, batch.offset_delta)
            for producer_id in sorted(log.producers.entries)
            for batch in log.remembered_batches(producer_id)
        ),
    }


def kafka_facts(state: LogState) -> dict[str, Any]:
    """As `facts_of`; where Kafka's last stable offset lies below the log start, ours is the log start."""
    start, unstable = state.log_start_offset, state.first_unstable_offset
    return {
        "log_start": state.log_start_offset,
        "log_end": state.log_end_offset,
        "high_watermark": state.high_watermark,
        "lso": max(state.last_stable_offset, start),
        "unstable": None if unstable is None else max(unstable, start),
        "recovery_point": state.recovery_point,
        "producers": state.producers,
        "remembered": state.remembered,
    }


def files_of(directory: Path) -> dict[str, object]:
    """Return files of a partition by name, with unordered producers and without empty indexes."""
    found: dict[str, object] = {}
    for path in directory.iterdir():
        content = path.read_bytes()
        if path.suffix == ".snapshot":
            found[path.name] = sorted(parse_snapshot(content).values(), key=lambda entry: entry.producer_id)
        elif content or path.suffix == ".log":
            found[path.name] = content
    found.pop("partition.metadata", None)
    return found


def has_codecs(spec: dict[str, Any]) -> bool:
    return spec["codecs"] != ["none"] or spec["configs"].get("compression.type", "uncompressed") != "uncompressed"


def without_sizes(state: LogState) -> LogState:
    segments = tuple(
        replace(segment, log_bytes=0, offset_index_entries=0, time_index_entries=0) for segment in state.segments
    )
    return replace(state, segments=segments)


def written(oracle: KafkaOracle, spec: dict[str, Any], scratch: Path) -> tuple[Path, Path]:
    """Return the directories that Kafka and the engine write; what both say of them before they stop is compared."""
    kafka, ours = scratch / "kafka" / "t-0", scratch / "ours" / "t-0"
    kafka.mkdir(parents=True)
    try:
        state = oracle.generate(spec, kafka)
    except KafkaFailedError as error:
        pytest.skip(f"Kafka does not write this log: {error}")
    writer = EngineWriter(ours, spec["configs"], spec["start_ms"])
    writer.take(writing_steps(spec))
    writer.log.flush(force_last_segment=True)
    assert facts_of(writer.log) == kafka_facts(state)
    writer.stop()
    return kafka, ours


def _loaded(oracle: KafkaOracle, directory: Path, **options: Any) -> LogState | str:
    """Return Kafka's state of a directory, or its error if it does not load."""
    try:
        return oracle.load(directory, **options)
    except KafkaFailedError as error:
        return str(error)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_engine_writes_what_kafka_writes(oracle: KafkaOracle, tmp_path: Path, seed: int) -> None:
    spec = {**SPEC, **random_spec(seed)}
    if has_codecs(spec):
        # Sizes differ, so segments must not end by size.
        spec["configs"] = {**spec["configs"], "segment.bytes": "1000000000", "segment.index.bytes": "10485760"}
    kafka, ours = written(oracle, spec, tmp_path)
    if not has_codecs(spec):
        assert files_of(ours) == files_of(kafka)
    now_ms = spec["start_ms"] + 10_000_000
    for clean in (True, False):
        loaded = []
        for directory in (kafka, ours):
            copy = tmp_path / str(clean) / directory.parent.name / directory.name
            shutil.copytree(directory, copy)
            for path in copy.glob("*.log"):
                os.utime(path, (1_600_000_000, 1_600_000_000))
            loaded.append(_loaded(oracle, copy, now_ms=now_ms, configs=spec["configs"], clean=clean))
        if has_codecs(spec):
            loaded = [state if isinstance(state, str) else without_sizes(state) for state in loaded]
        assert loaded[1] == loaded[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_engine_continues_after_kafka_and_kafka_after_the_engine(
    oracle: KafkaOracle, tmp_path: Path, seed: int
) -> None:
    spec = {**SPEC, **random_spec(seed), "log_start": None}
    directory = tmp_path / "t-0"
    directory.mkdir()
    try:
        first = oracle.generate(spec, directory)
    except KafkaFailedError as error:
        pytest.skip(f"Kafka does not write this log: {error}")
    second = continued(spec, log_end_offset=first.log_end_offset, part=1)
    writer = EngineWriter(directory, spec["configs"], second["start_ms"])
    assert writer.log.log_end_offset == first.log_end_offset
    known = {key: entry.last_sequence for key, entry in writer.log.producers.entries.items()}
    assert known.items() <= dict(first.producers).items()
    writer.take(writing_steps(second))
    facts = facts_of(writer.log)
    active = writer.log.producers.without_expired(writer.now_ms, EXPIRATION_MS).entries
    writer.stop()
    third = continued(spec, log_end_offset=facts["log_end"], part=2)
    loaded = oracle.load(directory, now_ms=writer.now_ms, configs=spec["configs"])
    assert (loaded.log_start_offset, loaded.log_end_offset) == (facts["log_start"], facts["log_end"])
    assert dict(loaded.producers) == {key: entry.last_sequence for key, entry in active.items()}
    assert oracle.generate(third, directory).log_end_offset > facts["log_end"] or not third["records"]
