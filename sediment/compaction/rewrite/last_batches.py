"""The last batches of each producer; a broker keeps these in memory after it has loaded a segment."""

from __future__ import annotations

import numpy as np

from sediment.compaction.rewrite.verdicts import Int64s
from sediment.segment_io.partition.producer_replay import REMEMBERED_BATCHES
from sediment.segment_io.segment.reader import Rows


def with_last_of_producers(before: Int64s, rows: Rows) -> Int64s:
    """Append `rows` to `before`; return (producer id, position) of the last five batches of each producer.

    `before`, int64[n, 2], is an earlier result; `rows` are data batches of producers.
    """
    if not rows.size:
        return before
    every = np.concatenate([before, np.stack([rows["producer_id"], rows["position"]], axis=1)])
    every = every[np.argsort(every[:, 0], kind="stable")]
    ends = np.searchsorted(every[:, 0], every[:, 0], side="right")
    return every[ends - np.arange(len(every)) <= REMEMBERED_BATCHES]
