from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sediment.compaction.config import CompactionConfig, offset_map_keys
from sediment.engine.log_config import LogConfig
from sediment.jobs.settings.resolve import Origin, Settings
from sediment.retention.policy import RetentionConfig
from sediment.segment_io.errors import SettingsError, UsageError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata


def sets(*given: str, **load: Mapping[str, Mapping[str, str]]) -> Settings:
    return Settings.load(None, given, topic_overrides=load.get("topics"), broker_overrides=load.get("brokers"))


def from_file(tmp_path: Path, text: str, *given: str) -> Settings:
    path = tmp_path / "some.properties"
    path.write_text(text, encoding="latin-1")
    return Settings.load(path, given)


def refusal(*given: str) -> str:
    with pytest.raises(SettingsError) as caught:
        sets(*given)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


# ------------------------------------------------------------------------------------------------------------ defaults
UNSTATED = LogConfig(
    CompactionConfig(cleanup_policy=(), delete_retention_ms=None, producer_id_expiration_ms=None),
    RetentionConfig(cleanup_policy=(), retention_ms=-1, retention_bytes=-1),
)


def test_without_settings_no_key_that_deletes_has_a_value() -> None:
    assert sets().for_topic("t") == UNSTATED


def test_with_broker_defaults_a_topic_has_kafkas_defaults() -> None:
    assert Settings.load(None, [], broker_defaults=True).for_topic("t") == LogConfig()


def test_a_brokers_own_file_states_kafkas_defaults_of_topics_that_the_metadata_knows(tmp_path: Path) -> None:
    alone = from_file(tmp_path, "node.id=1\nlog.retention.ms=9\n")
    assert alone.for_topic("t") == UNSTATED
    known = alone.with_metadata({}, {})
    assert known.for_topic("t") == LogConfig(retention=RetentionConfig(retention_ms=9))
    assert not from_file(tmp_path, "segment.ms=7\n").with_metadata({}, {}).is_stated("t", "cleanup.policy")


@pytest.mark.parametrize(
    ("settings", "is_stated"),
    [
        ({"sets": {"retention.ms": "5"}}, True),
        ({"sets": {"log.retention.hours": "5"}}, True),
        ({"topic_sets": {"t": {"retention.ms": "5"}}}, True),
        ({"topic_sets": {"u": {"retention.ms": "5"}}}, False),
        ({"topic_overrides": {"t": {"retention.ms": "5"}}}, True),
        ({"topic_overrides": {"u": {"retention.ms": "5"}}}, False),
        ({"topic_overrides": {}, "broker_overrides": {"log.retention.ms": "5"}}, True),
        ({"config_file": {"log.retention.minutes": "5"}}, True),
        ({"config_file": {"log.retention.bytes": "5"}, "is_broker_file": True}, False),
        ({"is_broker_file": True, "topic_overrides": {}}, True),
        ({"broker_defaults": True}, True),
    ],
)
def test_a_limit_is_stated_by_whatever_gives_it(settings: dict[str, Any], is_stated: bool) -> None:
    assert Settings(**settings).is_stated_for_retention("t", "retention.ms") is is_stated
    assert Settings(**settings).is_stated("t", "retention.ms") is is_stated


def test_creation_configs_of_internal_topics_are_stated_for_compaction_only() -> None:
    for settings in (sets(), Settings.load(None, [], broker_defaults=True)):
        assert settings.is_stated("__consumer_offsets", "cleanup.policy")
        assert not settings.is_stated_for_retention("__consumer_offsets", "cleanup.policy")
        assert not settings.is_stated_for_retention("__share_group_state", "retention.ms")
    known = sets(topics={"__consumer_offsets": {"cleanup.policy": "compact"}})
    assert known.is_stated_for_retention("__consumer_offsets", "cleanup.policy")


def test_settings_travel_to_executors_unchanged() -> None:
    settings = sets("segment.bytes=2097152", "t:retention.ms=5")
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("topic", "policy", "compression", "retention_ms"),
    [
        ("__consumer_offsets", ("compact",), "producer", -1),
        ("__transaction_state", ("compact",), "uncompressed", -1),
        ("__share_group_state", ("delete",), "producer", -1),
    ],
)
def test_internal_topics_are_as_kafka_creates_them(
    topic: str, policy: tuple[str, ...], compression: str, retention_ms: int
) -> None:
    config = sets().for_topic(topic)
    assert (config.cleanup_policy, config.compression_type) == (policy, compression)
    assert (config.retention.retention_ms, config.compaction.segment_bytes) == (retention_ms, 104_857_600)


