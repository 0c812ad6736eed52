import errno

import pytest

from sediment.segment_io.errors import CorruptCheckpointError, UsageError
from sediment.segment_io.format.checkpoints import EpochEntry, format_leader_epochs, parse_leader_epochs
from sediment.segment_io.format.meta_properties import MetaProperties, parse_meta_properties
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import (
    LogDirCheckpoints,
    log_start_entries,
    read_leader_epochs,
    read_meta_properties,
    read_offset_checkpoint,
    read_partition_metadata,
    update_offset_checkpoint,
    write_leader_epochs,
    write_meta_properties,
    write_offset_checkpoint,
    write_partition_metadata,
)

A0, BC3, T0, X1 = (TopicPartition(*pair) for pair in (("a", 0), ("b-c", 3), ("t", 0), ("x", 1)))
AT, INSIDE, BELOW = (TopicPartition("t", number) for number in range(3))
TOPIC_ID = "oUEtv2cKRSmDdBgjA0X1_A"


class CountingFs(Fs):
    """Counts the files that are replaced, and can lose power before the last rename."""

    def __init__(self, *, fails=False):
        self.replaced = 0
        self.fails = fails

    def rename(self, source, target):
        if self.fails:
            raise OSError(errno.EIO, "power lost")
        self.replaced += 1
        super().rename(source, target)


def test_an_absent_checkpoint_is_none_and_an_empty_one_is_not(tmp_path):
    path = tmp_path / "cleaner-offset-checkpoint"
    assert read_offset_checkpoint(Fs(), path) is None
    path.write_bytes(b"")
    assert read_offset_checkpoint(Fs(), path) == {}


def test_ix_23_a_checkpoint_is_written_through_a_file_that_does_not_remain(tmp_path):
    path = tmp_path / "recovery-point-offset-checkpoint"
    (tmp_path / "recovery-point-offset-checkpoint.tmp").write_bytes(b"left by a crash")
    write_offset_checkpoint(Fs(), path, {T0: 9})
    assert path.read_bytes() == b"0\n1\nt 0 9\n"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_ix_23_a_write_that_fails_leaves_the_old_content(tmp_path):
    path = tmp_path / "cleaner-offset-checkpoint"
    write_offset_checkpoint(Fs(), path, {T0: 9})
    with pytest.raises(OSError, match="power lost"):
        write_offset_checkpoint(CountingFs(fails=True), path, {T0: 10})
    assert read_offset_checkpoint(Fs(), path) == {T0: 9}


@pytest.mark.parametrize(
    ("partition", "offset"),
    [
        (TopicPartition("old backup", 1), 5),
        (TopicPartition("a\nb", 0), 5),
        (TopicPartition("a\tb", 0), 5),
        (TopicPartition("\udcffq", 0), 5),
        (TopicPartition("t", 2**31), 5),
        (T0, 2**63),
    ],
)
def test_an_entry_that_kafka_could_not_read_is_refused_before_a_file_is_touched(tmp_path, partition, offset):
    path = tmp_path / "log-start-offset-checkpoint"
    write_offset_checkpoint(Fs(), path, {T0: 9})
    for write in (write_offset_checkpoint, update_offset_checkpoint):
        with pytest.raises(UsageError, match="Kafka cannot read a checkpoint file") as caught:
            write(Fs(), path, {X1: 3, partition: offset})
        assert str(caught.value).isprintable()
    assert path.read_bytes() == b"0\n1\nt 0 9\n"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_entries_that_kafka_wrote_for_topics_of_any_name_are_kept(tmp_path):
    path = tmp_path / "recovery-point-offset-checkpoint"
    path.write_bytes("0\n2\nt\u00f6pic 0 5\nb:c -1 -7\n".encode())
    update_offset_checkpoint(Fs(), path, {T0: 9})
    assert path.read_bytes() == "0\n3\nt\u00f6pic 0 5\nb:c -1 -7\nt 0 9\n".encode()


@pytest.mark.parametrize("entry", [EpochEntry(2**31, 0), EpochEntry(0, 2**63)])
def test_a_leader_epoch_beyond_kafkas_types_is_refused(tmp_path, entry):
    path = tmp_path / "leader-epoch-checkpoint"
    with pytest.raises(UsageError, match="does not fit Kafka's types"):
        write_leader_epochs(Fs(), path, [entry])
    assert not path.exists()


