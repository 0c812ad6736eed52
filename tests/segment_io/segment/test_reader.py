"""Rows of several chunks, as one table."""

import numpy as np
import pytest

from sediment.segment_io.format.batch_headers import BATCH_ROW
from sediment.segment_io.segment.reader import joined


def rows(first: int, count: int, dtype: np.dtype = BATCH_ROW):
    made = np.zeros(count, dtype=BATCH_ROW)
    for at, name in enumerate(BATCH_ROW.names):
        made[name] = np.arange(first + at, first + at + count)
    return made if dtype == BATCH_ROW else made[list(dtype.names)]


@pytest.mark.parametrize("names", [BATCH_ROW.names, ("producer_id", "base_offset", "control_type")])
def test_joined_rows_are_the_rows_of_all_parts_in_order(names):
    dtype = BATCH_ROW[list(names)]
    parts = [rows(0, 3, dtype), rows(50, 0, dtype), rows(7, 8, dtype)[::2], rows(90, 1, dtype)]
    found = joined(parts)
    assert found.dtype.names == names
    assert found.tolist() == [row for part in parts for row in part.tolist()]
    assert not any(np.shares_memory(found, part) for part in parts)
