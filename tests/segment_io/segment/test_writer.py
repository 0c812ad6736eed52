"""Laying out emitted batches as segments, against the twin's index builder."""

import numpy as np
import pytest

from sediment.segment_io.format.names import Attempt
from sediment.segment_io.format.transaction_index import AbortedTxn
from sediment.segment_io.fs import Fs
from sediment.segment_io.segment.writer import PartFiles, lay_out_segments, write_segment, write_segments
from tests.twin.batches import Record, encode_batch, parse_batch
from tests.twin.errors import IndexFullError
from tests.twin.indexes import build_indexes, parse_offset_index, parse_time_index, parse_transaction_index


def batch_at(offset, timestamp=None):
    timestamp = 1000 + offset if timestamp is None else timestamp
    return encode_batch([Record(offset, timestamp, b"k%d" % offset, b"v" * 20)], base_offset=offset, leader_epoch=0)


def as_array(batches):
    return np.frombuffer(b"".join(batches) + b"\0" * 64, dtype=np.uint8)[: sum(map(len, batches))]


def lay_out(batches, base=0, aborted=(), interval=100, index_bytes=10 << 20, **limits):
    return lay_out_segments(
        as_array(batches),
        base,
        aborted,
        index_interval_bytes=interval,
        segment_index_bytes=index_bytes,
        **limits,
    )


@pytest.mark.parametrize("interval", [0, 1, 100, 4096])
@pytest.mark.parametrize("timestamps", [None, "falling", "none"])
def test_indexes_are_those_of_an_append_batch_by_batch(interval, timestamps):
    at = {None: lambda n: None, "falling": lambda n: 5000 - n, "none": lambda n: -1}[timestamps]
    batches = [batch_at(n, at(n)) for n in range(60)]
    (image,) = lay_out(batches, interval=interval)
    expected = build_indexes([parse_batch(batch) for batch in batches], 0, interval_bytes=interval)
    assert (image.offset_index, image.time_index) == expected
    assert image.log.tobytes() == b"".join(batches)


def test_nothing_left_is_one_empty_segment():
    (image,) = lay_out([], base=7)
    assert (image.base_offset, image.log.size, image.offset_index, image.time_index) == (7, 0, b"", b"")


def test_where_an_index_is_full_the_entries_that_fit_are_kept():
    batches = [batch_at(n) for n in range(60)]
    (image,) = lay_out(batches, interval=0, index_bytes=50)
    every, _ = build_indexes([parse_batch(batch) for batch in batches], 0, interval_bytes=0)
    assert image.offset_index == every[:48]
    times = parse_time_index(image.time_index, 0)
    assert len(times) == 4
    assert times[-1].timestamp == 1059


def test_a_log_too_large_for_one_file_goes_on_in_a_segment_named_by_its_first_batch():
    batches = [batch_at(n) for n in range(10)]
    size = len(batches[0])
    images = lay_out(batches, interval=0, max_segment_bytes=4 * size)
    assert [image.base_offset for image in images] == [0, 4, 8]
    assert b"".join(image.log.tobytes() for image in images) == b"".join(batches)
    for image in images:
        first = parse_offset_index(image.offset_index, image.base_offset)[0]
        assert (first.offset, first.position) == (image.base_offset + 1, size)


def test_cp_36_offsets_that_do_not_fit_31_bits_go_into_a_segment_of_their_own():
    batches = [batch_at(5), batch_at(5 + 2**31 - 1), batch_at(5 + 2**31)]
    images = lay_out(batches, base=5)
    assert [(image.base_offset, image.log.size) for image in images] == [
        (5, len(batches[0]) + len(batches[1])),
        (5 + 2**31, len(batches[2])),
    ]


def test_transaction_index_entries_go_with_their_markers():
    entries = [AbortedTxn(1, 0, 2, 3), AbortedTxn(2, 1, 7, 8)]
    size = len(batch_at(0))
    images = lay_out([batch_at(n) for n in range(10)], aborted=entries, max_segment_bytes=5 * size)
    found = [[entry.last_offset for entry in parse_transaction_index(image.transaction_index)] for image in images]
    assert found == [[2], [7]]


