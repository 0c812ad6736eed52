"""What a refresh of a snapshot table has to read, and what the table remembers to decide it.  Pure.

A snapshot table holds for each partition the state S(n): of each key the latest record below offset n, none where that
record is a tombstone.  Reading the records from n up to m and merging the latest of each key makes S(n) into S(m); that
holds only while what lies below n is still what it was.  Where it may not be, the partition is rebuilt: read from the
log's start, and rows that are not found there go.

Invariant: a refreshed table equals one made anew from the same log; rows below the log start offset are gone from both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sediment.segment_io.format.checkpoints import EpochEntry

LATEST = "latest"
AS_OF = "as-of"

_FORMAT = 1
_MARK = "sediment.snapshot"


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """What the table holds of one partition: S(`next_offset`) of a log that began at `log_start_offset`.

    `topic_id` and `leader_epoch`, that of the last offset below `next_offset`, tell another log under the same name;
    None where the directory did not say.  `now_ms` is the clock of the refresh that looked at the partition last.
    """

    next_offset: int
    log_start_offset: int
    topic_id: str | None
    leader_epoch: int | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class RefreshProgress:
    """What a commit to the table says of itself: whose it is, its number among the refreshes, and what it leads to.

    `kind` is LATEST or AS_OF; `sequence` is 0 where the table was made and still is empty.
    """

    kind: str
    run_id: str
    sequence: int
    partitions: Mapping[str, PartitionProgress]


def progress_json(progress: RefreshProgress) -> str:
    """For the metadata of a commit."""
    return json.dumps({_MARK: _FORMAT, **asdict(progress)}, separators=(",", ":"))


def parse_progress(text: str | None) -> RefreshProgress | None:
    """The progress that a commit's metadata holds, None where they are of something else."""
    try:
        found: dict[str, Any] = json.loads(text or "null")
        if found.pop(_MARK) != _FORMAT:
            return None
        partitions = {name: PartitionProgress(**fields) for name, fields in found.pop("partitions").items()}
        return RefreshProgress(partitions=partitions, **found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


# ------------------------------------------------------------------------------------------------------------- deciding
class Rebuild(StrEnum):
    """Why a partition is read from its start."""

    FIRST_TIME = "first-time"
    ASKED = "asked"
    OTHER_TOPIC = "other-topic-id"
    ENDS_EARLIER = "log-ends-earlier"
    OTHER_LEADER_EPOCH = "other-leader-epoch"
    TOMBSTONES_GONE = "tombstones-may-be-gone"


@dataclass(frozen=True, slots=True)
class LogState:
    """What a partition's directory says now.

    [`log_start_offset`, `end_offset`) is what consumers of committed data are given.  `first_dirty_offset` is where the
    cleaner has been up to: None where it has not been in this log, and `cleaner_unknown` where nothing says.
    """

    log_start_offset: int
    end_offset: int
    first_dirty_offset: int | None
    cleaner_unknown: bool
    topic_id: str | None
    leader_epochs: tuple[EpochEntry, ...]


@dataclass(frozen=True, slots=True)
class Refresh:
    """Records [`first_offset`, `end_offset`) are to be merged; with `rebuild` nothing else of the partition stays.

    `drop_below_offset` is the log start where it has moved past rows that the table may hold, else None.
    """

    first_offset: int
    end_offset: int
    rebuild: Rebuild | None
    drop_below_offset: int | None

    def is_needed(self) -> bool:
        """Whether the table has to change."""
        return self.first_offset < self.end_offset or self.drop_below_offset is not None or self.rebuild is not None


def plan_refresh(
    facts: LogState,
    progress: PartitionProgress | None,
    *,
    now_ms: int,
    delete_retention_ms: int | None,
    from_start: bool = False,
) -> Refresh:
    """What brings the table to `facts`."""
    reason = _reason_to_rebuild(facts, progress, now_ms, delete_retention_ms, from_start=from_start)
    if reason is not None or progress is None:
        return Refresh(facts.log_start_offset, facts.end_offset, reason, None)
    moved = facts.log_start_offset > progress.log_start_offset
    return Refresh(
        first_offset=max(progress.next_offset, facts.log_start_offset),
        end_offset=facts.end_offset,
        rebuild=None,
        drop_below_offset=facts.log_start_offset if moved else None,
    )


def _reason_to_rebuild(
    facts: LogState,
    progress: PartitionProgress | None,
    now_ms: int,
    delete_retention_ms: int | None,
    *,
    from_start: bool,
) -> Rebuild | None:
    if progress is None:
        return Rebuild.FIRST_TIME
    if from_start:
        return Rebuild.ASKED
    if None not in (facts.topic_id, progress.topic_id) and facts.topic_id != progress.topic_id:
        return Rebuild.OTHER_TOPIC
    if facts.end_offset < progress.next_offset:
        return Rebuild.ENDS_EARLIER
    epoch = leader_epoch_at(facts.leader_epochs, progress.next_offset - 1)
    if None not in (epoch, progress.leader_epoch) and epoch != progress.leader_epoch:
        return Rebuild.OTHER_LEADER_EPOCH
    if _tombstones_may_be_gone(facts, progress, now_ms, delete_retention_ms):
        return Rebuild.TOMBSTONES_GONE
    return None


def _tombstones_may_be_gone(
    facts: LogState, progress: PartitionProgress, now_ms: int, delete_retention_ms: int | None
) -> bool:
    """Whether the cleaner may have removed a tombstone that the table has not seen.

    A tombstone above `next_offset` was cleaned for the first time after the refresh that ended there, and lives for
    delete.retention.ms from then on (kafka-log 02 §6.3, §6.4).  Where that is not stated, it may have been as short as
    0.
    """
    cleaned = facts.cleaner_unknown or (
        facts.first_dirty_offset is not None and facts.first_dirty_offset > progress.next_offset
    )
    over = delete_retention_ms is None or now_ms - progress.now_ms >= delete_retention_ms
    return cleaned and facts.end_offset > progress.next_offset and over


def leader_epoch_at(entries: Sequence[EpochEntry], offset: int) -> int | None:
    """The leader epoch under which `offset` was written, None where no entry says."""
    return max((entry.epoch for entry in entries if entry.start_offset <= offset), default=None)


def progress_after(refresh: Refresh, facts: LogState, now_ms: int) -> PartitionProgress:
    """What the table holds once `refresh` is merged."""
    return PartitionProgress(
        next_offset=max(refresh.first_offset, refresh.end_offset),
        log_start_offset=facts.log_start_offset,
        topic_id=facts.topic_id,
        leader_epoch=leader_epoch_at(facts.leader_epochs, refresh.end_offset - 1),
        now_ms=now_ms,
    )
