"""Segments that readers see while a replacement is in progress, and after it was interrupted."""

import os
import time

import pytest

from sediment.segment_io.errors import NotALogDirectoryError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.live_segments import live_segments
from sediment.segment_io.partition.slices import ALL, Bounds
from sediment.segment_io.partition.sources import find_sources
from tests.segments import batch_bytes, write_segment
from tests.tables import read_rows


@pytest.fixture
def partition(tmp_path):
    """Write three segments of 600 records each, and an empty one."""
    directory = tmp_path / "logs" / "t-0"
    for base in (0, 600, 1200):
        batches = [batch_bytes(offset, "abc", value=b"v" * 60) for offset in range(base, base + 600, 3)]
        write_segment(directory, base, batches, index_interval_bytes=500)
    write_segment(directory, 1800)
    return directory


def offsets(directory, bounds, **options):
    return [row["offset"] for row in read_rows(directory, bounds=bounds, columns=("offset",), **options)]


def swap_in_progress(partition, *, deleted=(), suffix=".swap"):
    """Write the merge of the first two segments as an interrupted replacement leaves it; return the kept offsets."""
    kept = list(range(0, 1200, 6))
    work = partition.with_name("work")
    write_segment(work, 0, [batch_bytes(offset, "abc") for offset in kept])
    for path in work.iterdir():
        path.rename(partition / (path.name + suffix))
    for base in deleted:
        for ending in (".log", ".index", ".timeindex"):
            path = partition / f"{base:020d}{ending}"
            path.rename(path.with_name(path.name + ".deleted"))
    return [offset + delta for offset in kept for delta in range(3)]


def age(directory):
    os.utime(directory, (time.time() - 60, time.time() - 60))


@pytest.mark.parametrize("deleted", [(), (0,), (0, 600)])
def test_an_interrupted_replacement_is_read_as_the_loader_would_complete_it(deleted, partition):
    kept = swap_in_progress(partition, deleted=deleted)
    age(partition)
    assert offsets(partition, ALL) == kept + list(range(1200, 1800))
    assert offsets(partition, Bounds(598, 602), task_bytes=1000) == [o for o in kept if 598 <= o < 602]


def test_a_replacement_that_was_still_being_written_is_not_read(partition):
    swap_in_progress(partition, suffix=".cleaned")
    age(partition)
    assert offsets(partition, ALL) == list(range(1800))


def test_swap_files_at_or_above_a_cleaned_one_are_not_read(partition):
    swap_in_progress(partition)
    (partition / f"{0:020d}.timeindex.cleaned").write_bytes(b"")
    age(partition)
    assert offsets(partition, ALL) == list(range(1800))


def test_a_replacement_in_progress_is_waited_for(partition):
    kept = swap_in_progress(partition, deleted=(0, 600))

    class FinishingFs(Fs):
        """The replacement ends after the third scan of the directory."""

        scans = 0

        def scan(self, directory):
            entries = super().scan(directory)
            self.scans += 1
            if self.scans == 3:
                for path in sorted(partition.glob("*.swap")):
                    path.rename(path.with_name(path.name.removesuffix(".swap")))
            else:
                os.utime(directory)
            return entries

    names = [segment.log_name for segment in live_segments(*find_sources([partition], Fs()), FinishingFs())]
    assert names == [f"{base:020d}.log" for base in (0, 1200, 1800)]
    assert offsets(partition, ALL) == kept + list(range(1200, 1800))


def test_a_named_segment_is_read_alone(partition):
    assert offsets(partition / f"{600:020d}.log", ALL) == list(range(600, 1200))
    assert offsets(partition / f"{600:020d}.index", ALL) == list(range(600, 1200))


def test_a_deleted_segment_is_read_where_it_is_named(partition):
    swap_in_progress(partition, deleted=(0,))
    assert offsets(partition / f"{0:020d}.log.deleted", ALL) == list(range(600))


def test_an_index_without_its_log_is_no_segment(partition):
    (partition / f"{600:020d}.log").unlink()
    with pytest.raises(NotALogDirectoryError, match=r"has no \.log"):
        offsets(partition / f"{600:020d}.index", ALL)
