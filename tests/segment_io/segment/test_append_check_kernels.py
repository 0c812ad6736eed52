"""Checks of appends read nothing outside their batch and its padding, whatever the batch says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sediment.segment_io.compiled.padding import PADDING_BYTES
from sediment.segment_io.compiled.status import OK, RECORDS_REMAIN
from sediment.segment_io.format.checksum import crc32c
from sediment.segment_io.format.layout import ATTRIBUTES, BATCH_HEADER_BYTES, CRC, INT64_MAX, RECORD_COUNT
from sediment.segment_io.format.record_decoder import RECORD_FIELDS, decode_records
from sediment.segment_io.segment.append_check_kernels import (
    AFTER_MAX_MS,
    BEFORE_MAX_MS,
    KEY_IS_MISSING,
    NEEDS_KEY,
    PLAIN_RULE_FIELDS,
    RECORD_ERROR_FIELDS,
    TIMESTAMP_IS_OUT_OF_RANGE,
    TIMESTAMP_TYPE_IS_WRONG,
    RecordRules,
    check_payload,
    check_plain_batch,
    check_short_plain_batch,
    time_range,
)
from tests.engine.live_logs import NOW_MS, batch
from tests.fuzz.guard_pages import GuardedBuffer
from tests.twin.batches import Record, encode_record

BATCH = batch(("key", "value"), (None, "v"), ("k", None), pid=7, seq=5)
KERNELS = (check_plain_batch, check_short_plain_batch)


def topic(*, needs_key: bool = False, before_max_ms: int = INT64_MAX, after_max_ms: int = INT64_MAX) -> np.ndarray:
    rules = np.zeros(PLAIN_RULE_FIELDS, dtype=np.int64)
    rules[NEEDS_KEY], rules[BEFORE_MAX_MS], rules[AFTER_MAX_MS] = needs_key, before_max_ms, after_max_ms
    return rules


def checked(
    buffer: np.ndarray, data: bytes, kernel: object, *, rows: int = 4, rules: np.ndarray | None = None
) -> tuple[int, ...]:
    """Return the result for `data` right before the padding at the end of guarded memory."""
    rules = topic() if rules is None else rules
    start = buffer.size - PADDING_BYTES - len(data)
    buffer[start : start + len(data)] = np.frombuffer(data, dtype=np.uint8)
    records, errors = (
        np.zeros((rows, RECORD_FIELDS), dtype=np.int64),
        np.zeros((1, RECORD_ERROR_FIELDS), dtype=np.int64),
    )
    address = buffer.ctypes.data + start
    return kernel(address, len(data), NOW_MS, rules, records, errors)  # type: ignore[operator]


def sealed(data: bytearray) -> bytes:
    """Return the batch with a correct checksum."""
    array = np.frombuffer(data, dtype=np.uint8)
    data[CRC : CRC + 4] = crc32c(array.ctypes.data + ATTRIBUTES, len(data) - ATTRIBUTES).to_bytes(4, "big")
    return bytes(data)


@pytest.fixture(scope="module")
def buffer() -> np.ndarray:
    return GuardedBuffer(4096).bytes


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_plain_batch_gives_its_count_timestamp_and_producer(buffer: np.ndarray, kernel: object) -> None:
    assert checked(buffer, BATCH, kernel) == (3, NOW_MS, 7, 0, 5)
    assert checked(buffer, BATCH, kernel, rows=2) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("data", "rules", "is_plain"),
    [
        (BATCH, topic(needs_key=True), False),
        (batch(("k", "v"), ts=NOW_MS), topic(needs_key=True), True),
        (batch(ts=NOW_MS - 5), topic(before_max_ms=5), True),
        (batch(ts=NOW_MS - 6), topic(before_max_ms=5), False),
        (batch(ts=NOW_MS + 5), topic(after_max_ms=5), True),
        (batch(ts=NOW_MS + 6), topic(after_max_ms=5), False),
        (batch(ts=-1), topic(before_max_ms=5, after_max_ms=5), True),
    ],
)
def test_the_rules_of_the_topic_count(
    buffer: np.ndarray, kernel: object, data: bytes, rules: np.ndarray, is_plain: bool
) -> None:
    assert bool(checked(buffer, data, kernel, rules=rules)[0]) == is_plain


@given(st.integers(0, INT64_MAX), st.integers(0, INT64_MAX), st.integers(0, INT64_MAX))
@example(0, INT64_MAX, INT64_MAX)
@example(INT64_MAX, INT64_MAX, INT64_MAX)
@example(NOW_MS, 0, INT64_MAX - NOW_MS)
@example(NOW_MS, 0, INT64_MAX - NOW_MS + 1)
def test_the_range_of_timestamps_is_within_64_bits(now_ms: int, before_ms: int, after_ms: int) -> None:
    assert time_range(now_ms, before_ms, after_ms) == (now_ms - before_ms, min(now_ms + after_ms, INT64_MAX))


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.tuples(st.integers(ATTRIBUTES, len(BATCH) - 1), st.integers(0, 255)), max_size=6),
    st.integers(0, len(BATCH)),
    st.sampled_from(KERNELS),
)
def test_changed_batches_are_plain_only_if_all_records_can_be_decoded(
    changes: list[tuple[int, int]], cut: int, kernel: object
) -> None:
    changed = bytearray(BATCH)
    for position, value in changes:
        changed[position] = value
    data = sealed(changed)
    memory = GuardedBuffer(4096).bytes
    count = checked(memory, data, kernel)[0]
    if count:
        records = np.zeros((count, RECORD_FIELDS), dtype=np.int64)
        base = memory.ctypes.data + memory.size - PADDING_BYTES - len(data)
        assert count == int.from_bytes(data[RECORD_COUNT : RECORD_COUNT + 4], "big")
        assert decode_records(base, BATCH_HEADER_BYTES, len(data), count, records) == OK
    assert cut == len(data) or checked(memory, data[:cut], kernel)[0] == 0


def described(
    rows: list[tuple[int, int | None, int]], rules: dict[str, int], times: tuple[int, int]
) -> tuple[int, int, int, bool, list[list[int]]]:
    """Return what `check_records` must find, in plain Python; `rows` are (timestamp, key length or None, delta)."""
    errors = []
    for index, (timestamp, key_bytes, _) in enumerate(rows):
        if rules["needs_key"] and key_bytes is None:
            errors.append([index, KEY_IS_MISSING])
        elif rules["checks_create_time"] and timestamp != -1:
            if not times[0] <= timestamp <= times[1]:
                errors.append([index, TIMESTAMP_IS_OUT_OF_RANGE])
        elif rules["is_append_time"]:
            errors.append([index, TIMESTAMP_TYPE_IS_WRONG])
    largest = max([-1, *(timestamp for timestamp, _, _ in rows)])
    bad_timestamps = sum(reason != KEY_IS_MISSING for _, reason in errors)
    return len(errors), bad_timestamps, largest, all(row[2] == index for index, row in enumerate(rows)), errors


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(NOW_MS - 3, NOW_MS + 3), st.sampled_from([None, 0, 2]), st.booleans()),
        min_size=1,
        max_size=9,
    ),
    st.fixed_dictionaries({key: st.booleans() for key in ("needs_key", "checks_create_time", "is_append_time")}),
    st.integers(1, 10),
    st.integers(0, 10),
    st.integers(0, 2),
)
def test_records_are_checked_alike_in_parts_of_any_size(
    given_rows: list[tuple[int, int | None, bool]],
    rules: dict[str, int],
    rows_at_once: int,
    most_errors: int,
    extra_bytes: int,
) -> None:
    rows = [
        (NOW_MS if rules["is_append_time"] else timestamp, key_bytes, index if follows else 7)
        for index, (timestamp, key_bytes, follows) in enumerate(given_rows)
    ]
    payload = b"".join(
        encode_record(Record(delta, timestamp, None if key_bytes is None else bytes(key_bytes), b"v"), 0, NOW_MS)
        for (timestamp, _, _), (_, key_bytes, delta) in zip(given_rows, rows, strict=True)
    )
    memory = GuardedBuffer(4096).bytes
    size_bytes = len(payload) + extra_bytes
    start = memory.size - PADDING_BYTES - size_bytes
    memory[start : start + len(payload)] = np.frombuffer(payload, dtype=np.uint8)
    errors = np.zeros((most_errors, RECORD_ERROR_FIELDS), dtype=np.int64)
    records = np.zeros((rows_at_once, RECORD_FIELDS), dtype=np.int64)
    times = NOW_MS - 1, NOW_MS + 1
    status, *found = check_payload(
        *(memory.ctypes.data + start, size_bytes, len(rows), NOW_MS),
        RecordRules(rules["needs_key"], rules["checks_create_time"], rules["is_append_time"], *times),
        records,
        errors,
    )
    if extra_bytes:
        assert status == RECORDS_REMAIN
        return
    *expected, expected_errors = described(rows, rules, times)
    assert (status, found) == (OK, expected)
    assert errors[: found[0]].tolist() == expected_errors[:most_errors]
