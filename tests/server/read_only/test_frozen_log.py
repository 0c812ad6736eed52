"""Reads of a log that is only read, compared with a plain scan of its files."""

from __future__ import annotations

import os
import random
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sediment.engine.live.log.fetched_data import Isolation
from sediment.records import NewRecord, build_batch
from sediment.segment_io.errors import OffsetOutOfRangeError, OpenFilesLimitError, StorageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.sources import partition_of
from sediment.server.read_only.frozen_segment import VerifiedRanges
from sediment.server.read_only.open_segments import OpenSegment, OpenSegments, SegmentFiles
from tests.corpus import cleaning_cases, load_case, load_loading_case, loading_cases
from tests.logs import LogShape, write_random_log
from tests.server.read_only.faulty_reads import FaultyReads
from tests.server.read_only.logs import ISOLATIONS, Scan, content, frozen_log
from tests.twin.segments import file_batches

UNCOMMITTED, COMMITTED, LOG_END = Isolation.HIGH_WATERMARK, Isolation.TXN_COMMITTED, Isolation.LOG_END

SHAPES = (
    LogShape(codecs=(0, 4), transactional=0.6, emptied=0, batches=80),
    LogShape(gaps=0.5, emptied=0.2, transactional=0, batches=80),
    LogShape(codecs=(0, 1, 2, 3), magics=(0, 1), transactional=0, idempotent=0, batches=60),
    LogShape(codecs=(0, 1), magics=(0, 1, 2), transactional=0.3, emptied=0, batches=60, segment_bytes=900),
    LogShape(batches=150, segment_bytes=1 << 20, interval_bytes=150, transactional=0.3, emptied=0),
)


def assert_reads_like_a_scan(directory: Path, rng: random.Random, reads: int, **checkpoints: int) -> None:
    """Compare random reads of a log with a scan of its files."""
    scan = Scan(directory)
    log = frozen_log(directory, high_watermark_file="high_watermark" in checkpoints, **checkpoints)
    high_watermark = min(checkpoints.get("high_watermark", scan.log_end), scan.log_end)
    # Kafka too forgets on a start that a decision is above the high watermark, if a snapshot above it holds the state.
    undecided = min(scan.last_stable(scan.log_end), high_watermark)
    assert log.last_stable_offset in (undecided, scan.last_stable(high_watermark))
    limits = {LOG_END: scan.log_end, UNCOMMITTED: high_watermark, COMMITTED: log.last_stable_offset}
    assert (log.log_start_offset, log.log_end_offset) == (scan.log_start, scan.log_end)
    assert {isolation: log.end_offset(isolation) for isolation in ISOLATIONS} == limits
    aborted = scan.aborted()
    for _ in range(reads):
        isolation = rng.choice(ISOLATIONS)
        offset = rng.randint(scan.log_start, scan.log_end)
        max_bytes, min_one = rng.choice([0, 1, 70, 300, 1000, 5000, 1 << 20]), rng.random() < 0.7
        fetched = log.read(offset, max_bytes, isolation=isolation, min_one=min_one)
        got = content(fetched)
        where = f"{directory.name}: {offset} {isolation} {max_bytes} {min_one}"
        assert got == scan.read(offset, limits[isolation], max_bytes, min_one), where
        if isolation is not COMMITTED:
            assert fetched.aborted is None
        else:
            last = max((batch.last_offset for _, batch in file_batches(got)), default=-1)
            touching = {entry for entry in aborted if entry[2] >= offset and entry[1] <= last}
            assert fetched.aborted is not None
            named = [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in fetched.aborted]
            assert touching <= set(named) <= set(aborted), where
            assert len(set(named)) == len(named)


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_reads_of_random_logs_give_the_bytes_that_a_scan_finds(shape: int, tmp_path: Path) -> None:
    rng = random.Random(shape)
    for seed in range(6):
        directory = tmp_path / f"t-{seed}"
        end = write_random_log(directory, seed, SHAPES[shape])
        start = Scan(directory).log_start
        assert_reads_like_a_scan(directory, rng, 60)
        assert_reads_like_a_scan(directory, rng, 60, high_watermark=rng.randint(start, end))