def test_cm_19_an_update_keeps_the_entries_of_partitions_it_does_not_name(tmp_path):
    path = tmp_path / "cleaner-offset-checkpoint"
    path.write_bytes(b"0\n2\nx 1 3\nt 0 1\n")
    update_offset_checkpoint(Fs(), path, {T0: 5, A0: 2})
    assert path.read_bytes() == b"0\n3\nx 1 3\nt 0 5\na 0 2\n"
    update_offset_checkpoint(Fs(), path, {}, remove=[X1, BC3])
    assert read_offset_checkpoint(Fs(), path) == {T0: 5, A0: 2}


def test_an_update_creates_the_file_and_leaves_it_alone_when_nothing_changes(tmp_path):
    path = tmp_path / "cleaner-offset-checkpoint"
    fs = CountingFs()
    update_offset_checkpoint(fs, path, {T0: 5})
    assert (path.read_bytes(), fs.replaced) == (b"0\n1\nt 0 5\n", 1)
    update_offset_checkpoint(fs, path, {T0: 5}, remove=[X1])
    assert fs.replaced == 1


def test_an_update_of_a_corrupt_checkpoint_destroys_nothing(tmp_path):
    path = tmp_path / "cleaner-offset-checkpoint"
    path.write_bytes(b"0\n2\nt 0 1\n")
    with pytest.raises(CorruptCheckpointError, match=str(path)):
        update_offset_checkpoint(Fs(), path, {T0: 5})
    assert path.read_bytes() == b"0\n2\nt 0 1\n"


def test_leader_epochs_parse_and_format(tmp_path):
    path = tmp_path / "leader-epoch-checkpoint"
    assert read_leader_epochs(Fs(), path) is None
    write_leader_epochs(Fs(), path, [EpochEntry(0, 0)])
    assert path.read_bytes() == b"0\n1\n0 0\n"
    assert read_leader_epochs(Fs(), path) == (EpochEntry(0, 0),)
    assert format_leader_epochs([]) == b"0\n0\n"
    assert parse_leader_epochs(b"0\n3\n2 16\n0 0\n1 10\n") == (EpochEntry(0, 0), EpochEntry(1, 10), EpochEntry(2, 16))


def test_ix_24_partition_metadata_is_43_bytes_without_a_final_line_end(tmp_path):
    path = tmp_path / "partition.metadata"
    assert read_partition_metadata(Fs(), path) is None
    write_partition_metadata(Fs(), path, TOPIC_ID)
    assert path.read_bytes() == b"version: 0\ntopic_id: " + TOPIC_ID.encode()
    assert len(path.read_bytes()) == 43
    assert read_partition_metadata(Fs(), path) == TOPIC_ID


def test_meta_properties_of_version_1_need_node_and_cluster(tmp_path):
    path = tmp_path / "meta.properties"
    assert read_meta_properties(Fs(), path) is None
    path.write_text(
        f"#\n#Sat Nov 21 04:00:00 UTC 2026\ncluster.id=abc\nversion=1\ndirectory.id={TOPIC_ID}\nnode.id=3\n"
    )
    assert read_meta_properties(Fs(), path) == MetaProperties(1, "abc", 3, TOPIC_ID)
    for content in (b"version=1\nnode.id=3\n", b"version=1\ncluster.id=abc\nbroker.id=3\n"):
        with pytest.raises(CorruptCheckpointError, match="needs node"):
            parse_meta_properties(content)


@pytest.mark.parametrize(
    "meta", [MetaProperties(1, "abc", 3, TOPIC_ID), MetaProperties(1, "abc", 3, None), MetaProperties(0, None, 5, None)]
)
def test_meta_properties_come_back_as_they_were_written(tmp_path, meta):
    path = tmp_path / "meta.properties"
    write_meta_properties(Fs(), path, meta)
    assert read_meta_properties(Fs(), path) == meta


# ------------------------------------------------------------------------------------------- checkpoints of a directory
def test_lm_06_only_logs_that_start_above_their_first_segments_base_are_in_the_log_start_checkpoint() -> None:
    assert log_start_entries([(AT, 4, 4), (INSIDE, 5, 4), (BELOW, 3, 4)]) == {INSIDE: 5}


def test_the_entries_of_one_partition_leave_absent_files_absent() -> None:
    every = {AT: 1, INSIDE: 2}
    found = LogDirCheckpoints(every, None, every, {INSIDE: 3}, clean_shutdown=True)
    assert found.only(AT) == LogDirCheckpoints({AT: 1}, None, {AT: 1}, {}, clean_shutdown=True)
    assert found.only(AT).of(AT) == found.of(AT)
