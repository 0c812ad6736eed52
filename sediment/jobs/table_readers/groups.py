"""The table `groups`: committed offsets, members and lag of the groups in `__consumer_offsets`.

A replay of a partition of `__consumer_offsets` gives its groups.  The rows of a group come from the group itself, and
from the ends of the partitions in the same log directory.

Each group is stored in one partition of `__consumer_offsets`, so the rows of each partition are independent.
Partitions of other topics have no rows.

Invariant: a topic name in a record never becomes a path.  The end of a log is read only if the log directory lists the
partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.segment_io.errors import NotALogDirectoryError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import CONSUMER_OFFSETS
from sediment.segment_io.partition.partition_directories import find_live_partitions
from sediment.segment_io.partition.slices import ALL
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.printable import encodable
from sediment.segment_io.tables.log_ends import end_offset
from sediment.segment_io.tables.planning import UnreadableRange
from sediment.segment_io.tables.schema import (
    FAIL,
    READ_UNCOMMITTED,
    SKIP,
    TableRequest,
    arrow_schema,
    timestamps_from_ms,
)
from sediment.server.coordinator_log import CoordinatorLog
from sediment.server.groups.group_offsets import NO_LEADER_EPOCH, CommittedOffset
from sediment.server.groups.stored_groups import StoredGroup, replay_groups

if TYPE_CHECKING:
    import pyarrow as pa

_END_COLUMNS = frozenset({"logEndOffset", "lag"})


def read_groups(
    request: TableRequest, sources: Sequence[Source], fs: Fs, on_unreadable: Callable[[UnreadableRange], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each source, sorted by group, topic and partition; no batch is empty.

    Raises:
        CorruptBatchError, UnsupportedDataError: corruption is not skipped, and a batch cannot be read or a record
            cannot be decoded.
        SourceChangedError: the files were replaced while they were read.
    """
    columns = request.selected()
    ends = _Ends(fs, are_wanted=not _END_COLUMNS.isdisjoint(column.name for column in columns))
    on_corruption = FAIL if request.on_corruption == FAIL else SKIP
    for source in sources:
        if source.partition.topic != CONSUMER_OFFSETS:
            continue
        groups = replay_groups(
            CoordinatorLog(source, ALL), fs, on_corruption=on_corruption, on_unreadable=on_unreadable
        )
        rows = [
            row for name, group in sorted(groups.items()) for row in _rows(name, group, source.directory.parent, ends)
        ]
        if rows:
            yield _batch(rows, request)


def _rows(name: str, group: StoredGroup, log_dir: Path, ends: _Ends) -> Iterator[dict[str, Any]]:
    common = {
        "group": encodable(name),
        "kind": None if group.kind is None else group.kind.value,
        "members": len(group.members),
    }
    committed = sorted(group.offsets, key=lambda each: each[:2])
    for topic, partition, offset in committed:
        end = ends.of(log_dir, topic, partition)
        yield {
            **common,
            **_committed(topic, partition, offset),
            "pending": group.offsets.is_unstable(topic, partition),
            "logEndOffset": end,
            "lag": None if end is None else end - offset.offset,
        }
    if not committed:
        yield common


def _committed(topic: str, partition: int, offset: CommittedOffset) -> dict[str, Any]:
    return {
        "topic": encodable(topic),
        "partition": partition,
        "committedOffset": offset.offset,
        "leaderEpoch": None if offset.leader_epoch == NO_LEADER_EPOCH else offset.leader_epoch,
        "metadata": encodable(offset.metadata),
        "committed": offset.commit_timestamp_ms,
    }


class _Ends:
    """Cache of the log end offsets of partitions, by log directory."""

    def __init__(self, fs: Fs, *, are_wanted: bool) -> None:
        self._fs = fs
        self._are_wanted = are_wanted
        self._listed: dict[Path, frozenset[TopicPartition]] = {}
        self._known: dict[Path, int | None] = {}

    def of(self, log_dir: Path, topic: str, partition: int) -> int | None:
        """Return the log end offset of a partition; None if the log directory does not contain it."""
        if not self._are_wanted:
            return None
        if log_dir not in self._listed:
            names = (entry.name for entry in self._fs.scan(log_dir) if entry.is_directory)
            self._listed[log_dir] = frozenset(find_live_partitions(log_dir, names))
        wanted = TopicPartition(topic, partition)
        if wanted not in self._listed[log_dir]:
            return None
        path = log_dir / str(wanted)
        if path not in self._known:
            self._known[path] = self._read(Source(wanted, path))
        return self._known[path]

    def _read(self, source: Source) -> int | None:
        try:
            return end_offset(READ_UNCOMMITTED, source, self._fs)
        except NotALogDirectoryError:  # the partition was removed after it was listed
            return None


def _batch(rows: Sequence[dict[str, Any]], request: TableRequest) -> pa.RecordBatch:
    import pyarrow as pa

    columns = request.selected()
    schema = arrow_schema(columns)
    arrays = [
        timestamps_from_ms([row.get(column.name) for row in rows])
        if column.kind == "timestamp"
        else pa.array([row.get(column.name) for row in rows], field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
