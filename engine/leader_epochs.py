"""The leader epochs of a log as a value, and what loading and appending do to it (kafka-log 04 §4).

Invariants: entries ascend strictly by epoch and by start offset; every function returns new entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from sediment.segment_io.checkpoints import EpochEntry
from sediment.segment_io.format import NO_LEADER_EPOCH

Epochs = tuple[EpochEntry, ...]


def latest_epoch(entries: Sequence[EpochEntry]) -> int:
    """The last entry's epoch, -1 where there is none."""
    return entries[-1].epoch if entries else NO_LEADER_EPOCH


def assign(entries: Sequence[EpochEntry], epoch: int, start_offset: int) -> Epochs:
    """Entries once a batch of `epoch` begins at `start_offset`; what contradicts it goes.

    Source: kafka-log 04 §4 (assign).
    """
    if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
        return tuple(entries)
    kept = takewhile(lambda entry: entry.epoch < epoch and entry.start_offset < start_offset, entries)
    return (*kept, EpochEntry(epoch, start_offset))


def truncate_from_end(entries: Sequence[EpochEntry], end_offset: int) -> Epochs:
    """Entries of a log that ends at `end_offset`: those that begin there or behind it go.

    Source: kafka-log 04 §4 (truncateFromEnd).
    """
    return tuple(entry for entry in entries if entry.start_offset < end_offset)


def truncate_from_start(entries: Sequence[EpochEntry], start_offset: int) -> Epochs:
    """Entries of a log that begins at `start_offset`: the epoch in force there begins there.

    Source: kafka-log 04 §4 (truncateFromStart).
    """
    before = [entry for entry in entries if entry.start_offset <= start_offset]
    after = tuple(entry for entry in entries if entry.start_offset > start_offset)
    return (EpochEntry(before[-1].epoch, start_offset), *after) if before else after
