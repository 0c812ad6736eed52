"""The table `groups`: committed offsets, members and lag of the groups in `__consumer_offsets`.

A replay of a partition of `__consumer_offsets` gives its groups.  The rows of a group come from the group itself, and
from the ends of the partitions in the log directories of the query.  If these contain several replicas of a partition,
the end is that of the best replica.

Invariant: a topic name in a record never becomes a path.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.engine.source_replicas import best_sources
from sediment.segment_io.errors import NotALogDirectoryError, SedimentError, UsageError
from sediment.segment_io.format.layout import NO_LEADER_EPOCH
from sediment.segment_io.format.names import META_PROPERTIES_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import CONSUMER_OFFSETS
from sediment.segment_io.partition.checkpoint_files import read_meta_properties
from sediment.segment_io.partition.partition_directories import find_live_partitions
from sediment.segment_io.partition.slices import ALL
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.printable import encodable
from sediment.segment_io.tables.log_ends import end_offset
from sediment.segment_io.tables.places import place_of
from sediment.segment_io.tables.planning import TableTask, UnreadableRange
from sediment.segment_io.tables.schema import (
    FAIL,
    READ_UNCOMMITTED,
    SKIP,
    TableRequest,
    arrow_schema,
    timestamps_from_ms,
)
from sediment.server.coordinator_log import CoordinatorLog
from sediment.server.groups.group_offsets import CommittedOffset
from sediment.server.groups.stored_groups import StoredGroup, replay_groups

if TYPE_CHECKING:
    import pyarrow as pa

_END_COLUMNS = frozenset({"logEndOffset", "lag"})


def read_groups(
    request: TableRequest, task: TableTask, fs: Fs, on_unreadable: Callable[[UnreadableRange], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each source of the task, sorted by group, topic and partition; no batch is empty."""
    columns = request.selected()
    names = {column.name for column in columns}
    ends = _Ends(task.log_dirs, fs, are_wanted=not _END_COLUMNS.isdisjoint(names))
    on_corruption = FAIL if request.on_corruption == FAIL else SKIP
    for source in task.sources:
        if source.partition.topic != CONSUMER_OFFSETS:
            continue
        groups = replay_groups(
            CoordinatorLog(source, ALL), fs, on_corruption=on_corruption, on_unreadable=on_unreadable
        )
        log_dir, place = source.directory.parent, place_of(source, names, fs)
        rows = [{**row, **place} for name, group in sorted(groups.items()) for row in _rows(name, group, log_dir, ends)]
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
    def __init__(self, log_dirs: Sequence[Path], fs: Fs, *, are_wanted: bool) -> None:
        self._log_dirs = log_dirs
        self._fs = fs
        self._are_wanted = are_wanted
        self._listed: dict[Path, frozenset[TopicPartition]] = {}
        self._clusters: dict[Path, str | None] = {}
        self._known: dict[tuple[Path, ...], int | None] = {}

    def of(self, log_dir: Path, topic: str, partition: int) -> int | None:
        """Return the log end offset of a partition for a group in `log_dir`; None if no log directory contains it.

        The log end offset is also None if the directories contain different topics of this name.
        """
        if not self._are_wanted:
            return None
        wanted = TopicPartition(topic, partition)
        own = self._cluster(log_dir)
        # The end of a log is read only if a log directory lists the partition, and if this directory belongs to the
        # cluster of the group.
        found = tuple(
            each / str(wanted)
            for each in dict.fromkeys((log_dir, *self._log_dirs))
            if wanted in self._partitions(each) and (None in (own, self._cluster(each)) or own == self._cluster(each))
        )
        if found not in self._known:
            self._known[found] = self._read([Source(wanted, path) for path in found])
        return self._known[found]

    def _partitions(self, log_dir: Path) -> frozenset[TopicPartition]:
        if log_dir not in self._listed:
            names = (entry.name for entry in self._fs.scan(log_dir) if entry.is_directory)
            self._listed[log_dir] = frozenset(find_live_partitions(log_dir, names))
        return self._listed[log_dir]

    def _cluster(self, log_dir: Path) -> str | None:
        if log_dir not in self._clusters:
            self._clusters[log_dir] = None
            with contextlib.suppress(SedimentError, OSError):
                meta = read_meta_properties(self._fs, log_dir / META_PROPERTIES_FILE)
                self._clusters[log_dir] = None if meta is None else meta.cluster_id
        return self._clusters[log_dir]

    def _read(self, replicas: Sequence[Source]) -> int | None:
        try:
            best = best_sources(replicas, self._fs)
            return end_offset(READ_UNCOMMITTED, best[0], self._fs) if best else None
        except (NotALogDirectoryError, UsageError):  # the partition was removed after it was listed, or its ids differ
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
