"""Names of partition directories and segment files."""

from __future__ import annotations

import pytest

from sediment.segment_io.errors import UsageError
from sediment.segment_io.names import (
    DirectoryState,
    SegmentFileKind,
    SegmentFileName,
    TopicPartition,
    parse_partition_directory,
    parse_segment_file,
    part_file_name,
    segment_file_name,
)

UUID = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "partition", "state"),
    [
        ("foo-bar-3", TopicPartition("foo-bar", 3), DirectoryState.LIVE),
        ("foo.bar-3", TopicPartition("foo.bar", 3), DirectoryState.LIVE),
        (f"foo.bar-3.{UUID}-delete", TopicPartition("foo.bar", 3), DirectoryState.DELETE),
        (f"foo.bar-3.{UUID}-future", TopicPartition("foo.bar", 3), DirectoryState.FUTURE),
        (f"foo-3.{UUID}-stray", TopicPartition("foo", 3), DirectoryState.STRAY),
    ],
)
def test_lm_07_names_of_partition_directories(name, partition, state):
    assert parse_partition_directory(name) == (partition, state)


@pytest.mark.parametrize("name", ["", "topic", "-3", "topic-", "topic-x", "topic-1-delete", "a-1.b", "lost+found"])
def test_lm_07_other_names_are_refused(name):
    with pytest.raises(UsageError, match="not named topic-partition"):
        parse_partition_directory(name)


def test_a_partition_is_printed_as_its_directory_is_named():
    assert str(TopicPartition("foo-bar", 3)) == "foo-bar-3"


@pytest.mark.parametrize("kind", list(SegmentFileKind))
@pytest.mark.parametrize("base_offset", [0, 7, 2**63 - 1])
def test_segment_files_are_found_again_by_their_names(base_offset, kind):
    name = segment_file_name(base_offset, kind)
    assert len(name) == 20 + len(kind)
    assert parse_segment_file(name) == SegmentFileName(base_offset, kind, "")
    for state in (".cleaned", ".swap", ".deleted"):
        assert parse_segment_file(name + state) == SegmentFileName(base_offset, kind, state)
    assert parse_segment_file(part_file_name(base_offset, kind, "run", "1.0.2")) == SegmentFileName(
        base_offset, kind, ".part"
    )


@pytest.mark.parametrize(
    "name",
    [
        "leader-epoch-checkpoint",
        "foo.log",
        "7.txt",
        "7.log",
        "00000000000000000000.log.tmp",
        "00000000000000000000.log\n",
        "00000000000000000000.log.swap\n",
        "00000000000000000000.log.run-1.part\n",
        "000000000000000000000000.log",
        "٠" * 20 + ".log",
    ],
)
def test_other_files_are_no_segment_files(name):
    assert parse_segment_file(name) is None
