"""The settings of a live server, and the sources whose settings may delete records.

    source                                           strength
    a topic's own configs, in the metadata           strongest
    the hold lines of a clone's server.properties    a `--set` of the same key replaces them
    dynamic configs of the broker, in the metadata
    `--set`, for all topics
    `--config`
    Kafka's defaults                                 weakest; they count only if `--config` is the node's own file

Invariants:
- A key of the broker never replaces a topic's own config.
- The policy and the retention limits of an internal topic come only from the topic's own configs.  Its other configs
  are those of the broker, as in Kafka: the coordinators create their topics without `delete.retention.ms` and without
  compaction lags.
- The file of another node is refused.  A file whose `log.dirs` are other directories deletes nothing.
- A clone with a hold stays on hold until the lines for the hold are removed from its server.properties, or until
`--set` overrides them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.engine.config_definitions import BROKER_KEYS, TOPIC_KEYS, Value
from sediment.engine.log_config import LogConfig
from sediment.jobs.settings.directories import check_node, is_of_other_directories
from sediment.jobs.settings.properties_file import read_properties
from sediment.jobs.settings.resolve import Origin, Settings
from sediment.segment_io.errors import SettingsError
from sediment.segment_io.format.names import INTERNAL_TOPICS, META_PROPERTIES_FILE, SERVER_PROPERTIES_FILE
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_meta_properties

if TYPE_CHECKING:
    from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata

_LOGGER = logging.getLogger(__name__)

_NO_LIMIT = -1
_RETENTION_TIMES = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")  # the first of them applies
_DELETING_KEYS = frozenset(
    {
        "log.cleanup.policy",
        *_RETENTION_TIMES,
        "log.retention.bytes",
        "log.cleaner.delete.retention.ms",
        "log.cleaner.max.compaction.lag.ms",
        "offsets.retention.minutes",
        "producer.id.expiration.ms",
        "transactional.id.expiration.ms",
    }
)


def server_settings(settings: Settings, directories: Sequence[Path], fs: Fs) -> Settings:
    """Return the settings for a live server of `directories`; the `--set` options count as keys of the broker."""
    _check_sets(settings)
    for directory in directories:
        check_node(settings, directory, read_meta_properties(fs, directory / META_PROPERTIES_FILE))
    file = settings.config_file
    if is_of_other_directories(settings, directories, fs):
        _LOGGER.warning("--config names other log.dirs, so the settings in this file that delete records are ignored")
        file = {key: text for key, text in file.items() if key not in _DELETING_KEYS}
        settings = replace(settings, is_broker_file=False)
    all_held = held_keys(settings, directories)
    held = {**_without_keys_of_sets(all_held, settings.sets), **_states(settings.sets, all_held)}
    static = {**_without_keys_of_sets(file, settings.sets), **settings.sets, **held}
    return replace(settings, config_file=static, sets={}, held=frozenset(held))


def _without_keys_of_sets(keys: Mapping[str, str], sets: Mapping[str, str]) -> Mapping[str, str]:
    """Leave out the keys that `--set` replaces: the same keys, and retention times in other units."""
    # Kafka would prefer the key with the smaller unit.
    times = () if sets.keys().isdisjoint(_RETENTION_TIMES) else _RETENTION_TIMES
    replaced = {*sets, *times}
    return {key: text for key, text in keys.items() if key not in replaced}


def with_held_keys(settings: Settings, directories: Sequence[Path]) -> Settings:
    return replace(settings, config_file={**settings.config_file, **held_keys(settings, directories)})


def held_keys(settings: Settings, directories: Sequence[Path]) -> dict[str, str]:
    """Return the keys with which a clone on hold deletes nothing.

    These keys are in the server.properties of one of the directories.
    """
    from sediment.engine.clone.server_properties import HELD  # a read-only server loads no code of clones

    # The keys may also be in `--config`, if it is the file of a clone on hold and contains all of them.
    found = dict(HELD) if _states(settings.config_file, HELD) == HELD else {}
    for directory in directories:
        file = directory / SERVER_PROPERTIES_FILE
        if file.exists():
            found |= _states(read_properties(file), HELD)
    return found


def _states(properties: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the keys in `wanted` that have the same value in `properties`; retention times may have any unit."""
    time = next((properties[key].strip() for key in _RETENTION_TIMES if key in properties), "")
    given = {**properties, **({"log.retention.ms": str(_NO_LIMIT)} if time.startswith("-") else {})}
    return {key: text for key, text in wanted.items() if given.get(key, "").strip() == text}


def config_of_topic(settings: Settings, metadata: ClusterMetadata, topic: str) -> LogConfig:
    config = settings.for_topic(topic)
    if topic not in INTERNAL_TOPICS:
        return config
    own = metadata.topic_configs.get(topic, {})
    policy = config.cleanup_policy if "cleanup.policy" in own else ()
    retention = replace(
        config.retention,
        cleanup_policy=policy,
        retention_ms=config.retention.retention_ms if "retention.ms" in own else _NO_LIMIT,
        retention_bytes=config.retention.retention_bytes if "retention.bytes" in own else _NO_LIMIT,
    )
    return replace(config, compaction=replace(config.compaction, cleanup_policy=policy), retention=retention)


def stated_broker_values(settings: Settings, metadata: ClusterMetadata, node_id: int) -> Mapping[str, Value]:
    of_node = settings.of_node(metadata, node_id)
    found: dict[str, Value] = {}
    for name in BROKER_KEYS:
        try:
            if of_node.origin("", name) != Origin.DEFAULT:
                value = of_node.broker_value(name)
                if value is not None:
                    found[name] = value
        except SettingsError as error:
            _LOGGER.warning("%s is ignored: %s", name, error.what)
    return found


def _check_sets(settings: Settings) -> None:
    for topic, keys in settings.topic_sets.items():
        key = next(iter(keys))
        raise SettingsError(
            f"--set {topic}:{key}=… is a config of a topic, but a live server reads topic configs only from the "
            "metadata",
            advice=f"change it with kafka-configs.sh --alter --entity-type topics --entity-name {topic}",
        )
    for key in settings.sets:
        if key in TOPIC_KEYS and key not in BROKER_KEYS:
            names = TOPIC_KEYS[key].broker_names
            raise SettingsError(
                f"--set {key}=… is a config of topics, but a live server reads topic configs only from the metadata",
                advice=f"the broker's key is {names[0].name}" if names else "change it with kafka-configs.sh",
            )
