"""Changes of records in a cloned log according to verdicts; no other process uses the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sediment.compaction.config import CompactionConfig
from sediment.compaction.rewrite.plan import plan_rewrite
from sediment.compaction.rewrite.segment_rewrite import rewrite_log
from sediment.compaction.rewrite.verdicts import Reason, Verdicts
from sediment.engine.directory.swap import commit
from sediment.segment_io.errors import CorruptDataError
from sediment.segment_io.format.names import Attempt, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import open_view


def change_records(
    partition: TopicPartition,
    directory: Path,
    verdicts: Verdicts,
    config: CompactionConfig,
    checkpoints: PartitionCheckpoints,
    fs: Fs,
    attempt: Attempt,
) -> int | None:
    """Records of open transactions are also changed."""
    view = open_view(
        list_log(partition, directory, fs),
        replace(checkpoints, clean_shutdown=True),
        fs,
        now_ms=0,
        producer_id_expiration_ms=None,
    )
    # No other process uses this copy, so even records of open transactions may change.
    view = replace(view, last_stable_offset=view.log_end_offset, high_watermark=view.log_end_offset)
    rewrite = rewrite_log(plan_rewrite(view, verdicts, config), fs, attempt)
    missed = {reason: count for reason, count in rewrite.not_reached.by_reason().items() if count}
    if missed.keys() - {Reason.NO_RECORD}:
        raise CorruptDataError(
            f"records could not be rewritten: {', '.join(sorted(reason.code for reason in missed))}",
            partition=str(partition),
            path=str(directory),
        )
    commit(rewrite.swap, fs)
    return None if checkpoints.first_dirty is None else rewrite.swap.next_dirty_offset
