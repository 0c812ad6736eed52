"""The ends of growing logs: the files that a look-up reads, and partitions that disappear meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.names import HIGH_WATERMARK_FILE, PARTITION_METADATA_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import write_offset_checkpoint, write_partition_metadata
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.log_ends import LogEnds
from sediment.segment_io.tables.schema import READ_COMMITTED
from tests.segments import batch_bytes, write_segment

TOPIC_ID = "2tnuGBvqTMuFy-1w2cKMTw"


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


@pytest.mark.parametrize("isolation", ["read_uncommitted", READ_COMMITTED])
def test_a_partition_that_is_created_again_during_the_call_has_no_end_in_this_call(
    isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        write_segment(tmp_path / f"t-{number}", 0, [batch_bytes(0, "abc")])
    ends = LogEnds([tmp_path], isolation)
    sources = ends.sources()
    scan = Fs.scan
    recreated = []

    def recreating(fs: Fs, directory: Path) -> object:
        if directory.name != "t-0" or recreated:
            return scan(fs, directory)
        recreated.append(directory.rename(tmp_path / f"t-0.{'0' * 32}-delete"))
        try:
            return scan(fs, directory)
        finally:
            write_segment(directory, 7, [batch_bytes(7, "z")])

    with monkeypatch.context() as patch:
        patch.setattr(Fs, "scan", recreating)
        assert ends.of(sources.values()) == {sources["t-1"]: 3}
    assert recreated
    assert ends.now() == {"t-0": 8, "t-1": 3}


def test_the_topic_id_is_read_again_only_after_the_directory_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abc")])
    metadata = tmp_path / "t-0" / PARTITION_METADATA_FILE
    write_partition_metadata(Fs(), metadata, TOPIC_ID)
    read: list[Path] = []
    read_bytes = Fs.read_bytes

    def counted(fs: Fs, path: Path) -> bytes:
        read.append(path)
        return read_bytes(fs, path)

    monkeypatch.setattr(Fs, "read_bytes", counted)
    ends = LogEnds([tmp_path], "read_uncommitted")
    for _ in range(3):
        assert ends.now() == {"t-0": 3}
    assert read.count(metadata) == 1
    write_segment(tmp_path / "t-0", 3, [batch_bytes(3, "d")])
    assert ends.now() == {"t-0": 4}
    assert read.count(metadata) == 2


def test_a_topic_id_that_cannot_be_read_does_not_hide_the_end(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abc")])
    (tmp_path / "t-0" / PARTITION_METADATA_FILE).mkdir()  # a read of it raises OSError
    assert LogEnds([tmp_path], "read_uncommitted").now() == {"t-0": 3}


def test_an_error_is_not_lost_if_the_topic_id_appears_during_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abc")])
    ends = LogEnds([tmp_path], "read_uncommitted")
    sources = ends.sources()

    def failing(_fs: Fs, directory: Path) -> object:
        write_partition_metadata(Fs(), directory / PARTITION_METADATA_FILE, TOPIC_ID)
        raise CorruptBatchError("a wrong CRC")

    monkeypatch.setattr(Fs, "scan", failing)
    with pytest.raises(CorruptBatchError):
        ends.of(sources.values())


def test_a_corrupt_partition_that_is_still_the_same_is_an_error(tmp_path: Path) -> None:
    batch = bytearray(batch_bytes(0, "abc"))
    batch[16] = 99  # the magic
    write_segment(tmp_path / "t-0", 0, [bytes(batch)])
    write_segment(tmp_path / "t-0", 3, [batch_bytes(3, "d")])
    source = Source(TopicPartition("t", 0), tmp_path / "t-0")
    with pytest.raises(CorruptBatchError):
        LogEnds([tmp_path], READ_COMMITTED).of([source])
