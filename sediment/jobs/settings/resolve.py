"""The parsed settings of a run: the config of each topic, and the origin of each value.

Sources, weakest first: Kafka's defaults, the `--config` file, the cluster's configs, `--set key=value`, `--set
topic:key=value`.  The cluster's configs come from its metadata log, or from the files of `--topic-configs` and
`--broker-configs`.

Invariants:
- Every value that a user gave is checked before a `Settings` is made.  The cluster's configs are checked only for
  selected topics, because other topics must not make a run fail.
- A setting that is not stated deletes nothing.  If `cleanup.policy` is not stated, the policy is empty. If a retention
  limit is not stated, retention has no limit. If `delete.retention.ms` or `producer.id.expiration.ms` is not stated, it
  is None in the config.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.compaction.config import COMPACT, MAP_SLOT_BYTES, CompactionConfig, holds_several_keys, offset_map_slots
from sediment.engine.config_definitions import (
    BROKER_FILE_MARKS,
    BROKER_KEYS,
    DYNAMIC_BROKER_KEYS,
    INTERNAL_TOPIC_CONFIGS,
    REMOVED_KEYS,
    TOPIC_KEYS,
    BrokerName,
    Key,
    Value,
    is_other_broker_key,
    read_value,
)
from sediment.engine.log_config import LogConfig
from sediment.jobs.settings.described_configs import (
    BrokerConfigs,
    DescribedSource,
    DescribedTopicConfigs,
    DescribedValue,
)
from sediment.jobs.settings.properties_file import (
    is_zookeeper_file,
    quorum_keys_of,
    read_properties,
    shown_key,
    stated_node_id,
)
from sediment.retention.policy import RetentionConfig
from sediment.segment_io.errors import SettingsError
from sediment.segment_io.format.layout import INT32_MAX
from sediment.segment_io.format.names import is_topic_name

if TYPE_CHECKING:
    from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata  # it loads compiled code

_LOGGER = logging.getLogger(__name__)

_DEDUPE_SIZE = "log.cleaner.dedupe.buffer.size"
_LOAD_FACTOR = "log.cleaner.io.buffer.load.factor"
_LEAST_LIKENESS = 0.8  # similarity of an unknown key and the known key that a message suggests; 1: equal
_LEAST_LOAD_FACTOR = 2e-8  # with this load factor, the largest offset map can fill more than one slot
_NO_RETENTION = -1
_POLICY_KEYS = ("cleanup.policy", "log.cleanup.policy")
_DELETING_KEYS = ("cleanup.policy", "retention.ms", "retention.bytes", "delete.retention.ms")
_KEPT_ELSEWHERE = frozenset({*_DELETING_KEYS, "min.compaction.lag.ms", "producer.id.expiration.ms"})
"""Keys whose value in a broker's file counts only if the configs of the topic and of the broker are known."""

_SAME_AS_RETENTION = -2
_RELEASE = re.compile(r"([0-9]+)\.([0-9]+)", re.ASCII)


class Origin(StrEnum):
    """Sources of a value, strongest last.

    CREATION is the config with which Kafka creates an internal topic; this config applies if no metadata gives the
    topic's own config.
    """

    DEFAULT = "default"
    CREATION = "creation"
    FILE = "file"
    METADATA = "metadata"
    BROKER_CONFIGS = "--broker-configs"
    TOPIC_CONFIGS = "--topic-configs"
    SET = "--set"


@dataclass(frozen=True, slots=True)
class _Given:
    """One value in the form in which the user wrote it; its `key` may differ from the requested key."""

    key: Key
    text: str
    origin: Origin
    unit_ms: int | None = None

    def value(self) -> Value:
        parsed = parse_value(self.key, self.text, self.origin)
        return max(parsed * self.unit_ms, -1) if self.unit_ms and isinstance(parsed, int) else parsed


