"""Warm-up: a read of a tiny log, which loads the compiled code so that no client waits for the load.

The log consists of `sample_batches`: a batch and a transaction marker.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from sediment.engine.live.log.fetched_data import Isolation
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition, segment_file_name
from sediment.segment_io.format.sample_batches import SAMPLE_BATCH, SAMPLE_COMMIT
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.server.read_only.frozen_log import FrozenLog
from sediment.server.read_only.open_segments import OpenSegments


def warm_up() -> None:
    # Without a directory for temporary files, load nothing; the first clients must then wait.
    with suppress(OSError), tempfile.TemporaryDirectory(prefix="sediment-warm-up-") as folder:
        directory = Path(folder)
        (directory / segment_file_name(0, SegmentFileKind.LOG)).write_bytes(SAMPLE_BATCH + SAMPLE_COMMIT)
        fs = Fs()
        listing = list_log(TopicPartition("warm-up", 0), directory, fs)
        segments = OpenSegments(fs, max_files=1, max_index_bytes=0)
        log = FrozenLog(listing, PartitionCheckpoints(), segments, fs)
        log.read(0, 1, isolation=Isolation.TXN_COMMITTED, min_one=True)
        log.offset_for_time(0)
