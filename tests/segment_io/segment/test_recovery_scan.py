"""A segment verified and indexed in one pass, against the plain twin."""

import random
import struct

import numpy as np
import pytest

from sediment.segment_io.errors import CorruptBatchError, IndexOffsetOverflowError, UnsupportedDataError
from sediment.segment_io.segment import recovery_scan as scan_module
from sediment.segment_io.segment.reader import HeaderScan
from sediment.segment_io.segment.recovery_scan import BatchesAfterCorruption, find_batches_after, scan_segment
from tests.logs import LogShape, write_random_log
from tests.segments import NOW_MS, batch_bytes, marker_bytes
from tests.twin.batches import ControlType, Record, encode_batch, sign_batch
from tests.twin.errors import TwinError
from tests.twin.indexes import IndexBuilder
from tests.twin.legacy import encode_legacy
from tests.twin.segments import file_batches, list_segments

INDEX_BYTES = 10 << 20


def scan(path, base_offset=0, **options):
    settings = {"index_interval_bytes": 4096, "segment_index_bytes": INDEX_BYTES} | options
    return scan_segment(path, base_offset, path.stat().st_size, **settings)


def log_of(tmp_path, *batches):
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(batches))
    return path


def many(count, first=0, **fields):
    return [batch_bytes(first + n, timestamp=NOW_MS + n, **fields) for n in range(count)]


def twin_scan(data, base_offset, interval_bytes):
    """(good bytes, next offset, offset index, time index) as the rules say it, batch by batch."""
    builder = IndexBuilder(base_offset, interval_bytes=interval_bytes)
    next_offset = base_offset
    try:
        for _, batch in file_batches(data):
            if not batch.is_valid():
                break
            builder.append(batch)
            next_offset = batch.last_offset + 1
    except TwinError:
        pass
    return builder.size_bytes, next_offset, *builder.finish()


# --------------------------------------------------------------------------------------------------------- good batches
@pytest.mark.parametrize("seed", range(12))
def test_random_segments_are_indexed_as_the_twin_indexes_them(tmp_path, seed):
    shape = LogShape(segment_bytes=6000, interval_bytes=random.Random(seed).choice([0, 70, 300, 1000]))
    write_random_log(tmp_path / "t-0", seed, shape)
    for segment in list_segments(tmp_path / "t-0"):
        found = scan(segment.path(".log"), segment.base_offset, index_interval_bytes=shape.interval_bytes)
        expected = twin_scan(segment.read(".log"), segment.base_offset, shape.interval_bytes)
        assert (found.good_bytes, found.next_offset, found.offset_index, found.time_index) == expected
        assert found.stop is None
        assert not found.is_torn


