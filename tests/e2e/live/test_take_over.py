"""A live server and a broker take over one directory three times in turn, while every kind of client works on it.

What Kafka's tools print at the end of a turn is what they print at the start of the next one.  `sediment dump` of the
stopped directory has the same topics, records, producers and offsets.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka as confluent
import pytest
from kafka import KafkaProducer

from tests.consumers import COMMITTED, WAIT_SECONDS, Records, confluent_consumer, confluent_records, ends
from tests.e2e import console_tools as tools
from tests.e2e.kraft import KafkaNode, assert_no_trouble, running
from tests.e2e.live.nodes import node_file
from tests.e2e.test_live_serve import metadata_of, new_node, open_transaction
from tests.jobs.log_dirs import sediment_process
from tests.served import serving
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

TURNS = 6
PER_TURN = 10
TOPICS = {"t": 2, "plain": 2, "moved": 1, "held": 1, "late": 1}
COMPARED = ["t-0", "t-1", "plain-0", "plain-1", "moved-0", "held-0"]
"""Partitions without the transactions that end by themselves between two turns."""
GROUPS = {"classic": "classic", "consumer": "consumer"}
DONE = ("librdkafka", "python", "aiokafka", "java", "moving")
STATE = (
    (tools.TOPICS, "--describe"),
    (tools.CONFIGS, "--describe", "--entity-type", "topics"),
    (tools.CONFIGS, "--describe", "--entity-type", "groups"),
    (tools.CONFIGS, "--describe", "--entity-type", "brokers"),
    (tools.CONFIGS, "--describe", "--entity-type", "client-metrics"),
    (tools.CONSUMER_GROUPS, "--list", "--state"),
    (tools.CONSUMER_GROUPS, "--list", "--type"),
    (tools.CONSUMER_GROUPS, "--describe", "--all-groups", "--state", "--verbose"),
    (tools.CONSUMER_GROUPS, "--describe", "--all-groups", "--offsets", "--verbose"),
    (tools.TRANSACTIONS, "list"),
    *((tools.TRANSACTIONS, "describe", "--transactional-id", name) for name in (*DONE, "held")),
    *((tools.TRANSACTIONS, "describe-producers", "--topic", name[:-2], "--partition", name[-1]) for name in COMPARED),
    *((tools.GET_OFFSETS, "--topic", "t|plain|moved|held", "--time", time) for time in ("-1", "-2", "-3")),
    (tools.FEATURES, "describe"),
    (tools.CLUSTER, "cluster-id"),
)
# A quorum, and what a broker writes when it first becomes controller.
_BROKERS_OWN = re.compile(r"Feature: kraft.version|DYNAMIC_DEFAULT_BROKER_CONFIG:min.insync.replicas")
_VARIABLE = (
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"Supported.*(?=Finalized)|Epoch: \d+"), ""),  # of the release, and an offset of the metadata log
    (re.compile(r"((?:Ongoing|Complete\w+)\s+\d+\s+\d+\s+)\d+"), r"\1"),  # the age of a transaction
    (re.compile(r"\s+"), " "),
)


@dataclass
class Left:
    """What a turn left: the output of the tools, and every committed record."""

    printed: list[list[str]]
    records: Records


@dataclass
class Work:
    """The clients of all turns."""

    turn: int = 0
    moved: int = 0
    read: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROUPS, 0))
    topic_ids: dict[str, str] = field(default_factory=dict)

    def run(self, bootstrap: str) -> None:
        """Let every client do its work for one turn."""
        self.turn += 1
        self._produce(bootstrap)
        self._librdkafka_transactions(bootstrap)
        self._python_transactions(bootstrap)
        self._aiokafka_transactions(bootstrap)
        tools.transactions(bootstrap, "java", self.turn * 4, 4)
        for group, protocol in GROUPS.items():
            self._consume(bootstrap, group, protocol)
        self._move(bootstrap)
        # Its timeout is far away: the next turn finds it open, and ends it because this transactional id begins again.
        open_transaction(bootstrap, "held", 900_000, topic="held")
        open_transaction(bootstrap, "late", 3000, topic="late")

    def _produce(self, bootstrap: str) -> None:
        producer = confluent.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        for number in range(PER_TURN):
            producer.produce("plain", f"{self.turn} {number}", partition=number % 2)
        assert producer.flush(WAIT_SECONDS) == 0

    def _librdkafka_transactions(self, bootstrap: str) -> None:
        producer = confluent.Producer({"bootstrap.servers": bootstrap, "transactional.id": "librdkafka"})
        producer.init_transactions(WAIT_SECONDS)
        for number in range(PER_TURN):
            producer.begin_transaction()
            for partition in range(2):
                producer.produce("t", f"{self.turn} {number}", partition=partition)
            if number % 2:
                assert producer.flush(WAIT_SECONDS) == 0
                producer.abort_transaction(WAIT_SECONDS)
            else:
                producer.commit_transaction(WAIT_SECONDS)

    def _python_transactions(self, bootstrap: str) -> None:
        with contextlib.closing(KafkaProducer(bootstrap_servers=bootstrap, transactional_id="python")) as producer:
            producer.init_transactions()
            for end in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                producer.send("t", f"python {self.turn} {end.__name__}".encode(), partition=0).get(WAIT_SECONDS)
                end()

    def _aiokafka_transactions(self, bootstrap: str) -> None:
        """Commit one transaction of aiokafka, and abort one."""

        async def transactions() -> None:
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aiokafka")
            await producer.start()
            try:
                for end in (producer.commit_transaction, producer.abort_transaction):
                    await producer.begin_transaction()
                    await producer.send_and_wait("t", f"aiokafka {self.turn} {end.__name__}".encode(), partition=1)
                    await end()
            finally:
                await producer.stop()

        asyncio.run(asyncio.wait_for(transactions(), WAIT_SECONDS))

    def _consume(self, bootstrap: str, group: str, protocol: str) -> None:
        """Let a group read what this turn produced, and nothing that it has read."""
        with confluent_consumer(
            bootstrap, group_id=group, group_protocol=protocol, auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe(["plain"])
            values: list[str] = []

            def has_read() -> bool:
                for message in consumer.consume(100, 0.1):
                    if message.error() is None:
                        values.append(message.value().decode())
                return len(values) >= PER_TURN

            wait_until(has_read)
            assert sorted(values) == sorted(f"{self.turn} {number}" for number in range(PER_TURN))
            consumer.commit(asynchronous=False)

    def _move(self, bootstrap: str) -> None:
        """Read from one topic, and write to another one, in transactions that commit the offsets."""
        producer = confluent.Producer({"bootstrap.servers": bootstrap, "transactional.id": "moving"})
        producer.init_transactions(WAIT_SECONDS)
        source = confluent.TopicPartition("plain", 0)
        with confluent_consumer(bootstrap, group_id="moving", isolation_level=COMMITTED) as consumer:
            (at,) = consumer.committed([source], WAIT_SECONDS)
            assert max(at.offset, 0) == self.moved
            consumer.assign([confluent.TopicPartition("plain", 0, self.moved)])
            producer.begin_transaction()
            for _ in range(PER_TURN // 2):
                message = consumer.poll(WAIT_SECONDS)
                assert message is not None and message.error() is None
                producer.produce("moved", message.value(), partition=0)
            producer.send_offsets_to_transaction(consumer.position([source]), consumer.consumer_group_metadata())
            producer.commit_transaction(WAIT_SECONDS)
        self.moved += PER_TURN // 2


def printed(bootstrap: str) -> list[list[str]]:
    """Return what the tools print, without what a restart changes."""
    found = []
    for command, said in zip(STATE, tools.tools_in_turn(bootstrap, STATE), strict=True):
        assert said.status == 0, (command, said)
        lines = [line for line in said.lines if not line.startswith("late") and not _BROKERS_OWN.search(line)]
        for pattern, word in _VARIABLE:
            lines = [pattern.sub(word, line) for line in lines]
        found.append([*command, *sorted(lines)])
    return found


def left_at(bootstrap: str) -> Left:
    return Left(printed(bootstrap), confluent_records(bootstrap, COMPARED, COMMITTED))


def check_committed(records: Records, turns: int) -> None:
    """Check that exactly the committed transactions are there, each once, in order."""
    wanted = [f"{turn} {number}" for turn in range(1, turns + 1) for number in range(0, PER_TURN, 2)]
    for name in ("t-0", "t-1"):
        values = [(each.value or b"").decode() for each in records[name]]
        assert [value for value in values if re.fullmatch(r"\d+ \d+", value)] == wanted
        client = {"t-0": "python", "t-1": "aiokafka"}[name]
        assert [value for value in values if value.startswith(client)] == [
            f"{client} {turn} commit_transaction" for turn in range(1, turns + 1)
        ]
        assert [int(value) for value in values if value.isdigit()] == [
            turn * 4 + number for turn in range(1, turns + 1) for number in (0, 2)
        ]
    assert [each.value for each in records["moved-0"]] == [each.value for each in records["plain-0"]]
    assert not records["held-0"]


def wait_for_timeout(bootstrap: str) -> None:
    """Wait until the transaction that nobody ends has ended by its timeout."""
    wait_until(lambda: len({*ends(bootstrap, ["late-0"])["late-0"][1:]}) == 1, limit_seconds=LIMIT_SECONDS)


def rows_of(*arguments: object) -> list[dict[str, Any]]:
    outcome = sediment_process("dump", *arguments, "--json", "--limit", 0, "--quiet")
    assert outcome.status == 0, outcome.stderr
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def check_dump(data: Path, left: Left) -> None:
    """Compare what `sediment dump` reads from the stopped directory with what its clients and the tools saw."""
    said = {tuple(command): lines for command, lines in zip(STATE, left.printed, strict=True)}
    for name in COMPARED:
        rows = rows_of(data / name, "--what", "records", "--isolation", COMMITTED)
        assert [row["offset"] for row in rows] == [each.offset for each in left.records[name]]
        producers = rows_of(data / name, "--what", "producers")
        last = max((row["snapshot"] for row in producers), default=0)
        lines = said[tools.TRANSACTIONS, "describe-producers", "--topic", name[:-2], "--partition", name[-1]]
        assert sorted(" ".join(line.split()[:2]) for line in lines if line[:1].isdigit() and " " in line) == sorted(
            f"{row['producerId']} {row['producerEpoch']}" for row in producers if row["snapshot"] == last
        )
    offsets = said[tools.CONSUMER_GROUPS, "--describe", "--all-groups", "--offsets", "--verbose"]
    committed = [row for row in rows_of(data, "--what", "groups") if row["committedOffset"] is not None]
    assert {row["group"] for row in committed} == {*GROUPS, "moving", "java"}
    for row in committed:
        begin = f"{row['group']} {row['topic']} {row['partition']} "
        (line,) = (line for line in offsets if line.startswith(begin))
        assert str(row["committedOffset"]) in line.split()[3:5]


@contextlib.contextmanager
def server_of(data: Path, home: Path, turn: int) -> Iterator[str]:
    """Run the turn's server on `data`, first Sediment's, then a broker; stop it cleanly, without any complaint."""
    file = node_file(data)
    if turn % 2 == 0:
        with serving(data, "--config", file, "--flush-acks") as served:
            yield served.bootstrap
            served.stop()
        assert not [line for line in served.said if re.search(r"recover|error|stray|corrupt", line, re.I)]
    else:
        with running(KafkaNode(home, file=file)) as node:
            yield node.bootstrap
            node.stop()
        assert_no_trouble(node)
    assert not list(data.glob("*-stray"))


def test_a_server_and_a_broker_take_over_from_each_other_three_times_with_every_kind_of_client(tmp_path: Path) -> None:
    data = new_node(tmp_path / "data")
    work = Work()
    left: Left | None = None
    for turn in range(TURNS):
        with server_of(data, tmp_path / f"node-{turn}", turn) as bootstrap:
            if left is None:
                commands = [(tools.TOPICS, "--create", "--topic", t, "--partitions", str(n)) for t, n in TOPICS.items()]
                topic = ("--entity-type", "topics", "--entity-name", "t", "--add-config", "max.message.bytes=5000")
                group = (
                    "--entity-type",
                    "groups",
                    "--entity-name",
                    "g",
                    "--add-config",
                    "consumer.session.timeout.ms=46000",
                )
                commands += [(tools.CONFIGS, "--alter", *each) for each in (topic, group)]
                assert {each.status for each in tools.tools_in_turn(bootstrap, commands)} == {0}
            else:
                found = left_at(bootstrap)
                assert found.printed == left.printed
                assert found.records == left.records
                wait_for_timeout(bootstrap)
            work.run(bootstrap)
            left = left_at(bootstrap)
        check_committed(left.records, work.turn)
        check_dump(data, left)
        metadata = metadata_of(data)
        assert work.topic_ids.items() <= metadata.topic_ids.items()
        work.topic_ids = dict(metadata.topic_ids)
