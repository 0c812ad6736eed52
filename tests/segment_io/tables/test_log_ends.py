"""Ends of logs that may grow: what is read for them, and partitions that disappear."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sediment.segment_io.format.names import HIGH_WATERMARK_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import write_offset_checkpoint
from sediment.segment_io.tables.log_ends import LogEnds
from sediment.segment_io.tables.schema import READ_COMMITTED
from tests.segments import batch_bytes, write_segment


def test_read_committed_reads_each_checkpoint_file_once_for_all_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        write_segment(tmp_path / f"t-{number}", 0, [batch_bytes(0, "abc")])
    marks = {TopicPartition("t", number): number for number in range(5)}
    write_offset_checkpoint(Fs(), tmp_path / HIGH_WATERMARK_FILE, marks)
    read: list[str] = []
    read_bytes = Fs.read_bytes

    def counted(fs: Fs, path: Path) -> bytes:
        read.append(path.name)
        return read_bytes(fs, path)

    monkeypatch.setattr(Fs, "read_bytes", counted)
    ends = LogEnds([tmp_path], READ_COMMITTED)
    for _ in range(2):
        assert ends.now() == {f"t-{number}": min(number, 3) for number in range(5)}
        assert read.count(HIGH_WATERMARK_FILE) == 1
        read.clear()


@pytest.mark.parametrize("isolation", ["read_uncommitted", READ_COMMITTED])
def test_a_partition_that_disappears_during_the_call_has_no_end(isolation: str, tmp_path: Path) -> None:
    for number in range(2):
        write_segment(tmp_path / f"t-{number}", 0, [batch_bytes(0, "abc")])
    ends = LogEnds([tmp_path], isolation)
    sources = ends.sources()
    shutil.rmtree(tmp_path / "t-0")
    assert ends.of(sources.values()) == {sources["t-1"]: 3}
