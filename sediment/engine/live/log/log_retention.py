"""Deletion of records from a live log, by a request or by retention (kafka-log 03 §2, §3, §5).

`log_manager` runs retention for logs that are not compacted, and `log_cleaner` for the others.

    new log start         it must not be above the high watermark; if it is not above the old one, nothing changes
    other state           `LocalLog.start_at` adapts recovery point, leader epochs and ended transactions
    DeleteRecords         -1 means the high watermark; internal topics and `compact` without `delete` are refused
    all segments expire   `log_roll.roll` runs before the deletion, so an empty segment remains
    last stable offset    segments with records at or above it are kept
"""

from __future__ import annotations

from dataclasses import replace

from sediment.engine.live.log.local_log import LocalLog
from sediment.engine.live.log.log_reader import last_stable_offset
from sediment.engine.live.log.log_roll import roll
from sediment.retention.policy import RetentionConfig, plan_retention
from sediment.segment_io.errors import InvalidTopicError, OffsetOutOfRangeError, PolicyViolationError
from sediment.segment_io.format.names import INTERNAL_TOPICS

HIGH_WATERMARK = -1
"""The offset in a DeleteRecords request that means the high watermark."""


def maybe_increment_log_start_offset(log: LocalLog, offset: int) -> bool:
    with log.locked():
        if offset > log.offsets.high_watermark:
            raise OffsetOutOfRangeError(
                f"the log cannot start at {offset}, above its high watermark {log.offsets.high_watermark}",
                partition=str(log.partition),
                offset=offset,
            )
        with log.changing_files():
            return log.start_at(offset)


def delete_records(log: LocalLog, before_offset: int) -> int:
    if log.partition.topic in INTERNAL_TOPICS:
        raise InvalidTopicError("records of an internal topic cannot be deleted", partition=str(log.partition))
    with log.locked():
        if log.config.compacts and not log.config.retention.deletes:
            raise PolicyViolationError(
                "records of a topic that is only compacted cannot be deleted",
                partition=str(log.partition),
                advice="write tombstones, or add delete to its cleanup.policy",
            )
        offset = log.offsets.high_watermark if before_offset == HIGH_WATERMARK else before_offset
        if offset < 0:
            raise log.out_of_range(offset)
        maybe_increment_log_start_offset(log, offset)
        return log.offsets.log_start


def delete_old_segments(log: LocalLog) -> int:
    """Segments with offsets at or above the last stable offset are kept.

    Kafka would also delete these segments. A consumer would then miss the first records of a transaction that is
    committed later.
    """
    with log.locked():  # so that the limits are not replaced before they are used
        return _delete(log, log.config.retention)


def delete_segments_below_log_start(log: LocalLog) -> int:
    with log.locked():
        return _delete(log, replace(log.config.retention, cleanup_policy=()))


def _delete(log: LocalLog, config: RetentionConfig) -> int:
    plan = plan_retention(
        log.segments.states(),
        config,
        log_start_offset=log.offsets.log_start,
        high_watermark=last_stable_offset(log),
        log_end_offset=log.offsets.log_end,
        now_ms=log.clock(),
    )
    expired = [decision.segment.base_offset for decision in plan.deleted]
    if not expired and not plan.rolls_active:
        return 0
    with log.changing_files():
        if plan.rolls_active:
            roll(log, 0)
        if expired:
            log.start_at(plan.log_start_offset)
            log.remove_segments(expired)
    return len(expired)
