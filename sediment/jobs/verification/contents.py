"""Properties of the records in a batch: their order, their range and their largest timestamp.

If a cleaner rebuilds a batch, the header must match the records.

Invariants: batches are found by their position in the file; an unreadable batch has no properties; memory is one chunk
and one table of records.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sediment.segment_io.segment.columns import WANT_VALUE, RecordTable, readable_tables
from sediment.segment_io.segment.reader import HeaderScan

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchContents:
    """Arrays with one value for each batch; for a batch without records only `known` and `attributes` have a meaning.

    `known`: bool, the batch was read.  `attributes`: int64, the header field.  `first_record`, `last_record`: int64,
    lowest and highest offset.  `largest_ms`: int64, largest timestamp, -1 without.  `descending`: bool, an offset is
    not above the offset before it.  `null_value`: bool, some record has no value.
    """

    known: npt.NDArray[np.bool_]
    attributes: Longs
    first_record: Longs
    last_record: Longs
    largest_ms: Longs
    descending: npt.NDArray[np.bool_]
    null_value: npt.NDArray[np.bool_]

    @staticmethod
    def unknown(count: int) -> BatchContents:
        """Return arrays for `count` batches of which nothing is known."""
        known, descending, null_value = np.zeros((3, count), dtype=np.bool_)
        attributes, first_record, last_record, largest_ms = np.zeros((4, count), dtype=np.int64)
        return BatchContents(known, attributes, first_record, last_record, largest_ms, descending, null_value)


def read_contents(path: Path, positions: Longs, sizes: Longs, readable: npt.NDArray[np.bool_]) -> BatchContents:
    """Read the records of the `readable` batches at the ascending `positions`, each `sizes` bytes long.

    Raises:
        SedimentError, OSError: the file changed.
    """
    contents = BatchContents.unknown(len(positions))
    wanted = np.flatnonzero(readable)
    ends = positions + sizes
    apart = np.flatnonzero(positions[wanted[1:]] != ends[wanted[:-1]]) + 1
    for run in np.split(wanted, apart):
        if len(run):
            spans = HeaderScan(path, int(positions[run[0]]), size_bytes=int(ends[run[-1]])).spans()
            for table in readable_tables(spans, WANT_VALUE):
                _describe(table, contents, np.searchsorted(positions, table.headers["position"]))
    return contents


def _describe(table: RecordTable, contents: BatchContents, slots: Any) -> None:
    """Fill in the batches of `table`, which have the indexes `slots` in `contents`."""
    contents.known[slots] = True
    contents.attributes[slots] = table.headers["attributes"]
    filled = table.counts > 0
    if not filled.any():
        return
    slots, starts = slots[filled], (np.cumsum(table.counts) - table.counts)[filled]
    offsets = table.offsets()
    contents.first_record[slots] = np.minimum.reduceat(offsets, starts)
    contents.last_record[slots] = np.maximum.reduceat(offsets, starts)
    contents.largest_ms[slots] = np.maximum.reduceat(table.timestamps_us(), starts) // 1000
    contents.null_value[slots] = np.logical_or.reduceat(table.values().is_null().to_numpy(zero_copy_only=False), starts)
    falls = np.concatenate([[False], np.diff(offsets) <= 0])
    falls[starts] = False
    contents.descending[slots] = np.logical_or.reduceat(falls, starts)
