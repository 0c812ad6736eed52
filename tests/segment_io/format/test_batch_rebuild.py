"""Rebuilt batches against the twin's encoder."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.compiled.status import OK
from sediment.segment_io.format import batch_rebuild, record_decoder
from tests.segment_io.format.test_record_decoder import blobs, padded
from tests.twin.batches import Record, encode_batch, encode_empty_batch, parse_batch


def rebuilt(batch, kept, horizon=batch_rebuild.NO_HORIZON):
    """Return the bytes that the kernels write for the kept records of an uncompressed batch."""
    source = padded(batch)
    count = parse_batch(batch).count
    rows = np.zeros((count, record_decoder.RECORD_FIELDS), dtype=np.int64)
    base = source.ctypes.data
    assert record_decoder.decode_records(base, 61, len(batch), count, rows) == OK
    marks = np.array(kept, dtype=np.uint8)
    batch_rebuild.pack_kept(rows, count, marks)
    first, largest = batch_rebuild.kept_timestamps(base, rows, sum(kept))
    if horizon != batch_rebuild.NO_HORIZON:
        first = horizon
    size = 61 + batch_rebuild.records_size(base, rows, sum(kept), first)
    assert size <= batch_rebuild.rebuilt_bound(len(batch) - 61, count)
    target = np.zeros(size, dtype=np.uint8)
    end = batch_rebuild.write_records(target.ctypes.data + 61, base, base, rows, sum(kept), first)
    assert end - target.ctypes.data == size
    batch_rebuild.write_header(
        target.ctypes.data, base, size, sum(kept), first, largest, horizon != batch_rebuild.NO_HORIZON
    )
    return target.tobytes()


@st.composite
def batches(draw):
    count = draw(st.integers(1, 8))
    offsets = np.cumsum(draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))) + 40
    records = [Record(int(offset), draw(st.integers(-1, 2**45)), draw(blobs), draw(blobs)) for offset in offsets]
    kept = draw(st.lists(st.booleans(), min_size=count, max_size=count).filter(any))
    append_time = draw(st.one_of(st.none(), st.integers(0, 2**45)))
    return records, kept, append_time


@given(batches(), st.one_of(st.just(batch_rebuild.NO_HORIZON), st.integers(0, 2**50)))
def test_a_rebuilt_batch_equals_the_encoding_of_its_kept_records(case, horizon):
    records, kept, append_time = case
    fields = {
        "base_offset": 40,
        "last_offset": records[-1].offset,
        "leader_epoch": 3,
        "producer_id": 9,
        "producer_epoch": 1,
        "base_sequence": 5,
    }
    batch = encode_batch(records, append_time=append_time, **fields)
    survivors = [
        Record(r.offset, r.timestamp if append_time is None else append_time, r.key, r.value, r.headers)
        for r, keep in zip(records, kept, strict=True)
        if keep
    ]
    expected = encode_batch(
        survivors,
        append_time=append_time,
        delete_horizon_ms=None if horizon == batch_rebuild.NO_HORIZON else horizon,
        **fields,
    )
    assert rebuilt(batch, kept, horizon) == expected


@given(batches())
def test_an_emptied_batch_equals_the_twins(case):
    records, _, append_time = case
    batch = encode_batch(
        records, base_offset=40, append_time=append_time, producer_id=4, producer_epoch=0, base_sequence=1
    )
    source = padded(batch)
    target = np.zeros(61, dtype=np.uint8)
    batch_rebuild.write_empty_batch(target.ctypes.data, source.ctypes.data)
    assert target.tobytes() == encode_empty_batch(parse_batch(batch))
