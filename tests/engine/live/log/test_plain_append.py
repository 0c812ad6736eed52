"""Plain appends: files, state, results and errors are those of the general append."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sediment.engine.live.log import log_append
from sediment.engine.live.log.log_append import AppendInfo, AppendRequest
from sediment.engine.live.log.partition_log import AppendOrigin
from sediment.engine.live.log.plain_append import AppendedRun, PlainAppends
from sediment.segment_io.compiled.padding import padded_copy
from sediment.segment_io.errors import SedimentError, StorageError, UsageError
from sediment.segment_io.format.layout import INT32_MAX
from sediment.segment_io.segment.append_run_kernels import (
    MOST_IN_RUN,
    RUN_BATCH,
    RUN_BATCH_BYTES,
    RUN_END,
    RUN_FIELDS,
    RUN_RECORDS,
    RUN_TIMESTAMP,
)
from tests.engine.live_logs import NOW_MS, LiveLog, batch, config
from tests.faults.faulty_fs import Fail, FaultyFs

CONFIGS: dict[str, st.SearchStrategy[Any]] = {
    "cleanup_policy": st.sampled_from([("delete",), ("compact",)]),
    "segment_bytes": st.sampled_from([200, 700, 100_000]),
    "segment_index_bytes": st.sampled_from([24, 36, 1000]),
    "index_interval_bytes": st.sampled_from([0, 100, 200, 4096]),
    "max_message_bytes": st.sampled_from([120, 1 << 20]),
    "compression_type": st.sampled_from(["producer", "producer", "uncompressed", "lz4"]),
    "message_timestamp_type": st.sampled_from(["CreateTime", "CreateTime", "LogAppendTime"]),
    "message_timestamp_before_max_ms": st.sampled_from([1000, 2**63 - 1]),
    "message_timestamp_after_max_ms": st.sampled_from([1000, 2**63 - 1]),
    "segment_ms": st.sampled_from([10_000, 604_800_000]),
    "flush_messages": st.sampled_from([5, 2**63 - 1]),
}


class Produced(NamedTuple):
    """A batch to be appended, and the leader epoch; `follows` replaces the sequence by the producer's next one."""

    pairs: tuple[tuple[str | None, str | None], ...]
    times: list[int]
    options: dict[str, Any]
    follows: bool
    leader_epoch: int
    damage: tuple[str, int]

    def content(self, next_sequence: int) -> bytes:
        options = {**self.options, "seq": next_sequence} if self.follows else self.options
        data = batch(*self.pairs, ts=self.times, **options)
        kind, number = self.damage
        at = number % len(data)
        if kind == "flip":
            return data[:at] + bytes([data[at] ^ 1 << number % 8]) + data[at + 1 :]
        if kind == "cut":
            return data[:at]
        return data + (data if kind == "twice" else b"\0" * (number % 20) if kind == "more" else b"")


@st.composite
def produced(draw: st.DrawFn) -> Produced:
    count = draw(st.integers(1, 4))
    key = st.one_of(st.just("k"), st.just("k"), st.just("k"), st.none())
    pairs = tuple((draw(key), draw(st.sampled_from(["v", "v" * 90, None]))) for _ in range(count))
    times = [NOW_MS + draw(st.sampled_from([0, 0, 1, 500, -500, 5000, -5000])) for _ in range(count)]
    options = {
        "pid": draw(st.sampled_from([-1, -1, 3, 4, 4])),
        "producer_epoch": draw(st.sampled_from([0, 0, 0, 0, 1])),
        "seq": draw(st.sampled_from([0, 1, 2**31 - 2])),
        "tx": draw(st.sampled_from([False] * 9 + [True])),
        "codec": draw(st.sampled_from([0] * 8 + [3])),
        "at": draw(st.sampled_from([0] * 15 + [7])),
        "append_time": draw(st.sampled_from([None] * 15 + [NOW_MS])),
    }
    damage = draw(st.sampled_from([("none", 0)] * 12 + [(kind, 0) for kind in ("flip", "cut", "twice", "more")]))
    damage = (damage[0], draw(st.integers(0, 400)))
    leader_epoch = draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2]))
    return Produced(pairs, times, options, draw(st.sampled_from([True, True, True, False])), leader_epoch, damage)


