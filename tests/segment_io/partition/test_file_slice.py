"""Slices of files: read, sent piece by piece, closed, and cut short under their reader."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sediment.segment_io.errors import UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.file_slice import FileSlice

CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "00000000000000000000.log"
    found.write_bytes(CONTENT)
    return found


def test_a_slice_is_read_in_parts(path: Path) -> None:
    part = FileSlice(Fs().open_readable(path), 100, 5000)
    assert part.read() == CONTENT[100:5100]
    assert part.read(10) == CONTENT[110:5100]
    assert part.read(10, 20) == CONTENT[110:130]
    assert part.read(4990, 20) == CONTENT[5090:5100]
    assert part.read(5000) == b""


def test_a_slice_is_sent_as_far_as_the_socket_takes_it(path: Path) -> None:
    part = FileSlice(Fs().open_readable(path), 100, len(CONTENT) - 200)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        sent, received, blocked = 0, bytearray(), 0
        while sent < part.size_bytes:
            count = part.send_some(ours, sent)
            sent += count
            if count == 0:
                blocked += 1
                received += theirs.recv(1 << 20)
        assert part.send_some(ours, sent) == 0
        while len(received) < sent:
            received += theirs.recv(1 << 20)
    assert blocked
    assert bytes(received) == CONTENT[100:-100]


def test_slices_share_a_descriptor_that_closes_with_the_last_of_them(path: Path) -> None:
    file = Fs().open_readable(path)
    parts = [FileSlice(file, 0, 10), FileSlice(file, 10, 10)]
    descriptor = file.descriptor
    del file
    path.unlink()
    parts[0].close()
    parts[0].close()
    assert parts[1].fileno() == descriptor
    assert parts[1].read() == CONTENT[10:20]
    parts[1].close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with pytest.raises(UsageError, match="closed"):
        parts[1].read()


def test_a_file_that_was_cut_below_a_slice_is_an_error_and_no_short_answer(path: Path) -> None:
    part = FileSlice(Fs().open_readable(path), 1000, 5000)
    os.truncate(path, 3000)
    with pytest.raises(OSError, match="truncated"):
        part.read()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert part.send_some(ours, 0) == 2000
        with pytest.raises(OSError, match="truncated"):
            part.send_some(ours, 2000)


def test_a_readable_file_cannot_be_written_to(path: Path) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(Fs().open_readable(path).descriptor, b"x", 0)
