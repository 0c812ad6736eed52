"""Suppression of erased records in a cloned log, so that a restored backup does not bring them back.

    1. find      find the records that have a value and whose key is on the list
    2. rewrite   replace them by tombstones in a compacted topic; drop them in any other topic
    3. verify    search again; no such record may remain

Invariant: if a log cannot be searched to its end, an error is raised, because the unread part may contain erased
records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from sediment.compaction.rewrite.suppression import SuppressedKeys, find_suppressed
from sediment.compaction.rewrite.verdicts import Action, Verdict, Verdicts
from sediment.engine.clone.log_rewrite import change_records
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import CorruptDataError
from sediment.segment_io.format.names import Attempt, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.sources import Source


@dataclass(frozen=True, slots=True)
class LogSuppression:
    records: int
    first_dirty: int | None


def suppress_records(
    partition: TopicPartition,
    directory: Path,
    keys: SuppressedKeys,
    config: LogConfig,
    checkpoints: PartitionCheckpoints,
    fs: Fs,
    attempt: Attempt,
) -> LogSuppression:
    source = Source(partition, directory)
    found = find_suppressed(source, keys, fs)
    if not found.size:
        return LogSuppression(0, checkpoints.first_dirty)
    action = Action.TOMBSTONE if config.compacts else Action.DROP
    first_dirty = change_records(
        partition,
        directory,
        Verdicts.of(Verdict(int(offset), action) for offset in found),
        config.compaction,
        checkpoints,
        fs,
        replace(attempt, name=f"{attempt.name}-suppress"),
    )
    left = find_suppressed(source, keys, fs)
    if left.size:
        raise CorruptDataError(
            f"{left.size} records with suppressed keys remain",
            partition=str(partition),
            path=str(directory),
            offset=int(left[0]),
        )
    return LogSuppression(int(found.size), first_dirty)
