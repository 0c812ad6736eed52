"""Speed of `sediment serve` compared with a warm Kafka 4.2.0 on the same files.

Both servers run at the same time on copies of one directory, and are measured in alternating rounds.  Fetches are those
of `serve --read-only`, and produces those of a live `serve`.  The client is one thread with raw sockets, so that it
costs little; only the row of the Java client is different.  CPU is the time of the server's process, from /proc.

    fetch     1 MiB a fetch through one topic, again and again: MB/s, and seconds of CPU for each GB
    p99       1 MiB fetches, while 300 connections of another process wait at log ends
    start     from the start of the process to the first record
    open      5,000 folders of partitions, from the start of the process to the line `listening on`
    produces  `benchmarks.serving.produces`
"""

from __future__ import annotations

import argparse
import os
import random
import selectors
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import confluent_kafka as confluent
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks.reporting.serve_results import BAR_MISSED, HEAD, Ratio, ServeResults, rows
from benchmarks.serving.produces import CONNECTIONS, java_round, produce_p99_round, small_round
from benchmarks.serving.servers import Server, Throughput, ratio
from sediment.segment_io.protocol import messages as m
from tests.e2e.kraft import KafkaNode, running
from tests.served import serving

FETCH_VERSION = 11
FETCH_BYTES = 1 << 20
WAITERS = 300
WAIT_MS = 500
IDLE_PARTITIONS = 30
PARTITIONS = 5000
OPEN_BAR_SECONDS = 5.0
TOPIC, IDLE = "bench", "idle"

_FRAME = struct.Struct(">i")
_REQUEST = struct.Struct(">hhih")
_BATCH = struct.Struct(">qi")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_FETCH_KEY = 1
_CLIENT_ID = b"bench"


# --------------------------------------------------------------------------------------------------------------- client
def fetch_request(topic: str, partition: int, offset: int, *, correlation_id: int = 0) -> bytes:
    """Return the frame of a fetch of 1 MiB that waits WAIT_MS for the first byte."""
    asked = m.FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    request = m.FetchRequest(
        replica_id=-1,
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        topics=[m.FetchRequest.FetchTopic(topic=topic, partitions=[asked])],
    )
    body = request.to_bytes(FETCH_VERSION)
    header = _REQUEST.pack(_FETCH_KEY, FETCH_VERSION, correlation_id, len(_CLIENT_ID)) + _CLIENT_ID
    return _FRAME.pack(len(header) + len(body)) + header + body


class FetchClient:
    """A blocking connection that fetches from one partition."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(FETCH_BYTES + (1 << 16)))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def fetch(self, topic: str, partition: int, offset: int) -> tuple[int, int]:
        """Return (bytes of records, offset after them)."""
        self._socket.sendall(fetch_request(topic, partition, offset))
        (size_bytes,) = _FRAME.unpack(self._read(_FRAME.size))
        frame = self._read(size_bytes)
        response = m.FetchResponse.decode(frame[_FRAME.size :], FETCH_VERSION)
        found = response.responses[0].partitions[0]
        if found.error_code:
            raise OSError(f"a fetch of {topic}-{partition} was answered with error {found.error_code}")
        return len(found.records), _next_offset(found.records, offset)

    def _read(self, size_bytes: int) -> memoryview:
        view = self._buffer[:size_bytes]
        filled = 0
        while filled < size_bytes:
            count = self._socket.recv_into(view[filled:])
            if not count:
                raise OSError("the server closed the connection")
            filled += count
        return view


def _next_offset(records: memoryview, offset: int) -> int:
    """Return the offset after the last whole batch, by headers alone."""
    position = 0
    while position + 61 <= len(records):
        base_offset, length = _BATCH.unpack_from(records, position)
        if position + 12 + length > len(records):
            break
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(records, position + 23)
        offset = base_offset + delta + 1
        position += 12 + length
    return offset


def wait_at_log_ends(bootstrap: str) -> None:
    """Keep WAITERS connections waiting at log ends until the process is ended."""
    host, port = bootstrap.rsplit(":", 1)
    selector = selectors.DefaultSelector()
    for number in range(WAITERS):
        connection = socket.create_connection((host, int(port)))
        request = fetch_request(IDLE, number % IDLE_PARTITIONS, 0)
        connection.sendall(request)
        selector.register(connection, selectors.EVENT_READ, (request, bytearray()))
    print("waiting", flush=True)
    while True:
        for key, _ in selector.select():
            request, received = key.data
            received += key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            if len(received) >= 4 and len(received) >= 4 + _FRAME.unpack_from(received)[0]:
                received.clear()
                key.fileobj.sendall(request)  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------------------- measurements
@dataclass(frozen=True, slots=True)
class Start:
    """Wall and CPU time of a server until it was ready."""

    seconds: float
    cpu_seconds: float


def fetch_round(server: Server, size_bytes: int) -> Throughput:
    """Fetch about `size_bytes` through the topic."""
    with closing(FetchClient(server.bootstrap)) as client:
        cpu, before = server.cpu_seconds(), time.perf_counter()
        fetched = offset = 0
        while fetched < size_bytes:
            count, after = client.fetch(TOPIC, 0, offset)
            fetched += count
            offset = after if after > offset else 0
        seconds = time.perf_counter() - before
        return Throughput(fetched / seconds / 1e6, (server.cpu_seconds() - cpu) / fetched * 1e9)


def p99_round(server: Server, end: int, fetches: int) -> float:
    """Return the 99th percentile, in ms, of 1 MiB fetches while the other connections wait."""
    chance = random.Random(1)
    with waiters(server.bootstrap), closing(FetchClient(server.bootstrap)) as client:
        times = []
        for _ in range(fetches):
            offset = chance.randrange(end * 3 // 4)
            before = time.perf_counter()
            client.fetch(TOPIC, 0, offset)
            times.append(1000 * (time.perf_counter() - before))
    return statistics.quantiles(times, n=100)[-1]


@contextmanager
def waiters(bootstrap: str) -> Iterator[None]:
    """Run `wait_at_log_ends` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.serve", "--wait-at", bootstrap]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "waiting\n"
        time.sleep(2 * WAIT_MS / 1000)
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def seconds_to_first_record(bootstrap: str, started: float) -> float:
    """Return the seconds from `started` until a fetch brings records."""
    while True:
        try:
            with closing(FetchClient(bootstrap)) as client:
                if client.fetch(TOPIC, 0, 0)[0]:
                    return time.perf_counter() - started
        except OSError:
            time.sleep(0.01)


