import hashlib
import math
import shutil
from pathlib import Path

import pytest

from tests.conformance.cases import random_case
from tests.conformance.logs import START_MS
from tests.conformance.oracle import (
    JARS_VARIABLE,
    KAFKA_VERSION,
    REFERENCE_VERSION,
    KafkaFailedError,
    KafkaOracle,
    OracleUnavailableError,
)
from tests.conformance.rounds import PARTITION, cleaned_rounds
from tests.corpus import cleaning_cases, load_case, load_loading_case, loading_cases, read_dump

COMPACT = {"cleanup.policy": "compact", "segment.bytes": "40000"}
LATER_MS = START_MS + 1_000_000

of_reference = pytest.mark.skipif(KAFKA_VERSION != REFERENCE_VERSION, reason="the reference left the corpus")


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


# --------------------------------------------------------------------------------------------- the oracle is Kafka
@pytest.mark.conformance
@of_reference
@pytest.mark.parametrize("name", cleaning_cases(magic2_only=False))
def test_the_oracle_cleans_a_corpus_case_to_the_byte(name: str, oracle: KafkaOracle, tmp_path: Path):
    case = load_case(name, tmp_path)
    for number, given in enumerate(case.rounds):
        directory = tmp_path / str(number) / case.partition
        shutil.copytree(given.before, directory)
        attempt = oracle.clean(
            directory,
            now_ms=given.now_ms,
            configs=case.configs,
            first_dirty_offset=given.dirty,
            map_bytes=given.map_bytes,
        )
        assert digests(directory) == digests(given.after)
        assert attempt.error is None and attempt.cleaned is not None
        cleaned, kafka = attempt.cleaned, given.kafka
        assert attempt.uncleanable_offset == kafka.uncleanable_offset
        assert cleaned.first_dirty_offset == kafka.first_dirty_offset
        assert cleaned.end_offset == kafka.end_offset
        assert math.isclose(cleaned.cleanable_ratio, kafka.ratio, abs_tol=1e-6)
        assert cleaned.map_messages_read == kafka.map_messages_read
        assert cleaned.messages_read == kafka.messages_read
        assert cleaned.messages_written == kafka.messages_written
        assert cleaned.bytes_read == kafka.bytes_read
        assert cleaned.bytes_written == kafka.bytes_written
        assert cleaned.invalid_messages_read == kafka.invalid_messages
        assert (cleaned.bytes_before, cleaned.bytes_after) == (kafka.bytes_before, kafka.bytes_after)
        assert cleaned.base_offsets == kafka.segments


@pytest.mark.conformance
@of_reference
@pytest.mark.parametrize("name", loading_cases())
def test_the_oracle_loads_a_corpus_case_as_recorded(name: str, oracle: KafkaOracle, tmp_path: Path):
    case = load_loading_case(name, tmp_path)
    directory = tmp_path / case.partition
    shutil.copytree(case.before, directory)
    state = oracle.load(
        directory,
        now_ms=case.now_ms,
        configs={"segment.bytes": str(case.segment_bytes)},
        clean=case.clean,
        recovery_point=case.recovery_point or 0,
        log_start_offset=case.log_start_offset or 0,
    )
    left, expected = digests(directory), digests(case.after)
    # Kafka flushes a truncated epoch cache in the background, which the corpus did not wait for.
    assert left.pop("leader-epoch-checkpoint") and expected.pop("leader-epoch-checkpoint")
    assert left == expected
    kafka = case.kafka
    assert state.log_start_offset == kafka.log_start_offset
    assert state.log_end_offset == kafka.log_end_offset
    assert state.last_stable_offset == kafka.last_stable_offset
    assert state.first_unstable_offset == kafka.first_unstable_offset
    assert state.recovery_point == kafka.recovery_point
    assert state.producers == kafka.producers
    assert [
        (entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset) for entry in state.aborted
    ] == list(kafka.aborted)
    assert len(state.segments) == len(kafka.segments)
    for segment, recorded in zip(state.segments, kafka.segments, strict=True):
        assert segment.base_offset == recorded.base_offset
        assert segment.log_bytes == recorded.log_bytes
        assert segment.offset_index_entries == recorded.offset_index_entries
        assert segment.time_index_entries == recorded.time_index_entries
        assert segment.next_offset == recorded.next_offset
        # Without a record's timestamp it is the modification time, which an archive keeps to the second.
        tolerance = 0 if segment.time_index_entries else 1000
        assert abs(segment.largest_timestamp - recorded.largest_timestamp) <= tolerance


