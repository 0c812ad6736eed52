"""Checks of index files: entries are whole and ascend, and no offset is below the base offset (kafka-log 01 §7).

    offset index             checked by `offset_index.parse_offset_index`, whenever it is parsed
    time index               checked by `time_index.parse_time_index`, whenever it is parsed
    transaction index        checked by `check_last_offsets`, which a load calls

After a clean stop, a load trusts offset and time indexes, so garbage in them is not found (`loading.log_recovery`).

In an offset or time index, an offset below the base offset would be stored as a negative number.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import CorruptIndexError
from sediment.segment_io.format.layout import TRANSACTION_ENTRY_BYTES

Int64s = npt.NDArray[np.int64]

_REBUILD_ADVICE = "delete the index; it is rebuilt from the log"


def whole_entries(
    data: Buffer, dtype: np.dtype[np.void], *, path: str | None, preallocated: bool
) -> npt.NDArray[np.void]:
    view = memoryview(data).cast("B")
    count, trailing = divmod(len(view), dtype.itemsize)
    if trailing and not preallocated:
        raise CorruptIndexError(
            f"index of {len(view)} bytes is not a multiple of {dtype.itemsize} bytes",
            path=path,
            position=count * dtype.itemsize,
            advice=_REBUILD_ADVICE,
        )
    entries = np.frombuffer(view, dtype=dtype, count=count)
    if preallocated:
        written = np.frombuffer(view, dtype=np.uint8, count=count * dtype.itemsize).nonzero()[0]
        entries = entries[: int(written[-1]) // dtype.itemsize + 1 if len(written) else 0]
    return entries


def ascending_entries(
    good: npt.NDArray[np.bool_], entry_bytes: int, base_offset: int, *, path: str | None, preallocated: bool
) -> int:
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
        advice=_REBUILD_ADVICE,
    )


def check_last_offsets(last_offsets: Int64s, base_offset: int, *, path: str | None = None) -> None:
    """Check the entries of a transaction index: Kafka's TransactionIndex.sanityCheck.

    Raises:
        CorruptIndexError: an entry ends below the segment's base offset.

    Source: kafka-log 01 §7.4, 05 §2 pass 4.
    """
    below = last_offsets < base_offset
    if below.any():
        slot = int(below.argmax())
        raise CorruptIndexError(
            f"aborted transaction ends at offset {int(last_offsets[slot])}, below base offset {base_offset}",
            path=path,
            position=slot * TRANSACTION_ENTRY_BYTES,
            advice=_REBUILD_ADVICE,
        )
