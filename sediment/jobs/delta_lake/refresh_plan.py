"""Plan of a refresh: the records that a refresh must read, and the progress that the snapshot table stores.  Pure.

For each partition, the table contains the state S(n): a row for the latest record of each key below offset n, but no
row if this record is a tombstone.  If the log below n is unchanged, merging the latest records of the offsets from n to
m turns S(n) into S(m).  If the log below n may have changed, the partition is rebuilt: the run reads the log from its
start and deletes the rows of keys that it does not find.

Invariant: a refreshed table equals a new table from the same log; neither has rows below the log start offset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeVar, cast

from sediment.engine.directory.leader_epochs import epoch_for_offset
from sediment.segment_io.format.checkpoints import EpochEntry
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.tables.log_marks import LogMark, LogMatch, RecordMark

LATEST = "latest"
AS_OF = "as-of"

_Kind = TypeVar("_Kind")

_FORMAT = 1
_MARK = "sediment.snapshot"


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """State of one partition in the table: S(`next_offset`) of a log that started at `log_start_offset`.

    `mark` and `leader_epoch` show whether the log was replaced under the same name.  The epoch is the leader epoch of
    the last offset below `next_offset`, or None if the directory does not contain it.
    """

    next_offset: int
    log_start_offset: int
    mark: LogMark
    leader_epoch: int | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class RefreshProgress:
    """Progress in the metadata of a commit: the run, the number of the refresh, and the state of each partition.

    `sequence` is 0 in the commit that creates the empty table.
    """

    kind: str
    run_id: str
    sequence: int
    partitions: Mapping[str, PartitionProgress]


def progress_json(progress: RefreshProgress) -> str:
    partitions = {name: _partition_json(partition) for name, partition in progress.partitions.items()}
    return json.dumps({_MARK: _FORMAT, **asdict(progress), "partitions": partitions}, separators=(",", ":"))


def _partition_json(progress: PartitionProgress) -> dict[str, Any]:
    fields = asdict(progress)
    mark = fields.pop("mark")
    without_id = {name: value for name, value in mark.items() if value is not None and name != "topic_id"}
    return {**fields, "topic_id": mark["topic_id"], **without_id}


def _parse_partition(fields: Mapping[str, Any]) -> PartitionProgress:
    record = fields.get("record")
    mark = LogMark(
        _of(str, fields["topic_id"], or_none=True),
        _of(str, fields.get("directory"), or_none=True),
        None if record is None else RecordMark(_number(record["offset"]), _number(record["crc"])),
    )
    epoch = fields["leader_epoch"]
    return PartitionProgress(
        next_offset=_number(fields["next_offset"]),
        log_start_offset=_number(fields["log_start_offset"]),
        mark=mark,
        leader_epoch=None if epoch is None else _number(epoch),
        now_ms=_number(fields["now_ms"]),
    )


def _of(kind: type[_Kind], value: Any, *, or_none: bool = False) -> _Kind:
    if type(value) is not kind and not (or_none and value is None):
        raise TypeError(value)
    return cast("_Kind", value)


def _number(value: Any) -> int:
    if not 0 <= _of(int, value) <= INT64_MAX:
        raise ValueError(value)
    return int(value)


def parse_progress(text: str | None) -> RefreshProgress | None:
    """Return the progress in a commit's metadata; None if the metadata contains no progress."""
    try:
        found: dict[str, Any] = json.loads(text or "null")
        if found[_MARK] != _FORMAT or found["kind"] not in (LATEST, AS_OF):
            return None
        partitions = {name: _parse_partition(fields) for name, fields in found["partitions"].items()}
        return RefreshProgress(found["kind"], _of(str, found["run_id"]), _number(found["sequence"]), partitions)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


# ------------------------------------------------------------------------------------------------------------- deciding
class Rebuild(StrEnum):
    FIRST_TIME = "first-time"
    ASKED = "asked"
    OTHER_TOPIC = "other-topic-id"
    CREATED_AGAIN = "created-again"
    ENDS_EARLIER = "log-ends-earlier"
    STARTS_EARLIER = "log-starts-earlier"
    OTHER_LEADER_EPOCH = "other-leader-epoch"
    TOMBSTONES_GONE = "tombstones-may-be-gone"


@dataclass(frozen=True, slots=True)
class LogState:
    """[`log_start_offset`, `end_offset`) is the committed range.

    The log is clean below `first_dirty_offset`, which is None if the log was never cleaned.  With `cleaner_unknown` the
    directory has no cleaner checkpoint.  `match` is the result of a comparison of the log with the mark in the table's
    progress.
    """

    log_start_offset: int
    end_offset: int
    first_dirty_offset: int | None
    cleaner_unknown: bool
    topic_id: str | None
    leader_epochs: tuple[EpochEntry, ...]
    match: LogMatch


@dataclass(frozen=True, slots=True)
class Refresh:
    """Records [`first_offset`, `end_offset`) to merge; with `rebuild` all other rows of the partition are deleted.

    `drop_below_offset` is the log start if the table may have rows below it, else None.
    """

    first_offset: int
    end_offset: int
    rebuild: Rebuild | None
    drop_below_offset: int | None

    def is_needed(self) -> bool:
        return self.first_offset < self.end_offset or self.drop_below_offset is not None or self.rebuild is not None


def plan_refresh(
    facts: LogState,
    progress: PartitionProgress | None,
    *,
    now_ms: int,
    delete_retention_ms: int | None,
    from_start: bool = False,
) -> Refresh:
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
    if facts.match is LogMatch.OTHER:
        has_ids = None not in (facts.topic_id, progress.mark.topic_id)
        return Rebuild.OTHER_TOPIC if has_ids else Rebuild.CREATED_AGAIN
    if facts.end_offset < progress.next_offset:
        return Rebuild.ENDS_EARLIER
    if facts.log_start_offset < progress.log_start_offset:
        return Rebuild.STARTS_EARLIER  # `restore` put segments back, or the log start checkpoint was lost
    epoch = epoch_for_offset(facts.leader_epochs, progress.next_offset - 1)
    if None not in (epoch, progress.leader_epoch) and epoch != progress.leader_epoch:
        return Rebuild.OTHER_LEADER_EPOCH
    if _tombstones_may_be_gone(facts, progress, now_ms, delete_retention_ms):
        return Rebuild.TOMBSTONES_GONE
    return None


def _tombstones_may_be_gone(
    facts: LogState, progress: PartitionProgress, now_ms: int, delete_retention_ms: int | None
) -> bool:
    """Return True if the cleaner may have removed a tombstone that the table has not read.

    The refresh that ended at `next_offset` came before the first cleaning of any tombstone at or above this offset.
    """
    cleaned = facts.cleaner_unknown or (
        facts.first_dirty_offset is not None and facts.first_dirty_offset > progress.next_offset
    )
    # After its first cleaning, the cleaner keeps a tombstone for delete.retention.ms (kafka-log 02 §6.3, §6.4).  If
    # that setting is unknown, it may have been 0.
    over = delete_retention_ms is None or now_ms - progress.now_ms >= delete_retention_ms
    return cleaned and facts.end_offset > progress.next_offset and over


def progress_after(refresh: Refresh, facts: LogState, mark: LogMark, now_ms: int) -> PartitionProgress:
    return PartitionProgress(
        next_offset=max(refresh.first_offset, refresh.end_offset),
        log_start_offset=facts.log_start_offset,
        mark=mark,
        leader_epoch=epoch_for_offset(facts.leader_epochs, refresh.end_offset - 1),
        now_ms=now_ms,
    )
