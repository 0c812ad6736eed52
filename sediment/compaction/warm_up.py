"""Warm-up: clean a tiny log to load every kernel of the cleaner before workers are forked.

The log consists of `sample_batches`: a plain and a compressed batch with the same keys, and a marker.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from sediment.compaction.clean_log import CleaningMode, clean_log
from sediment.compaction.cleanable_range import cleanable_range
from sediment.compaction.config import COMPACT, CompactionConfig
from sediment.compaction.grouping import plan_cleaning
from sediment.segment_io.format.layout import CODEC_ZSTD, INT64_MAX
from sediment.segment_io.format.names import Attempt, SegmentFileKind, TopicPartition, segment_file_name
from sediment.segment_io.format.sample_batches import SAMPLE_BATCH, SAMPLE_COMMIT, SAMPLE_LZ4_BATCH
from sediment.segment_io.fs import DryRunFs, Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import LogView, open_view

_END_OFFSET = 21
_ATTEMPT = Attempt("warm-up", "0")


def warm_up(*, everything: bool = False) -> None:
    """With `everything`, also compile kernels that only an explicit option needs."""
    with tempfile.TemporaryDirectory(prefix="sediment-warm-up-") as folder:
        directory = Path(folder)
        content = SAMPLE_BATCH + SAMPLE_LZ4_BATCH + SAMPLE_COMMIT
        (directory / segment_file_name(0, SegmentFileKind.LOG)).write_bytes(content)
        (directory / segment_file_name(_END_OFFSET, SegmentFileKind.LOG)).touch()
        for map_bytes in (None, 1 << 20):
            _clean(directory, CompactionConfig(cleanup_policy=(COMPACT,), dedupe_buffer_bytes=map_bytes))
        if everything:
            _clean(directory, CompactionConfig(cleanup_policy=(COMPACT,)), exact_keys=True)
            _rewrite(directory, CompactionConfig())


def _view_of(directory: Path, config: CompactionConfig, fs: Fs) -> LogView:
    return open_view(
        list_log(TopicPartition("warm-up", 0), directory, fs),
        PartitionCheckpoints(clean_shutdown=True),
        fs,
        now_ms=0,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
    )


def _clean(directory: Path, config: CompactionConfig, *, exact_keys: bool = False) -> None:
    fs = DryRunFs()
    view = _view_of(directory, config, fs)
    cleanable = cleanable_range(view, config, now_ms=0, force=True)
    plan = plan_cleaning(view, cleanable, config, now_ms=0)
    clean_log(plan, fs, _ATTEMPT, CleaningMode(exact_keys=exact_keys))


def _rewrite(directory: Path, config: CompactionConfig) -> None:
    # Imported here, because workers that only clean do not need these modules.
    from sediment.compaction.reencode.plan import Encoding, plan_reencode
    from sediment.compaction.reencode.segment_reencode import reencode_segment
    from sediment.compaction.rewrite.key_matches import find_key_matches
    from sediment.compaction.rewrite.key_set import KeySet
    from sediment.compaction.rewrite.plan import plan_rewrite
    from sediment.compaction.rewrite.segment_rewrite import rewrite_log
    from sediment.compaction.rewrite.verdicts import Action, Verdict, Verdicts

    fs = DryRunFs()
    view = _view_of(directory, config, fs)
    verdicts = Verdicts.of([Verdict(view.listing.segments[0].base_offset, Action.DROP)])
    rewrite_log(plan_rewrite(view, verdicts, config), fs, _ATTEMPT)
    for task in plan_reencode(view, Encoding(CODEC_ZSTD, batch_bytes=1 << 16), config):
        reencode_segment(task, fs, _ATTEMPT)
    find_key_matches(
        view.listing.partition,
        directory,
        view.listing.segments[0],
        INT64_MAX,
        KeySet.of([b"k"]),
        fs,
        limit_bytes=config.max_decompressed_batch_bytes,
    )