@pytest.mark.conformance
@pytest.mark.parametrize("name", ["everything", "legacy-v0-codecs", "transactions"])
def test_the_oracle_dumps_a_corpus_case_as_recorded(name: str, oracle: KafkaOracle, tmp_path: Path):
    case = load_case(name, tmp_path)
    for stage in ("before", "after-1"):
        output = tmp_path / f"{stage}.gz"
        oracle.dump(case.directory / stage, output)
        assert read_dump(output) == case.dump(stage)


# ------------------------------------------------------------------------------------------------- writing and reading
@pytest.mark.conformance
def test_a_spec_is_written_twice_to_the_same_bytes(oracle: KafkaOracle, tmp_path: Path):
    spec = {"seed": 7, "records": 500, "transactional": 0.5, "tombstones": 0.1, "codecs": ["none", "lz4", "zstd"]}
    oracle.generate(spec, tmp_path / "first" / "t-0")
    state = oracle.generate(spec, tmp_path / "second" / "t-0")
    assert state.log_end_offset > 500 and state.aborted
    assert digests(tmp_path / "first" / "t-0") == digests(tmp_path / "second" / "t-0")


@pytest.mark.conformance
def test_explicit_steps_are_written_as_given(oracle: KafkaOracle, tmp_path: Path):
    key, value = b"k".hex(), b"v".hex()
    producer = {"producer_id": 5, "producer_epoch": 0, "commit": False}
    steps = [
        {
            "do": "append",
            "records": [{"ts": START_MS, "k": key, "v": value}],
            "producer": [5, 0, 0],
            "transactional": True,
        },
        {"do": "end_transaction", **producer},
        {"do": "roll"},
        {"do": "replicate", "base_offset": 10, "last_offset": 19, "records": [{"ts": 9, "k": key, "v": None, "o": 12}]},
    ]
    state = oracle.generate({"steps": steps, "configs": COMPACT}, tmp_path / "t-0")
    assert state.base_offsets == (0, 2)
    assert state.log_end_offset == 20
    assert [(entry.first_offset, entry.last_offset) for entry in state.aborted] == [(0, 1)]
    oracle.dump(tmp_path / "t-0", tmp_path / "dump.gz")
    batch = read_dump(tmp_path / "dump.gz")[1].batches[0]
    assert (batch.base_offset, batch.last_offset, [record.offset for record in batch.records]) == (10, 19, [12])


@pytest.mark.conformance
def test_lookups_find_the_batch_of_an_offset_and_the_first_record_of_a_time(oracle: KafkaOracle, tmp_path: Path):
    oracle.generate({"records": 300, "batch_records": 1}, tmp_path / "t-0")
    found = oracle.lookup(
        tmp_path / "t-0",
        now_ms=LATER_MS,
        configs=COMPACT,
        offsets=(0, 123, 300),
        timestamps=(0, START_MS + 124, LATER_MS),
    )
    assert found.batches == ((0, 0), (123, 123), None)
    assert found.times == ((START_MS + 1, 0), (START_MS + 124, 123), None)


@pytest.mark.conformance
def test_retention_deletes_what_is_too_old(oracle: KafkaOracle, tmp_path: Path):
    configs = {"cleanup.policy": "delete", "segment.bytes": "4000", "retention.ms": "60000"}
    written = oracle.generate({"records": 300, "step_ms": 1000, "configs": configs}, tmp_path / "t-0")
    kept = oracle.retention(tmp_path / "t-0", now_ms=START_MS + 300_000, configs=configs)
    assert kept.deleted == len(written.segments) - len(kept.state.segments) > 0
    assert all(segment.largest_timestamp >= START_MS + 240_000 for segment in kept.state.segments)
    assert kept.state.log_start_offset == kept.state.base_offsets[0]


