"""A table of verdicts in Parquet, Delta or CSV.

    topic, partition, offset    the record
    action                      drop, tombstone or replace; null or no column: the action of the run
    value                       for replace: the new value; null or no column: the bytes of --replacement
    key                         for replace: the new key, in place of a new value

Columns with bytes may be binary, or text in UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sediment.compaction.rewrite.verdicts import Action, Verdict, Verdicts
from sediment.jobs.delta_lake.paths import is_delta_table
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

DROP, TOMBSTONE, REPLACE = "drop", "tombstone", "replace"
ACTIONS = (DROP, TOMBSTONE, REPLACE)

_OF_RECORD = ("topic", "partition", "offset")
_OPTIONAL = ("action", "key", "value")
_ACTIONS = {DROP: Action.DROP, TOMBSTONE: Action.TOMBSTONE, REPLACE: Action.REPLACE_VALUE}


@dataclass(frozen=True, slots=True)
class GivenVerdict:
    """One row; if `action` is None, the action of the run applies."""

    offset: int
    action: str | None
    key: bytes | None
    value: bytes | None


def action_of(name: str) -> Action:
    """Return the action that one of ACTIONS names; the name `replace` means that the value is replaced, not the key."""
    return _ACTIONS[name]


def uniform_verdicts(offsets: np.ndarray[Any, np.dtype[np.int64]], action: str, replacement: bytes) -> Verdicts:
    return Verdicts.uniform(offsets, _ACTIONS[action], replacement if action == REPLACE else b"")


def verdicts_of(rows: Iterable[GivenVerdict], action: str | None, replacement: bytes | None) -> Verdicts | None:
    """Return the verdicts of a partition; `action` is the run's action, for rows without an action.

    Returns None if a row has no action and `action` is None.
    """
    verdicts = []
    for row in rows:
        asked = row.action or action
        if asked is None:
            return None
        verdicts.append(_verdict(row, asked, replacement))
    return Verdicts.of(verdicts)


def _verdict(row: GivenVerdict, action: str, replacement: bytes | None) -> Verdict:
    if action != REPLACE:
        return Verdict(row.offset, _ACTIONS[action])
    if row.key is not None:
        return Verdict(row.offset, Action.REPLACE_KEY, row.key)
    value = replacement if row.value is None else row.value
    if value is None:
        raise UsageError(
            "a row with the action replace has no new value",
            offset=row.offset,
            advice="add a column value, or give --replacement FILE",
        )
    return Verdict(row.offset, Action.REPLACE_VALUE, value)


def read_verdicts(path: str) -> Mapping[TopicPartition, tuple[GivenVerdict, ...]]:
    found: dict[TopicPartition, list[GivenVerdict]] = {}
    for batch in _batches(path):
        for row in batch.to_pylist():
            partition, verdict = _parse(row, path)
            found.setdefault(partition, []).append(verdict)
    if not found:
        raise UsageError("the table of verdicts has no rows", path=path, advice="name a table with rows")
    return {partition: tuple(rows) for partition, rows in found.items()}


def _batches(path: str) -> Iterable[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.dataset as ds

    try:
        dataset: Any
        if is_delta_table(path):
            from deltalake import DeltaTable

            dataset = DeltaTable(path).to_pyarrow_dataset()
        elif path.endswith(".csv"):
            text = {name: pa.string() for name in ("topic", *_OPTIONAL)}
            options = ds.CsvFileFormat(convert_options=_csv_options(text))
            dataset = ds.dataset(path, format=options)
        else:
            dataset = ds.dataset(path, format="parquet")
        names = dataset.schema.names
        missing = [name for name in _OF_RECORD if name not in names]
        if missing:
            raise UsageError(
                f"the table of verdicts has no column {missing[0]!r}",
                path=path,
                advice=f"give it the columns {', '.join(_OF_RECORD)}",
            )
        columns = [*_OF_RECORD, *(name for name in _OPTIONAL if name in names)]
        return list(dataset.to_batches(columns=columns))
    except (OSError, pa.ArrowException, ImportError) as error:
        # Report only the kind of the error, because its text may quote a row.
        raise UsageError(
            f"the table of verdicts cannot be read: {type(error).__name__}",
            path=path,
            advice="give a Delta table, a Parquet file or directory, or a file whose name ends in .csv",
        ) from None


def _csv_options(types: Mapping[str, Any]) -> Any:
    from pyarrow.csv import ConvertOptions

    return ConvertOptions(column_types=dict(types), strings_can_be_null=True)


def _parse(row: Mapping[str, Any], path: str) -> tuple[TopicPartition, GivenVerdict]:
    topic, number, offset = (row[name] for name in _OF_RECORD)
    are_numbers = type(number) is int and type(offset) is int and 0 <= offset <= INT64_MAX
    if not isinstance(topic, str) or not are_numbers:
        raise UsageError(
            "a verdict names no record",
            path=path,
            advice="write topic as text, and partition and offset as whole numbers",
        )
    action = row.get("action")
    partition = TopicPartition(topic, number)
    if action not in (None, *ACTIONS):
        raise UsageError(
            "a verdict has an unknown action",
            partition=str(partition),
            path=path,
            offset=offset,
            advice=f"write one of {', '.join(ACTIONS)}",
        )
    key, value = (_encoded(row.get(name)) for name in ("key", "value"))
    if not all(content is None or isinstance(content, bytes) for content in (key, value)):
        raise UsageError(
            "a verdict has a key or a value that is neither binary nor text",
            partition=str(partition),
            path=path,
            offset=offset,
            advice="cast the column to binary or to a string",
        )
    return partition, GivenVerdict(offset, action, key, value)


def _encoded(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value