def start_of_kafka(node: KafkaNode) -> Start:
    """Start and stop the broker; return its time to the first record."""
    started = time.perf_counter()
    with running(node):
        seconds = seconds_to_first_record(node.bootstrap, started)
        return Start(seconds, Server("kafka", node.bootstrap, node.process_id()).cpu_seconds())


def start_of_sediment(directory: Path) -> Start:
    """Start and stop `serve`; return its time to the first record."""
    started = time.perf_counter()
    with serving(directory, "--read-only") as server:
        seconds = seconds_to_first_record(server.bootstrap, started)
        return Start(seconds, Server("sediment", server.bootstrap, server.process.pid).cpu_seconds())


def open_round(directory: Path) -> Start:
    """Return the time until `serve` listens."""
    started = time.perf_counter()
    with serving(directory, "--read-only") as server:
        seconds = time.perf_counter() - started
        return Start(seconds, Server("sediment", server.bootstrap, server.process.pid).cpu_seconds())


# --------------------------------------------------------------------------------------------------------------- data
def fill(node: KafkaNode, size_mb: int) -> None:
    """Create the topic, and produce `size_mb` of records of 1 kB."""
    create_topics(node, NewTopic(TOPIC, 1, 1))
    producer = confluent.Producer({"bootstrap.servers": node.bootstrap, "batch.size": 1 << 16, "linger.ms": 50})
    value = os.urandom(1000)
    for number in range(size_mb * 1000):
        while True:
            try:
                producer.produce(TOPIC, value, b"key-%d" % number, 0)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(300) == 0


def many_partitions(template: Path, target: Path) -> None:
    """Make PARTITIONS folders of partitions from one, by links."""
    for number in range(PARTITIONS):
        folder = target / f"many-{number}"
        folder.mkdir(parents=True)
        for path in template.iterdir():
            if path.name != "partition.metadata":
                (folder / path.name).hardlink_to(path)


# ------------------------------------------------------------------------------------------------------------- report
@dataclass(frozen=True, slots=True)
class Sizes:
    """The number of rounds and their sizes, as on the command line."""

    mb: int
    rounds: int
    fetch_gb: float
    fetches: int
    java_mb: int
    produces: int
    p99_produces: int


