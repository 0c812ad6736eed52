"""Compaction of a copied log before it becomes part of the clone; a later `compact` would have the same result.

    1. select    compute the cleanable range, which starts at the source's cleaner checkpoint
    2. clean     write cleaned segments to `.part` files, in one sweep of the log
    3. commit    replace the copied segments with the cleaned ones

Invariant: if a copied log has a corrupt batch, the log is not changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from sediment.compaction.config import CompactionConfig
from sediment.compaction.keyless_records import KEYLESS_RECORDS, loses_mostly_keyless, why_left_alone
from sediment.compaction.reencode.plan import Encoding
from sediment.engine.directory.swap import commit, discard_parts
from sediment.segment_io.errors import CorruptCheckpointError, CorruptDataError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import Attempt, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import LogListing, list_log
from sediment.segment_io.partition.log_view import open_view

CORRUPT_BATCH = "corrupt-batch"


@dataclass(frozen=True, slots=True)
class LogCompaction:
    """The outcome for a log that had `bytes_before` bytes; `reason` is None if the log was compacted.

    `records_without_key` counts the records that were dropped because they have no key, or because of which the log was
    not compacted.
    """

    bytes_before: int
    first_dirty: int | None
    reason_code: str | None = None
    reason: str | None = None
    messages_read: int = 0
    messages_written: int = 0
    batches_without_horizon: int = 0
    records_without_key: int = 0
    damage: str | None = None


def compact_log(
    partition: TopicPartition,
    directory: Path,
    config: CompactionConfig,
    checkpoints: PartitionCheckpoints,
    fs: Fs,
    *,
    now_ms: int,
    attempt: Attempt,
    encoding: Encoding | None,
) -> LogCompaction:
    listing = list_log(partition, directory, fs)
    try:
        return _compacted(listing, config, checkpoints, fs, now_ms=now_ms, attempt=attempt, encoding=encoding)
    except CorruptCheckpointError:
        raise
    except CorruptDataError as error:
        return not_compacted(listing, checkpoints, CORRUPT_BATCH, str(error), damage=str(error))


def not_compacted(
    listing: LogListing, checkpoints: PartitionCheckpoints, code: str, reason: str, *, damage: str | None = None
) -> LogCompaction:
    return LogCompaction(listing.log_bytes(), checkpoints.first_dirty, code, reason, damage=damage)


def _compacted(
    listing: LogListing,
    config: CompactionConfig,
    checkpoints: PartitionCheckpoints,
    fs: Fs,
    *,
    now_ms: int,
    attempt: Attempt,
    encoding: Encoding | None,
) -> LogCompaction:
    # Imported here, because these modules compile kernels that the driver never needs.
    from sediment.compaction.clean_log import CleaningMode, clean_log
    from sediment.compaction.cleanable_range import cleanable_range
    from sediment.compaction.grouping import plan_cleaning

    view = open_view(
        listing,
        checkpoints,
        fs,
        now_ms=now_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        first_batch_timestamps=config.max_compaction_lag_ms < INT64_MAX,
    )
    cleanable = cleanable_range(view, config, now_ms=now_ms)
    if cleanable.blocked_by is not None:
        first_dirty = cleanable.force_checkpoint
        return LogCompaction(
            listing.log_bytes(),
            checkpoints.first_dirty if first_dirty is None else first_dirty,
            cleanable.blocked_by.value,
            cleanable.reason,
        )
    plan = plan_cleaning(view, cleanable, config, now_ms=now_ms)
    swap = clean_log(plan, fs, attempt, CleaningMode(encoding=encoding))
    stats = swap.stats()
    dropped = stats.messages_read - stats.messages_written
    if loses_mostly_keyless(stats.records_without_key, dropped):
        discard_parts(listing.path, attempt.run_id, fs, attempt=attempt.name)
        to_drop = "run `sediment compact --drop-keyless` on the clone"
        reason = why_left_alone(stats.records_without_key, dropped, to_drop=to_drop)
        kept = not_compacted(listing, checkpoints, KEYLESS_RECORDS, reason)
        return replace(kept, records_without_key=stats.records_without_key)
    commit(swap, fs)
    return LogCompaction(
        listing.log_bytes(),
        swap.next_dirty_offset,
        messages_read=stats.messages_read,
        messages_written=stats.messages_written,
        batches_without_horizon=stats.batches_without_horizon,
        records_without_key=stats.records_without_key,
    )
