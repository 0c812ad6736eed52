"""A folder of a store is read in ranges, in few requests and little memory, and never written."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import numpy as np
import pytest

from sediment.segment_io.fs import FileEntry
from sediment.segment_io.segment.reader import read_into
from sediment.segment_io.store_fs import WINDOW_BYTES, StoreFs
from sediment.segment_io.stores import Store
from tests.object_server import CUT_OFF, running_server

CHUNK_BYTES = 1 << 20
LARGE = random.Random(1).randbytes(3 * WINDOW_BYTES + 12_345)
SMALL = b"0123456789" * 100
LOG, INDEX = f"{0:020d}.log", f"{0:020d}.index"


@pytest.fixture(scope="module")
def server():
    with running_server() as running:
        running.objects = {f"/bucket/logs/t-0/{LOG}": LARGE, f"/bucket/logs/t-0/{INDEX}": SMALL}
        yield running


@pytest.fixture
def fs(server):
    store = server.store()
    listed = {name.partition("/")[2]: file for name, file in store.files().items()}
    server.asked.clear()
    server.trouble.clear()
    return StoreFs(store, "t-0", listed)


@pytest.fixture
def log(fs):
    file = fs.open_readable(Path("anywhere") / LOG)
    yield file
    file.close()


def test_ranges_are_those_of_the_file(log):
    rule = random.Random(2)
    for _ in range(40):
        position = rule.randrange(len(LARGE) + 100)
        count = rule.choice([0, 1, 61, 70_000, CHUNK_BYTES, WINDOW_BYTES + 5])
        assert log.read(position, count) == LARGE[position : position + count]
    buffer = np.zeros(CHUNK_BYTES, dtype=np.uint8)
    assert read_into(log, buffer, 10, CHUNK_BYTES - 10, len(LARGE) - 100) == 100
    assert buffer[10:110].tobytes() == LARGE[-100:]
    assert log.size_bytes() == len(LARGE)


def test_only_zeros_are_told_from_other_bytes(server, log):
    server.objects["/bucket/logs/z-0/z"] = bytes(2 * WINDOW_BYTES) + b"1" + bytes(99)
    store = server.store()
    listed = {name.partition("/")[2]: file for name, file in store.files().items() if name.startswith("z-0/")}
    file = StoreFs(store, "z-0", listed).open_readable(Path("z"))
    assert file.has_only_zeros(5, 2 * WINDOW_BYTES) and file.has_only_zeros(7, 7)
    assert not file.has_only_zeros(0, 2 * WINDOW_BYTES + 1)
    assert file.has_only_zeros(2 * WINDOW_BYTES + 1, 2 * WINDOW_BYTES + 100)
    assert not log.has_only_zeros(0, 1000)
    file.close()
    del server.objects["/bucket/logs/z-0/z"]


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_pass_in_either_direction_takes_one_request_a_window(newest_first, log, server):
    positions = list(range(0, len(LARGE), CHUNK_BYTES))
    before = server.asked["GET"]
    for position in reversed(positions) if newest_first else positions:
        assert log.read(position, CHUNK_BYTES) == LARGE[position : position + CHUNK_BYTES]
    # Downward, the first window is the last chunk alone.
    assert server.asked["GET"] - before <= -(-len(LARGE) // WINDOW_BYTES) + newest_first


def test_a_few_bytes_of_a_large_file_do_not_move_the_window(log, server):
    log.read(0, CHUNK_BYTES)
    before = server.asked["GET"]
    assert log.read(2 * WINDOW_BYTES, 61) == LARGE[2 * WINDOW_BYTES : 2 * WINDOW_BYTES + 61]
    assert log.read(CHUNK_BYTES, CHUNK_BYTES) == LARGE[CHUNK_BYTES : 2 * CHUNK_BYTES]
    assert server.asked["GET"] - before == 1


def test_a_small_file_takes_one_request(fs, server):
    file = fs.open_readable(Path(INDEX))
    assert [file.read(position, 8) for position in (992, 0, 500)] == [SMALL[992:], SMALL[:8], SMALL[500:508]]
    assert fs.read_range(Path(INDEX), 4, 4) == b"4567"
    assert server.asked["GET"] == 2
    assert fs.read_bytes(Path(INDEX)) == SMALL


def test_a_body_that_is_cut_off_is_never_taken_for_the_content(log, server):
    server.asked.clear()
    server.trouble = [CUT_OFF]
    assert log.read(0, 1000) == LARGE[:1000]


def test_the_listing_decides_what_exists(fs, tmp_path):
    assert [entry.name for entry in fs.scan(tmp_path)] == [INDEX, LOG]
    entry = fs.entry(tmp_path / INDEX)
    assert entry == FileEntry(INDEX, len(SMALL), entry.mtime_ns, False) and entry.mtime_ns > 0
    assert fs.exists(tmp_path / LOG) and fs.is_directory(tmp_path)
    assert fs.entry(tmp_path / "x") is None and not fs.exists(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        fs.open_readable(tmp_path / "x")


def test_a_replaced_object_has_another_stamp(fs, server):
    path = f"/bucket/logs/t-0/{INDEX}"
    before = fs.open_readable(Path(INDEX)).change_stamp()
    server.objects[path] = SMALL + b"more"
    try:
        assert fs.open_readable(Path(INDEX)).change_stamp() != before
    finally:
        server.objects[path] = SMALL


def test_nothing_is_written(fs, tmp_path):
    path, other = tmp_path / LOG, tmp_path / "x"
    for write in (
        lambda: fs.write_new(other, [b""]),
        lambda: fs.replace_file(path, b""),
        lambda: fs.truncate(path, 0),
        lambda: fs.rename(path, other),
        lambda: fs.link(path, other),
        lambda: fs.reflink(path, other),
        lambda: fs.unlink(path),
        lambda: fs.set_mtime_ns(path, 0),
        lambda: fs.make_directory(other),
        lambda: fs.remove_directory(other),
        lambda: fs.adopt_owner(path, other),
    ):
        with pytest.raises(OSError) as raised:
            write()
        assert raised.value.errno == errno.EROFS
    with pytest.raises(OSError):
        fs.open_to_read(path)
    with pytest.raises(OSError):
        fs.open_readable(path).map(1)
    assert not list(tmp_path.iterdir())


def test_files_on_this_machine_are_opened_in_place(tmp_path):
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / LOG).write_bytes(SMALL)
    store = Store(str(tmp_path))
    fs = StoreFs(store, "t-0", {LOG: store.files()[f"t-0/{LOG}"]})
    file = fs.open_readable(Path("anywhere") / LOG)
    assert file.descriptor >= 0 and file.read(3, 4) == b"3456"
    with pytest.raises(OSError) as raised:
        fs.unlink(Path(LOG))
    assert raised.value.errno == errno.EROFS
