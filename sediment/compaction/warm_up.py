"""Warm-up: cleaning a tiny log loads every kernel of the cleaner before workers are forked.

The log is Kafka's own bytes (kafka-log 01 §3.5, §4): a transactional batch, its marker, and a compressed batch whose
only key is written twice.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from sediment.compaction.cleaner import clean_log
from sediment.compaction.config import COMPACT, CompactionConfig
from sediment.compaction.grouping import plan_cleaning
from sediment.compaction.policy import cleanable_range
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition, segment_file_name
from sediment.segment_io.fs import DryRunFs
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_dir_checkpoints import PartitionCheckpoints
from sediment.segment_io.partition.log_view import open_view

_LZ4 = bytes.fromhex(
    "000000000000000a000000600000000502c8840fe400030000000200000000000003e800000000000003f2ffffffffffffffffffff"
    "ffffffff0000000304224d18604082200000801000000002610231000e001402010276001c0013040262010402680278026e0100000000"
)
_PLAIN = bytes.fromhex(
    "00000000000000000000005100000005028cb69f2a00000000000200000000000003e800000000000003f2ffffffffffffffffffff"
    "ffffffff000000031000000002610231000e001402010276001c0013040262010402680278026e01"
)
_COMMIT = bytes.fromhex(
    "0000000000000014000000420000000502a00010bb00300000000000000000000007d000000000000007d0"
    "00000000000000070003ffffffff000000012000000008000000010c00000000000900"
)
_END_OFFSET = 21


def warm_up(*, everything: bool = False) -> None:
    """Run each kind of pass over the tiny log; no file remains.

    With `everything`, also compile kernels that only an explicit option needs.
    """
    with tempfile.TemporaryDirectory(prefix="sediment-warm-up-") as folder:
        directory = Path(folder)
        (directory / segment_file_name(0, SegmentFileKind.LOG)).write_bytes(_PLAIN + _LZ4 + _COMMIT)
        (directory / segment_file_name(_END_OFFSET, SegmentFileKind.LOG)).touch()
        for map_bytes in (None, 1 << 20):
            _clean(directory, CompactionConfig(cleanup_policy=(COMPACT,), dedupe_buffer_bytes=map_bytes))
        if everything:
            _clean(directory, CompactionConfig(cleanup_policy=(COMPACT,)), exact_keys=True)


def _clean(directory: Path, config: CompactionConfig, *, exact_keys: bool = False) -> None:
    fs = DryRunFs()
    view = open_view(
        list_log(TopicPartition("warm-up", 0), directory, fs),
        PartitionCheckpoints(),
        fs,
        now_ms=0,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
    )
    cleanable = cleanable_range(view, config, now_ms=0, force=True)
    plan = plan_cleaning(view, cleanable, config, now_ms=0)
    clean_log(plan, fs, run_id="warm-up", attempt="0", exact_keys=exact_keys)
