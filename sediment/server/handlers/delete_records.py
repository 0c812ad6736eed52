"""DeleteRecords: a request that raises the log start of partitions, and deletes the segments below it.

An offset of -1 means the high watermark. The new log start is written to a checkpoint before the request is answered.

Source: Kafka 4.2.0, KafkaApis.handleDeleteRecordsRequest and ReplicaManager.deleteRecords.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import error_code_of
from sediment.server.limited_log import LimitedLog
from sediment.server.live.live_catalog import LiveCatalog
from sediment.server.live.partition import Partition
from sediment.server.requests import Handler, Request
from sediment.server.topic_catalog import code_without_log

_NO_OFFSET = -1


class DeleteRecordsHandlers:
    """`checkpoint` writes the log starts of log directories, and returns the directories in which this failed."""

    def __init__(self, catalog: LiveCatalog, checkpoint: Callable[[Collection[Path]], Collection[Path]]) -> None:
        self._catalog = catalog
        self._checkpoint = checkpoint
        self._log = LimitedLog(logging.getLogger(__name__))

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.DELETE_RECORDS: self.delete_records}

    def delete_records(self, request: Request) -> Any:
        response = m.DeleteRecordsResponse
        changed: list[tuple[Partition, Any]] = []
        topics = [
            response.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[self._raise_log_start(topic.name, each, changed) for each in topic.partitions],
            )
            for topic in request.message.topics
        ]
        if changed:
            self._finish(changed)
        return response(topics=topics)

    def _raise_log_start(self, topic: str, asked: Any, changed: list[tuple[Partition, Any]]) -> Any:
        result = m.DeleteRecordsResponse.DeleteRecordsPartitionResult(partition_index=asked.partition_index)
        partition = self._catalog.partition(topic, asked.partition_index)
        if partition is None:
            return _fail(result, code_without_log(self._catalog.topic(topic), asked.partition_index))
        try:
            result.low_watermark = partition.delete_records(asked.offset)
        except SedimentError as error:
            return _fail(result, error_code_of(error))
        changed.append((partition, result))
        return result

    def _finish(self, changed: list[tuple[Partition, Any]]) -> None:
        failed = self._checkpoint({partition.directory.parent for partition, _ in changed})
        for partition, result in changed:
            if partition.directory.parent in failed:
                _fail(result, ErrorCode.KAFKA_STORAGE_ERROR)
                continue
            try:
                partition.delete_segments_below_log_start()
            except SedimentError as error:
                self._log.warning(f"segments of {partition.topic_partition} were not deleted: {error}")
                _fail(result, error_code_of(error))


def _fail(result: Any, code: ErrorCode) -> Any:
    result.error_code, result.low_watermark = code, _NO_OFFSET
    return result
