"""Fetch: slices of logs within one limit of bytes, and waits at the log end.

A read-only log never grows.  So a fetch with data is answered immediately, regardless of its `min_bytes`.  A fetch
without data waits for `max_wait_ms`, but at most LONGEST_WAIT_MS, on the timer and without a thread.

Every fetch is a full fetch: the session id in the answer is 0, which makes clients send full fetches (KIP-227).

Source: Kafka's KafkaApis.handleFetchRequest and ReplicaManager.fetchMessages.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Any

from sediment.engine.live.log.fetched_data import Isolation
from sediment.segment_io.errors import OffsetOutOfRangeError, SedimentError
from sediment.segment_io.format.layout import NO_LEADER_EPOCH
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.delayed import Timer
from sediment.server.errors import error_code_of
from sediment.server.limited_log import LimitedLog
from sediment.server.read_only.catalog import Catalog, Topic
from sediment.server.read_only.frozen_log import FrozenLog
from sediment.server.requests import Handler, Request

FIRST_VERSION_WITH_TOPIC_IDS = 13
READ_COMMITTED = 1

LONGEST_WAIT_MS = 30_000
"""Longest wait at a log end, even if the client asks for more: the request holds memory, and no record will come."""

_NO_SESSION = 0
_FINAL_EPOCH = -1
_UNKNOWN_OFFSET = -1


def isolation_of(level: int) -> Isolation:
    """Return the isolation level for its number in requests."""
    return Isolation.TXN_COMMITTED if level == READ_COMMITTED else Isolation.HIGH_WATERMARK


def leader_epoch_error(requested: int, log: FrozenLog) -> ErrorCode:
    """Return the error for a client whose leader epoch differs from the log's; NONE if it states no epoch.

    Raises:
        StorageError, OpenFilesLimitError: the epoch cannot be read.
    """
    if requested == NO_LEADER_EPOCH:
        return ErrorCode.NONE
    known = log.leader_epoch
    if requested == known:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if requested < known else ErrorCode.UNKNOWN_LEADER_EPOCH


class FetchHandlers:
    """Handlers that read the logs in `catalog`; `fetch_max_bytes` limits one answer."""

    def __init__(self, catalog: Catalog, timer: Timer, *, fetch_max_bytes: int) -> None:
        self._catalog = catalog
        self._timer = timer
        self._fetch_max_bytes = fetch_max_bytes
        self._log = LimitedLog(logging.getLogger(__name__))

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """Return the handlers by API."""
        return {ApiKey.FETCH: self.fetch}

    def fetch(self, request: Request) -> Any:
        """Return the slices; None if the client has to wait for data."""
        message = request.message
        if message.session_id != _NO_SESSION and message.session_epoch != _FINAL_EPOCH:
            return m.FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        by_id = request.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
        isolation = isolation_of(message.isolation_level)
        bytes_left = max(min(message.max_bytes, self._fetch_max_bytes), 0)
        min_one = True
        has_answer = not message.topics
        topics = []
        for asked in message.topics:
            topic, unknown = self._topic(asked.topic, asked.topic_id, by_id)
            partitions = []
            for each in asked.partitions:
                log = None if topic is None else topic.partitions.get(each.partition)
                if log is None:
                    data = _failed(each.partition, unknown)
                else:
                    data = self._read(log, each, bytes_left, isolation, min_one)
                size_bytes = data.records.size_bytes if data.records else 0
                bytes_left = max(bytes_left - size_bytes, 0)
                min_one = min_one and not size_bytes
                has_answer = has_answer or size_bytes > 0 or data.error_code != ErrorCode.NONE
                partitions.append(data)
            topics.append(
                m.FetchResponse.FetchableTopicResponse(
                    topic=asked.topic, topic_id=asked.topic_id, partitions=partitions
                )
            )
        response = m.FetchResponse(responses=topics)
        if has_answer or message.max_wait_ms <= 0 or message.min_bytes <= 0:
            return response
        self._timer.after(min(message.max_wait_ms, LONGEST_WAIT_MS), lambda: request.respond(response))
        return None

    def _topic(self, name: str, topic_id: uuid.UUID, by_id: bool) -> tuple[Topic | None, ErrorCode]:
        """Return the topic, or None and the error for its partitions."""
        topic = self._catalog.topic_by_id(topic_id) if by_id else self._catalog.topic(name)
        if topic is None and by_id:
            return None, ErrorCode.UNKNOWN_TOPIC_ID
        return topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _read(self, log: FrozenLog, asked: Any, bytes_left: int, isolation: Isolation, min_one: bool) -> Any:
        try:
            code = leader_epoch_error(asked.current_leader_epoch, log)
            if code:
                return _failed(asked.partition, code)
            diverging = self._diverging_epoch(log, asked)
            if diverging is not None:
                return diverging
            max_bytes = max(min(asked.partition_max_bytes, bytes_left), 0)
            fetched = log.read(asked.fetch_offset, max_bytes, isolation=isolation, min_one=min_one)
        except OffsetOutOfRangeError:
            return _failed(asked.partition, ErrorCode.OFFSET_OUT_OF_RANGE)
        except (SedimentError, OSError) as error:
            self._log.warning(str(error))
            return _failed(asked.partition, error_code_of(error))
        aborted = None
        if fetched.aborted is not None:
            aborted = [
                m.FetchResponse.AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
                for entry in fetched.aborted
            ]
        return m.FetchResponse.PartitionData(
            partition_index=asked.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=aborted,
            records=fetched.records or b"",
        )

    @staticmethod
    def _diverging_epoch(log: FrozenLog, asked: Any) -> Any | None:
        """Return the answer to a client whose log diverges from this one; None if it does not diverge.

        Source: KIP-595; Kafka's Partition.readRecords.
        """
        if asked.last_fetched_epoch == NO_LEADER_EPOCH:
            return None
        epoch, end_offset = log.end_offset_for_epoch(asked.last_fetched_epoch)
        if end_offset == _UNKNOWN_OFFSET:
            return _failed(asked.partition, ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch >= asked.last_fetched_epoch and end_offset >= asked.fetch_offset:
            return None
        return m.FetchResponse.PartitionData(
            partition_index=asked.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            diverging_epoch=m.FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset),
            records=b"",
        )


def _failed(number: int, code: ErrorCode) -> Any:
    return m.FetchResponse.PartitionData(
        partition_index=number, error_code=code, high_watermark=_UNKNOWN_OFFSET, records=b""
    )
