"""Rounds of produces, for `make bench-serve`.

    java    ProducerPerformance of Kafka's Java client: records of 1 kB, idempotent, acks=all
    small   requests with one record, from CONNECTIONS connections with up to PIPELINED requests each, acks=1
    p99     one record with acks=all after the other, from one connection, while other connections wait at log ends

The client of `small` and `p99` is one thread with raw sockets and frames that are built once, so that it costs little.
Each round of `java` and `small` has a topic of its own, which is deleted after it, so that no disk fills up.
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import statistics
import struct
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.serving.servers import Server, Throughput
from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.protocol import messages as m
from tests.conformance.oracle import kafka_tools_jars, program
from tests.e2e.kraft import class_path

CONNECTIONS = 8
PIPELINED = 5  # the most that an idempotent producer of Kafka has in flight
VALUE_BYTES = 100
JAVA_RECORD_BYTES = 1000
VERSION = 11
_READY_SECONDS = 30
_PRODUCE_KEY = 0
_LEADER_ACKS, _ALL_ACKS = 1, -1
_FRAME = struct.Struct(">i")
_REQUEST = struct.Struct(">hhih")
_CLIENT_ID = b"bench"
_SENT = re.compile(rb"(\d+) records sent, ([\d.]+) records/sec")


@dataclass(frozen=True, slots=True)
class Rate:
    """A round of small requests."""

    requests_per_second: float
    cpu_us: float


def produce_request(topic: str, acks: int) -> bytes:
    """Return the frame of a request with one record; every such request has correlation id 0."""
    record = NewRecord(int(time.time() * 1000), b"key-%08d" % 0, os.urandom(VALUE_BYTES))
    data = m.ProduceRequest.PartitionProduceData(index=0, records=build_batch([record], BatchHead()))
    asked = m.ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    body = m.ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[asked]).to_bytes(VERSION)
    header = _REQUEST.pack(_PRODUCE_KEY, VERSION, 0, len(_CLIENT_ID)) + _CLIENT_ID + b"\0"
    return _FRAME.pack(len(header) + len(body)) + header + body


@contextmanager
def new_topic(server: Server) -> Iterator[str]:
    """Create a topic for the block, and delete it after it."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    name = f"produced-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, 1, 1, config={"file.delete.delay.ms": "1000"})])[name].result(60)
    try:
        yield name
    finally:
        admin.delete_topics([name])[name].result(60)


def java_round(server: Server, size_bytes: int) -> Throughput:
    """Produce about `size_bytes` with the Java client; its own start is not counted."""
    count = size_bytes // JAVA_RECORD_BYTES
    jars = os.pathsep.join([class_path(), *map(str, kafka_tools_jars().glob("*.jar"))])
    with new_topic(server) as topic:
        cpu = server.cpu_seconds()
        done = subprocess.run(
            [
                *(program("java"), "-Xmx512m", "-cp", jars, "org.apache.kafka.tools.ProducerPerformance"),
                *("--topic", topic, "--num-records", str(count), "--record-size", str(JAVA_RECORD_BYTES)),
                *("--throughput", "-1", "--producer-props", f"bootstrap.servers={server.bootstrap}", "acks=all"),
            ],
            capture_output=True,
            check=True,
        )
        cpu = server.cpu_seconds() - cpu
    sent, per_second = _SENT.findall(done.stdout)[-1]
    if int(sent) != count:
        raise OSError(f"the client sent {sent.decode()} of {count} records")
    return Throughput(float(per_second) * JAVA_RECORD_BYTES / 1e6, cpu / (count * JAVA_RECORD_BYTES) * 1e9)


class ProduceClient:
    """A connection that sends the same request of one record again and again."""

    def __init__(self, bootstrap: str, topic: str, acks: int) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = produce_request(topic, acks)
        self._received_bytes = 0
        self._response_bytes = 0
        deadline = time.monotonic() + _READY_SECONDS
        while (code := self._first_error_code()) and time.monotonic() < deadline:
            time.sleep(0.05)  # a broker leads a new partition a moment after it has answered the creation
        if code:
            raise OSError(f"a produce was answered with error {code}")

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _first_error_code(self) -> int:
        """Send a request and read its response in full; the later ones have the same size unless there is an error."""
        self.send(1)
        received = b""
        while len(received) < 4 or len(received) < 4 + _FRAME.unpack_from(received)[0]:
            received += self._some()
        self._response_bytes = len(received)
        response = m.ProduceResponse.decode(memoryview(received)[9:], VERSION)
        return int(response.responses[0].partition_responses[0].error_code)

    def _some(self) -> bytes:
        received = self.socket.recv(1 << 16)
        if not received:
            raise OSError("the server closed the connection")
        return received

    def send(self, count: int) -> None:
        """Send requests."""
        self.socket.sendall(self._request * count)

    def receive(self) -> int:
        """Read what has arrived; return the number of complete responses in it."""
        self._received_bytes += len(self._some())
        count, self._received_bytes = divmod(self._received_bytes, self._response_bytes)
        return count

    def call(self) -> None:
        """Send one request and wait for its response."""
        self.send(1)
        while not self.receive():
            pass


def small_round(server: Server, requests: int) -> Rate:
    """Produce `requests` records, each in a request of its own."""
    with new_topic(server) as topic, selectors.DefaultSelector() as selector:
        clients = [ProduceClient(server.bootstrap, topic, _LEADER_ACKS) for _ in range(CONNECTIONS)]
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        cpu, before = server.cpu_seconds(), time.perf_counter()
        for client in clients:
            client.send(PIPELINED)
        left = requests
        while left > 0:
            for key, _ in selector.select():
                done = key.data.receive()
                left -= done
                if done and left > 0:
                    key.data.send(done)
        seconds, cpu = time.perf_counter() - before, server.cpu_seconds() - cpu
        for client in clients:
            client.close()
    return Rate((requests - left) / seconds, cpu / (requests - left) * 1e6)


def produce_p99_round(server: Server, requests: int) -> float:
    """Return the 99th percentile in ms of a produce with acks=all."""
    times = []
    with new_topic(server) as topic, closing(ProduceClient(server.bootstrap, topic, _ALL_ACKS)) as client:
        for _ in range(requests):
            before = time.perf_counter()
            client.call()
            times.append(1000 * (time.perf_counter() - before))
    return statistics.quantiles(times, n=100)[-1]