def measure_fetches(home: Path, node: KafkaNode, sizes: Sizes) -> tuple[list[Ratio], Start]:
    """Return the ratios of medians, and the median time to open PARTITIONS partitions; the broker is stopped."""
    with running(node):
        fill(node, sizes.mb)
    copy, many = home / "copy", home / "many"
    shutil.copytree(node.data, copy)
    many_partitions(copy / f"{IDLE}-0", many)
    opened = [open_round(many) for _ in range(3)]
    starts = [(start_of_sediment(copy), start_of_kafka(node)) for _ in range(sizes.rounds)]
    with running(node), serving(copy, "--read-only") as served:
        sediment = Server("sediment", served.bootstrap, served.process.pid)
        kafka = Server("kafka", node.bootstrap, node.process_id())
        size_bytes = int(sizes.fetch_gb * 1e9)
        for server in (sediment, kafka):
            seconds_to_first_record(server.bootstrap, time.perf_counter())
        for server in (kafka, kafka, sediment):  # until the JVM has compiled what is hot
            fetch_round(server, 2 * size_bytes)
        fetched = [(fetch_round(sediment, size_bytes), fetch_round(kafka, size_bytes)) for _ in range(sizes.rounds)]
        end = sizes.mb * 1000
        p99s = [
            (p99_round(sediment, end, sizes.fetches), p99_round(kafka, end, sizes.fetches)) for _ in range(sizes.rounds)
        ]
    return [
        ratio("fetch of 1 MiB, CPU s per GB", fetched, lambda each: each.cpu_seconds_per_gb, 0.8),
        ratio("fetch of 1 MiB, MB/s", fetched, lambda each: each.mb_per_second, 0.9, at_least=True),
        ratio(f"p99 of a 1 MiB fetch while {WAITERS} connections wait, ms", p99s, float, 1.5),
        ratio("start to the first record, s", starts, lambda each: each.seconds, 0.5),
        ratio("start to the first record, CPU s", starts, lambda each: each.cpu_seconds, 0.5),
    ], sorted(opened, key=lambda each: each.seconds)[len(opened) // 2]


def measure_produces(home: Path, node: KafkaNode, sizes: Sizes) -> list[Ratio]:
    """Return the ratios of medians; the broker is stopped, and its log directory has the topic IDLE."""
    live = home / "live"
    shutil.copytree(node.data, live)
    with running(node), serving(live) as served:
        sediment = Server("sediment", served.bootstrap, served.process.pid)
        kafka = Server("kafka", node.bootstrap, node.process_id())
        size_bytes = sizes.java_mb * 1_000_000
        for server in (kafka, sediment, kafka):  # until the JVM has compiled what is hot
            java_round(server, size_bytes)
            small_round(server, sizes.produces)
        large = [(java_round(sediment, size_bytes), java_round(kafka, size_bytes)) for _ in range(sizes.rounds)]
        small = [
            (small_round(sediment, sizes.produces), small_round(kafka, sizes.produces)) for _ in range(sizes.rounds)
        ]
        p99s = []
        for _ in range(sizes.rounds):
            pair = []
            for server in (sediment, kafka):
                with waiters(server.bootstrap):
                    pair.append(produce_p99_round(server, sizes.p99_produces))
            p99s.append((pair[0], pair[1]))
    return [
        ratio("produce of 1 kB records, Java, MB/s", large, lambda each: each.mb_per_second, 1.0, at_least=True),
        ratio("produce of 1 kB records, Java, CPU s per GB", large, lambda each: each.cpu_seconds_per_gb, 0.6),
        ratio(
            f"produces of one record, {CONNECTIONS} connections, requests/s",
            small,
            lambda each: each.requests_per_second,
            0.3,
            at_least=True,
        ),
        ratio(f"p99 of a produce while {WAITERS} connections wait, ms", p99s, float, 1.5),
    ]


def create_topics(node: KafkaNode, *topics: NewTopic) -> None:
    """Create topics of a running broker."""
    client = AdminClient({"bootstrap.servers": node.bootstrap})  # its calls end with it
    for future in client.create_topics(list(topics)).values():
        future.result(60)


def main() -> None:
    """Print the table; the exit status is BAR_MISSED if a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=1000, help="size of the topic")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fetch-gb", type=float, default=4.0, help="size of a round of fetches")
    parser.add_argument("--fetches", type=int, default=500, help="fetches of a round of p99")
    parser.add_argument("--java-mb", type=int, default=500, help="size of a round of the Java producer")
    parser.add_argument("--produces", type=int, default=100_000, help="produces of one record of a round")
    parser.add_argument("--p99-produces", type=int, default=2000, help="produces of a round of p99")
    parser.add_argument("--only", choices=("fetches", "produces"), help="measure only these rows")
    parser.add_argument("--results", type=Path, help="write the figures to this file as JSON")
    parser.add_argument("--scratch", type=Path, help="directory for the data (default: $TMPDIR)")
    parser.add_argument("--wait-at", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.wait_at:
        wait_at_log_ends(given.wait_at)
    sizes = Sizes(*(getattr(given, name) for name in Sizes.__dataclass_fields__))
    ratios: list[Ratio] = []
    opened: Start | None = None
    with tempfile.TemporaryDirectory(prefix="sediment-serve-", dir=given.scratch) as home:
        node = KafkaNode(Path(home, "kafka"), {"log.retention.ms": "-1", "log.cleaner.enable": "false"})
        with running(node):
            create_topics(node, NewTopic(IDLE, IDLE_PARTITIONS, 1))
        if given.only != "fetches":
            ratios += measure_produces(Path(home), node, sizes)
        if given.only != "produces":
            fetches, opened = measure_fetches(Path(home), node, sizes)
            ratios = fetches + ratios
    seconds = None if opened is None else (opened.seconds, opened.cpu_seconds)
    results = ServeResults(tuple(ratios), PARTITIONS, seconds, OPEN_BAR_SECONDS)
    table = Table(*HEAD)
    for row in rows(results):
        table.add_row(*row)
    Console(width=140).print(table)
    if given.results:
        results.write(given.results)
    sys.exit(0 if results.holds else BAR_MISSED)


if __name__ == "__main__":
    main()