@dataclass(frozen=True, slots=True)
class Settings:
    """The given settings by source; every mapping has Kafka's keys, and the texts of their values."""

    config_file: Mapping[str, str] = field(default_factory=dict)
    is_broker_file: bool = False
    """True if `--config` is a broker's own file; for a key that the file lacks, the broker uses Kafka's default."""

    holds_defaults: bool = False
    """True if topics may override the values of `--config` elsewhere, because the file, or a part of it, is a broker's.

    False for a file that a user wrote for Sediment: it has no other keys than `conf/sediment.properties`.
    """

    is_zookeeper: bool = False

    node_id: int | None = None
    """The `node.id` in the `--config` file, or its `broker.id`; None if the file has neither."""

    quorum: Mapping[str, str] = field(default_factory=dict)
    """The keys in the `--config` file that describe the node's role in the KRaft quorum."""

    broker_defaults: bool = False

    metadata_dir: Path | None = None

    sets: Mapping[str, str] = field(default_factory=dict)
    topic_sets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    broker_overrides: Mapping[str, str] = field(default_factory=dict)
    """Dynamic broker configs of the cluster; for each key, the broker's own value, or else that of all brokers."""

    held: frozenset[str] = frozenset()
    """The broker keys whose static values take precedence over the dynamic configs in `of_node`."""

    topic_overrides: Mapping[str, Mapping[str, str]] | None = None
    """The topics' own configs, from the cluster's metadata or from `--topic-configs`; None if they are unknown."""

    topic_configs: DescribedTopicConfigs | None = None
    broker_configs: BrokerConfigs | None = None
    """The files of `--topic-configs` and `--broker-configs`, until `of_described_node` applies them."""

    listed_topics: frozenset[str] | None = None
    """The topics in `--topic-configs`; only `--set` counts for other topics.  None: the metadata covers every topic."""

    format_versions: Mapping[str, str] = field(default_factory=dict)
    """The `message.format.version` of each topic for which `--topic-configs` has one."""

    lacks_broker_configs: bool = False
    """True if the topics' own configs are known, but not the dynamic configs of the broker."""

    _configs: dict[Hashable, LogConfig] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Cache of `for_topic`: a directory may have very many partitions, and topics with the same values."""

    @classmethod
    def load(
        cls,
        config_file: Path | None,
        sets: Sequence[str],
        *,
        broker_defaults: bool = False,
        metadata_dir: Path | None = None,
        topic_configs: DescribedTopicConfigs | None = None,
        broker_configs: BrokerConfigs | None = None,
        topic_overrides: Mapping[str, Mapping[str, str]] | None = None,
        broker_overrides: Mapping[str, str] | None = None,
    ) -> Settings:
        """Parse `--config` and the `--set` options; unknown keys in the file and unusual values are logged.

        Source: kafka-log 06.
        """
        file = _read_file(config_file) if config_file is not None else _ConfigFile()
        for_all, for_topics = _read_sets(sets)
        given = cls(
            file.values,
            is_broker_file=bool(file.marks),
            holds_defaults=file.holds_defaults,
            is_zookeeper=file.is_zookeeper,
            node_id=file.node_id,
            quorum=file.quorum,
            broker_defaults=broker_defaults,
            metadata_dir=metadata_dir,
            sets=for_all,
            topic_sets=for_topics,
            topic_configs=topic_configs,
            broker_configs=broker_configs,
        )
        given._check_map_size()
        for topic in (None, *for_topics):
            given._log_config(topic)
        return given.with_metadata(topic_overrides, broker_overrides or {})

    def with_metadata(
        self, topic_overrides: Mapping[str, Mapping[str, str]] | None, broker_overrides: Mapping[str, str]
    ) -> Settings:
        return replace(self, topic_overrides=topic_overrides, broker_overrides=broker_overrides)

    def of_node(self, metadata: ClusterMetadata, node_id: int | None) -> Settings:
        configs = metadata.configs_of_broker(node_id)
        # Dynamic broker configs can also contain passwords, so only configs for logs are kept.  A controller stores any
        # key, but a broker ignores keys that are not dynamic, such as `log.retention.hours`.  Source: Kafka's
        # DynamicBrokerConfig.removeInvalidConfigs.
        kept = DYNAMIC_BROKER_KEYS - self.held
        return self.with_metadata(
            metadata.topic_configs, {name: text for name, text in configs.items() if name in kept}
        )

    def of_described_node(self, node_id: int | None) -> Settings:
        if self.topic_configs is None:
            return self
        brokers = None if self.broker_configs is None else self.broker_configs.of_node(node_id)
        inherited = self.topic_configs.inherited
        self._check_sources(node_id, brokers or {})
        return replace(
            self,
            topic_overrides={
                topic: {**self._inherited(inherited.get(topic, {}), brokers), **own}
                for topic, own in self.topic_configs.own.items()
            },
            broker_overrides={key: text for key, text in (brokers or {}).items() if key not in self.held},
            listed_topics=frozenset(self.topic_configs.own),
            format_versions=self.topic_configs.formats,
            lacks_broker_configs=brokers is None,
            topic_configs=None,
            broker_configs=None,
        )

    def _check_sources(self, node_id: int | None, brokers: Mapping[str, str]) -> None:
        """Check that no value without a source may be the dynamic config of another broker, which has answered."""
        if self.topic_configs is None or self.broker_configs is None:
            return
        for topic in sorted(self.topic_configs.unsourced):
            for key, text in self.topic_configs.own[topic].items():
                for name in TOPIC_KEYS[key].broker_names:
                    other = self.broker_configs.other_node_with(node_id, name.name, text)
                    if other is not None and brokers.get(name.name) != text:
                        raise SettingsError(
                            f"{key} of topic {topic} in --topic-configs may be the dynamic config of broker {other}",
                            advice="give the output of kafka-configs.sh, because kafka-topics.sh prints no sources",
                        )

    def _inherited(self, values: Mapping[str, DescribedValue], brokers: Mapping[str, str] | None) -> dict[str, str]:
        """Return the values that a topic gets from its broker, as far as they also hold for the broker of the run."""
        if brokers is not None and self.is_broker_file:
            return {}
        # Any broker may have answered.  So a value of one broker holds for no other, and a value of a broker's file or
        # Kafka's default gives way to the `--config` file: if the two differ and `--broker-configs` does not say which
        # of them a dynamic config replaces, the value is unknown.
        found = {}
        for key, value in values.items():
            if value.source == DescribedSource.ALL_BROKERS:
                holds = brokers is None
            elif value.source == DescribedSource.BROKER:
                holds = False
            elif brokers is not None:
                holds = brokers.keys().isdisjoint(name.name for name in TOPIC_KEYS[key].broker_names)
            else:
                holds = not self.is_broker_file or self._has_in_file(key, value.text)
            if holds:
                found[key] = value.text
        return found

    def _has_in_file(self, name: str, text: str) -> bool:
        key = TOPIC_KEYS[name]
        given = next(_find_broker_keys(self.config_file, key.broker_names, Origin.FILE), None)
        return read_value(key.type, text) == (key.default if given is None else given.value())

    def for_topic(self, topic: str) -> LogConfig:
        values = self._values_of_topic(topic)
        if values not in self._configs:
            self._configs[values] = self._log_config(topic)
        return self._configs[values]

    def keeps_old_format(self, topic: str) -> bool:
        """Return True if `--topic-configs` says that a broker before Kafka 3.0 keeps message format 0 or 1."""
        release = _RELEASE.match(self.format_versions.get(topic, ""))
        return release is not None and (int(release[1]), int(release[2])) < (0, 11)

    def broker_value(self, name: str) -> Value | None:
        """Return the value of a broker key that kafka-log 06 §2 to §4 lists; None if the key is not set."""
        return self._resolve(BROKER_KEYS[name], None)[0]

    def origin(self, topic: str, name: str) -> str:
        key = TOPIC_KEYS.get(name) or BROKER_KEYS.get(name)
        if key is None:
            raise _unknown_key(name, [*TOPIC_KEYS, *BROKER_KEYS], "a question about settings")
        return str(self._resolve(key, topic)[1])

    def is_stated(self, topic: str, name: str) -> bool:
        origin = self.origin(topic, name)
        if origin != Origin.SET and self._is_unlisted(topic):
            return False
        # For keys that delete data, a broker's file counts only if the topic's own configs and the dynamic configs of
        # the broker are known.
        if origin == Origin.FILE and name in _KEPT_ELSEWHERE and self.holds_defaults and not self._knows_cluster:
            return self.broker_defaults
        # Kafka's default also counts as stated if `--config` is the broker's own file and the cluster's configs show
        # that the topic does not set the key.
        if origin == Origin.DEFAULT:
            return self.broker_defaults or (self.is_broker_file and self._knows_cluster)
        return True

    def is_stated_for_retention(self, topic: str, name: str) -> bool:
        return self.is_stated(topic, name) and self.origin(topic, name) != Origin.CREATION

    def how_to_state(self, topic: str, name: str) -> str:
        option = f"--set {topic}:{name}=…" if name in TOPIC_KEYS else f"--set {name}=…"
        if self._is_unlisted(topic):
            return f"--topic-configs does not list topic {topic}; give a complete FILE, or {option}"
        if self.topic_overrides is None and self.is_zookeeper:
            file = "" if self.is_broker_file else ", together with --config FILE"
            where = f"--topic-configs FILE and --broker-configs FILE (the configs in ZooKeeper){file}"
        elif self.topic_overrides is None:
            file = "" if self.is_broker_file else " together with --config FILE"
            where = f"--metadata DIR (the directory with __cluster_metadata-0){file}"
        elif self.lacks_broker_configs:
            file = "" if self.is_broker_file else " together with --config FILE"
            where = f"--broker-configs FILE (the dynamic configs of the brokers){file}"
        else:
            where = "--config FILE (the broker's server.properties)"
        if self.broker_defaults or name in _DELETING_KEYS:
            return f"give {where}, or {option}"
        return f"give {where}, {option}, or --broker-defaults"

    @property
    def _knows_cluster(self) -> bool:
        return self.topic_overrides is not None and not self.lacks_broker_configs

    def _is_unlisted(self, topic: str) -> bool:
        return bool(topic) and self.listed_topics is not None and topic not in self.listed_topics

    def in_force(self, topic: str) -> dict[str, tuple[Value | None, str]]:
        """If a key that deletes data is not stated, its value is None and its origin is `not stated`."""
        found = {name: self._resolve(key, topic) for name, key in TOPIC_KEYS.items()}
        unstated = {name for name in _DELETING_KEYS if not self.is_stated(topic, name)}
        return {
            name: (None, "not stated") if name in unstated else (value, str(origin))
            for name, (value, origin) in found.items()
        }

    def check_selection(self, topics: Collection[str], have_metadata: bool) -> None:
        bare = next((name for name in _POLICY_KEYS if name in self.sets), None)
        if bare is not None and len(set(topics)) > 1 and not have_metadata:
            raise SettingsError(
                f"--set {bare}={self.sets[bare]} would apply to all {len(set(topics))} topics, and a topic "
                "with another policy would lose data",
                advice="set it for each topic with --set topic:cleanup.policy=…, or select one topic with --partition",
            )
        for topic in sorted(set(self.topic_sets) - set(topics)):
            nearest = _nearest(topic, sorted(topics))
            hint = f"; the nearest selected topic is {nearest}" if nearest else ""
            _LOGGER.warning("--set %s:… changes nothing, because that topic is not selected%s", topic, hint)

    # ------------------------------------------------------------------------------------------------ finding a value
    def _values_of_topic(self, topic: str) -> Hashable:
        sources = (self.topic_sets, self.topic_overrides or {}, INTERNAL_TOPIC_CONFIGS)
        return self._is_unlisted(topic), *(frozenset(each.get(topic, {}).items()) for each in sources)

    def _given(self, key: Key, topic: str | None) -> Iterator[_Given]:
        """Yield every value that was given for `key`, strongest first."""
        own = (*key.aliases, key.name) if key.name in TOPIC_KEYS else ()
        # The `--config` file gives only keys of the broker.  In each of the other sources, a topic key takes precedence
        # over the broker keys that give its default.  Among broker keys, Kafka's own order applies (kafka-log 06 §1).
        names = key.broker_names if own else (BrokerName(key.name),)
        created = self._created_with(key, topic)
        if created is not None:
            names = (created,) if isinstance(created, BrokerName) else ()

        yield from _find_topic_keys(self.topic_sets.get(topic or "", {}), own, Origin.SET)
        yield from _find_topic_keys(self.sets, own, Origin.SET)
        yield from _find_broker_keys(self.sets, names, Origin.SET)
        of_topic, of_broker = Origin.METADATA, Origin.METADATA
        if self.listed_topics is not None:
            of_topic, of_broker = Origin.TOPIC_CONFIGS, Origin.BROKER_CONFIGS
        yield from _find_topic_keys((self.topic_overrides or {}).get(topic or "", {}), own, of_topic)
        yield from _find_broker_keys(self.broker_overrides, names, of_broker)
        yield from _find_broker_keys(self.config_file, names, Origin.FILE)

    def _resolve(self, key: Key, topic: str | None) -> tuple[Value | None, Origin]:
        for given in self._given(key, topic):
            value = given.value()
            _check_range(key, value, f"{given.key.name}={given.text}", given.origin)
            return value, given.origin
        created = self._created_with(key, topic)
        if created is None:
            return key.default, Origin.DEFAULT
        if isinstance(created, BrokerName):
            return BROKER_KEYS[created.name].default, Origin.CREATION
        return parse_value(key, created, Origin.CREATION), Origin.CREATION

    def _created_with(self, key: Key, topic: str | None) -> str | BrokerName | None:
        return INTERNAL_TOPIC_CONFIGS.get(topic or "", {}).get(key.name) if self.topic_overrides is None else None

    # ----------------------------------------------------------------------------------------------- building configs
    def _log_config(self, topic: str | None) -> LogConfig:
        values = _Values({name: self._resolve(key, topic)[0] for name, key in TOPIC_KEYS.items()})
        broker = _Values({name: self._resolve(key, topic)[0] for name, key in BROKER_KEYS.items()})
        _check_tiered_storage(values, topic)
        bounded = _DEDUPE_SIZE in self.sets

        policy = values.words("cleanup.policy") if self.is_stated(topic or "", "cleanup.policy") else ()

        def stated_limit(name: str) -> int:
            return values.whole(name) if self.is_stated_for_retention(topic or "", name) else _NO_RETENTION

        def stated_ms(found: _Values, name: str) -> int | None:
            return found.whole(name) if self.is_stated(topic or "", name) else None

        try:
            return LogConfig(
                compaction=CompactionConfig(
                    cleanup_policy=policy,
                    min_cleanable_dirty_ratio=values.real("min.cleanable.dirty.ratio"),
                    min_compaction_lag_ms=values.whole("min.compaction.lag.ms"),
                    max_compaction_lag_ms=values.whole("max.compaction.lag.ms"),
                    delete_retention_ms=stated_ms(values, "delete.retention.ms"),
                    segment_bytes=values.whole("segment.bytes"),
                    segment_index_bytes=values.whole("segment.index.bytes"),
                    index_interval_bytes=values.whole("index.interval.bytes"),
                    max_message_bytes=values.whole("max.message.bytes"),
                    dedupe_buffer_bytes=broker.whole(_DEDUPE_SIZE) if bounded else None,
                    dedupe_load_factor=broker.real(_LOAD_FACTOR),
                    producer_id_expiration_ms=stated_ms(broker, "producer.id.expiration.ms"),
                    max_decompressed_batch_bytes=broker.whole("sediment.max.decompressed.batch.bytes"),
                    task_memory_bytes=broker.whole("sediment.task.memory.bytes"),
                ),
                retention=RetentionConfig(
                    cleanup_policy=policy,
                    retention_ms=stated_limit("retention.ms"),
                    retention_bytes=stated_limit("retention.bytes"),
                    remote_storage_enable=values.truth("remote.storage.enable"),
                    remote_log_copy_disable=values.truth("remote.log.copy.disable"),
                ),
                segment_ms=values.whole("segment.ms"),
                segment_jitter_ms=values.whole("segment.jitter.ms"),
                flush_messages=values.whole("flush.messages"),
                flush_ms=values.whole("flush.ms"),
                compression_type=values.word("compression.type"),
                compression_gzip_level=values.whole("compression.gzip.level"),
                compression_lz4_level=values.whole("compression.lz4.level"),
                compression_zstd_level=values.whole("compression.zstd.level"),
                message_timestamp_type=values.word("message.timestamp.type"),
                message_timestamp_before_max_ms=values.whole("message.timestamp.before.max.ms"),
                message_timestamp_after_max_ms=values.whole("message.timestamp.after.max.ms"),
                preallocate=values.truth("preallocate"),
                file_delete_delay_ms=values.whole("file.delete.delay.ms"),
                transaction_max_timeout_ms=broker.whole("transaction.max.timeout.ms"),
            )
        except SettingsError as error:
            error.what += f" in the config of topic {topic}" if topic else ""
            raise

    def _check_map_size(self) -> None:
        """Check Kafka's condition for its offset map: slots times load factor is above 1 (kafka-log 02 §1)."""
        values = _Values({name: self.broker_value(name) for name in (_DEDUPE_SIZE, _LOAD_FACTOR)})
        size_bytes, load_factor = values.whole(_DEDUPE_SIZE), values.real(_LOAD_FACTOR)
        if _DEDUPE_SIZE not in self.sets or holds_several_keys(size_bytes, load_factor):
            return
        if not holds_several_keys(INT32_MAX, load_factor):
            raise SettingsError(
                f"{_LOAD_FACTOR}={load_factor:g} is too small: an offset map has at most {offset_map_slots(INT32_MAX)} "
                f"slots, so no {_DEDUPE_SIZE} is large enough",
                advice=f"give at least {_LOAD_FACTOR}={_LEAST_LOAD_FACTOR:g}",
            )
        raise SettingsError(
            f"{_DEDUPE_SIZE}={size_bytes} is too small: a slot has {MAP_SLOT_BYTES} bytes, and the load factor "
            f"{load_factor:g} limits how many slots can be filled",
            advice=f"give at least {(int(1 / load_factor) + 1) * MAP_SLOT_BYTES}",
        )


