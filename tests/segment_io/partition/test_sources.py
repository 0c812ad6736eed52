"""Sources that paths name, and the errors for paths that name nothing."""

from pathlib import Path

import pytest

from sediment.segment_io.errors import NotALogDirectoryError, UsageError
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.sources import UNNUMBERED, Source, find_sources
from tests.segments import batch_bytes, write_segment


@pytest.fixture
def log_dir(tmp_path):
    for name in ("b-0", "a-10", "a-2"):
        write_segment(tmp_path / "logs" / name, 0, [batch_bytes(0)])
    return tmp_path / "logs"


def found(*paths):
    return [str(source.directory.name) for source in find_sources(paths, Fs())]


def test_a_log_directory_is_its_partitions_by_topic_and_number(log_dir):
    assert found(log_dir) == ["a-2", "a-10", "b-0"]


def test_numbers_in_names_of_topics_are_read_as_numbers(tmp_path):
    names = ["g2-0", "g10-0", "orders-2", "orders-11", "orders-2-0", "orders-10-0"]
    for name in reversed(names):
        write_segment(tmp_path / name, 0, [batch_bytes(0)])
    assert found(tmp_path) == names
    assert found(f"{tmp_path}/*") == names


def test_directories_that_brokers_pass_over_are_no_partitions_of_a_log_directory(log_dir):
    hexadecimal = "0123456789abcdef0123456789abcdef"
    skipped = [f"b-1.{hexadecimal}-{state}" for state in ("delete", "stray", "future")]
    for name in (*skipped, "__cluster_metadata-0", "remote-log-index-cache", "lost+found"):
        write_segment(log_dir / name, 0, [batch_bytes(0)])
    assert found(log_dir) == ["a-2", "a-10", "b-0"]
    assert [source.partition for source in find_sources([log_dir / skipped[0]], Fs())] == [TopicPartition("b", 1)]
    assert found(log_dir / "__cluster_metadata-0") == ["__cluster_metadata-0"]


def test_a_segment_is_named_by_any_of_its_files(log_dir):
    for kind in (SegmentFileKind.LOG, SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX):
        path = log_dir / "b-0" / f"{0:020d}{kind}"
        (source,) = find_sources([path], Fs())
        assert (source.partition, source.base_offset, source.named) == (TopicPartition("b", 0), 0, kind)
    deleted = log_dir / "b-0" / f"{0:020d}.log.deleted"
    deleted.write_bytes(b"")
    assert find_sources([deleted], Fs())[0].log_name == deleted.name


def test_a_directory_of_another_name_is_a_topic_without_a_number(tmp_path):
    write_segment(tmp_path / "copy of it", 0, [batch_bytes(0)])
    (source,) = find_sources([tmp_path / "copy of it"], Fs())
    assert source.partition == TopicPartition("copy of it", UNNUMBERED)


def test_lists_globs_and_uris_name_each_source_once(log_dir):
    assert found(f"{log_dir}/a-*") == ["a-2", "a-10"]
    assert found(f"{log_dir}/a-*", log_dir / "a-2", f"file:{log_dir}/b-0", f"file://{log_dir}/b-0") == [
        "a-2",
        "a-10",
        "b-0",
    ]
    assert found(f"{log_dir}/*") == ["a-2", "a-10", "b-0"]
    (log_dir / "replication-offset-checkpoint").write_text("0\n0\n")
    assert found(f"{log_dir}/*") == ["a-2", "a-10", "b-0"]


def test_a_name_with_glob_characters_that_exists_is_taken_as_it_is(tmp_path):
    write_segment(tmp_path / "a[1]-0", 0, [batch_bytes(0)])
    assert found(tmp_path / "a[1]-0") == ["a[1]-0"]


def test_empty_partitions_and_log_directories_are_sources_without_segments(tmp_path):
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("0\n0\n")
    assert find_sources([tmp_path / "t-0"], Fs()) == (Source(TopicPartition("t", 0), tmp_path / "t-0"),)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "meta.properties").write_text("version=0\n")
    assert find_sources([tmp_path / "logs"], Fs()) == ()


def test_relative_paths_become_absolute(log_dir, monkeypatch):
    monkeypatch.chdir(log_dir)
    assert find_sources(["b-0"], Fs())[0].directory == log_dir / "b-0"


@pytest.mark.parametrize(
    ("make", "kind", "sentence"),
    [
        (lambda path: path / "nothing", NotALogDirectoryError, "no such file or directory"),
        (lambda path: path, NotALogDirectoryError, "the directory is empty"),
        (lambda path: path / "*.log", UsageError, "no path matches the pattern"),
        (lambda path: f"s3://{path}", UsageError, "s3: paths cannot be read"),
    ],
)
def test_what_names_nothing_is_one_sentence_with_what_to_do(make, kind, sentence, tmp_path):
    with pytest.raises(kind, match=sentence) as raised:
        find_sources([make(tmp_path)], Fs())
    assert raised.value.advice
    assert "\n" not in str(raised.value)


def test_files_that_are_no_segments_are_told(tmp_path):
    (tmp_path / "data.csv").write_text("a,b\n")
    with pytest.raises(NotALogDirectoryError, match="the file name is not that of a segment file"):
        find_sources([tmp_path / "data.csv"], Fs())
    with pytest.raises(NotALogDirectoryError, match="neither segments nor partitions"):
        find_sources([tmp_path], Fs())
    with pytest.raises(UsageError, match="no path is given"):
        find_sources([], Fs())


def test_a_directory_is_not_opened_to_be_located(log_dir):
    (log_dir / "a-2").chmod(0)
    try:
        assert found(log_dir) == ["a-2", "a-10", "b-0"]
    finally:
        Path(log_dir / "a-2").chmod(0o755)
