"""A live server and a stock broker take over each other's directory in turns, and administer topics in the same way."""

from __future__ import annotations

import contextlib
import json
import lzma
import random
import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from sediment.engine.clone.new_node import format_new_node
from sediment.engine.clone.server_properties import server_properties
from sediment.engine.live.future_log import copy_next, copy_rest
from sediment.engine.metadata.topic_records import METADATA_VERSION
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.bootstrap_checkpoint import format_bootstrap_checkpoint
from sediment.segment_io.internal_topics.metadata_log import (
    SERVER_TRANSACTION,
    ClusterMetadata,
    read_cluster_metadata,
)
from sediment.segment_io.internal_topics.metadata_records import encode_metadata_record
from sediment.segment_io.partition.checkpoint_files import read_partition_metadata
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.live.owned_node import open_node
from tests.consumers import COMMITTED, UNCOMMITTED, Records, commit_offsets, committed_offsets, confluent_records, ends
from tests.e2e import console_tools as tools
from tests.e2e.clients import produce
from tests.e2e.kraft import USUAL, KafkaNode, assert_no_trouble, running
from tests.engine.live_logs import batch
from tests.served import serving, unpacked
from tests.server.live import nodes
from tests.server.live.admin_script import RECORDED, AdminScript
from tests.server.live.config_script import RECORDED_CONFIGS, ConfigScript
from tests.server.live.described_configs import RECORDED_DESCRIPTIONS, described, recorded
from tests.server.live.nodes import NODE, NOW_MS
from tests.server.live.scram_script import RECORDED_USERS, ScramScript
from tests.server.live.test_scram_users import exposed_server
from tests.server.network.listeners import Client
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

NAMES = ["empty-0", "prices-0", "orders-0", "orders-1"]
PER_TURN = 20
KILLS = 24


def two_free_ports() -> int:
    """Return a port that is free, as is the next one; the system gives neither to a connection."""
    chance = random.Random()
    while True:
        port = chance.randrange(20_000, 30_000)
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port


def node_on(data: Path, home: Path) -> KafkaNode:
    """Return a node that is to start on `data`."""
    text = server_properties(
        data,
        open_node([data], None, Fs()).node.node_id,
        host="127.0.0.1",
        port=two_free_ports(),
        partition_counts={"__consumer_offsets": 2, "__transaction_state": 2},
        is_held=False,
    )
    file = data / "server.properties"
    file.write_text(text)
    return KafkaNode(home, file=file)


def metadata_of(data: Path) -> ClusterMetadata:
    found = read_cluster_metadata(data, Fs())
    assert found is not None
    return found


class Turns:
    """The records and offsets that each turn finds, and adds to."""

    def __init__(self) -> None:
        self.written = 0
        self.seen: Records | None = None

    def take(self, bootstrap: str) -> None:
        """Check what the turn before left, add records, and commit their end."""
        assert committed_offsets(bootstrap, "billing", ["orders-0"])["orders-0"][0] == 5
        if self.seen is not None:
            assert confluent_records(bootstrap, NAMES, UNCOMMITTED) == self.seen
            assert committed_offsets(bootstrap, "turns", ["empty-0"])["empty-0"][0] == self.written
        produce(bootstrap, "empty", PER_TURN, enable_idempotence="true")
        self.written += PER_TURN
        commit_offsets(bootstrap, "turns", {"empty-0": self.written})
        assert ends(bootstrap, ["empty-0"])["empty-0"][1] == self.written
        self.seen = confluent_records(bootstrap, NAMES, UNCOMMITTED)


def test_a_directory_goes_from_a_server_to_a_broker_and_back(tmp_path: Path) -> None:
    data = unpacked(tmp_path / "data")
    before = metadata_of(data)
    turns = Turns()
    next_ids = []
    for number in range(3):
        with serving(data, "--flush-acks") as served:
            turns.take(served.bootstrap)
        next_ids.append(metadata_of(data).next_producer_id)
        if number < 2:
            with running(node_on(data, tmp_path / f"node-{number}")) as node:
                turns.take(node.bootstrap)
                assert_no_trouble(node)
                node.stop()
            next_ids.append(metadata_of(data).next_producer_id)
    after = metadata_of(data)
    assert (after.topic_ids, after.topic_configs) == (before.topic_ids, before.topic_configs)
    assert next_ids == sorted(set(next_ids))
    assert not list(data.glob("*-stray"))