@dataclass(frozen=True, slots=True)
class _Values:
    by_name: Mapping[str, Value | None]

    def whole(self, name: str) -> int:
        value = self.by_name[name]
        assert isinstance(value, int), name
        return value

    def real(self, name: str) -> float:
        value = self.by_name[name]
        assert isinstance(value, float), name
        return value

    def truth(self, name: str) -> bool:
        return self.by_name[name] is True

    def word(self, name: str) -> str:
        value = self.by_name[name]
        assert isinstance(value, str), name
        return value

    def words(self, name: str) -> tuple[str, ...]:
        value = self.by_name[name]
        assert isinstance(value, tuple), name
        return value


def _find_topic_keys(given: Mapping[str, str], names: Sequence[str], origin: Origin) -> Iterator[_Given]:
    return (_Given(TOPIC_KEYS[name], given[name], origin) for name in names if name in given)


def _find_broker_keys(given: Mapping[str, str], names: Sequence[BrokerName], origin: Origin) -> Iterator[_Given]:
    return (
        _Given(BROKER_KEYS[broker.name], given[broker.name], origin, broker.unit_ms)
        for broker in names
        if broker.name in given
    )


# ------------------------------------------------------------------------------------------------------ reading sources
@dataclass(frozen=True, slots=True)
class _ConfigFile:
    """Known keys of a properties file; `marks` are its `BROKER_FILE_MARKS` (only a broker's file has any)."""

    values: Mapping[str, str] = field(default_factory=dict)
    marks: frozenset[str] = frozenset()
    node_id: int | None = None
    quorum: Mapping[str, str] = field(default_factory=dict)
    holds_defaults: bool = False
    is_zookeeper: bool = False