def test_a_brokers_general_defaults_do_not_reach_what_internal_topics_are_created_with(tmp_path: Path) -> None:
    text = "log.cleanup.policy=delete\nlog.segment.bytes=2097152\ncompression.type=gzip\nlog.roll.ms=7\n"
    settings = from_file(tmp_path, text + "offsets.topic.segment.bytes=3145728\n")
    config = settings.for_topic("__consumer_offsets")
    assert (config.cleanup_policy, config.compression_type) == (("compact",), "producer")
    assert config.compaction.segment_bytes == 3_145_728
    assert config.segment_ms == 7
    assert settings.for_topic("__transaction_state").compaction.segment_bytes == 104_857_600
    assert settings.for_topic("t").compaction.segment_bytes == 2_097_152


def test_the_metadata_and_sets_say_otherwise_of_internal_topics() -> None:
    by_metadata = sets(topics={"__consumer_offsets": {"cleanup.policy": "compact,delete", "segment.bytes": "1048577"}})
    assert by_metadata.for_topic("__consumer_offsets").cleanup_policy == ("compact", "delete")
    assert by_metadata.for_topic("__consumer_offsets").compaction.segment_bytes == 1_048_577
    assert by_metadata.for_topic("__transaction_state").cleanup_policy == ()
    by_set = sets("__consumer_offsets:cleanup.policy=delete")
    assert by_set.for_topic("__consumer_offsets").cleanup_policy == ("delete",)
    assert sets("segment.bytes=2097152").for_topic("__consumer_offsets").compaction.segment_bytes == 2_097_152


# --------------------------------------------------------------------------------------------------------------- order
def test_each_source_wins_over_the_ones_before(tmp_path: Path) -> None:
    def dirty_ratio(settings: Settings) -> tuple[float, str]:
        config = settings.for_topic("t").compaction
        return config.min_cleanable_dirty_ratio, settings.origin("t", "min.cleanable.dirty.ratio")

    key = "log.cleaner.min.cleanable.ratio"
    topic_key = "min.cleanable.dirty.ratio"
    in_file = from_file(tmp_path, f"{key}=0.1\n")
    of_broker = in_file.with_metadata({}, {key: "0.2"})
    of_topic = of_broker.with_metadata({"t": {topic_key: "0.3"}}, {key: "0.2"})
    set_broker = from_file(tmp_path, f"{key}=0.1\n", f"{key}=0.4").with_metadata({"t": {topic_key: "0.3"}}, {})
    set_all = from_file(tmp_path, "", f"{key}=0.4", f"{topic_key}=0.5").with_metadata({"t": {topic_key: "0.3"}}, {})
    set_topic = from_file(tmp_path, "", f"{topic_key}=0.5", f"t:{topic_key}=0.6")

    assert dirty_ratio(sets()) == (0.5, "default")
    assert dirty_ratio(in_file) == (0.1, "file")
    assert dirty_ratio(of_broker) == (0.2, "metadata")
    assert dirty_ratio(of_topic) == (0.3, "metadata")
    assert dirty_ratio(set_broker) == (0.4, "--set")
    assert dirty_ratio(set_all) == (0.5, "--set")
    assert dirty_ratio(set_topic) == (0.6, "--set")
    assert set_topic.for_topic("u").compaction.min_cleanable_dirty_ratio == 0.5


def test_one_topics_settings_leave_the_others_alone() -> None:
    settings = sets("a.b_c-1:cleanup.policy=compact", "a.b_c-1:delete.retention.ms=5")
    assert settings.for_topic("a.b_c-1").cleanup_policy == ("compact",)
    assert settings.for_topic("a.b_c-1").compaction.delete_retention_ms == 5
    assert settings.for_topic("a.b_c") == UNSTATED


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        (["log.retention.hours=2"], 7_200_000),
        (["log.retention.hours=2", "log.retention.minutes=3"], 180_000),
        (["log.retention.minutes=3", "log.retention.ms=4", "log.retention.hours=2"], 4),
        (["log.retention.ms=4", "retention.ms=0"], 0),
        (["log.retention.hours=-5"], -1),
        (["log.retention.ms=-7"], -1),
        (["retention.ms=-1"], -1),
    ],
)
def test_retention_time_comes_from_the_finest_unit_given(given: list[str], retention_ms: int) -> None:
    assert sets(*given).for_topic("t").retention.retention_ms == retention_ms


