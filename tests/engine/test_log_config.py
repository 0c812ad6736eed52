from __future__ import annotations

import re
from typing import Any

import pytest

from sediment.compaction.config import CompactionConfig
from sediment.engine.config_definitions import BROKER_KEYS, TOPIC_KEYS, Key, ValueType
from sediment.engine.live.broker_config import BrokerConfig
from sediment.engine.log_config import COMPACTION_RANGES, LOG_RANGES, RETENTION_RANGES, LogConfig
from sediment.engine.value_ranges import OneOf, Range, Real, Truth, Whole
from sediment.jobs.settings.resolve import Origin, parse_value
from sediment.retention.policy import RetentionConfig
from sediment.segment_io.errors import SettingsError


def log_config(policy: str, max_lag_ms: int, segment_ms: int) -> LogConfig:
    policies = tuple(policy.split(","))
    compaction = CompactionConfig(cleanup_policy=policies, max_compaction_lag_ms=max_lag_ms)
    return LogConfig(compaction, RetentionConfig(cleanup_policy=policies), segment_ms=segment_ms)


@pytest.mark.parametrize(
    ("policy", "max_lag_ms", "expected_ms"),
    [("compact", 50, 50), ("compact,delete", 50, 50), ("compact", 150, 100), ("delete", 50, 100)],
)
def test_only_a_compacted_log_rolls_by_its_maximum_lag(policy: str, max_lag_ms: int, expected_ms: int) -> None:
    assert log_config(policy, max_lag_ms, segment_ms=100).max_segment_ms == expected_ms


def test_the_policy_says_what_is_done() -> None:
    both = log_config("compact,delete", 1, 1)
    assert both.compacts and both.retention.deletes
    assert not LogConfig().compacts and LogConfig().retention.deletes


def test_one_topic_has_one_policy() -> None:
    with pytest.raises(ValueError, match="two cleanup policies"):
        LogConfig(compaction=CompactionConfig(cleanup_policy=("compact",)))


@pytest.mark.parametrize(("least_ms", "most_ms", "is_refused"), [(5, 5, False), (6, 5, True), (0, 1, False)])
def test_the_minimum_compaction_lag_is_at_most_the_maximum(least_ms: int, most_ms: int, is_refused: bool) -> None:
    compaction = CompactionConfig(min_compaction_lag_ms=least_ms, max_compaction_lag_ms=most_ms)
    if is_refused:
        with pytest.raises(SettingsError, match=r"min\.compaction\.lag\.ms=6 is above max\.compaction\.lag\.ms=5"):
            LogConfig(compaction)
    else:
        assert LogConfig(compaction).compaction == compaction


def _topic(field: str, value: Any) -> LogConfig:
    if field in CompactionConfig.__dataclass_fields__:
        return LogConfig(compaction=CompactionConfig(**{field: value}))
    if field in RetentionConfig.__dataclass_fields__:
        return LogConfig(retention=RetentionConfig(**{field: value}))
    return LogConfig(**{field: value})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("message_timestamp_type", "x", "message.timestamp.type is 'x'; give one of CreateTime, LogAppendTime"),
        ("compression_type", "zip", "compression.type is 'zip'; give one of uncompressed, zstd, lz4, snappy, gzip"),
        ("compression_type", "none", "compression.type is 'none'"),
        ("compression_gzip_level", 0, "compression.gzip.level is 0; give a whole number from 1 to 9 or -1"),
        ("compression_lz4_level", 18, "compression.lz4.level is 18"),
        ("compression_zstd_level", 23, "compression.zstd.level is 23"),
        ("segment_bytes", -5, "segment.bytes is -5; give a whole number from 1 to 2147483647"),
        ("segment_bytes", 2**31, "segment.bytes is 2147483648"),
        ("segment_bytes", "1", "segment.bytes is '1'"),
        ("segment_bytes", 1.5, "segment.bytes is 1.5"),
        ("segment_bytes", True, "segment.bytes is True"),
        ("segment_index_bytes", 11, "segment.index.bytes is 11; give a whole number from 12"),
        ("index_interval_bytes", -1, "index.interval.bytes is -1"),
        ("max_message_bytes", -1, "max.message.bytes is -1"),
        ("min_cleanable_dirty_ratio", 1.01, "min.cleanable.dirty.ratio is 1.01; give a number from 0 up to 1"),
        ("min_compaction_lag_ms", -1, "min.compaction.lag.ms is -1"),
        ("max_compaction_lag_ms", 0, "max.compaction.lag.ms is 0; give a whole number from 1"),
        ("retention_ms", -2, "retention.ms is -2; give a whole number from -1"),
        ("segment_ms", 0, "segment.ms is 0"),
        ("segment_jitter_ms", -1, "segment.jitter.ms is -1"),
        ("flush_messages", 0, "flush.messages is 0"),
        ("flush_ms", -1, "flush.ms is -1"),
        ("message_timestamp_before_max_ms", -1, "message.timestamp.before.max.ms is -1"),
        ("message_timestamp_after_max_ms", -1, "message.timestamp.after.max.ms is -1"),
        ("preallocate", "false", "preallocate is 'false'; give True or False"),
        ("file_delete_delay_ms", -1, "file.delete.delay.ms is -1"),
        ("transaction_max_timeout_ms", 0, "transaction.max.timeout.ms is 0"),
    ],
)
def test_a_value_out_of_its_range_is_refused_with_key_and_range(field: str, value: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(words)):
        _topic(field, value)


