"""The plan of a clone: its topics with ids, configs and partitions, and the partitions that are left out.

source topic  --selected, renamed-->  cloned topic  --each replicated partition-->  cloned partition
a topic of the coordinators     it is cloned if its part was requested; the globs do not apply
a topic not in the metadata     it is cloned only if it is selected by name: a broker would rename it to `-stray`
a topic with tiered segments    only its local segments are cloned, and only with `local_only`
a partition without a replica   it is created empty, so that the topic keeps its number of partitions
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sediment.engine.clone.node_configs import ConfigDifference, cloned_configs
from sediment.engine.clone.options import CloneOptions, Part
from sediment.engine.clone.source import SourceCluster, SourceTopic
from sediment.engine.replicas import Replica
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import (
    INTERNAL_TOPICS,
    METADATA_TOPIC,
    MOST_IMPLIED_PARTITIONS,
    TopicPartition,
    is_topic_name,
)
from sediment.segment_io.internal_topics.coordinator_records import SHARE_GROUP_STATE, TRANSACTION_STATE

NO_REPLICA = "no-replica"
UNKNOWN_TOPIC = "unknown-topic"
TIERED = "tiered"

_TIERED_KEY = "remote.storage.enable"


@dataclass(frozen=True, slots=True)
class ClonedPartition:
    """The log is cut at `until_offset`, or before the first record after `until_ms`; None means no cut."""

    source: TopicPartition
    target: TopicPartition
    replicas: tuple[Replica, ...]
    until_offset: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ClonedTopic:
    """The topic has the partitions 0 to `partition_count` - 1; those that are not in `partitions` are created empty.

    `changes` lists how `configs` differ from the source.
    """

    source_name: str
    name: str
    topic_id: str
    has_source_id: bool
    partition_count: int
    partitions: tuple[ClonedPartition, ...]
    configs: Mapping[str, str]
    changes: tuple[ConfigDifference, ...]

    @property
    def empty_partitions(self) -> tuple[int, ...]:
        present = {each.target.partition for each in self.partitions}
        return tuple(number for number in range(self.partition_count) if number not in present)


@dataclass(frozen=True, slots=True)
class LeftOut:
    partition: TopicPartition
    log_dir: str
    reason_code: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClonePlan:
    """`is_whole` is True if every partition is cloned, and every topic keeps its name and id.

    The coordinators' records are then valid without changes.
    """

    topics: Mapping[str, ClonedTopic]
    left_out: tuple[LeftOut, ...]
    is_whole: bool

    def partitions(self) -> list[ClonedPartition]:
        return [each for topic in self.topics.values() for each in topic.partitions]


def plan_clone(source: SourceCluster, options: CloneOptions, new_topic_id: Callable[[], str]) -> ClonePlan:
    _check_globs(source, options)
    topics: dict[str, ClonedTopic] = {}
    left_out: list[LeftOut] = []
    is_whole = True
    for topic in source.topics.values():
        numbers = _selected(topic, options)
        if not numbers:
            is_whole = is_whole and topic.name in INTERNAL_TOPICS
            continue
        why = _why_left_out(topic, source, options)
        if why is not None:
            left_out += _left_out(topic, numbers, *why)
            is_whole = False
            continue
        _check_count(topic)
        cloned = _cloned(topic, numbers, options, new_topic_id)
        if cloned.name in topics:
            raise UsageError(
                f"two topics of the clone would be named {cloned.name!r}", advice="give another name with --rename"
            )
        topics[cloned.name] = cloned
        if topic.name not in INTERNAL_TOPICS:
            unchanged = cloned.name == topic.name and cloned.has_source_id and not cloned.empty_partitions
            is_whole = is_whole and unchanged
        left_out += _missing(topic, options)
    if not is_whole:
        # Records of share groups refer to topics by id, and cloning does not rewrite these ids.
        topics.pop(SHARE_GROUP_STATE, None)
    _check_ids(topics)
    _check_used(options, topics)
    _check_collisions(options, topics)
    return ClonePlan(topics, tuple(left_out), is_whole)


def _check_count(topic: SourceTopic) -> None:
    implied = topic.partition_count - len(topic.replicas)
    if implied > MOST_IMPLIED_PARTITIONS:
        raise UsageError(
            f"partition {topic.partition_count - 1} of topic {topic.name} implies {implied} partitions that are not in "
            "the directories, which is too many to create",
            advice="move the folder of this partition out of the directory, or leave the topic out",
        )


# ------------------------------------------------------------------------------------------------------------ selection
def _check_globs(source: SourceCluster, options: CloneOptions) -> None:
    for option, globs, names in (
        ("--topic", options.topics, list(source.topics)),
        ("--partition", options.partitions, [str(each) for each in _all_partitions(source)]),
    ):
        for glob in globs:
            if not any(fnmatch.fnmatchcase(name, glob) for name in names):
                raise UsageError(f"{option} {glob!r} matches nothing in the source", advice="check the name")
    for old, new in options.renames.items():
        if not is_topic_name(new) or new == METADATA_TOPIC or {old, new} & INTERNAL_TOPICS:
            raise UsageError(
                f"--rename {old}={new} is not possible",
                advice="use 1 to 249 letters, digits, dots, underscores and hyphens; internal topics keep their names",
            )


def _all_partitions(source: SourceCluster) -> Iterable[TopicPartition]:
    return (TopicPartition(topic.name, number) for topic in source.topics.values() for number in topic.replicas)


def _selected(topic: SourceTopic, options: CloneOptions) -> list[int]:
    if topic.name in INTERNAL_TOPICS:
        part = Part.TRANSACTIONS if topic.name == TRANSACTION_STATE else Part.GROUPS
        return list(topic.replicas) if part in options.parts else []
    if options.topics and not any(fnmatch.fnmatchcase(topic.name, glob) for glob in options.topics):
        return []
    return [number for number in topic.replicas if _is_selected(TopicPartition(topic.name, number), options)]


def _is_selected(partition: TopicPartition, options: CloneOptions) -> bool:
    return not options.partitions or any(fnmatch.fnmatchcase(str(partition), glob) for glob in options.partitions)


def _why_left_out(topic: SourceTopic, source: SourceCluster, options: CloneOptions) -> tuple[str, str] | None:
    if topic.name in INTERNAL_TOPICS:
        return None
    if not source.knows(topic):
        if topic.name in options.topics:
            return None
        return UNKNOWN_TOPIC, f"the cluster has no such topic; to clone it anyway, give --topic {topic.name}"
    if is_tiered(topic.configs or {}) and not options.local_only:
        return TIERED, "older segments are in tiered storage; to clone only the local ones, give --local-only"
    return None


def is_tiered(configs: Mapping[str, str]) -> bool:
    return configs.get(_TIERED_KEY) == "true"


def _left_out(topic: SourceTopic, numbers: Iterable[int], code: str, reason: str) -> list[LeftOut]:
    return [
        LeftOut(TopicPartition(topic.name, number), topic.replicas[number][0].directory.shown, code, reason)
        for number in numbers
    ]


def _missing(topic: SourceTopic, options: CloneOptions) -> list[LeftOut]:
    missing = (
        TopicPartition(topic.name, number) for number in range(topic.partition_count) if number not in topic.replicas
    )
    reason = "no directory of the source contains this partition; the clone creates it empty"
    return [
        LeftOut(each, "", NO_REPLICA, reason)
        for each in missing
        if topic.name in INTERNAL_TOPICS or _is_selected(each, options)
    ]


# --------------------------------------------------------------------------------------------------------------- topics
def _cloned(
    topic: SourceTopic, numbers: Iterable[int], options: CloneOptions, new_topic_id: Callable[[], str]
) -> ClonedTopic:
    name = options.renames.get(topic.name, topic.name)
    configs, changes = cloned_configs(
        topic.name,
        topic.configs,
        keep=Part.CONFIGS in options.parts,
        hold=options.hold,
        local_only=options.local_only,
    )
    return ClonedTopic(
        source_name=topic.name,
        name=name,
        topic_id=topic.topic_id or new_topic_id(),
        has_source_id=topic.topic_id is not None,
        partition_count=topic.partition_count,
        partitions=tuple(_partition(topic, number, name, options) for number in numbers),
        configs=configs,
        changes=changes,
    )


def _partition(topic: SourceTopic, number: int, name: str, options: CloneOptions) -> ClonedPartition:
    source = TopicPartition(topic.name, number)
    until_offset = options.until_offsets.get(source)
    return ClonedPartition(
        source=source,
        target=TopicPartition(name, number),
        replicas=topic.replicas[number],
        until_offset=until_offset,
        until_ms=options.until_ms if until_offset is None else None,
    )


def _check_ids(topics: Mapping[str, ClonedTopic]) -> None:
    names: dict[str, str] = {}
    for topic in topics.values():
        other = names.setdefault(topic.topic_id, topic.name)
        if other != topic.name:
            raise UsageError(
                f"topics {other} and {topic.name} have the same topic id {topic.topic_id}",
                advice="one is a copy of the other; to give it a new id, remove partition.metadata from its folders",
            )


def _check_collisions(options: CloneOptions, topics: Mapping[str, ClonedTopic]) -> None:
    """Source: Topic.hasCollision."""
    for name in sorted(options.renames.values()):
        for other in sorted(topics.keys() - {name}):
            if name.replace(".", "_") == other.replace(".", "_"):
                raise UsageError(
                    f"the names {name!r} and {other!r} collide: Kafka's metrics write dots as underscores",
                    advice="give another name with --rename",
                )


def _check_used(options: CloneOptions, topics: Mapping[str, ClonedTopic]) -> None:
    cloned = {topic.source_name for topic in topics.values()}
    unused = sorted(options.renames.keys() - cloned)
    if unused:
        raise UsageError(f"--rename {unused[0]}=… names no topic of the clone", advice="check the name")
    partitions = {each.source for topic in topics.values() for each in topic.partitions}
    strays = sorted(options.until_offsets.keys() - partitions)
    if strays:
        raise UsageError(f"--until-offset {strays[0]}:… names no partition of the clone", advice="check the name")
