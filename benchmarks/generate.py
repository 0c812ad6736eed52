"""Benchmark data: partitions as a Kafka producer and broker would have written them, generated from a seed.

A record has a 16-byte key and a value of letters.  Its key is one of `keys` keys, drawn as `population` says.  A batch
has `batch_records` records and Kafka's CRC.  Segments are rolled at `segment_bytes` and have indexes; the last segment,
which is active, is empty.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.log_config import LogConfig
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import copy_bytes, store_i8, store_i16, store_i32, store_i64
from sediment.segment_io.format import layout as f
from sediment.segment_io.format.batch_builder import NewRecord, build_batch
from sediment.segment_io.format.batch_rebuild import varlong_bytes, write_varlong
from sediment.segment_io.format.checksum import crc32c
from sediment.segment_io.format.compression.batch_codecs import compress
from sediment.segment_io.format.names import SegmentFileKind, parse_partition_directory, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.producer_snapshots import encode_snapshot
from sediment.segment_io.segment.writer import lay_out_segments

KEY_BYTES = 16
START_MS = 1_700_000_000_000

UNIFORM = "uniform"  # drawn from all keys
ONCE_FIRST = "once-first"  # every key once, in scattered order, then drawn from all
GROWING = "growing"  # drawn from a part of the keys that grows with the log, so a prefix resembles a smaller log
_SCATTER = 2**31 - 1  # a prime
_DRAWN_RECORDS = 1 << 14


@dataclass(frozen=True)
class Shape:
    """Parameters of a partition.  `value_bytes` 90 makes records of 116 bytes; `transaction_batches` 0 means none.

    `total_bytes` counts batches before compression.
    """

    total_bytes: int
    keys: int
    value_bytes: int = 85
    batch_records: int = 150
    codec: int = f.CODEC_NONE
    segment_bytes: int = 128 << 20
    transaction_batches: int = 0
    seed: int = 1
    population: str = UNIFORM


@kernel
def _fill_records(
    target: int, base: int, keys: npt.NDArray[np.int64], values: npt.NDArray[np.uint8], value_bytes: int
) -> int:
    start = target
    for index in range(keys.size):
        body = 1 + varlong_bytes(index) * 2 + 1 + KEY_BYTES + varlong_bytes(value_bytes) + value_bytes + 1
        target = write_varlong(target, body)
        store_i8(target, 0)
        target = write_varlong(target + 1, index)
        target = write_varlong(target, index)
        target = write_varlong(target, KEY_BYTES)
        key = keys[index]
        for digit in range(KEY_BYTES - 1, 0, -1):
            store_i8(target + digit, 48 + key % 10)
            key //= 10
        store_i8(target, 107)
        target = write_varlong(target + KEY_BYTES, value_bytes)
        offset = ((base + index) * 31) % (values.size - value_bytes)
        copy_bytes(target, values.ctypes.data + offset, value_bytes)
        target += value_bytes
        store_i8(target, 0)
        target += 1
    return target - start


@kernel
def _seal(
    target: int, size: int, attributes: int, base_offset: int, count: int, base_ms: int, producer_id: int, sequence: int
) -> None:
    store_i64(target, base_offset)
    store_i32(target + f.BATCH_LENGTH, size - f.LOG_OVERHEAD_BYTES)
    store_i32(target + f.LEADER_EPOCH, 0)
    store_i8(target + f.MAGIC, 2)
    store_i16(target + f.ATTRIBUTES, attributes)
    store_i32(target + f.LAST_OFFSET_DELTA, count - 1)
    store_i64(target + f.BASE_TIMESTAMP, base_ms)
    store_i64(target + f.MAX_TIMESTAMP, base_ms + count - 1)
    store_i64(target + f.PRODUCER_ID, producer_id)
    store_i16(target + f.PRODUCER_EPOCH, 0 if producer_id >= 0 else -1)
    store_i32(target + f.BASE_SEQUENCE, sequence)
    store_i32(target + f.RECORD_COUNT, count)
    store_i32(target + f.CRC, crc32c(target + f.ATTRIBUTES, size - f.ATTRIBUTES))


@kernel
def _write_batches(
    target: int,
    room_bytes: int,
    enough_bytes: int,
    most: int,
    base_offset: int,
    batch_records: int,
    keys: npt.NDArray[np.int64],
    values: npt.NDArray[np.uint8],
    value_bytes: int,
) -> tuple[int, int]:
    """Write plain batches of `keys` until `enough_bytes` are written, or until a batch of `most` bytes would not fit.

    Returns (records, bytes) written.
    """
    records = 0
    size = 0
    while records < keys.size and size < enough_bytes and size + most <= room_bytes:
        taken = keys[records : records + batch_records]
        batch = f.BATCH_HEADER_BYTES + _fill_records(
            target + size + f.BATCH_HEADER_BYTES, base_offset + records, taken, values, value_bytes
        )
        _seal(target + size, batch, 0, base_offset + records, taken.size, START_MS + base_offset + records, -1, -1)
        records += taken.size
        size += batch
    return records, size


class _Segments:
    """Buffer of batches that writes a segment whenever the next batch would not fit."""

    def __init__(self, directory: Path, shape: Shape) -> None:
        self._directory, self._shape = directory, shape
        self._buffer = np.zeros(shape.segment_bytes + (8 << 20), dtype=np.uint8)
        self._used, self._base, self._index = 0, 0, 0

    def room(self, offset: int, size: int) -> int:
        """Return the address for a batch of at most `size` bytes."""
        if self._used + size > self._shape.segment_bytes and self._used:
            self.flush(offset)
        return int(self._buffer.ctypes.data) + self._used

    def room_bytes(self, size: int) -> int:
        """Return the bytes left in the segment that `room` chose, at least `size`."""
        return max(self._shape.segment_bytes - self._used, size)

    def took(self, size: int) -> None:
        self._used += size

    def flush(self, next_offset: int) -> None:
        (image,) = lay_out_segments(
            self._buffer[: self._used], self._base, (), index_interval_bytes=4096, segment_index_bytes=10 << 20
        )
        for kind, content in image.files():
            Fs().write_new(self._directory / segment_file_name(self._base, kind), [content])
        self._used, self._base = 0, next_offset


def draw_keys(random: np.random.Generator, shape: Shape, offset: int, count: int, part: float) -> npt.NDArray[np.int64]:
    """Return the keys of `count` records from `offset` on, int64[count]; `part` of the log has been written."""
    if shape.population == GROWING:
        return random.integers(0, max(1, int(shape.keys * min(part, 1.0))), count)
    keys = random.integers(0, shape.keys, count)
    if shape.population == ONCE_FIRST and offset < shape.keys:
        first = np.arange(offset, min(offset + count, shape.keys), dtype=np.int64)
        keys[: first.size] = first * _SCATTER % shape.keys
    return keys


def write_partition(directory: Path, shape: Shape) -> int:
    """Write one partition directory; return its log end offset."""
    directory.mkdir(parents=True)
    random = np.random.default_rng(shape.seed)
    letters = random.integers(97, 105, 1 << 20, dtype=np.uint8)
    per_record = KEY_BYTES + shape.value_bytes + 12
    most = f.BATCH_HEADER_BYTES + shape.batch_records * per_record
    segments = _Segments(directory, shape)
    scratch = np.zeros(most + 64, dtype=np.uint8)
    written, offset, batch = 0, 0, 0
    if not shape.codec and not shape.transaction_batches:
        offset = _write_plain(segments, shape, random, letters, most)
        written = shape.total_bytes
    while written < shape.total_bytes:
        keys = draw_keys(random, shape, offset, shape.batch_records, written / shape.total_bytes)
        transactional = shape.transaction_batches > 0
        producer_id = 1000 if transactional else -1
        attributes = shape.codec | (f.TRANSACTIONAL_BIT if transactional else 0)
        target = segments.room(offset, most)
        if shape.codec:
            records = _fill_records(scratch.ctypes.data, offset, keys, letters, shape.value_bytes)
            packed = np.frombuffer(compress(shape.codec, memoryview(scratch)[:records]), dtype=np.uint8)
            copy_out(target + f.BATCH_HEADER_BYTES, packed)
            size = f.BATCH_HEADER_BYTES + packed.size
        else:
            records = _fill_records(target + f.BATCH_HEADER_BYTES, offset, keys, letters, shape.value_bytes)
            size = f.BATCH_HEADER_BYTES + records
        sequence = offset % f.INT32_MAX if transactional else -1
        _seal(target, size, attributes, offset, keys.size, START_MS + offset, producer_id, sequence)
        segments.took(size)
        written += f.BATCH_HEADER_BYTES + records
        offset += keys.size
        batch += 1
        if transactional and batch % shape.transaction_batches == 0:
            target = segments.room(offset, 128)
            size = _commit_marker(target, offset)
            segments.took(size)
            written += size
            offset += 1
    segments.flush(offset)
    for kind in (SegmentFileKind.LOG, SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX):
        Fs().write_new(directory / segment_file_name(offset, kind), [])
    Fs().write_new(directory / segment_file_name(offset, SegmentFileKind.SNAPSHOT), [encode_snapshot(())])
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    return offset


def _write_plain(
    segments: _Segments, shape: Shape, random: np.random.Generator, letters: npt.NDArray[np.uint8], most: int
) -> int:
    """Write the batches of a log that is neither compressed nor transactional; return its log end offset."""
    drawn = max(_DRAWN_RECORDS // shape.batch_records, 1) * shape.batch_records
    written, offset = 0, 0
    while written < shape.total_bytes:
        keys = draw_keys(random, shape, offset, drawn, written / shape.total_bytes)
        while keys.size and written < shape.total_bytes:
            target = segments.room(offset, most)
            records, size = _write_batches(
                target,
                segments.room_bytes(most),
                shape.total_bytes - written,
                most,
                offset,
                shape.batch_records,
                keys,
                letters,
                shape.value_bytes,
            )
            segments.took(size)
            written += size
            offset += records
            keys = keys[records:]
    return offset


class _NoBackgroundWork:
    """A scheduler that starts nothing: the log is closed right after the append."""

    def schedule_once(self, _name: str, _task: object, *, delay_ms: int = 0) -> None:
        return None


def append_batch(directory: Path, keys: Iterable[bytes], value_bytes: int, now_ms: int) -> None:
    """Append a batch with one record for each key to the log of a partition directory, and close the log."""
    log = PartitionLog.open(
        parse_partition_directory(directory.name)[0],
        directory,
        LogConfig(),
        PartitionCheckpoints(clean_shutdown=True),
        Fs(),
        clock=lambda: now_ms,
        scheduler=_NoBackgroundWork(),
    )
    log.append_as_leader(build_batch([NewRecord(now_ms, key, bytes(value_bytes)) for key in keys]), 0)
    log.flush()
    log.close()


@kernel
def copy_out(target: int, source: npt.NDArray[np.uint8]) -> None:
    """Copy an array to an address."""
    copy_bytes(target, source.ctypes.data, source.size)


def _commit_marker(target: int, offset: int) -> int:
    record = bytes.fromhex("20000000080000000 10c00000000000900".replace(" ", ""))
    body = np.frombuffer(record, dtype=np.uint8)
    copy_out(target + f.BATCH_HEADER_BYTES, body)
    size = f.BATCH_HEADER_BYTES + body.size
    _seal(target, size, f.TRANSACTIONAL_BIT | f.CONTROL_BIT, offset, 1, START_MS + offset, 1000, -1)
    return size


def main() -> None:
    """Write one partition from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--megabytes", type=int, default=506)
    parser.add_argument("--distinct", type=float, default=0.1)
    parser.add_argument("--value-bytes", type=int, default=85)
    parser.add_argument("--batch-records", type=int, default=150)
    parser.add_argument("--codec", choices=f.CODEC_NAMES, default="none")
    parser.add_argument("--segment-bytes", type=int, default=128 << 20)
    parser.add_argument("--transaction-batches", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    total = given.megabytes * 1_000_000
    shape = Shape(
        total_bytes=total,
        keys=max(1, int(total / (given.value_bytes + 31) * given.distinct)),
        value_bytes=given.value_bytes,
        batch_records=given.batch_records,
        codec=f.CODEC_NAMES.index(given.codec),
        segment_bytes=given.segment_bytes,
        transaction_batches=given.transaction_batches,
        seed=given.seed,
    )
    print(write_partition(given.directory, shape))


if __name__ == "__main__":
    main()
