"""`sediment adopt` on folders that lost their cluster: in place, and with kept files."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from sediment.engine import replicas
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import read_cluster_metadata
from sediment.segment_io.protocol import messages as m
from tests.jobs.log_dirs import read_checkpoint, sediment, tree, write_checkpoint
from tests.segments import batch_bytes, write_segment
from tests.served import expected, unpacked
from tests.server.groups.coordinator_logs import STATES, CoordinatorLogBuilder, versioned

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


def test_a_log_that_would_lose_records_is_left_to_recover(orphan: Path) -> None:
    (orphan / ".kafka_cleanshutdown").unlink()
    ends = read_checkpoint(orphan / "recovery-point-offset-checkpoint")
    write_checkpoint(orphan / "recovery-point-offset-checkpoint", {**ends, "prices-0": 0})
    log = max(path for path in (orphan / "prices-0").glob("*.log") if path.stat().st_size)
    log.write_bytes(log.read_bytes()[:-5])
    before = tree(orphan)
    tried = sediment("adopt", orphan, "--dry-run", "--json")
    row = tried.partitions()["prices-0"]
    assert (tried.status, row["status"], row["reason_code"]) == (1, "failed", "records-would-be-lost")
    assert "run `sediment recover` first, which keeps the files" in row["reason"]
    assert tree(orphan) == before


def test_a_topic_id_that_could_not_be_read_once_is_not_replaced_by_a_new_one(
    orphan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(orphan)

    def fail(_fs: Fs, path: Path) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(replicas, "read_partition_metadata", fail)
        outcome = sediment("adopt", orphan, "--yes", "--json")
    row = outcome.partitions()["prices-0"]
    assert (outcome.status, row["status"], row["reason_code"]) == (1, "failed", "source-changed")
    assert "partition.metadata has topic id" in row["reason"]
    changed = {name for name, content in tree(orphan).items() if before.get(name) != content}
    assert not {name for name in changed if name.startswith(("prices-0/", "__cluster_metadata-0/", "meta.properties"))}
    assert sediment("adopt", orphan, "--yes", "--json").status == 0


def test_a_properties_file_is_never_overwritten(orphan: Path, tmp_path: Path) -> None:
    (orphan / "server.properties").write_text("mine=1\n")
    assert sediment("adopt", orphan, "--yes", "--server-properties", tmp_path / "new.properties").status == 0
    assert (orphan / "server.properties").read_text() == "mine=1\n"
    assert "node.id=1" in (tmp_path / "new.properties").read_text()
    assert sediment("adopt", orphan, "--yes", "--server-properties", tmp_path / "new.properties").status == 2


def test_no_id_of_a_transactional_producer_is_assigned_again(tmp_path: Path) -> None:
    """The producer of the id wrote nothing that is still in a log."""
    log = CoordinatorLogBuilder(tmp_path / "data", STATES)
    value = m.TransactionLogValue(producer_id=54_321, producer_epoch=3, transaction_timeout_ms=1000)
    log.add(versioned(0, m.TransactionLogKey(transactional_id="x")), versioned(0, value))
    write_segment(tmp_path / "data" / "t-0", 0, [batch_bytes(0)])
    log.write()
    assert sediment("adopt", tmp_path / "data", "--yes").status == 0
    found = read_cluster_metadata(tmp_path / "data", Fs())
    assert found is not None and found.next_producer_id == 55_000

    shutil.rmtree(tmp_path / "data" / "t-0")
    for name in ("bootstrap.checkpoint", "meta.properties"):
        (tmp_path / "data" / name).unlink()
    write_segment(tmp_path / "data" / "t-0", 0, [batch_bytes(0)])
    outcome = sediment("clone", tmp_path / "data", "--to", tmp_path / "clone")
    assert outcome.status == 0, outcome.stderr
    found = read_cluster_metadata(tmp_path / "clone", Fs())
    assert found is not None and found.next_producer_id == 55_000
