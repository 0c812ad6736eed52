"""A cleaning with another encoding: the result is that of a cleaning followed by a re-encoding."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from sediment.compaction.clean_log import CleaningMode, clean_log
from sediment.compaction.prepared_swap import CleanStats, PreparedSwap
from sediment.compaction.reencode.cleaned_batches import CleanedBatches
from sediment.compaction.reencode.plan import Encoding
from sediment.engine.directory.swap import commit
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.layout import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import DryRunFs, Fs
from tests.compaction.cleanings import Round, plan_of
from tests.compaction.splittings import Splitting, clean_in_splits, contents
from tests.logs import START_MS, LogShape, write_random_log
from tests.reencodes import random_encoding, reencode_log
from tests.rewrites import view_of, visible_records
from tests.segments import batch_bytes, write_segment
from tests.twin.batches import Record, encode_batch
from tests.twin.segments import list_segments

SHAPES = {
    "plain": LogShape(transactional=0.2, gaps=0.03),
    "codecs": LogShape(codecs=(0, 1, 2, 3, 4), transactional=0.0, idempotent=0.0, horizons=0.3),
    "producers": LogShape(transactional=0.0, idempotent=0.9, most_records=2, segment_bytes=2000, gaps=0.0),
    "legacy": LogShape(codecs=(0, 1, 2, 3), magics=(0, 1, 2), transactional=0.0),
}
ROUND = Round(now_ms=START_MS + 3_600_000, segment_bytes=1 << 20)
SMALLER = Encoding(CODEC_ZSTD, batch_bytes=64 << 10)


def clean(directory: Path, encoding: Encoding | None, fs: Fs | None = None) -> PreparedSwap:
    plan = plan_of(directory, ROUND)
    assert plan is not None
    return clean_log(plan, fs or Fs(), Attempt("r", "0"), CleaningMode(encoding=encoding))


def log_files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix != ".snapshot"}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_the_result_is_that_of_a_cleaning_and_then_a_reencoding(shape: str, seed: int, tmp_path: Path):
    directory, other = tmp_path / "t-0", tmp_path / "other"
    write_random_log(directory, seed, SHAPES[shape])
    shutil.copytree(directory, other)
    encoding = random_encoding(seed)
    done = clean(directory, encoding)
    commit(done, Fs())

    plain = clean(other, None)
    commit(plain, Fs())
    cleaned = {segment.base_offset for segment in list_segments(other)[:-1]}
    later = reencode_log(view_of(other), encoding, ROUND.config(), attempt="1")
    of_cleaned = [each for each in later.segments if each.group.sources[0].base_offset in cleaned]
    active = [each for each in later.segments if each not in of_cleaned]
    for part in (file for each in active for segment in each.group.parts for file in segment.files):
        (other / part.part_name).unlink()
    groups = tuple(each.group for each in of_cleaned)
    commit(PreparedSwap(later.swap.partition, later.swap.directory, groups, later.swap.next_dirty_offset), Fs())
    assert log_files(directory) == log_files(other)

    both = sum((group.stats for group in done.groups), CleanStats())
    assert both.batches_encoded == sum(each.stats.batches_encoded for each in of_cleaned)
    expected = sum((group.stats for group in plain.groups), CleanStats())
    assert (both.messages_read, both.messages_written) == (expected.messages_read, expected.messages_written)
    sizes = [part.files[0].size_bytes for group in done.groups for part in group.parts]
    assert sum(group.stats.bytes_written for group in done.groups if group.parts) == sum(sizes)


@pytest.mark.parametrize("seed", range(2))
def test_splits_give_the_same_bytes_as_one_task(seed: int, tmp_path: Path):
    directory = tmp_path / "t-0"
    write_random_log(directory, seed, LogShape(transactional=0.0, idempotent=0.0, segment_bytes=2000))
    plan = plan_of(directory, Round(now_ms=ROUND.now_ms))
    assert plan is not None
    assert len(plan.groups) > 1
    whole = clean_log(plan, Fs(), Attempt("whole", "0"), CleaningMode(encoding=SMALLER))
    groups = clean_in_splits(plan, Splitting(bounds=(1,)), encoding=SMALLER)
    assert [group.stats for group in groups] == [group.stats for group in whole.groups]
    assert sum(group.stats.batches_encoded for group in groups) > 0
    assert contents(directory, groups) == contents(directory, whole.groups)


def unique_log(directory: Path, codec: int) -> None:
    """Write a log in which a cleaning changes nothing: a closed segment, and an active one."""
    batches = [
        encode_batch(
            [Record(n, START_MS, b"key-%d" % n, b"value" * 40, ())], base_offset=n, codec=codec, leader_epoch=0
        )
        for n in range(40)
    ]
    write_segment(directory, 0, batches)
    write_segment(directory, 40, [batch_bytes(40, "a")])


def test_segments_that_a_cleaning_leaves_alone_are_encoded_and_the_active_one_stays(tmp_path: Path):
    unique_log(tmp_path, CODEC_NONE)
    active = (tmp_path / f"{40:020d}.log").read_bytes()
    records = visible_records(tmp_path, committed=True)
    planned = clean(tmp_path, SMALLER, DryRunFs())
    assert not list(tmp_path.glob("*.part"))
    done = clean(tmp_path, SMALLER)
    assert planned.groups == done.groups
    commit(done, Fs())
    first, last = list_segments(tmp_path)
    assert [(batch.codec, batch.count) for _, batch in first.batches()] == [(CODEC_ZSTD, 40)]
    assert (tmp_path / f"{40:020d}.log").read_bytes() == active and last.base_offset == 40
    assert visible_records(tmp_path, committed=True) == records


def test_nothing_is_written_if_no_batch_gets_another_encoding(tmp_path: Path):
    unique_log(tmp_path, CODEC_LZ4)
    commit(clean(tmp_path, None), Fs())
    for encoding in (Encoding(CODEC_LZ4), Encoding(batch_bytes=100)):
        (group,) = clean(tmp_path, encoding).groups
        assert (group.parts, group.stats.batches_encoded) == ((), 0)
        assert not list(tmp_path.glob("*.part"))


def test_after_a_failed_write_no_part_is_left(tmp_path: Path):
    unique_log(tmp_path, CODEC_NONE)
    before = log_files(tmp_path)

    class Full(Fs):
        def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
            if path.name.endswith(".part") and ".timeindex" in path.name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return super().write_new(path, chunks)

    with pytest.raises(OSError, match="No space"):
        clean(tmp_path, SMALLER, Full())
    assert log_files(tmp_path) == before


def test_a_cleaned_segment_that_ends_inside_a_batch_is_never_cut(tmp_path: Path):
    unique_log(tmp_path, CODEC_NONE)
    content = np.fromfile(tmp_path / f"{0:020d}.log", dtype=np.uint8)
    source = CleanedBatches(content[:-1], tmp_path)
    with pytest.raises(CorruptBatchError, match="ends inside a batch"):
        list(source.spans())
