"""`sediment adopt` on folders that lost their cluster: in place, and with kept files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import read_cluster_metadata
from tests.jobs.log_dirs import read_checkpoint, sediment, tree
from tests.served import expected, unpacked

KEPT = "meta.properties"


@pytest.fixture
def orphan(tmp_path: Path) -> Path:
    """Return the directory of a stopped node without its metadata log."""
    log_dir = unpacked(tmp_path / "data")
    shutil.rmtree(log_dir / "__cluster_metadata-0")
    return log_dir


def test_a_directory_without_its_cluster_becomes_that_of_a_node(orphan: Path) -> None:
    before = tree(orphan)
    outcome = sediment("adopt", orphan, "--yes", "--json", "--set", "prices:cleanup.policy=compact", "--node-id", 4)
    assert outcome.status == 0, outcome.stderr
    assert outcome.report["is_complete"]
    assert {row["status"] for row in outcome.report["partitions"]} == {"adopted"}
    after = tree(orphan)
    assert {name for name in before if name.endswith(".log") and before[name] != after[name]} == set()
    for copy in outcome.report["kept"]:
        assert after[copy] == before[copy.partition(f".{outcome.report['run_id']}")[0]]
    assert any(copy.startswith(KEPT) for copy in outcome.report["kept"])
    found = read_cluster_metadata(orphan, Fs())
    assert found is not None
    assert found.topic_configs["prices"] == {
        "cleanup.policy": "compact",
        "retention.ms": "-1",
        "retention.bytes": "-1",
    }
    ids = {row["partition"]: row["topic_id"] for row in outcome.report["partitions"]}
    assert all(id_ in (orphan / name / "partition.metadata").read_text() for name, id_ in ids.items())
    assert b"node.id=4" in after["meta.properties"]
    ends = read_checkpoint(orphan / "recovery-point-offset-checkpoint")
    assert {name: ends[name] for name in expected()["ends"]} == {n: e[1] for n, e in expected()["ends"].items()}


def test_a_dry_run_and_a_run_that_may_not_ask_change_nothing(orphan: Path) -> None:
    before = tree(orphan)
    assert sediment("adopt", orphan, "--dry-run", "--json").status == 0
    assert sediment("adopt", orphan).status == 2
    assert tree(orphan) == before


def test_a_properties_file_is_never_overwritten(orphan: Path, tmp_path: Path) -> None:
    (orphan / "server.properties").write_text("mine=1\n")
    assert sediment("adopt", orphan, "--yes", "--server-properties", tmp_path / "new.properties").status == 0
    assert (orphan / "server.properties").read_text() == "mine=1\n"
    assert "node.id=1" in (tmp_path / "new.properties").read_text()
    assert sediment("adopt", orphan, "--yes", "--server-properties", tmp_path / "new.properties").status == 2
