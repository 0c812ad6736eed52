"""A rewrite that also replaces the active segment, killed at every step of its commit: a start finds old or new."""

from __future__ import annotations

import shutil
from pathlib import Path

from sediment.compaction.config import CompactionConfig
from sediment.engine.directory.loading.log_loader import load_log
from sediment.engine.log_config import LogConfig
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from tests.rewrites import PARTITION, killed_rewrites, visible_records
from tests.segments import NOW_MS


def test_a_start_after_every_kill_has_each_segment_before_or_after_the_rewrite(tmp_path: Path):
    config = LogConfig(compaction=CompactionConfig(producer_id_expiration_ms=None))
    checkpoints = PartitionCheckpoints(recovery_point=6, clean_shutdown=True)
    seen = set()
    for killed in killed_rewrites(tmp_path):
        loaded = load_log(PARTITION, killed.directory, config, checkpoints, Fs(), now_ms=NOW_MS)
        assert (loaded.log_end_offset, loaded.damage) == (6, ())
        assert [producer.last_offset for producer in loaded.producers.entries.values()] == [5]
        found = visible_records(killed.directory, committed=False)
        seen.add(tuple(sorted(found)))
        assert found in killed.allowed
        shutil.rmtree(killed.directory)
    assert seen == {tuple(sorted(allowed)) for allowed in killed.allowed}
