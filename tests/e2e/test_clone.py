"""A stock broker on clones of the directories of stopped nodes: its clients see what the source held."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.consumers import (
    COMMITTED,
    UNCOMMITTED,
    WAIT_SECONDS,
    committed_offsets,
    confluent_records,
    ends,
)
from tests.corpus import unpack_logs
from tests.e2e import console_tools as tools
from tests.e2e.clients import (
    PROPERTIES,
    Workload,
    create_one_partition_topics,
    create_topics,
    look,
    produce,
    read_by_two_clients,
    take_over,
)
from tests.e2e.kraft import KafkaNode, assert_no_trouble, running
from tests.jobs.log_dirs import Outcome, sediment_process
from tests.ports import free_port
from tests.served import GROUPS, answers_of, as_json, contents, expected, unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]


def clone(*arguments: object) -> Outcome:
    outcome = sediment_process("clone", *arguments, "--json", timeout=600)
    assert outcome.status == 0, outcome.stderr
    return outcome


def cloned_node(tmp_path: Path, *arguments: object) -> tuple[KafkaNode, Outcome]:
    """Return a node that is to start on a new clone, and the result of the command."""
    to = tmp_path / "clone"
    port = free_port()
    outcome = clone(*arguments, "--to", to, "--listen", f"127.0.0.1:{port}")
    return KafkaNode(tmp_path / "node", file=to / "server.properties"), outcome


def wait_for_end(node: KafkaNode, name: str, *offsets: int) -> None:
    """Wait until the high watermark of the partition is one of `offsets`."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := ends(node.bootstrap, [name])[name][1]) not in offsets:
        assert time.monotonic() < deadline, (name, found, offsets)
        time.sleep(0.5)


def topic_configs(bootstrap: str, topic: str) -> str:
    return tools.tool(bootstrap, tools.CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", topic)


def test_a_broker_on_a_clone_gives_everything_of_the_source_and_goes_on(tmp_path: Path) -> None:
    source = unpacked(tmp_path / "source")
    before = contents(source)
    node, outcome = cloned_node(tmp_path, source)
    assert contents(source) == before
    assert {row["status"] for row in outcome.report["partitions"]} == {"cloned"}
    with running(node):
        assert answers_of(node.bootstrap) == expected()
        assert "internal.segment.bytes=3000" in topic_configs(node.bootstrap, "orders")
        assert "cleanup.policy=compact" in topic_configs(node.bootstrap, "prices")
        assert "unfinished" in tools.tool(node.bootstrap, tools.TRANSACTIONS, "list")
        assert_no_trouble(node)
        produce(node.bootstrap, "orders", 10, enable_idempotence="true")
        produce(node.bootstrap, "orders", 10, transactional_id="new")
        produce(node.bootstrap, "payments", 5, transactional_id="cashier")
        node.kill()
    with running(node):
        wanted: Mapping[str, list[int]] = expected()["ends"]
        # The coordinator writes a marker after the commit.  If it is killed before it has noted that the transaction is
        # complete, it writes the marker after the restart, for the second time if the first one was in the log.
        for name, records in ("orders-0", 20), ("payments-0", 5):
            end = wanted[name][1] + records
            wait_for_end(node, name, end + 1, end + 2)
        for isolation in (COMMITTED, UNCOMMITTED):
            seen = as_json(confluent_records(node.bootstrap, ["orders-0"], isolation))["orders-0"]
            assert seen[:-20] == expected()["records"][isolation]["orders-0"]
        for group in GROUPS:
            assert committed_offsets(node.bootstrap, group, ["orders-0"])["orders-0"][0] in (5, 6)
        assert not list(node.data.glob("*-stray"))


def test_a_renamed_subset_brings_its_groups_and_no_others(tmp_path: Path) -> None:
    source = unpacked(tmp_path / "source")
    arguments = ("--topic", "orders", "--topic", "prices", "--rename", "orders=orders_test")
    node, outcome = cloned_node(tmp_path, source, *arguments)
    assert {topic["name"] for topic in outcome.report["topics"]} == {
        "orders_test",
        "prices",
        "__consumer_offsets",
        "__transaction_state",
    }
    with running(node):
        names = ["orders_test-0", "orders_test-1"]
        for isolation in (COMMITTED, UNCOMMITTED):
            seen = as_json(confluent_records(node.bootstrap, names, isolation))
            for name in names:
                assert seen[name] == expected()["records"][isolation][name.replace("_test", "")]
        for number, group in enumerate(GROUPS):
            found = committed_offsets(node.bootstrap, group, names)
            assert {name: tuple(offset) for name, offset in found.items()} == dict.fromkeys(
                names, (5 + number, f"by {group}")
            )
        described = tools.tool(node.bootstrap, tools.CONSUMER_GROUPS, "--describe", "--all-groups")
        assert "orders_test" in described and " orders " not in described
        assert "unfinished" not in tools.tool(node.bootstrap, tools.TRANSACTIONS, "list")
        assert_no_trouble(node)
        produce(node.bootstrap, "orders_test", 3, transactional_id="cashier")
        node.kill()
    with running(node):
        wait_for_end(node, "orders_test-0", expected()["ends"]["orders-0"][1] + 4)


# -------------------------------------------------------------------------------------------------------------- corpus
def test_every_partition_of_the_corpus_is_read_from_a_clone_as_from_its_broker(tmp_path: Path) -> None:
    """All codecs, transactions, message formats 0 to 2, before and after a cleaning."""
    corpus = unpack_logs(tmp_path)
    names = [f"{topic}-0" for topic in corpus]
    source = KafkaNode(tmp_path / "source", PROPERTIES)
    with running(source):
        create_one_partition_topics(source, list(corpus))
    take_over(source.data, corpus)
    with running(source):
        before = read_by_two_clients(source, names)
    node, outcome = cloned_node(tmp_path, source.data)
    assert {row["status"] for row in outcome.report["partitions"]} == {"cloned"}
    with running(node):
        after = read_by_two_clients(node, names)
        assert_no_trouble(node)
    assert after == before
    records, _ = before
    assert sum(map(len, records[UNCOMMITTED].values())) > sum(map(len, records[COMMITTED].values())) > 0


# ------------------------------------------------------------------------------------------------------- three brokers
REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "log.cleaner.enable": "false",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[KafkaNode]]:
    """Yield three running nodes, the first of which is the controller too."""
    first = KafkaNode(tmp_path / "node-1", REPLICATED)
    others = [KafkaNode(tmp_path / f"node-{n}", {**REPLICATED, "node.id": str(n)}, joins=first) for n in (2, 3)]
    nodes = [first, *others]
    try:
        for node in nodes:
            node.start()
        yield nodes
    finally:
        for node in nodes:
            node.close()


