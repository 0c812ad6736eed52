"""A stock broker on what `recover` and `plan` name: a lost topic id, and a copy of a log beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.consumers import UNCOMMITTED, confluent_records
from tests.e2e.clients import produce
from tests.e2e.kraft import KafkaNode, running
from tests.e2e.test_adopt import create, errors
from tests.e2e.test_clone import ends
from tests.jobs.log_dirs import sediment_process

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

NAME = "t-0"
RECORDS = 300


def strays(node: KafkaNode) -> list[Path]:
    return list(node.data.glob("*-stray"))


def test_a_broker_serves_all_records_after_a_lost_topic_id_was_written_and_none_without_it(tmp_path: Path) -> None:
    node = KafkaNode(tmp_path / "node")
    with running(node):
        create(node, "t", 1)
        produce(node.bootstrap, "t", RECORDS)
        everything = confluent_records(node.bootstrap, [NAME], UNCOMMITTED)[NAME]
        assert len(everything) == RECORDS
        node.stop()
    folder = node.data / NAME
    written = (folder / "partition.metadata").read_bytes()
    whole = tmp_path / "whole"
    shutil.copytree(folder, whole)

    (folder / "partition.metadata").unlink()
    with running(node):
        assert ends(node.bootstrap, [NAME])[NAME][:2] == (0, 0)
        assert len(strays(node)) == 1
        node.stop()

    for content in (None, b""):
        for path in (*strays(node), folder):
            shutil.rmtree(path)
        shutil.copytree(whole, folder)
        if content is None:
            (folder / "partition.metadata").unlink()
        else:
            (folder / "partition.metadata").write_bytes(content)
        outcome = sediment_process("recover", "--config", node.config_file(), "--json", timeout=600)
        assert outcome.status == 0, outcome.stderr + outcome.stdout
        assert len(outcome.partitions()[NAME]["repairs"]) == 1
        assert (folder / "partition.metadata").read_bytes() == written
        with running(node):
            assert not errors(node)
            assert strays(node) == []
            assert confluent_records(node.bootstrap, [NAME], UNCOMMITTED)[NAME] == everything
            node.stop()


def test_a_broker_does_not_start_beside_a_future_replica_in_the_same_directory_as_plan_says(tmp_path: Path) -> None:
    node = KafkaNode(tmp_path / "node")
    with running(node):
        create(node, "t", 1)
        produce(node.bootstrap, "t", RECORDS)
        node.stop()
    future = node.data / f"{NAME}.{'0' * 32}-future"
    shutil.copytree(node.data / NAME, future)
    planned = sediment_process("plan", "--config", node.config_file(), "--json", timeout=600)
    (warning,) = planned.partitions()[NAME]["warnings"]
    assert future.name in warning and "so a broker does not start" in warning
    with pytest.raises(AssertionError, match="the broker did not start"), running(node):
        pass
    future.rename(tmp_path / "moved away")
    with running(node):
        assert not errors(node)
        assert len(confluent_records(node.bootstrap, [NAME], UNCOMMITTED)[NAME]) == RECORDS
        node.stop()
