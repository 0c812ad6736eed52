"""MarkerWriter: transaction markers in the logs of this node, and in `__consumer_offsets` for committed offsets.

* A partition of a deleted or unknown topic gets UNKNOWN_TOPIC_OR_PARTITION.
* `__transaction_state` gets INVALID_TOPIC_EXCEPTION, because a broker could not load the partition again.
* A negative producer id or epoch gets INVALID_REQUEST.
* In `__consumer_offsets`, the group coordinator applies or drops the pending offsets.
* An older producer epoch gets INVALID_PRODUCER_EPOCH; an older coordinator epoch gets TRANSACTION_COORDINATOR_FENCED.

Source: Kafka's KafkaApis.handleWriteTxnMarkersRequest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.format.control_records import marker_key_value
from sediment.segment_io.format.layout import (
    NO_LEADER_EPOCH,
)
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.internal_topics.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError, error_code_of
from sediment.server.groups.group_coordinator import GroupCoordinator
from sediment.server.live.delayed_append import Codes, ReplicatingAppend, ReplicationWaits
from sediment.server.live.live_catalog import LiveCatalog
from sediment.server.topic_catalog import code_without_log


@dataclass(frozen=True, slots=True)
class Marker:
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    transaction_version: int
    is_commit: bool

    def batch(self, now_ms: int) -> bytes:
        record = NewRecord(now_ms, *marker_key_value(self.coordinator_epoch, is_commit=self.is_commit))
        head = BatchHead(
            leader_epoch=NO_LEADER_EPOCH,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            is_transactional=True,
            is_control=True,
        )
        return build_batch([record], head)


class MarkerWriter:
    """A writer of markers; `wall_ms` returns the time of day."""

    def __init__(
        self, catalog: LiveCatalog, groups: GroupCoordinator, waits: ReplicationWaits, wall_ms: Callable[[], int]
    ) -> None:
        self._catalog = catalog
        self._groups = groups
        self._waits = waits
        self._wall_ms = wall_ms

    def write(self, marker: Marker, partitions: Iterable[TopicPartition], then: Callable[[Codes], object]) -> None:
        batch = marker.batch(self._wall_ms())
        codes: dict[TopicPartition, ErrorCode] = {}
        appends = []
        for partition in partitions:
            try:
                appends.append(self._append(marker, batch, partition))
            except (SedimentError, OSError) as error:
                codes[partition] = error_code_of(error)
        self._waits.then(appends, lambda replicated: then({**codes, **replicated}))

    def _append(self, marker: Marker, batch: bytes, name: TopicPartition) -> ReplicatingAppend:
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        topic = self._catalog.topic(name.topic)
        partition = None if topic is None else topic.partitions.get(name.partition)
        if partition is None:
            raise ApiError(code_without_log(topic, name.partition))
        if name.topic == TRANSACTION_STATE:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)

        def append() -> ReplicatingAppend:
            info = partition.append_of_coordinator(batch, wait=False, transaction_version=marker.transaction_version)
            return ReplicatingAppend(partition, info.last_offset + 1)

        if name.topic != CONSUMER_OFFSETS:
            return append()
        return self._groups.end_transaction(
            name.partition, marker.producer_id, is_committed=marker.is_commit, append=append
        )
