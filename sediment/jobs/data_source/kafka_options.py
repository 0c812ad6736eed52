"""Options of `kafka-log` with the same names and meanings as in Spark's Kafka source.

* subscribe, subscribePattern and assign select the partitions: `Subscription`.
* startingTimestamp, startingOffsetsByTimestamp and startingOffsets set where they start: `Positions`.  The first one
  that is given applies.
* endingTimestamp, endingOffsetsByTimestamp and endingOffsets set where a batch query ends.  Here,
  too, the first one that is given applies.

Source: Spark's guide "Structured Streaming + Kafka Integration", and `KafkaSourceProvider`, `JsonUtils`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.checkpoints import parse_count
from sediment.segment_io.format.names import TopicPartition

EARLIEST = "earliest"
LATEST = "latest"

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1

STRATEGY = "startingOffsetsByTimestampStrategy"

_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_STARTS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")

KAFKA_OPTIONS: Mapping[str, str] = {
    name.lower(): name
    for name in (
        *_SUBSCRIPTIONS,
        *_STARTS,
        *_ENDS,
        STRATEGY,
        "maxOffsetsPerTrigger",
        "failOnDataLoss",
        "includeHeaders",
    )
}
"""The names, keyed by their lower-case forms, because Spark passes names in lower case."""

_OWN_NAMES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_SUBSCRIPTIONS, ("topics", "partitions")),
    **dict.fromkeys((*_STARTS, *_ENDS), ("offsets", "timestamps_ms", "starting")),
    "maxOffsetsPerTrigger": ("max_offsets_per_trigger",),
    "includeHeaders": ("columns",),
}

_REFUSED: Mapping[str, str] = {
    "kafka.isolation.level": "give isolation instead",
    "minpartitions": "give task_bytes instead",
    "maxrecordsperpartition": "give task_bytes instead",
    "minoffsetspertrigger": "set the trigger interval of the query instead",
    "maxtriggerdelay": "set the trigger interval of the query instead",
}
_OF_A_BROKER = ("kafka.", "kafkaconsumer.", "fetchoffset.", "groupidprefix")


# --------------------------------------------------------------------------------------------------------------- values
@dataclass(frozen=True, slots=True)
class Subscription:
    """Partitions to read: those in `assigned`, those of every topic whose whole name matches `pattern`, or all."""

    pattern: re.Pattern[str] | None = None
    assigned: frozenset[TopicPartition] | None = None

    def selects(self, partition: TopicPartition) -> bool:
        if self.pattern is not None:
            return self.pattern.fullmatch(partition.topic) is not None
        return self.assigned is None or partition in self.assigned


@dataclass(frozen=True, slots=True)
class Positions:
    """Start or end positions of partitions: offsets, or timestamps in ms if `are_times` is True.

    `same` applies to all partitions; without `same`, `by_partition` must name every partition.  An offset may be
    EARLIEST_OFFSET or LATEST_OFFSET.
    """

    option: str
    are_times: bool
    same: int | None
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)

    def of(self, partition: TopicPartition) -> int:
        return self.by_partition[partition] if self.same is None else self.same

    def check_covers(self, partitions: Collection[TopicPartition]) -> None:
        if self.same is not None:
            return
        missing, foreign = set(partitions) - self.by_partition.keys(), self.by_partition.keys() - set(partitions)
        if missing:
            raise UsageError(
                f"{self.option} does not name partition {min(missing)}", advice="name every partition that is read"
            )
        if foreign:
            raise UsageError(f"{self.option} names partition {min(foreign)}, which is not read", advice="leave it out")


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The options that the user gave; without any, a query reads everything in the files.

    If no record has the starting timestamp or a later one, the query fails.  With `is_latest_without_record`, a
    partition without such a record starts at its end instead.
    """

    subscription: Subscription = Subscription()
    start: Positions | None = None
    end: Positions | None = None
    is_latest_without_record: bool = False
    fails_on_data_loss: bool = False

    @property
    def can_be_batch(self) -> bool:
        start = self.start
        return start is None or start.are_times or LATEST_OFFSET not in (start.same, *start.by_partition.values())

    def check_batch(self) -> None:
        if self.start is not None and not self.can_be_batch:
            raise UsageError(
                f"{self.start.option} cannot be latest in a batch query",
                advice="give earliest, an offset or a timestamp",
            )

    def check_stream(self) -> None:
        if self.end is not None:
            raise UsageError(f"{self.end.option} cannot be given to a stream", advice="leave it out, or read a batch")


