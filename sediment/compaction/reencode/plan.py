"""The requested encoding, the tasks of a partition, and their results.

Every segment gets a task, because only the headers in a segment show whether a batch will change.  The bound is the
last stable offset.  Batches that end at or above the bound are not changed.

Invariant: a task needs only its segment, so tasks may run anywhere and in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.compaction.config import CompactionConfig
from sediment.compaction.prepared_swap import CleanedGroup
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.layout import (
    BATCH_HEADER_BYTES,
    CODEC_GZIP,
    CODEC_LZ4,
    CODEC_NAMES,
    CODEC_ZSTD,
    GZIP_LEVELS,
    INT64_MAX,
    LZ4_LEVELS,
    ZSTD_LEVELS,
)
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.listing import SegmentRef

if TYPE_CHECKING:
    from sediment.segment_io.partition.log_view import LogView

_LEVELS = {CODEC_GZIP: GZIP_LEVELS, CODEC_LZ4: LZ4_LEVELS, CODEC_ZSTD: ZSTD_LEVELS}


@dataclass(frozen=True, slots=True)
class Encoding:
    codec: int | None = None
    """The codec.  If it is None, each batch keeps its codec, and only batches with the same codec are merged."""

    level: int | None = None
    """The codec's level, as in Kafka's `compression.<codec>.level`.  None means Kafka's default level."""

    batch_bytes: int | None = None
    """Neighbouring batches are merged up to this many uncompressed bytes.  If it is None, no batches are merged."""

    @property
    def codec_name(self) -> str | None:
        return None if self.codec is None else CODEC_NAMES[self.codec]

    def __post_init__(self) -> None:
        if self.codec is None and self.batch_bytes is None:
            raise UsageError("no new encoding is requested; give a codec or a batch size")
        if self.level is not None:
            levels = _LEVELS.get(-1 if self.codec is None else self.codec)
            if levels is None:
                named = "no codec" if self.codec is None else CODEC_NAMES[self.codec]
                raise UsageError(f"{named} has no levels; give a level with gzip, lz4 or zstd")
            if self.level not in levels:
                raise UsageError(
                    f"level {self.level} is outside {levels.start} to {levels.stop - 1}; give a level of the codec"
                )
        if self.batch_bytes is not None and self.batch_bytes <= BATCH_HEADER_BYTES:
            raise UsageError(f"a batch of {self.batch_bytes} bytes cannot contain a record; give a larger batch size")


@dataclass(frozen=True, slots=True)
class ReencodeTask:
    """`end_offset` is the base offset of the next segment, or INT64_MAX for the active segment."""

    partition: TopicPartition
    directory: Path
    segment: SegmentRef
    end_offset: int
    bound: int
    encoding: Encoding
    config: CompactionConfig


@dataclass(frozen=True, slots=True)
class ReencodeStats:
    batches_before: int = 0
    batches_after: int = 0
    batches_encoded: int = 0


@dataclass(frozen=True, slots=True)
class ReencodedSegment:
    group: CleanedGroup
    stats: ReencodeStats


def plan_reencode(view: LogView, encoding: Encoding, config: CompactionConfig) -> tuple[ReencodeTask, ...]:
    listing, bound = view.listing, view.last_stable_offset
    ends = [*(segment.base_offset for segment in listing.segments), INT64_MAX][1:]
    return tuple(
        ReencodeTask(listing.partition, listing.path, segment, end_offset, bound, encoding, config)
        for segment, end_offset in zip(listing.segments, ends, strict=True)
        if segment.base_offset < bound and segment.log_bytes
    )
