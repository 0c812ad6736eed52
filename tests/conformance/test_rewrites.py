"""Random logs written by Kafka 4.2.0 and rewritten by verdicts: Kafka opens, reads and cleans the result.

SEDIMENT_CONFORMANCE_REWRITES is the number of logs (60), SEDIMENT_CONFORMANCE_SEED the first seed (0).  The model is
the twin's rewrite of the same log.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conformance.logs import SPEC, random_spec
from tests.conformance.oracle import CleanAttempt, KafkaFailedError, KafkaOracle, LogState
from tests.corpus import assert_same_batch, read_dump
from tests.rewrites import random_table, rewrite_both
from tests.twin.batches import Record
from tests.twin.rewrite import Table, changed_record
from tests.twin.segments import AnyBatch, list_segments

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(0)]

PARTITION = "random-0"


def records_of(oracle: KafkaOracle, directory: Path, state: LogState, *, committed: bool) -> dict[int, Record]:
    """Return the data records that Kafka reads, by offset, at the isolation level."""
    dump = directory.with_name("dump.jsonl.gz")
    oracle.dump(directory, dump)
    found = {}
    for segment in read_dump(dump):
        for batch in segment.batches:
            assert batch.is_valid
            is_aborted = batch.is_transactional and any(
                entry.producer_id == batch.producer_id and entry.first_offset <= batch.last_offset < entry.last_offset
                for entry in state.aborted
            )
            if not batch.is_control and not (committed and is_aborted):
                found.update((record.offset, record) for record in batch.records)
    return found


def facts_of(state: LogState) -> tuple[object, ...]:
    """Return what a rewrite must not move."""
    return state.log_start_offset, state.log_end_offset, state.producers, state.remembered


def check_log(oracle: KafkaOracle, seed: int, work: Path) -> int:
    """Rewrite the log of a seed and compare; return the number of records changed."""
    spec = {**SPEC, **random_spec(seed), "log_start": None}
    configs, now_ms = spec["configs"], spec["start_ms"]
    directory = work / "written" / PARTITION
    written = oracle.generate(spec, directory, checkpoints=True)
    table = random_table(directory, seed)

    def load(path: Path, *, clean: bool) -> LogState:
        end = written.log_end_offset
        return oracle.load(path, now_ms=now_ms, configs=configs, clean=clean, recovery_point=end if clean else 0)

    before = load(shutil.copytree(directory, work / "before" / PARTITION), clean=True)
    records = {
        committed: records_of(oracle, work / "before" / PARTITION, before, committed=committed)
        for committed in (False, True)
    }
    try:
        replayed = load(_without_snapshots(directory, work / "replayed" / PARTITION), clean=False)
    except KafkaFailedError:
        # Kafka cannot rebuild a tiny index of every log that it wrote itself.
        replayed = None
    both = rewrite_both(
        directory,
        table,
        interval_bytes=int(configs["index.interval.bytes"]),
        index_bytes=int(configs["segment.index.bytes"]),
    )

    after = load(shutil.copytree(directory, work / "after" / PARTITION), clean=True)
    # Kafka repaired nothing: the segments have their names and sizes.  Replacements can make more of them.
    assert {s.base_offset: s.log_bytes for s in after.segments} == _log_sizes(directory)
    assert set(before.base_offsets) <= set(after.base_offsets)
    assert facts_of(after) == facts_of(before)
    assert (after.last_stable_offset, after.aborted) == (before.last_stable_offset, before.aborted)
    if replayed is not None:
        replayed_after = load(_without_snapshots(directory, work / "replayed-after" / PARTITION), clean=False)
        assert facts_of(replayed_after) == facts_of(replayed)

    not_reached = {int(offset) for offset in both.done.not_reached.offsets}
    for committed, found in records.items():
        model = _changed(found, {offset: given for offset, given in table.items() if offset not in not_reached})
        assert records_of(oracle, work / "after" / PARTITION, after, committed=committed) == model
    _assert_cleaned_alike(oracle, directory, both.expected, configs, now_ms, work)
    return sum(segment.stats.matched for segment in both.done.segments)


def _without_snapshots(directory: Path, copy: Path) -> Path:
    return shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("*.snapshot"))


def _batches(directory: Path) -> list[AnyBatch]:
    return [batch for segment in list_segments(directory) for _, batch in segment.batches()]


def _log_sizes(directory: Path) -> dict[int, int]:
    return {int(path.stem): path.stat().st_size for path in directory.glob("*.log")}


def _changed(records: Mapping[int, Record], table: Table) -> dict[int, Record]:
    changed = {offset: changed_record(record, table.get(offset)) for offset, record in records.items()}
    return {offset: record for offset, record in changed.items() if record is not None}


def _assert_cleaned_alike(
    oracle: KafkaOracle, ours: Path, model: Path, configs: Mapping[str, str], now_ms: int, work: Path
) -> None:
    """Let Kafka's cleaner clean the result and the model."""

    def clean(directory: Path, name: str) -> tuple[Path, CleanAttempt]:
        copy = shutil.copytree(directory, work / name / PARTITION)
        return copy, oracle.clean(copy, now_ms=now_ms, configs=configs)

    (first, attempt), (second, expected) = clean(ours, "cleaned"), clean(model, "cleaned-model")
    assert (attempt.chosen, attempt.uncleanable_offset) == (expected.chosen, expected.uncleanable_offset)
    assert (attempt.error is None) == (expected.error is None), attempt.error or expected.error
    if attempt.cleaned is not None and expected.cleaned is not None:
        assert attempt.cleaned.end_offset == expected.cleaned.end_offset
        assert attempt.cleaned.messages_written == expected.cleaned.messages_written
        # Grouping depends on compressed sizes, which differ from encoder to encoder; the batches do not.
        for found, wanted in zip(_batches(first), _batches(second), strict=True):
            assert_same_batch(found, wanted, "cleaned")


def test_kafka_opens_reads_and_cleans_a_rewritten_log(oracle: KafkaOracle, tmp_path: Path, capsys):
    logs = int(os.environ.get("SEDIMENT_CONFORMANCE_REWRITES", "60"))
    first = int(os.environ.get("SEDIMENT_CONFORMANCE_SEED", "0"))
    changed, differences = 0, []
    for seed in range(first, first + logs):
        work = tmp_path / str(seed)
        try:
            changed += check_log(oracle, seed, work)
        except (AssertionError, KafkaFailedError) as difference:
            differences.append(f"seed {seed}: {difference!r}")
        shutil.rmtree(work, ignore_errors=True)
    with capsys.disabled():
        print(f"\n{logs} logs, {changed} records changed, {len(differences)} differences")
    assert not differences, "\n".join(differences)
    assert changed > logs