def _read_file(path: Path) -> _ConfigFile:
    found = read_properties(path)
    marks = BROKER_FILE_MARKS.intersection(found)
    known = {}
    for name, text in found.items():
        shown = shown_key(name)
        if name in BROKER_KEYS:
            known[name] = text
        elif name in TOPIC_KEYS:
            _LOGGER.warning(
                "%s: %s is ignored, because a broker ignores this key in its file%s", path, name, _broker_hint(name)
            )
        elif name in REMOVED_KEYS:
            _LOGGER.warning("%s: %s is ignored, because this key has had no effect since Kafka 4.0", path, name)
        elif not is_other_broker_key(name):
            nearest = _nearest(name, [*BROKER_KEYS, *TOPIC_KEYS])
            hint = f"; the nearest known key is {nearest}" if nearest else ""
            _LOGGER.warning("%s: unknown key %s is ignored%s", path, shown, hint)
    try:
        for name, text in known.items():
            _check_given(BROKER_KEYS[name], text, Origin.FILE)
        node_id = stated_node_id(found)
    except SettingsError as error:
        raise SettingsError(error.what, path=str(path), advice=error.advice) from None
    return _ConfigFile(
        known,
        marks,
        node_id,
        quorum_keys_of(found),
        holds_defaults=bool(marks) or not all(map(_is_for_sediment, found)),
        is_zookeeper=is_zookeeper_file(found),
    )


