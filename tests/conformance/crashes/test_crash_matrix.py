"""Kafka's loader on every state that an interrupted command can leave: the same matrix as in tests/faults.

Kafka opens every partition of a crash image as at its start, with the checkpoints and the marker in the image.  The
result is compared with that of Sediment's loader on the same image.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sediment.segment_io.format.names import CLEAN_SHUTDOWN_FILE
from sediment.segment_io.manifest import MANIFEST_FILE
from tests.conformance.oracle import KafkaOracle, LogState
from tests.faults.crash_scenarios import (
    ELSEWHERE,
    CrashScenario,
    crash_scenarios,
    readable_batches,
    segment_files,
)
from tests.faults.fs_trace import CrashImage, contents
from tests.faults.matrix import TALLY, recorded, sampled_by_crash
from tests.logs import START_MS

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(0)]


def loaded_by_kafka(oracle: KafkaOracle, scenario: CrashScenario, directory: Path) -> LogState:
    """Kafka's start over a partition as it lies there."""
    known = scenario.checkpoints(directory)
    return oracle.load(
        directory,
        now_ms=START_MS,
        configs={
            "cleanup.policy": "delete" if scenario.command == "expire" else "compact",
            "index.interval.bytes": str(scenario.interval_bytes),
        },
        clean=(directory.parent / CLEAN_SHUTDOWN_FILE).exists(),
        recovery_point=known.recovery_point or 0,
        log_start_offset=known.log_start or 0,
    )


# A vacuum changes no log: nothing of it is for a broker to open.
_IN_PLACE = [name for name in crash_scenarios() if ELSEWHERE not in name]
_OUTPUTS = [
    name for name, found in crash_scenarios().items() if any(each.startswith("--output") for each in found.arguments)
]


def _prepared(name: str, tmp_path: Path) -> CrashScenario:
    found = crash_scenarios()[name]
    found.prepare(tmp_path / "root")
    return found


@pytest.fixture(params=_IN_PLACE)
def scenario(request: pytest.FixtureRequest, tmp_path: Path) -> CrashScenario:
    return _prepared(request.param, tmp_path)


def test_kafka_opens_what_a_crash_at_any_step_left_and_has_what_our_start_has(
    scenario: CrashScenario, oracle: KafkaOracle
):
    images = list(sampled_by_crash(recorded(scenario).images))
    for directory in scenario.partitions():
        _assert_kafka_has_what_we_have(scenario, directory, images, oracle)


def _assert_kafka_has_what_we_have(
    scenario: CrashScenario, directory: Path, images: Sequence[CrashImage], oracle: KafkaOracle
) -> None:
    scenario.restore(scenario.after)
    final = readable_batches(directory)
    scenario.restore(scenario.before)
    all_batches = readable_batches(directory)
    if scenario.command == "restore":
        final = all_batches  # what it puts back is not there at first
    end_offset = loaded_by_kafka(oracle, scenario, directory).log_end_offset
    known = set()
    for image in images:
        TALLY[f"Kafka after {scenario.name}", image.crash] += 1
        key = frozenset(contents(image.tree).items())
        if key in known:
            continue
        known.add(key)
        scenario.restore(image.tree)
        ours = scenario.load(directory) if scenario.opens(directory) else None
        our_batches, our_files = readable_batches(directory), segment_files(directory)
        scenario.restore(image.tree)
        kafka = loaded_by_kafka(oracle, scenario, directory)
        kafkas_batches = readable_batches(directory)
        start = kafka.log_start_offset if ours is None else max(kafka.log_start_offset, ours.log_start_offset)
        lost = {offset for offset in final if offset >= start} - kafkas_batches.keys()
        assert not lost, f"{image}: Kafka has lost {sorted(lost)}"
        if ours is None:  # a restore that brings back a torn end has to be run again
            continue
        if not scenario.is_trusted_more_by_us:
            assert kafka.log_end_offset == ours.log_end_offset, image
            assert kafka.base_offsets == tuple(segment.base_offset for segment in ours.segments), image
            assert kafkas_batches == our_batches, image
        if scenario.command != "recover":
            assert kafka.log_end_offset == end_offset
            assert {name: data for name, data in segment_files(directory).items() if name in our_files} == our_files
        else:
            assert kafkas_batches.items() <= all_batches.items(), image


@pytest.fixture(params=_OUTPUTS)
def publishing(request: pytest.FixtureRequest, tmp_path: Path) -> CrashScenario:
    return _prepared(request.param, tmp_path)


def test_kafka_opens_every_complete_output_and_the_source_of_an_incomplete_one(
    publishing: CrashScenario, oracle: KafkaOracle
):
    (source,) = publishing.partitions()
    output = publishing.root / ELSEWHERE / source.name
    publishing.restore(publishing.before)
    end_offset = loaded_by_kafka(oracle, publishing, source).log_end_offset
    files, complete = publishing.of(publishing.before, source), publishing.of(publishing.after, output)
    images = recorded(publishing).images
    completed = [image for image in images if f"{ELSEWHERE}/{MANIFEST_FILE}" in image.tree]
    assert completed
    for image in [*sampled_by_crash(images), *completed]:
        TALLY[f"Kafka after {publishing.name}", image.crash] += 1
        assert publishing.of(image.tree, source) == files, image
    for image in completed:
        assert publishing.of(image.tree, output) == complete, image
    publishing.restore(publishing.after)
    written, logs = readable_batches(output), segment_files(output)
    kafka = loaded_by_kafka(oracle, publishing, output)
    assert kafka.log_end_offset == end_offset
    assert (readable_batches(output), segment_files(output)) == (written, logs)