def test_files_are_written_under_names_that_loaders_ignore_with_the_time_and_mode_of_their_source(tmp_path):
    source = tmp_path / f"{0:020d}.log"
    source.write_bytes(b"")
    source.chmod(0o640)
    (image,) = lay_out([batch_at(0)])
    files = write_segment(image, PartFiles(tmp_path, source, 10**18, Attempt("r", "0.1"), Fs()))
    assert [file.final_name for file in files] == [f"{0:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")]
    for file in files:
        written = tmp_path / file.part_name
        status = written.stat()
        assert written.name.endswith(".part")
        assert (status.st_size, status.st_mtime_ns, status.st_mode & 0o777) == (file.size_bytes, 10**18, 0o640)


def write_in_pieces(directory, batches, step, *, index_bytes=10 << 20, max_segment_bytes=2**31 - 1, aborted=()):
    """Write batches `step` at a time, from the same memory; return (base offset, contents of the files)."""
    source = directory / f"{0:020d}.log"
    source.write_bytes(b"")
    buffer = np.zeros(sum(map(len, batches)), dtype=np.uint8)

    def pieces():
        for start in range(0, len(batches), step):
            piece = b"".join(batches[start : start + step])
            buffer[: len(piece)] = np.frombuffer(piece, dtype=np.uint8)
            yield buffer[: len(piece)]

    segments = write_segments(
        pieces(),
        0,
        aborted,
        PartFiles(directory, source, 10**18, Attempt("r", "0"), Fs()),
        index_interval_bytes=100,
        segment_index_bytes=index_bytes,
        max_segment_bytes=max_segment_bytes,
    )
    written = [(each.base_offset, [(directory / f.part_name).read_bytes() for f in each.files]) for each in segments]
    sizes = [[file.size_bytes for file in segment.files] for segment in segments]
    assert sizes == [[len(content) for content in contents] for _, contents in written]
    return written


@pytest.mark.parametrize("max_segment_bytes", [2**31 - 1, 1500])
@pytest.mark.parametrize("step", [1, 3, 60])
def test_batches_that_come_in_pieces_become_the_files_of_those_that_come_at_once(max_segment_bytes, step, tmp_path):
    batches = [batch_at(n) for n in range(60)]
    aborted = [AbortedTxn(1, n, n + 1, n + 2) for n in range(0, 60, 7)]
    images = lay_out(batches, interval=100, max_segment_bytes=max_segment_bytes, aborted=aborted)
    written = write_in_pieces(tmp_path, batches, step, max_segment_bytes=max_segment_bytes, aborted=aborted)
    assert written == [(image.base_offset, [bytes(content) for _, content in image.files()]) for image in images]


@pytest.mark.parametrize("index_bytes", [40, 61, 120])
@pytest.mark.parametrize("step", [1, 7, 60])
def test_a_full_index_ends_a_segment_of_batches_that_come_in_pieces(index_bytes, step, tmp_path):
    batches = [batch_at(n) for n in range(60)]
    written = write_in_pieces(tmp_path, batches, step, index_bytes=index_bytes)
    assert b"".join(contents[0] for _, contents in written) == b"".join(batches)
    bases = [base for base, _ in written]
    for (base, (_, *indexes)), end in zip(written, [*bases[1:], 60], strict=True):
        own = [parse_batch(batch) for batch in batches[base:end]]
        # The builder raises where Kafka does.
        assert build_indexes(own, base, interval_bytes=100, max_index_bytes=index_bytes) == tuple(indexes)
        if end < 60:
            with pytest.raises(IndexFullError):
                more = [*own, parse_batch(batches[end])]
                build_indexes(more, base, interval_bytes=100, max_index_bytes=index_bytes)


def test_if_the_pieces_fail_no_file_is_left(tmp_path):
    source = tmp_path / f"{0:020d}.log"
    source.write_bytes(b"")

    def pieces():
        yield np.frombuffer(batch_at(0), dtype=np.uint8)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        write_segments(
            pieces(),
            0,
            [],
            PartFiles(tmp_path, source, 0, Attempt("r", "0"), Fs()),
            index_interval_bytes=100,
            segment_index_bytes=1000,
        )
    assert list(tmp_path.iterdir()) == [source]
