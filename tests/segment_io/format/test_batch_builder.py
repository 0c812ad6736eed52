"""Batches from values, against the plain Python twin and the golden bytes (kafka-log 01 §3.5, §4)."""

from __future__ import annotations

import random

import pytest

from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from tests.twin.batches import Record, RecordHeader, encode_batch, parse_batch


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_a_batch_says_what_was_put_in(codec: int, seed: int) -> None:
    chance = random.Random(seed)

    def content() -> bytes | None:
        return chance.choice([None, b"", chance.randbytes(chance.randrange(300))])

    records = [
        NewRecord(
            chance.choice([-1, 0, 1_700_000_000_000 + chance.randrange(-(10**9), 10**9)]),
            content(),
            content(),
            tuple((b"h%d" % n, content()) for n in range(chance.randrange(3))),
        )
        for _ in range(chance.randrange(1, 200))
    ]
    head = BatchHead(
        base_offset=chance.randrange(10**9),
        leader_epoch=7,
        codec=codec,
        append_time_ms=chance.choice([None, 5]),
        producer_id=9,
        producer_epoch=2,
        base_sequence=77,
        is_transactional=True,
    )
    twins = [
        Record(head.base_offset + n, r.timestamp_ms, r.key, r.value, tuple(RecordHeader(k, v) for k, v in r.headers))
        for n, r in enumerate(records)
    ]
    batch = parse_batch(build_batch(records, head))
    wanted = encode_batch(
        twins,
        base_offset=head.base_offset,
        leader_epoch=7,
        append_time=head.append_time_ms,
        producer_id=9,
        producer_epoch=2,
        base_sequence=77,
        transactional=True,
    )
    assert batch.is_valid()
    if codec == 0:
        assert batch.data == wanted
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch.records()] == [
        (r.offset, r.timestamp, r.key, r.value, r.headers) for r in parse_batch(wanted).records()
    ]
    assert (batch.codec, batch.max_timestamp) == (codec, parse_batch(wanted).max_timestamp)
