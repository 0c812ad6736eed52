"""Files that a user names for reading: what is no file or pipe is refused, and no more than the limit is read."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sediment.segment_io.errors import SettingsError, UsageError
from sediment.segment_io.input_files import read_input_file

MOST_BYTES = 10


def refusal(path: Path, error_type: type[UsageError] = UsageError) -> str:
    with pytest.raises(error_type) as caught:
        read_input_file(path, MOST_BYTES, "--thing", advice="name another", error_type=error_type)
    assert caught.value.path == str(path) and caught.value.advice == "name another"
    return caught.value.what


def test_a_device_a_directory_and_a_missing_file_are_refused_with_the_error_of_the_caller(tmp_path: Path) -> None:
    assert refusal(Path("/dev/zero"), SettingsError) == "--thing cannot be read: it is neither a file nor a pipe"
    assert refusal(tmp_path) == "--thing cannot be read: Is a directory"
    assert refusal(tmp_path / "missing") == "--thing cannot be read: No such file or directory"


def test_a_file_and_an_endless_pipe_are_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * MOST_BYTES)
    assert read_input_file(path, MOST_BYTES, "--thing") == b"x" * MOST_BYTES
    os.truncate(path, 1 << 40)
    assert refusal(path) == "--thing is larger than 10 bytes"
    read_end, write_end = os.pipe()
    os.write(write_end, b"x" * 100)
    assert refusal(Path(f"/dev/fd/{read_end}")) == "--thing is larger than 10 bytes"
    os.close(read_end)
    os.close(write_end)


def test_a_pipe_is_read_to_its_end_after_its_writer_has_come(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Timer(0.1, path.write_bytes, [b"content"])
    writer.start()
    assert read_input_file(path, MOST_BYTES, "--thing") == b"content"
    writer.join()
