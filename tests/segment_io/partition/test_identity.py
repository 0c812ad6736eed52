"""Identities of partitions: the same after every change of a log, and another one if the partition is created again."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from sediment.segment_io.format.names import PARTITION_METADATA_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import write_partition_metadata
from sediment.segment_io.partition.identity import Identities, PartitionIdentity
from sediment.segment_io.partition.sources import Source
from tests.segments import batch_bytes, write_segment

OLD_ID, NEW_ID = "AAAAAAAAAAAAAAAAAAAAAQ", "BBBBBBBBBBBBBBBBBBBBAg"


def test_topic_ids_decide_if_both_have_one_and_directories_otherwise() -> None:
    def same(one: tuple[str | None, int, int | None], other: tuple[str | None, int, int | None]) -> bool:
        return PartitionIdentity(*one).is_same(PartitionIdentity(*other))

    assert same((OLD_ID, 1, 1), (OLD_ID, 2, 2))
    assert not same((OLD_ID, 1, 1), (NEW_ID, 1, 1))
    assert same((None, 1, 1), (NEW_ID, 1, 1))
    assert same((None, 1, None), (None, 1, None))
    assert not same((None, 1, 1), (None, 2, 1))


def test_a_directory_that_got_the_inode_of_a_deleted_one_is_another_partition() -> None:
    assert not PartitionIdentity(None, 1, 5).is_same(PartitionIdentity(None, 1, 6))


def test_the_creation_of_a_directory_has_one_time_whatever_happens_in_it(tmp_path: Path) -> None:
    source = Source(TopicPartition("t", 0), tmp_path / "t-0")
    write_segment(source.directory, 0, [batch_bytes(0, "abc")])
    known = PartitionIdentity.of(source, Fs())
    write_segment(source.directory, 3, [batch_bytes(3, "d")])
    (source.directory / f"{0:020d}.log").unlink()
    assert PartitionIdentity.of(source, Fs()) == known
    copied = Source(source.partition, tmp_path / "copy" / "t-0")
    shutil.copytree(source.directory, copied.directory)
    assert not PartitionIdentity.of(copied, Fs()).is_same(known)


def test_a_partition_that_was_created_again_is_another_one_without_an_id_too(tmp_path: Path) -> None:
    source, identities = Source(TopicPartition("t", 0), tmp_path / "t-0"), Identities(Fs())
    known = None
    for _ in range(3):
        write_segment(source.directory, 0, [batch_bytes(0, "abc")])
        found = identities.of(source)
        assert known is None or not found.is_same(known)
        known = found
        shutil.rmtree(source.directory)
        time.sleep(0.02)  # a kernel's clock may advance only every 10 ms


def test_an_id_that_is_written_later_is_read(tmp_path: Path) -> None:
    source, identities = Source(TopicPartition("t", 0), tmp_path / "t-0"), Identities(Fs())
    write_segment(source.directory, 0, [batch_bytes(0, "abc")])
    assert identities.of(source).topic_id is None
    write_partition_metadata(Fs(), source.directory / PARTITION_METADATA_FILE, OLD_ID)
    assert identities.of(source).topic_id == OLD_ID
