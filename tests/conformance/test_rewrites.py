"""Random logs written by Kafka 4.2.0, and then rewritten: Kafka opens, reads and cleans the result.

They are rewritten by verdicts, re-encoded, or cleaned with another encoding.  The model of the first is the twin's
rewrite of the same log, of the second the log itself, of the third the cleaning without another encoding.
SEDIMENT_CONFORMANCE_REWRITES is the number of logs (500), SEDIMENT_CONFORMANCE_SEED the first seed (0).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from sediment.compaction.clean_log import CleaningMode, clean_log
from sediment.compaction.cleanable_range import cleanable_range
from sediment.compaction.config import CompactionConfig
from sediment.compaction.grouping import plan_cleaning
from sediment.compaction.prepared_swap import CleanStats
from sediment.compaction.reencode.plan import Encoding
from sediment.engine.directory.swap import commit
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import Fs
from tests.conformance.logs import SPEC, random_spec
from tests.conformance.oracle import CleanAttempt, KafkaFailedError, KafkaOracle, LogState
from tests.corpus import assert_same_batch, read_dump
from tests.reencodes import random_encoding, reencode
from tests.rewrites import random_table, rewrite_both, view_of, visible_records
from tests.twin.batches import Record
from tests.twin.rewrite import Table, changed_record
from tests.twin.segments import AnyBatch, list_segments

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(0)]

PARTITION = "random-0"


Records = dict[int, Record]


def records_of(oracle: KafkaOracle, directory: Path, state: LogState) -> dict[bool, Records]:
    """Return the data records that Kafka reads, by offset: all of them (False), and the committed ones (True)."""
    dump = directory.with_name("dump.jsonl.gz")
    oracle.dump(directory, dump)
    found: dict[bool, Records] = {False: {}, True: {}}
    for segment in read_dump(dump):
        for batch in segment.batches:
            assert batch.is_valid
            is_aborted = batch.is_transactional and any(
                entry.producer_id == batch.producer_id and entry.first_offset <= batch.last_offset < entry.last_offset
                for entry in state.aborted
            )
            if not batch.is_control:
                records = {record.offset: record for record in batch.records}
                found[False] |= records
                if not is_aborted:
                    found[True] |= records
    return found


def facts_of(state: LogState) -> tuple[object, ...]:
    """Return what a rewrite must not move."""
    return state.log_start_offset, state.log_end_offset, state.producers, state.remembered


class WrittenLog:
    """A random log that Kafka wrote, and what Kafka finds in it."""

    def __init__(self, oracle: KafkaOracle, seed: int, work: Path) -> None:
        spec = {**SPEC, **random_spec(seed), "log_start": None}
        self.oracle, self.work, self.now_ms = oracle, work, spec["start_ms"]
        self.configs: Mapping[str, str] = spec["configs"]
        self.directory = work / "written" / PARTITION
        self._end = oracle.generate(spec, self.directory, checkpoints=True).log_end_offset
        copy = shutil.copytree(self.directory, work / "before" / PARTITION)
        self.state = self.load(copy, clean=True)
        self.records = records_of(oracle, copy, self.state)
        try:
            self.replayed: LogState | None = self._replayed(self.directory, "replayed")
        except KafkaFailedError:
            # Kafka cannot rebuild a tiny index of every log that it wrote itself.
            self.replayed = None

    def load(self, path: Path, *, clean: bool) -> LogState:
        """Let Kafka load a log after a clean stop, or without recovery point."""
        point = self._end if clean else 0
        return self.oracle.load(path, now_ms=self.now_ms, configs=self.configs, clean=clean, recovery_point=point)

    def _replayed(self, directory: Path, name: str) -> LogState:
        return self.load(_without_snapshots(directory, self.work / name / PARTITION), clean=False)

    def check_result(self, directory: Path, name: str, models: Mapping[bool, Records]) -> None:
        """Check that Kafka opens `directory` without recovery, and reads `models` at both isolation levels."""
        copy = shutil.copytree(directory, self.work / f"after-{name}" / PARTITION)
        after, before = self.load(copy, clean=True), self.state
        # Kafka repaired nothing: the segments have their names and sizes.  Growth can make more of them.
        assert {s.base_offset: s.log_bytes for s in after.segments} == _log_sizes(directory)
        assert set(before.base_offsets) <= set(after.base_offsets)
        assert facts_of(after) == facts_of(before)
        assert (after.last_stable_offset, after.aborted) == (before.last_stable_offset, before.aborted)
        if self.replayed is not None:
            assert facts_of(self._replayed(directory, f"replayed-{name}")) == facts_of(self.replayed)
        assert records_of(self.oracle, copy, after) == models

    def clean(self, directory: Path, name: str) -> tuple[Path, CleanAttempt]:
        """Let Kafka's cleaner clean a copy of `directory`."""
        copy = shutil.copytree(directory, self.work / name / PARTITION)
        return copy, self.oracle.clean(copy, now_ms=self.now_ms, configs=self.configs)


