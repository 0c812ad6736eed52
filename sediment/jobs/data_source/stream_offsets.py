"""The offset of a stream as JSON, in which Spark's checkpoint keeps the progress of each partition.

    {"orders-0": {"offset": 50, "topicId": "2tnuGBvqTMuFy-1w2cKMTw"}}           a topic with an id
    {"orders-0": {"offset": 50, "directory": "5505902-1795899227799778939",
                  "record": {"offset": 49, "crc": 3405691582}}}                 a topic without an id
    {"orders-0": 50}                                                            written by a version without marks

Invariant: equal offsets have equal JSON, because Spark starts a batch whenever the JSON differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sediment.segment_io.errors import UsageError
from sediment.segment_io.tables.log_marks import LogMark, RecordMark


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset of a partition, and the mark of the log that was read below it; None if it is not known.

    `first` is the offset at which the batch that ends here begins; None if it begins where the previous batch ended.
    """

    offset: int
    mark: LogMark | None = None
    first: int | None = None


StreamOffsets = Mapping[str, StreamOffset]


def offsets_json(offsets: StreamOffsets) -> dict[str, Any]:
    return {name: _entry_json(entry) for name, entry in offsets.items()}


def _entry_json(entry: StreamOffset) -> Any:
    mark = entry.mark
    if mark is None:
        return entry.offset
    record = None if mark.record is None else {"offset": mark.record.offset, "crc": mark.record.crc}
    fields = {"topicId": mark.topic_id, "directory": mark.directory, "record": record, "first": entry.first}
    return {"offset": entry.offset, **{name: value for name, value in fields.items() if value is not None}}


def parse_offsets(found: Mapping[str, Any]) -> dict[str, StreamOffset]:
    """Return the offsets in the JSON of a checkpoint.

    Raises:
        UsageError: another source wrote the checkpoint, or a later version of this one.
    """
    try:
        return {name: _parse_entry(entry) for name, entry in found.items()}
    except (TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            "the checkpoint of the query has offsets that kafka-log cannot read",
            advice="give the checkpointLocation of a query of kafka-log, or a new one",
        ) from error


def _parse_entry(entry: Any) -> StreamOffset:
    if isinstance(entry, int):
        return StreamOffset(entry)
    fields = dict(entry)
    record = fields.get("record")
    mark = LogMark(
        topic_id=fields.get("topicId"),
        directory=fields.get("directory"),
        record=None if record is None else RecordMark(record["offset"], record["crc"]),
    )
    return StreamOffset(_number(fields["offset"]), mark, fields.get("first"))


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(value)
    return value
