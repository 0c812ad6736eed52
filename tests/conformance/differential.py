"""Comparison of one random log cleaned by Kafka and by `sediment compact`, with the intended differences.

docs/reference/differences.md lists the intended differences; each is a named outcome here and is counted.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.cases import MOST_ATTEMPTS, Case, random_case, shrink_and_keep
from tests.conformance.coverage import Coverage
from tests.conformance.oracle import KAFKA_VERSION, Cleaned, KafkaFailedError, KafkaOracle, OracleUnavailableError
from tests.conformance.rounds import PARTITION, CleanedRound, cleaned_rounds
from tests.corpus import assert_same_batch, assert_same_log, assert_same_snapshots
from tests.jobs.log_dirs import read_checkpoint, sediment, topic_sets, tree
from tests.twin.segments import AnyBatch, list_segments

EQUAL = "equal"
NOTHING_TO_CLEAN = "nothing to clean"
KAFKA_THREW = "Kafka made the partition uncleanable"
ABORTED_BELOW_START = "equal from the log start on; below it Kafka forgets aborted transactions"
EMPTY_END = "equal but for an empty batch at the end of the range, which Kafka keeps only at the high watermark"

DROPS_EMPTY_END = tuple(map(int, KAFKA_VERSION.split("."))) >= (4, 4)
_TOPIC = PARTITION.rpartition("-")[0]
_CHECKPOINT = "cleaner-offset-checkpoint"
_MOST_SHRUNK = 3  # differences of a run; the others are kept as they were found


@dataclass
class Tally:
    """Outcomes of rounds, what the logs covered, and by seed the differences that were found."""

    outcomes: Counter[str] = field(default_factory=Counter)
    coverage: Coverage = field(default_factory=Coverage)
    logs: int = 0
    rounds: int = 0
    differences: dict[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items()))
        return f"{self.logs} logs, {self.rounds} rounds: {parts}; {len(self.differences)} differences"


def compare_log(oracle: KafkaOracle, case: Case, directory: Path, tally: Tally) -> None:
    """Clean the log of a case round by round with both; raises AssertionError at the first difference."""
    tally.logs += 1
    for number, given in enumerate(cleaned_rounds(oracle, case, directory), 1):
        ours = directory / f"ours-{number}"
        shutil.copytree(given.before, ours)
        tally.rounds += 1
        tally.outcomes[compare_round(given, ours, case["spec"])] += 1
        tally.coverage.add_round(given)


def compare_round(given: CleanedRound, ours: Path, spec: Mapping[str, Any]) -> str:
    """Clean `ours`, a copy of `given.before`, and compare it with what Kafka left; returns the outcome."""
    options = ("--json", "--quiet", "--drop-keyless", "--strategy", given.strategy, "--now-ms", given.now_ms)
    outcome = sediment("compact", ours, *options, *_settings(given))
    report = outcome.partitions()[PARTITION]
    partition, kafka = ours / PARTITION, given.after / PARTITION
    if given.attempt.error is not None:
        return KAFKA_THREW
    assert report["status"] != "failed", report["reason"]
    cleaned = given.attempt.cleaned
    if cleaned is None:
        assert report["status"] == "skipped", report
        assert tree(partition) == tree(given.before / PARTITION), "a partition with nothing to clean was changed"
        return NOTHING_TO_CLEAN
    assert report["status"] == "compacted", f"{report['reason_code']}: {report['reason']}"
    if _forgets_aborted(given, spec):
        return _equal_from_start(given, partition, kafka)
    if _has_empty_end(partition, cleaned) and not _has_empty_end(kafka, cleaned) and DROPS_EMPTY_END:
        _assert_same_batches(
            [each for each in _batches(partition) if not _is_empty_end(each, cleaned)], _batches(kafka)
        )
        return EMPTY_END
    compressed = set(spec["codecs"]) != {"none"} or "compression.type" in given.configs
    assert_same_log(partition, kafka, compressed)
    assert_same_snapshots(partition, kafka)
    assert sorted(tree(partition)) == sorted(tree(kafka)), sorted(tree(partition).keys() ^ tree(kafka).keys())
    found = {
        "first_dirty_offset": report["first_dirty_offset"],
        "first_uncleanable_offset": report["first_uncleanable_offset"],
        "end_offset": report["next_dirty_offset"],
        "messages_read": report["messages_read"],
        "messages_written": report["messages_written"],
        "invalid_messages_read": report["records_without_key"],
    }
    expected = {name: getattr(cleaned, name) for name in found}
    assert found == expected, f"{found}, Kafka's are {expected}"
    assert read_checkpoint(ours / _CHECKPOINT)[PARTITION] == cleaned.end_offset
    return EQUAL


def _forgets_aborted(given: CleanedRound, spec: Mapping[str, Any]) -> bool:
    first = list_segments(given.before / PARTITION)[0].base_offset
    return bool(spec["transactional"]) and given.log_start_offset > first


def _is_empty_end(batch: AnyBatch, cleaned: Cleaned) -> bool:
    return batch.last_offset + 1 == cleaned.first_uncleanable_offset and not batch.records()


def _has_empty_end(partition: Path, cleaned: Cleaned) -> bool:
    return any(_is_empty_end(batch, cleaned) for batch in _batches(partition))


def _equal_from_start(given: CleanedRound, partition: Path, kafka: Path) -> str:
    """Compare every batch that reaches the log start offset with Kafka's; return the outcome."""
    _assert_same_batches(
        *(
            [batch for batch in _batches(directory) if batch.last_offset >= given.log_start_offset]
            for directory in (partition, kafka)
        ),
        # A transaction that Kafka takes for committed also keeps later markers of its producer from their horizon.
        with_markers=False,
    )
    return ABORTED_BELOW_START


