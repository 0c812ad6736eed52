"""The topic id that a folder's partition.metadata should have, and when it must not be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.engine.directory.partition_metadata import TopicIdFault, TopicIds, write_topic_id
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata

ID = "Wa_tyHYYQky5lsMO1Mg4sA"
OTHER = "4vTm1bxNTxK4bBqO3mAVxg"
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
UNREADABLE = {
    "has 0 bytes": b"",
    "is unreadable (partition.metadata needs": b"version: 0",
    "is unreadable (partition.metadata contains": b"version: 0\ntopic_id: Wa_tyHYYQky5ls",
    "is unreadable (partition.metadata contains the all-zero": b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
}


def metadata(**fields: object) -> ClusterMetadata:
    known = {"t": {0: (1,), 1: (1,)}}
    values = {"replicas": known, "leader_epochs": {"t": {0: 3, 1: 3}}, **fields}
    return ClusterMetadata({"t": ID}, {}, {}, 9, **values)  # type: ignore[arg-type]


def make_folder(tmp_path: Path, content: bytes | None, *, epoch: int = 3) -> Path:
    for partition in (FIRST, SECOND):
        folder = tmp_path / str(partition)
        folder.mkdir(exist_ok=True)
        (folder / "leader-epoch-checkpoint").write_text(f"0\n1\n{epoch} 0\n")
        (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {ID}")
    file = tmp_path / str(FIRST) / "partition.metadata"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    return file.parent


def fault_of(
    folder: Path, found: ClusterMetadata | None, *, node_id: int | None = 1, is_kraft: bool = True
) -> TopicIdFault | None:
    folders = [(partition, folder.parent / str(partition)) for partition in (FIRST, SECOND)]
    return TopicIds(found, folders, Fs(), node_id=node_id, is_kraft=is_kraft).fault(FIRST, folder)


def test_the_id_of_the_clusters_topic_is_no_fault(tmp_path: Path) -> None:
    assert fault_of(make_folder(tmp_path, f"version: 0\ntopic_id: {ID}".encode()), metadata()) is None


def test_a_missing_file_gets_the_id_of_the_clusters_topic_with_the_mode_of_its_neighbours(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, None)
    (folder / "leader-epoch-checkpoint").chmod(0o640)
    fault = fault_of(folder, metadata())
    assert fault is not None and (fault.topic_id, fault.is_lost) == (ID, True)
    assert "-stray and serves the partition empty" in str(fault) and "sediment recover" in fault.advice
    repair = write_topic_id(folder, FIRST, fault, Fs())
    assert str(repair) == (
        f"partition.metadata created: it was missing; __cluster_metadata-0 gives topic t the id {ID}"
    )
    assert (folder / "partition.metadata").read_bytes() == f"version: 0\ntopic_id: {ID}".encode()
    assert (folder / "partition.metadata").stat().st_mode & 0o777 == 0o640
    assert fault_of(folder, metadata()) is None


@pytest.mark.parametrize("what", UNREADABLE)
def test_an_unreadable_file_is_rewritten(tmp_path: Path, what: str) -> None:
    folder = make_folder(tmp_path, UNREADABLE[what])
    fault = fault_of(folder, metadata())
    assert fault is not None and fault.fault.startswith(what) and fault.topic_id == ID
    assert "does not start" in fault.effect
    assert "partition.metadata rewritten: it " in str(write_topic_id(folder, FIRST, fault, Fs()))
    assert fault_of(folder, metadata()) is None


@pytest.mark.parametrize("node_id", [1, None])
def test_a_readable_file_with_another_id_is_said_and_never_written(tmp_path: Path, node_id: int | None) -> None:
    fault = fault_of(make_folder(tmp_path, f"version: 0\ntopic_id: {OTHER}".encode()), metadata(), node_id=node_id)
    assert fault is not None and (fault.topic_id, fault.is_lost) == (None, False)
    assert f"topic id {OTHER}" in fault.fault and ID in fault.fault and "-stray" in fault.effect


def test_a_file_of_an_unknown_topic_and_of_no_replica_is_said(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, f"version: 0\ntopic_id: {ID}".encode())
    gone = fault_of(folder, ClusterMetadata({}, {}, {}, 9))
    assert gone is not None and "the cluster has no topic t" in gone.fault and not gone.is_lost
    moved = fault_of(folder, metadata(), node_id=2)
    assert moved is not None and "on nodes 1, not on node 2" in moved.fault and not moved.is_lost


@pytest.mark.parametrize(
    ("found", "epoch", "why"),
    [
        (metadata(leader_epochs={"t": {0: 2}}), 3, "its log has leader epoch 3"),
        (metadata(former_topic_ids={"t": frozenset({OTHER})}), 0, "topic t was deleted and created again"),
        (metadata(replicas={"t": {1: (1,)}}), 0, "the cluster's topic has only 1 partitions"),
        (metadata(replicas={"t": {0: (2, 3)}}), 0, "on nodes 2, 3, not on node 1"),
        (ClusterMetadata({}, {}, {}, 9), 0, "the cluster has no topic t"),
    ],
)
@pytest.mark.parametrize("content", [None, b""])
def test_no_id_is_written_if_the_folder_may_belong_to_an_older_topic(
    tmp_path: Path, found: ClusterMetadata, epoch: int, why: str, content: bytes | None
) -> None:
    fault = fault_of(make_folder(tmp_path, content, epoch=epoch), found)
    assert fault is not None and fault.topic_id is None and why in fault.advice
    # Without the file, a broker sets the folder aside; with an unreadable one, it does not start.
    assert fault.is_lost is (content is not None)
    assert ("move the file out of the folder" in fault.advice) is (content is not None)


def test_no_id_is_written_if_another_folder_of_the_topic_has_another_id(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, None)
    (tmp_path / str(SECOND) / "partition.metadata").write_text(f"version: 0\ntopic_id: {OTHER}")
    fault = fault_of(folder, metadata())
    assert fault is not None and fault.topic_id is None and OTHER in fault.advice


def test_without_metadata_only_a_broker_with_kraft_needs_the_file(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, None)
    assert fault_of(folder, None, is_kraft=False) is None
    needed = fault_of(folder, None)
    assert needed is not None and needed.is_lost and needed.topic_id is None and "--metadata DIR" in needed.advice
    (folder / "partition.metadata").touch()
    for is_kraft, advice in ((True, "--metadata DIR"), (False, "move the file out of the folder")):
        fault = fault_of(folder, None, is_kraft=is_kraft)
        assert fault is not None and fault.is_lost and fault.topic_id is None and advice in fault.advice


def test_a_readable_file_is_not_judged_without_metadata(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, f"version: 0\ntopic_id: {OTHER}".encode())
    assert fault_of(folder, None) is None
