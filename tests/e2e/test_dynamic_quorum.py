"""A source whose quorum is dynamic (kraft.version 1): its voters are in the metadata log, and in no other file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from sediment.segment_io.format.layout import CONTROL_KRAFT_VERSION, CONTROL_KRAFT_VOTERS
from sediment.segment_io.format.meta_properties import parse_meta_properties
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import read_cluster_metadata
from sediment.segment_io.internal_topics.quorum_state import QuorumState, read_quorum_state
from sediment.segment_io.protocol import messages as m
from tests.consumers import UNCOMMITTED, WAIT_SECONDS, confluent_records
from tests.e2e.clients import produce
from tests.e2e.kraft import KafkaNode, assert_no_trouble, running
from tests.e2e.test_adopt import adopt, errors
from tests.e2e.test_clone import cloned_node, topic_configs
from tests.jobs.log_dirs import sediment_process
from tests.served import serving, unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

METADATA = "__cluster_metadata-0"
CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}


def check_quorum_of(log_dir: Path) -> None:
    """Check that the node of the directory is the only voter, and that only the metadata log says so."""
    metadata = read_cluster_metadata(log_dir, Fs())
    assert metadata is not None
    version = m.KRaftVersionRecord.decode(metadata.quorum_records[CONTROL_KRAFT_VERSION], 0)
    (voter,) = m.VotersRecord.decode(metadata.quorum_records[CONTROL_KRAFT_VOTERS], 0).voters
    meta = parse_meta_properties((log_dir / "meta.properties").read_bytes())
    assert (version.k_raft_version, voter.voter_id) == (1, meta.node_id)
    state = read_quorum_state(log_dir / METADATA, Fs())
    assert isinstance(state, QuorumState) and state.voters is None


def test_a_node_with_a_dynamic_quorum_is_planned_served_cloned_and_adopted_into(tmp_path: Path) -> None:
    node = KafkaNode(tmp_path / "source", {"metadata.log.max.record.bytes.between.snapshots": "1"}, is_standalone=True)

    # Formatted, and never started: the checkpoints state nothing about topics.
    shutil.copytree(node.data, tmp_path / "formatted")
    shutil.copytree(unpacked(tmp_path / "served") / "orders-0", tmp_path / "formatted" / "orders-0")
    planned = sediment_process("plan", tmp_path / "formatted", "--json", timeout=600)
    assert planned.status == 0, planned.stderr
    assert planned.partitions()["orders-0"]["reason_code"] == "policy-unknown"
    refused = sediment_process("expire", tmp_path / "formatted", "--json", timeout=600)
    assert refused.status == 2 and METADATA in refused.stderr
    refused = sediment_process("adopt", tmp_path / "formatted", "--yes", "--json", timeout=600)
    assert refused.status == 2 and "has never been started" in refused.stderr

    with running(node):
        client = AdminClient({"bootstrap.servers": node.bootstrap})
        for future in client.create_topics([NewTopic("mine", 2, 1, config=CONFIGS)]).values():
            future.result(WAIT_SECONDS)
        produce(node.bootstrap, "mine", 20, enable_idempotence="true")
        mine = confluent_records(node.bootstrap, ["mine-0", "mine-1"], UNCOMMITTED)
        node.stop()
    check_quorum_of(node.data)

    planned = sediment_process("plan", node.data, "--config", node.config_file(), "--json", timeout=600)
    assert planned.status == 0, planned.stderr
    assert "policy-unknown" not in {row["reason_code"] for row in planned.partitions().values()}
    with serving(node.data, "--read-only") as served:
        assert confluent_records(served.bootstrap, ["mine-0", "mine-1"], UNCOMMITTED) == mine

    # The clone has a static quorum of one.
    clone, outcome = cloned_node(tmp_path, node.data)
    assert outcome.report["is_complete"]
    with running(clone):
        assert_no_trouble(clone)
        assert confluent_records(clone.bootstrap, ["mine-0", "mine-1"], UNCOMMITTED) == mine
        assert "cleanup.policy=compact" in topic_configs(clone.bootstrap, "mine")
        produce(clone.bootstrap, "mine", 5, enable_idempotence="true")

    # Foreign folders join the source's own log, whose sole voter is in a VotersRecord.
    for name in ("orders-0", "orders-1"):
        shutil.copytree(tmp_path / "served" / name, node.data / name)
    dry = adopt(node, "--dry-run")
    assert {row["partition"] for row in dry.report["partitions"] if row["status"] != "unchanged"} >= {"orders-0"}
    outcome = adopt(node, "--yes")
    assert {"TOPIC_RECORD", "PARTITION_RECORD"} <= {each["type"] for each in outcome.report["records"]}
    check_quorum_of(node.data)
    with running(node):
        assert not errors(node)
        assert not list(node.data.glob("*-stray"))
        assert confluent_records(node.bootstrap, ["mine-0", "mine-1"], UNCOMMITTED) == mine
        assert len(confluent_records(node.bootstrap, ["orders-0"], UNCOMMITTED)["orders-0"]) > 0
        produce(node.bootstrap, "orders", 5, enable_idempotence="true")
    with running(node):  # from a snapshot that the node made after the appended records
        assert not errors(node)
    check_quorum_of(node.data)
    assert json.loads((node.data / METADATA / "quorum-state").read_text())["data_version"] == 1
