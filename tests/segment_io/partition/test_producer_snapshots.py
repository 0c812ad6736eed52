import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.errors import CorruptSnapshotError
from sediment.segment_io.format.layout import SNAPSHOT_ENTRY_STRUCT
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.producer_snapshots import (
    choose_snapshot,
    encode_snapshot,
    load_producer_state,
    parse_snapshot,
    snapshots_in_range,
)
from sediment.segment_io.partition.producer_state import (
    ProducerEntry,
    ProducerState,
)

DAY_MS = 86_400_000
INT32_MAX = 2**31 - 1

SNAPSHOT = bytes.fromhex(
    "0001fedf4e50000000020000000000000001000200000001000000000000000200000003ffffffffffffffff000000030000000000000064"
    "000000000000000b000cffffffffffffffffffffffff00000000000000000001e2400000000dffffffffffffffff"
)
SNAPSHOT_ENTRIES = (
    ProducerEntry(1, 2, 1, 2, 3, -1, 3, 100),
    ProducerEntry(11, 12, -1, -1, 0, 123_456, 13, -1),
)


def test_ix_25_the_golden_snapshot_parses_and_is_encoded():
    assert parse_snapshot(SNAPSHOT) == SNAPSHOT_ENTRIES
    assert encode_snapshot(reversed(SNAPSHOT_ENTRIES)) == SNAPSHOT


def test_ix_25_an_empty_snapshot_is_ten_bytes():
    assert encode_snapshot([]) == bytes.fromhex("000148674bc700000000")
    assert parse_snapshot(bytes.fromhex("000148674bc700000000")) == ()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (SNAPSHOT[: len(SNAPSHOT) // 2], "checksum"),
        (b"", "has no header"),
        (SNAPSHOT[:9], "has no header"),
        (bytes(37) + SNAPSHOT[37:], "version 0, not 1"),
        (b"\0\2" + SNAPSHOT[2:], "version 2, not 1"),
        (SNAPSHOT[:50] + b"\1" + SNAPSHOT[51:], "checksum"),
        (SNAPSHOT + b"left of a longer file", "checksum"),
    ],
)
def test_ix_25_a_damaged_snapshot_is_corrupt(content, reason):
    with pytest.raises(CorruptSnapshotError, match=reason) as caught:
        parse_snapshot(content, path="00000000000000000009.snapshot")
    assert caught.value.path == "00000000000000000009.snapshot"


@pytest.mark.parametrize("count", [3, -1])
def test_a_snapshot_that_cannot_hold_its_count_is_corrupt_although_its_checksum_is_right(count):
    body = count.to_bytes(4, "big", signed=True) + SNAPSHOT[10:]
    with pytest.raises(CorruptSnapshotError, match=f"cannot contain {count} producers"):
        parse_snapshot(b"\0\1" + google_crc32c.value(body).to_bytes(4, "big") + body)


def test_a_snapshot_entry_without_a_data_batch_has_no_sequence_either():
    encoded = bytearray(encode_snapshot([ProducerEntry(1, 2, 7, -5, 3, 10, 0, -9)]))
    assert SNAPSHOT_ENTRY_STRUCT.unpack_from(encoded, 10)[2] == 7
    assert parse_snapshot(encoded) == (ProducerEntry(1, 2, -1, -1, 0, 10, 0, -1),)


entries = st.builds(
    ProducerEntry,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 2**15 - 1),
    last_sequence=st.integers(0, INT32_MAX),
    last_offset=st.integers(0, 2**63 - 1),
    offset_delta=st.integers(0, INT32_MAX),
    timestamp_ms=st.integers(-1, 2**63 - 1),
    coordinator_epoch=st.integers(-1, INT32_MAX),
    current_txn_first_offset=st.integers(-1, 2**63 - 1),
)


@given(st.lists(entries, max_size=8, unique_by=lambda entry: entry.producer_id))
def test_what_a_snapshot_holds_is_what_comes_back(found):
    assert set(parse_snapshot(encode_snapshot(found))) == set(found)


@given(st.binary(max_size=120))
def test_any_bytes_are_a_snapshot_or_corrupt(content):
    try:
        parse_snapshot(content)
    except CorruptSnapshotError as error:
        assert error.advice


def test_ps_12_snapshots_outside_of_the_log_are_not_loaded():
    assert snapshots_in_range([5, 1, 2, 3, 4], log_start_offset=1, log_end_offset=3) == (2, 3)
    assert snapshots_in_range([3, 5], log_start_offset=3, log_end_offset=5) == (5,)
    assert choose_snapshot([5, 1, 2, 3, 4], log_start_offset=1, log_end_offset=3) == 3
    assert choose_snapshot([1, 9], log_start_offset=1, log_end_offset=3) is None


def load(directory, snapshots, *, log_start_offset=0, log_end_offset=100, now_ms=0):
    return load_producer_state(
        Fs(),
        directory,
        snapshots,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        now_ms=now_ms,
        expiration_ms=DAY_MS,
    )


def test_ps_22_a_corrupt_snapshot_is_passed_over_for_the_next_older_one(tmp_path):
    (tmp_path / "00000000000000000009.snapshot").write_bytes(SNAPSHOT[:-1])
    (tmp_path / "00000000000000000005.snapshot").write_bytes(SNAPSHOT)
    loaded = load(tmp_path, [5, 9])
    assert loaded.corrupt_snapshots == (9,)
    assert loaded.state == ProducerState.at(5, SNAPSHOT_ENTRIES)
    assert (tmp_path / "00000000000000000009.snapshot").exists()


def test_ps_22_without_a_readable_snapshot_the_state_begins_at_the_log_start(tmp_path):
    (tmp_path / "00000000000000000009.snapshot").write_bytes(b"")
    assert load(tmp_path, [9], log_start_offset=3).state == ProducerState.at(3)
    assert load(tmp_path, [2], log_start_offset=3).corrupt_snapshots == ()


def test_ps_14_producers_idle_for_the_expiration_time_are_not_loaded(tmp_path):
    idle, busy = ProducerEntry(1, timestamp_ms=1000), ProducerEntry(2, timestamp_ms=1001)
    open_since_long = ProducerEntry(3, timestamp_ms=0, current_txn_first_offset=4)
    (tmp_path / "00000000000000000005.snapshot").write_bytes(encode_snapshot([idle, busy, open_since_long]))
    loaded = load(tmp_path, [5], now_ms=1000 + DAY_MS)
    assert loaded.state.entries == {2: busy, 3: open_since_long}


# ------------------------------------------------------------------------------------------------------------ replay
