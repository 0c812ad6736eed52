"""An estimate of the log after a cleaning, from a sample of its records.

The number of different keys is estimated with the hybrid estimator of Haas and others.

Source: Haas, Naughton, Seshadri, Stokes: Sampling-based estimation of the number of distinct values of an attribute,
VLDB 1995; for the parts of a batch that are kept, kafka-log 02 §6.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sediment.compaction.config import CompactionConfig
from sediment.compaction.kernels.delete_horizon import next_horizon_ms
from sediment.segment_io.errors import CorruptDataError
from sediment.segment_io.format.batch_headers import BATCH_ROW
from sediment.segment_io.format.layout import BATCH_HEADER_BYTES, CONTROL_BIT
from sediment.segment_io.format.timestamps import have_delete_horizon
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.partition.sample import sampled_batches
from sediment.segment_io.segment.columns import WANT_KEY, WANT_VALUE, readable_tables
from sediment.segment_io.segment.reader import BatchSpan

if TYPE_CHECKING:
    import pyarrow as pa

Int64s = npt.NDArray[np.int64]

_NORMAL_QUANTILE = 1.96


@dataclass(frozen=True, slots=True)
class SampledBatches:
    """`records`, `keyed` and `tombstones` count records; `keyed` and `tombstones` leave out control batches.

    `key_counts` is the number of occurrences of each key; `key_bytes` is the total size of the different keys.
    """

    rows: npt.NDArray[np.void]
    records: Int64s
    keyed: Int64s
    tombstones: Int64s
    key_counts: Int64s
    key_bytes: int = 0

    def without_key(self) -> Int64s:
        is_control = (self.rows["attributes"] & CONTROL_BIT) != 0
        return np.where(is_control, 0, self.records - self.keyed)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The expected log after cleaning, estimated from `sampled_bytes` of it; `key_bytes` is the size of all keys.

    `tombstones_waiting` counts the tombstones that are kept.  They expire between `first_horizon_ms` and
    `last_horizon_ms`.  If none of their batches has a delete horizon after cleaning, both are None.
    """

    keys: int
    messages: int
    log_bytes: int
    tombstones_waiting: int
    first_horizon_ms: int | None
    last_horizon_ms: int | None
    sampled_bytes: int
    key_bytes: int = 0
    messages_read: int = 0
    records_without_key: int = 0
    tombstones_expired: int = 0


def estimate_segments(
    directory: Path,
    segments: Sequence[SegmentRef],
    config: CompactionConfig,
    fs: Fs,
    *,
    now_ms: int,
    sample_bytes: int,
) -> Estimate:
    sample = collect_sample(sampled_batches(directory, segments, fs, budget_bytes=sample_bytes))
    log_bytes = sum(segment.log_bytes for segment in segments)
    return estimate_cleaning(
        sample, log_bytes, now_ms=now_ms, horizon_ms=next_horizon_ms(config.delete_retention_ms, now_ms)
    )


@dataclass(frozen=True, slots=True)
class UncleanedRecords:
    records_without_key: int
    tombstones: int
    sampled_bytes: int


def estimate_uncleaned(
    directory: Path, segments: Sequence[SegmentRef], fs: Fs, *, sample_bytes: int
) -> UncleanedRecords:
    """Estimate the records of `segments` that a cleaning treats specially; what cannot be read is left out.

    `segments` may contain the active segment, whose last batch may be incomplete.
    """
    sample = collect_sample(_readable(sampled_batches(directory, segments, fs, budget_bytes=sample_bytes)))
    log_bytes, sampled_bytes = sum(segment.log_bytes for segment in segments), int(sample.rows["size_bytes"].sum())
    scale = log_bytes / sampled_bytes if log_bytes > sample_bytes and sampled_bytes else 1.0
    return UncleanedRecords(
        round(float(sample.without_key().sum()) * scale),
        round(float(sample.tombstones.sum()) * scale),
        sampled_bytes,
    )


def _readable(spans: Iterable[BatchSpan]) -> Iterator[BatchSpan]:
    with suppress(CorruptDataError):
        yield from spans


def collect_sample(spans: Iterable[BatchSpan]) -> SampledBatches:
    tables = list(readable_tables(spans, WANT_KEY | WANT_VALUE))
    if not tables:
        nothing = np.zeros(0, dtype=np.int64)
        return SampledBatches(np.zeros(0, dtype=BATCH_ROW), nothing, nothing, nothing, nothing)
    keyed, tombstones, keys = [], [], []
    for table in tables:
        is_control = (table.per_batch("attributes").astype(np.int64) & CONTROL_BIT) != 0
        has_key = table.has_key() & ~is_control
        is_deleted = has_key & ~table.has_value()
        of_batch = np.repeat(np.arange(len(table.headers)), table.counts)
        keyed.append(np.bincount(of_batch[has_key], minlength=len(table.headers)))
        tombstones.append(np.bincount(of_batch[is_deleted], minlength=len(table.headers)))
        keys.append((table.keys(), has_key))
    key_counts, key_bytes = _count_keys(keys)
    return SampledBatches(
        rows=np.concatenate([table.headers for table in tables]),
        records=np.concatenate([table.counts for table in tables]),
        keyed=np.concatenate(keyed),
        tombstones=np.concatenate(tombstones),
        key_counts=key_counts,
        key_bytes=key_bytes,
    )


