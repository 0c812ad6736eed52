"""Random logs: Kafka 4.2.0's UnifiedLog.deleteOldSegments and `sediment expire` must keep the same segments.

SEDIMENT_CONFORMANCE_RETENTIONS is how many (200), SEDIMENT_CONFORMANCE_SEED the first seed (0).  Compared are the
segments that go, log start and end offsets, and every file that is left, byte by byte.  A log that comes out otherwise
is made smaller and kept (see cases.py).
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.cases import Case, kept, read_kept, shrink_and_keep
from tests.conformance.logs import SPEC, random_spec
from tests.conformance.oracle import KafkaFailedError, KafkaOracle, LogState, OracleUnavailableError
from tests.jobs.log_dirs import read_checkpoint, sediment, topic_sets, tree
from tests.twin.snapshots import parse_snapshot

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(0)]

NAME = "random-0"
POLICIES = ("delete", "delete", "delete", "compact,delete", "compact", "")


def _log_spec(seed: int) -> dict[str, Any]:
    pick = random.Random(f"retention of {seed}")
    spec = {**SPEC, **random_spec(seed)}
    spec["configs"] = {**spec["configs"], "cleanup.policy": "delete"}
    spec["records"] = min(spec["records"], 600)
    # Producers that look expired to a later clock would differ by the moment at which Kafka looks.
    spec["log_start"] = pick.random() if pick.random() < 0.3 else None
    return spec


def _limits(pick: random.Random, state: LogState, now_ms: int) -> dict[str, str]:
    """Return a retention.ms near the age of a segment, and a retention.bytes near the size of a log suffix."""
    limits = {"retention.ms": "-1", "cleanup.policy": pick.choice(POLICIES)}
    segment = pick.choice(state.segments)
    if pick.random() < 0.6:
        age_ms = max(0, now_ms - segment.largest_timestamp)
        limits["retention.ms"] = str(max(0, age_ms + pick.choice((-1, 0, 1, -1000, 1000))))
    if pick.random() < 0.5:
        rest = sum(other.log_bytes for other in state.segments if other.base_offset > segment.base_offset)
        limits["retention.bytes"] = str(max(0, rest + pick.choice((-1, 0, 0, 1, 500))))
    return limits


def _compare(oracle: KafkaOracle, case: Case, directory: Path) -> str:
    spec, seed = case["spec"], case["seed"]
    pick = random.Random(f"limits of {seed}")
    written = directory / "written"
    state = oracle.generate(spec, written / NAME)
    now_ms = spec["start_ms"] + spec["records"] * spec["step_ms"] + pick.choice((0, 1_000, 3_600_000))
    high_watermark = state.log_end_offset
    if pick.random() < 0.3:
        high_watermark = max(state.log_start_offset, int(high_watermark * pick.random()))
    outcomes = []
    for number in range(pick.choice((1, 2, 3))):
        # A broker starts and stops in between; its start also removes snapshots that retention leaves.
        state = oracle.generate(
            {"steps": [], "configs": spec["configs"], "start_ms": now_ms},
            written / NAME,
            log_start_offset=state.log_start_offset,
            checkpoints=True,
            high_watermark=high_watermark,
        )
        limits = _limits(pick, state, now_ms)
        kafka, ours = directory / f"kafka-{number}", directory / f"ours-{number}"
        shutil.copytree(written, kafka)
        shutil.copytree(written, ours)
        left = oracle.retention(
            kafka / NAME,
            now_ms=now_ms,
            configs={**spec["configs"], **limits},
            log_start_offset=state.log_start_offset,
            high_watermark=high_watermark,
        )
        where = f"seed {seed}, retention {number}, {limits}, high watermark {high_watermark}, now {now_ms}"
        outcome = sediment(
            "expire",
            ours,
            "--json",
            "--quiet",
            f"--now-ms={now_ms}",
            *topic_sets("random", {**spec["configs"], **limits}),
        )
        report = outcome.partitions()[NAME]
        assert report["status"] in ("expired", "skipped"), f"{where}: {report}"
        assert len(report["deleted_segments"]) == left.deleted, f"{where}: {report}"
        assert tuple(report["segments"]) == left.state.base_offsets, where
        assert report["log_start_offset"] == left.state.log_start_offset, where
        assert report["log_end_offset"] == left.state.log_end_offset, where
        # A start without segments to delete may remove, or take anew, what lies at the log start.
        known_from = -1 if left.deleted else left.state.log_start_offset
        _assert_same_files(ours / NAME, kafka / NAME, known_from, where)
        starts = read_checkpoint(ours / "log-start-offset-checkpoint")
        inside = left.state.log_start_offset > left.state.base_offsets[0]
        assert starts == ({NAME: left.state.log_start_offset} if inside else {}), where
        outcomes.append(report["status"])
        # The next one begins where this one ended, under a later clock.
        shutil.rmtree(kafka)
        shutil.rmtree(written)
        ours.rename(written)
        state = left.state
        now_ms += pick.choice((1, 60_000, 86_400_000))
    return "expired" if "expired" in outcomes else "nothing to delete"


def _assert_same_files(ours: Path, kafka: Path, known_from: int, where: str) -> None:
    """Assert the same names and bytes, except producer snapshots up to `known_from`."""
    found, expected = (
        {
            name: content
            for name, content in tree(directory).items()
            if not (name.endswith(".snapshot") and int(name.partition(".")[0]) <= known_from)
        }
        for directory in (ours, kafka)
    )
    assert sorted(found) == sorted(expected), where
    for name in found:
        if name.endswith(".snapshot"):
            assert parse_snapshot(found[name]) == parse_snapshot(expected[name]), f"{where}: {name}"
        else:
            assert found[name] == expected[name], f"{where}: {name}"


def test_random_logs_are_expired_as_kafka_expires_them(oracle, tmp_path, capsys):
    logs = int(os.environ.get("SEDIMENT_CONFORMANCE_RETENTIONS", "200"))
    first = int(os.environ.get("SEDIMENT_CONFORMANCE_SEED", "0"))
    outcomes: Counter[str] = Counter()
    differences = []
    for seed in range(first, first + logs):
        directory = tmp_path / f"log-{seed}"
        case = {"seed": seed, "spec": _log_spec(seed)}
        try:
            outcomes[_compare(oracle, case, directory)] += 1
            shutil.rmtree(directory)
        except (KafkaFailedError, OracleUnavailableError):
            raise
        except Exception as difference:
            path = shrink_and_keep(
                *("retention", str(seed), case, difference),
                lambda candidate: _compare_anew(oracle, candidate, tmp_path / "shrinking"),
            )
            differences.append(f"kept as {path}: {difference!r}")
    with capsys.disabled():
        print(f"\n{logs} logs: {dict(outcomes)}, {len(differences)} differences")
    assert not differences, "\n".join(differences)
    assert outcomes["expired"] > logs // 3


def _compare_anew(oracle: KafkaOracle, case: Case, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    _compare(oracle, case, directory)


@pytest.mark.parametrize("path", kept("retention"), ids=lambda path: path.stem)
def test_a_log_that_was_once_expired_otherwise_is_expired_as_kafka_expires_it(path, oracle, tmp_path):
    _compare(oracle, read_kept(path), tmp_path)
