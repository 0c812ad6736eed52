"""The twin compared with Apache Kafka 4.2.0's own files: reading, rebuilding and cleaning them."""

import shutil

import pytest

from tests.corpus import (
    assert_copied_verbatim,
    assert_same_log,
    assert_same_snapshots,
    cleaning_cases,
    load_case,
    load_loading_case,
    loading_cases,
)
from tests.twin import framing
from tests.twin.batches import NO_TIMESTAMP_TYPE
from tests.twin.cleaner import clean_directory
from tests.twin.indexes import build_indexes, encode_transaction_index, parse_transaction_index
from tests.twin.segments import LOG, OFFSET_INDEX, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX, list_segments
from tests.twin.snapshots import ProducerStates, load_producers, parse_snapshot

ALL_CASES = cleaning_cases(magic2_only=False)


@pytest.mark.parametrize("name", ALL_CASES)
def test_every_round_of_kafkas_cleaner_is_reproduced(name, tmp_path):
    case = load_case(name, tmp_path)
    for number, round_ in enumerate(case.rounds):
        directory = tmp_path / f"work-{number}"
        shutil.copytree(round_.before, directory)
        result = clean_directory(
            directory,
            config=case.configs,
            now_ms=round_.now_ms,
            first_dirty_offset=round_.dirty,
            map_bytes=round_.map_bytes,
        )
        kafka, stats, cleanable = round_.kafka, result.stats, result.cleanable
        assert (cleanable.first_dirty_offset, cleanable.uncleanable_offset, round(cleanable.ratio, 6)) == (
            kafka.first_dirty_offset,
            kafka.uncleanable_offset,
            kafka.ratio,
        )
        assert result.end_offset == kafka.end_offset
        assert stats.map_messages_read == kafka.map_messages_read
        assert stats.messages_read == kafka.messages_read
        assert stats.messages_written == kafka.messages_written
        assert stats.bytes_read == kafka.bytes_read
        assert stats.invalid_messages == kafka.invalid_messages
        assert round(stats.map_utilization, 6) == kafka.map_utilization
        assert tuple(segment.base_offset for segment in list_segments(directory)) == kafka.segments
        assert_same_log(directory, round_.after, case.compressed)
        assert_same_snapshots(directory, round_.after)
        if case.compressed:
            assert_copied_verbatim(directory, round_.after, round_.before)
        else:
            assert stats.bytes_written == kafka.bytes_written
            assert sum(segment.log_bytes() for segment in list_segments(directory)) == kafka.bytes_after


def test_the_cleaning_corpus_is_complete_and_covers_both_kinds_of_formats():
    legacy = set(ALL_CASES) - set(cleaning_cases())
    assert len(ALL_CASES) == 29
    assert legacy == {"legacy-v0", "legacy-v0-codecs", "legacy-v1", "legacy-v1-codecs"}


@pytest.mark.parametrize("name", ALL_CASES)
def test_batches_and_records_read_as_kafka_reads_them(name, tmp_path):
    case = load_case(name, tmp_path)
    for stage in ["before", *(round_.after.name for round_ in case.rounds)]:
        dump = case.dump(stage)
        segments = list_segments(case.directory / stage)
        assert [segment.base_offset for segment in segments] == [dumped.base_offset for dumped in dump]
        for segment, dumped_segment in zip(segments, dump, strict=True):
            assert segment.log_bytes() == dumped_segment.log_bytes
            for (position, batch), dumped in zip(segment.batches(), dumped_segment.batches, strict=True):
                assert (position, len(batch.data)) == (dumped.position, dumped.size_bytes)
                assert batch.last_offset == dumped.last_offset
                assert batch.base_offset == dumped.base_offset
                assert batch.magic == dumped.magic
                assert framing.NAMES[batch.codec] == dumped.codec
                assert batch.timestamp_type == dumped.timestamp_type
                assert batch.producer_id == dumped.producer_id
                assert batch.producer_epoch == dumped.producer_epoch
                assert batch.base_sequence == dumped.base_sequence
                assert batch.leader_epoch == dumped.leader_epoch
                assert batch.is_transactional == dumped.is_transactional
                assert batch.is_control == dumped.is_control
                assert batch.delete_horizon_ms == dumped.delete_horizon_ms
                assert batch.max_timestamp == dumped.max_timestamp
                assert batch.is_valid() == dumped.is_valid
                records = batch.records()
                assert records == dumped.records
                assert tuple(batch.sequence_of(record) for record in records) == dumped.sequences
                if batch.timestamp_type == NO_TIMESTAMP_TYPE:
                    assert {record.timestamp for record in records} == {-1}


@pytest.mark.parametrize("name", ALL_CASES)
def test_indexes_rebuilt_from_the_log_equal_kafkas(name, tmp_path):
    case = load_case(name, tmp_path)
    interval_bytes = int(case.configs.get("index.interval.bytes", 4096))
    for stage in ["before", *(round_.after.name for round_ in case.rounds)]:
        for segment in list_segments(case.directory / stage):
            batches = [batch for _position, batch in segment.batches()]
            rebuilt = build_indexes(batches, segment.base_offset, interval_bytes=interval_bytes)
            assert rebuilt == (segment.read(OFFSET_INDEX), segment.read(TIME_INDEX)), f"{stage} {segment.base_offset}"


@pytest.mark.parametrize("name", ALL_CASES)
def test_replay_from_the_log_start_gives_kafkas_snapshots_and_transaction_indexes(name, tmp_path):
    states = ProducerStates()
    segments = list_segments(load_case(name, tmp_path).before)
    assert segments[-1].path(SNAPSHOT).exists()
    for segment in segments:
        if segment.path(SNAPSHOT).exists():
            assert parse_snapshot(segment.read(SNAPSHOT)) == states.entries, f"snapshot {segment.base_offset}"
        aborted = []
        for _position, batch in segment.batches():
            completed = states.fold(batch)
            if completed is not None and completed.is_aborted:
                aborted.append(states.aborted(completed))
        assert encode_transaction_index(aborted) == segment.read(TRANSACTION_INDEX)


@pytest.mark.parametrize("name", loading_cases())
def test_a_log_that_kafka_loaded_reads_as_kafka_reported_it(name, tmp_path):
    case = load_loading_case(name, tmp_path)
    segments = list_segments(case.after)
    aborted = [entry for segment in segments for entry in parse_transaction_index(segment.read(TRANSACTION_INDEX))]
    assert [
        (entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset) for entry in aborted
    ] == list(case.kafka.aborted)
    assert [(segment.base_offset, len(segment.read(LOG))) for segment in segments] == [
        (segment.base_offset, segment.log_bytes) for segment in case.kafka.segments
    ]
    if name == "torn-tail-clean":
        return  # Kafka trusts the marker and falls back to the segment's base
    assert segments[-1].next_offset() == case.kafka.log_end_offset
    assert [segment.next_offset() for segment in segments] == [segment.next_offset for segment in case.kafka.segments]
    states = load_producers(case.after, now_ms=case.now_ms, log_start_offset=case.kafka.log_start_offset)
    assert sorted((entry.producer_id, entry.last_sequence) for entry in states.entries.values()) == list(
        case.kafka.producers
    )


@pytest.mark.parametrize("name", [name for name in loading_cases() if "unclean" in name])
def test_indexes_that_kafka_recovered_are_those_rebuilt_from_the_log(name, tmp_path):
    for segment in list_segments(load_loading_case(name, tmp_path).after):
        batches = [batch for _position, batch in segment.batches()]
        assert build_indexes(batches, segment.base_offset) == (segment.read(OFFSET_INDEX), segment.read(TIME_INDEX))
