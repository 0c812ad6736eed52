"""Estimates of a re-encoding: exact for a log that is read as a whole, close for a sample, and never an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.compaction.config import CompactionConfig
from sediment.compaction.reencode.estimate import estimate_reencode
from sediment.compaction.reencode.plan import Encoding
from sediment.segment_io.format.layout import CODEC_NONE, CODEC_ZSTD
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.log_view import LogView
from tests.reencodes import reencode_log
from tests.rewrites import view_of
from tests.segments import batch_bytes, write_segment

CONFIG = CompactionConfig()
SEGMENT_BATCHES = 2000
SEGMENTS = 3


def write_log(directory: Path) -> LogView:
    """Write batches of one compressible record without a producer, so no batch has to stay."""
    for number in range(SEGMENTS):
        first = number * SEGMENT_BATCHES
        batches = [
            batch_bytes(offset, value=b"value %d " % offset * 60, producer_id=-1)
            for offset in range(first, first + SEGMENT_BATCHES)
        ]
        write_segment(directory, first, batches)
    return view_of(directory)


def reencoded_bytes(view: LogView, encoding: Encoding) -> int:
    swap = reencode_log(view, encoding, CONFIG).swap
    written = sum(part.files[0].size_bytes for group in swap.groups for part in group.parts)
    return written or view.listing.log_bytes()


@pytest.mark.parametrize(
    "encoding",
    [Encoding(CODEC_ZSTD), Encoding(CODEC_ZSTD, 9, 16 << 10), Encoding(None, None, 4096), Encoding(CODEC_NONE)],
)
def test_the_estimate_of_a_log_that_is_read_as_a_whole_is_exact(encoding: Encoding, tmp_path: Path):
    view = write_log(tmp_path / "t-0")
    estimate = estimate_reencode(view, encoding, CONFIG, Fs(), sample_bytes=1 << 30)
    assert estimate.sampled_bytes == view.listing.log_bytes()
    assert estimate.log_bytes == reencoded_bytes(view, encoding)


def test_a_sample_gives_nearly_the_same_saving(tmp_path: Path):
    view, encoding = write_log(tmp_path / "t-0"), Encoding(CODEC_ZSTD, None, 64 << 10)
    estimate = estimate_reencode(view, encoding, CONFIG, Fs(), sample_bytes=1 << 20)
    log_bytes = view.listing.log_bytes()
    assert estimate.sampled_bytes < log_bytes / 2
    assert abs(estimate.log_bytes - reencoded_bytes(view, encoding)) < log_bytes / 50


def test_a_segment_with_a_corrupt_batch_is_left_out(tmp_path: Path):
    view, encoding = write_log(tmp_path / "t-0"), Encoding(CODEC_ZSTD)
    log = tmp_path / "t-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[300] ^= 1
    log.write_bytes(data)
    estimate = estimate_reencode(view, encoding, CONFIG, Fs(), sample_bytes=1 << 30)
    assert estimate.sampled_bytes == view.listing.log_bytes() - len(data)
    assert estimate.log_bytes < view.listing.log_bytes() / 2


def test_a_torn_end_is_left_out(tmp_path: Path):
    directory = tmp_path / "t-0"
    write_log(directory)
    active = directory / f"{(SEGMENTS - 1) * SEGMENT_BATCHES:020d}.log"
    whole_bytes = sum(path.stat().st_size for path in directory.glob("*.log"))
    with active.open("ab") as file:
        file.write(batch_bytes(SEGMENTS * SEGMENT_BATCHES)[:40])
    estimate = estimate_reencode(view_of(directory), Encoding(CODEC_ZSTD), CONFIG, Fs(), sample_bytes=1 << 30)
    assert 0 < estimate.sampled_bytes <= whole_bytes
