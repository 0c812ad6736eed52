"""Cleanings of a log in this process by our cleaner and by the twin, and logs to clean."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from sediment.compaction.clean_log import clean_log
from sediment.compaction.cleanable_range import cleanable_range
from sediment.compaction.config import CompactionConfig
from sediment.compaction.grouping import CleaningPlan, plan_cleaning
from sediment.compaction.prepared_swap import PreparedSwap
from sediment.segment_io.format.names import Attempt, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import open_view
from tests.corpus import assert_same_log
from tests.logs import START_MS, LogShape, write_segment
from tests.twin import cleaner as twin
from tests.twin.batches import Record, encode_batch, parse_batch
from tests.twin.snapshots import ProducerStates

ALL_CODECS = (0, 1, 2, 3, 4)
PARTITION = TopicPartition("t", 0)


@dataclass(frozen=True, slots=True)
class Round:
    now_ms: int
    segment_bytes: int = 4000
    delete_retention_ms: int | None = 60_000
    map_bytes: int | None = None
    dirty: int | None = None
    producer_expiration_ms: int | None = 86_400_000

    def config(self) -> CompactionConfig:
        return CompactionConfig(
            cleanup_policy=("compact",),
            segment_bytes=self.segment_bytes,
            index_interval_bytes=300,
            delete_retention_ms=self.delete_retention_ms,
            dedupe_buffer_bytes=self.map_bytes,
            producer_id_expiration_ms=self.producer_expiration_ms,
        )

    def keys(self) -> dict[str, str | None]:
        return {
            "segment.bytes": str(self.segment_bytes),
            "index.interval.bytes": "300",
            "delete.retention.ms": None if self.delete_retention_ms is None else str(self.delete_retention_ms),
        }


NOW = Round(START_MS + 1_000_000)


def plan_of(
    directory: Path, given: Round, fs: Fs | None = None, config: CompactionConfig | None = None
) -> CleaningPlan | None:
    """Return the plan of a cleaning, or None if the policy blocks it."""
    fs = fs or Fs()
    config = config or given.config()
    listing = list_log(PARTITION, directory, fs)
    checkpoints = PartitionCheckpoints(first_dirty=given.dirty)
    view = open_view(
        listing, checkpoints, fs, now_ms=given.now_ms, producer_id_expiration_ms=config.producer_id_expiration_ms
    )
    cleanable = cleanable_range(view, config, now_ms=given.now_ms, force=True)
    if cleanable.blocked_by is not None:
        return None
    return plan_cleaning(view, cleanable, config, now_ms=given.now_ms)


def prepare(directory: Path, given: Round, fs: Fs | None = None) -> PreparedSwap | None:
    """Return the swap that our cleaner prepares, or None if the policy blocks the cleaning."""
    plan = plan_of(directory, given, fs)
    return plan and clean_log(plan, fs or Fs(), Attempt("r", "0"))


def put_in_place(swap: PreparedSwap) -> None:
    """Replace the sources by the parts, without the steps that make a commit crash-safe."""
    directory = Path(swap.directory)
    for group in swap.groups:
        if not group.parts:
            continue
        bases = {part.base_offset for part in group.parts}
        for source in group.sources:
            for suffix in (".log", ".index", ".timeindex", ".txnindex"):
                (directory / f"{source.base_offset:020d}{suffix}").unlink(missing_ok=True)
            if source.base_offset not in bases:
                (directory / f"{source.base_offset:020d}.snapshot").unlink(missing_ok=True)
        for part in group.parts:
            for file in part.files:
                (directory / file.part_name).rename(directory / file.final_name)


def clean_both(directory: Path, given: Round, *, compressed: bool) -> int | None:
    """Clean with our cleaner and a copy with the twin; both must agree.  Return the next dirty offset."""
    copy = directory.with_name(directory.name + "-twin")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    swap = prepare(directory, given)
    if swap is None:
        return None
    put_in_place(swap)
    expected = twin.clean_directory(
        copy,
        config=given.keys(),
        now_ms=given.now_ms,
        first_dirty_offset=given.dirty,
        map_bytes=given.map_bytes,
        producer_expiration_ms=given.producer_expiration_ms,
    )
    assert sorted(f.name for f in directory.iterdir()) == sorted(f.name for f in copy.iterdir())
    assert_same_log(directory, copy, compressed)
    stats = [(g.stats.messages_read, g.stats.messages_written, g.stats.records_without_key) for g in swap.groups]
    assert [sum(column) for column in zip(*stats, strict=True)] == [
        expected.stats.messages_read,
        expected.stats.messages_written,
        expected.stats.invalid_messages,
    ]
    assert swap.next_dirty_offset == expected.end_offset
    if compressed:
        # Compressed sizes steer grouping, so a later round starts from the twin's result.
        shutil.rmtree(directory)
        copy.rename(directory)
    return swap.next_dirty_offset


def batch_of(offset: int, key: bytes, value: bytes | None = b"v") -> bytes:
    return encode_batch([Record(offset, START_MS + offset, key, value)], base_offset=offset, leader_epoch=0)


def write_log(directory: Path, segments: dict[int, list[bytes]]) -> Path:
    """Write a directory of the given segments and an empty active one after them."""
    directory.mkdir()
    states, shape = ProducerStates(), LogShape()
    end = 0
    for base, batches in segments.items():
        write_segment(directory, base, [parse_batch(batch) for batch in batches], states, shape)
        end = max([end, *(parse_batch(batch).next_offset for batch in batches)])
    write_segment(directory, end, [], states, shape)
    return directory


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(bytes(content))


def renumbered(batch: bytes, offset: int) -> bytes:
    """Return the batch at another offset, which no checksum covers."""
    return offset.to_bytes(8, "big", signed=True) + batch[8:]
