"""Messages of magic 0 and 1 as batches of magic 2, against what the twin reads of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sediment.segment_io.compiled.padding import PADDING_BYTES
from sediment.segment_io.format.upgrade import (
    COUNT,
    FIRST_OFFSET,
    LAST_OFFSET,
    no_wrappers,
    upgrade_batches,
    upgrade_wrapper,
)
from tests.twin.batches import Record, encode_batch, parse_batch, sign_batch
from tests.twin.legacy import encode_legacy
from tests.twin.segments import file_batches


def random_records(chooser: random.Random) -> list[Record]:
    fields = [None, b"", b"x" * 63, b"y" * 64, b"z" * 9000]
    offset, records = chooser.choice([0, 5, 2**40]), []
    for _ in range(chooser.randint(1, 9)):
        offset += chooser.choice([1, 1, 200])
        timestamp = chooser.choice([-1, 0, 1_700_000_000_000, 2**62])
        records.append(Record(offset, timestamp, chooser.choice(fields), chooser.choice(fields)))
    return records


@pytest.mark.parametrize("magic", [0, 1])
def test_plain_messages_become_batches_of_one_record_each(magic):
    for seed in range(60):
        records = random_records(random.Random(seed))
        content = encode_legacy(records, magic=magic) + encode_batch(records, base_offset=records[0].offset)
        found = list(file_batches(content))
        positions = np.array([position for position, _ in found])
        sizes = np.diff(positions, append=len(content))
        buffer = np.frombuffer(content + b"\0" * PADDING_BYTES, dtype=np.uint8)
        skipped = np.zeros(len(found), dtype=np.bool_)
        upgraded, starts = upgrade_batches(buffer, len(content), positions, sizes, skipped, no_wrappers(len(found)))
        ends = np.append(starts[1:], upgraded.size - PADDING_BYTES)
        made = [upgraded[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]
        assert made[-1] == found[-1][1].data
        for batch, (_, message) in zip(made[:-1], found, strict=False):
            assert sign_batch(batch) == encode_batch(message.records(), base_offset=message.offset)


@pytest.mark.parametrize("codec", [1, 2, 3])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_becomes_the_records_that_it_holds(magic, codec):
    for seed in range(40):
        chooser = random.Random(seed)
        records = random_records(chooser)
        wrapper = encode_legacy(records, magic=magic, codec=codec)
        ((_, twin),) = file_batches(wrapper)
        upgraded = upgrade_wrapper(wrapper, limit_bytes=1 << 20)
        expected = encode_batch(twin.records(), base_offset=records[0].offset)
        assert upgraded.payload == expected[61:]
        assert parse_batch(expected).count == upgraded.known[COUNT]
        assert (upgraded.known[FIRST_OFFSET], upgraded.known[LAST_OFFSET]) == (records[0].offset, records[-1].offset)