@pytest.mark.parametrize("name", cleaning_cases(magic2_only=False))
def test_kafkas_own_logs_are_read_like_a_scan(name: str, tmp_path: Path) -> None:
    case = load_case(name, tmp_path)
    directory = tmp_path / "t-0"
    shutil.copytree(case.before, directory)
    assert_reads_like_a_scan(directory, random.Random(name), 60)


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_a_log_is_the_same_without_its_indexes_snapshots_and_epochs(shape: int, tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_random_log(directory, 3, SHAPES[shape])
    for path in directory.iterdir():
        if path.suffix != ".log":
            path.unlink()
    assert_reads_like_a_scan(directory, random.Random(1), 60)


def write_large_batches(directory: Path, rng: random.Random, indexed: float) -> int:
    """Write batches around the size of one read, some of them with an index entry; return the log end."""
    directory.mkdir()
    log, index, offset, end = bytearray(), bytearray(), 0, 0
    for _ in range(40):
        count = rng.randint(1, 4)
        records = [
            NewRecord(timestamp_ms=1, key=None, value=rng.randbytes(rng.choice([100, 2000, 9000])))
            for _ in range(count)
        ]
        if rng.random() < indexed:
            index += struct.pack(">ii", offset + count - 1, len(log))
        log += build_batch(records, base_offset=offset)
        end = offset + count
        offset = end + rng.choice([0, 0, 0, 3])
    (directory / f"{0:020d}.log").write_bytes(log)
    (directory / f"{0:020d}.index").write_bytes(index)
    return end


@pytest.mark.parametrize("indexed", [1.0, 0.5])
def test_large_batches_are_found_from_every_offset(indexed: float, tmp_path: Path) -> None:
    rng = random.Random(7)
    for seed in range(3):
        directory = tmp_path / f"t-{seed}"
        end = write_large_batches(directory, rng, indexed)
        scan, log = Scan(directory), frozen_log(directory)
        for offset in range(end):
            for max_bytes in (1, 30_000):
                found = log.read(offset, max_bytes, isolation=LOG_END, min_one=True)
                assert content(found) == scan.read(offset, end, max_bytes, True)
        assert log.unreadable == ()


def test_an_entry_that_points_into_a_large_batch_is_not_believed(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    end = write_large_batches(directory, random.Random(8), 1.0)
    index = directory / f"{0:020d}.index"
    entries = list(struct.iter_unpack(">ii", index.read_bytes()))
    index.write_bytes(b"".join(struct.pack(">ii", offset, position + 5) for offset, position in entries))
    log = frozen_log(directory)
    assert drain(log) == [batch.base_offset for _, batch in file_batches((directory / f"{0:020d}.log").read_bytes())]
    assert log.log_end_offset == end


@pytest.fixture
def misled(tmp_path: Path) -> tuple[Path, int]:
    """Return a log whose index has an entry for a record that is a valid batch, and the position of the batch 4 to 7.

    The record is in this batch.  After it, the log has the batches 8 and 9; the last one is in the next segment.
    """
    rng, directory = random.Random(1), tmp_path / "t-0"
    directory.mkdir()

    def batch(base_offset: int, *values: bytes) -> bytes:
        records = [NewRecord(timestamp_ms=1, key=None, value=value) for value in values]
        return build_batch(records, base_offset=base_offset)

    first = batch(0, *(rng.randbytes(2500) for _ in range(4)))
    inner = batch(4, b"a", b"b", b"c", b"d")
    log = first + batch(4, rng.randbytes(9000), inner, b"x", b"y") + batch(8, b"z")
    (directory / f"{0:020d}.log").write_bytes(log)
    (directory / f"{0:020d}.index").write_bytes(struct.pack(">iiii", 3, 0, 7, log.index(inner)))
    (directory / f"{9:020d}.log").write_bytes(batch(9, b"n"))
    return directory, len(first)


@pytest.mark.parametrize("offset", [4, 5, 6])
def test_a_batch_inside_a_record_is_not_returned_although_the_next_index_entry_points_to_it(
    offset: int, misled: tuple[Path, int]
) -> None:
    directory, position = misled
    fetched = frozen_log(directory).read(offset, 1, isolation=LOG_END, min_one=True)
    assert fetched.records is not None and fetched.records.position == position


@pytest.mark.parametrize("max_bytes", [1, 3000, 1 << 20])
def test_an_entry_that_points_into_a_batch_does_not_hide_the_batches_after_it(
    max_bytes: int, misled: tuple[Path, int]
) -> None:
    directory, _ = misled
    assert content(frozen_log(directory).read(8, 1, isolation=LOG_END, min_one=True))[:8] == struct.pack(">q", 8)
    assert drain(frozen_log(directory), max_bytes=max_bytes) == [0, 4, 8, 9]


def test_offsets_after_the_last_batch_of_a_segment_are_those_of_the_next_one(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_large_batches(directory, random.Random(9), 1.0)
    last = Scan(directory).batches[-1].batch.last_offset
    following = build_batch([NewRecord(timestamp_ms=1, key=None, value=b"n")], base_offset=last + 10)
    (directory / f"{last + 10:020d}.log").write_bytes(following)
    log = frozen_log(directory)
    for offset in (last + 9, last + 1, last + 5, last + 1):
        assert content(log.read(offset, 1, isolation=LOG_END, min_one=True)) == following
    assert content(log.read(last, 1, isolation=LOG_END, min_one=True)) != following
    assert log.unreadable == ()


def test_descending_offsets_in_a_gap_read_the_segment_before_it_once(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_random_log(directory, 1, LogShape(batches=300, segment_bytes=1 << 20, transactional=0, emptied=0))
    last = Scan(directory).batches[-1].batch.last_offset
    following = build_batch([NewRecord(timestamp_ms=1, key=None, value=b"n")], base_offset=last + 1000)
    (directory / f"{last + 1000:020d}.log").write_bytes(following)
    fs = FaultyReads()
    log = frozen_log(directory, fs=fs)
    log.read(last + 999, 1, isolation=LOG_END, min_one=True)
    fs.bytes_read = 0
    for offset in range(last + 998, last + 898, -1):
        assert content(log.read(offset, 1, isolation=LOG_END, min_one=True)) == following
    assert fs.bytes_read < 100 * ((16 << 10) + len(following))
    assert log.unreadable == ()


def test_offsets_outside_the_log_are_refused_and_those_at_its_ends_are_not(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    end = write_random_log(directory, 1, SHAPES[0])
    log = frozen_log(directory, high_watermark_file=True, high_watermark=end - 5)
    start = log.log_start_offset
    for offset in (start - 1, -1, end + 1, 2**62):
        with pytest.raises(OffsetOutOfRangeError):
            log.read(offset, 100, isolation=UNCOMMITTED, min_one=True)
    for offset in (end - 5, end - 1, end):
        assert content(log.read(offset, 100, isolation=UNCOMMITTED, min_one=True)) == b""
    assert content(log.read(end, 100, isolation=LOG_END, min_one=True)) == b""


def test_the_log_start_of_a_checkpoint_hides_what_is_below_it(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    end = write_random_log(directory, 2, SHAPES[0])
    middle = (Scan(directory).log_start + end) // 2
    log = frozen_log(directory, log_start=middle)
    assert log.log_start_offset == middle
    with pytest.raises(OffsetOutOfRangeError):
        log.read(middle - 1, 100, isolation=UNCOMMITTED, min_one=True)
    assert log.read(middle, 100, isolation=UNCOMMITTED, min_one=True).size_bytes


def test_a_high_watermark_that_no_checkpoint_states_is_the_log_start_beside_others_and_the_log_end_in_a_bare_copy(
    tmp_path: Path,
) -> None:
    end = write_random_log(tmp_path / "t-0", 2, SHAPES[1])
    assert frozen_log(tmp_path / "t-0").high_watermark == end
    beside = frozen_log(tmp_path / "t-0", high_watermark_file=True)
    assert beside.high_watermark == beside.log_start_offset
    assert frozen_log(tmp_path / "t-0", high_watermark_file=True, high_watermark=2**40).high_watermark == end


def test_an_empty_directory_is_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    log = frozen_log(tmp_path / "t-0")
    assert (log.log_start_offset, log.high_watermark, log.last_stable_offset, log.log_end_offset) == (0, 0, 0, 0)
    assert content(log.read(0, 100, isolation=COMMITTED, min_one=True)) == b""
    assert (log.leader_epoch, log.end_offset_for_epoch(0)) == (0, (-1, -1))
    assert log.offset_for_time(0) is None
    assert log.offset_of_largest_timestamp() is None


# --------------------------------------------------------------------------------------------------------------- times
def _timestamped(scan: Scan) -> list[list[tuple[int, int]]]:
    """Return (timestamp, offset) of each record, by segment."""
    found: list[list[tuple[int, int]]] = [[] for _ in scan.segments]
    for each in scan.batches:
        found[each.segment] += [(record.timestamp, record.offset) for record in each.batch.records()]
    return found


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_offsets_by_time_are_those_of_the_first_segment_that_reaches_the_time(shape: int, tmp_path: Path) -> None:
    rng = random.Random(shape)
    for seed in range(4):
        directory = tmp_path / f"t-{seed}"
        write_random_log(directory, seed, SHAPES[shape])
        log, segments = frozen_log(directory), _timestamped(Scan(directory))
        times = [time for segment in segments for time, _ in segment if time >= 0]
        largest = [times.largest_timestamp_ms for times in log.view.segment_times]
        for target in [rng.choice(times or [0]) + rng.choice([-1, 0, 0, 1]) for _ in range(30)]:
            number = next((number for number, most in enumerate(largest) if most >= target), None)
            inside = [] if number is None else segments[number]
            expected = next((record for record in inside if record[0] >= target), None)
            got = log.offset_for_time(target)
            assert (None if got is None else (got.timestamp_ms, got.offset)) == expected, (seed, target)


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_the_largest_timestamp_is_that_of_its_batch_even_if_cleaning_took_its_record(
    shape: int, tmp_path: Path
) -> None:
    for seed in range(4):
        directory = tmp_path / f"t-{seed}"
        write_random_log(directory, seed, SHAPES[shape])
        batches = [found.batch for found in Scan(directory).batches]
        largest = max(batch.max_timestamp for batch in batches)
        batch = next(batch for batch in batches if batch.max_timestamp == largest)
        expected = next((record.offset for record in batch.records() if record.timestamp == largest), None)
        latest = frozen_log(directory).offset_of_largest_timestamp()
        if largest >= 0:
            assert (None if latest is None else latest.offset) == expected


def test_a_search_by_time_skips_no_batch_because_of_a_wrong_offset_index_entry(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    batches = [
        build_batch([NewRecord(timestamp_ms=1000 + offset, key=None, value=b"v")], base_offset=offset)
        for offset in range(10)
    ]
    size = len(batches[0])
    (directory / f"{0:020d}.log").write_bytes(b"".join(batches))
    (directory / f"{0:020d}.index").write_bytes(struct.pack(">iiii", 1, 8 * size, 9, 9 * size))
    (directory / f"{0:020d}.timeindex").write_bytes(struct.pack(">qiqi", 1001, 1, 1009, 9))
    log = frozen_log(directory)
    found = log.offset_for_time(1004)
    assert found is not None and (found.timestamp_ms, found.offset) == (1004, 4)
    assert len(log.unreadable) == 1


def test_without_timestamps_the_largest_is_that_of_the_first_record_unless_it_has_magic_0(tmp_path: Path) -> None:
    case = load_case("legacy-v0", tmp_path)
    found = {}
    for stage in ("before", "after-1"):
        directory = tmp_path / stage / "t-0"
        shutil.copytree(case.directory / stage, directory)
        found[stage] = Scan(directory).batches[0].batch.magic, frozen_log(directory).offset_of_largest_timestamp()
    assert found["before"] == (0, None)
    first = next(record for each in Scan(tmp_path / "after-1" / "t-0").batches for record in each.batch.records())
    magic, latest = found["after-1"]
    assert (magic, latest.timestamp_ms, latest.offset) == (2, -1, first.offset)


# ------------------------------------------------------------------------------------------------------------- epochs
def test_leader_epochs_are_those_of_the_checkpoint_and_else_those_of_the_batches(tmp_path: Path) -> None:
    case = load_case("epochs", tmp_path)
    directory = tmp_path / "t-0"
    shutil.copytree(case.before, directory)
    log = frozen_log(directory)
    answers = [log.end_offset_for_epoch(epoch) for epoch in range(-1, 12)]
    assert len(set(answers)) > 2
    (directory / "leader-epoch-checkpoint").unlink()
    bare = frozen_log(directory)
    assert bare.leader_epoch == log.leader_epoch > 0
    assert [bare.end_offset_for_epoch(epoch) for epoch in range(-1, 12)] == answers
    assert bare.epoch_at_log_start() == log.epoch_at_log_start()
    (directory / "leader-epoch-checkpoint").write_bytes(b"nonsense")
    assert frozen_log(directory).leader_epoch == log.leader_epoch


# --------------------------------------------------------------------------------------------------------- corruption
def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def drain(log, isolation: Isolation = LOG_END, max_bytes: int = 3000) -> list[int]:
    """Return the base offsets of all batches, as a consumer finds them that follows the last offset it got."""
    found: list[int] = []
    offset = log.log_start_offset
    while True:
        data = content(log.read(offset, max_bytes, isolation=isolation, min_one=True))
        batches = [batch for _, batch in file_batches(data)]
        if not batches:
            return found
        found += [batch.base_offset for batch in batches if batch.last_offset >= offset]
        offset = batches[-1].last_offset + 1


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("part", ["length", "magic", "body"])
def test_a_damaged_batch_is_left_out_and_named_and_its_neighbours_are_read(
    part: str, seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "t-0"
    write_random_log(directory, seed, LogShape(batches=80, transactional=0.3, emptied=0, gaps=0, segment_bytes=4000))
    scan = Scan(directory)
    rng = random.Random(seed)
    inner = [found for found in scan.batches if found.segment < len(scan.segments) - 1]
    damaged = rng.choice(inner)
    base = scan.segments[damaged.segment].base_offset
    at = {"length": 9, "magic": 16, "body": len(damaged.batch.data) - 2}[part]
    flip(directory / f"{base:020d}.log", damaged.position + at)
    log = frozen_log(directory)
    left = drain(log)
    expected = [found.batch.base_offset for found in scan.batches]
    expected.remove(damaged.batch.base_offset)
    if part == "body":
        assert left == expected
    else:
        lost = set(expected) - set(left)
        same_segment = {found.batch.base_offset for found in scan.batches if found.segment == damaged.segment}
        assert lost <= same_segment
        assert all(offset > damaged.batch.base_offset for offset in lost)
        assert set(left) <= set(expected)
    (unreadable,) = log.unreadable
    assert unreadable.start_position == damaged.position
    assert str(base) in caplog.text
    assert drain(log) == left
    assert len(log.unreadable) == 1


def test_an_index_of_another_log_is_not_believed(tmp_path: Path) -> None:
    shape = LogShape(batches=200, segment_bytes=1 << 20, interval_bytes=100, transactional=0, emptied=0)
    write_random_log(tmp_path / "t-0", 1, shape)
    write_random_log(tmp_path / "t-1", 2, shape)
    good = Scan(tmp_path / "t-0")
    for kind in (".index", ".timeindex"):
        theirs = next((tmp_path / "t-1").glob(f"*{kind}"))
        next((tmp_path / "t-0").glob(f"*{kind}")).write_bytes(theirs.read_bytes())
    log = frozen_log(tmp_path / "t-0")
    for offset in range(good.log_start, good.log_end):
        data = content(log.read(offset, 1, isolation=LOG_END, min_one=True))
        assert data == good.read(offset, good.log_end, 1, True)


def test_an_index_that_is_absent_is_made_from_the_good_batches(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_random_log(directory, 1, LogShape(batches=400, segment_bytes=1 << 20, transactional=0, emptied=0))
    next(directory.glob("*.index")).unlink()
    assert_reads_like_a_scan(directory, random.Random(1), 60)
    scan = Scan(directory)
    damaged = scan.batches[300]
    for end in (len(scan.batches), 300):
        first_in_blocks = {each.position // 4096: each for each in reversed(scan.batches[:end])}
        wanted = [(each.position, each.batch.last_offset) for _, each in sorted(first_in_blocks.items())]
        entries = opened(directory).offsets
        offsets = [scan.log_start + relative for relative in entries.relative_offsets]
        assert list(zip(entries.positions, offsets, strict=True)) == wanted
        assert len(wanted) > 5
        if end > 300:
            flip(directory / f"{scan.log_start:020d}.log", damaged.end_position - 1)


def opened(directory: Path) -> OpenSegment:
    """Return the only segment of a log."""
    [segment] = list_log(partition_of(directory), directory, Fs()).segments
    log = directory / f"{segment.base_offset:020d}.log"
    files = SegmentFiles(
        partition=directory.name,
        base_offset=segment.base_offset,
        end_offset=2**40,
        log=str(log),
        offset_index=log.with_suffix(".index"),
        time_index=log.with_suffix(".timeindex"),
        size_bytes=segment.log_bytes,
        mtime_ns=segment.mtime_ns,
    )
    return OpenSegments(Fs(), max_files=1, max_index_bytes=1 << 20).get(files)


def test_a_transaction_index_that_cannot_be_read_is_replaced_by_the_batches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "t-0"
    write_random_log(directory, 1, SHAPES[0])
    for path in directory.glob("*.txnindex"):
        path.write_bytes(b"\x01" + path.read_bytes()[1:])
    assert_reads_like_a_scan(directory, random.Random(1), 60)
    assert "version newer than 0" in caplog.text


def test_a_batch_whose_offset_was_damaged_does_not_lead_consumers_out_of_the_log(tmp_path: Path) -> None:
    # No checksum covers the base offset.
    directory = tmp_path / "t-0"
    write_random_log(directory, 1, LogShape(batches=60, segment_bytes=1 << 20, transactional=0, emptied=0, gaps=0))
    scan = Scan(directory)
    damaged = scan.batches[20]
    flip(directory / f"{scan.log_start:020d}.log", damaged.position + 4)
    log = frozen_log(directory)
    expected = [found.batch.base_offset for found in scan.batches]
    expected.remove(damaged.batch.base_offset)
    assert drain(log) == expected
    assert len(log.unreadable) == 1


@pytest.mark.parametrize("name", loading_cases())
def test_what_damage_left_readable_is_read_in_order_and_whole(name: str, tmp_path: Path) -> None:
    """Whatever the damage: batches with valid checksums only, offsets ascend, and no read fails."""
    case = load_loading_case(name, tmp_path)
    log = frozen_log(case.before)
    offsets = drain(log)
    assert offsets == sorted(set(offsets))
    assert len(offsets) > 3
    scan_ends = [segment.base_offset for segment in Scan(case.after).segments]
    assert offsets[-1] >= scan_ends[-1] or not Scan(case.after).segments[-1].batches()


# -------------------------------------------------------------------------------------------------------- descriptors
def test_few_descriptors_serve_a_log_of_many_segments(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_random_log(directory, 1, LogShape(batches=300, segment_bytes=700))
    scan = Scan(directory)
    assert len(scan.segments) > 20
    log = frozen_log(directory, max_files=3)
    before = len(os.listdir("/proc/self/fd"))
    assert drain(log) == [found.batch.base_offset for found in scan.batches]
    assert len(os.listdir("/proc/self/fd")) <= before + 3
    small = frozen_log(directory, max_index_bytes=50)
    assert drain(small) == [found.batch.base_offset for found in scan.batches]


def test_a_slice_is_read_to_its_end_after_its_segment_was_given_up(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_random_log(directory, 1, LogShape(batches=100, segment_bytes=700))
    scan, log = Scan(directory), frozen_log(directory, max_files=1)
    fetched = log.read(scan.log_start, 1 << 20, isolation=LOG_END, min_one=True)
    drain(log)
    assert content(fetched) == scan.segments[0].read(".log")


# ------------------------------------------------------------------------------------------------------------- changes
def _touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _replace(path: Path) -> None:
    status = path.stat()
    path.rename(path.with_suffix(".deleted"))
    path.write_bytes(path.with_suffix(".deleted").read_bytes())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("change", [_touch, _append, _replace, Path.unlink])
@pytest.mark.parametrize("was_open", [True, False])
def test_a_segment_that_was_changed_meanwhile_is_not_served_any_more(change, was_open: bool, tmp_path: Path) -> None:
    if change is _replace and not was_open:
        return  # a copy with the same times looks like the file that was listed
    directory = tmp_path / "t-0"
    write_random_log(directory, 1, LogShape(batches=100, segment_bytes=700))
    scan, log = Scan(directory), frozen_log(directory)
    last = scan.segments[-2].base_offset
    if was_open:
        drain(log)
    else:
        assert log.read(scan.log_start, 100, isolation=LOG_END, min_one=True).size_bytes
    change(directory / f"{scan.segments[0].base_offset:020d}.log" if was_open else directory / f"{last:020d}.log")
    changed, other = (scan.log_start, last) if was_open else (last, scan.log_start)
    for _ in range(2):
        with pytest.raises(StorageError, match="changed or removed"):
            log.read(changed, 100, isolation=LOG_END, min_one=True)
    assert log.read(other, 100, isolation=LOG_END, min_one=True).size_bytes


def test_nothing_is_opened_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "t-0"
    write_random_log(directory, 1, SHAPES[0])
    flags: list[int] = []
    really_open = os.open

    def noted_open(path, mode, *arguments, **named):
        flags.append(mode)
        return really_open(path, mode, *arguments, **named)

    monkeypatch.setattr(os, "open", noted_open)
    log = frozen_log(directory)
    drain(log, COMMITTED)
    log.offset_for_time(0)
    log.end_offset_for_epoch(0)
    assert flags
    assert not any(flag & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) for flag in flags)


# --------------------------------------------------------------------------------------------------------------- faults
def test_a_disk_that_fails_is_a_storage_error_until_it_is_back(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_random_log(directory, 1, SHAPES[0])
    fs = FaultyReads()
    log = frozen_log(directory, fs=fs)
    expected = drain(log)
    fs.is_broken = True
    with pytest.raises(StorageError, match="Input/output error"):
        log.read(log.log_start_offset, 100, isolation=LOG_END, min_one=True)
    fs.is_broken = False
    assert drain(log) == expected


def test_without_free_descriptors_other_segments_are_given_up_first(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_random_log(directory, 1, LogShape(batches=100, segment_bytes=700))
    fs = FaultyReads()
    log = frozen_log(directory, fs=fs)
    fs.files_left = 0
    with pytest.raises(OpenFilesLimitError, match="ulimit"):
        log.read(log.log_start_offset, 100, isolation=LOG_END, min_one=True)
    fs.files_left = 1 << 20
    assert drain(log) == [found.batch.base_offset for found in Scan(directory).batches]


def test_many_threads_read_one_log(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    write_random_log(directory, 1, LogShape(batches=120, segment_bytes=1500))
    base = Scan(directory).segments[1].base_offset
    flip(directory / f"{base:020d}.log", 80)
    expected = drain(frozen_log(directory))
    log = frozen_log(directory, max_files=2)
    with ThreadPoolExecutor(8) as pool:
        assert all(found == expected for found in pool.map(lambda _: drain(log), range(24)))
    assert len(log.unreadable) == 1


class _AddingPosition(int):
    """A position that, while a look-up compares it, lets another thread add a range."""

    ranges: VerifiedRanges

    def __lt__(self, other: object) -> bool:
        self.ranges.add(100, 500)
        return int(self) < other


@pytest.mark.parametrize("start", [500, 1000])
def test_a_range_that_is_verified_meanwhile_makes_no_other_bytes_count_as_verified(start: int) -> None:
    ranges = VerifiedRanges()
    for each in (0, 500, 1000):
        ranges.add(each, each + 100)
    position = _AddingPosition(start + 50)
    position.ranges = ranges
    assert ranges.end_of(position) == start + 100
