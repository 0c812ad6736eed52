"""Warm-up: a read of a tiny log, which loads the compiled code so that no client waits for the load.

The log consists of bytes that Kafka wrote (kafka-log 01 §3.5, §4): a transactional batch and its marker.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

from sediment.engine.live.log.fetched_data import Isolation
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.server.read_only.frozen_log import FrozenLog
from sediment.server.read_only.open_segments import OpenSegments

_BATCH = bytes.fromhex(
    "00000000000000000000005100000005028cb69f2a00000000000200000000000003e800000000000003f2ffffffffffffffffffff"
    "ffffffff000000031000000002610231000e001402010276001c0013040262010402680278026e01"
)
_COMMIT = bytes.fromhex(
    "0000000000000014000000420000000502a00010bb00300000000000000000000007d000000000000007d0"
    "00000000000000070003ffffffff000000012000000008000000010c00000000000900"
)


def warm_up() -> None:
    # Without a directory for temporary files, load nothing; the first clients must then wait.
    with suppress(OSError), tempfile.TemporaryDirectory(prefix="sediment-warm-up-") as folder:
        directory = Path(folder)
        (directory / segment_file_name(0, SegmentFileKind.LOG)).write_bytes(_BATCH + _COMMIT)
        fs = Fs()
        listing = list_log(TopicPartition("warm-up", 0), directory, fs)
        segments = OpenSegments(fs, max_files=1, max_index_bytes=0)
        log = FrozenLog(listing, PartitionCheckpoints(), segments, fs)
        log.read(0, 1, isolation=Isolation.TXN_COMMITTED, min_one=True)
        log.offset_for_time(0)