def test_rolling_and_flushing_times_come_from_the_first_key_given() -> None:
    coarse = sets("log.roll.hours=3", "log.roll.jitter.hours=1", "log.flush.scheduler.interval.ms=9").for_topic("t")
    assert (coarse.segment_ms, coarse.segment_jitter_ms, coarse.flush_ms) == (10_800_000, 3_600_000, 9)
    both = sets("log.roll.hours=3", "log.roll.ms=8", "log.flush.scheduler.interval.ms=9", "log.flush.interval.ms=6")
    assert (both.for_topic("t").segment_ms, both.for_topic("t").flush_ms) == (8, 6)


def test_broker_keys_fill_every_field() -> None:
    config = sets(
        "message.max.bytes=1", "log.index.size.max.bytes=24", "log.index.interval.bytes=0", "log.preallocate=TRUE",
        "log.cleaner.min.compaction.lag.ms=2", "log.cleaner.max.compaction.lag.ms=3", "log.retention.bytes=-9",
        "log.cleaner.delete.retention.ms=4", "compression.type=zstd",
        "producer.id.expiration.ms=6", "sediment.max.decompressed.batch.bytes=7", "log.segment.delete.delay.ms=8",
        "sediment.task.memory.bytes=13",
        "log.message.timestamp.type=LogAppendTime", "log.message.timestamp.before.max.ms=9",
        "compression.zstd.level=-5", "log.message.timestamp.after.max.ms=10", "transaction.max.timeout.ms=11",
        "log.flush.interval.messages=12",
        "log.cleaner.io.buffer.load.factor=.75", "compression.gzip.level=9", "compression.lz4.level=17",
    ).for_topic("t")  # fmt: skip
    cleaning = config.compaction
    assert (cleaning.max_message_bytes, cleaning.segment_index_bytes, cleaning.index_interval_bytes) == (1, 24, 0)
    assert (cleaning.min_compaction_lag_ms, cleaning.max_compaction_lag_ms, cleaning.delete_retention_ms) == (2, 3, 4)
    assert cleaning.dedupe_load_factor == 0.75
    assert (cleaning.producer_id_expiration_ms, cleaning.max_decompressed_batch_bytes) == (6, 7)
    assert cleaning.task_memory_bytes == 13
    assert (config.preallocate, config.retention.retention_bytes, config.file_delete_delay_ms) == (True, -9, 8)
    assert (config.message_timestamp_type, config.compression_type) == ("LogAppendTime", "zstd")
    assert (config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms) == (9, 10)
    assert (config.transaction_max_timeout_ms, config.flush_messages) == (11, 12)
    assert (config.compression_gzip_level, config.compression_lz4_level, config.compression_zstd_level) == (9, 17, -5)


def test_broker_values_are_readable_for_what_concerns_no_topic() -> None:
    settings = sets("log.cleaner.backoff.ms=7", brokers={"log.retention.check.interval.ms": "8"})
    assert settings.broker_value("log.cleaner.backoff.ms") == 7
    assert settings.broker_value("log.retention.check.interval.ms") == 8
    assert settings.broker_value("num.recovery.threads.per.data.dir") == 2
    assert settings.broker_value("log.roll.ms") is None


# ---------------------------------------------------------------------------------------------------------- --set texts
def test_a_value_may_hold_any_sign_and_is_trimmed() -> None:
    assert sets(" t : cleanup.policy = compact , delete ").for_topic("t").cleanup_policy == ("compact", "delete")
    assert "compression.type=a:b=c" in refusal("compression.type=a:b=c")


def test_an_empty_policy_and_repeated_entries_are_kafkas() -> None:
    assert sets("cleanup.policy=").for_topic("t").cleanup_policy == ()
    assert sets("cleanup.policy=delete,compact,delete").for_topic("t").cleanup_policy == ("delete", "compact")


@pytest.mark.parametrize("given", ["cleanup.policy", "=compact", "", ":cleanup.policy=compact", "..:segment.ms=1"])
def test_a_set_without_key_and_value_is_refused(given: str) -> None:
    assert "topic:key=value" in refusal(given)