@pytest.mark.parametrize("policy", [("compress",), ("compact", "compact"), "compact"])
def test_an_unknown_cleanup_policy_is_refused(policy: Any) -> None:
    with pytest.raises(SettingsError, match=r"cleanup\.policy is .*give any of compact, delete"):
        LogConfig(CompactionConfig(policy), RetentionConfig(policy))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("num_recovery_threads_per_data_dir", 0, "num.recovery.threads.per.data.dir is 0; give a whole number from 1"),
        ("background_threads", -1, "background.threads is -1"),
        ("log_initial_task_delay_ms", -1, "log.initial.task.delay.ms is -1"),
        ("log_retention_check_interval_ms", 0, "log.retention.check.interval.ms is 0"),
        ("log_cleaner_threads", -1, "log.cleaner.threads is -1"),
        ("log_cleaner_enable", 1, "log.cleaner.enable is 1; give True or False"),
        ("log_cleaner_io_max_bytes_per_second", 0, "log.cleaner.io.max.bytes.per.second is 0; give a number above 0"),
        ("log_cleaner_dedupe_buffer_size", 24, "log.cleaner.dedupe.buffer.size is 24, too small for 1 cleaner"),
        ("log_cleaner_io_buffer_load_factor", 1.5, "log.cleaner.io.buffer.load.factor is 1.5"),
        ("node_id", -1, "node.id is -1"),
    ],
)
def test_a_value_of_the_engine_out_of_its_range_is_refused(field: str, value: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(words)):
        BrokerConfig(**{field: value})


def test_the_ends_of_the_ranges_are_taken() -> None:
    for field, value in (
        ("compression_gzip_level", -1),
        ("compression_gzip_level", 9),
        ("compression_zstd_level", -131_072),
        ("retention_ms", -1),
        ("retention_bytes", -9),
        ("min_cleanable_dirty_ratio", 0),
        ("min_cleanable_dirty_ratio", 1.0),
        ("segment_bytes", 2**31 - 1),
        ("flush_ms", 2**63 - 1),
        ("cleanup_policy", ("delete",)),
    ):
        _topic(field, value)
    BrokerConfig(background_threads=0, log_cleaner_threads=0, node_id=0, log_cleaner_io_max_bytes_per_second=1)


@pytest.mark.parametrize(("field", "allowed"), [*(COMPACTION_RANGES | RETENTION_RANGES | LOG_RANGES).items()])
def test_a_range_is_that_of_the_table_of_keys(field: str, allowed: Range) -> None:
    name = field.replace("_", ".")
    key = TOPIC_KEYS.get(name) or BROKER_KEYS[name]
    match allowed:
        case Truth():
            assert key.type is ValueType.BOOLEAN
        case OneOf():
            assert set(allowed.words) == set(key.one_of)
            assert allowed.several == (key.type is ValueType.LIST)
        case Whole() | Real():
            ends = (allowed.low, allowed.high, *(key.refused or (0,)), key.at_least, key.at_most, -(2**31), 2**31)
            tried = {round(end) + by for end in ends if end is not None for by in (-1, 0, 1)}
            assert {number for number in tried if allowed.holds(number)} == {
                number for number in tried if _is_parsed(key, number)
            }


def _is_parsed(key: Key, number: int) -> bool:
    try:
        parse_value(key, str(number), Origin.SET)
    except SettingsError:
        return False
    return True


def test_the_offset_maps_of_all_cleaner_threads_have_kafkas_bound() -> None:
    assert BrokerConfig().offset_map_keys == 5_033_164
    assert BrokerConfig(log_cleaner_threads=4).offset_map_keys == 1_258_290


def test_the_map_of_a_cleaner_thread_takes_no_more_keys_than_kafkas_whose_size_is_an_int() -> None:
    """Kafka's CleanerThread gives a map at most 2^31 - 1 bytes, at 24 bytes a slot."""
    assert BrokerConfig(log_cleaner_dedupe_buffer_size=1 << 33, log_cleaner_threads=2).offset_map_keys == 80_530_636
