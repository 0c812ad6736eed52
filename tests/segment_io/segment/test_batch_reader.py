"""Batches of a fetch as values, against the plain Python twin."""

from __future__ import annotations

import random

import pytest

from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.record_batch import BatchHead, NewRecord, build_batch
from sediment.segment_io.segment.batch_reader import ReadRecord, parse_batches
from tests.twin.batches import Record, parse_batch
from tests.twin.legacy import encode_legacy


def some_batch(chance: random.Random, base_offset: int, codec: int) -> tuple[bytes, list[ReadRecord]]:
    def content() -> bytes | None:
        return chance.choice([None, b"", chance.randbytes(chance.randrange(300))])

    records = [
        NewRecord(
            1_700_000_000_000 + chance.randrange(-(10**9), 10**9),
            content(),
            content(),
            tuple((b"h%d" % n, content()) for n in range(chance.randrange(3))),
        )
        for _ in range(chance.randrange(1, 60))
    ]
    head = BatchHead(base_offset=base_offset, leader_epoch=7, codec=codec, append_time_ms=chance.choice([None, 5]))
    wanted = [
        ReadRecord(
            base_offset + delta,
            record.timestamp_ms if head.append_time_ms is None else 5,
            record.key,
            record.value,
            record.headers,
        )
        for delta, record in enumerate(records)
    ]
    return build_batch(records, head), wanted


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_what_was_built_is_read_and_a_torn_last_batch_is_left_out(codec: int) -> None:
    chance = random.Random(codec)
    data, wanted, offset = b"", [], 0
    for _ in range(300):  # more than one round of headers
        batch, records = some_batch(chance, offset, codec)
        data, wanted, offset = data + batch, wanted + records, offset + len(records)
    last, _ = some_batch(chance, offset, codec)
    found = list(parse_batches(data + last[:-1]))
    assert [record for batch in found for record in batch.records] == wanted
    assert found[-1].last_offset == offset - 1
    assert {batch.leader_epoch for batch in found} == {7}
    assert list(parse_batches(b"")) == list(parse_batches(last[:30])) == []


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 3])
def test_messages_of_old_formats_are_read(magic: int, codec: int) -> None:
    records = [Record(offset, 1_700_000_000_000 + offset, b"k", None) for offset in (4, 5, 6)]
    found = list(parse_batches(encode_legacy(records, magic=magic, codec=codec)))
    assert [record.offset for batch in found for record in batch.records] == [4, 5, 6]
    assert (found[0].base_offset, found[-1].last_offset) == (4, 6)
    times = [record.timestamp_ms for batch in found for record in batch.records]
    assert times == ([-1] * 3 if magic == 0 else [record.timestamp for record in records])
    assert {(record.key, record.value) for batch in found for record in batch.records} == {(b"k", None)}


def test_the_header_of_a_transactional_batch_is_read() -> None:
    head = BatchHead(producer_id=9, producer_epoch=2, base_sequence=77, is_transactional=True)
    [batch] = parse_batches(build_batch([NewRecord(1, b"k", b"v")], head))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 2, 77)
    assert batch.is_transactional and not batch.is_control


def test_a_corrupt_batch_is_reported_after_those_before_it() -> None:
    whole = build_batch([NewRecord(1, b"k", b"v")])
    assert parse_batch(whole).is_valid()
    batches = parse_batches(whole + whole[:-1] + b"!")
    assert len(next(batches).records) == 1
    with pytest.raises(CorruptBatchError, match=f"position {len(whole)}"):
        next(batches)
