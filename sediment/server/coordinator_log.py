"""Reader of the records that a coordinator replays from one partition of its topic.

    slices of the log --tables--> columns --without superseded records--> records in order

Before a compaction, most of its records are superseded by later records with the same key. The reader returns tables of
about 65,000 records. A plain record has a value and is outside a transaction. In each table, a plain record is skipped
if a later plain record has the same key.

Only one table is in memory at a time, regardless of the size of the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.layout import NO_PRODUCER_ID
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.planning import UnreadableRange, plan_table
from sediment.segment_io.tables.readers import read_table
from sediment.segment_io.tables.schema import SKIP, TableRequest

if TYPE_CHECKING:
    import pyarrow as pa

_LOGGER = logging.getLogger(__name__)
_Value = TypeVar("_Value")
_NULL_KEY = -1
_COLUMNS = ("key", "value", "offset", "producerId", "control")


@dataclass(frozen=True, slots=True)
class CoordinatorLog:
    source: Source
    bounds: Bounds

    @property
    def partition(self) -> int:
        return self.source.partition.partition


class LoggedRecord(NamedTuple):
    """A record of a coordinator's log; `producer_id` is -1 outside a transaction.

    `is_control` is True for a transaction marker.
    """

    key: bytes
    value: bytes | None
    offset: int
    producer_id: int
    is_control: bool


def coordinator_partition(key: str, partition_count: int) -> int:
    """Source: Kafka's GroupMetadataManager.partitionFor, Utils.abs and Java's String.hashCode."""
    code = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >> 31 else code
    return (0 if signed == -(1 << 31) else abs(signed)) % partition_count


@dataclass(frozen=True, slots=True)
class CoordinatorTopic:
    """`unreadable` gets the numbers of the partitions that cannot be read."""

    logs: Sequence[CoordinatorLog]
    partition_count: int
    unreadable: set[int] = field(default_factory=set)

    def partition_of(self, key: str) -> int:
        return coordinator_partition(key, self.partition_count)

    def is_unreadable(self, key: str) -> bool:
        return bool(self.unreadable) and self.partition_of(key) in self.unreadable

    def replay(self, replay_log: Callable[[CoordinatorLog], Mapping[str, _Value]]) -> dict[str, _Value]:
        """If several partitions contain the same id, the value comes from the partition to which the id belongs.

        A partition that cannot be read is logged as an error and skipped.
        """
        found: dict[str, _Value] = {}
        for log in self.logs:
            try:
                replayed = replay_log(log)
            except (SedimentError, OSError) as error:
                self.leave_out(log.source.partition, error)
                continue
            for key, value in replayed.items():
                if key not in found or self.partition_of(key) == log.partition:
                    found[key] = value
        return found

    def leave_out(self, partition: TopicPartition, error: SedimentError | OSError) -> None:
        self.unreadable.add(partition.partition)
        _LOGGER.error("%s cannot be read, and clients get an error for its contents: %s", partition, error)


def warn_of_unreadable(unreadable: UnreadableRange) -> None:
    _LOGGER.warning("records of a coordinator topic are skipped: %s", unreadable.error)


def read_coordinator_records(
    log: CoordinatorLog,
    fs: Fs,
    *,
    on_corruption: str = SKIP,
    on_unreadable: Callable[[UnreadableRange], None] = warn_of_unreadable,
) -> Iterator[LoggedRecord]:
    request = TableRequest(columns=_COLUMNS, bounds=log.bounds, on_corruption=on_corruption)
    for task in plan_table(request, [log.source], fs):
        for table in read_table(request, task, fs, on_unreadable=on_unreadable, follow=False):
            yield from _current_records(table)


def _current_records(table: pa.RecordBatch) -> Iterator[LoggedRecord]:
    has_key = table.column("key").is_valid().to_numpy(zero_copy_only=False)
    kept = table.take(np.flatnonzero(has_key & ~_superseded(table)))
    return map(LoggedRecord._make, zip(*(column.to_pylist() for column in kept.columns), strict=True))


def _superseded(table: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return bool[records]: True for a plain record that a later plain record in the table supersedes."""
    is_plain = (_numpy(table, "producerId") == NO_PRODUCER_ID) & ~_numpy(table, "control")
    is_plain &= table.column("value").is_valid().to_numpy(zero_copy_only=False)
    keys = table.column("key").dictionary_encode().indices.fill_null(_NULL_KEY).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(is_plain & (keys != _NULL_KEY))
    last = np.zeros(len(table), dtype=np.int64)
    np.maximum.at(last, keys[rows], rows)
    superseded = np.zeros(len(table), dtype=np.bool_)
    superseded[rows] = last[keys[rows]] > rows
    return superseded


def _numpy(table: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = table.column(name).to_numpy(zero_copy_only=False)
    return values