def check_rewrite(log: WrittenLog, seed: int) -> int:
    """Rewrite the log by verdicts and compare; return the number of records changed."""
    directory = shutil.copytree(log.directory, log.work / "rewritten" / PARTITION)
    table = random_table(directory, seed)
    both = rewrite_both(
        directory,
        table,
        interval_bytes=int(log.configs["index.interval.bytes"]),
        index_bytes=int(log.configs["segment.index.bytes"]),
    )
    not_reached = {int(offset) for offset in both.done.not_reached.offsets}
    reached = {offset: given for offset, given in table.items() if offset not in not_reached}
    log.check_result(
        directory, "rewritten", {committed: _changed(found, reached) for committed, found in log.records.items()}
    )
    cleaned, attempt = log.clean(directory, "cleaned")
    model, expected = log.clean(both.expected, "cleaned-model")
    _assert_alike(attempt, expected)
    if attempt.cleaned is not None and expected.cleaned is not None:
        assert attempt.cleaned.messages_written == expected.cleaned.messages_written
        # Grouping depends on compressed sizes, which differ from encoder to encoder; the batches do not.
        for found, wanted in zip(_batches(cleaned), _batches(model), strict=True):
            assert_same_batch(found, wanted, "cleaned")
    return sum(segment.stats.matched for segment in both.done.segments)


def check_reencode(log: WrittenLog, seed: int) -> int:
    """Re-encode the log and compare; return the number of batches encoded anew."""
    directory = shutil.copytree(log.directory, log.work / "reencoded" / PARTITION)
    config = CompactionConfig(
        index_interval_bytes=int(log.configs["index.interval.bytes"]),
        segment_index_bytes=int(log.configs["segment.index.bytes"]),
    )
    done = reencode(directory, random_encoding(seed), config)
    log.check_result(directory, "reencoded", log.records)
    cleaned, attempt = log.clean(directory, "reencoded-cleaned")
    model, expected = log.clean(log.directory, "written-cleaned")
    _assert_alike(attempt, expected)
    for committed in (False, True):
        assert visible_records(cleaned, committed=committed) == visible_records(model, committed=committed)
    return sum(segment.stats.batches_encoded for segment in done.segments)


def check_compacted(log: WrittenLog, seed: int) -> tuple[int, bool]:
    """Clean the log with another encoding, and compare the result with a cleaning that keeps the encoding.

    Return the number of batches encoded anew, and whether Kafka's cleaner filled a tiny index of only one of the two
    logs.  The number of index entries depends on the sizes of the batches, and Kafka does not check it when it groups
    segments, so its cleaner fails on logs that it wrote itself too.
    """
    encoded, model = (shutil.copytree(log.directory, log.work / name / PARTITION) for name in ("encoded", "model"))
    stats = _compacted(encoded, log, random_encoding(seed))
    if stats is None or _compacted(model, log, None) is None:
        return 0, False
    states, found = [], []
    for directory in (encoded, model):
        copy = shutil.copytree(directory, log.work / f"{directory.parent.name}-loaded" / PARTITION)
        states.append(log.load(copy, clean=True))
        found.append(records_of(log.oracle, copy, states[-1]))
        assert {s.base_offset: s.log_bytes for s in states[-1].segments} == _log_sizes(directory)
    assert facts_of(states[0]) == facts_of(states[1])
    assert (states[0].last_stable_offset, states[0].aborted) == (states[1].last_stable_offset, states[1].aborted)
    assert found[0] == found[1]
    again, attempt = log.clean(encoded, "encoded-cleaned")
    expected, model_attempt = log.clean(model, "model-cleaned")
    if _fills_an_index(attempt) != _fills_an_index(model_attempt):
        return stats.batches_encoded, True
    _assert_alike(attempt, model_attempt)
    for committed in (False, True):
        assert visible_records(again, committed=committed) == visible_records(expected, committed=committed)
    return stats.batches_encoded, False


