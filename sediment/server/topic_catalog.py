"""TopicCatalog: the topics and logs that a server offers to its handlers.

Any thread may call any method.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sediment.engine.live.log.fetched_data import Isolation, TimestampOffsetEpoch
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.format.transaction_index import AbortedTxn
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.partition.file_slice import FileSlice
from sediment.segment_io.partition.producer_state import ProducerEntry
from sediment.segment_io.protocol.error_codes import ErrorCode


class FetchedRecords(Protocol):
    """The result of a read; `records` begins with a batch, may end inside a batch, and is None without data.

    The slice may contain records below the requested offset; a consumer skips such records. `aborted` contains the
    aborted transactions that overlap the slice. It is None unless the isolation level is READ_COMMITTED.
    """

    @property
    def records(self) -> FileSlice | None: ...
    @property
    def aborted(self) -> tuple[AbortedTxn, ...] | None: ...


class ServedLog(Protocol):
    # Every method that reads raises StorageError if the log cannot be read, and OpenFilesLimitError if this process may
    # open no more files.

    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def directory(self) -> Path: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def failure(self) -> SedimentError | None:
        """The error that makes every read fail; None if there is none."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def producers(self) -> tuple[ProducerEntry, ...]: ...
    def end_offset(self, isolation: Isolation) -> int: ...
    def readable_range(self, isolation: Isolation) -> tuple[int, int]:
        """Return the log start offset and the end offset of reads; both change if the log is closed or goes offline."""

    def read(self, offset: int, max_bytes: int, *, isolation: Isolation, min_one: bool) -> FetchedRecords:
        """Return at most `max_bytes` of the log, from the first batch that ends at or above `offset`.

        If the first batch is larger than `max_bytes`, return the whole batch if `min_one` is True, else nothing
        (KIP-74).
        """

    def offset_for_time(self, target_ms: int, *, only_quick: bool = False) -> TimestampOffsetEpoch | None:
        """With `only_quick`, raise LongWorkError if a large batch must be searched: others wait for this thread."""

    def offset_of_largest_timestamp(self, *, only_quick: bool = False) -> TimestampOffsetEpoch | None: ...
    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the last point at which this log agrees with a log that ends in `epoch`.

        Return (-1, -1) if no such point exists.
        """

    def epoch_at_log_start(self) -> int: ...


class ServedTopic(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def id(self) -> uuid.UUID: ...
    @property
    def partitions(self) -> Mapping[int, ServedLog]: ...
    @property
    def missing(self) -> Mapping[int, ErrorCode]:
        """The partitions without a log here, by number, each with the error for a request that needs the log.

        Clients see such a partition without a leader. They use the number of all partitions to map keys to partitions,
        and some clients read nothing from a topic whose numbers have a gap.
        """

    @property
    def configs(self) -> Mapping[str, str]: ...
    @property
    def is_internal(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class FutureLog:
    """The size of a future log in bytes, and the number of offsets that it lacks."""

    size_bytes: int
    offset_lag: int


@dataclass(frozen=True, slots=True)
class ServedDirectory:
    """`future` contains the future logs in the directory, which will replace logs in other directories."""

    path: Path
    logs: Mapping[TopicPartition, ServedLog]
    future: Mapping[TopicPartition, FutureLog] = field(default_factory=dict)


class TopicCatalog(Protocol):
    @property
    def cluster_id(self) -> str: ...
    @property
    def node_id(self) -> int: ...
    @property
    def metadata(self) -> ClusterMetadata | None: ...
    @property
    def directories(self) -> Sequence[ServedDirectory]: ...
    def topics(self) -> Sequence[ServedTopic]: ...
    def topic(self, name: str) -> ServedTopic | None: ...
    def topic_by_id(self, topic_id: uuid.UUID) -> ServedTopic | None: ...
    def partition(self, name: str, number: int) -> ServedLog | None: ...


def has_partition(topic: ServedTopic | None, number: int) -> bool:
    return topic is not None and (number in topic.partitions or number in topic.missing)


def code_without_log(topic: ServedTopic | None, number: int) -> ErrorCode:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return unknown if topic is None else topic.missing.get(number, unknown)
