"""A flood against a live server: batches of millions of bad records, and readers that do not read, beside a client.

The client writes and reads as usual.  Its longest wait is printed; on an idle machine with two cores it is a fraction
of a second.  The limits are far above that, and far below what one such batch cost when it held the interpreter.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from tests.engine.large_batches import encoded, large_batch
from tests.engine.live_logs import batch
from tests.faults.live.killed_server import KilledServer
from tests.server.live.nodes import fetch_request, new_node, produce, produce_request
from tests.server.network.listeners import Client

FLOODS, RECORDS = 24, 500_000
SLOW_READERS = 300
LONGEST_WAIT_SECONDS = 5.0
MOST_MEMORY_KIB = 1 << 20


def memory_kib(server: KilledServer) -> int:
    """Return the most memory that the server's process has had."""
    assert server._process is not None
    status = Path(f"/proc/{server._process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def test_a_client_waits_seconds_at_most_while_others_flood_the_server(tmp_path: Path) -> None:
    data = new_node(tmp_path / "data", {"t": 1, "normal": 1})
    server = KilledServer(data, ["--set", "log.cleanup.policy=compact"], loses_power=False)
    bad = large_batch(encoded(None) * RECORDS, RECORDS)
    big = batch(("k", "v" * 900_000))
    answers: list[int] = []
    waits: list[float] = []
    server.start()
    try:
        with ExitStack() as opened:

            def client() -> Client:
                found = Client(socket.create_connection(("127.0.0.1", server.port), timeout=120))
                opened.callback(found.socket.close)
                return found

            normal = client()
            for _ in range(3):
                assert produce(normal, big).error_code == 0
            for _ in range(SLOW_READERS):
                client().send(fetch_request((0, 0)), 13)

            def flood(connected: Client) -> None:
                (topic,) = connected.ask(produce_request(bad), 13).responses
                answers.append(topic.partition_responses[0].error_code)

            threads = [threading.Thread(target=flood, args=(client(),)) for _ in range(FLOODS)]
            for thread in threads:
                thread.start()
            written = 0
            while any(thread.is_alive() for thread in threads):
                started = time.monotonic()
                assert produce(normal, batch(("k", "v")), topic="normal").base_offset == written
                (read,) = normal.ask(fetch_request((0, written), topic="normal"), 13).responses
                assert read.partitions[0].high_watermark == written + 1
                assert normal.ask(m.MetadataRequest(), 12).error_code == 0
                waits.append(time.monotonic() - started)
                written += 1
        print(f"the longest of {len(waits)} waits: {max(waits):.2f} s; {memory_kib(server) >> 10} MiB")
        assert answers == [ErrorCode.INVALID_RECORD] * FLOODS
        assert len(waits) > 3 and max(waits) < LONGEST_WAIT_SECONDS
        assert memory_kib(server) < MOST_MEMORY_KIB
    finally:
        server.stop()
