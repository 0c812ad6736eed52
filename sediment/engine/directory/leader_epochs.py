"""The leader epochs of a log as an immutable value, with functions that derive changed entries (kafka-log 04 §4).

    assign                 drops entries that contradict the new one
    truncate_from_end      drops the entries that begin at or above an offset
    truncate_from_start    drops the entries that end at or below an offset; the entry that covers it then begins there
    end_offset_for         finds the offset up to which a log may agree with another log in an epoch; -1 if unknown

An append of magic 0 or 1 removes all entries (`live.log.log_append`).

Invariants: entries ascend strictly by epoch and by start offset; every function returns new entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from sediment.segment_io.format.checkpoints import EpochEntry
from sediment.segment_io.format.layout import NO_LEADER_EPOCH

Epochs = tuple[EpochEntry, ...]


def latest_epoch(entries: Sequence[EpochEntry]) -> int:
    return entries[-1].epoch if entries else NO_LEADER_EPOCH


def assign(entries: Sequence[EpochEntry], epoch: int, start_offset: int) -> Epochs:
    """Source: kafka-log 04 §4 (assign)."""
    if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
        return tuple(entries)
    kept = takewhile(lambda entry: entry.epoch < epoch and entry.start_offset < start_offset, entries)
    return (*kept, EpochEntry(epoch, start_offset))


def truncate_from_end(entries: Sequence[EpochEntry], end_offset: int) -> Epochs:
    """Source: kafka-log 04 §4 (truncateFromEnd)."""
    return tuple(entry for entry in entries if entry.start_offset < end_offset)


def truncate_from_start(entries: Sequence[EpochEntry], start_offset: int) -> Epochs:
    """Source: kafka-log 04 §4 (truncateFromStart)."""
    before = [entry for entry in entries if entry.start_offset <= start_offset]
    after = tuple(entry for entry in entries if entry.start_offset > start_offset)
    return (EpochEntry(before[-1].epoch, start_offset), *after) if before else after


def end_offset_for(entries: Sequence[EpochEntry], epoch: int, log_end_offset: int) -> tuple[int, int]:
    """Return (epoch, end offset) of the last point up to which this log may agree with a log in `epoch`.

    Return (-1, -1) if such a point does not exist.

    Source: kafka-log 04 §4 (endOffsetFor).
    """
    if epoch == NO_LEADER_EPOCH:
        return NO_LEADER_EPOCH, -1
    if epoch == latest_epoch(entries):
        return epoch, log_end_offset
    above = next((entry for entry in entries if entry.epoch > epoch), None)
    if above is None:
        return NO_LEADER_EPOCH, -1
    below = [entry for entry in entries if entry.epoch <= epoch]
    return (below[-1].epoch if below else epoch), above.start_offset


def epoch_for_offset(entries: Sequence[EpochEntry], offset: int) -> int | None:
    """Return the leader epoch under which `offset` was written; None if no entry covers it.

    Source: kafka-log 04 §4 (epochForOffset).
    """
    return max((entry.epoch for entry in entries if entry.start_offset <= offset), default=None)
