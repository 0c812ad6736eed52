"""Segments of a live log: batches appended one by one get the index entries of the compiled rule."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sediment.segment_io.compiled.padding import padded_copy
from sediment.segment_io.segment.append_run_kernels import RUN_BATCH, RUN_BATCH_BYTES, RUN_END, RUN_FIELDS
from tests.engine.live_logs import NOW_MS, LiveLog, batch

Timed = tuple[int, int]
"""The timestamp of a batch, relative to NOW_MS, and its number of records."""
TIMED = st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 3)), min_size=1, max_size=40)
RISING = [(index // 2, 1 + index % 3) for index in range(40)]


def files(log: LiveLog) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log.directory.iterdir() if path.is_file()}


@settings(max_examples=60)
@given(TIMED, st.sampled_from([0, 70, 150, 400, 4096]))
@example(RISING, 0)
@example(RISING, 150)
@example([(0, 1)] * 40, 0)
def test_single_batches_get_the_entries_of_many(timed: list[Timed], interval_bytes: int) -> None:
    """A leader's batch, a follower's batch, a run of a leader and many batches of a follower give the same files."""
    as_leader = [batch(*[("k", "v")] * count, ts=NOW_MS + time) for time, count in timed]
    ends = np.cumsum([count for _, count in timed]).tolist()
    as_follower = [
        batch(*[("k", "v")] * count, ts=NOW_MS + time, at=end - count)
        for (time, count), end in zip(timed, ends, strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        logs = []
        for name in ("leader", "run", "follower", "many"):
            (Path(folder) / name).mkdir()
            logs.append(LiveLog(Path(folder) / name, index_interval_bytes=interval_bytes))
            logs[-1].log.assign_leader_epoch(0, 0)
        leader, run, follower, many = logs
        for each in as_leader:
            leader.log.append_as_leader(each, 0)
        # A run continues a segment, so the first batch is appended alone.
        run.log.append_as_leader(as_leader[0], 0)
        append_run(run, as_leader[1:])
        for each in as_follower:
            follower.follow(each)
        many.follow(*as_follower)
        contents = [files(log) for log in logs]
        assert contents[1:] == contents[:1] * 3
        for log in logs:
            log.stop()
        contents = [files(log) for log in logs]
        assert contents[1:] == contents[:1] * 3


def append_run(log: LiveLog, batches: list[bytes]) -> None:
    if not batches:
        return
    rows = np.zeros((len(batches), RUN_FIELDS), dtype=np.int64)
    ends = np.cumsum([len(each) for each in batches])
    rows[:, RUN_END], rows[:, RUN_BATCH_BYTES] = ends, [len(each) for each in batches]
    rows[:, RUN_BATCH] = ends - rows[:, RUN_BATCH_BYTES]
    received = padded_copy(b"".join(batches))
    appended = log.log.append_run(received.ctypes.data, rows, len(batches), 0)
    assert appended is not None
    assert appended.batches == len(batches)