@pytest.mark.parametrize("kind", ["static", "dynamic", "two entries", "metadata apart"])
def test_a_formatted_node_goes_from_a_server_to_a_broker_and_back(tmp_path: Path, kind: str) -> None:
    data, second = tmp_path / "node" / "data", tmp_path / "second"
    more = {"two entries": {"log.dirs": f"{data},{second}"}, "metadata apart": {"metadata.log.dir": str(second)}}
    node = KafkaNode(tmp_path / "node", more.get(kind), is_standalone=kind == "dynamic")
    with serving("--config", node.config_file()) as served:
        admin = AdminClient({"bootstrap.servers": served.bootstrap})
        admin.create_topics([NewTopic("t", 3, 1, config={"retention.ms": "-1"})])["t"].result(60)
        produce(served.bootstrap, "t", PER_TURN)
        written = confluent_records(served.bootstrap, ["t-0", "t-1", "t-2"], UNCOMMITTED)
    assert sum(map(len, written.values())) == PER_TURN
    with running(node):
        assert confluent_records(node.bootstrap, list(written), UNCOMMITTED) == written
        assert_no_trouble(node)
        node.stop()
    assert not [*data.glob("*-stray"), *second.glob("*-stray")]
    with serving("--config", node.config_file()) as served:
        assert confluent_records(served.bootstrap, list(written), UNCOMMITTED) == written


# -------------------------------------------------------------------------------------------------------- transactions
def known_transactions(bootstrap: str) -> list[str]:
    """Return transactional ids with their coordinator, producer id and state, as Kafka's tool lists them."""
    return tools.table(tools.tool(bootstrap, tools.TRANSACTIONS, "list"))


def committed_numbers(bootstrap: str) -> dict[str, list[int]]:
    found = confluent_records(bootstrap, ["t-0", "t-1"], COMMITTED)
    return {name: [int(seen.value or b"") for seen in records] for name, records in found.items()}


def check_transactions(bootstrap: str, count: int) -> None:
    """Check the records and offsets of transactions 0 to count - 1, whose even numbers are committed."""
    wait_until(lambda: all("Complete" in line for line in known_transactions(bootstrap) if "java" in line))
    assert committed_numbers(bootstrap) == {name: list(range(0, count, 2)) for name in ("t-0", "t-1")}
    last = count - 1 - (count - 1) % 2
    assert committed_offsets(bootstrap, "java", ["t-0"])["t-0"][0] == last + 1


def open_transaction(bootstrap: str, name: str, timeout_ms: int, topic: str = "t") -> None:
    """Leave a transaction open."""
    producer = confluent.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": timeout_ms,
            "log_level": 0,
        }
    )
    producer.init_transactions(LIMIT_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, "-1", partition=1)
    assert producer.flush(LIMIT_SECONDS) == 0


def test_transactions_go_from_a_server_to_a_broker_and_back(tmp_path: Path) -> None:
    data = new_node(tmp_path / "data")
    sets = ("--set", "offsets.topic.num.partitions=2", "--set", "transaction.state.log.num.partitions=2")
    with serving(data, *sets) as served:
        tools.tool(served.bootstrap, tools.TOPICS, "--create", "--topic", "t", "--partitions", "2")
        tools.transactions(served.bootstrap, "java", 0, 5)
        check_transactions(served.bootstrap, 5)
        open_transaction(served.bootstrap, "open", 2000)
        before = [line for line in known_transactions(served.bootstrap) if "open" not in line]
    with running(node_on(data, tmp_path / "node")) as node:
        # The broker aborts the transaction that the server left open.
        wait_until(
            lambda: any("open" in each and "CompleteAbort" in each for each in known_transactions(node.bootstrap))
        )
        assert [line for line in known_transactions(node.bootstrap) if "open" not in line] == before
        tools.transactions(node.bootstrap, "java", 5, 4)
        check_transactions(node.bootstrap, 9)
        open_transaction(node.bootstrap, "open", 2000)
        assert_no_trouble(node)
        listed = [line for line in known_transactions(node.bootstrap) if "open" not in line]
        node.stop()
    assert not list(data.glob("*-stray"))
    with serving(data, *sets) as served:
        wait_until(
            lambda: any("open" in each and "CompleteAbort" in each for each in known_transactions(served.bootstrap))
        )
        assert [line for line in known_transactions(served.bootstrap) if "open" not in line] == listed
        tools.transactions(served.bootstrap, "java", 9, 2)
        check_transactions(served.bootstrap, 11)


def test_the_tool_for_transactions_works_on_a_server_as_on_a_broker(tmp_path: Path) -> None:
    with serving(new_node(tmp_path / "data")) as served:
        at = partial(tools.tool, served.bootstrap, tools.TRANSACTIONS)
        tools.tool(served.bootstrap, tools.TOPICS, "--create", "--topic", "t", "--partitions", "2")
        open_transaction(served.bootstrap, "open", 600_000)
        (row,) = (line for line in tools.table(at("list")) if line.startswith("open"))
        assert row.split()[-1] == "Ongoing"
        described = at("describe", "--transactional-id", "open")
        assert "Ongoing" in described and "t-1" in described
        producers = tools.table(at("describe-producers", "--topic", "t", "--partition", "1"))
        assert any(line.split()[-1] == "0" for line in producers)  # its transaction begins at offset 0
        assert tools.table(at("find-hanging", "--broker-id", "1")) == [
            "Topic Partition ProducerId ProducerEpoch CoordinatorEpoch StartOffset LastTimestamp Duration(min)"
        ]
        at("abort", "--topic", "t", "--partition", "1", "--start-offset", "0")
        assert ends(served.bootstrap, ["t-1"])["t-1"][1:] == (2, 2)
        assert committed_numbers(served.bootstrap) == {"t-0": [], "t-1": []}


