"""Orphan indexes: indexes without a log, which a start removes (kafka-log 05 §2 pass 4).

`interrupted_swaps.finish_interrupted` deletes them.
"""

from __future__ import annotations

from collections.abc import Collection

from sediment.segment_io.format.names import SegmentFileKind, leading_offset, segment_file_name

_INDEX_KINDS = (SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX, SegmentFileKind.TRANSACTION_INDEX)


def is_orphan(name: str, live: Collection[str]) -> bool:
    """Return True for an index without a log; its name may have any number of digits."""
    offset = leading_offset(name)
    is_index = offset >= 0 and name.removeprefix(name.partition(".")[0]) in _INDEX_KINDS
    return is_index and segment_file_name(offset, SegmentFileKind.LOG) not in live
