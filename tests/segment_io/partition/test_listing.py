import pytest

from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import list_log, stat_segment
from tests.segments import batch_bytes, write_segment

PARTITION = TopicPartition("t", 0)


@pytest.fixture
def directory(tmp_path):
    write_segment(tmp_path, 0, [batch_bytes(0, "abc")])
    write_segment(tmp_path, 3, [batch_bytes(3, "ab")])
    (tmp_path / f"{3:020d}.timeindex").unlink()
    (tmp_path / f"{3:020d}.txnindex").write_bytes(bytes(34))
    return tmp_path


def test_a_segment_by_itself_equals_the_one_of_the_listing(directory):
    segments = list_log(PARTITION, directory, Fs()).segments
    assert [segment.base_offset for segment in segments] == [0, 3]
    assert segments[1].time_index_bytes is None
    assert segments[1].transaction_index_bytes == 34
    assert [stat_segment(directory, base, Fs()) for base in (0, 3)] == list(segments)


def test_the_files_of_a_segment_may_have_a_suffix(directory):
    (expected,) = list_log(PARTITION, directory, Fs()).segments[:1]
    for path in directory.glob(f"{0:020d}.*"):
        path.rename(path.with_name(path.name + ".swap"))
    assert stat_segment(directory, 0, Fs()) is None
    assert stat_segment(directory, 0, Fs(), suffix=".swap") == expected


def test_without_its_log_there_is_no_segment(directory):
    (directory / f"{3:020d}.log").unlink()
    assert stat_segment(directory, 3, Fs()) is None
    assert stat_segment(directory, 7, Fs()) is None