# ------------------------------------------------------------------------------------------------------ administration
def new_node(path: Path) -> Path:
    path.mkdir()
    format_new_node(path, Fs(), now_ms=time.time_ns() // 1_000_000)
    return path


def delete_records(bootstrap: str, file: Path, offsets: Mapping[str, int]) -> str:
    partitions = [{"topic": topic, "partition": 0, "offset": offset} for topic, offset in offsets.items()]
    file.write_text(json.dumps({"partitions": partitions, "version": 1}))
    return tools.tool(bootstrap, tools.DELETE_RECORDS, "--offset-json-file", str(file))


def change_everything(bootstrap: str, file: Path) -> None:
    """Make `kept` with 3 partitions and a config, delete some of its records, and make and delete `gone`."""
    for name in ("kept", "gone"):
        made = tools.tool(bootstrap, tools.TOPICS, "--create", "--topic", name, "--partitions", "2")
        assert f"Created topic {name}." in made
    tools.tool(bootstrap, tools.TOPICS, "--alter", "--topic", "kept", "--partitions", "3")
    topic = ("--entity-type", "topics", "--entity-name", "kept")
    tools.tool(bootstrap, tools.CONFIGS, "--alter", *topic, "--add-config", "retention.ms=-1,max.message.bytes=5000")
    tools.tool(bootstrap, tools.CONFIGS, "--alter", *topic, "--delete-config", "max.message.bytes")
    produce(bootstrap, "kept", 10)
    commit_offsets(bootstrap, "stays", {"kept-0": 7})
    commit_offsets(bootstrap, "goes", {"kept-0": 7})
    assert "low_watermark: 4" in delete_records(bootstrap, file, {"kept": 4})
    assert "successful" in tools.tool(bootstrap, tools.CONSUMER_GROUPS, "--delete", "--group", "goes")
    tools.tool(bootstrap, tools.TOPICS, "--delete", "--topic", "gone")


def check_everything(bootstrap: str) -> None:
    assert tools.table(tools.tool(bootstrap, tools.TOPICS, "--list", "--exclude-internal")) == ["kept"]
    described = tools.tool(bootstrap, tools.TOPICS, "--describe", "--topic", "kept")
    assert "PartitionCount: 3" in described
    assert "retention.ms=-1" in described
    assert "max.message.bytes" not in described
    assert ends(bootstrap, ["kept-0"])["kept-0"][:2] == (4, 10)
    assert committed_offsets(bootstrap, "stays", ["kept-0"])["kept-0"][0] == 7
    assert committed_offsets(bootstrap, "goes", ["kept-0"])["kept-0"][0] < 0


def test_a_broker_has_what_console_tools_changed_on_a_server_and_the_server_what_they_change_on_it(
    tmp_path: Path,
) -> None:
    data = new_node(tmp_path / "data")
    with serving(data) as served:
        change_everything(served.bootstrap, tmp_path / "offsets.json")
        check_everything(served.bootstrap)
    before = metadata_of(data)
    with running(node_on(data, tmp_path / "node")) as node:
        check_everything(node.bootstrap)
        tools.tool(node.bootstrap, tools.TOPICS, "--create", "--topic", "brokers", "--partitions", "1")
        assert_no_trouble(node)
        node.stop()
    assert metadata_of(data).topic_ids["kept"] == before.topic_ids["kept"]
    with serving(data) as served:
        tools.tool(served.bootstrap, tools.TOPICS, "--delete", "--topic", "brokers")
        tools.tool(served.bootstrap, tools.TOPICS, "--create", "--topic", "servers", "--partitions", "1")
        tools.tool(served.bootstrap, tools.TOPICS, "--delete", "--topic", "servers")
        check_everything(served.bootstrap)
    with running(node_on(data, tmp_path / "again")) as node:
        check_everything(node.bootstrap)
        assert_no_trouble(node)
    assert not list(data.glob("*-stray"))


# ----------------------------------------------------------------------------------------------------- log directories
MOVED = ["t-0", "t-1"]


class TwoDirectories:
    """A node with two log directories and a topic t, whose partitions 0 and 1 have records."""

    def __init__(self, home: Path) -> None:
        self.log_dirs = home / "a", home / "b"
        self.node = KafkaNode(home, {"log.dirs": ",".join(map(str, self.log_dirs))})
        self._file = home / "moves.json"
        with running(self.node):
            tools.tool(self.node.bootstrap, tools.TOPICS, "--create", "--topic", "t", "--partitions", "2")
            self.produce(self.node.bootstrap)
            self.records = confluent_records(self.node.bootstrap, MOVED, UNCOMMITTED)
        assert all(self.records[name] for name in MOVED)

    def serving(self) -> contextlib.AbstractContextManager[Any]:
        return serving(*self.log_dirs, "--config", self.node.config_file())

    @staticmethod
    def produce(bootstrap: str) -> None:
        """Add records to both partitions."""
        producer = confluent.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        for number in range(PER_TURN):
            producer.produce("t", f"value {number}", partition=number % 2)
        assert producer.flush(LIMIT_SECONDS) == 0

    def place_of(self, name: str) -> Path:
        (found,) = (path for path in self.log_dirs if (path / name).is_dir())
        return found

    def other_place_of(self, name: str) -> Path:
        a, b = self.log_dirs
        return b if self.place_of(name) == a else a

    def names_aside(self) -> list[str]:
        return [path.name for log_dir in self.log_dirs for path in log_dir.glob("t-*.*")]

    def reassign(self, bootstrap: str, targets: Mapping[str, Path], *options: str) -> str:
        """Call Kafka's tool with a file that names the log directories of partitions."""
        partitions = [
            {"topic": "t", "partition": int(name[2:]), "replicas": [1], "log_dirs": [str(path)]}
            for name, path in targets.items()
        ]
        self._file.write_text(json.dumps({"version": 1, "partitions": partitions}))
        return tools.tool(bootstrap, tools.REASSIGN_PARTITIONS, "--reassignment-json-file", str(self._file), *options)

    def refusals(self, bootstrap: str) -> list[tuple[int, str | None]]:
        """Return the errors of requests that move nothing."""
        found: list[tuple[int, str | None]] = []
        here = self.place_of("t-0")
        with Client.to(int(bootstrap.rpartition(":")[2])) as client:
            moves = m.AlterReplicaLogDirsRequest
            for path, topic, number in (
                (here, "t", 0),
                (here / "none", "t", 0),
                ("", "t", 0),
                (here, "t", 9),
                (here, "u", 0),
                (here, "x" * 249, 0),
            ):
                topics = [moves.AlterReplicaLogDirTopic(name=topic, partitions=[number])]
                request = moves(dirs=[moves.AlterReplicaLogDir(path=str(path), topics=topics)])
                (answer,) = client.ask(request, 2).results[0].partitions
                found.append((answer.error_code, None))
            changes = m.AlterPartitionReassignmentsRequest
            for topic, number, replicas in (
                ("t", 0, [1]),
                ("t", 0, None),
                ("t", 9, [1]),
                ("u", 0, [1]),
                ("t", 0, []),
                ("t", 0, [2, 1]),
                ("t", 0, [1, 1]),
            ):
                partition = changes.ReassignablePartition(partition_index=number, replicas=replicas)
                request = changes(topics=[changes.ReassignableTopic(name=topic, partitions=[partition])])
                (answer,) = client.ask(request, 0).responses[0].partitions
                found.append((answer.error_code, answer.error_message))
        return found

    def check_on_broker(self, targets: Mapping[str, Path]) -> None:
        """Start the broker: it has the records, finds no trouble, and leaves the partitions where they are."""
        with running(self.node) as node:
            assert confluent_records(node.bootstrap, MOVED, UNCOMMITTED) == self.records
            assert_no_trouble(node)
            assert "Reassignment of replica t-0-1 completed successfully." in self.reassign(
                node.bootstrap, targets, "--verify"
            )
        assert {name: self.place_of(name) for name in MOVED} == targets
        assert not any(list(path.glob("*-stray")) for path in self.log_dirs)


def test_the_tool_for_reassignments_moves_partitions_and_a_broker_finds_them_there(tmp_path: Path) -> None:
    cluster = TwoDirectories(tmp_path / "node")
    targets = {name: cluster.other_place_of(name) for name in MOVED}
    with cluster.serving() as served:
        said = cluster.reassign(
            served.bootstrap, targets, "--execute", "--replica-alter-log-dirs-throttle", "100000000"
        )
        for name, path in targets.items():
            assert f"Successfully started moving log directory to {path} for replica {name} with broker 1" in said
        wait_until(lambda: all((path / name).is_dir() for name, path in targets.items()))
        cluster.produce(served.bootstrap)
        said = cluster.reassign(served.bootstrap, targets, "--verify")
        assert "Reassignment of replica t-0-1 completed successfully." in said
        assert "Clearing broker-level throttles on broker 1" in said
        cluster.records = confluent_records(served.bootstrap, MOVED, UNCOMMITTED)
        refusals = cluster.refusals(served.bootstrap)
    cluster.check_on_broker(targets)
    with running(cluster.node) as node:
        assert refusals == cluster.refusals(node.bootstrap)


def test_a_broker_completes_a_move_that_a_server_left_before_or_after_its_assignment(tmp_path: Path) -> None:
    cluster = TwoDirectories(tmp_path / "node")
    targets = {name: cluster.other_place_of(name) for name in MOVED}
    with nodes.opened(*cluster.log_dirs, log_dirs=cluster.log_dirs) as backend:
        manager = backend._manager
        for name, target in targets.items():
            partition = TopicPartition("t", int(name[2:]))
            log, future = manager.get_log(partition), manager.create_future_log(partition, target)
            assert log is not None
            copy_next(log, future, 1)
        copied = TopicPartition("t", 0)
        log, future = manager.get_log(copied), manager.get_future_log(copied)
        assert log is not None and future is not None
        copy_rest(log, future)
        backend.topics._assign(copied, manager.directory_of(future))
    assert len([name for name in cluster.names_aside() if name.endswith("-future")]) == 2
    with running(cluster.node) as node:
        wait_until(lambda: all((path / name).is_dir() for name, path in targets.items()))
        assert confluent_records(node.bootstrap, MOVED, UNCOMMITTED) == cluster.records
    with cluster.serving() as served:
        assert confluent_records(served.bootstrap, MOVED, UNCOMMITTED) == cluster.records
        assert {name: cluster.place_of(name) for name in MOVED} == targets


# ----------------------------------------------------------------------------------------------------- the new protocol
def take_part(bootstrap: str, count: int) -> None:
    """Let a Java consumer of the new protocol read `count` new records of both topics, and look at its group."""
    with tools.group_member(bootstrap, "new", "static", "(ord|pay).*s", count) as (records, partitions):
        assert len(set(records)) == count
        assert partitions == "orders-0 orders-1 orders-2 payments-0"
        described = described_group(bootstrap)
        assert (described.state, described.type, described.partition_assignor) == (
            ConsumerGroupState.STABLE,
            ConsumerGroupType.CONSUMER,
            "uniform",
        )
        (member,) = described.members
        assert member.group_instance_id == "static"
        assert len(member.assignment.topic_partitions) == 4


def static_member_of(bootstrap: str) -> Any:
    (member,) = described_group(bootstrap).members
    return member


def described_group(bootstrap: str) -> Any:
    """Return the group, as soon as its coordinator has started."""
    client = admin_of(bootstrap)
    starting = (
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    )
    found: list[Any] = []

    def ask() -> bool:
        try:
            found.append(client.describe_consumer_groups(["new"])["new"].result())
        except KafkaException as error:
            assert error.args[0].code() in starting, error
        return bool(found)

    wait_until(ask)
    return found[0]


def admin_of(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def produce_to_both(bootstrap: str, count: int) -> None:
    for name in ("orders", "payments"):
        produce(bootstrap, name, count)


def test_a_group_of_the_new_protocol_goes_from_a_server_to_a_broker_and_back(tmp_path: Path) -> None:
    data = new_node(tmp_path / "data")
    names = ["orders-0", "orders-1", "orders-2", "payments-0"]
    with serving(data) as served:
        admin = admin_of(served.bootstrap)
        for made in admin.create_topics([NewTopic("orders", 3, 1), NewTopic("payments", 1, 1)]).values():
            made.result()
        produce_to_both(served.bootstrap, 20)
        take_part(served.bootstrap, 40)
        group = ("--describe", "--group", "new")
        members = tools.tool(served.bootstrap, tools.CONSUMER_GROUPS, *group, "--members", "--verbose")
        assigned = [("orders", "0,1,2"), ("payments", "0")]
        assert re.findall(r"(orders|payments)[:(]([0-9,]+)", members) == assigned * 2  # the second one is the target
        assert "uniform" in tools.tool(served.bootstrap, tools.CONSUMER_GROUPS, *group, "--state")
        listed = tools.tool(served.bootstrap, tools.CONSUMER_GROUPS, "--list", "--type", "consumer")
        assert "new Consumer" in tools.table(listed)
        left = static_member_of(served.bootstrap)
        offsets = committed_offsets(served.bootstrap, "new", names)
    with running(node_on(data, tmp_path / "node")) as node:
        kept = static_member_of(node.bootstrap)
        assert (kept.member_id, kept.group_instance_id) == (left.member_id, left.group_instance_id)
        assert {str(each) for each in kept.assignment.topic_partitions} == {
            str(each) for each in left.assignment.topic_partitions
        }
        assert committed_offsets(node.bootstrap, "new", names) == offsets
        produce_to_both(node.bootstrap, 5)
        take_part(node.bootstrap, 10)
        left = static_member_of(node.bootstrap)
        offsets = committed_offsets(node.bootstrap, "new", names)
        assert_no_trouble(node)
        node.stop()
    with serving(data) as served:
        assert static_member_of(served.bootstrap).member_id == left.member_id
        assert committed_offsets(served.bootstrap, "new", names) == offsets
        produce_to_both(served.bootstrap, 5)
        take_part(served.bootstrap, 10)


# ---------------------------------------------------------------------------------------------------------------- kills
@dataclass
class Known:
    """A topic as a client knows it: its id, number of partitions, and records in the last partition."""

    id: uuid.UUID
    count: int
    records: int = 0


class Changes:
    """A client that creates and deletes topics until its server is gone, and that remembers every answer."""

    def __init__(self, prefix: str, seed: int) -> None:
        self.topics: dict[str, Known] = {}
        self.answered = 0
        self.pending: str | None = None
        """The topic whose change was not answered; it may have happened or not."""
        self.produced: str | None = None
        """The topic whose last record was not answered."""
        self._chance = random.Random(seed)
        self._names = [f"{prefix}-{number}" for number in range(6)]

    def run(self, port: int) -> None:
        """Change topics until the connection breaks."""
        with contextlib.suppress(ConnectionError), Client.to(port) as client:
            while True:
                self.pending = name = self._chance.choice(self._names)
                if name in self.topics:
                    self._delete(client, name)
                else:
                    self._create(client, name)
                self.answered += 1
                self.pending = None
                if name in self.topics:
                    self.produced = name
                    self._produce(client, self.topics[name])
                    self.produced = None

    def _create(self, client: Client, name: str) -> None:
        count = self._chance.randint(1, 12)
        creation = m.CreateTopicsRequest
        topic = creation.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
        (made,) = client.ask(creation(topics=[topic], timeout_ms=60_000), 7).topics
        assert made.error_code == ErrorCode.NONE, made
        self.topics[name] = Known(made.topic_id, count)

    def _delete(self, client: Client, name: str) -> None:
        deletion = m.DeleteTopicsRequest
        asked = deletion(topics=[deletion.DeleteTopicState(name=name)], timeout_ms=60_000)
        (deleted,) = client.ask(asked, 6).responses
        assert deleted.error_code == ErrorCode.NONE, deleted
        del self.topics[name]

    @staticmethod
    def _produce(client: Client, topic: Known) -> None:
        answer = nodes.produce(client, batch(("k", "v")), number=topic.count - 1, asked_id=topic.id)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, topic.records)
        topic.records += 1

    def learn(self, found: Mapping[str, Known]) -> None:
        """Take from the cluster the outcomes of the requests that were not answered, and check all others."""
        if self.produced is not None:
            topic = self.topics[self.produced]
            topic.records = max(topic.records, min(found[self.produced].records, topic.records + 1))
            self.produced = None
        if self.pending is not None:
            before = self.topics.pop(self.pending, None)
            if self.pending in found:
                self.topics[self.pending] = found[self.pending]
                assert before in (None, found[self.pending])
            self.pending = None
        assert {name: found[name] for name in self._names if name in found} == self.topics


def topics_at(port: int) -> dict[str, Known]:
    """Return the topics of a cluster, after every partition has a leader."""
    with Client.to(port, LIMIT_SECONDS) as client:

        def listed() -> list[Any]:
            return [each for each in client.ask(m.MetadataRequest(topics=None), 12).topics if not each.is_internal]

        wait_until(lambda: not any(each.error_code for topic in listed() for each in topic.partitions))
        found = {each.name: Known(each.topic_id, len(each.partitions)) for each in listed()}
        request = m.ListOffsetsRequest
        asked = [
            request.ListOffsetsTopic(
                name=name, partitions=[request.ListOffsetsPartition(partition_index=each.count - 1, timestamp=-1)]
            )
            for name, each in found.items()
        ]

        def listed_ends() -> list[tuple[str, Any]]:
            topics = client.ask(request(replica_id=-1, topics=asked), 8).topics
            return [(topic.name, partition) for topic in topics for partition in topic.partitions]

        # A broker shows a leader shortly before the leader answers.
        wait_until(lambda: not any(partition.error_code for _, partition in listed_ends()))
        for name, partition in listed_ends():
            found[name].records = partition.offset
        return found


@contextlib.contextmanager
def changing(clients: Sequence[Changes], port: int) -> Iterator[None]:
    """Let clients change topics of a server that the body ends."""
    with ThreadPoolExecutor(len(clients)) as pool:
        runs = [pool.submit(client.run, port) for client in clients]
        yield
    for run in runs:
        run.result()


def wait_for_changes(clients: Sequence[Changes], count: int) -> None:
    """Wait until the clients have got `count` more answers."""
    enough = sum(client.answered for client in clients) + count
    wait_until(lambda: sum(client.answered for client in clients) >= enough)


def port_of(bootstrap: str) -> int:
    return int(bootstrap.rpartition(":")[2])


def check_broker(node: KafkaNode, clients: Sequence[Changes]) -> None:
    """Start a broker on its directory, and stop it; it has all that the clients know, and sets aside no live topic."""
    with running(node):
        found = topics_at(port_of(node.bootstrap))
        for client in clients:
            client.learn(found)
        node.stop()
    assert_no_errors(node)
    live_ids = set(metadata_of(node.data).topic_ids.values())
    for folder in node.data.glob("changed-*"):
        if not folder.name.endswith("-delete"):
            topic_id = read_partition_metadata(Fs(), folder / "partition.metadata")
            assert folder.name.endswith("-stray") != (topic_id in live_ids), folder


def assert_no_errors(node: KafkaNode) -> None:
    """Assert that the broker logged no errors since its last start."""
    lines = [line for line in node.said() if line.startswith(("ERROR", "FATAL"))]
    assert not [line for line in lines if not any(usual in line for usual in USUAL)]


def test_a_broker_has_every_answered_change_after_a_server_was_killed_during_changes(tmp_path: Path) -> None:
    data = new_node(tmp_path / "data")
    clients = [Changes(f"changed-{number}", number) for number in range(3)]
    chance = random.Random(19)
    for kill in range(1, KILLS + 1):
        with serving(data) as served:
            port = port_of(served.bootstrap)
            found = topics_at(port)
            for client in clients:
                client.learn(found)
            with changing(clients, port):
                wait_for_changes(clients, chance.randint(1, 12))
                time.sleep(chance.uniform(0, 0.05))
                served.kill()
        if kill == KILLS // 4:
            # The node itself goes on without a metadata log.
            copy = tmp_path / "copy"
            shutil.copytree(data, copy)
            check_broker(node_on(copy, tmp_path / "node-of-the-copy"), deepcopy(clients))
        elif kill % (KILLS // 4) == 0:
            check_broker(node_on(data, tmp_path / f"node-{kill}"), clients)


# -------------------------------------------------------------------------------------------------------------- levels
@pytest.mark.parametrize("level", [13, 20], ids=["3.6-IV1", "3.9"])
def test_a_broker_at_an_older_metadata_version_reads_the_changes_of_a_server(tmp_path: Path, level: int) -> None:
    data = new_node(tmp_path / "data")
    feature = m.FeatureLevelRecord(name=METADATA_VERSION, feature_level=level)
    records = format_bootstrap_checkpoint([encode_metadata_record(feature, 0)], now_ms=NOW_MS)
    (data / "bootstrap.checkpoint").write_bytes(records)
    client = Changes("changed", level)
    for turn in range(3):
        with serving(data) as served:
            found = topics_at(port_of(served.bootstrap))
            client.learn(found)
            with changing([client], port_of(served.bootstrap)):
                wait_for_changes([client], 12)
                served.stop()
        log = b"".join(path.read_bytes() for path in data.glob("__cluster_metadata-0/*.log"))
        assert (SERVER_TRANSACTION.encode() in log) == (turn > 0)
        check_broker(node_on(data, tmp_path / f"node-{turn}"), [client])
        assert metadata_of(data).features[METADATA_VERSION] == level
    assert not list(data.glob("*-stray"))


def test_the_recorded_answers_are_those_of_a_broker(tmp_path: Path) -> None:
    kafka = KafkaNode(tmp_path / "node", {"node.id": str(NODE.node_id)})
    with running(kafka), Client.to(port_of(kafka.bootstrap), LIMIT_SECONDS) as client:
        recorded = json.loads(lzma.decompress(RECORDED.read_bytes()))
        lines = AdminScript(client, recorded).run()
    (tmp_path / RECORDED.name).write_bytes(lzma.compress(json.dumps(lines).encode()))
    assert lines == recorded, f"Kafka's answers are in {tmp_path}"


# ----------------------------------------------------------------------------------------------------- dynamic configs
def test_the_recorded_answers_to_changes_of_configs_are_those_of_a_broker(tmp_path: Path) -> None:
    kafka = KafkaNode(tmp_path / "node", {"node.id": str(NODE.node_id)})
    with running(kafka), Client.to(port_of(kafka.bootstrap), LIMIT_SECONDS) as client:
        recorded = json.loads(lzma.decompress(RECORDED_CONFIGS.read_bytes()))
        lines = json.loads(json.dumps(ConfigScript(client, NODE.node_id, recorded).run()))
    (tmp_path / RECORDED_CONFIGS.name).write_bytes(lzma.compress(json.dumps(lines).encode()))
    assert lines == recorded, f"Kafka's answers are in {tmp_path}"


def change_dynamic_configs(bootstrap: str, node: str) -> None:
    for kind, name, config in (
        ("brokers", node, "log.cleaner.backoff.ms=77"),
        ("groups", "billing", "consumer.session.timeout.ms=46000"),
        ("client-metrics", "all", "interval.ms=2000,metrics=[org.apache.kafka.consumer.,other]"),
        ("topics", "kept", "cleanup.policy=delete,retention.ms=86400000"),
    ):
        entity = ("--entity-type", kind, "--entity-name", name)
        tools.tool(bootstrap, tools.CONFIGS, "--alter", *entity, "--add-config", config)
    default = ("--entity-type", "brokers", "--entity-default")
    tools.tool(bootstrap, tools.CONFIGS, "--alter", *default, "--add-config", "log.retention.ms=172800000")


def check_dynamic_configs(bootstrap: str, node: str) -> None:
    def described(kind: str, *names: str) -> str:
        return tools.tool(bootstrap, tools.CONFIGS, "--describe", "--entity-type", kind, *names)

    assert "log.retention.ms=172800000 sensitive=false" in described("brokers", "--entity-default")
    of_node = described("brokers", "--entity-name", node, "--all")
    assert (
        "log.cleaner.backoff.ms=77 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:log.cleaner.backoff.ms=77" in of_node
    )
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=172800000" in of_node
    assert "consumer.session.timeout.ms=46000 sensitive=false" in described("groups", "--entity-name", "billing")
    assert "interval.ms=2000 sensitive=false" in described("client-metrics", "--entity-name", "all")
    of_topic = described("topics", "--entity-name", "kept", "--all")
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=86400000" in of_topic


def test_dynamic_configs_go_from_a_server_to_a_broker_and_back(tmp_path: Path) -> None:
    data = new_node(tmp_path / "data")
    node = str(open_node([data], None, Fs()).node.node_id)
    with serving(data) as served:
        tools.tool(served.bootstrap, tools.TOPICS, "--create", "--topic", "kept", "--partitions", "1")
        change_dynamic_configs(served.bootstrap, node)
        check_dynamic_configs(served.bootstrap, node)
    with running(node_on(data, tmp_path / "node")) as broker:
        check_dynamic_configs(broker.bootstrap, node)
        assert_no_trouble(broker)
        broker.stop()
    with serving(data) as served:
        check_dynamic_configs(served.bootstrap, node)
        assert any("retention: kept" in line for line in served.said)


# ---------------------------------------------------------------------------------------------------------- SCRAM users
def test_the_recorded_answers_to_changes_of_users_are_those_of_a_broker(tmp_path: Path) -> None:
    kafka = KafkaNode(tmp_path / "node", {"node.id": str(NODE.node_id)})
    with running(kafka), Client.to(port_of(kafka.bootstrap), LIMIT_SECONDS) as client:
        recorded = json.loads(lzma.decompress(RECORDED_USERS.read_bytes()))
        lines = json.loads(json.dumps(ScramScript(client, recorded).run()))
    (tmp_path / RECORDED_USERS.name).write_bytes(lzma.compress(json.dumps(lines).encode()))
    assert lines == recorded, f"Kafka's answers are in {tmp_path}"


def test_the_recorded_descriptions_of_configs_are_those_of_a_broker(tmp_path: Path) -> None:
    kafka = KafkaNode(tmp_path / "node")
    with running(kafka), Client.to(port_of(kafka.bootstrap), LIMIT_SECONDS) as client:
        tools.tool(kafka.bootstrap, tools.TOPICS, "--create", "--topic", "p")
        names = {"broker": "1", "topic": "p", "group": "g", "client-metrics": "s"}
        found = json.loads(json.dumps(described(client, names)))
    (tmp_path / RECORDED_DESCRIPTIONS.name).write_bytes(lzma.compress(json.dumps(found, sort_keys=True).encode()))
    wanted = recorded()
    for configs in (found["broker"], wanted["broker"]):
        for name in ("controller.quorum.voters", "listeners", "log.dirs"):  # ports and directories
            del configs[name]["values"]
    assert found == wanted, f"Kafka's configs are in {tmp_path}"


def log_in(bootstrap: str, password: str, **options: str) -> set[str]:
    """Return the topics that the user `alice` sees."""
    login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice", "sasl.password": password, **options}
    return set(AdminClient({"bootstrap.servers": bootstrap, **login}).list_topics(timeout=LIMIT_SECONDS).topics)


def test_users_of_kafkas_tools_log_in_at_a_server_and_then_at_a_broker(tmp_path: Path) -> None:
    data = new_node(tmp_path / "data")
    with serving(data) as served:
        tools.tool(served.bootstrap, tools.TOPICS, "--create", "--topic", "kept", "--partitions", "1")
        for user in ("alice", "bob"):
            entity = ("--entity-type", "users", "--entity-name", user)
            added = f"SCRAM-SHA-256=[iterations=4096,password={user}-secret]"
            tools.tool(served.bootstrap, tools.CONFIGS, "--alter", *entity, "--add-config", added)
        tools.tool(served.bootstrap, tools.CONFIGS, "--alter", *entity, "--delete-config", "SCRAM-SHA-256")
        described = tools.tool(served.bootstrap, tools.CONFIGS, "--describe", "--entity-type", "users")
        shown = "SCRAM credential configs for user-principal 'alice' are SCRAM-SHA-256=iterations=4096"
        assert described.strip() == shown
        assert "secret" not in "\n".join(served.said)
    with exposed_server(data, tmp_path) as exposed:
        options = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(exposed.certificates.authority)}
        assert log_in(f"localhost:{exposed.server.bound.port}", "alice-secret", **options) == {"kept"}
    broker = node_on(data, tmp_path / "node")
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="alice-secret";'
    broker.configure(
        {
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
            "listener.name.plaintext.scram-sha-256.sasl.jaas.config": login,
        }
    )
    with running(broker):
        assert log_in(broker.bootstrap, "alice-secret", **{"security.protocol": "SASL_PLAINTEXT"}) == {"kept"}
        broker.stop()