def _is_for_sediment(name: str) -> bool:
    """Return True if a user may have written the key for Sediment, and not copied it from a broker's settings."""
    return name in TOPIC_KEYS if name not in BROKER_KEYS else BROKER_KEYS[name].applies


def _read_sets(sets: Sequence[str]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    for_all: dict[str, str] = {}
    for_topics: dict[str, dict[str, str]] = {}
    for given in sets:
        left, equals, text = given.partition("=")
        if not equals or not left.strip():
            raise SettingsError(
                f"--set {given} has no key=value", advice="write --set key=value or --set topic:key=value"
            )
        topic, colon, name = left.rpartition(":")
        topic, name, text = topic.strip(), name.strip(), text.strip()
        key = _topic_key(topic, name, given) if colon else _any_key(name)
        _check_given(key, text, Origin.SET)
        if not key.applies:
            _LOGGER.warning("--set %s has no effect: this is a key of Kafka, but no command depends on it", given)
        target = for_topics.setdefault(topic, {}) if colon else for_all
        if target.get(name, text) != text:
            prefix = f"{topic}:" if colon else ""
            raise _contradiction(f"{prefix}{name}={target[name]}", f"{prefix}{name}={text}")
        target[name] = text
    for given_keys in (for_all, *for_topics.values()):
        _check_aliases(given_keys)
    return for_all, for_topics


def _any_key(name: str) -> Key:
    key = TOPIC_KEYS.get(name) or BROKER_KEYS.get(name)
    if key is None:
        raise _unknown_key(name, [*TOPIC_KEYS, *BROKER_KEYS], "--set")
    return key


def _topic_key(topic: str, name: str, given: str) -> Key:
    if not is_topic_name(topic):
        raise SettingsError(f"--set {given}: {topic!r} is not a valid topic name", advice="write --set topic:key=value")
    if name not in TOPIC_KEYS and name in BROKER_KEYS:
        own = next((key.name for key in TOPIC_KEYS.values() if name in (b.name for b in key.broker_names)), None)
        raise SettingsError(
            f"--set {given} gives a broker key to one topic",
            advice=f"the topic's key is {own}" if own else f"write --set {name}=… without a topic",
        )
    if name not in TOPIC_KEYS:
        raise _unknown_key(name, list(TOPIC_KEYS), "--set")
    return TOPIC_KEYS[name]


def _unknown_key(name: str, known: Sequence[str], where: str) -> SettingsError:
    if name in REMOVED_KEYS:
        return SettingsError(f"key {name} in {where} has had no effect since Kafka 4.0", advice="leave it out")
    nearest = _nearest(name, known)
    advice = "check the name; conf/sediment.properties of the repository lists the keys"
    if nearest:
        advice = f"the nearest known key is {nearest}"
    return SettingsError(f"unknown key {name!r} in {where}", advice=advice)


def _nearest(name: str, known: Collection[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=_LEAST_LIKENESS)), None)


