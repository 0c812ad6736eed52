"""Rows of tables as plain values, for text outputs.

timestamps                     ms since the epoch
bytes                          text if they are UTF-8 without control characters, else {"hex": …}
records of internal topics     decoded, as Kafka's own tools print them
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sediment.segment_io.errors import CorruptBatchError, UnsupportedDataError
from sediment.segment_io.internal_topics.coordinator_records import (
    COORDINATOR_TOPICS,
    decode_control_record,
    decode_coordinator_record,
)
from sediment.segment_io.internal_topics.metadata_records import METADATA_TOPICS, metadata_record_json
from sediment.segment_io.printable import printable_json

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS_FOR_DECODING = ("key", "topic", "control")
"""Columns of `records` without which `decoded` cannot decode a record."""


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns]
    times = [field.name for field in batch.schema if pa.types.is_timestamp(field.type)]
    for row in pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist():
        for name in times:
            row[name] = None if row[name] is None else row[name] // 1000
        yield row


def plain_row(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    known = decoded(row)
    return {name: known[name] if name in known else _plain_value(row[name]) for name in names}


def _plain_value(value: Any) -> Any:
    if isinstance(value, bytes):
        text = text_of(value)
        return {"hex": value.hex()} if text is None else text
    if isinstance(value, list):
        return [{name: _plain_value(part) for name, part in pair.items()} for pair in value]
    return value


def decoded(row: Mapping[str, Any]) -> dict[str, Any]:
    if any(name not in row for name in COLUMNS_FOR_DECODING):
        return {}
    key, value = row["key"], row.get("value")
    if row["control"]:
        marker = decode_control_record(key, value)
        return {} if marker is None else {"key": marker, "value": None}
    if row["topic"] in COORDINATOR_TOPICS:
        record = decode_coordinator_record(row["topic"], key, value)
        return {} if record is None else {"key": record.key_json(), "value": record.value_json()}
    if row["topic"] in METADATA_TOPICS and value is not None:
        with contextlib.suppress(UnsupportedDataError, CorruptBatchError):
            return {"value": metadata_record_json(value, row["topic"])}
    return {}


def text_of(value: bytes) -> str | None:
    """Return `value` as text if it is UTF-8 without characters that a terminal interprets, else None."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if all(character.isprintable() or character in "\t\n\r" for character in text) else None


def json_text(value: Any) -> str:
    return printable_json(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
