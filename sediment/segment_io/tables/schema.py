"""The tables of a log's files: columns, requests for rows, and pyarrow schemas.

    records, batches          one row for each record or batch, read from slices of segments
    groups, topics            one row for each committed offset or config in an internal topic
    all other tables          one row for each entry of a small file

If Spark's Kafka source has a column too, the column has the same name there.  The other columns are named with Kafka's
terms.  A missing value is null, except in columns of records where Kafka's clients return -1, such as `timestamp`,
`producerId` and `sequence`.

Invariant: pyarrow is imported only when a schema or an array is requested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from sediment.segment_io.errors import UsageError
from sediment.segment_io.partition.slices import ALL, Bounds
from sediment.segment_io.partition.sources import Source

if TYPE_CHECKING:
    import pyarrow as pa

READ_UNCOMMITTED = "read_uncommitted"
READ_COMMITTED = "read_committed"
ISOLATIONS = (READ_UNCOMMITTED, READ_COMMITTED)

FAIL = "fail"
SKIP = "skip"
ROWS = "rows"
ON_CORRUPTION = (FAIL, SKIP, ROWS)

BEST = "best"
ALL_REPLICAS = "all"
REPLICAS = (BEST, ALL_REPLICAS)


# ------------------------------------------------------------------------------------------------------------- columns
@dataclass(frozen=True, slots=True)
class Column:
    """A column; `kind` is binary, string, bool, int, long, timestamp or headers, and `meaning` is a line of help."""

    name: str
    kind: str
    meaning: str


_TOPIC = Column("topic", "string", "from the directory's name")
_PARTITION = Column("partition", "int", "from the directory's name; -1 if the name has no partition number")
_SEGMENT = Column("segment", "long", "base offset of the segment")

_RECORDS = (
    Column("key", "binary", "null if the record has no key"),
    Column("value", "binary", "null in a tombstone"),
    _TOPIC,
    _PARTITION,
    Column("offset", "long", "offset of the record"),
    Column("timestamp", "timestamp", "timestamp of the record, or time of its append"),
    Column("timestampType", "int", "0 for CreateTime, 1 for LogAppendTime, -1 for none (magic 0)"),
    Column("headers", "headers", "null if the record has no headers"),
    Column("batchBaseOffset", "long", "first offset of the batch as it was written"),
    Column("codec", "string", "codec of the batch: none, gzip, snappy, lz4 or zstd"),
    Column("producerId", "long", "id of the producer; -1 if the batch has no producer"),
    Column("producerEpoch", "int", "epoch of the producer; -1 if the batch has no producer"),
    Column("sequence", "int", "sequence number of the record; -1 if it has none"),
    Column("transactional", "bool", "true if the record is part of a transaction"),
    Column("control", "bool", "true for a control record, which consumers never return to applications"),
    Column("leaderEpoch", "int", "epoch of the leader that appended the batch; -1 in magic 0 and 1"),
    Column("size", "int", "size of the encoded record in bytes, before compression"),
)
_BATCHES = (
    _TOPIC,
    _PARTITION,
    _SEGMENT,
    Column("position", "long", "byte position of the batch in the segment's .log"),
    Column("size", "long", "size of the batch in bytes, with its header"),
    Column("baseOffset", "long", "first offset of the batch as it was written"),
    Column("lastOffset", "long", "last offset of the batch as it was written"),
    Column("recordCount", "int", "number of records that are still in the batch"),
    Column("magic", "int", "message format: 0, 1 or 2"),
    Column("codec", "string", "codec of the batch: none, gzip, snappy, lz4 or zstd"),
    Column("timestampType", "int", "0 for CreateTime, 1 for LogAppendTime, -1 for none (magic 0)"),
    Column(
        "baseTimestamp", "timestamp", "base of the records' timestamp deltas; null if the batch has a delete horizon"
    ),
    Column("maxTimestamp", "timestamp", "largest timestamp of the records"),
    Column("deleteHorizon", "timestamp", "time at which tombstones and markers in the batch expire"),
    Column("producerId", "long", "id of the producer; -1 if the batch has no producer"),
    Column("producerEpoch", "int", "epoch of the producer; -1 if the batch has no producer"),
    Column("baseSequence", "int", "sequence number of the first record; -1 if the batch has no producer"),
    Column("lastSequence", "int", "sequence number of the last record; -1 if the batch has no producer"),
    Column("transactional", "bool", "true if the batch is part of a transaction"),
    Column("control", "bool", "true if the batch contains a control record"),
    Column(
        "controlType",
        "string",
        "type of the control record, such as ABORT, COMMIT or LEADER_CHANGE; null if there is none",
    ),
    Column("coordinatorEpoch", "int", "epoch in a transaction marker; null in other batches"),
    Column("leaderEpoch", "int", "epoch of the leader that appended the batch; -1 in magic 0 and 1"),
    Column("crc", "long", "checksum in the header of the batch"),
    Column("valid", "bool", "true if the CRC is valid"),
)
_SEGMENTS = (
    _TOPIC,
    _PARTITION,
    Column("baseOffset", "long", "base offset, from the segment's name"),
    Column("active", "bool", "true for the last segment, to which records are appended"),
    Column("size", "long", "size of the .log in bytes"),
    Column("offsetIndexEntries", "long", "number of entries; null if the segment has no .index"),
    Column("timeIndexEntries", "long", "number of entries; null if the segment has no .timeindex"),
    Column("abortedTransactions", "long", "number of entries in the .txnindex; null if the segment has none"),
    Column("largestTimestamp", "timestamp", "last timestamp in the .timeindex"),
    Column("modified", "timestamp", "modification time of the .log"),
    Column("path", "string", "path of the .log"),
)
_OFFSET_INDEX = (
    _TOPIC,
    _PARTITION,
    _SEGMENT,
    Column("offset", "long", "last offset of the batch at the position"),
    Column("position", "long", "byte position in the segment's .log"),
)
_TIME_INDEX = (
    _TOPIC,
    _PARTITION,
    _SEGMENT,
    Column("timestamp", "timestamp", "largest timestamp of the segment up to this entry"),
    Column("offset", "long", "last offset of the first batch with this timestamp"),
)
_TRANSACTIONS = (
    _TOPIC,
    _PARTITION,
    _SEGMENT,
    Column("producerId", "long", "id of the producer whose transaction was aborted"),
    Column("firstOffset", "long", "first offset of the transaction"),
    Column("lastOffset", "long", "offset of the transaction's ABORT marker"),
    Column("lastStableOffset", "long", "last stable offset of the log when the marker was appended"),
)
_OPEN_TRANSACTIONS = (
    _TOPIC,
    _PARTITION,
    Column("producerId", "long", "id of the producer whose transaction has no marker at the log end"),
    Column("producerEpoch", "int", "epoch of the producer"),
    Column("coordinatorEpoch", "int", "coordinator epoch in the producer's last marker; null without a marker"),
    Column("firstOffset", "long", "first offset of the transaction"),
    Column("lastOffset", "long", "last offset of the producer's last data batch"),
    Column("lastTimestamp", "timestamp", "timestamp of the producer's last data batch"),
)
_PRODUCERS = (
    _TOPIC,
    _PARTITION,
    Column("snapshot", "long", "offset of the snapshot, which covers all lower offsets"),
    Column("producerId", "long", "id of the producer"),
    Column("producerEpoch", "int", "epoch of the producer"),
    Column("lastSequence", "int", "last sequence number of the producer's last data batch; null without a data batch"),
    Column("firstOffset", "long", "first offset of the producer's last data batch; null without a data batch"),
    Column("lastOffset", "long", "last offset of the producer's last data batch; null without a data batch"),
    Column("timestamp", "timestamp", "timestamp of the producer's last batch or marker"),
    Column("coordinatorEpoch", "int", "coordinator epoch in the producer's last marker; null without a marker"),
    Column(
        "currentTxnFirstOffset",
        "long",
        "first offset of the producer's open transaction; null if no transaction is open",
    ),
)
_EPOCHS = (
    _TOPIC,
    _PARTITION,
    Column("epoch", "int", "leader epoch"),
    Column("startOffset", "long", "first offset of the epoch"),
)
_INDEXES = (
    _TOPIC,
    _PARTITION,
    Column("segment", "long", "base offset of the segment, or the snapshot's offset"),
    Column("file", "string", "name of the index or snapshot"),
    Column("entries", "long", "number of entries; null if the file is missing or cannot be read"),
    Column("problems", "long", "number of entries that the log contradicts"),
    Column("problem", "string", "the first problem; null if there is none"),
)
_GROUPS = (
    Column("group", "string", "id of the group"),
    Column("kind", "string", "classic, consumer, share or streams"),
    Column("members", "int", "number of members when the log ended"),
    Column(
        "topic", "string", "topic of the committed offset; null in the single row of a group without committed offsets"
    ),
    Column("partition", "int", "partition of the committed offset"),
    Column("committedOffset", "long", "next offset that the group reads"),
    Column(
        "leaderEpoch", "int", "epoch of the last record below the committed offset; null if the client did not send it"
    ),
    Column("metadata", "string", "text that the client stored with the offset"),
    Column("committed", "timestamp", "time of the commit"),
    Column("pending", "bool", "true if an open transaction also contains an offset for the partition"),
    Column(
        "logEndOffset",
        "long",
        "log end offset of the partition; null if no log directory contains the partition",
    ),
    Column("lag", "long", "logEndOffset minus committedOffset"),
)
_TOPICS = (
    Column("topic", "string", "topic of a partition in the paths"),
    Column("topicId", "string", "topic id in the cluster's metadata; null if the metadata does not contain the topic"),
    Column(
        "partitions", "int", "number of partitions in the metadata; null if the metadata does not contain the topic"
    ),
    Column("key", "string", "name of a config of the topic, such as retention.ms"),
    Column("value", "string", "value of the config, in the unit of `key`; null if no source sets the key"),
    Column("source", "string", "Kafka's name of the source, BOOTSTRAP_CHECKPOINT, or NOT_STATED"),
)
PLACE_COLUMNS = (
    Column("node_id", "int", "node id in the meta.properties of the log directory; null without one"),
    Column("log_dir", "string", "path of the log directory"),
)
"""Columns of every table that say where a row was read; a request must name them, or ask for all replicas."""

ON_REQUEST_COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "records": (_SEGMENT, Column("position", "long", "byte position of the record's batch in the segment's .log")),
}
"""Further columns of single tables that a request must name."""

ALL_COLUMNS = "*"
"""In a request's `columns`, the columns that the table has without them."""

