"""The largest requests of a server that cannot write."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from sediment.segment_io.fs import Fs
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.server.backends.read_only import ReadOnlyOptions
from sediment.server.kafka_server import KafkaServer, ServerOptions
from sediment.server.network.endpoints import Endpoint
from sediment.server.network.frames import OTHER_REQUEST_MAX_BYTES
from tests.logs import LogShape, write_random_log
from tests.server.network.listeners import Client


def produce(size_bytes: int) -> Any:
    partition = m.ProduceRequest.PartitionProduceData(index=0, records=bytes(size_bytes))
    topic = m.ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
    return m.ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])


def test_a_produce_that_will_be_refused_may_be_as_large_as_other_requests(tmp_path: Path) -> None:
    write_random_log(tmp_path / "t-0", 1, LogShape(batches=5))
    options = ServerOptions(ReadOnlyOptions((tmp_path,)), Endpoint("127.0.0.1", 0))
    with KafkaServer(options, Fs()) as running:
        with Client.to(running.bound.port) as client:
            refused = client.ask(produce(OTHER_REQUEST_MAX_BYTES - 1000), 9)
            assert refused.responses[0].partition_responses[0].error_code != 0
        with Client.to(running.bound.port) as client:
            client.socket.sendall(struct.pack(">ih", OTHER_REQUEST_MAX_BYTES + 1, ApiKey.PRODUCE))
            assert client.is_closed()
