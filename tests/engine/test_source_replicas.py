"""The replicas that are read if several log directories contain a partition."""

from __future__ import annotations

import logging
import shutil
import uuid
from pathlib import Path

import pytest

from sediment.engine.source_replicas import best_sources
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.checkpoints import EpochEntry, format_uuid
from sediment.segment_io.format.meta_properties import MetaProperties, format_meta_properties
from sediment.segment_io.format.names import LEADER_EPOCH_FILE, META_PROPERTIES_FILE, PARTITION_METADATA_FILE
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_records import encode_metadata_record
from sediment.segment_io.partition.checkpoint_files import write_leader_epochs, write_partition_metadata
from sediment.segment_io.partition.sources import find_sources
from sediment.segment_io.protocol import messages as m
from tests.segments import batch_bytes, write_segment
from tests.twin.batches import Record, encode_batch

OLD_ID, NEW_ID = format_uuid(uuid.UUID(int=1).bytes), format_uuid(uuid.UUID(int=2).bytes)


def write_replica(log_dir: Path, name: str, *, end: int = 4, epoch: int = 3, topic_id: str | None = NEW_ID) -> Path:
    directory = log_dir / name
    write_segment(directory, 0, [batch_bytes(offset) for offset in range(end)])
    write_leader_epochs(Fs(), directory / LEADER_EPOCH_FILE, [EpochEntry(epoch, 0)])
    if topic_id is not None:
        write_partition_metadata(Fs(), directory / PARTITION_METADATA_FILE, topic_id)
    return directory


def write_node(log_dir: Path, node_id: int, cluster_id: str = "c") -> None:
    log_dir.mkdir(exist_ok=True)
    (log_dir / META_PROPERTIES_FILE).write_bytes(format_meta_properties(MetaProperties(1, cluster_id, node_id, None)))


def best(*paths: Path) -> list[Path]:
    return [source.directory for source in best_sources(find_sources(paths, Fs()), Fs())]


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ({"end": 9, "epoch": 3}, {"end": 4, "epoch": 4}, 1),
        ({"end": 4}, {"end": 5}, 1),
        ({"end": 5}, {"end": 4}, 0),
        ({}, {}, 0),
        ({"topic_id": None, "end": 3}, {}, 1),
    ],
)
def test_the_highest_leader_epoch_is_read_then_the_highest_log_end_then_the_first(
    first: dict[str, int], second: dict[str, int], wanted: int, tmp_path: Path
) -> None:
    found = [write_replica(tmp_path / "b1", "t-0", **first), write_replica(tmp_path / "b2", "t-0", **second)]
    assert best(tmp_path / "b1", tmp_path / "b2") == [found[wanted]]


def test_an_unreadable_replica_is_read_only_if_it_is_the_only_one(tmp_path: Path) -> None:
    bad, good = write_replica(tmp_path / "b1", "t-0", end=9), write_replica(tmp_path / "b2", "t-0")
    (bad / LEADER_EPOCH_FILE).write_bytes(b"no epochs")
    assert best(tmp_path / "b1", tmp_path / "b2") == [good]
    shutil.rmtree(good)
    assert best(tmp_path / "b1") == [bad]


def test_partitions_without_replicas_are_all_read_in_their_order_and_no_file_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [write_replica(tmp_path / "d2", "t-1"), write_replica(tmp_path / "d1", "t-0")]
    monkeypatch.setattr(Fs, "read_bytes", None)
    assert best(tmp_path / "d2", tmp_path / "d1") == kept


def test_named_segments_and_directories_with_other_names_are_not_replicas(tmp_path: Path) -> None:
    for log_dir in ("b1", "b2"):
        write_replica(tmp_path / log_dir, "t-0")
        write_replica(tmp_path / log_dir, "t-0.00000000000000000000000000000000-stray")
        write_replica(tmp_path / log_dir, "mylog")
    for pattern in ("t-0/*.log", "t-0.*", "mylog"):
        assert len(best(*tmp_path.glob(f"b?/{pattern}"))) == 2
    assert len(best(*tmp_path.glob("b?/t-0"))) == 1


def test_directories_of_several_clusters_are_refused_only_if_a_partition_is_in_both(tmp_path: Path) -> None:
    write_node(tmp_path / "b1", 1, "one")
    write_node(tmp_path / "b2", 1, "two")
    write_replica(tmp_path / "b1", "t-0")
    write_replica(tmp_path / "b2", "t-1")
    assert len(best(tmp_path / "b1", tmp_path / "b2")) == 2
    write_replica(tmp_path / "b2", "t-0")
    with pytest.raises(
        UsageError, match=r"belongs to cluster one, and .* to cluster two; read one cluster at a time, or"
    ):
        best(tmp_path / "b1", tmp_path / "b2")


def test_directories_of_an_older_topic_are_left_out_if_the_metadata_knows_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_replica(tmp_path / "b1", "t-0", end=9, topic_id=OLD_ID)
    write_replica(tmp_path / "b1", "t-1", topic_id=OLD_ID)
    new = write_replica(tmp_path / "b2", "t-0")
    with pytest.raises(UsageError, match=f"topic t has id {OLD_ID} in .*b1 and {NEW_ID} in .*b2; they are different"):
        best(tmp_path / "b1", tmp_path / "b2")
    topic = encode_metadata_record(m.TopicRecord(name="t", topic_id=uuid.UUID(int=2)), 0)
    batch = encode_batch([Record(0, 1, None, topic)], base_offset=0, leader_epoch=1)
    write_segment(tmp_path / "b2" / "__cluster_metadata-0", 0, [batch])
    with caplog.at_level(logging.WARNING):
        assert best(tmp_path / "b1", tmp_path / "b2") == [new]
    assert "topic t: left out 2 directories of an older topic" in caplog.text