Step = Produced | list[Produced] | tuple[str, Any]
STEPS = st.lists(
    st.one_of(
        *[produced()] * 6,
        *[st.lists(produced(), min_size=1, max_size=7)] * 4,
        st.tuples(st.just("move"), st.sampled_from([1, 400, 20_000])),
        st.tuples(st.just("restart"), st.booleans()),
        st.tuples(st.just("truncate"), st.integers(0, 30)),
        st.tuples(st.just("config"), st.fixed_dictionaries({}, optional=CONFIGS)),
        st.tuples(st.just("expire"), st.none()),
    ),
    max_size=40,
)


def outcome(append: Callable[[LiveLog, bytes, int], Any], log: LiveLog, data: bytes, leader_epoch: int) -> Any:
    """Return the result of an append, or its error as text."""
    try:
        return append(log, data, leader_epoch)
    except SedimentError as error:
        return type(error), str(error).replace(str(log.directory), ""), error.partition


def state(log: LiveLog) -> tuple[Any, ...]:
    of = log.log
    sizes = [(ref.base_offset, ref.log_bytes) for ref in of.segments()]
    offsets = (of.log_start_offset, of.high_watermark, of.recovery_point, of.log_end_offset)
    largest = [(each.base_offset, each.largest_timestamp_ms) for each in of.segment_states()[:-1]]
    return offsets, sizes, largest, of.leader_epochs, of.producers


def files(log: LiveLog) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(log.directory.iterdir()) if path.is_file()}


def in_either_way(log: LiveLog, data: bytes, leader_epoch: int) -> AppendInfo:
    return log.log.append_as_leader(data, leader_epoch)


def in_general(log: LiveLog, data: bytes, leader_epoch: int) -> AppendInfo:
    return log_append.append(log.log._log, data, AppendRequest(leader_epoch, AppendOrigin.CLIENT, -1))


def sequenced(log: LiveLog, step: list[Produced]) -> list[bytes]:
    """Return the batches; each that follows has the next sequence if the batches before it are appended."""
    following: dict[int, int] = {}
    batches = []
    for each in step:
        producer = each.options["pid"]
        remembered = log.log.remembered_batches(producer)
        sequence = following.get(producer, remembered[-1].last_sequence + 1 & INT32_MAX if remembered else 0)
        batches.append(each.content(sequence))
        following[producer] = (sequence if each.follows else each.options["seq"]) + len(each.pairs) & INT32_MAX
    return batches


