"""Fetch: slices of logs within one byte limit, and waits at the log end.

1. Read one slice for each partition, up to the byte limit.
2. Respond immediately if all slices together have `min_bytes`, or if a partition has an error.
3. Otherwise wait for `max_wait_ms`, but at most for LONGEST_WAIT_MS.  The timer ends the wait, so no thread waits.
   When the readable range of one of its partitions changes, the fetch measures this partition; it reads all partitions
   again if they may have enough bytes.

A read-only log never grows. So a fetch that finds any data in such a log does not wait for `min_bytes`.

Every response has session id 0, so clients send only full fetches (KIP-227).

Source: Kafka's KafkaApis.handleFetchRequest and ReplicaManager.fetchMessages.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sediment.engine.live.log.fetched_data import Isolation
from sediment.segment_io.errors import OffsetOutOfRangeError, SedimentError
from sediment.segment_io.format.layout import NO_LEADER_EPOCH
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.delayed import DelayedOperations
from sediment.server.errors import error_code_of
from sediment.server.handlers.repeated_fetch import RepeatedFetch
from sediment.server.limited_log import LimitedLog
from sediment.server.requests import Handler, Request
from sediment.server.topic_catalog import ServedLog, ServedTopic, TopicCatalog, code_without_log

FIRST_VERSION_WITH_TOPIC_IDS = 13
READ_COMMITTED = 1

LONGEST_WAIT_MS = 30_000
"""The longest wait at a log end, even if the client allows more, because a waiting request uses memory."""

_NO_SESSION = 0
_FINAL_EPOCH = -1
_UNKNOWN_OFFSET = -1


def isolation_of(level: int) -> Isolation:
    return Isolation.TXN_COMMITTED if level == READ_COMMITTED else Isolation.HIGH_WATERMARK


def leader_epoch_error(requested: int, log: ServedLog) -> ErrorCode:
    """Return the error for a client whose leader epoch differs from the log's; NONE if the request has no epoch."""
    if requested == NO_LEADER_EPOCH:
        return ErrorCode.NONE
    known = log.leader_epoch
    if requested == known:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if requested < known else ErrorCode.UNKNOWN_LEADER_EPOCH


@dataclass(slots=True)
class _Seen:
    log: ServedLog
    asked: Any
    readable: tuple[int, int]
    size_bytes: int = 0


@dataclass(slots=True)
class _Read:
    response: Any
    size_bytes: int = 0
    needs_answer: bool = False
    """True if a partition has an error or a diverging epoch."""

    seen: dict[TopicPartition, _Seen] = field(default_factory=dict)

    def is_enough(self, min_bytes: int) -> bool:
        return self.needs_answer or self.size_bytes >= min_bytes or not self.response.responses


class _DelayedFetch:
    """A fetch that waits for data (Kafka's DelayedFetch); `read_again` reads all partitions.

    An append must not pay for all partitions of all waiting fetches.  So only the changed partitions are measured, and
    all are read only if their slices may together have enough bytes.
    """

    def __init__(
        self,
        request: Request,
        first: _Read,
        isolation: Isolation,
        min_bytes: int,
        max_bytes: int,
        read_again: Callable[[], _Read],
    ) -> None:
        self._request = request
        self._isolation = isolation
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._read_again = read_again
        self._enough_bytes = min_bytes
        self._use(first)

    def _use(self, read: _Read) -> None:
        self._read = read
        self._measured_bytes = read.size_bytes
        self._has_changed = False

    def try_complete(self, changed: Collection[Any] | None) -> bool:
        needs_read = False
        for name in self._read.seen if changed is None else changed:
            seen = self._read.seen.get(name)
            if seen is None:
                continue
            readable = seen.log.readable_range(self._isolation)
            if readable != seen.readable:
                self._has_changed = True
                needs_read = not self._measure(seen, readable) or needs_read
        if not needs_read and (
            not self._has_changed or min(self._measured_bytes, self._max_bytes) < self._enough_bytes
        ):
            return False
        measured_bytes = self._measured_bytes
        self._use(self._read_again())
        if not self._read.is_enough(self._min_bytes):
            # The limits apply to all partitions together, so fewer bytes were read than were measured.
            self._enough_bytes = max(self._enough_bytes, 2 * measured_bytes)
            return False
        self._request.respond(self._read.response)
        return True

    def _measure(self, seen: _Seen, readable: tuple[int, int]) -> bool:
        seen.readable = readable
        max_bytes = max(min(seen.asked.partition_max_bytes, self._max_bytes), 0)
        try:
            found = seen.log.read(seen.asked.fetch_offset, max_bytes, isolation=self._isolation, min_one=True)
        except (SedimentError, OSError):
            return False
        size_bytes = found.records.size_bytes if found.records else 0
        self._measured_bytes += size_bytes - seen.size_bytes
        seen.size_bytes = size_bytes
        return True

    def expire(self) -> None:
        if self._has_changed:
            self._use(self._read_again())
        self._request.respond(self._read.response)