_CORRUPTION = Column("corruption", "string", "why the bytes in `value` could not be read; null in a readable row")

TABLES: Mapping[str, tuple[Column, ...]] = {
    "records": _RECORDS,
    "batches": _BATCHES,
    "segments": _SEGMENTS,
    "offset_index": _OFFSET_INDEX,
    "time_index": _TIME_INDEX,
    "transactions": _TRANSACTIONS,
    "open_transactions": _OPEN_TRANSACTIONS,
    "producers": _PRODUCERS,
    "epochs": _EPOCHS,
    "indexes": _INDEXES,
    "groups": _GROUPS,
    "topics": _TOPICS,
}
CLUSTER_TABLES = frozenset({"groups", "topics"})
"""Tables about the cluster, from records of internal topics; packages that use this package read them."""

WHOLE_TABLES = frozenset({"topics"})
"""Tables whose rows depend on all sources together, so that one task must read all sources."""

SLICED_TABLES = frozenset({"records", "batches"})


@dataclass(frozen=True, slots=True)
class TableRequest:
    """A request for rows and columns of one table.

    None in `columns`, `topics` or `partitions` means all of them; `columns` may also have ALL_COLUMNS among its names.
    In `records` and `batches`, `topics`, `partitions` and `bounds` select rows exactly.  The other tables may return
    more rows.  With `on_corruption` ROWS, the table also has a column `corruption`.  `replicas` is BEST or
    ALL_REPLICAS, or None for the default of the table.
    """

    what: str = "records"
    columns: tuple[str, ...] | None = None
    bounds: Bounds = ALL
    isolation: str = READ_UNCOMMITTED
    on_corruption: str = FAIL
    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    config: str | None = None
    """Path of the broker's properties file, for the table `topics`."""

    replicas: str | None = None

    def selected(self) -> tuple[Column, ...]:
        """Return the requested columns in the requested order.

        Raises:
            UsageError: the table or a column is unknown.
        """
        if self.what not in TABLES:
            raise UsageError(f"table {self.what!r} does not exist", advice=f"it is one of {', '.join(TABLES)}")
        known = {column.name: column for column in TABLES[self.what]}
        if self.on_corruption == ROWS and self.what in SLICED_TABLES:
            known[_CORRUPTION.name] = _CORRUPTION
            if "value" not in known:
                known["value"] = Column("value", "binary", "bytes that could not be read; null in a readable row")
        own = (*known.values(), *(PLACE_COLUMNS if self.replicas == ALL_REPLICAS else ()))
        if self.columns is None:
            return own
        known |= {column.name: column for column in (*PLACE_COLUMNS, *ON_REQUEST_COLUMNS.get(self.what, ()))}
        selected: list[Column] = []
        for name in self.columns:
            if name != ALL_COLUMNS and name not in known:
                raise UsageError(f"table {self.what!r} has no column {name!r}", advice=f"it has {', '.join(known)}")
            selected += own if name == ALL_COLUMNS else (known[name],)
        return tuple(selected)

    def reads_all_replicas(self) -> bool:
        """Return True if every replica of a partition is read; by default, only `indexes` checks all files."""
        return (self.replicas or (ALL_REPLICAS if self.what == "indexes" else BEST)) == ALL_REPLICAS

    def selects(self, source: Source) -> bool:
        partition = source.partition
        return (self.topics is None or partition.topic in self.topics) and (
            self.partitions is None or partition.partition in self.partitions
        )


# --------------------------------------------------------------------------------------------------------------- arrow
def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the pyarrow schema of `columns`; timestamps are in UTC microseconds, and every field is nullable."""
    import pyarrow as pa

    return pa.schema([pa.field(column.name, _arrow_types()[column.kind]) for column in columns])


@cache
def _arrow_types() -> dict[str, Any]:
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return {
        "binary": pa.binary(),
        "string": pa.string(),
        "bool": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "headers": pa.list_(pa.field("element", header)),
    }


def timestamps_from_ms(values_ms: Any) -> pa.Array:
    """Return timestamps for ms since the epoch.

    None and -1 become null; a value outside the range of microseconds becomes the nearest value in the range.
    """
    import pyarrow as pa

    if isinstance(values_ms, list):
        values_ms = [-1 if value is None else value for value in values_ms]
    values = np.array(values_ms, dtype=np.int64)
    largest = np.iinfo(np.int64).max // 1000
    return pa.array(np.clip(values, -largest, largest) * 1000, _arrow_types()["timestamp"], mask=values == -1)
