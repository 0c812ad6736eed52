"""The copy of a live log into its future log, which will replace the live log in another log directory.

The future log's high watermark and log start follow those of the live log, and never exceed them.

Source: Kafka's ReplicaAlterLogDirsThread.processPartitionData, Partition.appendRecordsToFollowerOrFutureReplica.
"""

from __future__ import annotations

from sediment.engine.live.log.partition_log import PartitionLog
from sediment.segment_io.errors import OffsetOutOfRangeError, UnexpectedAppendOffsetError
from sediment.segment_io.format.layout import INT32_MAX

CHUNK_BYTES = 1 << 20
"""The largest number of bytes that are copied at once, unless a single batch is larger."""

_ANY_EPOCH = INT32_MAX
_OFFSET_BYTES = 8
_ONE_BATCH = 1


def copy_next(current: PartitionLog, future: PartitionLog, max_bytes: int = CHUNK_BYTES) -> int:
    """Append the next batches of `current` to `future`; return their size in bytes, 0 if `future` has all batches.

    At most `max_bytes` are copied, but at least one batch.
    """
    most = min(max_bytes, current.config.compaction.segment_bytes)
    while True:
        try:
            return _copy(current, future, most)
        except OffsetOutOfRangeError:
            continue  # the log start has risen after it was read
        except UnexpectedAppendOffsetError:
            if most == _ONE_BATCH:
                raise
            most = _ONE_BATCH  # the batches span too many offsets for one segment


def copy_rest(current: PartitionLog, future: PartitionLog) -> None:
    """Copy until `future` has every batch; if the lock of `current` is not held, other threads may append more."""
    while copy_next(current, future):
        pass


def _copy(current: PartitionLog, future: PartitionLog, max_bytes: int) -> int:
    start, end = current.log_start_offset, current.log_end_offset
    position = max(future.log_end_offset, start)
    if position == end:
        if future.log_end_offset < end:
            future.truncate_fully_and_start_at(end)
        _follow(current, future)
        return 0
    data = current.read(position, max_bytes, min_one_message=True).read()
    if not data:
        future.skip_to(end)  # compaction has removed the last records
        _follow(current, future)
        return 0
    if future.log_end_offset < start:
        # The first batch may begin below the log start.
        first_offset = int.from_bytes(data[:_OFFSET_BYTES], "big", signed=True)
        future.truncate_fully_and_start_at(min(first_offset, start))
    copied = future.append_as_follower(data, _ANY_EPOCH)
    _follow(current, future)
    return copied.appended_bytes


def _follow(current: PartitionLog, future: PartitionLog) -> None:
    future.update_high_watermark(current.high_watermark)
    future.maybe_increment_log_start_offset(min(current.log_start_offset, future.high_watermark))
