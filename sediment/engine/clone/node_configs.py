"""The topic configs of a clone: the source's configs, with the changes in this table.

    change      keys                                    reason
    single      min.insync.replicas above 1 becomes 1   a single node would reject producers with acks=all
    local       remote.*, local.retention.* left out    the clone has no tiered storage
    Kafka 4     segment.bytes becomes at least 1 MiB    a broker of Kafka 4 does not start with a smaller value
                keys that Kafka 4 has removed left out  Kafka 4 refuses to alter a topic that has one of them
    hold        retention.ms, retention.bytes are -1    a broker that starts on the clone must keep its old records

If no metadata log contains the configs of a topic, the topic is always held, because the default retention would delete
its records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sediment.engine.config_definitions import MIN_SEGMENT_BYTES, REMOVED_KEYS
from sediment.segment_io.format.names import INTERNAL_TOPICS
from sediment.segment_io.internal_topics.coordinator_records import TRANSACTION_STATE

UNLIMITED = "-1"

_HELD_KEYS = ("retention.ms", "retention.bytes")
_MIN_ISR = "min.insync.replicas"
_SEGMENT_BYTES = "segment.bytes"
_TIERED_PREFIXES = ("remote.", "local.retention.")
# The configs that a broker gives its internal topics (GroupCoordinatorService, TransactionStateManager).
_INTERNAL = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
_TRANSACTION_STATE = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",
    "segment.bytes": "104857600",
    "unclean.leader.election.enable": "false",
}


@dataclass(frozen=True, slots=True)
class ConfigDifference:
    key: str
    original: str | None
    value: str | None
    is_held: bool = False


def cloned_configs(
    topic: str, configs: Mapping[str, str] | None, *, keep: bool, hold: bool, local_only: bool
) -> tuple[dict[str, str], tuple[ConfigDifference, ...]]:
    """`configs` is None if the configs of the source are unknown.

    Without `keep`, only Kafka's internal topics keep their configs.
    """
    is_internal = topic in INTERNAL_TOPICS
    original = dict(configs or {}) if keep or is_internal else {}
    if is_internal and not original:
        original = dict(_TRANSACTION_STATE if topic == TRANSACTION_STATE else _INTERNAL)
    changes = []
    if _number(original.get(_MIN_ISR), 1) > 1:
        changes.append(ConfigDifference(_MIN_ISR, original[_MIN_ISR], "1"))
    if _number(original.get(_SEGMENT_BYTES), MIN_SEGMENT_BYTES) < MIN_SEGMENT_BYTES:
        changes.append(ConfigDifference(_SEGMENT_BYTES, original[_SEGMENT_BYTES], str(MIN_SEGMENT_BYTES)))
    changes += [ConfigDifference(key, original[key], None) for key in original if key in REMOVED_KEYS]
    if local_only:
        changes += [ConfigDifference(key, original[key], None) for key in original if key.startswith(_TIERED_PREFIXES)]
    if not is_internal and (hold or configs is None):
        changes += [
            ConfigDifference(key, original.get(key), UNLIMITED, is_held=True)
            for key in _HELD_KEYS
            if original.get(key) != UNLIMITED
        ]
    replaced = {change.key: change.value for change in changes}
    values = {key: value for key, value in {**original, **replaced}.items() if value is not None}
    return values, tuple(changes)


def restore_commands(topic: str, changes: Iterable[ConfigDifference], bootstrap: str) -> tuple[str, ...]:
    held = [change for change in changes if change.is_held]
    deleted = [change.key for change in held if change.original is None]
    added = [f"{change.key}={change.original}" for change in held if change.original is not None]
    what = [("--delete-config", deleted), ("--add-config", added)]
    return tuple(
        f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics --entity-name {topic} "
        f"{option} {','.join(values)}"
        for option, values in what
        if values
    )


def _number(text: str | None, unknown: int) -> int:
    try:
        return unknown if text is None else int(text)
    except ValueError:
        return unknown
