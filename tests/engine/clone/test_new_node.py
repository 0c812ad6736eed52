"""The log directory of a new node, which processes may try to make at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.engine.clone.new_node import format_new_node, is_new
from sediment.engine.directory.lock import DirectoryLock
from sediment.segment_io.errors import DirectoryInUseError, UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import read_bootstrap_records
from sediment.segment_io.partition.checkpoint_files import read_meta_properties
from tests.faults.faulty_fs import FaultyFs, Kill, Killed
from tests.segments import NOW_MS


def test_a_directory_is_made_by_one_process_at_a_time(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path), pytest.raises(DirectoryInUseError):
        format_new_node(tmp_path, Fs(), now_ms=NOW_MS)
    format_new_node(tmp_path, Fs(), now_ms=NOW_MS)
    assert not is_new(tmp_path, Fs())
    with pytest.raises(UsageError, match="only an empty directory can be formatted"):
        format_new_node(tmp_path, Fs(), now_ms=NOW_MS)


def test_after_a_kill_the_directory_is_made_again(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    fs = FaultyFs()
    format_new_node(whole, fs, now_ms=NOW_MS)
    for number in range(1, fs.operations + 1):
        path = tmp_path / str(number)
        path.mkdir()
        with pytest.raises(Killed):
            format_new_node(path, FaultyFs(fault=Kill(number)), now_ms=NOW_MS)
        if is_new(path, Fs()):
            node = format_new_node(path, Fs(), now_ms=NOW_MS)
            meta = read_meta_properties(Fs(), path / "meta.properties")
            assert meta is not None and meta.directory_id == node.directory_id
        assert read_bootstrap_records(path, Fs()) is not None


def test_server_properties_that_an_operator_changed_stay(tmp_path: Path) -> None:
    format_new_node(tmp_path, Fs(), now_ms=NOW_MS)
    for name in ("bootstrap.checkpoint", "meta.properties", ".kafka_cleanshutdown"):
        (tmp_path / name).unlink()
    assert is_new(tmp_path, Fs())
    with (tmp_path / "server.properties").open("a") as file:
        file.write("log.retention.ms=-1\n")
    assert not is_new(tmp_path, Fs())


@pytest.mark.parametrize("name", ["server.properties", "bootstrap.checkpoint", "notes.txt"])
def test_a_directory_with_another_file_is_not_new(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("process.roles=broker")
    assert not is_new(tmp_path, Fs())
