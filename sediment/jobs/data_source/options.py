"""Options of one `load`, with the names of `kafka-log` or of Spark's Kafka source."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sediment.jobs.data_source.kafka_options import (
    EARLIEST,
    KAFKA_OPTIONS,
    LATEST,
    KafkaOptions,
    parse_boolean,
    parse_kafka_options,
    refuse_broker_option,
    topics_of_subscribe,
)
from sediment.jobs.data_source.table_options import given_options
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.checkpoints import parse_count
from sediment.segment_io.partition.slices import Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.planning import parse_range
from sediment.segment_io.tables.schema import (
    FAIL,
    ISOLATIONS,
    ON_CORRUPTION,
    READ_UNCOMMITTED,
    REPLICAS,
    SLICED_TABLES,
    TABLES,
    TableRequest,
)

FORMAT = "kafka-log"

_OPTIONS = {
    "path": "a path to read",
    "paths": "paths to read, as a JSON list",
    "what": "name of the table",
    "columns": "names, separated by commas",
    "config": "with what=topics: the broker's server.properties",
    "topics": "names, separated by commas",
    "partitions": "numbers, separated by commas",
    "replicas": "best for one replica of each partition, or all",
    "isolation": "read_uncommitted or read_committed",
    "on_corruption": "fail, skip or rows",
    "offsets": "A:B, from A up to but not including B",
    "timestamps_ms": "A:B, from A up to but not including B",
    "task_bytes": "bytes of segments that one task reads",
    "starting": "start of a new stream: earliest or latest",
    "max_offsets_per_trigger": "maximum number of offsets that a stream reads in one batch",
}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of one `load`; `kafka` contains the options of Spark's Kafka source for which this class has no field."""

    paths: tuple[str, ...]
    request: TableRequest
    task_bytes: int | None
    starting: str
    max_offsets_per_trigger: int | None
    kafka: KafkaOptions = field(default_factory=KafkaOptions)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check and parse every option, except the properties that Spark adds."""
        given = given_options(options)
        for name in given:
            _check_name(name)
        kafka = parse_kafka_options(given)
        offsets, times = (
            parse_range(given.get("offsets"), "offsets"),
            parse_range(given.get("timestamps_ms"), "timestamps_ms"),
        )
        topics = _names(given, "topics")
        request = TableRequest(
            what=given.get("what", "records"),
            columns=_columns(given),
            bounds=Bounds(
                first_offset=offsets[0], end_offset=offsets[1], first_timestamp_ms=times[0], end_timestamp_ms=times[1]
            ),
            isolation=_one_of(given, "isolation", ISOLATIONS, READ_UNCOMMITTED),
            on_corruption=_one_of(given, "on_corruption", ON_CORRUPTION, FAIL),
            topics=topics_of_subscribe(given) if topics is None else frozenset(topics),
            partitions=_numbers(given, "partitions"),
            config=given.get("config"),
            replicas=_one_of(given, "replicas", REPLICAS, None),
        )
        request.selected()
        _check_positions(kafka, request.what)
        return cls(
            paths=_paths(given),
            request=request,
            task_bytes=_positive(given, "task_bytes"),
            starting=_one_of(given, "starting", (EARLIEST, LATEST), EARLIEST),
            max_offsets_per_trigger=_positive(given, "max_offsets_per_trigger")
            or _positive(given, "maxOffsetsPerTrigger"),
            kafka=kafka,
        )

    def selects(self, source: Source) -> bool:
        return self.request.selects(source) and self.kafka.subscription.selects(source.partition)


def _check_name(name: str) -> None:
    if name in _OPTIONS or name in KAFKA_OPTIONS:
        return
    refuse_broker_option(name)
    near = difflib.get_close_matches(name, [*_OPTIONS, *KAFKA_OPTIONS], n=1)
    hint = f"did you mean {KAFKA_OPTIONS.get(near[0], near[0])!r}" if near else f"its options are {', '.join(_OPTIONS)}"
    raise UsageError(f"{FORMAT} has no option {name!r}", advice=hint)


def _check_positions(kafka: KafkaOptions, table: str) -> None:
    positions = kafka.start or kafka.end
    if positions is not None and table not in SLICED_TABLES:
        raise UsageError(
            f"{positions.option} does not apply to table {table!r}",
            advice=f"leave it out, or read {' or '.join(sorted(SLICED_TABLES))}",
        )


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    if "paths" in given:
        try:
            paths = json.loads(given["paths"])
        except (ValueError, RecursionError):
            paths = None
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise UsageError(
                f"paths cannot be {given['paths']!r}", advice='write a JSON list, such as ["/data/a", "/data/b"]'
            )
        return tuple(paths)
    if "path" in given:
        return (given["path"],)
    raise UsageError("no path is given", advice="give a path to load; in SQL, create the table without a column list")


def _columns(given: Mapping[str, str]) -> tuple[str, ...] | None:
    what = given.get("what", "records")
    if parse_boolean(given, "includeHeaders") is not False or what not in TABLES:
        return _names(given, "columns")
    return tuple(column.name for column in TABLES[what] if column.kind != "headers")


def _names(given: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    text = given.get(name)
    return None if text is None else tuple(part.strip() for part in text.split(","))


def _numbers(given: Mapping[str, str], name: str) -> frozenset[int] | None:
    names = _names(given, name)
    try:
        return None if names is None else frozenset(map(int, names))
    except ValueError as error:
        raise UsageError(f"{name} cannot be {given[name]!r}", advice="write numbers, separated by commas") from error


_Default = TypeVar("_Default", str, None)


def _one_of(given: Mapping[str, str], name: str, values: Sequence[str], default: _Default) -> str | _Default:
    value = given.get(name)
    if value is None:
        return default
    if value not in values:
        raise UsageError(f"{name} cannot be {value!r}", advice=f"give one of {', '.join(values)}")
    return value


def _positive(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    number = parse_count(text)
    if not number:
        raise UsageError(f"{name} cannot be {text!r}", advice="give a number above 0")
    return number
