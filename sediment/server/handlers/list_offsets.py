"""Look-ups of offsets by time, by leader epoch, or at a log's start or end: ListOffsets and OffsetForLeaderEpoch.

Source: Kafka's ReplicaManager.fetchOffset, Partition.fetchOffsetForTimestamp and lastOffsetForLeaderEpoch.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sediment.engine.live.log.fetched_data import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NOT_KNOWN,
    Isolation,
    TimestampOffsetEpoch,
)
from sediment.segment_io.errors import LongWorkError, SedimentError
from sediment.segment_io.format.layout import NO_LEADER_EPOCH, NO_TIMESTAMP
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import error_code_of
from sediment.server.handlers.fetch import isolation_of, leader_epoch_error
from sediment.server.limited_log import LimitedLog
from sediment.server.requests import Handler, Request
from sediment.server.topic_catalog import ServedLog, TopicCatalog, code_without_log

_CONSUMER = -1
_FIRST_VERSION_WITH_EPOCHS = 4
_FIRST_VERSIONS = {
    EARLIEST_TIMESTAMP: 1,
    LATEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
"""The first version of ListOffsets that supports each negative timestamp."""


class OffsetHandlers:
    def __init__(self, catalog: TopicCatalog) -> None:
        self._catalog = catalog
        self._log = LimitedLog(logging.getLogger(__name__))

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.LIST_OFFSETS: self.list_offsets, ApiKey.OFFSET_FOR_LEADER_EPOCH: self.offset_for_leader_epoch}

    # ----------------------------------------------------------------------------------------------------- list offsets
    def list_offsets(self, request: Request) -> Any:
        """Return None if a large batch must be searched; the response is then sent later."""
        message, version = request.message, request.api_version
        try:
            return self._list_all(message, version, only_quick=True)
        except LongWorkError:
            request.respond_later(partial(self._list_all, message, version, only_quick=False))
            return None

    def _list_all(self, message: Any, version: int, *, only_quick: bool) -> Any:
        isolation = isolation_of(message.isolation_level) if message.replica_id == _CONSUMER else Isolation.LOG_END
        asked = Counter((topic.name, each.partition_index) for topic in message.topics for each in topic.partitions)
        return m.ListOffsetsResponse(
            topics=[
                m.ListOffsetsResponse.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        _listed(each, ErrorCode.INVALID_REQUEST)
                        if asked[topic.name, each.partition_index] > 1
                        else self._list(topic.name, each, isolation, version, only_quick=only_quick)
                        for each in topic.partitions
                    ],
                )
                for topic in message.topics
            ]
        )

    def _list(self, topic: str, asked: Any, isolation: Isolation, version: int, *, only_quick: bool) -> Any:
        log = self._catalog.partition(topic, asked.partition_index)
        if log is None:
            return _listed(asked, code_without_log(self._catalog.topic(topic), asked.partition_index))
        if asked.timestamp < 0 and version < _FIRST_VERSIONS.get(asked.timestamp, version + 1):
            return _listed(asked, ErrorCode.UNSUPPORTED_VERSION)
        try:
            code = leader_epoch_error(asked.current_leader_epoch, log)
            found = None if code else _find(log, asked.timestamp, isolation, only_quick=only_quick)
        except LongWorkError:
            raise
        except (SedimentError, OSError) as error:
            self._log.warning(str(error))
            return _listed(asked, error_code_of(error))
        if found is not None and version < _FIRST_VERSION_WITH_EPOCHS:
            found = replace(found, leader_epoch=NO_LEADER_EPOCH)
        return _listed(asked, code, found)

    # --------------------------------------------------------------------------------------------------------- epochs
    def offset_for_leader_epoch(self, request: Request) -> Any:
        response = m.OffsetForLeaderEpochResponse
        return response(
            topics=[
                response.OffsetForLeaderTopicResult(
                    topic=topic.topic, partitions=[self._epoch_end(topic.topic, each) for each in topic.partitions]
                )
                for topic in request.message.topics
            ]
        )

    def _epoch_end(self, topic: str, asked: Any) -> Any:
        log = self._catalog.partition(topic, asked.partition)
        epoch, end_offset = NO_LEADER_EPOCH, NOT_KNOWN
        if log is None:
            code = code_without_log(self._catalog.topic(topic), asked.partition)
        else:
            try:
                code = leader_epoch_error(asked.current_leader_epoch, log)
                if not code:
                    epoch, end_offset = log.end_offset_for_epoch(asked.leader_epoch)
            except (SedimentError, OSError) as error:
                self._log.warning(str(error))
                code = error_code_of(error)
        return m.OffsetForLeaderEpochResponse.EpochEndOffset(
            error_code=code, partition=asked.partition, leader_epoch=epoch, end_offset=end_offset
        )


def _find(log: ServedLog, timestamp_ms: int, isolation: Isolation, *, only_quick: bool) -> TimestampOffsetEpoch | None:
    if timestamp_ms == LATEST_TIMESTAMP:
        return TimestampOffsetEpoch(NO_TIMESTAMP, log.end_offset(isolation), log.leader_epoch)
    if timestamp_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        return TimestampOffsetEpoch(NO_TIMESTAMP, log.log_start_offset, log.epoch_at_log_start())
    if timestamp_ms in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
        return None  # no log is in tiered storage
    if timestamp_ms == MAX_TIMESTAMP:
        found = log.offset_of_largest_timestamp(only_quick=only_quick)
    else:
        found = log.offset_for_time(timestamp_ms, only_quick=only_quick)
    return found if found is not None and found.offset < log.end_offset(isolation) else None


def _listed(asked: Any, code: ErrorCode, found: TimestampOffsetEpoch | None = None) -> Any:
    found = found or TimestampOffsetEpoch(NO_TIMESTAMP, NOT_KNOWN, NO_LEADER_EPOCH)
    return m.ListOffsetsResponse.ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=code,
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )
