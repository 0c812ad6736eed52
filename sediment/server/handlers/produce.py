"""Produce: append batches to partitions that this node leads, and wait until the batches are replicated.

* With acks 0, no response follows; after an error, the connection is closed.
* With acks -1, the response follows when the high watermark is above the appended records, or after the request's
  timeout.

Versions below 3 are not offered, because their batches have magic 0 or 1. A broker advertises these versions only for
librdkafka.

Before the first batch of a transaction is appended to a partition, the coordinator checks that the partition was added
to the transaction. In version 12 and later, the coordinator adds the partition itself.

A handler appends a large batch, and all partitions after it, on a thread for long work.

Source: Kafka's KafkaApis.handleProduceRequest, ReplicaManager.appendRecords, DelayedProduce and
ProduceRequest.validateRecords.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from sediment.engine.live.log.append_analysis import MAX_RECORD_ERRORS
from sediment.engine.live.log.partition_log import AppendInfo
from sediment.engine.live.log.producer_appends import VerificationGuard
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import InvalidRecordError, LongWorkError, RecordValidationError, SedimentError
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BASE_SEQUENCE,
    BATCH_HEADER_BYTES,
    BATCH_LENGTH,
    CODEC_MASK,
    CODEC_ZSTD,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_V2,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL_BIT,
)
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.delayed import DelayedOperations
from sediment.server.errors import append_error_code_of, error_code_of
from sediment.server.handlers.repeated_produce import RepeatedProduce
from sediment.server.limited_log import LimitedLog
from sediment.server.live.live_catalog import LiveCatalog, LiveTopic
from sediment.server.live.partition import Partition
from sediment.server.requests import Handler, Request
from sediment.server.topic_catalog import code_without_log
from sediment.server.transactions.transaction_coordinator import TransactionCoordinator
from sediment.server.transactions.transitions import ProducerOf

FIRST_VERSION_WITH_TOPIC_IDS = 13
FIRST_VERSION_WITH_ZSTD = 7
FIRST_VERSION_WITH_RECORD_ERRORS = 8
FIRST_VERSION_THAT_ADDS_PARTITIONS = 12
FIRST_VERSION_WITH_ABORTABLE = 11
NO_ACKS, LEADER_ACKS, ALL_ACKS = 0, 1, -1

_ADMIN_CLIENT = "__admin_client"  # Kafka's AdminUtils.ADMIN_CLIENT_ID
_REFUSALS = {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "a transactional batch needs the id of its transactions",
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: "Transactional records contained more than one producer ID",
}
_UNVERIFIED = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
_NOT_RETRIED = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.KAFKA_STORAGE_ERROR})


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An append that is replicated when the high watermark is at or above `required_offset`."""

    partition: Partition
    required_offset: int
    answer: Any


class _Verification(NamedTuple):
    """The coordinator's decision on an append: an error code, or NONE with the log's guard if the append needs one."""

    code: ErrorCode
    guard: VerificationGuard | None = None


_NOTHING_TO_VERIFY = _Verification(ErrorCode.NONE)


@dataclass(slots=True)
class _Appends:
    version: int
    client_id: str | None
    acks: int
    verifications: Mapping[TopicPartition, _Verification] | ErrorCode
    answers: list[Any] = field(default_factory=list)
    waiting: list[_Waiting] = field(default_factory=list)
    record_errors_left: int = MAX_RECORD_ERRORS
    """How many bad records the response may still name, so that a request of many bad batches gets a short response."""


class _DelayedProduce:
    """A produce request that waits until its appends are replicated (Kafka's DelayedProduce)."""

    def __init__(self, request: Request, response: Any, waiting: Sequence[_Waiting]) -> None:
        self._request = request
        self._response = response
        self._waiting: dict[TopicPartition, list[_Waiting]] = {}
        for each in waiting:
            self._waiting.setdefault(each.partition.topic_partition, []).append(each)

    @property
    def keys(self) -> Collection[TopicPartition]:
        return self._waiting.keys()

    def try_complete(self, changed: Collection[Any] | None) -> bool:
        for name in tuple(self._waiting) if changed is None else changed:
            appends = self._waiting.get(name, ())
            if not appends:
                continue
            partition, failure = appends[-1].partition, appends[-1].partition.failure
            if failure is not None:
                for each in appends:
                    _fail(each.answer, error_code_of(failure), failure.what)
            elif partition.high_watermark < max(each.required_offset for each in appends):
                continue
            del self._waiting[name]
        if self._waiting:
            return False
        self._request.respond(self._response)
        return True

    def expire(self) -> None:
        # An append that is not replicated yet gets an error, although its records remain in the log.
        for appends in self._waiting.values():
            for each in appends:
                if each.partition.high_watermark < each.required_offset:
                    _fail(
                        each.answer, ErrorCode.REQUEST_TIMED_OUT, "the records were appended, but are not durable yet"
                    )
        self._request.respond(self._response)