@pytest.mark.conformance
def test_a_broker_cleans_each_partition_once_and_leaves_a_log_directory(oracle: KafkaOracle, tmp_path: Path):
    spec = {"records": 2000, "keys": 50, "configs": {**COMPACT, "segment.bytes": "12000"}}
    oracle.generate(spec, tmp_path / "dirty-0", checkpoints=True)
    oracle.generate(spec, tmp_path / "clean-0", checkpoints=True, first_dirty_offset=2000)
    topics = {"dirty": spec["configs"], "clean": spec["configs"]}
    run = oracle.broker(tmp_path, now_ms=LATER_MS, topics=topics, tasks=("clean", "retention"))
    assert list(run.cleaned) == ["dirty-0"] and not run.errors
    assert run.partitions["dirty-0"].log_end_offset == 2000
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    end_offset = run.cleaned["dirty-0"].end_offset
    checkpoint = (tmp_path / "cleaner-offset-checkpoint").read_text().splitlines()
    assert checkpoint[:2] == ["0", "2"]
    assert sorted(checkpoint[2:]) == ["clean 0 2000", f"dirty 0 {end_offset}"]
    again = oracle.broker(tmp_path, now_ms=LATER_MS, topics=topics)
    assert again.partitions["dirty-0"].segments == run.partitions["dirty-0"].segments


@pytest.mark.conformance
def test_timed_cleaning_leaves_its_partitions_alone(oracle: KafkaOracle, tmp_path: Path):
    directories = [tmp_path / "logs" / f"t-{number}" for number in range(2)]
    for directory in directories:
        oracle.generate({"records": 2000}, directory)
    before = [digests(directory) for directory in directories]
    timed = oracle.clean_timed(directories, tmp_path, now_ms=LATER_MS, configs=COMPACT, threads=2, repeat=2)
    assert len(timed) == 2 and min(one.seconds for one in timed) > 0
    assert timed[0].bytes_after == timed[1].bytes_after > 0
    assert [digests(directory) for directory in directories] == before


@pytest.mark.conformance
@pytest.mark.parametrize("seed", range(8))
def test_random_rounds_go_through_kafka(seed: int, oracle: KafkaOracle, tmp_path: Path):
    """Each round's result opens again as it was reported; what it was made from is still there."""
    for given in cleaned_rounds(oracle, random_case(seed), tmp_path):
        if given.attempt.cleaned is None:
            continue
        before, after = (
            oracle.load(
                path / PARTITION, now_ms=given.now_ms, configs=given.configs, log_start_offset=given.log_start_offset
            )
            for path in (given.before, given.after)
        )
        assert after.base_offsets == given.attempt.cleaned.base_offsets
        assert after.log_end_offset == before.log_end_offset
        assert set(after.base_offsets) <= set(before.base_offsets)


# --------------------------------------------------------------------------------------------------------------- errors
@pytest.mark.conformance
def test_what_kafka_throws_is_raised_and_the_oracle_lives_on(oracle: KafkaOracle, tmp_path: Path):
    keyless = {"do": "append", "records": [{"ts": START_MS, "k": None, "v": None}]}
    with pytest.raises(KafkaFailedError, match="InvalidRecordException"):
        oracle.generate({"steps": [keyless], "configs": COMPACT}, tmp_path / "t-0")
    assert oracle.generate({"records": 1}, tmp_path / "t-1").log_end_offset == 1


@pytest.mark.conformance
def test_a_partition_that_kafka_cannot_clean_says_why(oracle: KafkaOracle, tmp_path: Path):
    """A keyless batch of magic 1 at the end of the round: Kafka has no empty form of it."""
    steps = [
        {"do": "replicate", "magic": 1, "base_offset": 0, "records": [{"ts": START_MS, "k": None, "v": b"v".hex()}]},
        {"do": "roll"},
    ]
    oracle.generate({"steps": steps, "configs": COMPACT}, tmp_path / "t-0")
    attempt = oracle.clean(tmp_path / "t-0", now_ms=LATER_MS, configs=COMPACT)
    assert attempt.chosen and attempt.cleaned is None
    assert attempt.error is not None and "IllegalStateException" in attempt.error


def test_a_missing_jdk_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / f"kafka_2.13-{KAFKA_VERSION}.jar").touch()
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(OracleUnavailableError, match="install a JDK"):
        KafkaOracle()


def test_a_directory_that_holds_something_else_is_not_filled_with_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "mine.jar").touch()
    monkeypatch.setenv(JARS_VARIABLE, str(tmp_path))
    with pytest.raises(OracleUnavailableError, match=JARS_VARIABLE):
        KafkaOracle()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.jar"]
