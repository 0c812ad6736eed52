"""Speed of the protocol's codec, compared with kio on the same bytes in the same run.

Each time is the shortest of many short repetitions, so that other work on the machine has little effect.
"""

from __future__ import annotations

import io
import sys
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from rich.console import Console
from rich.table import Table

from sediment.segment_io.protocol import messages as m

TOPIC_ID = UUID(int=1 << 100)
CALLS = 100
REPETITIONS = 300


@dataclass(frozen=True, slots=True)
class Case:
    """A message in one version; a request is decoded, and a response is encoded."""

    name: str
    message: Any
    version: int
    decodes: bool

    def ours(self) -> Callable[[], object]:
        """Return the call that is timed."""
        frame = memoryview(self.message.to_bytes(self.version))
        if self.decodes:
            return lambda: type(self.message).decode(frame, self.version)
        return lambda: self.message.encode(self.version)

    def kio(self) -> Callable[[], object]:
        """Return the call of kio that does the same."""
        frame = self.message.to_bytes(self.version)
        load: Callable[[int, int], Any] = load_request_schema if self.decodes else load_response_schema
        entity = load(self.message.API_KEY, self.version)
        read = entity_reader(entity)
        if self.decodes:
            return lambda: read(frame, 0)
        message, _ = read(frame, 0)
        write = entity_writer(entity)
        return lambda: write(io.BytesIO(), message)


def cases() -> Iterator[Case]:
    """Yield the messages that a broker decodes and encodes most."""
    yield Case("Produce request 11, 1 x 16 kB", produce(11, 1, 16_384), 11, True)
    yield Case("Produce request 11, 1 x 1 MB", produce(11, 1, 1 << 20), 11, True)
    yield Case("Produce request 13, 12 x 16 kB", produce(13, 12, 16_384), 13, True)
    for partitions in (1, 100):
        yield Case(f"Fetch request 17, {partitions} partitions", fetch(partitions), 17, True)
    yield Case("Fetch response 17, 1 x 1 MB", fetched(17, 1, 1 << 20), 17, False)
    yield Case("Fetch response 12, 12 x 64 kB", fetched(12, 12, 1 << 16), 12, False)
    for topics in (1, 1000):
        yield Case(f"Metadata response 13, {topics} x 3 partitions", metadata(topics), 13, False)
    api_keys = [m.ApiVersionsResponse.ApiVersion(api_key=key, max_version=9) for key in range(60)]
    yield Case("ApiVersions response 4, 60 keys", m.ApiVersionsResponse(api_keys=api_keys), 4, False)


def produce(version: int, partitions: int, size_bytes: int) -> Any:
    """Return a Produce request with `size_bytes` for each partition."""
    request = m.ProduceRequest
    data = [request.PartitionProduceData(index=i, records=bytes(size_bytes)) for i in range(partitions)]
    return request(
        acks=-1, timeout_ms=30_000, topic_data=[request.TopicProduceData(**topic(version), partition_data=data)]
    )


def topic(version: int) -> dict[str, Any]:
    """Return the topic by name, or by id from version 13 on."""
    return {"topic_id": TOPIC_ID} if version >= 13 else {"name": "orders"}


def fetch(partitions: int) -> Any:
    """Return a Fetch request for partitions of one topic."""
    request = m.FetchRequest
    asked = [
        request.FetchPartition(partition=i, fetch_offset=i, partition_max_bytes=1 << 20) for i in range(partitions)
    ]
    return request(max_wait_ms=500, min_bytes=1, topics=[request.FetchTopic(topic_id=TOPIC_ID, partitions=asked)])


def fetched(version: int, partitions: int, size_bytes: int) -> Any:
    """Return a Fetch response with `size_bytes` for each partition."""
    response = m.FetchResponse
    found = [
        response.PartitionData(partition_index=i, high_watermark=9, records=bytes(size_bytes))
        for i in range(partitions)
    ]
    by = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "orders"}
    return response(responses=[response.FetchableTopicResponse(**by, partitions=found)])


def metadata(topics: int) -> Any:
    """Return a Metadata response with three partitions for each topic."""
    response = m.MetadataResponse
    partitions = [
        response.MetadataResponsePartition(partition_index=i, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3])
        for i in range(3)
    ]
    broker = response.MetadataResponseBroker(node_id=1, host="localhost", port=9092)
    listed = [
        response.MetadataResponseTopic(name=f"topic-{i}", topic_id=TOPIC_ID, partitions=partitions)
        for i in range(topics)
    ]
    return response(brokers=[broker], cluster_id="cluster", controller_id=1, topics=listed)


def least_us(call: Callable[[], object]) -> float:
    """Return the microseconds of one call."""
    started = timeit.timeit(call, number=3) / 3
    calls = max(1, min(CALLS, int(0.005 / started)))
    repetitions = max(10, min(REPETITIONS, int(2 / (started * calls))))
    return min(timeit.repeat(call, number=calls, repeat=repetitions)) / calls * 1e6


def main() -> None:
    """Print a row for each case."""
    table = Table("requests decoded, responses encoded", "us", "us, kio", "ratio")
    for case in cases():
        ours, kio = least_us(case.ours()), least_us(case.kio())
        table.add_row(case.name, f"{ours:.1f}", f"{kio:.1f}", f"{ours / kio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
