"""Batches that expand to many bytes or records: what checks and searches of them cost, and who waits meanwhile."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from sediment.engine.live.log import append_analysis, log_append
from sediment.engine.live.log.append_analysis import MAX_RECORD_ERRORS
from sediment.engine.live.log.fetched_data import MAX_TIMESTAMP, TimestampOffsetEpoch
from sediment.engine.live.log.partition_log import AppendInfo
from sediment.segment_io.errors import (
    CorruptBatchError,
    LongWorkError,
    RecordTooLargeError,
    RecordValidationError,
)
from sediment.segment_io.format.compression import batch_payloads
from sediment.segment_io.segment.timestamp_search import TimestampSearch
from tests.engine.large_batches import ZSTD, bomb, encoded, large_batch, signed_batch
from tests.engine.live_logs import NOW_MS, LiveLog, batch
from tests.twin import framing

GZIP, SNAPPY, LZ4 = 1, 2, 3
ROOM_FOR_RECORDS_BYTES = 10 << 20
"""The rows for a part of the records, and the copies of a small compressed batch."""


def refused(log: LiveLog, data: bytes) -> RecordValidationError:
    with pytest.raises(RecordValidationError) as error:
        log.lead(data)
    assert log.log.log_end_offset == 0
    return error.value


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_the_error_of_a_batch_names_its_first_bad_records_and_counts_all(tmp_path: Path, codec: int) -> None:
    log = LiveLog(tmp_path, cleanup_policy=("compact",), max_message_bytes=1 << 24)
    good, bad = encoded(), encoded(None)
    error = refused(log, large_batch(good + bad * 200_000, 200_001, codec))
    assert [index for index, _what in error.record_errors] == list(range(1, MAX_RECORD_ERRORS + 1))
    assert "record 1 of the batch cannot be appended" in error.what and "(200000 such)" in error.what
    assert not error.has_invalid_timestamp


def test_a_bad_timestamp_decides_the_cause_even_if_the_error_does_not_name_its_encoded(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, cleanup_policy=("compact",), message_timestamp_before_max_ms=1000)
    last = encoded(timestamp_ms=NOW_MS - 5000)
    error = refused(log, large_batch(encoded(None) * 100_000 + last, 100_001))
    assert error.has_invalid_timestamp
    assert "(100001 such)" in error.what


def test_a_batch_of_millions_of_bad_records_uses_memory_for_its_bytes_only(tmp_path: Path) -> None:
    """Three million records in 21 MB; one object for each error would take hundreds of megabytes."""
    log = LiveLog(tmp_path, cleanup_policy=("compact",))
    data = large_batch(encoded(None) * 3_000_000, 3_000_000)
    refused(log, batch((None, "v")))  # compiles, and loads the codecs
    expanded_bytes = 3_000_000 * len(encoded(None))
    tracemalloc.start()
    try:
        refused(log, data)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The area for the records grows in steps, and may be larger than the records; its pages are used only if written.
    assert peak_bytes < 8 * expanded_bytes + ROOM_FOR_RECORDS_BYTES
    assert len(log_append.THREAD_LOCAL.buffers.all_records) * 80 < ROOM_FOR_RECORDS_BYTES


def test_a_batch_is_rebuilt_part_by_part_if_it_has_more_records_than_there_are_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_analysis, "_MOST_RECORDS", 1000)
    monkeypatch.setattr(log_append.THREAD_LOCAL, "buffers", append_analysis.AppendBuffers())
    count = 3500
    payload = b"".join(
        encoded(b"%d" % number, delta=min(number, 100), timestamp_ms=NOW_MS - number % 7) for number in range(count)
    )
    log = LiveLog(tmp_path, compression_type="lz4", max_message_bytes=1 << 24)
    assert log.lead(large_batch(payload, count)).last_offset == count - 1
    (stored,) = log.batches()
    assert (stored.codec, stored.is_valid(), stored.max_timestamp, stored.base_timestamp) == (LZ4, True, NOW_MS, NOW_MS)
    found = [(each.offset, each.key, each.timestamp) for each in stored.records()]
    assert found == [(number, b"%d" % number, NOW_MS - number % 7) for number in range(count)]


def test_what_a_large_batch_uses_does_not_stay_with_its_thread(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, max_message_bytes=1 << 24)
    log.lead(bomb(6 << 20, codec=0))
    log.lead(large_batch(encoded() * 500_000, 500_000))
    buffers = log_append.THREAD_LOCAL.buffers
    assert len(buffers.content) <= 4 << 20
    assert buffers.all_records.nbytes < ROOM_FOR_RECORDS_BYTES
    assert log.lead(batch()).first_offset == 500_001


def test_a_batch_above_the_limit_is_refused_before_it_is_copied_or_verified(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    data = bytearray(bomb(3 << 20, codec=0))
    data[17] ^= 1  # the checksum
    before = len(log_append.THREAD_LOCAL.buffers.content)
    with pytest.raises(RecordTooLargeError):
        log.lead(data)
    assert len(log_append.THREAD_LOCAL.buffers.content) == before


# ----------------------------------------------------------------------------------------------------------- only quick
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_thread_for_quick_work_appends_no_batch_that_expands_far(tmp_path: Path, codec: int) -> None:
    log = LiveLog(tmp_path)
    small = bomb(1 << 20, codec)
    large = bomb(batch_payloads.QUICK_BYTES, codec)
    assert log.lead(small, only_quick=True).last_offset == 0
    with pytest.raises(LongWorkError):
        log.lead(large, only_quick=True)
    assert log.log.log_end_offset == 1
    assert log.lead(large).last_offset == 1


def test_a_thread_for_quick_work_appends_no_large_batch(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, max_message_bytes=1 << 24)
    data = bomb(5 << 20, codec=0)
    with pytest.raises(LongWorkError):
        log.lead(data, only_quick=True)
    assert log.lead(data).last_offset == 0


def test_a_thread_for_quick_work_reads_an_unusual_framing_only_if_it_is_short(tmp_path: Path) -> None:
    """Many gzip members in one batch are read by Python code, member by member."""
    log = LiveLog(tmp_path)
    payload = encoded(value=bytes(100))

    def of_members(count: int) -> bytes:
        pieces = [payload[at : at + 1] for at in range(len(payload))]
        empty = [b""] * (count - len(pieces))
        stream = b"".join(framing.compress(GZIP, piece) for piece in (*empty, *pieces))
        return signed_batch(stream, 1, GZIP)

    assert log.lead(of_members(200), only_quick=True).last_offset == 0
    with pytest.raises(LongWorkError):
        log.lead(of_members(5000), only_quick=True)
    assert log.lead(of_members(5000)).last_offset == 1


def test_a_batch_beyond_the_limit_of_the_topic_is_corrupt_on_every_thread(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, max_decompressed_batch_bytes=1000)
    for only_quick in (True, False):
        with pytest.raises(CorruptBatchError, match="expand beyond 1000 bytes"):
            log.lead(bomb(1000), only_quick=only_quick)


# --------------------------------------------------------------------------------------------------------- without lock
def in_another_thread(log: LiveLog, data: bytes) -> AppendInfo:
    found: list[AppendInfo] = []
    thread = threading.Thread(target=lambda: found.append(log.lead(data)), daemon=True)
    thread.start()
    thread.join(30)
    assert found, "the append waits"
    return found[0]


def before_each_check(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Call `act` with the number of checks so far, before each check of batches."""
    real, calls = log_append.validate_batches, []

    def check(*arguments: Any, **keys: Any) -> Any:
        calls.append(1)
        if threading.current_thread() is threading.main_thread():
            act(len(calls))
        return real(*arguments, **keys)

    monkeypatch.setattr(log_append, "validate_batches", check)


