"""A live server that is killed again and again while clients write: nothing acknowledged is lost, nothing is doubled.

SEDIMENT_SERVER_KILLS is how often each run kills its server (3; the target `crash` has 200), SEDIMENT_CRASH_SEED its
seed.  One run ends with kill -9.  The other one also drops everything that was not synced, on a server with
--flush-acks.  After every restart: the records of idempotent producers are there once and in order; committed
transactions are whole, and others invisible; a transaction that nobody ends has ended by its timeout; created topics
are there, and deleted ones are gone.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sediment.engine.clone.new_node import format_new_node
from sediment.segment_io.fs import Fs
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from tests.consumers import COMMITTED, confluent_records, ends
from tests.faults.live.killed_server import KilledServer
from tests.faults.live.load import PARTITIONS, Idempotent, Transactional, leave_open
from tests.server.network.listeners import Client
from tests.waiting import wait_until

KILLS = int(os.environ.get("SEDIMENT_SERVER_KILLS", "3"))
SEED = int(os.environ.get("SEDIMENT_CRASH_SEED", "0"))
TIMEOUT_MS = 1000
OPTIONS = [
    *("--set", "offsets.topic.num.partitions=2", "--set", "transaction.state.log.num.partitions=2"),
    *("--set", "log.index.size.max.bytes=4096", "--set", "group.initial.rebalance.delay.ms=0"),
    *("--set", "transaction.abort.timed.out.transaction.cleanup.interval.ms=100"),
]
SMALL_SEGMENTS = ("internal.segment.bytes", "20000")


def ask(client: Client, request: Any) -> None:
    client.send(request, _VERSIONS[ApiKey(request.API_KEY)])


_VERSIONS = {ApiKey.CREATE_TOPICS: 7, ApiKey.DELETE_TOPICS: 6, ApiKey.METADATA: 12}


def creation(name: str, partitions: int) -> Any:
    request = m.CreateTopicsRequest
    config = request.CreatableTopicConfig(name=SMALL_SEGMENTS[0], value=SMALL_SEGMENTS[1])
    topic = request.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=[config])
    return request(topics=[topic], timeout_ms=60_000)


def deletion(name: str) -> Any:
    request = m.DeleteTopicsRequest
    return request(topics=[request.DeleteTopicState(name=name)], timeout_ms=60_000)


@dataclass
class Topics:
    """A client that creates and deletes topics, one at each kill, and knows which of them are there."""

    names: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    """Those whose creation or deletion was not answered."""
    answered: int = 0
    _asked: int = 0

    @contextmanager
    def asking(self, port: int) -> Iterator[None]:
        """Create or delete a topic while the body ends the server."""
        name = f"made-{self._asked // 2}"
        self._asked += 1
        is_deleted = name in self.names
        with Client.to(port) as client:
            ask(client, deletion(name) if is_deleted else creation(name, 2))
            yield
            try:
                _, answer = client.receive(
                    ApiKey.DELETE_TOPICS if is_deleted else ApiKey.CREATE_TOPICS, 6 + (not is_deleted)
                )
            except ConnectionError:
                self.unknown.add(name)
                self.names.discard(name)
                return
        (result,) = answer.responses if is_deleted else answer.topics
        assert result.error_code == ErrorCode.NONE, result
        self.answered += 1
        if is_deleted:
            self.names.remove(name)
        else:
            self.names.add(name)

    def check(self, port: int) -> None:
        with Client.to(port) as client:
            listed = client.ask(m.MetadataRequest(topics=None), 12).topics
        found = {each.name for each in listed if each.name.startswith("made-")}
        assert found - self.unknown == self.names
        self.names |= found
        self.unknown = set()


@dataclass
class Load:
    """All clients of a server, and the transactions that they leave open."""

    server: KilledServer
    chance: random.Random
    topics: Topics = field(default_factory=Topics)
    idempotent: list[Idempotent] = field(default_factory=list)
    transactional: list[Transactional] = field(default_factory=list)

    def begin(self) -> None:
        with Client.to(self.server.port) as client:
            for name in ("plain", "t"):
                (made,) = client.ask(creation(name, 2), 7).topics
                assert made.error_code == ErrorCode.NONE, made
        bootstrap = self.server.bootstrap
        self.idempotent = [Idempotent(bootstrap, partition) for partition in range(2)]
        self.transactional = [Transactional(bootstrap, f"txn-{n}", self.chance.randrange(99)) for n in range(2)]

    @property
    def workers(self) -> list[Any]:
        return [*self.idempotent, *self.transactional]

    def run_until_killed(self) -> None:
        """Let the clients work, and end the server in the middle."""
        if self.chance.random() < 0.3:
            leave_open(self.server.bootstrap, TIMEOUT_MS)
        for worker in self.workers:
            worker.resume()
        wanted = {worker: worker.count + self.chance.randint(1, 6) for worker in self.workers}
        wait_until(lambda: any(worker.count >= count for worker, count in wanted.items()))
        with self.topics.asking(self.server.port):
            time.sleep(self.chance.uniform(0, 0.04))
            self.server.kill()

    def check(self) -> None:
        """Let the clients get all their answers from the server that has started, and compare."""
        for worker in self.workers:
            worker.pause()
        self.topics.check(self.server.port)
        bootstrap = self.server.bootstrap
        # An open transaction holds back the last stable offset.
        wait_until(lambda: all(high == stable for _, high, stable in ends(bootstrap, PARTITIONS).values()))
        records = confluent_records(bootstrap, ["plain-0", "plain-1", *PARTITIONS], COMMITTED)
        assert not [each for name in PARTITIONS for each in records[name] if (each.value or b"").startswith(b"left")]
        for worker in self.workers:
            worker.check_records(records)

    def end(self) -> None:
        for worker in self.workers:
            worker.end()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("loses_power", [False, True], ids=["kill -9", "unsynced data lost"])
def test_killed_again_and_again_a_server_keeps_its_word_to_all_its_clients(tmp_path: Path, loses_power: bool) -> None:
    data = tmp_path / "data"
    data.mkdir()
    format_new_node(data, Fs(), now_ms=time.time_ns() // 1_000_000)
    server = KilledServer(data, [*OPTIONS, *(["--flush-acks"] if loses_power else [])], loses_power)
    load = Load(server, random.Random(SEED))
    server.start()
    load.begin()
    try:
        for _ in range(KILLS):
            load.run_until_killed()
            server.start()
            load.check()
    finally:
        load.end()
        server.stop()
    assert sum(worker.count for worker in load.workers) > KILLS
