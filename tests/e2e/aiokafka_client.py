"""aiokafka as a consumer of whole partitions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

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
                found[partitions[each]] += [
                    Seen(record.offset, record.key, record.value, tuple(record.headers), time_of(record.timestamp))
                    for record in records
                ]
    finally:
        await consumer.stop()
    return {name: tuple(records) for name, records in found.items()}
