"""Partition directories changed at random: batches with right checksums, indexes, snapshots, checkpoints.

Whatever is in them, listing, loading, checking, viewing and cleaning end with a result or with a SedimentError.
"""

from __future__ import annotations

import contextlib
import os
import random

import pytest

from sediment.compaction.clean_log import clean_log
from sediment.compaction.cleanable_range import cleanable_range
from sediment.compaction.config import CompactionConfig
from sediment.compaction.grouping import plan_cleaning
from sediment.engine.directory.loading.load_state import LoadMode
from sediment.engine.directory.loading.log_loader import load_log
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.checkpoints import parse_leader_epochs, parse_offset_checkpoint
from sediment.segment_io.format.meta_properties import parse_meta_properties
from sediment.segment_io.format.names import Attempt, parse_partition_directory, parse_segment_file
from sediment.segment_io.format.offset_index import parse_offset_index
from sediment.segment_io.format.time_index import parse_time_index
from sediment.segment_io.format.transaction_index import parse_transaction_index
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.index_mismatches import check_indexes
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import open_view
from sediment.segment_io.partition.producer_snapshots import parse_snapshot
from sediment.segment_io.partition.slices import Bounds, plan_slices
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.segment.reader import HeaderScan
from sediment.segment_io.segment.recovery_scan import find_batches_after, scan_segment
from tests.fuzz.corrupted import NOW_MS, PARTITION, corrupted_log, flipped
from tests.logs import START_MS, LogShape, write_random_log

LOGS = int(os.environ.get("SEDIMENT_FUZZ_LOGS", "200"))


def clean(directory, checkpoints):
    fs, config = Fs(), CompactionConfig(cleanup_policy=("compact",), delete_retention_ms=1000)
    view = open_view(
        *(list_log(PARTITION, directory, fs), checkpoints, fs),
        now_ms=NOW_MS,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
    )
    cleanable = cleanable_range(view, config, now_ms=NOW_MS, force=True)
    if cleanable.blocked_by is None:
        clean_log(plan_cleaning(view, cleanable, config, now_ms=NOW_MS), fs, Attempt("r", "0"))


def load(directory, fs):
    log = load_log(
        *(PARTITION, directory, LogConfig(), PartitionCheckpoints(recovery_point=0), fs),
        now_ms=NOW_MS,
        mode=LoadMode(verify_trusted=True),
    )
    assert log.log_end_offset >= log.log_start_offset


@pytest.mark.parametrize("seed", range(LOGS))
def test_a_log_of_changed_files_is_loaded_checked_and_cleaned_or_refused(tmp_path, seed):
    directory = corrupted_log(tmp_path / "t-0", seed)
    kept = {path.name: path.read_bytes() for path in directory.iterdir()}
    for path in sorted(directory.glob("*.log")):
        base, size = int(path.stem), path.stat().st_size
        with contextlib.suppress(SedimentError):
            scan_segment(path, base, size, index_interval_bytes=100, segment_index_bytes=1 << 20)
        find_batches_after(path, 0, size, base)
        with contextlib.suppress(SedimentError):
            list(HeaderScan(path))
    source = Source(PARTITION, directory)
    with contextlib.suppress(SedimentError):
        list(check_indexes(source, Fs()))
    with contextlib.suppress(SedimentError):
        plan_slices(source, Bounds(first_offset=5, first_timestamp_ms=START_MS), Fs(), slice_bytes=200)
    with contextlib.suppress(SedimentError):
        clean(directory, PartitionCheckpoints())
    assert {name: (directory / name).read_bytes() for name in kept} == kept
    with contextlib.suppress(SedimentError):
        load(directory, Fs())
        load(directory, Fs())
        clean(directory, PartitionCheckpoints())


def test_small_files_and_names_of_any_bytes_are_read_or_refused(tmp_path):
    write_random_log(tmp_path / "t-0", 3, LogShape(transactional=0.9))
    contents = [path.read_bytes() for path in (tmp_path / "t-0").iterdir() if path.suffix != ".log"]
    contents += [b"0\n2\nt 0 5\nt 1 9\n", b"version=1\nnode.id=1\ncluster.id=x\ndirectory.id=y\n", b""]
    chance = random.Random(5)
    for _ in range(3000):
        content = flipped(chance.choice(contents), chance)
        for parse in (parse_snapshot, parse_leader_epochs, parse_offset_checkpoint, parse_meta_properties):
            with contextlib.suppress(SedimentError):
                parse(content)
        with contextlib.suppress(SedimentError):
            parse_transaction_index(content).transactions()
        for parse_index in (parse_offset_index, parse_time_index):
            with contextlib.suppress(SedimentError):
                index = parse_index(content, chance.choice([0, 2**62, 2**63 - 1]))
                index.lookup(chance.choice([0, 5, 2**63 - 1, -(2**63)]))
        name = os.fsdecode(flipped(chance.choice([b"t-0", b"00000000000000000007.log.swap", b"a.b-3-delete"]), chance))
        parse_segment_file(name)
        with contextlib.suppress(SedimentError):
            parse_partition_directory(name)