def rows_of(batches: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return received bytes with a gap before each batch, and the rows that `repeated_requests` fills."""
    received = b""
    rows = np.zeros((MOST_IN_RUN, RUN_FIELDS), dtype=np.int64)
    for number, each in enumerate(batches):
        received += b"\xff" * (number + 1)
        rows[number, RUN_BATCH], rows[number, RUN_BATCH_BYTES] = len(received), len(each)
        received += each
        rows[number, RUN_END] = len(received)
    return padded_copy(received), rows


def in_runs(log: LiveLog, batches: list[bytes], leader_epoch: int) -> list[Any]:
    """Append as a server does: as many batches at once as possible, and one by one what a run does not take."""
    outcomes: list[Any] = []
    while len(outcomes) < len(batches):
        left = batches[len(outcomes) :]
        received, rows = rows_of(left)
        before = received.tobytes()
        run = outcome(partial(appended_run, received, rows, len(left)), log, b"", leader_epoch)
        assert received.tobytes() == before
        if not isinstance(run, AppendedRun):
            outcomes.append(outcome(in_either_way, log, left[0], leader_epoch))
            continue
        offset = run.first_offset
        for row in rows[: run.batches].tolist():
            last_offset = offset + row[RUN_RECORDS] - 1
            size_bytes = row[RUN_BATCH_BYTES]
            outcomes.append(AppendInfo(offset, last_offset, row[RUN_TIMESTAMP], -1, run.log_start_offset, size_bytes))
            offset = last_offset + 1
    return outcomes


def appended_run(
    received: np.ndarray, rows: np.ndarray, count: int, log: LiveLog, _data: bytes, leader_epoch: int
) -> AppendedRun | None:
    return log.log.append_run(received.ctypes.data, rows, count, leader_epoch)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.fixed_dictionaries({}, optional=CONFIGS), STEPS)
def test_all_ways_give_the_same_files_state_and_results(keys: dict[str, Any], steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        logs = [LiveLog(Path(each), **keys) for each in (first, second)]
        for step in steps:
            if isinstance(step, list):
                batches = sequenced(logs[0], step)
                run = in_runs(logs[0], batches, step[0].leader_epoch)
                assert run == [outcome(in_general, logs[1], each, step[0].leader_epoch) for each in batches]
                for log in logs:
                    log.log.maybe_increment_high_watermark()
            elif isinstance(step, Produced):
                remembered = logs[0].log.remembered_batches(step.options["pid"])
                data = step.content(remembered[-1].last_sequence + 1 & INT32_MAX if remembered else 0)
                either, general = (
                    outcome(append, log, data, step.leader_epoch)
                    for append, log in zip((in_either_way, in_general), logs, strict=True)
                )
                assert either == general
                for log in logs:
                    log.log.maybe_increment_high_watermark()
            else:
                for log in logs:
                    change(log, *step)
            assert state(logs[0]) == state(logs[1])
        assert files(logs[0]) == files(logs[1])
        for log in logs:
            log.stop()
        assert files(logs[0]) == files(logs[1])


def change(log: LiveLog, kind: str, value: Any) -> None:
    if kind == "move":
        log.tasks.move(value)
    elif kind == "restart":
        log.restart(clean=value)
    elif kind == "truncate":
        log.log.truncate_to(value)
    elif kind == "config":
        log.reconfigure(**value)
    else:
        log.log.remove_expired_producers()


def next_of(sequence: int, **options: Any) -> bytes:
    return batch(pid=5, seq=sequence, **options)


@pytest.fixture
def log(tmp_path: Path) -> LiveLog:
    """A log with a segment, a leader epoch and a producer."""
    log = LiveLog(tmp_path)
    log.lead(next_of(0))
    return log


def plain(log: LiveLog, data: Any, leader_epoch: int = 0) -> AppendInfo | None:
    return PlainAppends(log.log._log).append(data, leader_epoch)


@pytest.mark.parametrize("data", [batch(), batch(("a", "1"), ("b", None), (None, "3")), next_of(1)])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_plain_batches_need_no_general_append(log: LiveLog, data: bytes, kind: type) -> None:
    info = plain(log, kind(data))
    assert info is not None
    assert (info.first_offset, info.last_offset + 1) == (1, log.log.log_end_offset)
    assert log.batches()[1].is_valid()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        batch()[:-1],
        batch() + b"\0",
        batch() + batch(),
        batch(at=1),
        batch(codec=3),
        batch(tx=True, pid=5, seq=1),
        batch(append_time=NOW_MS),
        batch()[:-1] + b"w",
        next_of(0),
        next_of(2),
        next_of(1, producer_epoch=1),
        batch(pid=6),
        memoryview(batch()).cast("b"),
        memoryview(bytes(each for byte in batch() for each in (byte, 0)))[::2],
    ],
)
def test_anything_else_is_left_alone(log: LiveLog, data: Any) -> None:
    before = state(log), files(log)
    assert plain(log, data) is None
    assert (state(log), files(log)) == before


@pytest.mark.parametrize(
    "keys",
    [
        {"compression_type": "lz4"},
        {"message_timestamp_type": "LogAppendTime"},
        {"max_message_bytes": 70},
        {"segment_bytes": 141},
        {"flush_messages": 2},
    ],
)
def test_a_changed_config_counts_at_once(log: LiveLog, keys: dict[str, Any]) -> None:
    log.reconfigure(**keys)
    assert plain(log, batch()) is None


def test_a_compacted_topic_needs_keys(log: LiveLog) -> None:
    log.reconfigure(cleanup_policy=("compact",))
    assert plain(log, batch((None, "v"))) is None
    assert plain(log, batch(("k", "v"))) is not None


def test_a_config_that_changes_during_the_check_counts(log: LiveLog) -> None:
    local = log.log._log

    def clock() -> int:
        local.config = config(max_message_bytes=10)
        return NOW_MS

    local.clock = clock
    assert plain(log, batch()) is None


def test_another_leader_epoch_is_left_alone(log: LiveLog) -> None:
    assert plain(log, batch(), leader_epoch=1) is None
    assert log.log.leader_epochs[-1].epoch == 0


def test_a_closed_log_takes_nothing(log: LiveLog) -> None:
    log.log.close()
    with pytest.raises(UsageError, match="closed"):
        plain(log, batch())


@pytest.mark.parametrize("operation", [1, 2, 3])
def test_a_full_disk_takes_the_log_offline_and_nothing_is_acknowledged(tmp_path: Path, operation: int) -> None:
    """The three writes of an append are those of the batch, of its offset index entry and of its time index entry."""
    fs = FaultyFs()
    log = LiveLog(tmp_path, fs=fs, index_interval_bytes=0)
    log.lead(batch())
    fs.fault = Fail(fs.operations + operation, errno.ENOSPC, torn=True)
    with pytest.raises(StorageError, match="No space left"):
        plain(log, batch(ts=NOW_MS + 1))
    assert (log.log.log_end_offset, log.log.is_offline) == (1, True)
    with pytest.raises(StorageError, match="offline"):
        log.log.append_as_leader(batch(), 0)


def run(log: LiveLog, *batches: bytes) -> AppendedRun | None:
    received, rows = rows_of(list(batches))
    return appended_run(received, rows, len(batches), log, b"", 0)


def test_a_run_is_appended_at_once(log: LiveLog) -> None:
    before = log.log.log_end_offset
    assert run(log, batch(), next_of(1), batch(("a", "1"), ("b", "2")), next_of(2)) == AppendedRun(4, before, 0)
    assert [each.base_offset for each in log.batches()] == [0, 1, 2, 3, 5]
    assert all(each.is_valid() for each in log.batches())
    assert [each.last_sequence for each in log.log.remembered_batches(5)] == [0, 1, 2]


@pytest.mark.parametrize("bad", [batch()[:-1] + b"w", batch()[:-1], b"", next_of(3), batch(codec=3), batch(at=1)])
def test_a_run_ends_before_the_first_batch_that_is_not_plain(log: LiveLog, bad: bytes) -> None:
    assert run(log, next_of(1), batch(), bad, batch()) == AppendedRun(2, 1, 0)
    before = state(log), files(log)
    assert run(log, bad, batch()) is None
    assert (state(log), files(log)) == before


def test_a_run_ends_with_its_segment(log: LiveLog) -> None:
    log.reconfigure(segment_bytes=3 * len(batch()))
    assert run(log, batch(), batch(), batch()) == AppendedRun(2, 1, 0)
    assert run(log, batch()) is None


def test_a_run_ends_with_its_indexes(log: LiveLog) -> None:
    log.reconfigure(segment_index_bytes=36, index_interval_bytes=0)
    log.log.roll()
    log.lead(batch())
    assert run(log, batch(), batch(), batch()) is None
    assert run(log, batch(), batch()) == AppendedRun(2, 2, 0)


def test_a_run_larger_than_the_buffer_is_taken_in_parts(log: LiveLog) -> None:
    large = batch(("k", "v" * 50_000))
    with ThreadPoolExecutor(1) as new_thread:  # an earlier append may have enlarged the buffer of this thread
        assert new_thread.submit(run, log, large, large, large).result() == AppendedRun(2, 1, 0)


def test_a_closed_log_takes_no_run(log: LiveLog) -> None:
    log.log.close()
    with pytest.raises(UsageError, match="closed"):
        run(log, batch())


@pytest.mark.parametrize("operation", [1, 2, 3])
def test_a_full_disk_within_a_run_takes_the_log_offline_and_nothing_is_acknowledged(
    tmp_path: Path, operation: int
) -> None:
    """A run has three writes: its batches, its offset index entries and its time index entries."""
    fs = FaultyFs()
    log = LiveLog(tmp_path, fs=fs, index_interval_bytes=0)
    log.lead(batch())
    fs.fault = Fail(fs.operations + operation, errno.ENOSPC, torn=True)
    with pytest.raises(StorageError, match="No space left"):
        run(log, batch(ts=NOW_MS + 1), batch(ts=NOW_MS + 2))
    assert (log.log.log_end_offset, log.log.is_offline) == (1, True)
    with pytest.raises(StorageError, match="offline"):
        run(log, batch())
