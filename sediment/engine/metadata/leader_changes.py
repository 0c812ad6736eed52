"""Records that raise the leader epochs of partitions that a node leads.

After an unclean stop, a log may have lost its last records, and other records may get their offsets.  Under a new
leader epoch, a consumer notices that its position is above the end of the earlier epoch (KIP-320).  Each record also
makes the leader the only in-sync replica, because after an unclean stop the metadata may list it only as an eligible
leader replica (KIP-966).

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
_VERSION = 0
_VERSION_WITH_ELIGIBLE_REPLICAS = 2
_PARTITIONS = frozenset({"PartitionRecord"})
_CHANGES = frozenset({"PartitionChangeRecord"})


def leader_change_records(
    partitions: Iterable[TopicPartition], node_id: int, metadata: ClusterMetadata
) -> Iterator[bytes]:
    """Yield a record for each partition; it makes the node leader and in-sync replica under the next leader epoch.

    The records are independent of each other.
    """
    version = _VERSION_WITH_ELIGIBLE_REPLICAS if metadata.features.get(ELIGIBLE_REPLICAS, 0) else _VERSION
    for partition in partitions:
        topic_id = uuid.UUID(bytes=parse_uuid(metadata.topic_ids[partition.topic]))
        record = m.PartitionChangeRecord(
            partition_id=partition.partition, topic_id=topic_id, isr=[node_id], leader=node_id
        )
        if version == _VERSION_WITH_ELIGIBLE_REPLICAS:
            record.eligible_leader_replicas = record.last_known_elr = []
        yield encode_metadata_record(record, version)


def merge_leader_changes(values: Iterable[bytes], changes: Iterable[bytes]) -> list[bytes]:
    """Return the records `values`, with `changes` of `leader_change_records` merged into their partition records."""
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
        record.leader, record.isr = found.leader, found.isr
        record.leader_epoch += 1
        record.partition_epoch += 1
        merged.append(encode_metadata_record(record, message_version(value)))
    return merged