class ProduceHandlers:
    """The caller must call `delayed.check` with a log's TopicPartition after each rise of the log's high watermark."""

    def __init__(self, catalog: LiveCatalog, delayed: DelayedOperations, transactions: TransactionCoordinator) -> None:
        self._catalog = catalog
        self._delayed = delayed
        self._transactions = transactions
        self._log = LimitedLog(logging.getLogger(__name__))

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.PRODUCE: self.produce}

    def produce(self, request: Request) -> Any:
        message, version = request.message, request.api_version
        producers = {
            _producer_of(each.records)
            for topic in message.topic_data
            for each in topic.partition_data
            if _is_transactional(each.records)
        }
        if not producers:
            return self._append_all(request, message, {})
        if not message.transactional_id:
            return self._append_all(request, message, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if len(producers) > 1:
            return self._append_all(request, message, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        (producer,) = producers
        verified = self._start_verifications(message, version, producer)
        if not verified:
            return self._append_all(request, message, {})

        def append(codes: Mapping[TopicPartition, ErrorCode]) -> None:
            try:
                verifications = {
                    name: verification._replace(code=_verified_code(codes.get(name, verification.code), version))
                    for name, verification in verified.items()
                }
                response = self._append_all(request, message, verifications)
                if response is not None:
                    request.respond(response)
            except Exception as error:
                request.fail(error)

        names = frozenset(name for name, verification in verified.items() if verification.code is ErrorCode.NONE)
        if names:
            adds = version >= FIRST_VERSION_THAT_ADDS_PARTITIONS
            self._transactions.verify_or_add(message.transactional_id, producer, names, append, adds=adds)
        else:
            append({})
        return None

    def _start_verifications(
        self, message: Any, version: int, producer: ProducerOf
    ) -> dict[TopicPartition, _Verification]:
        # A log keeps its guard until the append, so a guard is created only for the producer of the transactional id.
        # The load of the coordinator may end at any time.  So first check whether it has ended, and only then look up
        # the id.  Otherwise, a batch without a guard could be allowed.
        refusal = self._transactions.error_of(message.transactional_id)
        known = self._transactions.find(message.transactional_id)
        is_known = known is not None and known.has_producer(producer.producer_id)
        verifications = {}
        for asked in message.topic_data:
            found, _ = self._topic(asked, version)
            for each in asked.partition_data:
                partition = None if found is None else found.partitions.get(each.index)
                if partition is None or found is None or found.is_internal or not _is_transactional(each.records):
                    continue
                topic_partition = partition.topic_partition
                if refusal is not ErrorCode.NONE or not is_known:
                    verifications[topic_partition] = _Verification(refusal)
                    continue
                try:
                    guard = partition.start_verification(
                        producer.producer_id,
                        _int_at(each.records, BASE_SEQUENCE, 4),
                        producer.epoch,
                        supports_epoch_bump=version >= FIRST_VERSION_THAT_ADDS_PARTITIONS,
                    )
                except SedimentError as error:
                    verifications[topic_partition] = _Verification(append_error_code_of(error))
                else:
                    if guard is not None:
                        verifications[topic_partition] = _Verification(ErrorCode.NONE, guard)
        return verifications

    def _append_all(
        self, request: Request, message: Any, verifications: Mapping[TopicPartition, _Verification] | ErrorCode
    ) -> Any:
        appends = _Appends(request.api_version, request.client_id, message.acks, verifications)
        try:
            self._append_rest(appends, message, only_quick=True)
        except LongWorkError:
            request.respond_later(partial(self._append_long, request, message, appends))
            return None
        return self._answer(request, message, appends)

    def _append_rest(self, appends: _Appends, message: Any, *, only_quick: bool) -> None:
        answers = appends.answers
        number = 0
        for asked in message.topic_data:
            for each in asked.partition_data:
                if number == len(answers):
                    answers.append(self._append(asked, each, appends, only_quick=only_quick))
                number += 1

    def _append_long(self, request: Request, message: Any, appends: _Appends) -> Any:
        self._append_rest(appends, message, only_quick=False)
        return self._answer(request, message, appends, is_long=True)

    def _answer(self, request: Request, message: Any, appends: _Appends, *, is_long: bool = False) -> Any:
        answers = iter(appends.answers)
        topics = [
            m.ProduceResponse.TopicProduceResponse(
                name=asked.name,
                topic_id=asked.topic_id,
                partition_responses=list(islice(answers, len(asked.partition_data))),
            )
            for asked in message.topic_data
        ]
        response, waiting = m.ProduceResponse(responses=topics), appends.waiting
        if message.acks == NO_ACKS:
            _check_all_appended(topics)
            request.respond(None)
            return None
        if not is_long:
            self._keep(request, message, response, waiting)
        if message.acks == LEADER_ACKS or not waiting:
            return response
        request.begin_wait()
        operation = _DelayedProduce(request, response, waiting)
        self._delayed.watch(operation, operation.keys, message.timeout_ms)
        return None

    def _keep(self, request: Request, message: Any, response: Any, waiting: Sequence[_Waiting]) -> None:
        topics = message.topic_data
        if len(waiting) != 1 or len(topics) != 1 or len(topics[0].partition_data) != 1 or message.transactional_id:
            return
        partition = waiting[0].partition
        if message.acks == LEADER_ACKS or partition.replicates_at_once:
            append = partial(_append_again, partition, request.api_version)
            kept = RepeatedProduce.following(request, response, append, partition.append_run)
            if kept is not None:
                request.connection.repeated = kept

    def _append(self, topic: Any, asked: Any, appends: _Appends, *, only_quick: bool) -> Any:
        version, verifications = appends.version, appends.verifications
        answer = m.ProduceResponse.PartitionProduceResponse(index=asked.index, base_offset=-1)
        if isinstance(verifications, ErrorCode):
            return _fail(answer, verifications, _REFUSALS[verifications])
        if appends.acks not in (NO_ACKS, LEADER_ACKS, ALL_ACKS):
            return _fail(answer, ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {appends.acks}, not 0, 1 or -1")
        found, unknown = self._topic(topic, version)
        partition = None if found is None else found.partitions.get(asked.index)
        if found is None:
            return _fail(answer, unknown, None)
        if partition is None:
            return _fail(answer, code_without_log(found, asked.index), None)
        if found.is_internal and appends.client_id != _ADMIN_CLIENT:
            return _fail(answer, ErrorCode.INVALID_TOPIC_EXCEPTION, f"clients may not write to {found.name}")
        refused = _refusal_of(asked.records, version)
        if refused is not None:
            return _fail(answer, *refused)
        verification = verifications.get(partition.topic_partition, _NOTHING_TO_VERIFY)
        if verification.code is not ErrorCode.NONE:
            return _fail(answer, *_unverified(verification.code, version))
        try:
            info = partition.append(asked.records, verification.guard, only_quick=only_quick)
        except LongWorkError:
            raise
        except SedimentError as error:
            return self._refused(answer, partition.topic_partition, error, appends)
        answer.base_offset = info.first_offset
        answer.log_append_time_ms = info.log_append_time_ms
        answer.log_start_offset = info.log_start_offset
        appends.waiting.append(_Waiting(partition, info.last_offset + 1, answer))
        return answer

    def _topic(self, asked: Any, version: int) -> tuple[LiveTopic | None, ErrorCode]:
        if version < FIRST_VERSION_WITH_TOPIC_IDS:
            return self._catalog.topic(asked.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return self._catalog.topic_by_id(asked.topic_id), ErrorCode.UNKNOWN_TOPIC_ID

    def _refused(self, answer: Any, partition: TopicPartition, error: SedimentError, appends: _Appends) -> Any:
        code = append_error_code_of(error)
        if code in _NOT_RETRIED:
            self._log.warning(f"an append to {partition} failed: {error}")
        if isinstance(error, RecordValidationError) and appends.version >= FIRST_VERSION_WITH_RECORD_ERRORS:
            named = error.record_errors[: appends.record_errors_left]
            appends.record_errors_left -= len(named)
            item = m.ProduceResponse.BatchIndexAndErrorMessage
            answer.record_errors = [
                item(batch_index=index, batch_index_error_message=reason) for index, reason in named
            ]
        return _fail(answer, code, error.what)


def _append_again(partition: Partition, version: int, records: Buffer) -> AppendInfo | None:
    if _refusal_of(records, version) is not None or records[ATTRIBUTES + 1] & TRANSACTIONAL_BIT:
        return None
    try:
        return partition.append(records, only_quick=True)
    except SedimentError:
        return None


def _fail(answer: Any, code: ErrorCode, text: str | None) -> Any:
    answer.error_code, answer.base_offset, answer.error_message = code, -1, text
    answer.log_append_time_ms = answer.log_start_offset = -1
    return answer


def _check_all_appended(topics: Sequence[Any]) -> None:
    for topic in topics:
        for each in topic.partition_responses:
            if each.error_code != ErrorCode.NONE:
                raise InvalidRecordError(
                    f"a batch for partition {each.index} of topic {topic.name or topic.topic_id} was refused with "
                    f"{ErrorCode(each.error_code).name}, and its producer expects no response"
                )


def _refusal_of(records: Buffer | None, version: int) -> tuple[ErrorCode, str] | None:
    """Source: Kafka's ProduceRequest.validateRecords."""
    data = memoryview(records or b"")
    size_bytes = _batch_bytes(data)
    if size_bytes is None:
        return ErrorCode.INVALID_RECORD, "a partition needs one complete batch"
    if data[MAGIC] != MAGIC_V2:
        return ErrorCode.INVALID_RECORD, f"a batch has magic {data[MAGIC]}, not {MAGIC_V2}"
    if size_bytes < BATCH_HEADER_BYTES:
        return ErrorCode.CORRUPT_MESSAGE, "a batch is shorter than its header"
    attributes = int.from_bytes(data[ATTRIBUTES : ATTRIBUTES + 2], "big")
    if version < FIRST_VERSION_WITH_ZSTD and attributes & CODEC_MASK == CODEC_ZSTD:
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs version {FIRST_VERSION_WITH_ZSTD} of Produce"
    if _batch_bytes(data[size_bytes:]) is not None:
        return ErrorCode.INVALID_RECORD, "a partition may have one batch only"
    return None


# --------------------------------------------------------------------------------------------------------- transactions
def _is_transactional(records: Buffer | None) -> bool:
    data = memoryview(records or b"")
    return (
        len(data) >= BATCH_HEADER_BYTES
        and data[MAGIC] == MAGIC_V2
        and bool(_int_at(data, ATTRIBUTES, 2) & TRANSACTIONAL_BIT)
    )


def _producer_of(records: Buffer) -> ProducerOf:
    return ProducerOf(_int_at(records, PRODUCER_ID, 8), _int_at(records, PRODUCER_EPOCH, 2))


def _int_at(records: Buffer, offset: int, size_bytes: int) -> int:
    return int.from_bytes(memoryview(records)[offset : offset + size_bytes], "big", signed=True)


def _verified_code(code: ErrorCode, version: int) -> ErrorCode:
    """Source: Kafka's AddPartitionsToTxnManager."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return code


def _unverified(code: ErrorCode, version: int) -> tuple[ErrorCode, str | None]:
    """If a client's Produce version adds partitions, the client also supports CONCURRENT_TRANSACTIONS.

    Source: Kafka's ReplicaManager.handleProduceAppend.
    """
    is_busy = code is ErrorCode.CONCURRENT_TRANSACTIONS and version < FIRST_VERSION_THAT_ADDS_PARTITIONS
    if code in _UNVERIFIED or is_busy:
        return (
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name}",
        )
    if code is ErrorCode.INVALID_TXN_STATE:
        return code, "Partition was not added to the transaction"
    return code, None


def _batch_bytes(data: memoryview) -> int | None:
    if len(data) <= MAGIC:
        return None
    size_bytes = LOG_OVERHEAD_BYTES + int.from_bytes(data[BATCH_LENGTH : BATCH_LENGTH + 4], "big", signed=True)
    return size_bytes if MAGIC < size_bytes <= len(data) else None
