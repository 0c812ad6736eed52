"""The compiled fold of batch headers against the plain Python one, over random logs (kafka-log 04 §3)."""

from __future__ import annotations

import random
from dataclasses import astuple
from pathlib import Path

import pytest

from sediment.segment_io.partition.producer_state import ProducerState, replay
from sediment.segment_io.segment.reader import HeaderScan
from tests.logs import LogShape, write_random_log
from tests.twin.indexes import parse_transaction_index
from tests.twin.snapshots import parse_snapshot


@pytest.mark.parametrize("seed", range(40))
def test_the_fold_ends_where_the_twin_ends_however_the_log_is_cut_up(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    directory = tmp_path / "t-0"
    shape = LogShape(batches=chance.choice([5, 60, 200]), transactional=chance.choice([0.2, 0.9]), idempotent=0.3)
    end_offset = write_random_log(directory, seed, shape)
    state = ProducerState.at(0)
    for path in sorted(directory.glob("*.log")):
        aborted = len(state.aborted())
        for rows in HeaderScan(path):
            start = 0
            while start < len(rows):
                count = chance.choice([1, 2, 7, 1000])
                state = replay(state, rows[start : start + count])
                start += count
        index = path.with_suffix(".txnindex")
        entries = parse_transaction_index(index.read_bytes()) if index.exists() else []
        assert [
            (one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset)
            for one in state.aborted()[aborted:]
        ] == [(one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset) for one in entries]
    twin = parse_snapshot((directory / f"{end_offset:020d}.snapshot").read_bytes())
    assert {key: astuple(entry) for key, entry in state.entries.items()} == {
        key: astuple(entry) for key, entry in twin.items()
    }
