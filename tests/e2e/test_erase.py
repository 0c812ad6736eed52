"""`sediment erase` between two starts of a broker: what clients then read, and how their producers go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient, NewTopic

from sediment.records import batches
from tests.consumers import COMMITTED, UNCOMMITTED, WAIT_SECONDS, confluent_records, ends
from tests.e2e.clients import transactional
from tests.e2e.kraft import KafkaNode, running
from tests.jobs.erasing.evidence_keys import Keys, document, make_keys
from tests.jobs.log_dirs import sediment_process
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TOPIC, NAME = "people", "people-0"
SUBJECT = b"subject-4711"
RECORDS = 30
ISOLATIONS = (UNCOMMITTED, COMMITTED)
LEADER, FOLLOWER = 2, 1


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[int, KafkaNode]]:
    """Yield two running nodes by their ids; the first is the controller too."""
    first = KafkaNode(tmp_path / "node-1", {"log.cleaner.enable": "false"})
    second = KafkaNode(tmp_path / "node-2", {"log.cleaner.enable": "false", "node.id": "2"}, joins=first)
    found = {1: first, 2: second}
    try:
        for node in found.values():
            node.start()
        yield found
    finally:
        for node in found.values():
            node.close()


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    (tmp_path / "keys.txt").write_bytes(SUBJECT + b"\n")
    (tmp_path / "secret").write_bytes(b"a secret of the operator\n")
    return make_keys(tmp_path, "key")


def fill(node: KafkaNode) -> None:
    """Create the topic with a replica on both nodes, whose preferred leader is LEADER, and write to it."""
    topic = NewTopic(TOPIC, 1, replica_assignment=[[LEADER, FOLLOWER]], config={"cleanup.policy": "delete"})
    client = AdminClient({"bootstrap.servers": node.bootstrap})
    for future in client.create_topics([topic]).values():
        future.result(WAIT_SECONDS)
    producer = confluent.Producer(
        {"bootstrap.servers": node.bootstrap, "enable.idempotence": "true", "compression.type": "zstd"}
    )
    for number in range(RECORDS):
        key = SUBJECT if number % 5 == 0 else b"key %d" % number
        producer.produce(TOPIC, b"value %d of " % number + key, key, 0)
        if number % 4 == 0:
            assert producer.flush(WAIT_SECONDS) == 0
    assert producer.flush(WAIT_SECONDS) == 0


def state(node: KafkaNode) -> tuple[int, set[int]]:
    """Return leader and in-sync replicas of the partition."""
    found = AdminClient({"bootstrap.servers": node.bootstrap}).list_topics(TOPIC, timeout=WAIT_SECONDS)
    partition = found.topics[TOPIC].partitions[0]
    return partition.leader, set(partition.isrs)


def erase(folder: Path, keys: Keys, *log_dirs: Path) -> Any:
    """Erase the subject and return the document of the evidence."""
    evidence = folder / "evidence.json"
    outcome = sediment_process(
        *("erase", *log_dirs, "--yes", "--json", "--broker-defaults", f"--partition={NAME}"),
        *(f"--keys-file={folder / 'keys.txt'}", f"--evidence={evidence}", f"--secret-file={folder / 'secret'}"),
        f"--signing-key={keys.private}",
        timeout=600,
    )
    assert outcome.status == 0, outcome
    check = sediment_process("erase", "--check", evidence, "--public-key", keys.public, *log_dirs, timeout=600)
    assert check.status == 0, check
    return document(evidence)


def test_the_erased_follower_joins_and_leads_and_the_evidence_is_complete_only_with_every_replica(
    nodes: dict[int, KafkaNode], keys: Keys, tmp_path: Path
) -> None:
    first, second = nodes[1], nodes[2]
    fill(first)
    wait_until(lambda: state(first)[1] == {1, 2})
    before = confluent_records(first.bootstrap, [NAME], UNCOMMITTED)[NAME]
    end = ends(first.bootstrap, [NAME])[NAME]
    assert sum(record.key == SUBJECT for record in before) == RECORDS // 5

    second.stop()
    evidence = erase(tmp_path, keys, second.data)
    assert evidence["complete"] is False
    assert any("did not cover, on brokers: 1" in reason for reason in evidence["incomplete"])
    second.start()
    wait_until(lambda: state(first)[1] == {1, 2})
    admin = AdminClient({"bootstrap.servers": first.bootstrap})
    admin.elect_leaders(ElectionType.PREFERRED, [confluent.TopicPartition(TOPIC, 0)]).result(WAIT_SECONDS)
    wait_until(lambda: state(first)[0] == LEADER)
    expected = tuple(record for record in before if record.key != SUBJECT)
    for isolation in ISOLATIONS:
        assert confluent_records(second.bootstrap, [NAME], isolation)[NAME] == expected
    assert ends(second.bootstrap, [NAME])[NAME] == end

    second.stop()
    first.stop()
    evidence = erase(tmp_path, keys, first.data, second.data)
    assert (evidence["complete"], evidence["incomplete"]) == (True, [])
    first.start()
    second.start()
    wait_until(lambda: state(first)[1] == {1, 2})
    assert confluent_records(first.bootstrap, [NAME], UNCOMMITTED)[NAME] == expected
    producer = confluent.Producer({"bootstrap.servers": first.bootstrap, "acks": "all"})
    producer.produce(TOPIC, b"later", b"later", 0)
    assert producer.flush(WAIT_SECONDS) == 0
    assert ends(first.bootstrap, [NAME])[NAME][1] == end[1] + 1
    assert not [line for node in nodes.values() for line in node.said() if "-stray" in line]


def test_running_producers_continue_after_an_erasure_with_their_ids_epochs_and_sequences(
    keys: Keys, tmp_path: Path
) -> None:
    """The last record of each producer is erased, so the header of its batch must keep the sequence number."""
    with running(KafkaNode(tmp_path / "node", {"log.cleaner.enable": "false"})) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        topic = NewTopic(TOPIC, 1, 1, config={"cleanup.policy": "delete"})
        admin.create_topics([topic])[TOPIC].result(WAIT_SECONDS)
        idempotent = confluent.Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": "true"})
        writer = transactional(node, "writer")
        for key in (b"before", SUBJECT):
            produce_one(idempotent, key)
            for end in (writer.abort_transaction, writer.commit_transaction):
                writer.begin_transaction()
                produce_one(writer, key)
                end(WAIT_SECONDS)
        before = {isolation: confluent_records(node.bootstrap, [NAME], isolation)[NAME] for isolation in ISOLATIONS}
        node.stop()
        next_before = next_sequences(node)
        erase(tmp_path, keys, node.data)

        node.start()
        assert not [line for line in node.said() if "Recovering unflushed" in line and NAME in line]
        assert not [line for line in node.said() if line.startswith("ERROR")]
        for isolation in ISOLATIONS:
            expected = tuple(record for record in before[isolation] if record.key != SUBJECT)
            assert 0 < len(expected) < len(before[isolation])
            assert confluent_records(node.bootstrap, [NAME], isolation)[NAME] == expected
        produce_one(idempotent, b"after")
        writer.begin_transaction()
        produce_one(writer, b"after")
        writer.commit_transaction(WAIT_SECONDS)
        for isolation in ISOLATIONS:
            later = confluent_records(node.bootstrap, [NAME], isolation)[NAME][-2:]
            assert [record.key for record in later] == [b"after", b"after"]
        node.stop()
    assert sorted(next_before.values()) == [2, 4]
    assert next_sequences(node) == {producer: sequence + 1 for producer, sequence in next_before.items()}


def produce_one(producer: confluent.Producer, key: bytes) -> None:
    """Produce one record and wait until the broker has it."""
    producer.produce(TOPIC, b"value of " + key, key, 0)
    assert producer.flush(WAIT_SECONDS) == 0


def next_sequences(node: KafkaNode) -> dict[tuple[int, int], int]:
    """Return the next sequence number by producer id and epoch, from the headers of the partition's batches."""
    found: dict[tuple[int, int], int] = {}
    for path in sorted((node.data / NAME).glob("*.log")):
        for batch in batches(path.read_bytes()):
            if not batch.is_control:
                producer = batch.producer_id, batch.producer_epoch
                assert batch.base_sequence == found.get(producer, 0)
                found[producer] = batch.base_sequence + batch.last_offset - batch.base_offset + 1
    return found
