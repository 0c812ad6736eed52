import pytest

from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.clean_shutdown_file import (
    NEW_DIRECTORY,
    RAISED_EPOCHS,
    CleanShutdown,
    format_clean_shutdown,
    is_new_directory,
    parse_clean_shutdown,
    read_clean_shutdown,
    take_clean_shutdown,
    write_clean_shutdown,
)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b"[1]",
        b'{"version":0}',
        b'{"brokerEpoch":null}',
        b'{"brokerEpoch":"x"}',
        b"\xff\xfe",
        b"[" * 99_999,
    ],
)
def test_a_marker_that_tells_no_epoch_is_still_a_clean_shutdown(content):
    assert parse_clean_shutdown(content) == CleanShutdown(None)


@pytest.mark.parametrize(
    "marker", [CleanShutdown(None), CleanShutdown(0), CleanShutdown(42), NEW_DIRECTORY, RAISED_EPOCHS]
)
def test_a_marker_comes_back_as_it_was_written(marker):
    assert parse_clean_shutdown(format_clean_shutdown(marker)) == marker


def test_lm_03_the_clean_shutdown_marker_tells_the_broker_epoch(tmp_path):
    (tmp_path / ".lock").touch()
    assert read_clean_shutdown(Fs(), tmp_path) is None
    write_clean_shutdown(Fs(), tmp_path, CleanShutdown(42), like=tmp_path / ".lock")
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == b'{"version":0,"brokerEpoch":42}'
    assert read_clean_shutdown(Fs(), tmp_path) == CleanShutdown(42)


@pytest.mark.parametrize("marker", [None, CleanShutdown(None), CleanShutdown(42)])
def test_only_the_marker_of_a_new_directory_proves_that_it_is_new(tmp_path, marker):
    (tmp_path / ".lock").touch()
    write_clean_shutdown(Fs(), tmp_path, NEW_DIRECTORY, like=tmp_path / ".lock")
    assert is_new_directory(Fs(), tmp_path)
    assert take_clean_shutdown(Fs(), tmp_path) == NEW_DIRECTORY
    if marker is not None:
        write_clean_shutdown(Fs(), tmp_path, marker, like=tmp_path / ".lock")
    assert not is_new_directory(Fs(), tmp_path)


def test_a_marker_is_taken_once(tmp_path):
    (tmp_path / ".kafka_cleanshutdown").write_bytes(b"")
    assert take_clean_shutdown(Fs(), tmp_path) == CleanShutdown(None)
    assert take_clean_shutdown(Fs(), tmp_path) is None
    assert list(tmp_path.iterdir()) == []
