"""A transactional producer, request by request, over one connection to a live server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from tests.engine.live_logs import batch
from tests.server.live.nodes import produce_request
from tests.server.network.listeners import Client

BUSY = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
OLD_PRODUCE, NEW_PRODUCE = 11, 13
OLD_END, NEW_END = 4, 5


def find_coordinator(client: Client) -> None:
    """Look for the coordinator of transactions, which creates `__transaction_state`."""
    found = client.ask(m.FindCoordinatorRequest(key_type=1, coordinator_keys=["x"]), 4)
    assert found.coordinators[0].error_code == 0, found


@dataclass
class Producer:
    """A producer of the transactional id `name`."""

    client: Client
    name: str = "x"
    producer_id: int = -1
    epoch: int = -1
    sequences: Counter[int] = field(default_factory=Counter)
    """The next sequence by partition."""

    def init(self, *, timeout_ms: int = 60_000, wait: bool = True, **fields: Any) -> ErrorCode:
        """Get an id and an epoch; with `wait`, ask again while the transaction before it is being ended."""
        request = m.InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=timeout_ms, **fields)
        while True:
            answer = self.client.ask(request, 5)
            code = ErrorCode(answer.error_code)
            if not wait or code not in BUSY:
                break
        if code is ErrorCode.NONE:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return code

    def add(self, *numbers: int, topic: str = "t", version: int = 3) -> dict[tuple[str, int], ErrorCode]:
        return self.add_topics({topic: numbers}, version=version)

    def add_topics(
        self, topics: Mapping[str, Iterable[int]], *, version: int = 3, verify_only: bool = False
    ) -> dict[tuple[str, int], ErrorCode]:
        request = m.AddPartitionsToTxnRequest
        named = [request.AddPartitionsToTxnTopic(name=name, partitions=list(each)) for name, each in topics.items()]
        if version < 4:
            message = request(
                v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=named,
            )
            results = self.client.ask(message, version).results_by_topic_v3_and_below
        else:
            transaction = request.AddPartitionsToTxnTransaction(
                transactional_id=self.name,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                verify_only=verify_only,
                topics=named,
            )
            (answer,) = self.client.ask(request(transactions=[transaction]), version).results_by_transaction
            results = answer.topic_results
        return {
            (topic.name, each.partition_index): ErrorCode(each.partition_error_code)
            for topic in results
            for each in topic.results_by_partition
        }

    def begin(self, *numbers: int) -> None:
        """Add partitions as soon as the transaction before it has ended."""
        while BUSY & set((codes := self.add(*numbers)).values()):
            pass
        assert set(codes.values()) == {ErrorCode.NONE}

    def send(self, number: int = 0, value: str = "v", *, version: int = OLD_PRODUCE, **fields: Any) -> ErrorCode:
        """Send a record in the transaction."""
        records = batch(
            (None, value),
            pid=self.producer_id,
            producer_epoch=self.epoch,
            seq=self.sequences[number],
            tx=True,
        )
        message = produce_request(records, number=number, version=version, **fields)
        message.transactional_id = self.name
        ((answer,),) = (topic.partition_responses for topic in self.client.ask(message, version).responses)
        if answer.error_code == 0:
            self.sequences[number] += 1
        return ErrorCode(answer.error_code)

    def end(self, *, commit: bool = True, version: int = OLD_END) -> ErrorCode:
        request = m.EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, committed=commit
        )
        answer = self.client.ask(request, version)
        if answer.error_code == 0 and version >= NEW_END:
            if (answer.producer_id, answer.producer_epoch) != (self.producer_id, self.epoch):
                self.sequences.clear()
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return ErrorCode(answer.error_code)

    def add_offsets(self, group: str = "g") -> ErrorCode:
        request = m.AddOffsetsToTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, group_id=group
        )
        while (code := ErrorCode(self.client.ask(request, 3).error_code)) in BUSY:
            pass
        return code

    def commit_offset(self, offset: int, *, group: str = "g", version: int = 4, **fields: Any) -> ErrorCode:
        """Commit an offset of t-0 in the transaction."""
        request = m.TxnOffsetCommitRequest
        partition = request.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=fields.pop("metadata", None)
        )
        message = request(
            transactional_id=self.name,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[request.TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
            **fields,
        )
        answer = self.client.ask(message, version)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def state(self) -> Any:
        (found,) = self.client.ask(m.DescribeTransactionsRequest(transactional_ids=[self.name]), 0).transaction_states
        return found

    def has_ended(self) -> bool:
        return self.state().transaction_state.startswith("Complete")


def committed_offset(client: Client, group: str = "g", *, stable: bool = False) -> tuple[int, ErrorCode]:
    """Return the committed offset of t-0."""
    request = m.OffsetFetchRequest
    topic = request.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    asked = request(groups=[request.OffsetFetchRequestGroup(group_id=group, topics=[topic])], require_stable=stable)
    (answer,) = client.ask(asked, 8).groups
    (found,) = answer.topics[0].partitions
    return found.committed_offset, ErrorCode(found.error_code)


def write_markers(
    client: Client,
    topics: Mapping[str, Iterable[int]],
    *,
    producer_id: int,
    epoch: int,
    coordinator_epoch: int = 0,
    commit: bool = False,
    transaction_version: int = 0,
) -> dict[tuple[str, int], ErrorCode]:
    request = m.WriteTxnMarkersRequest
    marker = request.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=[
            request.WritableTxnMarkerTopic(name=name, partition_indexes=list(each)) for name, each in topics.items()
        ],
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )
    (answer,) = client.ask(request(markers=[marker]), 2).markers
    assert answer.producer_id == producer_id
    return {
        (topic.name, each.partition_index): ErrorCode(each.error_code)
        for topic in answer.topics
        for each in topic.partitions
    }