@pytest.mark.parametrize("end", [KafkaNode.kill, KafkaNode.stop])
def test_three_brokers_become_one_node(
    cluster: list[KafkaNode], end: Callable[[KafkaNode], None], tmp_path: Path
) -> None:
    first = cluster[0]
    create_topics(first)
    replicated = NewTopic("replicated", 2, 3, config={"min.insync.replicas": "2"})
    client = AdminClient({"bootstrap.servers": first.bootstrap})
    gone = NewTopic("gone", 2, 3)
    for future in client.create_topics([replicated, gone]).values():
        future.result(WAIT_SECONDS)
    produce(first.bootstrap, "gone", 10)
    client.delete_topics(["gone"])["gone"].result(WAIT_SECONDS)
    Workload(first, seed=20).produce(batches=12)
    produce(first.bootstrap, "replicated", 40, enable_idempotence="true", acks="all")
    tools.tool(
        first.bootstrap,
        tools.CONSOLE_CONSUMER,
        *("--topic", "replicated", "--group", "java", "--from-beginning", "--max-messages", "40"),
        *("--timeout-ms", "60000", "--consumer-property", "group.protocol=consumer"),
    )
    before = look(first)
    java = committed_offsets(first.bootstrap, "java", ["replicated-0"])
    assert java["replicated-0"][0] == 40
    for node in reversed(cluster):  # the controller last, because the stop of a broker needs it
        end(node)
    node, outcome = cloned_node(tmp_path, *(each.data for each in cluster))
    assert {row["status"] for row in outcome.report["partitions"]} == {"cloned"}
    assert {(row["topic"], row["key"]) for row in outcome.report["changed_configs"] if not row["held"]} == {
        ("replicated", "min.insync.replicas"),
        ("__transaction_state", "min.insync.replicas"),
    }
    with running(node):
        after = look(node)
        assert after.ends == before.ends
        assert after.offsets == before.offsets
        assert after.records == before.records
        assert committed_offsets(node.bootstrap, "java", ["replicated-0"]) == java
        assert "gone" not in AdminClient({"bootstrap.servers": node.bootstrap}).list_topics(timeout=WAIT_SECONDS).topics
        quorum = tools.tool(node.bootstrap, tools.METADATA_QUORUM, "describe", "--status")
        assert re.search(r"LeaderId: +1\n", quorum) and re.search(r"MaxFollowerLag: +0\n", quorum)
        assert "writer-0" in tools.tool(node.bootstrap, tools.TRANSACTIONS, "list")
        # A client of the newest protocol asks by topic id.
        described = tools.tool(node.bootstrap, tools.CONSUMER_GROUPS, "--describe", "--group", "java")
        assert re.search(r"replicated +0 +40 +40 +0", described)
        assert_no_trouble(node)
        produce(node.bootstrap, "replicated", 5, transactional_id="writer-0", acks="all")
        assert "Dynamic" in tools.tool(node.bootstrap, tools.CONFIGS, "--describe", "--entity-type", "topics")
        node.kill()
    with running(node):
        wait_for_end(node, "replicated-0", 46)


# -------------------------------------------------------------------------------------------------------------- adopt
def test_a_broker_starts_on_adopted_folders(tmp_path: Path) -> None:
    log_dir = unpacked(tmp_path / "data")
    shutil.rmtree(log_dir / "__cluster_metadata-0")
    for name in ("meta.properties", "bootstrap.checkpoint"):
        (log_dir / name).unlink()
    outcome = sediment_process("adopt", log_dir, "--yes", "--json", "--listen", f"127.0.0.1:{free_port()}", timeout=600)
    assert outcome.status == 0, outcome.stderr
    node = KafkaNode(tmp_path / "node", file=log_dir / "server.properties")
    with running(node):
        assert answers_of(node.bootstrap) == expected()
        assert_no_trouble(node)
        produce(node.bootstrap, "orders", 5, enable_idempotence="true")
