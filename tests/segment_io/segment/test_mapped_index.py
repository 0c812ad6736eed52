"""Indexes of open segments against the indexes of files (kafka-log 01 §7; 07 IX-01 to IX-18)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sediment.segment_io.errors import (
    CorruptIndexError,
    IndexFullError,
    IndexOrderError,
    SettingsError,
)
from sediment.segment_io.format.layout import OFFSET_ENTRY_STRUCT
from sediment.segment_io.format.offset_index import OffsetIndex, OffsetPosition
from sediment.segment_io.format.time_index import TimeIndex, TimestampOffset
from sediment.segment_io.fs import Fs
from sediment.segment_io.segment.mapped_index import MappedOffsetIndex, MappedTimeIndex


def offsets(directory: Path, base: int = 45, max_bytes: int = 240) -> MappedOffsetIndex:
    (directory / "a.log").touch()
    return MappedOffsetIndex(directory / "a.index", base, Fs(), max_bytes=max_bytes, entries=0)


def times(directory: Path, base: int = 45, max_bytes: int = 360) -> MappedTimeIndex:
    (directory / "a.log").touch()
    return MappedTimeIndex(directory / "a.timeindex", base, Fs(), max_bytes=max_bytes, entries=0)


def put(index: MappedOffsetIndex, offset: int, position: int) -> None:
    index.extend(OFFSET_ENTRY_STRUCT.pack(offset - index.base_offset, position))


def test_ix_01_an_offset_index_fills_and_is_searched(tmp_path: Path) -> None:
    index = offsets(tmp_path)
    assert index.lookup(92) == OffsetPosition(45, 0)
    index.reserve()
    for place in range(30):
        put(index, 46 + place, place)
    assert (index.lookup(45), index.lookup(75)) == (OffsetPosition(45, 0), OffsetPosition(75, 29))
    assert index.is_full


@pytest.mark.parametrize(("make", "entries"), [(offsets, 30), (times, 29)])
def test_an_index_has_room_while_its_file_is_open(
    tmp_path: Path, make: Callable[[Path], MappedOffsetIndex | MappedTimeIndex], entries: int
) -> None:
    """The last slot of a time index is reserved for the entry that `maybe_append` adds at a roll."""
    index = make(tmp_path)
    entry = bytes(index.entry_bytes)
    assert (index.room, index.is_full) == (0, False)
    index.reserve()
    assert index.room == entries
    index.extend(entry)
    index.extend(2 * entry)
    assert index.room == entries - 3
    index.cut(1)
    assert index.room == entries - 1
    index.close_file()
    assert index.room == 0
    index.extend(entry)
    assert index.room == entries - 2
    index.extend((entries - 2) * entry)
    assert (index.room, index.is_full) == (0, True)
    index.cut(2)
    index.trim()
    assert index.room == 0
    index.reserve()
    assert index.room == entries - 2
    index.release()
    assert index.room == 0


def test_a_position_that_is_negative_on_disk_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.log").touch()
    (tmp_path / "a.index").write_bytes(bytes(8) + (7).to_bytes(4, "big") + (-1).to_bytes(4, "big", signed=True))
    index = MappedOffsetIndex(tmp_path / "a.index", 45, Fs(), max_bytes=240, entries=2)
    assert index.lookup(51) == OffsetPosition(45, 0)
    with pytest.raises(CorruptIndexError, match="position -1"):
        index.lookup(52)


def test_ix_03_the_bound_of_a_fetch(tmp_path: Path) -> None:
    index = offsets(tmp_path)
    assert index.fetch_upper_bound(5) is None
    for offset, position in ((45, 0), (46, 10), (47, 23), (48, 37)):
        put(index, offset, position)
    wanted = {5: (46, 10), 10: (46, 10), 22: (47, 23), 23: (47, 23), 34: (48, 37), 38: None, 200: None}
    for position, entry in wanted.items():
        assert index.fetch_upper_bound(position) == (None if entry is None else OffsetPosition(*entry))


def test_ix_04_an_offset_index_is_cut_by_offset(tmp_path: Path) -> None:
    index = offsets(tmp_path, base=0, max_bytes=80)
    index.reserve()
    for offset in range(1, 10):
        put(index, offset, offset)
    for cut, last in ((12, 9), (9, 8), (5, 4), (0, 0)):
        index.truncate_to(cut)
        assert index.last_offset == last
    assert len(index) == 0
    assert (tmp_path / "a.index").read_bytes() == bytes(80)


def test_ix_05_and_ix_12_files_are_reserved_and_trimmed(tmp_path: Path) -> None:
    index = offsets(tmp_path, max_bytes=1000)
    assert not (tmp_path / "a.index").exists()
    index.reserve()
    assert (tmp_path / "a.index").stat().st_size == 1000
    put(index, 51, 0)
    put(index, 52, 1)
    index.trim()
    assert (tmp_path / "a.index").stat().st_size == 16
    again = MappedOffsetIndex(tmp_path / "a.index", 45, Fs(), max_bytes=1000)
    assert (len(again), again.last_offset) == (2, 52)
    again.reserve()
    put(again, 53, 2)
    assert again.lookup(99) == OffsetPosition(53, 2)
    time_index = times(tmp_path, max_bytes=1000)
    time_index.reserve()
    assert (tmp_path / "a.timeindex").stat().st_size == 996
    with pytest.raises(SettingsError):
        offsets(tmp_path, max_bytes=7)


@pytest.mark.parametrize("entries", [1, 2, 1023, 1024, 1025, 1026, 5000])
def test_ix_06_warm_and_cold_entries_are_found_alike(tmp_path: Path, entries: int) -> None:
    index, time_index = offsets(tmp_path, 0, 40_000), times(tmp_path, 0, 70_000)
    places = np.arange(entries, dtype=np.int64)
    other = OffsetIndex(0, 10 * places + 5, 3 * places)
    other_time = TimeIndex(0, 7 * places, 10 * places + 5)
    for place in range(entries):
        put(index, 10 * place + 5, place * 3)
        time_index.maybe_append(7 * place, 10 * place + 5)
    chance = random.Random(entries)
    for target in (*range(12), *(chance.randrange(10 * entries + 20) for _ in range(300)), 10 * entries + 20):
        assert index.lookup(target) == other.lookup(target)
        assert time_index.lookup(target) == other_time.lookup(target)
        above = next((other[slot] for slot in range(entries) if other[slot].position >= target), None)
        assert index.fetch_upper_bound(target) == above


def test_ix_08_to_ix_10_a_time_index_keeps_a_slot_and_its_order(tmp_path: Path) -> None:
    index = times(tmp_path)
    assert index.lookup(100) == TimestampOffset(-1, 45)
    index.maybe_append(-1, 45)
    assert len(index) == 0
    for place in range(29):
        assert not index.is_full
        index.maybe_append(10 * (place + 1), 55 + 10 * place)
    assert (index.lookup(9), index.lookup(25), index.lookup(30)) == (
        TimestampOffset(-1, 45),
        TimestampOffset(20, 65),
        TimestampOffset(30, 75),
    )
    with pytest.raises(IndexFullError):
        index.maybe_append(10_000, 1000)
    with pytest.raises(IndexOrderError):
        index.maybe_append(10_000, 280, skip_full_check=True)
    with pytest.raises(IndexOrderError):
        index.maybe_append(5, 1000, skip_full_check=True)
    index.maybe_append(290, 1000, skip_full_check=True)
    assert len(index) == 29
    index.maybe_append(10_000, 1000, skip_full_check=True)
    assert index.last_entry == TimestampOffset(10_000, 1000)


def test_ix_11_a_time_index_is_cut_by_offset(tmp_path: Path) -> None:
    index = times(tmp_path)
    for timestamp, offset in ((10, 55), (20, 65)):
        index.maybe_append(timestamp, offset)
    index.truncate_to(65)
    assert index.last_entry == TimestampOffset(10, 55)
    index.truncate_to(55)
    assert len(index) == 0
