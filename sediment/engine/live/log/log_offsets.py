"""The offsets of a live log as one value.

    log start        the first offset that may be read
    high watermark   all offsets below it are fully replicated
    recovery point   all offsets below it are durable; after records were deleted, it may be below the log start
    log end          the next offset to be assigned

The last stable offset is not stored: `log_reader` derives it from the open transactions in `producer_appends`.

    high watermark     `with_high_watermark` moves an offset into the log; `replicated_to` only raises the watermark
    truncation         `truncated_to` lowers each offset that is above the new end
    start raised       `started_at` also raises the recovery point; a start at or below the log start changes nothing

Invariants: log start ≤ high watermark ≤ log end, and recovery point ≤ log end.
"""

from __future__ import annotations

from typing import NamedTuple

from sediment.segment_io.errors import UsageError

_new_tuple = tuple.__new__  # each append makes a tuple, and the constructor of the class takes longer


class _Offsets(NamedTuple):
    log_start: int
    high_watermark: int
    recovery_point: int
    log_end: int


class LogOffsets(_Offsets):
    # Log start, high watermark, recovery point and log end of one log; offsets are absolute, and ends are exclusive.

    __slots__ = ()

    def __new__(cls, log_start: int, high_watermark: int, recovery_point: int, log_end: int) -> LogOffsets:
        """Return the offsets as a tuple; each append creates such a value, and tuples are created fast."""
        if not log_start <= high_watermark <= log_end >= recovery_point:
            raise UsageError(
                f"log start {log_start}, high watermark {high_watermark}, recovery point {recovery_point} and log end "
                f"{log_end} are out of order",
                advice="keep log start, high watermark and log end ascending, and the recovery point within the log",
            )
        return _new_tuple(cls, (log_start, high_watermark, recovery_point, log_end))

    @classmethod
    def within(cls, log_start: int, high_watermark: int, recovery_point: int, log_end: int) -> LogOffsets:
        return cls(log_start, min(max(high_watermark, log_start), log_end), min(recovery_point, log_end), log_end)

    def appended_to(self, log_end: int) -> LogOffsets:
        log_start, high_watermark, recovery_point, _ = self
        if high_watermark <= log_end >= recovery_point:
            return _new_tuple(LogOffsets, (log_start, high_watermark, recovery_point, log_end))
        return LogOffsets(log_start, high_watermark, recovery_point, log_end)  # raises

    def flushed_to(self, offset: int) -> LogOffsets:
        recovery_point = max(self.recovery_point, min(offset, self.log_end))
        return LogOffsets(self.log_start, self.high_watermark, recovery_point, self.log_end)

    def truncated_to(self, offset: int) -> LogOffsets:
        if offset >= self.log_end:
            return self
        return LogOffsets.within(min(self.log_start, offset), self.high_watermark, self.recovery_point, offset)

    def emptied_at(self, offset: int, log_start: int | None = None) -> LogOffsets:
        log_start = offset if log_start is None else log_start
        return LogOffsets.within(log_start, self.high_watermark, self.recovery_point, offset)

    def started_at(self, offset: int) -> LogOffsets:
        """Source: Kafka's UnifiedLog.updateLogStartOffset."""
        if offset <= self.log_start:
            return self
        return LogOffsets(offset, self.high_watermark, max(self.recovery_point, offset), self.log_end)

    def replicated_to(self, offset: int) -> LogOffsets:
        """Source: Kafka's UnifiedLog.maybeIncrementHighWatermark."""
        if offset <= self.high_watermark:
            return self
        return LogOffsets(self.log_start, offset, self.recovery_point, self.log_end)

    def with_high_watermark(self, offset: int) -> LogOffsets:
        return LogOffsets.within(self.log_start, offset, self.recovery_point, self.log_end)
