"""Orphan indexes: indexes without a log, which a start removes (kafka-log 05 §2 pass 4)."""

from __future__ import annotations

import re
from collections.abc import Collection

from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name

_LEADING_OFFSET = re.compile(r"([0-9]+)\.")
_INDEX_KINDS = (SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX, SegmentFileKind.TRANSACTION_INDEX)


def leading_offset(name: str) -> int:
    """Return the number before the first dot of a name, as Kafka parses it; -1 if there is none."""
    match = _LEADING_OFFSET.match(name)
    offset = int(match[1]) if match else -1
    return offset if offset <= INT64_MAX else -1


def is_orphan(name: str, live: Collection[str]) -> bool:
    """Return True for an index without a log; its name may have any number of digits."""
    offset = leading_offset(name)
    is_index = offset >= 0 and name.removeprefix(name.partition(".")[0]) in _INDEX_KINDS
    return is_index and segment_file_name(offset, SegmentFileKind.LOG) not in live
