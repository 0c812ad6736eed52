"""A stock broker after `recover --abort-open-transactions`: readers of committed data go on; and after its undo."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.consumers import COMMITTED, UNCOMMITTED, confluent_records, watermarks
from tests.e2e import console_tools as tools
from tests.e2e.clients import produce
from tests.e2e.kraft import KafkaNode, running
from tests.e2e.test_adopt import create, errors
from tests.jobs.log_dirs import Outcome, sediment_process
from tests.jobs.recovering.test_recover_aborts import HANGING, hang

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

NAME, FIRST = "t-0", 20


def abort(node: KafkaNode, *arguments: object) -> Outcome:
    given = ("--config", node.config_file(), "--abort-open-transactions", "--yes", "--json", *arguments)
    outcome = sediment_process("recover", node.data, *given, timeout=600)
    assert outcome.status == 0, outcome.stderr + outcome.stdout
    return outcome


def hanging(node: KafkaNode) -> list[str]:
    """Return the rows of Kafka's own search; it counts a transaction that is older than the longest timeout."""
    found = tools.tool(node.bootstrap, tools.TRANSACTIONS, "find-hanging", "--broker-id", "1")
    return [row for row in tools.table(found) if str(HANGING) in row]


def test_readers_of_committed_data_go_on_after_the_abort_and_stop_again_after_its_undo(tmp_path: Path) -> None:
    node = KafkaNode(tmp_path / "node", {"node.id": "1"})
    with running(node):
        create(node, "t", 1)
        produce(node.bootstrap, "t", FIRST)
        node.stop()
    hang(node.data, NAME)
    with running(node):
        assert len(hanging(node)) == 1
        assert watermarks(node.bootstrap, [NAME], COMMITTED)[NAME] == (0, FIRST)
        produce(node.bootstrap, "t", 5)
        assert watermarks(node.bootstrap, [NAME], COMMITTED)[NAME] == (0, FIRST)
        everything = confluent_records(node.bootstrap, [NAME], UNCOMMITTED)[NAME]
        node.stop()
    row = abort(node).partitions()[NAME]
    assert f"of producer {HANGING} (epoch 3), aborted" in row["repairs"][-1]

    subprocess.run(row["undo"].split("`")[1], shell=True, check=True)
    with running(node):
        assert not errors(node)
        assert len(hanging(node)) == 1
        assert watermarks(node.bootstrap, [NAME], COMMITTED)[NAME] == (0, FIRST)
        assert confluent_records(node.bootstrap, [NAME], UNCOMMITTED)[NAME] == everything
        node.stop()

    assert abort(node).partitions()[NAME]["log_end_offset"] == row["log_end_offset"]
    with running(node):
        assert not errors(node)
        assert "Skipping recovery" in "\n".join(node.said())
        assert hanging(node) == []
        end = row["log_end_offset"]
        assert watermarks(node.bootstrap, [NAME], COMMITTED)[NAME] == (0, end)
        seen = confluent_records(node.bootstrap, [NAME], COMMITTED)[NAME]
        assert seen == tuple(record for record in everything if record.offset != FIRST)
        produce(node.bootstrap, "t", 3, transactional_id="teller")
        assert len(confluent_records(node.bootstrap, [NAME], COMMITTED)[NAME]) == len(seen) + 3