@pytest.mark.parametrize("topic", ["a b", "ä", "x" * 250, "a:b"])
def test_a_topic_that_kafka_would_not_name_so_is_refused(topic: str) -> None:
    assert "is not a valid topic name" in refusal(f"{topic}:segment.ms=1")


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("min.cleanable.dirty.ration=0.1", "min.cleanable.dirty.ratio"),
        ("t:segment.byte=1", "segment.bytes"),
        ("log.retention.hour=1", "log.retention.hours"),
        ("Cleanup.Policy=compact", "cleanup.policy"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(given: str, nearest: str) -> None:
    sentence = refusal(given)
    assert "unknown key" in sentence and nearest in sentence


@pytest.mark.parametrize("given", ["node.id=1", "x=y", "t:foo=1", "linger.ms=5", "zookeeper.session.timeout.ms=1"])
def test_no_key_is_named_for_an_unknown_key_that_resembles_none(given: str) -> None:
    sentence = refusal(given)
    assert "unknown key" in sentence and "nearest" not in sentence and "conf/sediment.properties" in sentence


def test_a_key_that_kafka_removed_is_refused_as_such() -> None:
    assert "since Kafka 4.0" in refusal("message.format.version=2.8")


def test_a_broker_key_for_one_topic_is_refused_with_the_topics_key() -> None:
    assert "retention.ms" in refusal("t:log.retention.minutes=5").partition(";")[2]
    assert "without a topic" in refusal("t:log.cleaner.dedupe.buffer.size=1000")


@pytest.mark.parametrize(
    "given",
    [
        "segment.bytes=1e6", "segment.bytes=2147483648", "segment.bytes=0", "segment.bytes=", "segment.bytes=1_000",
        "retention.ms=-2", "retention.ms=9223372036854775808", "log.retention.ms=0", "log.roll.hours=0",
        "log.roll.ms=0", "log.flush.interval.ms=-1", "segment.index.bytes=11", "max.compaction.lag.ms=0",
        "min.cleanable.dirty.ratio=1.01", "min.cleanable.dirty.ratio=-0.1", "min.cleanable.dirty.ratio=nan",
        "min.cleanable.dirty.ratio=half", "preallocate=yes", "cleanup.policy=Compact", "cleanup.policy=compact,",
        "compression.type=brotli", "compression.type=lz4,zstd", "compression.gzip.level=0", "compression.lz4.level=18",
        "message.timestamp.type=createtime", "log.cleaner.io.buffer.load.factor=0", "producer.id.expiration.ms=0",
        "log.cleaner.io.max.bytes.per.second=0", "internal.segment.bytes=-5",
    ],
)  # fmt: skip
def test_a_value_of_another_type_or_range_is_refused_with_key_value_and_range(given: str) -> None:
    key, _, value = given.partition("=")
    for prefix in ("", "t:") if not key.startswith(("log.", "producer.")) else ("",):
        sentence = refusal(prefix + given)
        assert f"{key}={value}" in sentence and " takes " in sentence


@pytest.mark.parametrize(
    ("key", "value"),
    [("segment.bytes", "2147483647"), ("retention.ms", "+5"), ("retention.ms", str(INT64_MAX)), ("segment.ms", "007")],
)
def test_numbers_at_the_ends_of_their_range_and_in_javas_spellings_are_accepted(key: str, value: str) -> None:
    assert sets(f"{key}={value}").origin("t", key) == "--set"


def test_contradictory_sets_are_refused_and_repetitions_are_not() -> None:
    assert "contradict" in refusal("segment.bytes=2097152", "segment.bytes=3145728")
    assert "contradict" in refusal("t:segment.ms=1", "t:segment.ms=2")
    assert "contradict" in refusal("segment.bytes=2097152", "internal.segment.bytes=1000")
    assert sets("t:segment.ms=1", "t:segment.ms=1", "u:segment.ms=2").for_topic("u").segment_ms == 2


def test_internal_segment_bytes_is_another_name_of_segment_bytes() -> None:
    assert sets("internal.segment.bytes=1000").for_topic("t").compaction.segment_bytes == 1000
    assert sets("segment.bytes=500", "t:internal.segment.bytes=600").for_topic("t").compaction.segment_bytes == 600
    of_topic = {"t": {"segment.bytes": "2097152", "internal.segment.bytes": "700"}}
    assert sets(topics=of_topic).for_topic("t").compaction.segment_bytes == 700
    assert sets("segment.bytes=500", topics=of_topic).for_topic("t").compaction.segment_bytes == 500


def test_segments_below_kafkas_minimum_are_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        sets("segment.bytes=1048576")
        assert caplog.messages == []
        sets("segment.bytes=1048575")
    assert len(caplog.messages) == 1 and "1048576" in caplog.messages[0]


def test_a_key_that_no_command_depends_on_is_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        sets("background.threads=4")
    assert len(caplog.messages) == 1 and "background.threads=4" in caplog.messages[0]


# ------------------------------------------------------------------------------------------------------- the offset map
def test_the_offset_map_is_bounded_only_by_a_set(tmp_path: Path) -> None:
    in_file = from_file(tmp_path, "log.cleaner.dedupe.buffer.size=4096\nlog.cleaner.io.buffer.load.factor=0.5\n")
    assert in_file.for_topic("t").compaction.dedupe_buffer_bytes is None
    assert in_file.for_topic("t").compaction.dedupe_load_factor == 0.5
    dynamic = sets(brokers={"log.cleaner.dedupe.buffer.size": "4096"})
    assert dynamic.for_topic("t").compaction.dedupe_buffer_bytes is None
    assert sets("log.cleaner.dedupe.buffer.size=4096").for_topic("t").compaction.dedupe_buffer_bytes == 4096


@pytest.mark.parametrize(("size", "load_factor"), [("48", "0.9"), ("48", "0.75"), ("71", "0.6"), ("72", "0.5")])
def test_a_map_of_more_than_one_fillable_slot_is_accepted(size: str, load_factor: str) -> None:
    given = [f"log.cleaner.dedupe.buffer.size={size}", f"log.cleaner.io.buffer.load.factor={load_factor}"]
    assert sets(*given).for_topic("t").compaction.dedupe_buffer_bytes == int(size)


def test_a_map_too_small_for_its_load_factor_is_refused_with_the_size_to_give() -> None:
    assert "give at least 48" in refusal("log.cleaner.dedupe.buffer.size=47")
    assert "give at least 72" in refusal("log.cleaner.dedupe.buffer.size=48", "log.cleaner.io.buffer.load.factor=0.5")
    assert " takes " in refusal("log.cleaner.dedupe.buffer.size=0")


@pytest.mark.parametrize("load_factor", ["2e-9", "1.1e-8", "5e-324"])
@pytest.mark.parametrize("size", ["1000", "2147483647", "1000000000000"])
def test_a_load_factor_too_small_for_the_largest_map_is_refused_with_the_one_to_give(
    size: str, load_factor: str
) -> None:
    given = f"log.cleaner.dedupe.buffer.size={size}"
    assert "give at least log.cleaner.io.buffer.load.factor=2e-08" in refusal(
        given, f"log.cleaner.io.buffer.load.factor={load_factor}"
    )


def test_the_size_and_the_load_factor_that_refusals_name_are_accepted() -> None:
    least = "log.cleaner.io.buffer.load.factor=2e-08"
    assert "give at least 1200000024" in refusal("log.cleaner.dedupe.buffer.size=48", least)
    for size in (1_200_000_024, 10**12):
        compaction = sets(f"log.cleaner.dedupe.buffer.size={size}", least).for_topic("t").compaction
        assert compaction.dedupe_buffer_bytes == size
        assert offset_map_keys(size, compaction.dedupe_load_factor) == 1


# --------------------------------------------------------------------------------------------------- checks across keys
def test_a_minimum_lag_above_the_maximum_is_refused_from_any_source(tmp_path: Path) -> None:
    assert "above max.compaction.lag.ms=5" in refusal("min.compaction.lag.ms=6", "max.compaction.lag.ms=5")
    assert "of topic t" in refusal("min.compaction.lag.ms=6", "t:max.compaction.lag.ms=5")
    assert sets("min.compaction.lag.ms=5", "max.compaction.lag.ms=5").for_topic("t").compaction.compacts is False
    with pytest.raises(SettingsError, match="above"):
        from_file(tmp_path, "log.cleaner.min.compaction.lag.ms=6\n", "max.compaction.lag.ms=5")


def test_tiered_storage_is_refused_for_compacted_topics_only() -> None:
    assert "tiered storage" in refusal("remote.storage.enable=true", "cleanup.policy=delete,compact")
    assert sets("t:remote.storage.enable=true").for_topic("t").retention.remote_storage_enable
    once_tiered = {"t": {"remote.log.delete.on.disable": "true", "cleanup.policy": "compact"}}
    assert sets(topics=once_tiered).for_topic("t").compacts
    assert sets("remote.storage.enable=true").for_topic("t").retention.remote_storage_enable
    with pytest.raises(SettingsError, match="tiered storage"):
        sets("remote.storage.enable=true").for_topic("__consumer_offsets")


def test_local_retention_of_a_tiered_topic_stays_below_its_retention() -> None:
    assert "at most 10" in refusal("remote.storage.enable=true", "retention.ms=10", "local.retention.ms=11")
    assert "at most 10" in refusal("remote.storage.enable=true", "retention.bytes=10", "local.retention.bytes=-1")
    sets("remote.storage.enable=true", "retention.ms=-1", "local.retention.ms=-1")
    sets("retention.ms=10", "local.retention.ms=11")


# --------------------------------------------------------------------------------------------------------- the metadata
def test_a_bad_value_in_the_metadata_fails_its_own_topic_only() -> None:
    settings = sets(topics={"bad": {"segment.ms": "soon", "of.a.newer.kafka": "1"}, "good": {"of.a.newer.kafka": "1"}})
    assert settings.for_topic("good") == UNSTATED
    with pytest.raises(SettingsError, match=r"segment\.ms=soon in the cluster's metadata"):
        settings.for_topic("bad")


def test_origin_of_an_unknown_key_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"nearest known key is segment\.bytes"):
        sets().origin("t", "segment.byte")


