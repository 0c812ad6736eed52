"""Everything that consumers see of a server that speaks Kafka's protocol: three clients that share no code.

Partitions are named `topic-N`.  Every function starts its own client and closes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import confluent_kafka as confluent
from kafka import KafkaConsumer
from kafka import TopicPartition as Partition

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
ISOLATIONS = (COMMITTED, UNCOMMITTED)
WAIT_SECONDS = 60.0
_NOT_READY = (
    confluent.KafkaError.NOT_LEADER_FOR_PARTITION,
    confluent.KafkaError.LEADER_NOT_AVAILABLE,
    confluent.KafkaError.NOT_COORDINATOR,
    confluent.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    confluent.KafkaError.COORDINATOR_NOT_AVAILABLE,
)
_NO_TIMESTAMP = -1
_CHUNK = 2000
_POLL_SECONDS = 0.05
_FETCH_WAIT_MS = 20  # a consumer sees the end of a partition only after an empty fetch

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a consumer gets it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


Records = dict[str, tuple[Seen, ...]]


def differing(found: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    """Return the names of partitions with different values; pytest would print all their records."""
    return sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))


def split(name: str) -> tuple[str, int]:
    """Return topic and number of a partition."""
    topic, _, partition = name.rpartition("-")
    return topic, int(partition)


# ---------------------------------------------------------------------------------------------------------- librdkafka
@contextmanager
def confluent_consumer(bootstrap: str, **options: object) -> Iterator[confluent.Consumer]:
    """Yield a consumer that commits nothing by itself and reports the ends of partitions."""
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "look",
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "check.crcs": "true",
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            **{name.replace("_", "."): value for name, value in options.items()},
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def confluent_records(
    bootstrap: str, names: Sequence[str], isolation: str, *, starts: Mapping[str, int] | None = None, count: int = -1
) -> Records:
    """Return the records of each partition from its start, or from `starts`; at most `count` of each unless -1."""
    found: dict[str, list[Seen]] = {name: [] for name in names}
    waiting, deadline = set(names), time.monotonic() + WAIT_SECONDS
    with confluent_consumer(bootstrap, isolation_level=isolation) as consumer:
        consumer.assign(
            [
                confluent.TopicPartition(*split(name), (starts or {}).get(name, confluent.OFFSET_BEGINNING))
                for name in names
            ]
        )
        while waiting:
            # The call returns when it has so many, or at its end.
            messages = consumer.consume(_CHUNK, _POLL_SECONDS)
            deadline = time.monotonic() + WAIT_SECONDS if messages else deadline
            assert time.monotonic() < deadline, f"nothing more comes of {sorted(waiting)[:5]}"
            for message in messages:
                name = f"{message.topic()}-{message.partition()}"
                error = message.error()
                if error is None:
                    found[name].append(_of_confluent(message))
                else:
                    assert error.code() == confluent.KafkaError._PARTITION_EOF, error
                if error is not None or len(found[name]) == count:
                    waiting.discard(name)
    return {name: tuple(records if count < 0 else records[:count]) for name, records in found.items()}


def _of_confluent(message: Any) -> Seen:
    kind, timestamp_ms = message.timestamp()
    return Seen(
        message.offset(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        _NO_TIMESTAMP if kind == confluent.TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
    )


def watermarks(bootstrap: str, names: Sequence[str], isolation: str) -> dict[str, tuple[int, int]]:
    """Return (log start, high watermark or last stable offset) of each partition."""
    with confluent_consumer(bootstrap, isolation_level=isolation) as consumer:
        return {
            name: _once_it_is_ready(
                lambda name=name: consumer.get_watermark_offsets(confluent.TopicPartition(*split(name)), WAIT_SECONDS)
            )
            for name in names
        }


def ends(bootstrap: str, names: Sequence[str]) -> dict[str, tuple[int, int, int]]:
    """Return (log start, high watermark, last stable offset) of each partition."""
    high, stable = (watermarks(bootstrap, names, isolation) for isolation in (UNCOMMITTED, COMMITTED))
    return {name: (*high[name], stable[name][1]) for name in names}


def offsets_of_times(bootstrap: str, times: Mapping[str, int]) -> dict[str, int]:
    """Return the first offset of each partition at or after a time in ms, -1 for none."""
    with confluent_consumer(bootstrap) as consumer:
        wanted = [confluent.TopicPartition(*split(name), time_ms) for name, time_ms in times.items()]
        return {
            f"{each.topic}-{each.partition}": each.offset for each in consumer.offsets_for_times(wanted, WAIT_SECONDS)
        }


def committed_offsets(bootstrap: str, group: str, names: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return the committed offset and metadata of each partition."""
    with confluent_consumer(bootstrap, group_id=group) as consumer:
        wanted = [confluent.TopicPartition(*split(name)) for name in names]
        return {
            f"{each.topic}-{each.partition}": (each.offset, each.metadata)
            for each in _once_it_is_ready(lambda: consumer.committed(wanted, WAIT_SECONDS))
        }


def commit_offsets(bootstrap: str, group: str, offsets: Mapping[str, int], metadata: str = "") -> None:
    """Commit an offset of each partition for a group without members."""
    positions = [confluent.TopicPartition(*split(name), offset, metadata=metadata) for name, offset in offsets.items()]
    with confluent_consumer(bootstrap, group_id=group) as consumer:
        _once_it_is_ready(lambda: consumer.commit(offsets=positions, asynchronous=False))


def _once_it_is_ready(ask: Callable[[], _Found]) -> _Found:
    """Return the answer; ask again while there is no leader or coordinator yet, just after a start."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return ask()
        except confluent.KafkaException as error:
            if error.args[0].code() not in _NOT_READY or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


# -------------------------------------------------------------------------------------------------------- kafka-python
def kafka_python_records(bootstrap: str, names: Sequence[str], isolation: str, until: Mapping[str, int]) -> Records:
    """Return the records of each partition from its start to the offset `until`."""
    partitions = {Partition(*split(name)): name for name in names}
    found: dict[str, list[Seen]] = {name: [] for name in names}
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation,
        enable_auto_commit=False,
        fetch_max_wait_ms=_FETCH_WAIT_MS,
    )
    with closing(consumer):
        consumer.assign(list(partitions))
        consumer.seek_to_beginning(*partitions)
        deadline = time.monotonic() + WAIT_SECONDS
        while any(consumer.position(each) < until[name] for each, name in partitions.items()):
            assert time.monotonic() < deadline
            for each, records in consumer.poll(timeout_ms=500, max_records=_CHUNK).items():
                found[partitions[each]] += [
                    Seen(record.offset, record.key, record.value, tuple(record.headers), time_of(record.timestamp))
                    for record in records
                ]
    return {name: tuple(records) for name, records in found.items()}


def time_of(timestamp_ms: int | None) -> int:
    """Return the timestamp of a record; messages of magic 0 have none."""
    return _NO_TIMESTAMP if timestamp_ms is None else timestamp_ms


def kafka_python_offsets_of_times(bootstrap: str, times: Mapping[str, int]) -> dict[str, tuple[int, int] | None]:
    """Return (offset, timestamp) of the first record of each partition at or after a time in ms, None for none."""
    with closing(KafkaConsumer(bootstrap_servers=bootstrap)) as consumer:
        answers = consumer.offsets_for_times({Partition(*split(name)): time_ms for name, time_ms in times.items()})
    return {
        f"{each.topic}-{each.partition}": None if answer is None else (answer.offset, answer.timestamp)
        for each, answer in answers.items()
    }