# -------------------------------------------------------------------------------------------------------------- parsing
def parse_kafka_options(given: Mapping[str, str]) -> KafkaOptions:
    """Parse the options of `given` (keys in lower case), except options for which `kafka-log` has its own names."""
    names = [KAFKA_OPTIONS[name] for name in given if name in KAFKA_OPTIONS]
    for name in names:
        own = next((own for own in _OWN_NAMES.get(name, ()) if own in given), None)
        if own is not None:
            raise UsageError(f"{name} and {own} exclude each other", advice="give one of them")
    subscriptions = [name for name in _SUBSCRIPTIONS if name in names]
    if len(subscriptions) > 1:
        raise UsageError(f"{' and '.join(subscriptions)} exclude each other", advice="give one of them")
    return KafkaOptions(
        subscription=_subscription(given),
        start=_positions(given, _STARTS, {EARLIEST: EARLIEST_OFFSET, LATEST: LATEST_OFFSET}),
        end=_positions(given, _ENDS, {LATEST: LATEST_OFFSET}),
        is_latest_without_record=_is_latest_without_record(given),
        fails_on_data_loss=bool(parse_boolean(given, "failOnDataLoss")),
    )


def refuse_broker_option(name: str) -> None:
    if name in _REFUSED:
        raise UsageError(f"kafka-log has no option {name!r}", advice=_REFUSED[name])
    if name.startswith(_OF_A_BROKER):
        raise UsageError(
            f"kafka-log has no option {name!r}",
            advice="leave the option out: kafka-log reads files and needs no broker",
        )


def topics_of_subscribe(given: Mapping[str, str]) -> frozenset[str] | None:
    text = given.get("subscribe")
    if text is None:
        return None
    topics = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not topics:
        raise UsageError(f"subscribe cannot be {text!r}", advice="name a topic, or leave it out to read all topics")
    return topics


def parse_boolean(given: Mapping[str, str], name: str) -> bool | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if text.lower() not in ("true", "false"):
        raise UsageError(f"{name} cannot be {text!r}", advice="give true or false")
    return text.lower() == "true"


def _is_latest_without_record(given: Mapping[str, str]) -> bool:
    strategy = given.get(STRATEGY.lower(), "error").lower()
    if strategy not in ("error", LATEST):
        raise UsageError(f"{STRATEGY} cannot be {strategy!r}", advice=f"give error or {LATEST}")
    return strategy == LATEST


def _subscription(given: Mapping[str, str]) -> Subscription:
    pattern, assign = given.get("subscribepattern"), given.get("assign")
    if pattern is not None:
        try:
            return Subscription(pattern=re.compile(pattern))
        except re.error as error:
            raise UsageError(
                f"subscribePattern {pattern!r} is not a regular expression", advice="correct it"
            ) from error
    if assign is not None:
        return Subscription(assigned=_assigned(assign))
    return Subscription()


def _assigned(text: str) -> frozenset[TopicPartition]:
    found = _json_object("assign", text, _ASSIGN_EXAMPLE)
    if not all(isinstance(each, list) and all(_is_number(number) for number in each) for each in found.values()):
        raise _not_json("assign", text, _ASSIGN_EXAMPLE)
    assigned = frozenset(TopicPartition(topic, number) for topic, numbers in found.items() for number in numbers)
    if not assigned:
        raise UsageError(
            f"assign cannot be {text!r}", advice="name a partition, or leave it out to read all partitions"
        )
    return assigned


_ASSIGN_EXAMPLE = '{"orders": [0, 1]}'
_POSITIONS_EXAMPLE = '{"orders": {"0": 23, "1": 42}}'


def _positions(given: Mapping[str, str], options: tuple[str, ...], words: Mapping[str, int]) -> Positions | None:
    option = next((name for name in options if name.lower() in given), None)
    if option is None:
        return None
    text = given[option.lower()].strip()
    if option.endswith("Timestamp") and "By" not in option:
        time_ms = parse_count(text)
        if time_ms is None:
            raise UsageError(f"{option} cannot be {text!r}", advice="give a time in ms since 1970")
        return Positions(option, True, time_ms)
    are_times = option.endswith("ByTimestamp")
    if not are_times and text.lower() in words:
        return Positions(option, False, words[text.lower()])
    by_partition = _by_partition(option, text)
    least = 0 if are_times else min(words.values())
    for partition, position in by_partition.items():
        if position < least:
            raise UsageError(f"{option} cannot be {position} for {partition}", advice=f"give {least} or more")
    return Positions(option, are_times, None, by_partition)


def _by_partition(option: str, text: str) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, positions in _json_object(option, text, _POSITIONS_EXAMPLE).items():
        if not isinstance(positions, dict):
            raise _not_json(option, text, _POSITIONS_EXAMPLE)
        for number, position in positions.items():
            of_partition = parse_count(number)
            if of_partition is None or not _is_number(position):
                raise _not_json(option, text, _POSITIONS_EXAMPLE)
            found[TopicPartition(topic, of_partition)] = position
    return found


def _json_object(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _not_json(option, text, example) from error
    if not isinstance(found, dict):
        raise _not_json(option, text, example)
    return found


def _not_json(option: str, text: str, example: str) -> UsageError:
    return UsageError(f"{option} cannot be {text!r}", advice=f"write it as {example}")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