def test_origin_looks_through_the_names_of_a_key() -> None:
    settings = sets("log.retention.hours=1", "t:internal.segment.bytes=1000", brokers={"log.roll.ms": "7"})
    assert settings.origin("t", "retention.ms") == "--set"
    assert settings.origin("t", "segment.bytes") == "--set"
    assert settings.origin("u", "segment.bytes") == "default"
    assert settings.origin("t", "segment.ms") == "metadata"
    assert settings.origin("__consumer_offsets", "cleanup.policy") == "creation"


# -------------------------------------------------------------------------------------------------------- the selection
@pytest.mark.parametrize("key", ["cleanup.policy", "log.cleanup.policy"])
def test_one_policy_for_several_topics_is_refused_where_nothing_else_is_known_of_them(key: str) -> None:
    settings = sets(f"{key}=compact")
    with pytest.raises(UsageError, match=r"--set topic:cleanup\.policy"):
        settings.check_selection(["a", "b"], have_metadata=False)
    settings.check_selection(["a", "a"], have_metadata=False)
    settings.check_selection(["a", "b"], have_metadata=True)
    settings.check_selection([], have_metadata=False)
    sets("a:cleanup.policy=compact", "segment.ms=1").check_selection(["a", "b"], have_metadata=False)


def test_a_topic_that_is_set_but_not_selected_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        sets("oders:segment.ms=1", "a:segment.ms=1").check_selection(["orders", "a"], have_metadata=False)
    assert len(caplog.messages) == 1 and "oders" in caplog.messages[0]
    assert caplog.messages[0].endswith("; the nearest selected topic is orders")