def _compacted(directory: Path, log: WrittenLog, encoding: Encoding | None) -> CleanStats | None:
    """Clean the log in place; return the counts, None if nothing is to be cleaned."""
    config = CompactionConfig(
        cleanup_policy=("compact",),
        segment_bytes=int(log.configs["segment.bytes"]),
        index_interval_bytes=int(log.configs["index.interval.bytes"]),
        segment_index_bytes=int(log.configs["segment.index.bytes"]),
    )
    view = view_of(directory)
    cleanable = cleanable_range(view, config, now_ms=log.now_ms, force=True)
    if cleanable.blocked_by is not None:
        return None
    plan = plan_cleaning(view, cleanable, config, now_ms=log.now_ms)
    swap = clean_log(plan, Fs(), Attempt("r", "0"), CleaningMode(encoding=encoding))
    commit(swap, Fs())
    return sum((group.stats for group in swap.groups), CleanStats())


def _without_snapshots(directory: Path, copy: Path) -> Path:
    return shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("*.snapshot"))


def _batches(directory: Path) -> list[AnyBatch]:
    return [batch for segment in list_segments(directory) for _, batch in segment.batches()]


def _log_sizes(directory: Path) -> dict[int, int]:
    return {int(path.stem): path.stat().st_size for path in directory.glob("*.log")}


def _changed(records: Records, table: Table) -> Records:
    changed = {offset: changed_record(record, table.get(offset)) for offset, record in records.items()}
    return {offset: record for offset, record in changed.items() if record is not None}


def _fills_an_index(attempt: CleanAttempt) -> bool:
    """Return whether Kafka's cleaner failed because an index file was full."""
    return attempt.error is not None and "Attempt to append to a full" in attempt.error


def _assert_alike(attempt: CleanAttempt, expected: CleanAttempt) -> None:
    """Assert that Kafka's cleaner chose both logs, and cleaned them up to the same offset."""
    assert (attempt.chosen, attempt.uncleanable_offset) == (expected.chosen, expected.uncleanable_offset)
    assert (attempt.error is None) == (expected.error is None), attempt.error or expected.error
    if attempt.cleaned is not None and expected.cleaned is not None:
        assert attempt.cleaned.end_offset == expected.cleaned.end_offset


def test_kafka_opens_reads_and_cleans_logs_that_were_rewritten_or_reencoded(
    oracle: KafkaOracle, tmp_path: Path, capsys
):
    logs = int(os.environ.get("SEDIMENT_CONFORMANCE_REWRITES", "500"))
    first = int(os.environ.get("SEDIMENT_CONFORMANCE_SEED", "0"))
    changed, encoded, compacted, full, differences = 0, 0, 0, 0, []
    for seed in range(first, first + logs):
        work = tmp_path / str(seed)
        try:
            log = WrittenLog(oracle, seed, work)
            changed += check_rewrite(log, seed)
            encoded += check_reencode(log, seed)
            batches, is_full = check_compacted(log, seed)
            compacted, full = compacted + batches, full + is_full
        except (AssertionError, KafkaFailedError) as difference:
            differences.append(f"seed {seed}: {difference!r}")
        shutil.rmtree(work, ignore_errors=True)
    with capsys.disabled():
        print(
            f"\n{logs} logs, {changed} records changed, {encoded} batches encoded anew, {compacted} in a "
            f"cleaning, {full} with a full index on one side, {len(differences)} differences"
        )
    assert not differences, "\n".join(differences)
    assert min(changed, encoded, compacted) > logs
    assert full <= max(1, logs // 50)
