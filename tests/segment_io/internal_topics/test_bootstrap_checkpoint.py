"""`bootstrap.checkpoint` as it is written here, read back as the metadata of a directory that was never started."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.bootstrap_checkpoint import format_bootstrap_checkpoint
from sediment.segment_io.internal_topics.metadata_log import (
    ClusterMetadata,
    read_bootstrap_checkpoint,
    read_cluster_metadata,
)
from sediment.segment_io.internal_topics.metadata_records import ResourceType, encode_metadata_record
from sediment.segment_io.partition.clean_shutdown_file import NEW_DIRECTORY, format_clean_shutdown
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.segment.reader import HeaderScan

TOPIC_ID = uuid.UUID(int=7)
ENTITY = [m.ClientQuotaRecord.EntityData(entity_type="user", entity_name="ann")]
RECORDS = (
    m.FeatureLevelRecord(name="metadata.version", feature_level=25),
    m.TopicRecord(name="orders", topic_id=TOPIC_ID),
    m.PartitionRecord(partition_id=0, topic_id=TOPIC_ID, replicas=[1], isr=[1], leader=1, leader_epoch=4),
    m.ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="orders", name="retention.ms", value="5"),
    m.ProducerIdsRecord(broker_id=1, broker_epoch=-1, next_producer_id=3000),
    m.AccessControlEntryRecord(id=uuid.UUID(int=9), principal="User:ann"),
    m.ClientQuotaRecord(entity=ENTITY, key="producer_byte_rate", value=1024.0),
)


def written(log_dir: Path, *records: m.TopicRecord) -> Path:
    values = [encode_metadata_record(record, 0) for record in records]
    path = log_dir / "bootstrap.checkpoint"
    path.write_bytes(format_bootstrap_checkpoint(values, now_ms=1_000))
    (log_dir / ".kafka_cleanshutdown").write_bytes(format_clean_shutdown(NEW_DIRECTORY))
    return path


def read(log_dir: Path) -> ClusterMetadata | None:
    return read_cluster_metadata(log_dir, Fs())


def test_the_records_are_the_metadata_of_a_directory_without_a_metadata_log(tmp_path: Path) -> None:
    written(tmp_path, *RECORDS)
    found = read(tmp_path)
    assert found is not None and found.is_bootstrap
    assert found.topic_configs == {"orders": {"retention.ms": "5"}}
    assert found.replicas == {"orders": {0: (1,)}}
    assert found.features == {"metadata.version": 25}
    assert found.next_producer_id == 3000
    assert [acl.principal for acl in found.acls.values()] == ["User:ann"]
    assert found.quotas[(("user", "ann"),), "producer_byte_rate"].value == 1024.0


def test_a_metadata_log_hides_them_even_if_it_is_empty(tmp_path: Path) -> None:
    written(tmp_path, *RECORDS)
    (tmp_path / "__cluster_metadata-0").mkdir()
    assert read(tmp_path) is None


@pytest.mark.parametrize("content", [None, b"", b'{"version":0,"brokerEpoch":1}'])
def test_they_do_not_count_once_a_broker_has_started(tmp_path: Path, content: bytes | None) -> None:
    written(tmp_path, *RECORDS)
    marker = tmp_path / ".kafka_cleanshutdown"
    marker.unlink() if content is None else marker.write_bytes(content)
    assert read(tmp_path) is None
    stale = read_bootstrap_checkpoint(tmp_path, Fs())
    assert stale is not None and stale.next_producer_id == 3000


def test_the_file_of_a_formatted_node_says_nothing_about_topics(tmp_path: Path) -> None:
    written(tmp_path, RECORDS[0])
    assert read(tmp_path) is None


def test_removed_acls_and_quotas_are_gone(tmp_path: Path) -> None:
    removals = (
        m.RemoveAccessControlEntryRecord(id=uuid.UUID(int=9)),
        m.ClientQuotaRecord(entity=ENTITY, key="producer_byte_rate", remove=True),
    )
    written(tmp_path, *RECORDS, *removals)
    found = read(tmp_path)
    assert found is not None and not found.acls and not found.quotas


def test_a_file_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, *RECORDS)
    content = path.read_bytes()
    for size_bytes in range(1, len(content), 37):
        path.write_bytes(content[:size_bytes])
        with pytest.raises(CorruptBatchError):
            read(tmp_path)


def test_offsets_are_contiguous_over_many_batches(tmp_path: Path) -> None:
    topics = [m.TopicRecord(name=f"topic-{number}", topic_id=uuid.UUID(int=number + 1)) for number in range(2500)]
    path = written(tmp_path, *topics)
    found = read(tmp_path)
    assert found is not None and len(found.topic_ids) == 2500
    rows = [row for rows in HeaderScan(path) for row in rows]
    assert [int(row["base_offset"]) for row in rows] == [0, 1, 1001, 2001, 2501]
    assert [int(row["control_type"]) for row in rows] == [3, -1, -1, -1, 4]
