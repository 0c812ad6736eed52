"""A stock broker on its own directory after foreign folders were adopted into its metadata log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.consumers import COMMITTED, UNCOMMITTED, WAIT_SECONDS, confluent_records, ends
from tests.e2e.clients import produce
from tests.e2e.kraft import KafkaNode, assert_no_trouble, running
from tests.e2e.test_clone import topic_configs
from tests.jobs.log_dirs import Outcome, sediment_process
from tests.served import as_json, expected, unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

FOREIGN = ("orders-0", "orders-1", "payments-0", "payments-1", "prices-0")
IDLE = ("orders-0", "orders-1", "prices-0")  # nothing is written to them after the adoption


def adopt(node: KafkaNode, *arguments: object) -> Outcome:
    outcome = sediment_process("adopt", node.data, "--config", node.config_file(), "--json", *arguments, timeout=600)
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    return outcome


def create(node: KafkaNode, topic: str, partitions: int) -> None:
    client = AdminClient({"bootstrap.servers": node.bootstrap})
    for future in client.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(WAIT_SECONDS)


def errors(node: KafkaNode) -> list[str]:
    lines = (line for line in node.said() if "EventPerformanceMonitor" not in line)  # a busy machine
    return [line for line in lines if line.startswith(("ERROR", "FATAL"))]


def test_foreign_folders_become_topics_of_a_stopped_node(tmp_path: Path) -> None:
    source = unpacked(tmp_path / "source")
    node = KafkaNode(tmp_path / "node")
    with running(node):
        create(node, "mine", 2)
        produce(node.bootstrap, "mine", 20, enable_idempotence="true")
        mine = confluent_records(node.bootstrap, ["mine-0", "mine-1"], UNCOMMITTED)
        node.stop()
    for name in FOREIGN:
        shutil.copytree(source / name, node.data / name)
    (node.data / "prices-0" / "partition.metadata").unlink()
    arguments = ("--yes", "--abort-open-transactions", "--set", "prices:cleanup.policy=compact")
    outcome = adopt(node, *arguments)
    assert {row["partition"] for row in outcome.report["partitions"] if row["status"] == "adopted"} == set(FOREIGN)
    assert {"TOPIC_RECORD", "PARTITION_RECORD", "CONFIG_RECORD"} <= {each["type"] for each in outcome.report["records"]}

    with running(node):
        assert_no_trouble(node)
        found = ends(node.bootstrap, list(FOREIGN))
        assert {name: list(found[name]) for name in IDLE} == {name: expected()["ends"][name] for name in IDLE}
        for isolation in (COMMITTED, UNCOMMITTED):
            seen = as_json(confluent_records(node.bootstrap, list(FOREIGN), isolation))
            assert seen == {name: expected()["records"][isolation][name] for name in FOREIGN}
        assert confluent_records(node.bootstrap, ["mine-0", "mine-1"], UNCOMMITTED) == mine
        assert "cleanup.policy=compact" in topic_configs(node.bootstrap, "prices")
        assert "retention.ms=-1" in topic_configs(node.bootstrap, "orders")
        create(node, "later", 1)
        produce(node.bootstrap, "later", 5, enable_idempotence="true")
        produce(node.bootstrap, "payments", 5, transactional_id="teller")
        node.kill()

    shutil.copytree(source / "orders-0", node.data / "again-0")
    (node.data / "again-0" / "partition.metadata").unlink()
    outcome = adopt(node, "--yes")
    assert [row["partition"] for row in outcome.report["partitions"] if row["status"] == "adopted"] == ["again-0"]
    with running(node):
        assert not errors(node)
        assert not list(node.data.glob("*-stray"))
        names = ["again-0", "orders-0", "orders-1", "prices-0"]
        seen = as_json(confluent_records(node.bootstrap, names, UNCOMMITTED))
        wanted = {**expected()["records"][UNCOMMITTED], "again-0": expected()["records"][UNCOMMITTED]["orders-0"]}
        assert seen == {name: wanted[name] for name in names}
        assert ends(node.bootstrap, ["later-0"])["later-0"][1] == 5
        produce(node.bootstrap, "again", 3, enable_idempotence="true")
