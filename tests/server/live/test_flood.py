"""A flood: batches that expand to hundreds of megabytes, clients that read nothing, and one ordinary client.

The figure is the longest time that the ordinary client waits for a response.  SEDIMENT_FLOOD=whole makes the flood
large: 24 batches of 30 million records or of 250 MiB, and 300 clients that do not read.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from tests.engine.large_batches import ZSTD, bomb, encoded, large_batch
from tests.engine.live_logs import batch
from tests.served import Served, serving
from tests.server.live.nodes import new_node, produce, produce_request
from tests.server.network.listeners import Client, frame

IS_WHOLE = os.environ.get("SEDIMENT_FLOOD") == "whole"
BATCHES, SLOW_READERS = (24, 300) if IS_WHOLE else (8, 100)
RECORDS, BOMB_BYTES = (30_000_000, 250 << 20) if IS_WHOLE else (3_000_000, 50 << 20)

LONGEST_WAIT_SECONDS = 5.0
"""This bound is for an overloaded machine."""

MOST_RESIDENT_BYTES = 1500 << 20


def peak_bytes(served: Served) -> int:
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) << 10


def create_topic(client: Client, name: str, **configs: str) -> None:
    request = m.CreateTopicsRequest
    topic = request.CreatableTopic(
        name=name,
        num_partitions=1,
        replication_factor=1,
        configs=[
            request.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
        ],
    )
    (created,) = client.ask(request(timeout_ms=30_000, topics=[topic]), 7).topics
    assert created.error_code == 0, created


def fetch_of(topic: str) -> Any:
    request = m.FetchRequest
    partition = request.FetchPartition(fetch_offset=0, partition_max_bytes=1 << 30)
    return request(max_wait_ms=0, max_bytes=1 << 30, topics=[request.FetchTopic(topic=topic, partitions=[partition])])


@contextmanager
def slow_readers(port: int) -> Iterator[None]:
    """Connect clients that ask for large responses, some from files and some from memory, and read nothing."""
    unknown = m.DescribeGroupsRequest(groups=[f"{'g' * 60}{number}" for number in range(20_000)])
    sent = [frame(fetch_of("read"), 12, 1), frame(unknown, 5, 1)]
    with ExitStack() as opened:
        for number in range(SLOW_READERS):
            reader = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            reader.sendall(sent[number % 10 == 0])
        yield


def longest_waits(port: int, is_over: Callable[[], bool]) -> dict[str, float]:
    """Let an ordinary client work until the flood is over; return the longest wait for each kind of its requests."""
    lookup = m.ListOffsetsRequest
    partition = lookup.ListOffsetsPartition(partition_index=1, timestamp=1)
    asked: dict[str, Callable[[Client], Any]] = {
        "metadata": lambda client: client.ask(m.MetadataRequest(topics=None), 12),
        "produce": lambda client: produce(client, batch(), number=1, version=12),
        "compressed produce": lambda client: produce(client, batch(codec=ZSTD), number=1, version=12),
        "look-up": lambda client: client.ask(
            lookup(replica_id=-1, topics=[lookup.ListOffsetsTopic(name="t", partitions=[partition])]), 8
        ),
    }
    waits = dict.fromkeys([*asked, "connect"], 0.0)
    with Client.to(port) as client:
        while not is_over():
            for name, ask in asked.items():
                started = time.monotonic()
                ask(client)
                waits[name] = max(waits[name], time.monotonic() - started)
            started = time.monotonic()
            with Client.to(port) as other:
                other.ask(m.MetadataRequest(topics=None), 12)
            waits["connect"] = max(waits["connect"], time.monotonic() - started)
            time.sleep(0.01)
    return waits


def test_an_ordinary_client_is_served_during_a_flood(tmp_path: Path) -> None:
    keyless = frame(produce_request(large_batch(encoded(None) * RECORDS, RECORDS), topic="compacted", version=7), 7, 1)
    expanding = frame(produce_request(bomb(BOMB_BYTES), version=7), 7, 1)
    codes: list[ErrorCode] = []

    def send(port: int, request: bytes) -> None:
        with Client.to(port, 600) as client:
            client.socket.sendall(request)
            (topic,) = client.receive(m.ProduceRequest.API_KEY, 7)[1].responses
            codes.append(ErrorCode(topic.partition_responses[0].error_code))

    with serving(new_node(tmp_path / "data", {"t": 2})) as served:
        port = int(served.bootstrap.rpartition(":")[2])
        with Client.to(port) as client:
            create_topic(client, "compacted", cleanup_policy="compact")
            create_topic(client, "read", max_message_bytes="20000000")
            for _ in range(5):
                assert produce(client, bomb(10 << 20, codec=0), topic="read", version=7).error_code == 0
        with slow_readers(port):
            flood = [
                threading.Thread(target=send, args=(port, (expanding, keyless)[number % 2]))
                for number in range(BATCHES)
            ]
            for thread in flood:
                thread.start()
            waits = longest_waits(port, lambda: not any(map(threading.Thread.is_alive, flood)))
        peak = peak_bytes(served)
    print(f"longest waits in s: { {name: round(wait, 3) for name, wait in waits.items()} }; peak: {peak >> 20} MiB")
    assert sorted(codes) == [ErrorCode.NONE] * (BATCHES // 2) + [ErrorCode.INVALID_RECORD] * (BATCHES // 2)
    assert max(waits.values()) < LONGEST_WAIT_SECONDS, waits
    assert peak < MOST_RESIDENT_BYTES
