"""Records for partitions that a node leads: they raise the leader epochs, or name another log directory.

After an unclean stop, a log may have lost its last records, and new records may get the offsets of the lost records.
If the leader epoch is new, a consumer notices that its position is above the end of the earlier epoch (KIP-320).  Each
record also makes the leader the only in-sync replica.  This is necessary because after an unclean stop, the metadata
may list the leader only as an eligible leader replica (KIP-966).

Source: Kafka's PartitionChangeBuilder and PartitionRegistration.merge: a record with a leader raises the leader epoch
and the partition epoch by 1.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

from sediment.segment_io.format.checkpoints import parse_uuid
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.internal_topics.metadata_records import (
    decode_metadata_record,
    encode_metadata_record,
    message_version,
)
from sediment.segment_io.protocol import messages as m

ELIGIBLE_REPLICAS = "eligible.leader.replicas.version"
NO_LEADER_CHANGE = -2
_VERSION = 0
_VERSION_WITH_DIRECTORIES = 1
_VERSION_WITH_ELIGIBLE_REPLICAS = 2
_PARTITIONS = frozenset({"PartitionRecord"})
_CHANGES = frozenset({"PartitionChangeRecord"})


def leader_change_records(
    partitions: Iterable[TopicPartition], node_id: int, metadata: ClusterMetadata
) -> Iterator[bytes]:
    """Yield a record for each partition, which makes the node its leader and ISR under the next leader epoch."""
    version = _VERSION_WITH_ELIGIBLE_REPLICAS if metadata.features.get(ELIGIBLE_REPLICAS, 0) else _VERSION
    for partition in partitions:
        topic_id = uuid.UUID(bytes=parse_uuid(metadata.topic_ids[partition.topic]))
        record = m.PartitionChangeRecord(
            partition_id=partition.partition, topic_id=topic_id, isr=[node_id], leader=node_id
        )
        if version == _VERSION_WITH_ELIGIBLE_REPLICAS:
            record.eligible_leader_replicas = record.last_known_elr = []
        yield encode_metadata_record(record, version)


def directory_change_record(partition: TopicPartition, directory_id: str, metadata: ClusterMetadata) -> bytes:
    """Source: Kafka's ReplicationControlManager.handleAssignReplicasToDirs."""
    has_eligible_replicas = metadata.features.get(ELIGIBLE_REPLICAS, 0)
    version = _VERSION_WITH_ELIGIBLE_REPLICAS if has_eligible_replicas else _VERSION_WITH_DIRECTORIES
    record = m.PartitionChangeRecord(
        partition_id=partition.partition,
        topic_id=uuid.UUID(bytes=parse_uuid(metadata.topic_ids[partition.topic])),
        directories=[uuid.UUID(bytes=parse_uuid(directory_id))],
    )
    return encode_metadata_record(record, version)


def merge_partition_changes(values: Iterable[bytes], changes: Iterable[bytes]) -> list[bytes]:
    """The changes are those of `leader_change_records` and `directory_change_record`, at most one for a partition."""
    changed = {}
    for value in changes:
        change = decode_metadata_record(value, _CHANGES)
        assert change is not None
        changed[change.topic_id, change.partition_id] = change
    merged = []
    for value in values:
        record = decode_metadata_record(value, _PARTITIONS)
        found = None if record is None else changed.get((record.topic_id, record.partition_id))
        if record is None or found is None:
            merged.append(value)
            continue
        if found.leader != NO_LEADER_CHANGE:
            record.leader, record.isr = found.leader, found.isr
            record.leader_epoch += 1
        if found.directories is not None:
            record.directories = found.directories
        record.partition_epoch += 1
        merged.append(encode_metadata_record(record, message_version(value)))
    return merged
