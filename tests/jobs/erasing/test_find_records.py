"""The search for keys, against the second scan of an erasure, which reads the same records with other code."""

from __future__ import annotations

import pickle
import random
import threading
from pathlib import Path

import numpy as np
import pytest

from sediment.compaction.rewrite.key_set import KeySet
from sediment.compaction.rewrite.verdicts import Verdicts
from sediment.jobs.erasing.after_run import ErasedPartition, ScannedPartition, scan_again
from sediment.jobs.erasing.find_records import FoundRecords, ScanRun, _KeySearch
from sediment.jobs.rewriting.partition_task import InPlace
from sediment.jobs.rewriting.result import CleaningResult
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing, list_log
from tests.faults.inline_spark import InlineContext
from tests.logs import LogShape, write_random_log
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.twin.segments import list_segments

SHAPES = {
    "transactions": LogShape(codecs=(0, 1, 2, 3, 4)),
    "legacy": LogShape(codecs=(0, 1, 2, 3, 4), magics=(0, 1, 2), transactional=0.0),
    "null keys": LogShape(codecs=(0, 1, 2, 3, 4), magics=(0, 1, 2), transactional=0.0, null_keys=0.5, headers=0.8),
}
LIMIT_BYTES = 1 << 20


def listing_of(directory: Path) -> LogListing:
    return list_log(TopicPartition("t", int(directory.name[2:])), directory, Fs())


def run() -> ScanRun:
    return ScanRun(InlineContext(), "run", NOW_MS, threading.Event())


def found_in(*listings: LogListing, keys: list[bytes]) -> dict[Path, FoundRecords | CleaningResult]:
    return dict(run().find_keys([(each, InPlace(), LIMIT_BYTES) for each in listings], KeySet.of(keys)))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_second_scan_finds_the_same_records(shape: str, tmp_path: Path):
    listings, present = [], set()
    for seed in range(4):
        directory = tmp_path / f"t-{seed}"
        write_random_log(directory, seed, SHAPES[shape])
        listings.append(listing_of(directory))
        batches = [batch for segment in list_segments(directory) for _, batch in segment.batches()]
        present |= {record.key for batch in batches if not batch.is_control for record in batch.records()}
    wanted = random.Random(shape).sample(sorted(present - {None}), len(present) // 2)
    found = found_in(*listings, keys=[*wanted, b"absent"])
    no_offsets = np.zeros(0, dtype=np.int64)
    unchanged = [ErasedPartition(each, Verdicts.of([]), no_offsets, ()) for each in listings]
    again = scan_again(run(), [*wanted, b"absent"], unchanged, Fs())
    for listing in listings:
        first, second = found[listing.path], again[listing.path]
        assert isinstance(first, FoundRecords) and isinstance(second, ScannedPartition)
        assert first.offsets.size
        assert first.offsets.tolist() == [offset for each in second.segments for offset in each.matches.tolist()]
        assert first.scanned == sum(each.records for each in second.segments)


def test_a_partition_with_a_corrupt_or_changed_segment_fails_and_the_others_have_results(tmp_path: Path):
    for name in ("t-0", "t-1", "t-2"):
        write_segment(tmp_path / name, 0, [batch_bytes(0, "ab")])
        write_segment(tmp_path / name, 2, [batch_bytes(2, "a")])
    (tmp_path / "t-3").mkdir()
    content = bytearray((tmp_path / "t-0" / f"{0:020d}.log").read_bytes())
    content[-3] ^= 1
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(content)
    listings = [listing_of(tmp_path / name) for name in ("t-0", "t-1", "t-2", "t-3")]
    (tmp_path / "t-1" / f"{2:020d}.log").unlink()
    corrupt, changed, good, empty = (found_in(*listings, keys=[b"a"])[each.path] for each in listings)
    assert isinstance(corrupt, CleaningResult) and isinstance(changed, CleaningResult)
    assert corrupt.uncleanable is not None and corrupt.uncleanable.segments == listings[0].segments[:1]
    assert (changed.failed, changed.uncleanable) == (True, None)
    assert isinstance(good, FoundRecords) and isinstance(empty, FoundRecords)
    assert (good.scanned, good.offsets.tolist(), empty.scanned, empty.offsets.tolist()) == (3, [0, 2], 0, [])


def test_a_stopped_run_searches_nothing(tmp_path: Path):
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "ab")])
    stopped = run()
    stopped.stop.set()
    ((_, result),) = stopped.find_keys([(listing_of(tmp_path / "t-0"), InPlace(), LIMIT_BYTES)], KeySet.of([b"a"]))
    assert isinstance(result, CleaningResult)
    assert result.reason_code == "stopped"


def test_the_function_of_the_task_has_the_keys_and_does_not_show_them():
    search = pickle.loads(pickle.dumps(_KeySearch(KeySet.of([b"subject"]))))
    assert search.keys.key(0) == b"subject"
    assert "subject" not in repr(search)
