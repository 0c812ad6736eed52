"""Records that raise the leader epochs of partitions, in a metadata log and in bootstrap.checkpoint."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from sediment.engine.clone.cluster_records import topic_records
from sediment.engine.clone.plan import ClonedTopic
from sediment.engine.metadata.bootstrap_writer import BootstrapWriter
from sediment.engine.metadata.leader_changes import (
    directory_change_record,
    leader_change_records,
    merge_partition_changes,
)
from sediment.engine.metadata.topic_records import partition_record
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.bootstrap_checkpoint import format_bootstrap_checkpoint
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.internal_topics.metadata_records import decode_metadata_record, message_version
from sediment.segment_io.partition.clean_shutdown_file import NEW_DIRECTORY, format_clean_shutdown
from sediment.segment_io.segment.fetched_batches import read_records
from tests.engine.metadata.test_metadata_writers import NODE, log_writer, metadata_of
from tests.segments import NOW_MS
from tests.served import unpacked

WITH_DIRECTORIES = 20  # a metadata.version whose PartitionRecords name log directories


def test_a_metadata_log_has_the_next_leader_epochs(tmp_path: Path) -> None:
    log_dir = unpacked(tmp_path / "data")
    before = metadata_of(log_dir)
    chosen = [TopicPartition("orders", 1), TopicPartition("prices", 0)]
    writer = log_writer(log_dir)
    writer.append(list(leader_change_records(chosen, NODE.node_id, before)))
    writer.close()
    after = metadata_of(log_dir)
    for topic, epochs in before.leader_epochs.items():
        for number, epoch in epochs.items():
            raised = TopicPartition(topic, number) in chosen
            assert after.leader_epochs[topic][number] == epoch + raised
    assert after.replicas == before.replicas


@pytest.mark.parametrize("level", [0, 1])
def test_the_node_is_the_only_in_sync_replica_and_no_other_one_is_eligible(level: int) -> None:
    metadata = ClusterMetadata(
        {"t": format_uuid(bytes(range(16)))}, {}, {}, 1, features={"eligible.leader.replicas.version": level}
    )
    (value,) = leader_change_records([TopicPartition("t", 3)], 7, metadata)
    record = decode_metadata_record(value)
    assert record is not None
    assert (record.partition_id, record.leader, list(record.isr)) == (3, 7, [7])
    assert [record.eligible_leader_replicas, record.last_known_elr] == ([(), ()] if level else [None, None])
    assert message_version(value) == (2 if level else 0)


@pytest.mark.parametrize("level", [0, 1])
def test_a_partition_gets_another_directory_and_keeps_its_leader_epoch(level: int) -> None:
    topic_id, before, after = (format_uuid(bytes([number] * 16)) for number in (1, 2, 3))
    partition = TopicPartition("t", 0)
    metadata = ClusterMetadata({"t": topic_id}, {}, {}, 1, features={"eligible.leader.replicas.version": level})
    change = directory_change_record(partition, after, metadata)
    assert message_version(change) == (2 if level else 1)
    own = partition_record(uuid.UUID(int=1), 0, 7, before, metadata_version=WITH_DIRECTORIES)
    values = [partition_record(uuid.UUID(bytes=bytes([1] * 16)), 0, 7, before, metadata_version=WITH_DIRECTORIES), own]
    changed, kept = merge_partition_changes(values, [change])
    assert kept == own
    record = decode_metadata_record(changed)
    assert record is not None
    assert (record.leader, list(record.isr), record.leader_epoch, record.partition_epoch) == (7, [7], 0, 1)
    assert list(record.directories) == [uuid.UUID(bytes=bytes([3] * 16))]


def test_a_bootstrap_checkpoint_has_them_in_its_records_of_partitions_and_does_not_grow(tmp_path: Path) -> None:
    topic = ClonedTopic("t", "t", format_uuid(bytes(range(16))), True, 3, (), {}, ())
    node = replace(NODE, directory_id=format_uuid(bytes(range(1, 17))))
    epochs = {TopicPartition("t", number): number for number in range(3)}
    values = list(topic_records(topic, epochs, node, WITH_DIRECTORIES))
    path = tmp_path / "bootstrap.checkpoint"
    path.write_bytes(format_bootstrap_checkpoint(values, now_ms=NOW_MS))
    (tmp_path / ".kafka_cleanshutdown").write_bytes(format_clean_shutdown(NEW_DIRECTORY))
    size = path.stat().st_size
    for number in range(1, 4):
        metadata = metadata_of(tmp_path)
        changes = list(leader_change_records([TopicPartition("t", 2)], node.node_id, metadata))
        BootstrapWriter(tmp_path, Fs(), clock=lambda: NOW_MS).append(changes)
        assert metadata_of(tmp_path).leader_epochs == {"t": {0: 0, 1: 1, 2: 2 + number}}
    assert path.stat().st_size == size
    records = [decode_metadata_record(each.value) for each in read_records(path.read_bytes())]
    (changed,) = (each for each in records if getattr(each, "partition_id", None) == 2)
    original = decode_metadata_record(values[-1])
    assert original is not None
    assert (changed.partition_epoch, changed.leader) == (3, node.node_id)
    assert (changed.directories, changed.replicas) == (original.directories, original.replicas)