def _broker_hint(name: str) -> str:
    names = TOPIC_KEYS[name].broker_names
    return f"; the broker's key is {names[0].name}" if names else ""


# ------------------------------------------------------------------------------------------------------ checking values
def parse_value(key: Key, text: str, origin: Origin) -> Value:
    """Parse the value in `text` as Kafka does (ConfigDef.parseType), and check the range of the key."""
    text = text.strip()
    value = read_value(key.type, text)
    if value is None:
        raise _bad_value(key, f"{key.name}={text}", origin)
    _check_range(key, value, f"{key.name}={text}", origin)
    return value


def _check_range(key: Key, value: Value, given: str, origin: Origin) -> None:
    if isinstance(value, int | float):
        low = key.at_least is None or value >= key.at_least
        high = key.at_most is None or value <= key.at_most
        fits = low and high and value not in key.refused
    else:
        fits = not key.one_of or set((value,) if isinstance(value, str) else value) <= set(key.one_of)
    if not fits:
        raise _bad_value(key, given, origin)


def _bad_value(key: Key, given: str, origin: Origin) -> SettingsError:
    where = {Origin.FILE: "--config", Origin.METADATA: "the cluster's metadata"}.get(origin, origin)
    return SettingsError(
        f"{given} in {where} is not a value that Kafka accepts", advice=f"{key.name} takes {key.range_text()}"
    )


