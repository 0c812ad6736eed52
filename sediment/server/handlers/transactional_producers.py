"""Handlers of transactional producers (ids, partitions, offsets, the end of transactions) and of WriteTxnMarkers.

* AddPartitionsToTxn: clients use versions 0 to 3.  Brokers use version 4 and later, which contains several transactions
  and has a mode that only verifies.
* InitProducerId is offered without two-phase commit, which a broker does not offer either.
* EndTxn: clients of transaction versions 0 and 1 use versions 0 to 4; clients of version 2 use version 5 and later.
* TxnOffsetCommit: versions 0 to 4 need an earlier AddOffsetsToTxn; version 5 and later add the group's partition.

Every version of AddPartitionsToTxn refuses to add internal topics. `__transaction_state` is never part of a
transaction.

Source: Kafka's KafkaApis.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from sediment.segment_io.format.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from sediment.segment_io.format.names import INTERNAL_TOPICS, TopicPartition
from sediment.segment_io.internal_topics.coordinator_records import CONSUMER_OFFSETS
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.coordinator_log import coordinator_partition
from sediment.server.errors import ApiError
from sediment.server.groups.group_coordinator import Commit
from sediment.server.groups.group_offsets import CommittedOffset
from sediment.server.groups.group_requests import MemberIdentity
from sediment.server.handlers.producer_ids import ProducerIdHandlers
from sediment.server.live.live_catalog import LiveCatalog
from sediment.server.requests import Handler, Request
from sediment.server.topic_catalog import has_partition
from sediment.server.transactions.marker_writer import Marker, MarkerWriter
from sediment.server.transactions.stored_transactions import by_topic
from sediment.server.transactions.transaction import EPOCH_BUMPING_VERSION
from sediment.server.transactions.transaction_coordinator import TransactionCoordinator
from sediment.server.transactions.transactional_offsets import TransactionalCommit, TransactionalOffsets
from sediment.server.transactions.transitions import ProducerOf

_LOGGER = logging.getLogger(__name__)

# The versions in which an API first differs from its earlier versions.
_INIT_KNOWS_FENCED = 4
_KNOWS_FENCED = 2
_BATCHED_ADD_PARTITIONS = 4
_BUMPING_END_TXN = 5
_ADDING_OFFSET_COMMIT = 5
_COMMIT_KNOWS_LOADING = 2
_COMMIT_KNOWS_ABORTABLE = 4

_NO_TOPIC_ID = UUID(int=0)


class TransactionalProducerHandlers:
    def __init__(
        self,
        transactions: TransactionCoordinator,
        offsets: TransactionalOffsets,
        markers: MarkerWriter,
        producer_ids: ProducerIdHandlers,
        catalog: LiveCatalog,
        make_coordinator_topic: Callable[[str], None],
        wall_ms: Callable[[], int],
    ) -> None:
        self._transactions = transactions
        self._offsets = offsets
        self._markers = markers
        self._producer_ids = producer_ids
        self._catalog = catalog
        self._make_coordinator_topic = make_coordinator_topic
        self._wall_ms = wall_ms

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
            ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions_to_txn,
            ApiKey.ADD_OFFSETS_TO_TXN: self._add_offsets_to_txn,
            ApiKey.END_TXN: self._end_txn,
            ApiKey.TXN_OFFSET_COMMIT: self._txn_offset_commit,
            ApiKey.WRITE_TXN_MARKERS: self._write_txn_markers,
        }

    # -------------------------------------------------------------------------------------------------------- producers
    def _init_producer_id(self, request: Request) -> Any:
        message = request.message
        if message.transactional_id is None:
            return self._producer_ids.init_producer_id(request)
        version = request.api_version

        def answer(code: ErrorCode, producer: ProducerOf) -> None:
            request.respond(
                m.InitProducerIdResponse(
                    error_code=_known(code, version, _INIT_KNOWS_FENCED),
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                )
            )

        no_producer = ProducerOf(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        given = ProducerOf(message.producer_id, message.producer_epoch)
        has_half = (given.producer_id == NO_PRODUCER_ID) != (given.epoch == NO_PRODUCER_EPOCH)
        if has_half or not message.transactional_id:
            answer(ErrorCode.INVALID_REQUEST, no_producer)
        else:
            expected = None if given == no_producer else given
            self._transactions.initialize(message.transactional_id, message.transaction_timeout_ms, expected, answer)
        return None

    def _end_txn(self, request: Request) -> Any:
        message, version = request.message, request.api_version

        def answer(code: ErrorCode, producer: ProducerOf) -> None:
            request.respond(
                m.EndTxnResponse(
                    error_code=_known(code, version, _KNOWS_FENCED),
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                )
            )

        self._transactions.end(
            message.transactional_id,
            ProducerOf(message.producer_id, message.producer_epoch),
            EPOCH_BUMPING_VERSION if version >= _BUMPING_END_TXN else 0,
            answer,
            is_commit=message.committed,
        )
        return None

    # ------------------------------------------------------------------------------------------------------- partitions
    def _add_partitions_to_txn(self, request: Request) -> Any:
        message, version = request.message, request.api_version
        response = m.AddPartitionsToTxnResponse
        if version < _BATCHED_ADD_PARTITIONS:
            self._add(
                message.v3_and_below_transactional_id,
                ProducerOf(message.v3_and_below_producer_id, message.v3_and_below_producer_epoch),
                _named(message.v3_and_below_topics),
                version,
                lambda codes: request.respond(response(results_by_topic_v3_and_below=_added(codes))),
            )
            return None
        answers = _Gathered(
            len(message.transactions),
            lambda found: request.respond(
                response(
                    results_by_transaction=[
                        response.AddPartitionsToTxnResult(transactional_id=key, topic_results=_added(codes))
                        for key, codes in found
                    ]
                )
            ),
        )
        for index, each in enumerate(message.transactions):
            producer, partitions = ProducerOf(each.producer_id, each.producer_epoch), _named(each.topics)
            add = answers.adder(index, each.transactional_id)
            if not each.verify_only:
                self._add(each.transactional_id, producer, partitions, version, add)
            else:
                unknown = self._unknown(partitions)
                add(unknown or self._transactions.verify(each.transactional_id, producer, partitions))
        return None

    def _unknown(
        self, partitions: frozenset[TopicPartition], *, refuses_internal: bool = False
    ) -> dict[TopicPartition, ErrorCode]:
        codes = {}
        for each in partitions:
            if refuses_internal and each.topic in INTERNAL_TOPICS:
                codes[each] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif not has_partition(self._catalog.topic(each.topic), each.partition):
                codes[each] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if codes:
            codes = {each: codes.get(each, ErrorCode.OPERATION_NOT_ATTEMPTED) for each in partitions}
        return codes

    def _add(
        self,
        transactional_id: str,
        producer: ProducerOf,
        partitions: frozenset[TopicPartition],
        version: int,
        then: Callable[[Mapping[TopicPartition, ErrorCode]], object],
    ) -> None:
        unknown = self._unknown(partitions, refuses_internal=True)
        if unknown:
            then(unknown)
            return
        client_version = EPOCH_BUMPING_VERSION if version >= _BATCHED_ADD_PARTITIONS else 0
        self._transactions.add_partitions(
            transactional_id,
            producer,
            partitions,
            client_version,
            lambda code: then(dict.fromkeys(partitions, _known(code, version, _KNOWS_FENCED))),
        )

    def _add_offsets_to_txn(self, request: Request) -> Any:
        message, version = request.message, request.api_version
        try:
            self._make_coordinator_topic(CONSUMER_OFFSETS)
        except ApiError as error:
            _LOGGER.warning("%s is not available: %s", CONSUMER_OFFSETS, error.what)
        topic = self._catalog.topic(CONSUMER_OFFSETS)
        if topic is None:
            return m.AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        number = coordinator_partition(message.group_id, len(topic.partitions) + len(topic.missing))
        self._transactions.add_partitions(
            message.transactional_id,
            ProducerOf(message.producer_id, message.producer_epoch),
            frozenset({TopicPartition(CONSUMER_OFFSETS, number)}),
            0,
            lambda code: request.respond(m.AddOffsetsToTxnResponse(error_code=_known(code, version, _KNOWS_FENCED))),
        )
        return None

    # ---------------------------------------------------------------------------------------------------------- offsets
    def _txn_offset_commit(self, request: Request) -> Any:
        message, version = request.message, request.api_version
        response = m.TxnOffsetCommitResponse
        now_ms = self._wall_ms()
        topics, waiting = [], []
        commits: list[Commit] = []
        for asked in message.topics:
            topic = self._catalog.topic(asked.name)
            partitions = []
            for each in asked.partitions:
                partition = response.TxnOffsetCommitResponsePartition(partition_index=each.partition_index)
                partitions.append(partition)
                if topic is None or not has_partition(topic, each.partition_index):
                    partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                waiting.append(partition)
                value = CommittedOffset(
                    offset=each.committed_offset,
                    leader_epoch=each.committed_leader_epoch,
                    metadata=each.committed_metadata or "",
                    commit_timestamp_ms=now_ms,
                    topic_id=_NO_TOPIC_ID,
                )
                commits.append((topic.name, each.partition_index, value))
            topics.append(response.TxnOffsetCommitResponseTopic(name=asked.name, partitions=partitions))
        if not commits:
            return response(topics=topics)

        def answer(codes: Sequence[ErrorCode]) -> None:
            for partition, code in zip(waiting, codes, strict=True):
                partition.error_code = _commit_code(code, version)
            request.respond(response(topics=topics))

        asked_commit = TransactionalCommit(
            message.transactional_id,
            ProducerOf(message.producer_id, message.producer_epoch),
            message.group_id,
            MemberIdentity(message.member_id, message.group_instance_id),
            message.generation_id,
            commits,
        )
        self._offsets.commit(asked_commit, answer, adds=version >= _ADDING_OFFSET_COMMIT)
        return None

    # ---------------------------------------------------------------------------------------------------------- markers
    def _write_txn_markers(self, request: Request) -> Any:
        response = m.WriteTxnMarkersResponse
        markers = request.message.markers
        answers = _Gathered(
            len(markers),
            lambda found: request.respond(
                response(
                    markers=[
                        response.WritableTxnMarkerResult(producer_id=producer_id, topics=_written(codes))
                        for producer_id, codes in found
                    ]
                )
            ),
        )
        for index, each in enumerate(markers):
            marker = Marker(
                each.producer_id,
                each.producer_epoch,
                each.coordinator_epoch,
                each.transaction_version,
                each.transaction_result,
            )
            partitions = [
                TopicPartition(topic.name, number) for topic in each.topics for number in topic.partition_indexes
            ]
            self._markers.write(marker, dict.fromkeys(partitions), answers.adder(index, each.producer_id))
        return None


class _Gathered:
    """The results of the parts of a request, which several threads add; `done` gets all results in request order."""

    def __init__(
        self, count: int, done: Callable[[list[tuple[Any, Mapping[TopicPartition, ErrorCode]]]], object]
    ) -> None:
        self._found: list[tuple[Any, Mapping[TopicPartition, ErrorCode]] | None] = [None] * count
        self._left = iter(range(count - 1, -1, -1))
        self._done = done
        if not count:
            done([])

    def adder(self, index: int, key: Any) -> Callable[[Mapping[TopicPartition, ErrorCode]], None]:
        """Return a function that must be called with the result of one part."""

        def add(codes: Mapping[TopicPartition, ErrorCode]) -> None:
            self._found[index] = (key, codes)
            if next(self._left) == 0:  # atomic, so exactly one thread gets the 0
                self._done([each for each in self._found if each is not None])

        return add


def _named(topics: Any) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.name, number) for topic in topics for number in topic.partitions)


def _added(codes: Mapping[TopicPartition, ErrorCode]) -> list[Any]:
    response = m.AddPartitionsToTxnResponse
    return [
        response.AddPartitionsToTxnTopicResult(
            name=topic,
            results_by_partition=[
                response.AddPartitionsToTxnPartitionResult(
                    partition_index=number, partition_error_code=codes[TopicPartition(topic, number)]
                )
                for number in numbers
            ],
        )
        for topic, numbers in by_topic(codes)
    ]


def _written(codes: Mapping[TopicPartition, ErrorCode]) -> list[Any]:
    response = m.WriteTxnMarkersResponse
    return [
        response.WritableTxnMarkerTopicResult(
            name=topic,
            partitions=[
                response.WritableTxnMarkerPartitionResult(
                    partition_index=number, error_code=codes[TopicPartition(topic, number)]
                )
                for number in numbers
            ],
        )
        for topic, numbers in by_topic(codes)
    ]


def _known(code: ErrorCode, version: int, first_version: int) -> ErrorCode:
    """Return the code; if the client does not know PRODUCER_FENCED, return INVALID_PRODUCER_EPOCH in its place."""
    is_unknown = code is ErrorCode.PRODUCER_FENCED and version < first_version
    return ErrorCode.INVALID_PRODUCER_EPOCH if is_unknown else code


def _commit_code(code: ErrorCode, version: int) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _COMMIT_KNOWS_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and version < _ADDING_OFFSET_COMMIT:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < _COMMIT_KNOWS_LOADING:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code
