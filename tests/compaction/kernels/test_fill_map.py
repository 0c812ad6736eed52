import numpy as np

from sediment.compaction.kernels.fill_map import start_position
from sediment.segment_io.format.offset_index import OffsetIndex


def test_the_map_is_filled_from_the_indexed_batch_at_or_below_the_first_dirty_offset():
    index = OffsetIndex(100, np.array([9, 19]), np.array([4100, 8300]))
    assert [start_position(index, first_dirty) for first_dirty in (100, 108, 109, 118, 119, 500)] == [
        0,
        0,
        4100,
        4100,
        8300,
        8300,
    ]
