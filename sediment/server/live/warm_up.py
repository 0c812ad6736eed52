"""Warm-up: appends to a tiny log and look-ups in it, which load the compiled code so that no client waits for the load.

If code is not in the cache, it is compiled.  This takes seconds, in which no other thread runs, and clients could time
out in the meantime.
"""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from sediment.engine.live.log.fetched_data import Isolation
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.log_config import LogConfig
from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.format.layout import CODEC_LZ4, CODEC_NAMES, CODEC_NONE, CODEC_ZSTD
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.segment.append_run_kernels import repeated_requests
from sediment.server.repeated import ReceiveBuffer

_LONG_BYTES = 48 << 10  # shorter batches and shorter runs are checked by other kernels
_START = bytes(16)
_INT32 = struct.Struct(">i")


class _Never:
    def schedule_once(self, _name: str, _task: Callable[[], None], *, delay_ms: int = 0) -> None:
        return None


@cache
def warm_up() -> None:
    # Without a directory for temporary files, load nothing; the first clients must then wait.
    with suppress(OSError):
        warm_up_appends()


def warm_up_appends() -> None:
    with tempfile.TemporaryDirectory(prefix="sediment-warm-up-") as folder:
        config = LogConfig()
        config = replace(config, compaction=replace(config.compaction, index_interval_bytes=0))
        now_ms = int(time.time() * 1000)
        with PartitionLog.open(
            TopicPartition("warm-up", 0),
            Path(folder),
            config,
            PartitionCheckpoints(clean_shutdown=True),
            Fs(),
            clock=lambda: now_ms,
            scheduler=_Never(),
        ) as log:
            for value in (b"", b"", bytes(_LONG_BYTES)):  # the first batch begins a leader epoch, so it is not plain
                log.append_as_leader(_batch(now_ms, value), 0)
                _append_run(log, _batch(now_ms, value))
            for codec in (CODEC_ZSTD, CODEC_NONE):
                log.append_as_leader(_batch(now_ms, b"", codec), 0)
                log.update_config(replace(config, compression_type=CODEC_NAMES[CODEC_LZ4]))
            log.maybe_increment_high_watermark()
            log.lookup_timestamp(now_ms)
            log.read(0, 1, Isolation.TXN_COMMITTED)


def _batch(now_ms: int, value: bytes, codec: int = CODEC_NONE) -> bytes:
    return build_batch([NewRecord(now_ms, None, value)], BatchHead(codec=codec))


def _append_run(log: PartitionLog, batch: bytes) -> None:
    body = _START + _INT32.pack(len(batch)) + batch
    frame = _INT32.pack(len(body)) + body
    received = ReceiveBuffer(len(frame))
    received.memory[:] = frame
    kept = np.frombuffer(_START, dtype=np.uint8)
    count = repeated_requests(received.address, len(frame), len(frame), kept, False, 0, received.rows)
    log.append_run(received.address, received.rows, count, 0)