def test_others_append_while_a_batch_is_decompressed_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LiveLog(tmp_path, message_timestamp_type="LogAppendTime")
    others: list[AppendInfo] = []

    def append_another(number: int) -> None:
        if number == 1:
            log.tasks.now_ms += 5
            others.append(in_another_thread(log, batch(("other", "v"))))

    before_each_check(monkeypatch, append_another)
    info = log.lead(batch(("k", "v"), codec=ZSTD))
    assert [each.first_offset for each in others] == [0]
    assert (info.first_offset, info.log_append_time_ms) == (1, NOW_MS + 5)
    assert [(each.base_offset, each.max_timestamp, each.is_valid()) for each in log.batches()] == [
        (0, NOW_MS + 5, True),
        (1, NOW_MS + 5, True),
    ]


def test_a_config_that_changes_during_the_check_applies_to_the_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LiveLog(tmp_path)
    configs = {1: {"compression_type": "lz4"}, 2: {"cleanup_policy": ("compact",)}}
    before_each_check(monkeypatch, lambda number: log.reconfigure(**configs[number]) if number in configs else None)
    log.lead(batch(("k", "v")))
    with pytest.raises(RecordValidationError, match="it has no key"):
        log.lead(batch((None, "v"), codec=ZSTD))
    assert log.log.log_end_offset == 1


def test_others_append_while_a_large_batch_is_searched_and_a_truncation_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(ts=5))
    log.lead(batch(("k", "v"), ("l", "w"), ts=[10, 20], codec=ZSTD))
    real, searches = TimestampSearch.find, []

    def find(search: TimestampSearch, **keys: Any) -> Any:
        searches.append(1)
        if len(searches) == 1:
            assert in_another_thread(log, batch(ts=30)).first_offset == 3
            log.log.truncate_to(1)
            log.lead(batch(ts=40))
        return real(search, **keys)

    monkeypatch.setattr(TimestampSearch, "find", find)
    assert log.log.lookup_timestamp(20) == TimestampOffsetEpoch(40, 1, 0)
    assert len(searches) == 2


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_a_thread_for_quick_work_searches_no_large_batch(tmp_path: Path, codec: int) -> None:
    log = LiveLog(tmp_path, max_message_bytes=1 << 24)
    log.lead(batch(ts=NOW_MS - 5))
    log.lead(bomb(3 << 20, codec))
    assert log.log.lookup_timestamp(1, only_quick=True) == TimestampOffsetEpoch(NOW_MS - 5, 0, 0)
    for target in (NOW_MS, MAX_TIMESTAMP):
        with pytest.raises(LongWorkError):
            log.log.lookup_timestamp(target, only_quick=True)
        assert log.log.lookup_timestamp(target) == TimestampOffsetEpoch(NOW_MS, 1, 0)


def test_a_search_in_a_batch_of_many_records_uses_few_rows(tmp_path: Path) -> None:
    count = 5000
    payload = b"".join(encoded(delta=number, timestamp_ms=NOW_MS - count + number) for number in range(count))
    log = LiveLog(tmp_path)
    log.lead(large_batch(payload, count))
    for number in (0, 1023, 1024, 3000, count - 1):
        found = log.log.lookup_timestamp(NOW_MS - count + number)
        assert found == TimestampOffsetEpoch(NOW_MS - count + number, number, 0)
    assert log.log.lookup_timestamp(NOW_MS) is None
