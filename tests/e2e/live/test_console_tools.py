"""Kafka's console tools print on a live server what they print on a broker that has the same directory."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.consumers import commit_offsets, confluent_consumer
from tests.e2e import console_tools as tools
from tests.e2e.clients import produce
from tests.e2e.kraft import running
from tests.e2e.live.nodes import node_file, node_on
from tests.e2e.test_live_serve import new_node, open_transaction
from tests.served import serving
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

Command = tuple[str, ...]
_RECORDS = 13
_VARIABLE = (
    (re.compile(r"127\.0\.0\.1[: \t]\d+"), "ADDRESS"),
    (re.compile(r"((?:Ongoing|Complete\w+)\s+\d+\s+\d+\s+)\d+"), r"\1"),  # the age of a transaction
    (re.compile(r"Epoch: \d+"), ""),  # an offset of the metadata log
    # A new node had no election, and the broker's metadata log has further records.  No controller listens.
    (re.compile(r"((?:LeaderEpoch|HighWatermark):)\s+\d+"), r"\1"),
    (re.compile(r', "endpoints": \[[^]]*\]'), ""),
    (re.compile(r"^(1\s+[\w-]{22}\s+)\d+(\s+\d+\s+)\d+\s+\d+(\s+Leader)"), r"\1\2\3"),
    (re.compile(r"DYNAMIC_DEFAULT_BROKER_CONFIG:min\.insync\.replicas=1, "), ""),
    (re.compile(r"(?<![\w-])[A-Za-z0-9_-]{22}(?![\w-])"), "ID"),
    (re.compile(r"\b1[7-9]\d{11}\b"), "TIME"),
    (re.compile(r"\s+"), " "),
)
# What a broker writes when it first becomes controller.
_BROKERS_OWN = re.compile(r"DYNAMIC_DEFAULT_BROKER_CONFIG:min.insync.replicas=1}")
_STACK = ("\tat ", "Caused by: ", "\t... ")


def printed(bootstrap: str, data: Path, commands: list[Command]) -> Iterator[str]:
    """Yield what the tools print on a server of `data`, without what differs from run to run."""
    for command, found in zip(commands, tools.tools_in_turn(bootstrap, commands), strict=True):
        name, *arguments = command
        said = [line.replace(str(data), "DATA") for line in found.lines if is_compared(line)]
        for pattern, word in _VARIABLE:
            said = [pattern.sub(word, line) for line in said]
        yield "\n".join([f"{name.rpartition('.')[2]} {' '.join(arguments)}: {found.status}", *sorted(said)])


def is_compared(line: str) -> bool:
    return not line.startswith(_STACK) and not _BROKERS_OWN.search(line)


def file_of(folder: Path, name: str, content: object) -> str:
    file = folder / name
    file.write_text(json.dumps(content))
    return str(file)


def changes_of_topics(folder: Path) -> list[Command]:
    topic = ("--entity-type", "topics", "--entity-name", "orders")
    return [
        (tools.TOPICS, "--create", "--topic", "orders", "--partitions", "2", "--config", "retention.ms=-1"),
        (tools.TOPICS, "--create", "--topic", "gone", "--partitions", "1", "--replication-factor", "1"),
        (tools.TOPICS, "--create", "--topic", "assigned", "--replica-assignment", "1,1"),
        (tools.TOPICS, "--create", "--topic", "orders"),
        (tools.TOPICS, "--create", "--topic", "orders", "--if-not-exists"),
        (tools.TOPICS, "--create", "--topic", "bad name"),
        (tools.TOPICS, "--create", "--topic", "many", "--replication-factor", "2"),
        (tools.TOPICS, "--create", "--topic", "none", "--partitions", "0"),
        (tools.TOPICS, "--create", "--topic", "unset", "--config", "retention.ms=often"),
        (tools.TOPICS, "--alter", "--topic", "orders", "--partitions", "3"),
        (tools.TOPICS, "--alter", "--topic", "orders", "--partitions", "2"),
        (tools.TOPICS, "--alter", "--topic", "unknown", "--partitions", "2"),
        (tools.TOPICS, "--delete", "--topic", "gone"),
        (tools.TOPICS, "--delete", "--topic", "unknown"),
        (tools.TOPICS, "--list"),
        (tools.TOPICS, "--describe"),
        (tools.TOPICS, "--describe", "--topic", "unknown"),
        (tools.TOPICS, "--describe", "--topics-with-overrides"),
        (tools.TOPICS, "--describe", "--unavailable-partitions"),
        (tools.TOPICS, "--describe", "--under-replicated-partitions"),
        (tools.TOPICS, "--describe", "--under-min-isr-partitions"),
        (tools.TOPICS, "--describe", "--at-min-isr-partitions"),
        (tools.CONFIGS, "--alter", *topic, "--add-config", "max.message.bytes=5000,cleanup.policy=[compact,delete]"),
        (tools.CONFIGS, "--alter", *topic, "--add-config", "max.message.bytes=many"),
        (tools.CONFIGS, "--alter", *topic, "--add-config", "no.such.key=1"),
        (tools.CONFIGS, "--alter", *topic, "--delete-config", "max.message.bytes"),
        (tools.CONFIGS, "--alter", *topic, "--delete-config", "segment.bytes"),
        (tools.CONFIGS, "--alter", *topic[:-1], "unknown", "--add-config", "segment.ms=9"),
        (tools.CONFIGS, "--describe", *topic),
        (tools.CONFIGS, "--describe", *topic, "--all"),
        (tools.CONFIGS, "--describe", "--entity-type", "topics"),
    ]


def other_configs() -> list[Command]:
    broker, defaults = (
        ("--entity-type", "brokers", "--entity-name", "1"),
        ("--entity-type", "brokers", "--entity-default"),
    )
    group, metrics = ("--entity-type", "groups", "--entity-name", "g"), ("--entity-type", "client-metrics")
    changed: list[tuple[tuple[str, ...], str]] = [
        (broker, "log.cleaner.backoff.ms=77"),
        (broker, "node.id=4"),
        (defaults, "log.roll.ms=99999999"),
        (group, "consumer.session.timeout.ms=46000"),
        (group, "consumer.session.timeout.ms=1"),
        ((*metrics, "--entity-name", "all"), "interval.ms=2000"),
    ]
    described = (broker, defaults, group, (*metrics, "--entity-name", "all"), metrics, ("--entity-type", "groups"))
    return [
        *((tools.CONFIGS, "--alter", *entity, "--add-config", given) for entity, given in changed),
        *((tools.CONFIGS, "--describe", *entity) for entity in described),
        (tools.CONFIGS, "--describe", *group, "--all"),
        (tools.CONFIGS, "--alter", *broker, "--delete-config", "log.cleaner.backoff.ms"),
        (tools.CONFIGS, "--describe", *broker),
        (tools.CONFIGS, "--describe", "--entity-type", "broker-loggers", "--entity-name", "5"),
    ]


def reads_of_records(folder: Path) -> list[Command]:
    consumer = ("--topic", "orders", "--partition", "0", "--timeout-ms", "9000")
    shown = [each for name in ("offset", "key", "partition") for each in ("--formatter-property", f"print.{name}=true")]
    records = {"partitions": [{"topic": "orders", "partition": 0, "offset": 4}], "version": 1}
    too_many = {"partitions": [{"topic": "orders", "partition": 0, "offset": 400}], "version": 1}
    times = ("-1", "-2", "-3", "-4", "-5", "0", "latest", "max-timestamp")
    return [
        (tools.CONSOLE_CONSUMER, *consumer, "--from-beginning", "--max-messages", "5", *shown),
        (tools.CONSOLE_CONSUMER, *consumer, "--offset", "7", "--max-messages", "3", *shown),
        *((tools.GET_OFFSETS, "--time", time) for time in times),
        (tools.GET_OFFSETS, "--topic-partitions", "orders:0,orders:7"),
        (tools.GET_OFFSETS, "--topic", "unknown"),
        (tools.DELETE_RECORDS, "--offset-json-file", file_of(folder, "delete.json", records)),
        (tools.DELETE_RECORDS, "--offset-json-file", file_of(folder, "too-many.json", too_many)),
        (tools.GET_OFFSETS, "--topic", "orders", "--time", "earliest"),
        (tools.LOG_DIRS, "--describe", "--topic-list", "orders,assigned"),
        (tools.LOG_DIRS, "--describe", "--broker-list", "1,9"),
    ]


def groups(folder: Path) -> list[Command]:
    group, reset = ("--group", "billing"), ("--reset-offsets", "--group", "billing")
    to = ("--to-earliest", "--to-latest", "--to-current")
    return [
        (tools.CONSUMER_GROUPS, "--list"),
        (tools.CONSUMER_GROUPS, "--list", "--state"),
        (tools.CONSUMER_GROUPS, "--list", "--type"),
        (tools.CONSUMER_GROUPS, "--list", "--type", "consumer"),
        (tools.CONSUMER_GROUPS, "--list", "--state", "stable"),
        *((tools.CONSUMER_GROUPS, "--describe", *group, *which) for which in ((), ("--members", "--verbose"))),
        (tools.CONSUMER_GROUPS, "--describe", *group, "--state", "--verbose"),
        (tools.CONSUMER_GROUPS, "--describe", *group, "--offsets", "--verbose"),
        (tools.CONSUMER_GROUPS, "--describe", "--all-groups"),
        (tools.CONSUMER_GROUPS, "--describe", "--group", "unknown"),
        (tools.CONSUMER_GROUPS, "--describe", "--group", "new", "--state", "--verbose"),
        (tools.CONSUMER_GROUPS, "--describe", "--group", "new", "--offsets", "--verbose"),
        *((tools.CONSUMER_GROUPS, *reset, "--topic", "orders", each, "--dry-run") for each in to),
        (tools.CONSUMER_GROUPS, *reset, "--all-topics", "--shift-by", "-2", "--execute"),
        (tools.CONSUMER_GROUPS, *reset, "--topic", "orders:0", "--to-offset", "6", "--execute"),
        (tools.CONSUMER_GROUPS, *reset, "--topic", "orders", "--to-datetime", "2020-01-01T00:00:00.000", "--dry-run"),
        (tools.CONSUMER_GROUPS, *reset, "--topic", "orders", "--by-duration", "PT1S", "--export", "--dry-run"),
        (tools.CONSUMER_GROUPS, *reset, "--topic", "unknown", "--to-earliest", "--execute"),
        (tools.CONSUMER_GROUPS, "--delete-offsets", *group, "--topic", "orders:1"),
        (tools.CONSUMER_GROUPS, "--delete-offsets", *group, "--topic", "unknown"),
        (tools.CONSUMER_GROUPS, "--describe", *group),
        (tools.CONSUMER_GROUPS, "--delete", *group),
        (tools.CONSUMER_GROUPS, "--delete", "--group", "unknown"),
        (tools.CONSUMER_GROUPS, "--list"),
    ]


def transactions(folder: Path) -> list[Command]:
    at = ("--topic", "orders", "--partition", "1")
    return [
        (tools.TRANSACTIONS, "list"),
        (tools.TRANSACTIONS, "list", "--duration-filter", "9000000"),
        (tools.TRANSACTIONS, "describe", "--transactional-id", "done"),
        (tools.TRANSACTIONS, "describe", "--transactional-id", "unknown"),
        (tools.TRANSACTIONS, "describe-producers", *at),
        (tools.TRANSACTIONS, "find-hanging", "--broker-id", "1"),
        (tools.TRANSACTIONS, "abort", *at, "--start-offset", "77"),
        (tools.TRANSACTIONS, "forceTerminateTransaction", "--transactional-id", "open"),
        (tools.TRANSACTIONS, "list"),
    ]


def the_cluster(folder: Path) -> list[Command]:
    principal = ("--allow-principal", "User:a", "--operation", "read", "--topic", "orders")
    moved = {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1]}]}
    same = file_of(folder, "same.json", moved)
    unknown = {"version": 1, "partitions": [{"topic": "unknown", "partition": 0, "replicas": [1]}]}
    twice = {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 9]}]}
    reassigned = ("--reassignment-json-file", same)
    return [
        (tools.ACLS, "--list"),
        (tools.ACLS, "--add", *principal),
        (tools.ACLS, "--remove", "--force", *principal),
        (tools.CLUSTER, "cluster-id"),
        (tools.CLUSTER, "list-endpoints"),
        (tools.FEATURES, "describe"),
        (tools.METADATA_QUORUM, "describe", "--status"),
        (tools.METADATA_QUORUM, "describe", "--replication"),
        (tools.ELECTION, "--election-type", "preferred", "--all-topic-partitions"),
        (tools.ELECTION, "--election-type", "preferred", "--topic", "orders", "--partition", "0"),
        (tools.ELECTION, "--election-type", "unclean", "--topic", "orders", "--partition", "0"),
        (tools.REASSIGNMENTS, "--list"),
        (tools.REASSIGNMENTS, "--execute", *reassigned),
        (tools.REASSIGNMENTS, "--verify", *reassigned),
        (tools.REASSIGNMENTS, "--cancel", *reassigned),
        (tools.REASSIGNMENTS, "--execute", "--reassignment-json-file", file_of(folder, "unknown.json", unknown)),
        (tools.REASSIGNMENTS, "--execute", "--reassignment-json-file", file_of(folder, "other.json", twice)),
        (tools.REASSIGNMENTS, "--list"),
    ]


def fill(bootstrap: str) -> None:
    """Produce, commit offsets and run transactions, so that the tools have something to show."""
    produce(bootstrap, "orders", _RECORDS - 3)
    produce(bootstrap, "orders", 3, transactional_id="done")
    open_transaction(bootstrap, "open", 900_000, topic="orders")
    commit_offsets(bootstrap, "billing", {"orders-0": 7, "orders-1": 0})
    with confluent_consumer(
        bootstrap, group_id="new", group_protocol="consumer", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(["orders"])
        read: list[int] = []

        def has_read_all() -> bool:
            read.extend(each.offset() for each in consumer.consume(100, 0.1) if each.error() is None)
            return len(read) == _RECORDS

        wait_until(has_read_all)
        consumer.commit(asynchronous=False)


def everything_printed(bootstrap: str, data: Path, folder: Path) -> list[str]:
    found = list(printed(bootstrap, data, changes_of_topics(folder)))
    fill(bootstrap)
    for commands in (
        other_configs(),
        reads_of_records(folder),
        groups(folder),
        transactions(folder),
        the_cluster(folder),
    ):
        found += printed(bootstrap, data, commands)
    return found


def test_tools_print_on_a_server_what_they_print_on_a_broker(tmp_path: Path) -> None:
    data = new_node(tmp_path / "data")
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    with running(node_on(copy, tmp_path / "node")) as node:
        wanted = everything_printed(node.bootstrap, copy, tmp_path)
    with serving(data, "--config", node_file(data)) as served:
        found = everything_printed(served.bootstrap, data, tmp_path)
    assert found == wanted
