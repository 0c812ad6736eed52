"""Batches that `sediment.records` builds, read by Kafka's own classes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sediment import records as r
from tests.conformance.oracle import KafkaOracle
from tests.corpus import read_dump

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(0)]

NOW_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def random_batch(chance: random.Random, base_offset: int) -> bytes:
    def content(largest: int) -> bytes | None:
        return chance.choice([None, b"", chance.randbytes(chance.randrange(largest))])

    if chance.random() < 0.1:
        return r.transaction_marker(
            chance.choice([r.ControlType.ABORT, r.ControlType.COMMIT]),
            producer_id=chance.randrange(1 << 40),
            producer_epoch=chance.randrange(100),
            coordinator_epoch=chance.randrange(100),
            timestamp_ms=NOW_MS,
            base_offset=base_offset,
        )
    new = [
        r.NewRecord(
            chance.choice([-1, 0, NOW_MS + chance.randrange(-(10**9), 10**9)]),
            content(40),
            content(2000),
            tuple((b"h%d" % n, content(100)) for n in range(chance.randrange(4))),
        )
        for _ in range(chance.randrange(1, 120))
    ]
    producer = r.Producer(chance.randrange(1 << 40), chance.randrange(100), chance.randrange(1 << 30), True)
    return r.build_batch(
        new,
        base_offset=base_offset,
        codec=chance.choice(CODECS),
        leader_epoch=chance.randrange(100),
        append_time_ms=chance.choice([None, None, NOW_MS]),
        producer=chance.choice([None, producer]),
    )


@pytest.mark.parametrize("seed", range(4))
def test_kafka_reads_built_batches_as_sediment_does(oracle: KafkaOracle, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data, offset = b"", 0
    for _ in range(100):
        data += random_batch(chance, offset)
        offset = r.next_offset(data, 0)
    log = tmp_path / "t-0" / f"{0:020d}.log"
    log.parent.mkdir()
    log.write_bytes(data)
    oracle.dump(log.parent, tmp_path / "dump.jsonl.gz")
    [segment] = read_dump(tmp_path / "dump.jsonl.gz")

    assert all(batch.is_valid for batch in segment.batches)
    found = [record for batch in segment.batches for record in batch.records]
    read = list(r.read_records(data, with_control=True))
    assert [(f.offset, f.timestamp, f.key, f.value) for f in found] == [record[:4] for record in read]
    assert [tuple((h.key, h.value) for h in f.headers) for f in found] == [record.headers for record in read]
    sequences = [sequence for batch in segment.batches for sequence in batch.sequences]
    assert sequences == [
        -1 if batch.base_sequence < 0 else batch.base_sequence + record.offset - batch.base_offset
        for record in read
        for batch in [record.batch]
    ]
    for theirs, ours in zip(segment.batches, r.batches(data), strict=True):
        assert (theirs.base_offset, theirs.last_offset, theirs.codec) == (
            ours.base_offset,
            ours.last_offset,
            ours.codec,
        )
        assert theirs.max_timestamp == ours.max_timestamp_ms and theirs.leader_epoch == ours.leader_epoch
        assert (theirs.producer_id, theirs.producer_epoch) == (ours.producer_id, ours.producer_epoch)
        assert (theirs.is_transactional, theirs.is_control) == (ours.is_transactional, ours.is_control)
