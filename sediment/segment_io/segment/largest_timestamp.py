"""The largest timestamp of a segment, which determines the segment's age (kafka-log 03 §2.4).

For an open segment, it comes from the appends or from the last entry of the time index (`live.log.segment`).  Without a
timestamp, the age is measured from the modification time of the file.

Source: Kafka's LogSegment.largestTimestamp.
"""

from __future__ import annotations

from sediment.segment_io.units import NS_PER_MS


def largest_timestamp_or_mtime_ms(timestamp_ms: int, mtime_ns: int) -> int:
    """Return the largest timestamp of a segment's batches; if no batch has one, the `.log`'s modification time.

    `timestamp_ms` comes from the last entry of the time index or from a scan, and is negative if no batch has a
    timestamp.
    """
    return timestamp_ms if timestamp_ms >= 0 else mtime_ns // NS_PER_MS