def _batches(partition: Path) -> list[AnyBatch]:
    return [batch for segment in list_segments(partition) for _position, batch in segment.batches()]


def _assert_same_batches(found: list[AnyBatch], expected: list[AnyBatch], *, with_markers: bool = True) -> None:
    assert [batch.base_offset for batch in found] == [batch.base_offset for batch in expected]
    for ours, theirs in zip(found, expected, strict=True):
        if with_markers or not ours.is_control:
            assert_same_batch(ours, theirs, f"batch {ours.base_offset}")


def _settings(given: CleanedRound) -> list[str]:
    broker = {
        "log.cleaner.dedupe.buffer.size": given.map_bytes,
        "log.cleaner.io.buffer.load.factor": given.load_factor,
        "producer.id.expiration.ms": given.producer_id_expiration_ms,
    }
    return [
        # The ratio stands for --force, which would also clean a log without dirty records if tombstones have expired.
        *topic_sets(_TOPIC, {**given.configs, "min.cleanable.dirty.ratio": "0"}),
        *(f"--set={key}={value}" for key, value in broker.items() if value is not None),
    ]


def run_logs(
    oracle: KafkaOracle,
    seeds: range,
    scratch: Path,
    *,
    until: float | None = None,
    most_attempts: int = MOST_ATTEMPTS,
) -> Tally:
    """Compare the logs of `seeds`, going on after differences, which are made smaller and kept.

    `until` (time.monotonic) ends the run early.
    """
    tally = Tally()
    for seed in seeds:
        if until is not None and time.monotonic() > until:
            break
        directory, case = scratch / f"log-{seed}", random_case(seed)
        tally.coverage.add_case(case)
        try:
            compare_log(oracle, case, directory, tally)
        except (KafkaFailedError, OracleUnavailableError):
            raise
        except Exception as difference:
            path = shrink_and_keep(
                *("cleaning", str(seed), case, difference),
                lambda candidate: compare_once(oracle, candidate, scratch / "shrinking"),
                most_attempts=most_attempts if len(tally.differences) < _MOST_SHRUNK else 0,
            )
            tally.differences[seed] = f"seed {seed}, kept as {path}: {difference!r}"
        else:
            shutil.rmtree(directory)
    return tally


def compare_once(oracle: KafkaOracle, case: Case, directory: Path) -> Counter[str]:
    """Compare in a directory that is emptied before; the outcomes of the rounds."""
    shutil.rmtree(directory, ignore_errors=True)
    tally = Tally()
    compare_log(oracle, case, directory, tally)
    return tally.outcomes