@pytest.mark.parametrize("seed", range(60))
def test_a_corrupt_segment_ends_at_the_position_of_the_twin(tmp_path, seed):
    write_random_log(tmp_path / "t-0", seed % 6, LogShape(segment_bytes=6000, interval_bytes=200))
    chance = random.Random(seed)
    segment = chance.choice([found for found in list_segments(tmp_path / "t-0") if found.read(".log")])
    data = bytearray(segment.read(".log"))
    for _ in range(chance.randint(1, 3)):
        # The first 16 bytes of a batch and its magic are under no checksum; elsewhere every flip must be found.
        position, batch = chance.choice(list(file_batches(segment.read(".log"))))
        data[position + chance.randrange(17, len(batch.data))] ^= 1 << chance.randrange(8)
    del data[chance.randrange(len(data) // 2, len(data)) :]
    segment.path(".log").write_bytes(data)
    found = scan(segment.path(".log"), segment.base_offset, index_interval_bytes=200)
    assert (found.good_bytes, found.next_offset, found.offset_index, found.time_index) == twin_scan(
        bytes(data), segment.base_offset, 200
    )
    assert (found.stop is None) == (found.good_bytes == len(data))


@pytest.mark.parametrize("chunk_bytes", [64, 71, 100, 1000])
def test_the_chunk_size_does_not_matter(tmp_path, monkeypatch, chunk_bytes):
    write_random_log(tmp_path / "t-0", 3, LogShape(segment_bytes=9000, interval_bytes=100))
    for segment in list_segments(tmp_path / "t-0"):
        whole = scan(segment.path(".log"), segment.base_offset, index_interval_bytes=100)
        monkeypatch.setattr(scan_module, "CHUNK_BYTES", chunk_bytes)
        assert scan(segment.path(".log"), segment.base_offset, index_interval_bytes=100) == whole
        monkeypatch.undo()


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_messages_of_magic_0_and_1_are_verified_by_their_own_checksum(tmp_path, magic, codec):
    sets = [
        encode_legacy(
            [Record(2 * n, NOW_MS + n, b"k", b"v"), Record(2 * n + 1, NOW_MS, b"k", b"w")], magic=magic, codec=codec
        )
        for n in range(6)
    ]
    path = log_of(tmp_path, *sets)
    found = scan(path, index_interval_bytes=60)
    assert (found.good_bytes, found.next_offset) == (path.stat().st_size, 12)
    assert found.producers_end_offset == 0
    assert (found.offset_index, found.time_index) == twin_scan(path.read_bytes(), 0, 60)[2:]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    last_bytes = len(sets[-1]) if codec else len(sets[-1]) // 2
    assert scan(path, index_interval_bytes=60).good_bytes == len(data) - last_bytes


def test_batches_of_producers_are_handed_out_with_their_headers_in_log_order(tmp_path):
    write_random_log(tmp_path / "t-0", 5, LogShape(batches=200, segment_bytes=50_000))
    for segment in list_segments(tmp_path / "t-0"):
        if not segment.read(".log"):
            continue
        tables = []

        def keep(rows, tables=tables):
            tables.append(rows.copy())

        scan(segment.path(".log"), segment.base_offset, on_producer_batches=keep)
        walked = np.concatenate([rows.copy() for rows in HeaderScan(segment.path(".log"))])
        assert (np.concatenate(tables) == walked[walked["producer_id"] >= 0]).all()


def test_more_batches_of_producers_than_a_table_holds_are_all_handed_out(tmp_path, monkeypatch):
    monkeypatch.setattr(scan_module, "_ROWS_PER_TABLE", 3)
    path = log_of(tmp_path, *many(10, producer_id=1))
    tables = []
    scan(path, on_producer_batches=lambda rows: tables.append(rows["base_offset"].tolist()))
    assert tables == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_rc_19_the_first_batch_of_each_leader_epoch_above_the_known_one_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(scan_module, "_EPOCHS_PER_TABLE", 2)
    epochs = {104: 0, 106: 1, 108: 1, 110: 2, 111: 1, 112: 5}
    path = log_of(
        tmp_path,
        *(
            encode_batch([Record(offset, 1, b"k", b"v")], base_offset=offset, leader_epoch=epoch)
            for offset, epoch in epochs.items()
        ),
    )
    assert scan(path, 100).leader_epochs == ((0, 104), (1, 106), (2, 110), (5, 112))
    assert scan(path, 100, known_leader_epoch=1).leader_epochs == ((2, 110), (5, 112))


def test_the_largest_timestamp_is_that_of_the_batches(tmp_path):
    path = log_of(tmp_path, batch_bytes(0, timestamp=5), batch_bytes(1, timestamp=9), batch_bytes(2, timestamp=7))
    assert scan(path).largest_timestamp_ms == 9
    assert scan(log_of(tmp_path, batch_bytes(0, timestamp=-1))).largest_timestamp_ms == -1


def test_an_empty_file_is_a_segment_without_batches(tmp_path):
    found = scan(log_of(tmp_path), 7)
    assert (found.good_bytes, found.next_offset, found.offset_index, found.time_index, found.stop) == (
        0,
        7,
        b"",
        b"",
        None,
    )


def test_only_the_bytes_that_the_caller_names_are_read(tmp_path):
    first, second = many(2)
    path = log_of(tmp_path, first, second)
    found = scan_segment(path, 0, len(first) + 5, index_interval_bytes=0, segment_index_bytes=INDEX_BYTES)
    assert (found.good_bytes, found.next_offset, found.is_torn) == (len(first), 1, True)


# ----------------------------------------------------------------------------------------------- indexes that are full
def test_a_full_index_stays_sparser_instead_of_failing(tmp_path):
    path = log_of(tmp_path, *many(40))
    found = scan(path, index_interval_bytes=0, segment_index_bytes=40)
    assert len(found.offset_index) == 40
    assert len(found.time_index) == 36
    offsets = [entry[0] for entry in struct.iter_unpack(">ii", found.offset_index)]
    assert offsets == [1, 2, 3, 4, 5]
    times = list(struct.iter_unpack(">qi", found.time_index))
    assert times == [(NOW_MS + 1, 1), (NOW_MS + 2, 2), (NOW_MS + 39, 39)]


# ------------------------------------------------------------------------------------------------------------ the stops
def test_a_torn_last_batch_is_told_from_one_that_is_wrong(tmp_path):
    first, second = many(2)
    torn = scan(log_of(tmp_path, first, second[:-1]))
    assert (torn.good_bytes, torn.is_torn) == (len(first), True)
    wrong = scan(log_of(tmp_path, first, second[:-1] + b"?"))
    assert (wrong.good_bytes, wrong.is_torn, wrong.stop) == (len(first), False, "the batch fails its CRC")


@pytest.mark.parametrize("tail", [b"\0" * 18, b"\0" * 5000, b"\0" * 11, b"\xff" * 40])
def test_zeros_and_garbage_after_the_last_batch_are_a_torn_tail(tmp_path, tail):
    first, second = many(2)
    found = scan(log_of(tmp_path, first, second, tail))
    assert (found.good_bytes, found.next_offset, found.is_torn) == (len(first + second), 2, True)


def test_an_offset_too_far_above_the_base_asks_for_a_split(tmp_path):
    path = log_of(tmp_path, batch_bytes(0), batch_bytes(2_147_483_650))
    with pytest.raises(IndexOffsetOverflowError) as caught:
        scan(path)
    assert (caught.value.offset, caught.value.position) == (2_147_483_650, len(batch_bytes(0)))
    scan(log_of(tmp_path, batch_bytes(0), batch_bytes(2_147_483_647)))


def test_a_good_batch_below_the_base_is_refused(tmp_path):
    with pytest.raises(CorruptBatchError, match="below the segment's base offset 10"):
        scan(log_of(tmp_path, batch_bytes(10), batch_bytes(9)), 10)


def test_a_right_checksum_under_an_unknown_magic_is_of_a_later_version(tmp_path):
    data = bytearray(batch_bytes(0))
    data[16] = 3
    with pytest.raises(UnsupportedDataError, match="unknown magic, and its checksum is correct"):
        scan(log_of(tmp_path, data))
    data[-1] ^= 1
    assert scan(log_of(tmp_path, data)).good_bytes == 0


def test_an_offset_that_goes_back_is_a_stop_where_an_entry_would_go_back(tmp_path):
    batches = [batch_bytes(offset, timestamp=NOW_MS + offset) for offset in (0, 5, 6, 3, 7)]
    path = log_of(tmp_path, *batches)
    found = scan(path, index_interval_bytes=0)
    assert (found.good_bytes, found.next_offset) == (3 * len(batches[0]), 7)
    assert found.stop == "the offset of the batch is not above the offsets before it"
    whole = scan(path, index_interval_bytes=0, stop_if_offsets_go_back=False)
    assert (whole.good_bytes, whole.next_offset) == (5 * len(batches[0]), 8)
    assert [entry[0] for entry in struct.iter_unpack(">ii", whole.offset_index)] == [5, 6, 7]


def test_a_batch_that_goes_back_leaves_nothing_in_the_indexes(tmp_path):
    good = [batch_bytes(offset, timestamp=NOW_MS + offset) for offset in (0, 5, 6)]
    found = scan(log_of(tmp_path, *good, batch_bytes(6, timestamp=NOW_MS + 9)), index_interval_bytes=0)
    expected = scan(log_of(tmp_path, *good), index_interval_bytes=0)
    assert (found.offset_index, found.time_index) == (expected.offset_index, expected.time_index)
    assert found.largest_timestamp_ms == NOW_MS + 6


def test_a_control_record_that_cannot_be_read_ends_the_good_batches(tmp_path):
    marker = bytearray(marker_bytes(1, ControlType.COMMIT, producer_id=1))
    key_length = marker.rindex(struct.pack(">hh", 0, 1)) - 1
    marker[key_length] = 2  # a key of one byte
    path = log_of(tmp_path, batch_bytes(0, producer_id=1, transactional=True), sign_batch(bytes(marker)))
    found = scan(path, on_producer_batches=lambda rows: None)
    assert (found.next_offset, found.stop) == (1, "the control record is malformed")


# --------------------------------------------------------------------------------------------------- after corruption
def test_good_batches_after_a_bad_one_are_counted(tmp_path):
    batches = many(6)
    batches[2] = batches[2][:-1] + b"?"
    path = log_of(tmp_path, *batches)
    position = 2 * len(batches[0])
    assert find_batches_after(path, position, path.stat().st_size, 2) == BatchesAfterCorruption(3, 5)


def test_good_batches_after_a_corrupt_length_are_found_by_their_headers(tmp_path):
    batches = many(6)
    broken = bytearray(batches[2])
    broken[8:12] = struct.pack(">i", -7)
    path = log_of(tmp_path, *batches[:2], broken, b"junk", *batches[3:])
    assert find_batches_after(path, 2 * len(batches[0]), path.stat().st_size, 2) == BatchesAfterCorruption(3, 5)
    broken[8:12] = struct.pack(">i", 1_000_000)
    path = log_of(tmp_path, *batches[:2], broken, *batches[3:])
    assert find_batches_after(path, 2 * len(batches[0]), path.stat().st_size, 2) == BatchesAfterCorruption(3, 5)


def test_nothing_good_is_found_in_a_torn_tail_or_in_old_batches(tmp_path):
    batches = many(3)
    path = log_of(tmp_path, *batches[:2], batches[2][:-3])
    assert find_batches_after(path, 2 * len(batches[0]), path.stat().st_size, 2) == BatchesAfterCorruption(0, -1)
    path = log_of(tmp_path, *batches[:2], b"\0" * 3000, batches[0])
    assert find_batches_after(path, 2 * len(batches[0]), path.stat().st_size, 2) == BatchesAfterCorruption(0, -1)


@pytest.mark.parametrize("chunk_bytes", [128, 200, 1024])
@pytest.mark.parametrize("seed", range(5))
def test_batches_after_corruption_are_the_same_in_small_chunks(tmp_path, monkeypatch, seed, chunk_bytes):
    write_random_log(tmp_path / "t-0", seed, LogShape(segment_bytes=20_000, gaps=0))
    segment = max(list_segments(tmp_path / "t-0"), key=lambda found: len(found.read(".log")))
    data = bytearray(segment.read(".log"))
    batches = list(file_batches(bytes(data)))
    position, _ = batches[len(batches) // 3]
    data[position + 8 : position + 12] = b"\xff\xff\xff\xff"
    segment.path(".log").write_bytes(data)
    monkeypatch.setattr(scan_module, "CHUNK_BYTES", chunk_bytes)
    found = find_batches_after(
        segment.path(".log"), position, len(data), batches[len(batches) // 3 - 1][1].last_offset + 1
    )
    assert found == BatchesAfterCorruption(len(batches) - len(batches) // 3 - 1, batches[-1][1].last_offset)
