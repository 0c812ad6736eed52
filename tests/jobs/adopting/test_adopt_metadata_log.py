"""`sediment adopt` on the directory of a stopped node with its metadata log: appended to, or refused with a reason."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sediment.engine.directory.lock import DirectoryLock
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata, read_cluster_metadata
from tests.jobs.log_dirs import Outcome, read_checkpoint, sediment, sediment_on_terminal, tree, write_checkpoint
from tests.segments import batch_bytes, write_segment
from tests.served import unpacked
from tests.server.read_only.log_dirs import kraft_dir

METADATA = "__cluster_metadata-0"
OPEN_PRODUCER = 5432


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Return the directory of a stopped node with two folders that it does not know, of a topic with three partitions.

    The topic's producer has an id above all that the cluster gave out.
    """
    found = unpacked(tmp_path / "data")
    for number in (0, 2):
        batches = [batch_bytes(offset, producer_id=OPEN_PRODUCER, sequence=offset) for offset in range(5)]
        write_segment(found / f"foreign-{number}", 0, batches)
    (found / "foreign-2" / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n7 3\n")
    return found


def metadata_of(log_dir: Path) -> ClusterMetadata:
    found = read_cluster_metadata(log_dir, Fs())
    assert found is not None
    return found


def adopt(log_dir: Path, *arguments: object) -> Outcome:
    return sediment("adopt", log_dir, "--json", "--yes", *arguments)


def refusal(log_dir: Path, *arguments: object) -> str:
    """Return the sentence with which the directory is refused; nothing in it changes."""
    before = tree(log_dir)
    outcome = adopt(log_dir, *arguments)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert tree(log_dir) == before
    return outcome.stderr


# -------------------------------------------------------------------------------------------------------------- adopted
def test_folders_that_the_node_does_not_know_become_topics_of_its_cluster(log_dir: Path) -> None:
    before, old = tree(log_dir), metadata_of(log_dir)
    outcome = adopt(log_dir, "--set", "foreign:cleanup.policy=compact")
    assert outcome.status == 0, outcome.stderr
    report = outcome.report
    assert (report["node_id"], report["is_complete"], report["server_properties"]) == (1, True, None)
    rows = outcome.partitions()
    adopted = {name: row for name, row in rows.items() if row["status"] == "adopted"}
    assert {name: row["log_end_offset"] for name, row in adopted.items()} == {"foreign-0": 5, "foreign-2": 5}
    assert rows["foreign-1"]["status"] == "skipped"
    assert {row["status"] for name, row in rows.items() if not name.startswith("foreign")} == {"unchanged"}

    new = metadata_of(log_dir)
    assert new.topic_ids == {**old.topic_ids, "foreign": adopted["foreign-0"]["topic_id"]}
    assert new.replicas["foreign"] == {0: (1,), 1: (1,), 2: (1,)}
    wanted = {"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "-1"}
    assert new.topic_configs["foreign"] == wanted
    assert new.next_producer_id > max(OPEN_PRODUCER, old.next_producer_id)
    partitions = [each["data"] for each in report["records"] if each["type"] == "PARTITION_RECORD"]
    assert [each["leaderEpoch"] for each in partitions] == [0, 0, 7]

    after = tree(log_dir)
    changed = {name for name in before if before[name] != after.get(name)}
    assert {name for name in changed if not name.startswith((METADATA, "foreign"))} == {
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    }
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        assert read_checkpoint(log_dir / name) == {
            **{str(k): v for k, v in checkpoint(before[name]).items()},
            "foreign-0": 5,
            "foreign-2": 5,
        }


def checkpoint(content: bytes) -> dict[str, int]:
    lines = [line.split() for line in content.decode().splitlines()[2:]]
    return {f"{topic}-{number}": int(offset) for topic, number, offset in lines}


def test_the_kept_copies_lead_back_to_the_directory_before(log_dir: Path) -> None:
    before = tree(log_dir)
    outcome = adopt(log_dir)
    for name in outcome.report["kept"]:
        if name.endswith(".tar"):
            shutil.rmtree(log_dir / METADATA)
            with tarfile.open(log_dir / name) as archive:
                archive.extractall(log_dir, filter="data")
        else:
            (log_dir / name).rename(log_dir / name.removesuffix(f".{outcome.report['run_id']}.kept"))
    after = tree(log_dir)
    assert {name: after[name] for name in before if not name.startswith("foreign")} == {
        name: data for name, data in before.items() if not name.startswith("foreign")
    }
    assert adopt(log_dir).report["is_complete"]


def test_the_text_says_how_to_go_back(log_dir: Path) -> None:
    outcome = sediment("adopt", log_dir, "--yes")
    assert outcome.status == 0
    assert "2 partitions adopted by node 1" in outcome.stdout
    assert f"remove {METADATA}, and unpack {METADATA}." in outcome.stdout


def test_a_second_run_changes_nothing(log_dir: Path) -> None:
    adopt(log_dir)
    before = tree(log_dir)
    outcome = adopt(log_dir)
    assert outcome.status == 0
    assert {row["status"] for row in outcome.report["partitions"]} == {"unchanged"}
    assert tree(log_dir) == before


def test_a_dry_run_shows_the_records_and_changes_nothing(log_dir: Path) -> None:
    before = tree(log_dir)
    dry = adopt(log_dir, "--dry-run").report
    text = sediment("adopt", log_dir, "--dry-run").stdout
    assert tree(log_dir) == before
    assert "2 partitions would be adopted by node 1" in text
    assert '"type": "TOPIC_RECORD"' in text
    on_terminal = sediment_on_terminal("adopt", log_dir, "--dry-run").stdout
    assert " 1 TOPIC_RECORD" in on_terminal and " 3 PARTITION_RECORD" in on_terminal and "{" not in on_terminal
    real = adopt(log_dir).report

    def without_ids(report: dict) -> list:
        return [{**each, "data": {**each["data"], "topicId": None}} for each in report["records"]]

    assert without_ids(dry) == without_ids(real)


def test_topic_ids_in_the_folders_are_kept(log_dir: Path) -> None:
    given = "aaaaaaaaaaaaaaaaaaaaaA"
    for number in (0, 2):
        (log_dir / f"foreign-{number}" / "partition.metadata").write_text(f"version: 0\ntopic_id: {given}")
    assert adopt(log_dir).status == 0
    assert metadata_of(log_dir).topic_ids["foreign"] == given


def test_old_entries_of_the_cleaner_are_removed(log_dir: Path) -> None:
    write_checkpoint(log_dir / "cleaner-offset-checkpoint", {"orders-0": 3})
    assert adopt(log_dir).status == 0
    assert read_checkpoint(log_dir / "cleaner-offset-checkpoint") == {"orders-0": 3}


def test_damage_in_a_foreign_folder_is_reported_and_nothing_is_cut_also_after_a_crash_of_the_node(
    log_dir: Path,
) -> None:
    (log_dir / ".kafka_cleanshutdown").unlink()
    log = write_segment(log_dir / "damaged-0", 0, [batch_bytes(offset) for offset in range(10)])
    content = bytearray(log.read_bytes())
    content[340] ^= 1
    log.write_bytes(bytes(content))
    outcome = adopt(log_dir)
    assert outcome.status == 0
    row = outcome.partitions()["damaged-0"]
    assert (row["status"], row["reason_code"], row["log_end_offset"]) == ("adopted", "corrupt-batch", 10)
    assert log.read_bytes() == bytes(content)
    assert not (log_dir / ".kafka_cleanshutdown").exists()


def test_an_open_transaction_without_a_coordinator_needs_a_decision(log_dir: Path) -> None:
    batches = [batch_bytes(0), batch_bytes(1, producer_id=9, transactional=True)]
    write_segment(log_dir / "pending-0", 0, batches)
    before = metadata_of(log_dir)
    outcome = adopt(log_dir)
    assert outcome.status == 1
    assert "an open transaction begins at offset 1" in outcome.partitions()["pending-0"]["reason"]
    assert metadata_of(log_dir) == before
    outcome = adopt(log_dir, "--abort-open-transactions")
    assert outcome.status == 0
    assert outcome.partitions()["pending-0"]["log_end_offset"] == 3


def test_the_records_of_an_interrupted_metadata_transaction_stay_out(log_dir: Path) -> None:
    # 1,201 partitions need a transaction; without its end, the next run starts over.
    write_segment(log_dir / "wide-1200", 0, [batch_bytes(0)])
    before = metadata_of(log_dir)
    assert adopt(log_dir).status == 0
    assert len(metadata_of(log_dir).replicas["wide"]) == 1201
    log = log_dir / METADATA / "00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1])  # the end of the transaction
    for path in (log_dir / METADATA).glob("*.snapshot"):
        path.unlink()
    assert metadata_of(log_dir).topic_ids == before.topic_ids
    assert adopt(log_dir).status == 0
    assert len(metadata_of(log_dir).replicas["wide"]) == 1201


# -------------------------------------------------------------------------------------------------------------- refused
def with_id_of(topic: str, folder: str) -> Callable[[Path], None]:
    def change(log_dir: Path) -> None:
        shutil.copy(log_dir / f"{topic}-0" / "partition.metadata", log_dir / folder / "partition.metadata")

    return change


def with_folder(name: str, topic_id: str | None = None) -> Callable[[Path], None]:
    def change(log_dir: Path) -> None:
        write_segment(log_dir / name, 0, [batch_bytes(0)])
        if topic_id is not None:
            (log_dir / name / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_id_of("orders", "foreign-0"), "orders, not to foreign"),
        (with_folder("orders-7"), "this folder has no partition.metadata"),
        (with_folder("orders-7", "aaaaaaaaaaaaaaaaaaaaaA"), "the cluster has another topic orders"),
        (lambda log_dir: (with_folder("orders-7")(log_dir), with_id_of("orders", "orders-7")(log_dir)), "has 2 part"),
    ],
)
def test_a_folder_that_clashes_with_a_topic_is_named(
    log_dir: Path, change: Callable[[Path], object], words: str
) -> None:
    change(log_dir)
    assert words in refusal(log_dir)