# ------------------------------------------------------------------------------------------------------------ --config
KRAFT_SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/var/lib/kafka
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
log.retention.hours=24
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
log.cleaner.dedupe.buffer.size=134217728
listener.name.sasl_ssl.plain.sasl.jaas.config=org.example.Login required \\
    username="admin";
"""


def test_a_brokers_file_is_taken_as_it_is_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        settings = from_file(tmp_path, KRAFT_SERVER_PROPERTIES)
    assert caplog.messages == []
    assert settings.for_topic("t").retention.retention_ms == -1
    assert settings.with_metadata({}, {}).for_topic("t").retention.retention_ms == 86_400_000
    assert settings.for_topic("t").compaction.dedupe_buffer_bytes is None


def test_a_nodes_file_states_nothing_that_deletes_for_topics_that_the_metadata_may_know_better(tmp_path: Path) -> None:
    text = "log.cleanup.policy=compact\nlog.retention.ms=9\nlog.retention.bytes=9\nlog.cleaner.delete.retention.ms=9\n"
    keys = ("cleanup.policy", "retention.ms", "retention.bytes", "delete.retention.ms")
    for mark in (
        *("node.id=1", "process.roles=broker", "broker.id=1", "zookeeper.connect=zk:2181", "log.dirs=/var/lib/kafka"),
        "process.roles=controller\nzookeeper.connect=zk:2181\nzookeeper.metadata.migration.enable=true",
        # parts of a broker's settings, as services for Kafka keep them
        *("default.replication.factor=3", "min.insync.replicas=2", "log.message.format.version=2.8", "confluent.x=1"),
    ):
        assert {from_file(tmp_path, f"{mark}\n{text}").is_stated("t", key) for key in keys} == {False}
    assert {from_file(tmp_path, f"num.io.threads=8\n{text}").is_stated("t", key) for key in keys} == {True}
    alone = from_file(tmp_path, "node.id=1\n" + text)
    assert alone.for_topic("t") == UNSTATED
    assert alone.in_force("t")["retention.ms"] == (None, "not stated")
    assert all(replace(alone, broker_defaults=True).is_stated("t", key) for key in keys)
    assert all(alone.with_metadata({}, {}).is_stated("t", key) for key in keys)


@pytest.mark.parametrize(
    ("text", "is_zookeeper"),
    [
        ("zookeeper.connect=zk:2181\n", True),
        ("zookeeper.connect=zk:2181\nnode.id=1\n", True),
        ("broker.id=1\n", True),
        ("broker.id=1\nnode.id=1\n", False),
        ("broker.id=1\nprocess.roles=broker\nzookeeper.connect=zk:2181\n", False),
        ("node.id=1\n", False),
        ("log.dirs=/var/lib/kafka\n", False),
    ],
)
def test_a_broker_without_a_role_in_a_quorum_has_its_topics_configs_in_zookeeper(
    tmp_path: Path, text: str, is_zookeeper: bool
) -> None:
    settings = from_file(tmp_path, text)
    assert settings.is_zookeeper is is_zookeeper
    assert ("--metadata" in settings.how_to_state("t", "cleanup.policy")) is not is_zookeeper


def test_a_brokers_lag_and_its_expiration_of_producers_are_unknown_without_the_configs_of_the_cluster(
    tmp_path: Path,
) -> None:
    text = "log.cleaner.min.compaction.lag.ms=9\nproducer.id.expiration.ms=9\n"
    alone = from_file(tmp_path, "broker.id=1\n" + text, "t:cleanup.policy=compact")
    assert not alone.is_stated("t", "min.compaction.lag.ms")
    assert alone.for_topic("t").compaction.producer_id_expiration_ms is None
    known = alone.with_metadata({}, {})
    assert known.is_stated("t", "min.compaction.lag.ms")
    assert known.for_topic("t").compaction.producer_id_expiration_ms == 9


def test_keys_that_are_not_dynamic_are_ignored_in_the_metadata_as_a_broker_does(tmp_path: Path) -> None:
    dynamic = {
        "log.retention.hours": "1",
        "log.retention.minutes": "1",
        "offsets.retention.minutes": "1",
        "log.cleaner.enable": "true",
        "log.retention.bytes": "5",
    }
    settings = from_file(tmp_path, "node.id=1\nlog.retention.ms=-1\nlog.cleaner.enable=false\n")
    for name in ("", "1"):
        of_node = settings.of_node(ClusterMetadata({}, {}, {name: dynamic}, 1), 1)
        retention = of_node.for_topic("t").retention
        assert (retention.retention_ms, retention.retention_bytes) == (-1, 5)
        assert of_node.broker_value("log.cleaner.enable") is False
        assert of_node.origin("", "offsets.retention.minutes") == Origin.DEFAULT


def test_java_properties_are_read_as_java_reads_them(tmp_path: Path) -> None:
    text = (
        "! a comment\n  log.roll.ms : 5\nlog.retention\\\n  .ms 6\nlog.cleanup.policy=\\u0063ompact\nlog.roll.ms=7\r\n"
    )
    config = from_file(tmp_path, text).for_topic("t")
    assert (config.segment_ms, config.retention.retention_ms, config.cleanup_policy) == (7, 6, ("compact",))


@pytest.mark.parametrize("mark", ["", "broker.id=0\n", "node.id=0\n"])
def test_topic_keys_in_a_file_are_ignored_as_a_broker_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mark: str
) -> None:
    with caplog.at_level(logging.WARNING):
        settings = from_file(tmp_path, mark + "retention.ms=1000\ncleanup.policy=compact,delete\n")
    assert settings.for_topic("t") == UNSTATED
    retention, policy = caplog.messages
    assert "retention.ms is ignored" in retention and "log.retention.ms" in retention
    assert "cleanup.policy is ignored" in policy and "log.cleanup.policy" in policy


def test_a_key_of_topics_and_of_the_broker_counts_as_that_of_the_broker(tmp_path: Path) -> None:
    settings = from_file(tmp_path, "compression.type=zstd\n")
    assert (settings.for_topic("t").compression_type, settings.origin("t", "compression.type")) == ("zstd", "file")
    assert settings.for_topic("__consumer_offsets").compression_type == "producer"


@pytest.mark.parametrize(
    ("text", "node_id"),
    [
        ("node.id=7\n", 7),
        ("broker.id= +07\n", 7),
        ("node.id=7\nbroker.id=7\n", 7),
        ("broker.id=-1\n", None),
        ("log.dirs=/d\n", None),
    ],
)
def test_the_id_of_a_node_is_that_of_its_broker_unless_it_is_given(
    tmp_path: Path, text: str, node_id: int | None
) -> None:
    assert from_file(tmp_path, text).node_id == node_id


def test_a_broker_id_stands_for_the_node_in_the_quorum(tmp_path: Path) -> None:
    settings = from_file(tmp_path, "process.roles=broker\nbroker.id=8\n")
    assert settings.quorum == {"process.roles": "broker", "node.id": "8"}
    assert from_file(tmp_path, "broker.id=8\n").quorum == {}


@pytest.mark.parametrize(
    "text",
    ["node.id=\n", "broker.id=one\n", "node.id=99999999999\n", "node.id=7\nbroker.id=8\n", "node.id=7\nbroker.id=-1\n"],
)
def test_a_file_whose_node_cannot_be_told_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match=r"(node|broker)\.id") as refused:
        from_file(tmp_path, text)
    assert "some.properties" in str(refused.value)


def test_a_surrogate_in_a_key_or_value_is_reported_as_an_escape(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        from_file(tmp_path, "\\ud800=1\n")
    assert "unknown key of 1 characters (not shown" in caplog.text.encode().decode()
    with pytest.raises(SettingsError) as refused:
        from_file(tmp_path, "log.cleaner.threads=\\ud800\n")
    assert r"\ud800" in str(refused.value).encode().decode()


def test_unknown_and_removed_keys_in_a_file_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        from_file(tmp_path, "log.cleaner.thread=2\nlog.message.format.version=2.8\nfoo=1\n")
    unknown, removed, foo = caplog.messages
    assert "log.cleaner.thread " in unknown and unknown.endswith("log.cleaner.threads")
    assert "log.message.format.version" in removed
    assert "unknown key of 3 characters (not shown" in foo


@pytest.mark.parametrize("text", ["log.roll.ms=soon\n", "log.cleanup.policy=\\u00zz\n", "log.segment.bytes=0\n"])
def test_a_bad_file_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        from_file(tmp_path, text)
    assert "some.properties" in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        Settings.load(tmp_path / "none.properties", [])


def test_lags_that_contradict_each_other_are_refused_with_the_name_of_the_topic() -> None:
    sentence = refusal("t:min.compaction.lag.ms=6", "t:max.compaction.lag.ms=5")
    assert "min.compaction.lag.ms=6 is above max.compaction.lag.ms=5 in the config of topic t;" in sentence


def test_a_config_is_built_once_for_all_topics_with_the_same_values():
    settings = sets("a:retention.ms=5", "b:retention.ms=5", "c:retention.ms=6")
    assert settings.for_topic("a") is settings.for_topic("b")
    assert settings.for_topic("x") is settings.for_topic("y")
    built = [settings.for_topic(topic) for topic in ("a", "c", "x", "__consumer_offsets", "__transaction_state")]
    assert len({id(config) for config in built}) == len(built)
