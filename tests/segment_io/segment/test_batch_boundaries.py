"""Ends of the whole batches of a file."""

import pytest

from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.fs import Fs
from sediment.segment_io.segment.batch_boundaries import batch_ends
from tests.segments import batch_bytes

BATCHES = batch_bytes(10, "abc"), batch_bytes(20), batch_bytes(30, "ab")
ENDS = [sum(map(len, BATCHES[: count + 1])) for count in range(3)]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "00000000000000000010.log"
    path.write_bytes(b"".join(BATCHES))
    return path


def test_the_batches_end_where_their_lengths_say_and_at_their_last_offsets(log):
    assert list(batch_ends(log, Fs())) == list(zip((12, 20, 31), ENDS, strict=True))
    assert list(batch_ends(log, Fs(), position=ENDS[0])) == [(20, ENDS[1]), (31, ENDS[2])]
    assert list(batch_ends(log, Fs(), size_bytes=ENDS[2] - 1)) == [(12, ENDS[0]), (20, ENDS[1])]
    assert list(batch_ends(log.with_name("none"), Fs())) == []


@pytest.mark.parametrize("position", range(12, 61))
def test_nothing_else_in_a_header_matters_but_the_last_offset_delta_and_whether_the_magic_is_old(log, position):
    data = bytearray(log.read_bytes())
    data[ENDS[0] + position] ^= 0x40
    log.write_bytes(data)
    offsets = [offset for offset, _ in batch_ends(log, Fs())]
    assert (offsets == [12, 20, 31]) is (position not in range(23, 27))


def test_a_length_below_that_of_any_batch_is_an_error_with_its_place(log):
    log.write_bytes(log.read_bytes() + bytes(18))
    with pytest.raises(CorruptBatchError) as caught:
        list(batch_ends(log, Fs()))
    assert (caught.value.path, caught.value.position) == (str(log), ENDS[2])
