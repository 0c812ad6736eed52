"""New files: they are complete for all chunk sizes and on all filesystems."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from sediment.segment_io import fs as fs_module
from sediment.segment_io.fs import Fs

MIB = 1 << 20


def bytes_of(size: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@pytest.mark.parametrize(
    "sizes", [(MIB - 1,), (MIB,), (MIB + 1,), (4 * MIB,), (9 * MIB + 4097,), (2 * MIB, 5 * MIB + 5, MIB), ()]
)
def test_a_new_file_holds_its_chunks_whatever_their_sizes(tmp_path, sizes):
    chunks = [bytes_of(size, number) for number, size in enumerate(sizes)]
    assert Fs().write_new(tmp_path / "f", chunks) == sum(sizes)
    assert (tmp_path / "f").read_bytes() == b"".join(chunks)


def test_a_large_chunk_after_a_small_one_is_written_unchanged(tmp_path):
    chunks = [b"abc", bytes_of(2 * MIB)]
    assert Fs().write_new(tmp_path / "f", chunks) == 3 + 2 * MIB
    assert (tmp_path / "f").read_bytes() == b"".join(chunks)


def test_a_large_chunk_may_begin_at_any_address(tmp_path):
    content = np.frombuffer(bytes_of(2 * MIB + 7), dtype=np.uint8)[7:]
    assert Fs().write_new(tmp_path / "f", [content]) == 2 * MIB
    assert (tmp_path / "f").read_bytes() == content.tobytes()


def test_a_filesystem_that_cannot_pass_the_page_cache_by_gets_the_same_file(tmp_path, monkeypatch):
    real, refused = fcntl.fcntl, []

    def set_flags(descriptor, command, *arguments):
        if command == fcntl.F_SETFL and arguments[0] & os.O_DIRECT:
            refused.append(descriptor)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(descriptor, command, *arguments)

    monkeypatch.setattr(fs_module.fcntl, "fcntl", set_flags)
    content = bytes_of(2 * MIB + 5)
    assert Fs().write_new(tmp_path / "f", [content]) == len(content)
    assert refused
    assert (tmp_path / "f").read_bytes() == content


@pytest.mark.parametrize("taken", [0, 4096, 1000])
def test_a_device_that_stops_taking_blocks_gets_the_rest_through_the_page_cache(tmp_path, monkeypatch, taken):
    """`taken`: bytes of its second write that it takes; with none it refuses."""
    real, calls = os.write, []

    def write(descriptor, content):
        calls.append(len(content))
        if len(calls) != 2:
            return real(descriptor, content)
        if not taken:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)
        return real(descriptor, content[:taken])

    monkeypatch.setattr(fs_module.os, "write", write)
    content = bytes_of(12 * MIB + 9)
    assert Fs().write_new(tmp_path / "f", [content]) == len(content)
    assert (tmp_path / "f").read_bytes() == content


@pytest.mark.parametrize("size", [MIB // 4, 300_000, MIB])
def test_the_caller_may_reuse_the_memory_of_a_chunk(tmp_path, size):
    memory, expected = bytearray(size), []

    def chunks():
        for number in range(40):
            memory[:] = bytes_of(size, number)
            expected.append(bytes(memory))
            yield memory

    assert Fs().write_new(tmp_path / "f", chunks()) == 40 * size
    assert (tmp_path / "f").read_bytes() == b"".join(expected)


def test_a_chunk_that_cannot_be_made_ends_the_write_and_its_thread(tmp_path):
    def chunks():
        yield bytes_of(9 * MIB)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        Fs().write_new(tmp_path / "f", chunks())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sediment-file")]


def test_what_a_full_disk_says_is_not_taken_for_a_filesystem_that_cannot(tmp_path, monkeypatch):
    def write(descriptor, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fs_module.os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        Fs().write_new(tmp_path / "f", [bytes_of(2 * MIB)])


def test_after_a_failed_write_no_later_block_is_written(tmp_path, monkeypatch):
    real, calls = os.write, []

    def write(descriptor, content):
        calls.append(len(content))
        if len(calls) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, content)

    monkeypatch.setattr(fs_module.os, "write", write)
    with pytest.raises(OSError, match="Input/output error"):
        Fs().write_new(tmp_path / "f", [bytes_of(20 * MIB)])
    assert len(calls) == 2


def test_a_thread_that_was_not_waited_for_writes_to_no_other_file(tmp_path, monkeypatch):
    real, go_on, executors = os.write, threading.Event(), []

    def write(descriptor, content):
        assert go_on.wait(60)
        return real(descriptor, content)

    def interrupted(executor, **_options):
        executors.append(executor)
        raise KeyboardInterrupt

    def chunks():
        yield bytes_of(5 * MIB)
        raise ValueError("no more")

    with monkeypatch.context() as patched:
        patched.setattr(fs_module.os, "write", write)
        patched.setattr(fs_module.ThreadPoolExecutor, "shutdown", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Fs().write_new(tmp_path / "f", chunks())
        with (tmp_path / "other").open("wb"):  # gets the number of the closed descriptor
            go_on.set()
            patched.undo()
            executors[0].shutdown()
    assert (tmp_path / "other").read_bytes() == b""


def test_a_rename_to_another_link_of_the_same_file_removes_the_old_name(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"bytes")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    Fs().rename(tmp_path / "a", tmp_path / "b")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"b": b"bytes"}


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_a_new_file_is_private_until_it_has_its_mode(tmp_path: Path, mask: int) -> None:
    fs, path = Fs(), tmp_path / "f"
    modes = []

    def chunks():
        yield b"x"
        modes.append(path.stat().st_mode & 0o777)

    before = os.umask(mask)
    try:
        fs.write_new(path, chunks())
        fs.share(path)
        modes.append(path.stat().st_mode & 0o777)
        fs.make_directory(tmp_path / "shared")
        fs.make_directory(tmp_path / "private", like=path.parent)
        fs.share(tmp_path / "private")
        fs.replace_file(tmp_path / "g", b"x")
    finally:
        os.umask(before)
    assert modes == [0o600, 0o644 & ~mask]
    assert (tmp_path / "g").stat().st_mode & 0o777 == 0o644 & ~mask
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o755 & ~mask


@pytest.mark.parametrize("name", ["bootstrap.checkpoint", "bootstrap.checkpoint.run.replaced"])
def test_a_file_with_keys_of_users_is_private_whatever_was_there_before(tmp_path: Path, name: str) -> None:
    fs, path = Fs(), tmp_path / name
    tmp_path.chmod(0o755)
    fs.replace_file(path, b"keys", like=tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    fs.replace_file(path, b"more keys", like=path)
    assert path.stat().st_mode & 0o777 == 0o600
    fs.set_mode(path, 0o644)
    fs.share(path)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("chunks", "data_bytes"),
    [
        ([bytes(10 * MIB)], 0),
        ([bytes_of(100), bytes(10 * MIB)], 100),
        ([bytes_of(2 * MIB), bytes(8 * MIB), bytes_of(MIB)], 3 * MIB),
        ([bytes(8 * MIB), bytes_of(2 * MIB), bytes(5 * MIB + 123)], 2 * MIB),
        ([bytes(100_000), b"x", bytes(100_000)], 1),
        ([bytes(60_000)] * 3, 180_000),
    ],
)
def test_long_runs_of_zeros_become_holes(tmp_path: Path, chunks: list[bytes], data_bytes: int) -> None:
    content = b"".join(chunks)
    for write in (Fs().write_new, Fs().write_over, Fs().write_over):
        assert write(tmp_path / "f", chunks) == len(content)
        assert (tmp_path / "f").read_bytes() == content
        assert Fs().allocated_bytes(tmp_path / "f") <= data_bytes + 2 * 65_536
        if write == Fs().write_over:
            (tmp_path / "f").write_bytes(b"y" * 20 * MIB)
            (tmp_path / "f").chmod(0o666)
        else:
            (tmp_path / "f").unlink()
    Fs().write_over(tmp_path / "f", [b"z"])
    assert ((tmp_path / "f").read_bytes(), (tmp_path / "f").stat().st_mode & 0o777) == (b"z", 0o600)


def test_the_names_of_files_are_those_of_a_scan(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "link-to-folder").symlink_to("folder")
    (tmp_path / "dangling").symlink_to("missing")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    names = Fs().file_names(tmp_path)
    assert names == ["file", "link"] == [entry.name for entry in Fs().scan(tmp_path) if entry.is_file]
