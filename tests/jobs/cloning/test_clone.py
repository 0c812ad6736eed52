"""`sediment clone` on the directory of a stopped node: files, metadata, groups, cuts, and clones that broke off."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata, read_cluster_metadata
from sediment.segment_io.partition.slices import ALL
from sediment.segment_io.partition.sources import Source
from sediment.server.coordinator_log import CoordinatorLog
from sediment.server.groups.stored_groups import StoredGroup, replay_groups
from sediment.server.transactions.stored_transactions import replay_transactions
from sediment.server.transactions.transaction import Transaction
from tests.jobs.cloning.clones import damaged_copy
from tests.jobs.log_dirs import Outcome, read_checkpoint, sediment, tree, write_checkpoint
from tests.served import GROUPS, contents, expected, unpacked

UNTIL_MS = 1_750_000_005_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("served") / "source")


def clone(source: Path, to: Path, *more: object, status: int = 0) -> Outcome:
    outcome = sediment("clone", source, "--to", to, "--json", *more)
    assert outcome.status == status, outcome.stderr
    return outcome


def metadata(log_dir: Path) -> ClusterMetadata:
    found = read_cluster_metadata(log_dir, Fs())
    assert found is not None
    return found


def coordinator_logs(log_dir: Path, topic: str) -> list[CoordinatorLog]:
    return [CoordinatorLog(Source(TopicPartition(topic, n), log_dir / f"{topic}-{n}"), ALL) for n in range(2)]


def groups(log_dir: Path) -> dict[str, StoredGroup]:
    logs = coordinator_logs(log_dir, "__consumer_offsets")
    return {name: group for log in logs for name, group in replay_groups(log, Fs()).items()}


def transactions(log_dir: Path) -> dict[str, Transaction]:
    logs = coordinator_logs(log_dir, "__transaction_state")
    return {name: transaction for log in logs for name, transaction in replay_transactions(log, Fs()).items()}


def offsets_of(group: StoredGroup) -> dict[str, int]:
    return {
        f"{topic}-{n}": each.offset for topic, found in group.offsets.committed.items() for n, each in found.items()
    }


def records(log_dir: Path, name: str) -> list[dict[str, Any]]:
    outcome = sediment("dump", log_dir / name, "--what", "records", "--json")
    return [json.loads(line) for line in outcome.stdout.splitlines()]


def test_a_clone_has_the_bytes_the_configs_and_the_checkpoints_of_its_source(source: Path, tmp_path: Path) -> None:
    before = contents(source)
    to = tmp_path / "clone"
    report = clone(source, to).report
    assert contents(source) == before
    assert report["is_complete"] and report["held"]
    assert {row["status"] for row in report["partitions"]} == {"cloned"}
    copied, original = tree(to), tree(source)
    logs = [name for name in original if name.endswith((".log", ".txnindex")) and "__cluster" not in name]
    assert logs and all(copied[name] == original[name] for name in logs)
    checked = sediment("clone", "--check", to, "--json")
    assert checked.status == 0 and {row["status"] for row in checked.report["partitions"]} == {"unchanged"}
    assert checked.report["files"] == len(copied) - 1  # all but the manifest
    found, given = metadata(to), metadata(source)
    assert found.topic_ids == given.topic_ids
    assert found.features == given.features
    assert found.next_producer_id >= given.next_producer_id
    held = {"retention.ms": "-1", "retention.bytes": "-1"}
    assert found.topic_configs["orders"] == {**given.topic_configs["orders"], **held}
    assert found.topic_configs["__consumer_offsets"] == given.topic_configs["__consumer_offsets"]
    ends = {row["partition"]: row["log_end_offset"] for row in report["partitions"]}
    assert read_checkpoint(to / "recovery-point-offset-checkpoint") == ends
    assert read_checkpoint(to / "replication-offset-checkpoint") == ends
    assert {name: ends[name] for name in expected()["ends"]} == {n: e[1] for n, e in expected()["ends"].items()}
    assert "log.cleaner.enable=false" in (to / "server.properties").read_text()


def test_the_node_has_ids_of_its_own(source: Path, tmp_path: Path) -> None:
    report = clone(source, tmp_path / "one", "--node-id", 9, "--topic", "empty").report
    meta = (tmp_path / "one" / "meta.properties").read_text()
    assert f"cluster.id={report['cluster_id']}" in meta and "node.id=9" in meta
    assert report["cluster_id"] not in (source / "meta.properties").read_text()
    assert "controller.quorum.voters=9@127.0.0.1:9093" in (tmp_path / "one" / "server.properties").read_text()


def test_a_renamed_subset_has_its_groups_and_producers_and_no_others(source: Path, tmp_path: Path) -> None:
    to = tmp_path / "clone"
    report = clone(source, to, "--topic", "orders", "--rename", "orders=o2").report
    assert {topic["name"] for topic in report["topics"]} == {"o2", "__consumer_offsets", "__transaction_state"}
    assert metadata(to).topic_ids["o2"] == metadata(source).topic_ids["orders"]
    found = groups(to)
    assert {name: offsets_of(group) for name, group in found.items()} == {
        name: {"o2-0": 5 + number, "o2-1": 5 + number} for number, name in enumerate(GROUPS)
    }
    assert transactions(to) == {}  # no transaction wrote to orders
    assert any("members and assignments were dropped" in note for note in report["notes"])


def test_offsets_of_topics_that_are_not_cloned_are_dropped_with_their_groups(source: Path, tmp_path: Path) -> None:
    to = tmp_path / "clone"
    clone(source, to, "--partition", "payments-0")
    assert groups(to) == {}
    kept = transactions(to)
    assert "unfinished" in kept and kept["unfinished"].partitions == {TopicPartition("payments", 0)}
    assert metadata(to).replicas["payments"].keys() == {0, 1}


def test_the_coordinators_stay_after_if_they_are_not_wanted(source: Path, tmp_path: Path) -> None:
    report = clone(source, tmp_path / "clone", "--with", "configs").report
    assert not [topic for topic in report["topics"] if topic["name"].startswith("__")]


# -------------------------------------------------------------------------------------------------------- ends of logs
def test_a_log_is_cut_at_an_offset_inside_a_batch(source: Path, tmp_path: Path) -> None:
    given = records(source, "prices-0")
    assert given[2]["batchBaseOffset"] == given[3]["batchBaseOffset"]
    wanted = given[:3]
    to = tmp_path / "clone"
    clone(source, to, "--topic", "prices", "--until-offset", "prices-0:3")
    assert [(row["offset"], row["key"], row["value"]) for row in records(to, "prices-0")] == [
        (row["offset"], row["key"], row["value"]) for row in wanted
    ]
    assert read_checkpoint(to / "recovery-point-offset-checkpoint")["prices-0"] == 3


def test_every_log_is_cut_before_its_first_record_after_a_time(source: Path, tmp_path: Path) -> None:
    to = tmp_path / "clone"
    clone(source, to, "--topic", "prices", "--until-ms", UNTIL_MS, "--with", "configs")
    wanted = records(source, "prices-0")
    first = next(row["offset"] for row in wanted if row["timestamp"] > UNTIL_MS)
    assert [row["key"] for row in records(to, "prices-0")] == [row["key"] for row in wanted if row["offset"] < first]


def test_open_transactions_are_aborted_only_if_asked_for(source: Path, tmp_path: Path) -> None:
    plain = clone(source, tmp_path / "plain", "--topic", "payments").partitions()
    assert plain["payments-0"]["open_transactions"] == 1
    ended = clone(source, tmp_path / "ended", "--topic", "payments", "--abort-open-transactions").partitions()
    assert (ended["payments-0"]["open_transactions"], ended["payments-0"]["ended_transactions"]) == (0, 1)
    assert ended["payments-0"]["log_end_offset"] == plain["payments-0"]["log_end_offset"] + 1
    aborted = sediment("dump", tmp_path / "ended" / "payments-0", "--what", "transactions", "--json")
    end = plain["payments-0"]["log_end_offset"]
    assert json.loads(aborted.stdout.splitlines()[-1])["lastOffset"] == end


# ----------------------------------------------------------------------------------------------------- several brokers
def test_of_several_replicas_the_one_of_the_highest_epoch_is_cloned(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(source, other)
    (other / "orders-0" / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n7 50\n")
    outcome = sediment("clone", source, other, "--to", tmp_path / "clone", "--topic", "orders", "--json")
    assert outcome.partitions()["orders-0"]["from"] == str(other / "orders-0")
    assert outcome.partitions()["orders-0"]["leader_epoch"] == 7


def test_a_damaged_log_is_taken_from_another_replica_or_cloned_as_it_is(source: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    log = damaged_copy(source, damaged)
    both = sediment("clone", damaged, source, "--to", tmp_path / "both", "--topic", "orders", "--json")
    assert both.status == 0
    assert both.partitions()["orders-0"]["from"] == str(source / "orders-0")
    alone = clone(damaged, tmp_path / "alone", "--topic", "orders", status=1).partitions()["orders-0"]
    assert (alone["status"], alone["reason_code"]) == ("quarantined", "corrupt-batch")
    assert (tmp_path / "alone" / "orders-0" / log.name).read_bytes() == log.read_bytes()


# ---------------------------------------------------------------------------------------------------------- the target
def test_a_clone_is_never_written_over_something_else(source: Path, tmp_path: Path) -> None:
    to = tmp_path / "clone"
    clone(source, to, "--topic", "empty")
    before = tree(to)
    assert clone(source, to, "--topic", "empty", status=2).stdout == ""
    assert tree(to) == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    clone(source, tmp_path / "full", status=2)
    clone(source, source / "inside", status=2)


def test_a_clone_that_broke_off_is_no_log_directory_and_is_started_over(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    to = tmp_path / "clone"
    made = Fs.rename
    for number in range(200):
        calls = 0

        def rename(fs: Fs, old: Path, new: Path, limit: int = number) -> None:
            nonlocal calls
            calls += 1
            if calls > limit:
                raise Killed
            made(fs, old, new)

        with monkeypatch.context() as patch:
            patch.setattr(Fs, "rename", rename)
            try:
                outcome = sediment("clone", source, "--to", to, "--topic", "orders", "--json")
            except Killed:
                assert not (to / "sediment-manifest.json").exists()
                assert not to.exists() or sediment("clone", "--check", to).status == 2
                continue
        assert outcome.status == 0
        break
    else:
        raise AssertionError("it never ended")
    assert number > 5
    assert sediment("clone", "--check", to).status == 0
    assert {path.name for path in to.iterdir() if path.is_dir()} == {
        *(f"{topic}-{n}" for topic in ("orders", "__consumer_offsets", "__transaction_state") for n in range(2))
    }


def test_what_the_source_has_lost_is_said(tmp_path: Path) -> None:
    source = unpacked(tmp_path / "source")
    ends = read_checkpoint(source / "replication-offset-checkpoint")
    write_checkpoint(source / "replication-offset-checkpoint", {**ends, "orders-1": ends["orders-1"] + 7})
    rows = clone(source, tmp_path / "clone", "--topic", "orders").partitions()
    (warning,) = rows["orders-1"]["warnings"]
    assert "(7 offsets) are missing at the end of the log" in warning and warning.endswith("the clone lacks them too")
    assert not any(row["warnings"] for name, row in rows.items() if name != "orders-1")