def _check_given(key: Key, text: str, origin: Origin) -> None:
    value = parse_value(key, text, origin)
    if key.warn_below is not None and isinstance(value, int) and value < key.warn_below:
        _LOGGER.warning("%s=%s is below Kafka's minimum of %s; accepted", key.name, value, key.warn_below)


def _check_aliases(given: Mapping[str, str]) -> None:
    for key in TOPIC_KEYS.values():
        for alias in key.aliases:
            if key.name in given and alias in given and given[key.name] != given[alias]:
                raise _contradiction(f"{key.name}={given[key.name]}", f"{alias}={given[alias]}")


def _contradiction(one: str, other: str) -> SettingsError:
    return SettingsError(f"{one} and {other} in --set contradict each other", advice="give one of them")


def _check_tiered_storage(values: _Values, topic: str | None) -> None:
    """Check the rules of tiered storage (kafka-log 06 §1)."""
    of_topic = f" of topic {topic}" if topic else ""
    if not values.truth("remote.storage.enable"):
        return
    if COMPACT in values.words("cleanup.policy"):
        raise SettingsError(
            f"remote.storage.enable=true{of_topic} contradicts cleanup.policy="
            f"{','.join(values.words('cleanup.policy'))}: Kafka has no tiered storage for compacted topics",
            advice="change one of them",
        )
    for unit in ("ms", "bytes"):
        local, total = values.whole(f"local.retention.{unit}"), values.whole(f"retention.{unit}")
        limits = total > _NO_RETENTION and local != _SAME_AS_RETENTION
        if limits and (local == _NO_RETENTION or local > total):
            raise SettingsError(
                f"local.retention.{unit}={local}{of_topic} keeps more than retention.{unit}={total}",
                advice=f"give at most {total}, or {_SAME_AS_RETENTION} for the same value",
            )
