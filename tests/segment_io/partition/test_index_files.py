import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.index_files import read_entries, read_last_entry

ENTRY_BYTES = 8


@given(written=st.integers(0, 40), zeros=st.integers(0, 200), rest=st.integers(0, ENTRY_BYTES - 1))
def test_entries_end_where_the_zeros_begin(written, zeros, rest):
    entries = b"".join(number.to_bytes(ENTRY_BYTES, "big") for number in range(1, written + 1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        path.write_bytes(entries + bytes(zeros * ENTRY_BYTES + rest))
        assert read_entries(path, ENTRY_BYTES) == entries
        if written:
            assert read_last_entry(path, ENTRY_BYTES, Fs()) == entries[-ENTRY_BYTES:]
        else:
            # The only entry of a file may be one of zeros.
            assert read_last_entry(path, ENTRY_BYTES, Fs()) == (bytes(ENTRY_BYTES) if zeros == 1 else None)


def test_a_first_entry_of_zeros_counts_if_another_one_follows(tmp_path):
    path = tmp_path / "index"
    path.write_bytes(bytes(ENTRY_BYTES) + b"\x01" * ENTRY_BYTES)
    assert read_entries(path, ENTRY_BYTES) == path.read_bytes()
    assert read_last_entry(path, ENTRY_BYTES, Fs()) == b"\x01" * ENTRY_BYTES


def test_something_else_in_the_place_of_an_index_has_no_entries(tmp_path):
    (tmp_path / "directory").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    for name in ("directory", "loop", "pipe"):
        assert read_entries(tmp_path / name, ENTRY_BYTES) == b""


def test_a_missing_index_has_no_entries_and_no_last_one(tmp_path):
    assert read_entries(tmp_path / "index", ENTRY_BYTES) == b""
    with pytest.raises(FileNotFoundError):
        read_last_entry(tmp_path / "index", ENTRY_BYTES, Fs())
