"""The rows of a dump for Python."""

from __future__ import annotations

import html
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sediment.jobs.dumping.plain_rows import rows_of
from sediment.jobs.dumping.row_query import RowQuery, unreadable_text
from sediment.jobs.reporting.run_report import Result
from sediment.segment_io.fs import Fs
from sediment.segment_io.tables.planning import UnreadableRange
from sediment.segment_io.tables.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

_LOGGER = logging.getLogger(__name__)

_HEAD_ROWS = 20


class TableDump(Result):
    """Rows of one table, read from a log's files; each use reads the files again.

    Any library that reads Arrow streams can read a dump: `polars.DataFrame(dump)`,
    `duckdb.from_arrow(dump.to_reader())`.  A row is a dict; its timestamps are ms since the epoch.
    """

    def __init__(self, query: RowQuery, limit: int | None) -> None:
        self._query = query
        self._limit = limit

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return arrow_schema(self._query.request.selected())

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a `pyarrow.RecordBatchReader`, which keeps one batch at a time in memory."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def to_arrow(self) -> pa.Table:
        """Return the rows as a `pyarrow.Table`.

        Raises:
            SedimentError: a file cannot be read.
        """
        import pyarrow as pa

        return pa.Table.from_batches(self._batches(), self.schema)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._batches():
            yield from rows_of(batch)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<TableDump of {self._query.request.what}: {', '.join(self.schema.names)}>"

    def _repr_html_(self) -> str:
        head = TableDump(self._query, min(self._limit or _HEAD_ROWS, _HEAD_ROWS)).to_pandas()
        return f"<p>{html.escape(self._query.request.what)}: the first {len(head)} rows</p>{head.to_html()}"

    def _batches(self) -> Iterator[pa.RecordBatch]:
        left = self._limit
        unreadable: list[UnreadableRange] = []
        for batch in self._query.batches(Fs(), unreadable.append):
            rows = batch if left is None else batch.slice(0, left)
            yield rows
            left = None if left is None else left - rows.num_rows
            if left == 0:
                break
        if unreadable:
            _LOGGER.warning("%s", unreadable_text(unreadable))