def _count_keys(keys: Sequence[tuple[pa.Array, npt.NDArray[np.bool_]]]) -> tuple[Int64s, int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = []
    for array, mask in keys:
        # The buffers are shared with NumPy directly, because `pyarrow.array` and `to_numpy` would import pandas.
        bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
        chunks.append(array.filter(pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits])))
    different = pa.chunked_array(chunks).value_counts()
    counts = different.field("counts")
    found = np.frombuffer(counts.buffers()[1], dtype=np.int64, count=len(counts)) if len(counts) else np.zeros(0)
    return found.astype(np.int64), pc.sum(pc.binary_length(different.field("values"))).as_py() or 0


def estimate_distinct(counts: Int64s, total: float) -> float:
    seen = float(counts.sum())
    if seen == 0 or seen >= total:
        return float(counts.size)
    part = seen / total
    times, keys = np.unique(counts, return_counts=True)
    once = float(keys[times == 1].sum())
    # A chi-square test of the sample shows whether keys are about equally frequent.  If they are, the first-order
    # jackknife is used.  Otherwise, Shlosser's estimator is used.  Both are exact if the sample is the whole log.  The
    # jackknife is also exact if no key occurs twice, or if every key occurs many times.
    if _is_skewed(counts):
        missed = ((1 - part) ** times * keys).sum()
        found = counts.size + once * float(missed) / float((times * part * (1 - part) ** (times - 1) * keys).sum())
    else:
        found = counts.size / (1 - (1 - part) * once / seen)
    return min(max(found, float(counts.size)), total)


def _is_skewed(counts: Int64s) -> bool:
    freedom = counts.size - 1
    if freedom < 1:
        return False
    mean = counts.sum() / counts.size
    distance = float(((counts - mean) ** 2).sum() / mean)
    # Wilson and Hilferty's approximation of the quantile.
    spread = 2 / (9 * freedom)
    return distance > float(freedom * (1 - spread + _NORMAL_QUANTILE * spread**0.5) ** 3)


def estimate_cleaning(sample: SampledBatches, log_bytes: int, *, now_ms: int, horizon_ms: int | None) -> Estimate:
    """Estimate the result of cleaning a log of `log_bytes`, from a `sample` spread evenly over the log.

    `horizon_ms` is the delete horizon that cleaning writes into batches without a horizon; None if it writes none.
    """
    rows = sample.rows
    sampled_bytes = int(rows["size_bytes"].sum())
    if sampled_bytes == 0:
        return Estimate(0, 0, log_bytes, 0, None, None, 0)
    scale = log_bytes / sampled_bytes
    keyed = float(sample.keyed.sum()) * scale
    keys = estimate_distinct(sample.key_counts, keyed)
    survival_rate = keys / keyed if keyed else 0.0

    control = (rows["attributes"] & CONTROL_BIT) != 0
    has_horizon = have_delete_horizon(rows)
    waiting = (sample.tombstones > 0) & (~has_horizon | (rows["base_timestamp"] > now_ms))
    horizons_ms = rows["base_timestamp"][waiting & has_horizon]
    if horizon_ms is not None:
        horizons_ms = np.append(horizons_ms, np.full((waiting & ~has_horizon).sum(), horizon_ms, dtype=np.int64))
    expired = np.where(waiting, 0, sample.tombstones)
    survivors = np.where(control, sample.records, np.maximum(sample.keyed - expired, 0) * survival_rate)
    payload_bytes = np.maximum(rows["size_bytes"] - BATCH_HEADER_BYTES, 0)
    kept_part = np.divide(survivors, sample.records, out=np.zeros(len(rows)), where=sample.records > 0)
    # A batch keeps its header if at least one of its records survives.
    kept_header = np.where(control, 1.0, 1.0 - (1.0 - survival_rate) ** np.maximum(sample.keyed - expired, 0))
    left_bytes = float((payload_bytes * kept_part + BATCH_HEADER_BYTES * kept_header).sum()) * scale
    return Estimate(
        keys=round(keys),
        messages=round(float(survivors.sum()) * scale),
        log_bytes=min(round(left_bytes), log_bytes),
        tombstones_waiting=round(float(sample.tombstones[waiting].sum()) * scale * survival_rate),
        first_horizon_ms=int(horizons_ms.min()) if horizons_ms.size else None,
        last_horizon_ms=int(horizons_ms.max()) if horizons_ms.size else None,
        sampled_bytes=sampled_bytes,
        key_bytes=round(keys * sample.key_bytes / max(sample.key_counts.size, 1)),
        messages_read=round(float(sample.records.sum()) * scale),
        records_without_key=round(float(sample.without_key().sum()) * scale),
        tombstones_expired=round(float(expired.sum()) * scale * survival_rate),
    )