@pytest.mark.parametrize("name", ["foreign-0", METADATA])
def test_the_directory_of_one_partition_is_not_a_log_directory(log_dir: Path, name: str) -> None:
    assert "the directory of one partition" in refusal(log_dir / name)


def test_two_foreign_topics_with_one_id_are_refused(log_dir: Path) -> None:
    with_folder("one-0", "aaaaaaaaaaaaaaaaaaaaaA")(log_dir)
    with_folder("two-0", "aaaaaaaaaaaaaaaaaaaaaA")(log_dir)
    assert "topics one and two have the same topic id" in refusal(log_dir)


def test_a_node_with_other_voters_is_refused(log_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@a:1,2@b:1,3@c:1\n")
    assert "not the sole voter" in refusal(log_dir, "--config", file)
    assert "clone the folders" in refusal(log_dir, "--config", file)
    file.write_text("process.roles=broker\nnode.id=1\ncontroller.quorum.voters=1@a:1\n")
    assert "lacks the controller role" in refusal(log_dir, "--config", file)
    shutil.copy(file, log_dir / "server.properties")
    assert "lacks the controller role" in refusal(log_dir)


def test_options_for_a_new_node_are_refused(log_dir: Path, tmp_path: Path) -> None:
    for arguments in (
        ("--node-id", 2),
        ("--cluster-id", "aaaaaaaaaaaaaaaaaaaaaA"),
        ("--listen", "127.0.0.1:9092"),
        ("--server-properties", tmp_path / "new.properties"),
    ):
        assert f"{arguments[0]} " in refusal(log_dir, *arguments)
    assert adopt(log_dir, "--node-id", 1).status == 0


def test_sets_have_to_name_an_adopted_topic(log_dir: Path) -> None:
    assert "names no topic" in refusal(log_dir, "--set", "retention.ms=5")
    assert "--set orders:… names a topic that is not adopted" in refusal(log_dir, "--set", "orders:retention.ms=5")


def test_a_set_with_which_a_broker_does_not_start_is_refused(log_dir: Path) -> None:
    sentence = refusal(log_dir, "--set", "foreign:segment.bytes=4000")
    assert "is below 1048576, and a broker of Kafka 4 does not start with it" in " ".join(sentence.split())


def test_a_directory_in_use_is_left_alone(log_dir: Path) -> None:
    before = tree(log_dir)
    with DirectoryLock(log_dir):
        outcome = adopt(log_dir)
    assert outcome.status == 1
    assert "stop the broker" in outcome.stderr
    assert tree(log_dir) == before


def test_a_damaged_metadata_log_is_left_alone(log_dir: Path) -> None:
    log = log_dir / METADATA / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    content[200] ^= 1
    log.write_bytes(bytes(content))
    before = tree(log_dir)
    outcome = adopt(log_dir)
    assert outcome.status == 1
    assert "Traceback" not in outcome.stderr
    assert tree(log_dir) == before


def test_a_metadata_log_that_a_load_would_truncate_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    log_dir = kraft_dir(tmp_path / "data")
    write_segment(log_dir / "foreign-0", 0, [batch_bytes(0)])
    (log,) = (log_dir / METADATA).glob("*.log")
    content = bytearray(log.read_bytes())
    content[1000] ^= 1  # below the newest snapshot, so the metadata can be read
    log.write_bytes(content)
    before = tree(log_dir)
    outcome = adopt(log_dir)
    assert outcome.status != 0
    assert "a start truncates the log" in outcome.stderr
    assert tree(log_dir) == before
