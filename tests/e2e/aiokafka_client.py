"""aiokafka as a consumer of whole partitions, and from single offsets and times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.consumers import WAIT_SECONDS, Records, Seen, split, time_of


def aiokafka_records(bootstrap: str, names: Sequence[str], isolation: str, until: Mapping[str, int]) -> Records:
    """Return the records of each partition from its start to the offset `until`."""
    return asyncio.run(_records(bootstrap, names, isolation, until))


async def _records(bootstrap: str, names: Sequence[str], isolation: str, until: Mapping[str, int]) -> Records:
    partitions = {TopicPartition(*split(name)): name for name in names}
    found: dict[str, list[Seen]] = {name: [] for name in names}
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign(list(partitions))
        await consumer.seek_to_beginning(*partitions)
        deadline = time.monotonic() + WAIT_SECONDS
        while any([await consumer.position(each) < until[name] for each, name in partitions.items()]):
            assert time.monotonic() < deadline
            for each, records in (await consumer.getmany(timeout_ms=500)).items():
                found[partitions[each]] += map(_seen, records)
    finally:
        await consumer.stop()
    return {name: tuple(records) for name, records in found.items()}


def aiokafka_seeks(
    bootstrap: str, isolation: str, choices: Sequence[tuple[str, int]], ends: Mapping[str, int], count: int
) -> list[tuple[Seen, ...]]:
    """Return the first `count` records from each choice on, a partition and an offset, but none from `ends` on."""
    return asyncio.run(_seeks(bootstrap, isolation, choices, ends, count))


async def _seeks(
    bootstrap: str, isolation: str, choices: Sequence[tuple[str, int]], ends: Mapping[str, int], count: int
) -> list[tuple[Seen, ...]]:
    found: list[tuple[Seen, ...]] = []
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation, enable_auto_commit=False)
    await consumer.start()
    try:
        for name, offset in choices:
            partition, records = TopicPartition(*split(name)), []
            consumer.assign([partition])
            consumer.seek(partition, offset)
            deadline = time.monotonic() + WAIT_SECONDS
            while len(records) < count and await consumer.position(partition) < ends[name]:
                assert time.monotonic() < deadline
                for some in (await consumer.getmany(timeout_ms=500, max_records=count)).values():
                    records += map(_seen, some)
            found.append(tuple(records[:count]))
    finally:
        await consumer.stop()
    return found


def aiokafka_offsets_of_times(bootstrap: str, choices: Sequence[tuple[str, int]]) -> list[tuple[int, int] | None]:
    """Return (offset, timestamp) of the first record at or after each choice, a partition and a time in ms."""
    return asyncio.run(_offsets_of_times(bootstrap, choices))


async def _offsets_of_times(bootstrap: str, choices: Sequence[tuple[str, int]]) -> list[tuple[int, int] | None]:
    found: list[tuple[int, int] | None] = []
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        for name, time_ms in choices:
            partition = TopicPartition(*split(name))
            answer = (await consumer.offsets_for_times({partition: time_ms}))[partition]
            found.append(None if answer is None else (answer.offset, answer.timestamp))
    finally:
        await consumer.stop()
    return found


def _seen(record: Any) -> Seen:
    return Seen(record.offset, record.key, record.value, tuple(record.headers), time_of(record.timestamp))