class FetchHandlers:
    # If logs can grow, the caller must call `delayed.check` with a log's TopicPartition after each change of the log's
    # readable range.

    def __init__(
        self, catalog: TopicCatalog, delayed: DelayedOperations, *, fetch_max_bytes: int, logs_grow: bool
    ) -> None:
        self._catalog = catalog
        self._delayed = delayed
        self._fetch_max_bytes = fetch_max_bytes
        self._logs_grow = logs_grow
        self._log = LimitedLog(logging.getLogger(__name__))

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.FETCH: self.fetch}

    def fetch(self, request: Request) -> Any:
        message = request.message
        if message.session_id != _NO_SESSION and message.session_epoch != _FINAL_EPOCH:
            return m.FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        by_id = request.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
        min_bytes = message.min_bytes if self._logs_grow else min(message.min_bytes, 1)
        isolation = isolation_of(message.isolation_level)
        message.topics = _without_repeats(message.topics, by_id)
        first = self._read_all(message, by_id)
        if not self._logs_grow:
            self._keep(request, first, isolation)
        if message.max_wait_ms <= 0 or first.is_enough(min_bytes):
            return first.response
        request.begin_wait()
        message.forgotten_topics_data = ()
        read_again = partial(self._read_all, message, by_id)
        waiting = _DelayedFetch(request, first, isolation, min_bytes, self._limit_bytes(message), read_again)
        keys = first.seen if self._logs_grow else ()
        self._delayed.watch(waiting, keys, min(message.max_wait_ms, LONGEST_WAIT_MS))
        return None

    def _read_all(self, message: Any, by_id: bool) -> _Read:
        """Read every partition of the request; the first slice may exceed the limits (KIP-74)."""
        isolation = isolation_of(message.isolation_level)
        bytes_left = self._limit_bytes(message)
        topics: list[Any] = []
        read = _Read(m.FetchResponse(responses=topics))
        for asked in message.topics:
            topic, unknown = self._topic(asked.topic, asked.topic_id, by_id)
            partitions = []
            for each in asked.partitions:
                log = None if topic is None else topic.partitions.get(each.partition)
                if log is None:
                    code = unknown if topic is None else code_without_log(topic, each.partition)
                    data = _failed(each.partition, code)
                else:
                    data = self._read(log, each, bytes_left, isolation, not read.size_bytes, read)
                size_bytes = data.records.size_bytes if data.records else 0
                bytes_left = max(bytes_left - size_bytes, 0)
                read.size_bytes += size_bytes
                diverges = data.diverging_epoch.end_offset != _UNKNOWN_OFFSET
                read.needs_answer = read.needs_answer or diverges or data.error_code != ErrorCode.NONE
                partitions.append(data)
            topics.append(
                m.FetchResponse.FetchableTopicResponse(
                    topic=asked.topic, topic_id=asked.topic_id, partitions=partitions
                )
            )
        return read

    def _limit_bytes(self, message: Any) -> int:
        return max(min(int(message.max_bytes), self._fetch_max_bytes), 0)

    def _keep(self, request: Request, read: _Read, isolation: Isolation) -> None:
        topics = read.response.responses
        if len(topics) != 1 or len(topics[0].partitions) != 1 or not read.seen:
            return
        asked, data = request.message.topics[0].partitions[0], topics[0].partitions[0]
        if data.records and not data.aborted_transactions and asked.last_fetched_epoch == NO_LEADER_EPOCH:
            max_bytes = max(min(asked.partition_max_bytes, request.message.max_bytes, self._fetch_max_bytes), 0)
            (seen,) = read.seen.values()
            kept = RepeatedFetch.following(request, read.response, seen.log, max_bytes, isolation)
            if kept is not None:
                request.connection.repeated = kept

    def _topic(self, name: str, topic_id: uuid.UUID, by_id: bool) -> tuple[ServedTopic | None, ErrorCode]:
        if by_id:
            return self._catalog.topic_by_id(topic_id), ErrorCode.UNKNOWN_TOPIC_ID
        return self._catalog.topic(name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _read(
        self, log: ServedLog, asked: Any, bytes_left: int, isolation: Isolation, min_one: bool, read: _Read
    ) -> Any:
        try:
            seen = read.seen[log.topic_partition] = _Seen(log, asked, log.readable_range(isolation))
            code = leader_epoch_error(asked.current_leader_epoch, log)
            if code:
                return _failed(asked.partition, code)
            diverging = self._diverging_epoch(log, asked)
            if diverging is not None:
                return diverging
            max_bytes = max(min(asked.partition_max_bytes, bytes_left), 0)
            fetched = log.read(asked.fetch_offset, max_bytes, isolation=isolation, min_one=min_one)
            seen.size_bytes = fetched.records.size_bytes if fetched.records else 0
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
    def _diverging_epoch(log: ServedLog, asked: Any) -> Any | None:
        """Source: KIP-595; Kafka's Partition.readRecords."""
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


def _without_repeats(topics: Sequence[Any], by_id: bool) -> Sequence[Any]:
    """Return the topics of a request with each partition once; the last one counts, as in Kafka."""
    if len(topics) == 1 and len(topics[0].partitions) == 1:
        return topics
    count, distinct = 0, set()
    for topic in topics:
        name = topic.topic_id if by_id else topic.topic
        count += len(topic.partitions)
        distinct.update([(name, each.partition) for each in topic.partitions])
    if len(distinct) == count:
        return topics
    merged: dict[Any, dict[int, Any]] = {}
    for topic in topics:
        partitions = merged.setdefault(topic.topic_id if by_id else topic.topic, {})
        partitions.update((each.partition, each) for each in topic.partitions)
    made = m.FetchRequest.FetchTopic
    return [
        made(**{"topic_id" if by_id else "topic": name}, partitions=list(partitions.values()))
        for name, partitions in merged.items()
    ]


def _failed(number: int, code: ErrorCode) -> Any:
    return m.FetchResponse.PartitionData(
        partition_index=number, error_code=code, high_watermark=_UNKNOWN_OFFSET, records=b""
    )
