"""Checks of offset and time indexes: entries must be whole, and must ascend (kafka-log 01 §7).

The checks include that of Kafka's sanityCheck: no offset is below the base offset.  Such an offset would be stored as a
negative number.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import CorruptIndexError

Int64s = npt.NDArray[np.int64]

REBUILD_ADVICE = "delete the index; it is rebuilt from the log"


def whole_entries(
    data: Buffer, dtype: np.dtype[np.void], *, path: str | None, preallocated: bool
) -> npt.NDArray[np.void]:
    """Return the complete entries of an index file, without the zero tail of a preallocated file."""
    view = memoryview(data).cast("B")
    count, trailing = divmod(len(view), dtype.itemsize)
    if trailing and not preallocated:
        raise CorruptIndexError(
            f"index of {len(view)} bytes is not a multiple of {dtype.itemsize} bytes",
            path=path,
            position=count * dtype.itemsize,
            advice=REBUILD_ADVICE,
        )
    entries = np.frombuffer(view, dtype=dtype, count=count)
    if preallocated:
        written = np.frombuffer(view, dtype=np.uint8, count=count * dtype.itemsize).nonzero()[0]
        entries = entries[: int(written[-1]) // dtype.itemsize + 1 if len(written) else 0]
    return entries


def ascending_entries(
    good: npt.NDArray[np.bool_], entry_bytes: int, base_offset: int, *, path: str | None, preallocated: bool
) -> int:
    """Return the number of entries before the first entry for which `good` is False."""
    if good.all():
        return len(good)
    first_bad = int(good.argmin())
    if preallocated:
        return first_bad
    raise CorruptIndexError(
        f"index entry {first_bad} is negative or does not follow the entry before it",
        path=path,
        position=first_bad * entry_bytes,
        offset=base_offset,
        advice=REBUILD_ADVICE,
    )
