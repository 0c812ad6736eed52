"""Log directories and the producers of their logs: DescribeLogDirs, AlterReplicaLogDirs and DescribeProducers.

Source: Kafka's ReplicaManager.describeLogDirs, KafkaApis.handleAlterReplicaLogDirsRequest and
UnifiedLog.activeProducers.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import error_code_of
from sediment.server.limited_log import LimitedLog
from sediment.server.requests import Handler, Request
from sediment.server.topic_catalog import ServedDirectory, TopicCatalog, code_without_log

_UNKNOWN_BYTES = -1


class LogDirHandlers:
    def __init__(self, catalog: TopicCatalog) -> None:
        self._catalog = catalog
        self._log = LimitedLog(logging.getLogger(__name__))

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.DESCRIBE_LOG_DIRS: self.describe_log_dirs, ApiKey.DESCRIBE_PRODUCERS: self.describe_producers}

    def describe_log_dirs(self, request: Request) -> Any:
        wanted = request.message.topics
        selected = None
        if wanted is not None:
            selected = {(topic.topic, number) for topic in wanted for number in topic.partitions}
        return m.DescribeLogDirsResponse(
            results=[_described(directory, selected) for directory in self._catalog.directories]
        )

    def describe_producers(self, request: Request) -> Any:
        response = m.DescribeProducersResponse
        asked: dict[str, dict[int, None]] = {}
        for topic in request.message.topics:
            asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        return response(
            topics=[
                response.TopicResponse(name=name, partitions=[self._producers(name, number) for number in numbers])
                for name, numbers in asked.items()
            ]
        )

    def _producers(self, topic: str, number: int) -> Any:
        response = m.DescribeProducersResponse
        log = self._catalog.partition(topic, number)
        if log is None:
            return response.PartitionResponse(
                partition_index=number,
                error_code=code_without_log(self._catalog.topic(topic), number),
                error_message=None,
            )
        try:
            producers = log.producers
        except (SedimentError, OSError) as error:
            self._log.warning(str(error))
            return response.PartitionResponse(
                partition_index=number, error_code=error_code_of(error), error_message=None
            )
        return response.PartitionResponse(
            partition_index=number,
            active_producers=[
                response.ProducerState(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.timestamp_ms,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=producer.current_txn_first_offset,
                )
                for producer in producers
            ],
        )


class AlterLogDirsHandlers:
    def __init__(self, alter: Callable[[TopicPartition, str], ErrorCode]) -> None:
        self._alter = alter

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.ALTER_REPLICA_LOG_DIRS: self.alter_replica_log_dirs}

    def alter_replica_log_dirs(self, request: Request) -> Any:
        """Begin or cancel the move of each partition; a later entry for a partition replaces an earlier one."""
        wanted = {
            TopicPartition(topic.name, number): log_dir.path
            for log_dir in request.message.dirs
            for topic in log_dir.topics
            for number in topic.partitions
        }
        response = m.AlterReplicaLogDirsResponse
        by_topic: dict[str, list[Any]] = {}
        for partition, log_dir in wanted.items():
            by_topic.setdefault(partition.topic, []).append(
                response.AlterReplicaLogDirPartitionResult(
                    partition_index=partition.partition, error_code=self._alter(partition, log_dir)
                )
            )
        return response(
            results=[
                response.AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
                for name, partitions in by_topic.items()
            ]
        )


def _described(directory: ServedDirectory, selected: set[tuple[str, int]] | None) -> Any:
    response = m.DescribeLogDirsResponse
    by_topic: dict[str, list[Any]] = {}
    current = [(partition, log.size_bytes, 0, False) for partition, log in directory.logs.items()]
    future = [(partition, log.size_bytes, log.offset_lag, True) for partition, log in directory.future.items()]
    for partition, size_bytes, lag, is_future in current + future:
        if selected is None or (partition.topic, partition.partition) in selected:
            by_topic.setdefault(partition.topic, []).append(
                response.DescribeLogDirsPartition(
                    partition_index=partition.partition,
                    partition_size=size_bytes,
                    offset_lag=lag,
                    is_future_key=is_future,
                )
            )
    try:
        usage = shutil.disk_usage(directory.path)
        total_bytes, usable_bytes = usage.total, usage.free
    except OSError:
        total_bytes = usable_bytes = _UNKNOWN_BYTES
    return response.DescribeLogDirsResult(
        log_dir=str(directory.path),
        topics=[
            response.DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in by_topic.items()
        ],
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
