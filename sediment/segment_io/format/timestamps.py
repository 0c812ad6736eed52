"""The timestamps of the records in a batch of magic 2, and the delete horizon of the batch (kafka-log 01 §3.1, §3.2).

bit 3 clear    CreateTime: a record's timestamp is the base timestamp plus its delta
bit 3 set      LogAppendTime: every record has the largest timestamp of the header; the deltas are ignored
bit 6 set      the base timestamp is the delete horizon, which `compaction.kernels.delete_horizon` computes

The header also has the largest timestamp of the records.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import inlined_kernel, kernel
from sediment.segment_io.compiled.memory import load_i16, load_i64
from sediment.segment_io.format.layout import (
    ATTRIBUTES,
    BASE_TIMESTAMP,
    DELETE_HORIZON_BIT,
    MAGIC_V2,
    MAX_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
)


@kernel
def record_timestamp(attributes: int, base_timestamp: int, max_timestamp: int, delta: int) -> int:
    return max_timestamp if attributes & TIMESTAMP_TYPE_BIT else base_timestamp + delta


@kernel
def timestamp_in(header: int, delta: int) -> int:
    return record_timestamp(
        load_i16(header + ATTRIBUTES), load_i64(header + BASE_TIMESTAMP), load_i64(header + MAX_TIMESTAMP), delta
    )


@inlined_kernel
def has_delete_horizon(attributes: int) -> bool:
    return (attributes & DELETE_HORIZON_BIT) != 0


@inlined_kernel
def with_delete_horizon(attributes: int, has_horizon: bool) -> int:
    return attributes | DELETE_HORIZON_BIT if has_horizon else attributes & ~DELETE_HORIZON_BIT


def have_delete_horizon(rows: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (rows["attributes"] & DELETE_HORIZON_BIT != 0) & (rows["magic"] >= MAGIC_V2)
    return found


def delete_horizon_ms(magic: int, attributes: int, base_timestamp: int) -> int | None:
    return base_timestamp if magic >= MAGIC_V2 and attributes & DELETE_HORIZON_BIT else None
