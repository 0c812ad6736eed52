"""The twin's formats against the golden vectors, and against the format scenarios of kafka-log 07."""

import random
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.twin import framing, vectors
from tests.twin.batches import (
    CONTROL_BIT,
    LOG_APPEND_TIME,
    NO_TIMESTAMP_TYPE,
    TRANSACTIONAL_BIT,
    ControlType,
    Record,
    RecordHeader,
    assemble_batch,
    decrement_sequence,
    encode_batch,
    encode_empty_batch,
    encode_marker,
    encode_record,
    increment_sequence,
    parse_batch,
    parse_control_key,
    parse_end_transaction_marker,
    sign_batch,
)
from tests.twin.errors import (
    CorruptRecordError,
    CorruptSnapshotError,
    IndexFullError,
    InvalidIndexOffsetError,
    InvalidRecordError,
    UnsupportedCodecError,
)
from tests.twin.indexes import (
    AbortedTransaction,
    IndexBuilder,
    OffsetEntry,
    TimeEntry,
    TransactionIndexBuilder,
    build_indexes,
    collect_aborted,
    encode_offset_index,
    encode_time_index,
    encode_transaction_index,
    lookup_position,
    lookup_timestamp,
    lookup_upper_bound,
    parse_offset_index,
    parse_time_index,
    parse_transaction_index,
)
from tests.twin.legacy import encode_legacy, encode_legacy_record, parse_legacy_batch
from tests.twin.segments import buffer_batches, file_batches, list_segments
from tests.twin.snapshots import ProducerEntry, encode_snapshot, parse_snapshot
from tests.twin.varints import decode_varint, decode_varlong, encode_varint, encode_varlong

BARE = tuple(replace(record, headers=()) for record in vectors.RECORDS)
COMPRESSED = {
    framing.GZIP: vectors.GZIP,
    framing.SNAPPY: vectors.SNAPPY,
    framing.LZ4: vectors.LZ4,
    framing.ZSTD: vectors.ZSTD,
}


def payload_of(records, base_offset=0, base_timestamp=0):
    return b"".join(encode_record(record, base_offset, base_timestamp) for record in records)


def batch_of(payload, count, codec=framing.NONE):
    """Return a batch of magic 2 around any payload, at offset 0."""
    return parse_batch(
        assemble_batch(
            framing.compress(codec, payload),
            base_offset=0,
            last_offset=max(count - 1, 0),
            leader_epoch=0,
            attributes=codec,
            base_timestamp=0,
            max_timestamp=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            count=count,
        )
    )


def single(offset, size_bytes=70, timestamp=0):
    """Return a batch of one record that takes `size_bytes`."""
    value_bytes = 1
    while True:
        data = encode_batch([Record(offset, timestamp, b"k", b"v" * value_bytes)], base_offset=offset, leader_epoch=0)
        if len(data) == size_bytes:
            return parse_batch(data)
        assert len(data) < size_bytes, "no value gives that size"
        value_bytes += 1


# -------------------------------------------------------------------------------------------------- varints, sequences
@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (2147483647, "feffffff0f"),
        (-2147483648, "ffffffff0f"),
    ],
)
def test_bf_07_varints_are_zigzag_groups_of_seven_bits(value, encoded):
    data = bytes.fromhex(encoded)
    assert encode_varint(value) == data
    assert decode_varint(data, 0) == (value, len(data))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (2147483648, "8080808010"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_bf_08_varlongs_take_up_to_ten_bytes(value, encoded):
    data = bytes.fromhex(encoded)
    assert encode_varlong(value) == data
    assert decode_varlong(data, 0) == (value, len(data))


def test_bf_09_a_varint_of_six_bytes_is_refused():
    with pytest.raises(InvalidRecordError):
        decode_varint(bytes.fromhex("ffffffffff01"), 0)
    with pytest.raises(InvalidRecordError):
        decode_varlong(b"\xff" * 10 + b"\x01", 0)
    with pytest.raises(InvalidRecordError):
        decode_varint(b"\x80", 0)


def test_overflowing_bits_of_a_fifth_varint_byte_are_dropped():
    assert decode_varint(bytes.fromhex("ffffffff7f"), 0) == (-2147483648, 5)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_varints_and_varlongs_survive_a_round_trip(small, large):
    data = encode_varint(small) + encode_varlong(large)
    value, position = decode_varint(data, 0)
    assert (value, *decode_varlong(data, position)) == (small, large, len(data))


def test_bf_10_sequences_wrap_to_zero():
    assert [increment_sequence(5, 3), increment_sequence(2147483647, 1), increment_sequence(2147483646, 3)] == [8, 0, 1]
    assert [decrement_sequence(0, 1), decrement_sequence(1, 3), decrement_sequence(8, 3)] == [2147483647, 2147483646, 5]


# -------------------------------------------------------------------------------------------------------------- batches
def test_bf_01_three_records_encode_to_the_golden_batch():
    assert encode_batch(vectors.RECORDS, base_offset=100, leader_epoch=5) == vectors.PLAIN


def test_bf_02_the_golden_batch_decodes_to_its_records():
    batch = parse_batch(vectors.PLAIN)
    assert batch.records() == vectors.RECORDS
    assert (batch.crc, batch.max_timestamp, batch.count, batch.last_offset) == (0x8CB69F2A, 1010, 3, 102)
    assert (batch.leader_epoch, batch.producer_id, batch.last_sequence, batch.delete_horizon_ms) == (5, -1, -1, None)


def test_a_transactional_batch_of_a_producer_equals_the_golden_one():
    data = encode_batch(
        vectors.RECORDS,
        base_offset=100,
        leader_epoch=5,
        producer_id=7,
        producer_epoch=3,
        base_sequence=12,
        transactional=True,
    )
    assert data == vectors.TRANSACTIONAL
    batch = parse_batch(data)
    assert batch.last_sequence == 14
    assert [batch.sequence_of(record) for record in batch.records()] == [12, 13, 14]


def test_bf_03_the_leader_epoch_is_outside_of_the_checksum():
    assert parse_batch(vectors.PLAIN[:12] + struct.pack(">i", 99) + vectors.PLAIN[16:]).is_valid()


@pytest.mark.parametrize("position", range(len(vectors.PLAIN)))
def test_bf_05_a_flipped_byte_breaks_the_checksum_unless_it_is_the_base_offset_or_the_leader_epoch(position):
    flipped = bytearray(vectors.PLAIN)
    flipped[position] ^= 0x10
    if 8 <= position < 12:
        with pytest.raises(CorruptRecordError):
            parse_batch(bytes(flipped))
    else:
        assert parse_batch(bytes(flipped)).is_valid() == (position < 17)


def test_bf_06_a_batch_shorter_than_its_header_is_corrupt():
    with pytest.raises(CorruptRecordError):
        parse_batch(vectors.PLAIN[:8] + struct.pack(">i", 40) + vectors.PLAIN[12:52])


@pytest.mark.parametrize("codec", range(5))
def test_bf_11_a_record_after_the_counted_ones_is_invalid(codec):
    with pytest.raises(InvalidRecordError, match="still remaining"):
        batch_of(payload_of([Record(0, 0, b"a", b"1"), Record(1, 0, b"b", b"2")]), 1, codec).records()


@pytest.mark.parametrize("codec", range(5))
def test_bf_12_a_counted_record_that_is_missing_is_invalid(codec):
    with pytest.raises(InvalidRecordError):
        batch_of(payload_of([Record(0, 0, b"a", b"1"), Record(1, 0, b"b", b"2")]), 3, codec).records()


def test_bf_13_a_negative_record_count_is_invalid():
    with pytest.raises(InvalidRecordError):
        batch_of(payload_of([Record(0, 0, b"a", b"1")]), -1).records()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("000000026102310000", id="bf-14: one byte too many"),
        pytest.param("000000026102", id="bf-14: cut short"),
        pytest.param("0000000261023101", id="bf-15: header count -1"),
        pytest.param("000000026102317e", id="bf-15: more headers than bytes"),
        pytest.param("00000002610231020100", id="bf-15: null header key"),
        pytest.param("00000008610231", id="key reaches beyond the batch"),
    ],
)
def test_bf_14_bf_15_a_record_that_contradicts_its_length_is_invalid(body):
    data = bytes.fromhex(body)
    with pytest.raises(InvalidRecordError):
        batch_of(encode_varint(len(data)) + data, 1).records()


def test_bf_16_append_time_replaces_every_timestamp_and_leaves_the_deltas():
    data = encode_batch(vectors.RECORDS, base_offset=100, leader_epoch=5, append_time=5000)
    assert data == vectors.APPEND_TIME
    batch = parse_batch(data)
    assert batch.timestamp_type == LOG_APPEND_TIME
    assert (batch.base_timestamp, {record.timestamp for record in batch.records()}) == (1000, {5000})


@pytest.mark.parametrize("codec", COMPRESSED)
def test_bf_17_every_codec_reads_as_written_by_kafka_and_by_the_twin(codec):
    batch = parse_batch(COMPRESSED[codec])
    assert batch.codec == codec
    assert batch.is_valid()
    assert batch.records() == vectors.RECORDS
    ours = encode_batch(vectors.RECORDS, base_offset=100, leader_epoch=5, codec=codec)
    assert parse_batch(ours).records() == vectors.RECORDS
    assert ours == COMPRESSED[codec]


def test_codec_bits_5_to_7_are_unknown():
    batch = parse_batch(sign_batch(vectors.PLAIN[:22] + b"\x05" + vectors.PLAIN[23:]))
    with pytest.raises(UnsupportedCodecError):
        batch.records()


def test_bf_33_an_empty_header_has_no_records_and_its_last_sequence():
    with_producer = parse_batch(
        encode_batch(
            vectors.RECORDS, base_offset=100, leader_epoch=5, producer_id=7, producer_epoch=3, base_sequence=12
        )
    )
    assert encode_empty_batch(with_producer) == vectors.EMPTY
    batch = parse_batch(vectors.EMPTY)
    assert batch.records() == ()
    assert batch.is_valid()
    assert (batch.count, batch.last_offset, batch.last_sequence) == (0, 102, 14)
    assert (batch.base_timestamp, batch.max_timestamp, len(batch.data)) == (-1, 1010, 61)


def test_a_batch_without_records_never_looks_at_its_payload():
    assert batch_of(b"anything", 0).records() == ()


def test_bf_34_an_empty_value_is_no_tombstone_and_an_empty_key_is_a_key():
    (record,) = batch_of(payload_of([Record(0, 0, b"", b"")]), 1).records()
    assert (record.key, record.value) == (b"", b"")


blobs = st.one_of(st.none(), st.binary(max_size=30))


@given(
    codec=st.integers(0, 4),
    horizon_ms=st.one_of(st.none(), st.integers(0, 2**62)),
    fields=st.lists(
        st.tuples(
            st.integers(1, 10**6),
            st.integers(-1, 2**62),
            blobs,
            blobs,
            st.lists(st.builds(RecordHeader, st.binary(max_size=5), blobs), max_size=2),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_batches_survive_a_round_trip(codec, horizon_ms, fields):
    records, offset = [], 1000
    for delta, timestamp, key, value, headers in fields:
        offset += delta
        records.append(Record(offset, timestamp, key, value, tuple(headers)))
    batch = parse_batch(encode_batch(records, base_offset=1000, codec=codec, delete_horizon_ms=horizon_ms))
    assert batch.is_valid()
    assert batch.records() == tuple(records)
    assert batch.delete_horizon_ms == horizon_ms
    assert (batch.last_offset, batch.max_timestamp) == (offset, max(record.timestamp for record in records))


# --------------------------------------------------------------------------------------------------------------- codecs
def test_bf_18_snappy_reads_one_raw_block_and_concatenated_streams():
    stream = framing.compress(framing.SNAPPY, b"hello")
    assert framing.decompress(framing.SNAPPY, stream[20:]) == b"hello"
    assert framing.decompress(framing.SNAPPY, stream + stream) == b"hellohello"
    with pytest.raises(CorruptRecordError):
        framing.decompress(framing.SNAPPY, b"")
    with pytest.raises(CorruptRecordError):
        framing.decompress(framing.SNAPPY, stream[:-1])


def test_bf_19_the_broken_lz4_header_checksum_is_for_magic_0_only():
    broken = framing.compress(framing.LZ4, b"hello", magic=0)
    right = framing.compress(framing.LZ4, b"hello")
    assert (broken[6], right[6]) == (0x1A, 0x82)
    assert framing.decompress(framing.LZ4, broken, magic=0) == b"hello"
    for magic in (1, 2):
        with pytest.raises(CorruptRecordError, match="descriptor corrupted"):
            framing.decompress(framing.LZ4, broken, magic=magic)
    assert {framing.decompress(framing.LZ4, right, magic=magic) for magic in (0, 1, 2)} == {b"hello"}


def test_bf_20_lz4_needs_independent_blocks_and_an_end_mark_and_ignores_what_follows_it():
    frame = framing.compress(framing.LZ4, b"hello")
    for damaged in (frame[:4] + b"\x40" + frame[5:], frame[:-4]):
        with pytest.raises(CorruptRecordError):
            framing.decompress(framing.LZ4, damaged, magic=0)
    assert framing.decompress(framing.LZ4, frame + b"xx") == b"hello"


def test_bf_21_lz4_stores_incompressible_blocks_raw():
    frame = framing.compress(framing.LZ4, random.Random(1).randbytes(64))
    assert frame[7:11] == struct.pack("<I", 64 | 0x80000000)
    assert len(frame) == 7 + 4 + 64 + 4


@pytest.mark.parametrize("codec", range(1, 5))
def test_every_codec_carries_more_than_one_block_and_refuses_a_cut_stream(codec):
    data = random.Random(codec).randbytes(1000) * 200
    stream = framing.compress(codec, data)
    assert framing.decompress(codec, stream) == data
    with pytest.raises(CorruptRecordError):
        framing.decompress(codec, stream[: len(stream) // 2])


def test_gzip_and_zstd_read_concatenated_streams():
    for codec in (framing.GZIP, framing.ZSTD):
        assert framing.decompress(codec, framing.compress(codec, b"a") + framing.compress(codec, b"b")) == b"ab"


# --------------------------------------------------------------------------------------------------------------- legacy
def legacy(data):
    return [batch for _position, batch in buffer_batches(data)]


def test_bf_22_uncompressed_legacy_records_are_batches_of_one():
    v0, v1 = legacy(vectors.V0), legacy(vectors.V1)
    assert all(batch.is_valid() for batch in v0 + v1)
    assert [batch.records() for batch in v0] == [(replace(record, timestamp=-1),) for record in BARE]
    assert [batch.records() for batch in v1] == [(record,) for record in BARE]
    assert {batch.timestamp_type for batch in v0} == {NO_TIMESTAMP_TYPE}
    assert encode_legacy(BARE, magic=0) == vectors.V0
    assert encode_legacy(BARE, magic=1) == vectors.V1


@pytest.mark.parametrize("data", [vectors.V1_GZIP, vectors.V1_LZ4])
def test_bf_23_a_wrapper_of_magic_1_has_relative_offsets(data):
    (batch,) = legacy(data)
    assert batch.is_valid()
    assert batch.records() == BARE
    assert (batch.base_offset, batch.last_offset, batch.max_timestamp) == (100, 102, 1010)


@pytest.mark.parametrize("data", [vectors.V0_GZIP, vectors.V0_LZ4])
def test_a_wrapper_of_magic_0_has_absolute_offsets(data):
    (batch,) = legacy(data)
    assert batch.is_valid()
    assert [(record.offset, record.timestamp) for record in batch.records()] == [(100, -1), (101, -1), (102, -1)]


def inner(records, magic):
    return b"".join(encode_legacy_record(record, magic=magic) for record in records)


def wrapper(offset, payload, magic=1, attributes=framing.GZIP, timestamp=0):
    value = None if payload is None else framing.compress(framing.GZIP, payload)
    return parse_legacy_batch(
        encode_legacy_record(Record(offset, timestamp, None, value), magic=magic, attributes=attributes)
    )


def test_bf_24_wrapper_offset_0_means_base_0_and_a_lower_one_than_inner_is_invalid():
    payload = inner([Record(offset, 0, b"k", b"v") for offset in (0, 1, 2)], magic=1)
    assert [record.offset for record in wrapper(0, payload).records()] == [0, 1, 2]
    with pytest.raises(InvalidRecordError):
        wrapper(1, payload).records()


def test_bf_25_inner_offsets_of_magic_0_are_taken_as_they_are():
    payload = inner([Record(offset, 0, b"k", b"v") for offset in (5, 6, 9)], magic=0)
    assert [record.offset for record in wrapper(77, payload, magic=0).records()] == [5, 6, 9]


def test_bf_26_legacy_wrappers_that_kafka_refuses():
    payload = inner([Record(0, 0, b"k", b"v")], magic=1)
    nested = encode_legacy_record(Record(0, 0, None, payload), magic=1, attributes=framing.GZIP)
    refused = [
        wrapper(0, payload, attributes=framing.ZSTD),
        wrapper(0, nested),
        wrapper(0, b""),
        wrapper(0, None),
    ]
    for batch in refused:
        with pytest.raises(InvalidRecordError):
            batch.records()


def test_an_incomplete_last_inner_record_is_ignored_and_a_small_one_is_corrupt():
    payload = inner([Record(0, 0, b"k", b"v"), Record(1, 0, b"k", b"v")], magic=1)
    assert len(wrapper(0, payload[:-1]).records()) == 1
    with pytest.raises(CorruptRecordError):
        wrapper(0, payload[:8] + struct.pack(">i", 13) + payload[12:]).records()


def test_bf_27_a_wrapper_of_append_time_gives_its_timestamp_to_all():
    data = encode_legacy(
        [Record(offset, offset, b"k", b"v") for offset in (1, 2, 3)], magic=1, codec=framing.GZIP, append_time=5000
    )
    (batch,) = legacy(data)
    assert [(record.offset, record.timestamp) for record in batch.records()] == [(1, 5000), (2, 5000), (3, 5000)]
    assert {batch.records()[0].timestamp for batch in legacy(vectors.V1_APPEND_TIME)} == {5000}
    assert encode_legacy(BARE, magic=1, append_time=5000) == vectors.V1_APPEND_TIME


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", range(4))
def test_legacy_sets_survive_a_round_trip(magic, codec):
    records = [Record(40 + index, 7 * index, b"key%d" % index, b"v" * index) for index in range(9)]
    expected = [replace(record, timestamp=-1) for record in records] if magic == 0 else records
    batches = legacy(encode_legacy(records, magic=magic, codec=codec))
    assert [record for batch in batches for record in batch.records()] == expected
    assert len(batches) == (9 if codec == framing.NONE else 1)


# ------------------------------------------------------------------------------------------------------ control records
def test_bf_28_markers_encode_and_decode_to_the_golden_ones():
    for control_type, data in ((ControlType.COMMIT, vectors.COMMIT), (ControlType.ABORT, vectors.ABORT)):
        assert (
            encode_marker(
                control_type,
                offset=20,
                timestamp=2000,
                leader_epoch=5,
                producer_id=7,
                producer_epoch=3,
                coordinator_epoch=9,
            )
            == data
        )
        batch = parse_batch(data)
        assert batch.control_type() is control_type
        assert batch.attributes == TRANSACTIONAL_BIT | CONTROL_BIT
        assert (batch.base_offset, batch.last_offset, batch.base_sequence) == (20, 20, -1)
        assert parse_end_transaction_marker(batch.records()[0].value) == 9
    assert parse_batch(vectors.LEADER_CHANGE).control_type() is ControlType.LEADER_CHANGE


def test_bf_29_control_keys_of_other_types_versions_and_lengths():
    assert parse_control_key(bytes.fromhex("00000063")) is ControlType.UNKNOWN
    assert parse_control_key(bytes.fromhex("00050001")) is ControlType.COMMIT
    assert parse_control_key(bytes.fromhex("00000000ffff")) is ControlType.ABORT
    for key in (None, b"\x00\x00\x00", bytes.fromhex("ffff0001")):
        with pytest.raises(InvalidRecordError):
            parse_control_key(key)


def test_bf_30_end_transaction_values_of_other_versions_and_lengths():
    assert parse_end_transaction_marker(bytes.fromhex("000100000007ffffffff")) == 7
    for value in (None, bytes(5), bytes.fromhex("ffff00000007")):
        with pytest.raises(InvalidRecordError):
            parse_end_transaction_marker(value)


# ------------------------------------------------------------------------------------------------------------ iteration
def test_bf_31_a_file_ends_silently_at_an_incomplete_batch():
    assert len(list(file_batches(vectors.PLAIN + b"\xff" * 17))) == 1
    assert len(list(file_batches(vectors.PLAIN + bytes(8) + struct.pack(">i", 1000) + bytes(6)))) == 1
    assert len(list(file_batches(vectors.PLAIN * 3))) == 3
    with pytest.raises(CorruptRecordError):
        list(file_batches(vectors.PLAIN + bytes(8) + struct.pack(">i", 13) + bytes(6)))


def test_bf_32_a_buffer_is_strict_about_sizes_and_magics():
    assert len(list(buffer_batches(vectors.PLAIN + b"\xff" * 11))) == 1
    assert len(list(buffer_batches(vectors.PLAIN + vectors.PLAIN[:-1]))) == 1
    for magic in (3, 255):
        with pytest.raises(CorruptRecordError):
            list(buffer_batches(vectors.PLAIN[:16] + bytes([magic]) + vectors.PLAIN[17:]))
    with pytest.raises(CorruptRecordError):
        list(buffer_batches(bytes(8) + struct.pack(">i", 13)))


# -------------------------------------------------------------------------------------------------------------- indexes
def test_ix_01_an_offset_index_holds_as_many_entries_as_its_bytes():
    builder = IndexBuilder(45, interval_bytes=0, max_index_bytes=240)
    with pytest.raises(IndexFullError):
        for index in range(100):
            builder.append(replace(single(45 + index), max_timestamp=-1))
    assert len(builder.offset_entries) == 30


def test_ix_01_look_ups_find_the_entry_at_or_below_the_target():
    entries = [OffsetEntry(46 + index, index) for index in range(30)]
    assert lookup_position([], 92) == 0
    assert [lookup_position(entries, target) for target in (45, 46, 75, 92)] == [0, 0, 29, 29]


def test_ix_02_offsets_must_increase():
    for last, following in ((51, 50), (51, 51)):
        builder = IndexBuilder(0, interval_bytes=0)
        builder.append(single(49))
        builder.append(single(last))
        with pytest.raises(InvalidIndexOffsetError):
            builder.append(single(following))


def test_ix_03_the_upper_bound_is_the_first_entry_at_or_after_a_position():
    entries = [OffsetEntry(45, 0), OffsetEntry(46, 10), OffsetEntry(47, 23), OffsetEntry(48, 37)]
    asked = [(0, 5), (0, 10), (0, 22), (0, 23), (10, 24), (37, 1), (0, 200)]
    assert [lookup_upper_bound(entries, position, size) for position, size in asked] == [46, 46, 47, 47, 48, None, None]
    assert lookup_upper_bound([], 0, 5) is None


def test_ix_07_offsets_must_lie_within_2_31_of_the_base():
    builder = IndexBuilder(45)
    builder.append(single(45 + 2147483647))
    for offset in (44, 45 + 2147483648):
        with pytest.raises(InvalidIndexOffsetError):
            IndexBuilder(45).append(single(offset))


def test_ix_08_time_look_ups_find_the_entry_at_or_below_the_target():
    entries = [TimeEntry(10 * index, 45 + 10 * index) for index in range(1, 30)]
    assert lookup_timestamp([], 100, 45) == TimeEntry(-1, 45)
    assert [lookup_timestamp(entries, target, 45) for target in (9, 25, 30)] == [
        TimeEntry(-1, 45),
        TimeEntry(20, 65),
        TimeEntry(30, 75),
    ]


def test_ix_08_ix_09_a_time_index_keeps_its_last_slot_for_the_end_of_the_segment():
    builder = IndexBuilder(0, interval_bytes=0, max_index_bytes=36)
    for index in range(3):
        builder.append(single(index, timestamp=index))
    with pytest.raises(IndexFullError):
        builder.append(single(3, timestamp=3))
    _offset_index, time_index = builder.finish()
    assert parse_time_index(time_index, 0) == [TimeEntry(1, 1), TimeEntry(2, 2), TimeEntry(3, 3)]


def test_ix_10_equal_timestamps_and_no_timestamp_make_no_time_entry():
    batches = [single(offset, timestamp=timestamp) for offset, timestamp in enumerate([5, 5, 4, 9, 9])]
    _offset_index, time_index = build_indexes(batches, 0, interval_bytes=0)
    assert parse_time_index(time_index, 0) == [TimeEntry(5, 0), TimeEntry(9, 3)]
    assert build_indexes([single(0, timestamp=-1), single(1, timestamp=-1)], 0, interval_bytes=0)[1] == b""


def test_ix_10_a_time_index_refuses_offsets_that_go_back():
    builder = IndexBuilder(0, interval_bytes=100)
    for offset, timestamp in ((50, 5), (51, 5), (52, 5), (20, 9)):
        builder.append(single(offset, timestamp=timestamp))
    assert builder.time_entries == [TimeEntry(5, 50)]
    with pytest.raises(InvalidIndexOffsetError):
        builder.finish()


FOUR_ABORTED = [
    AbortedTransaction(0, 0, 10, 11),
    AbortedTransaction(1, 5, 15, 13),
    AbortedTransaction(2, 18, 35, 25),
    AbortedTransaction(3, 32, 50, 40),
]


@pytest.mark.parametrize(
    ("log_start", "upper_bound", "found"),
    [(0, 100, 4), (0, 32, 3), (0, 35, 4), (10, 35, 4), (11, 35, 3), (20, 41, 2)],
)
def test_ix_14_aborted_transactions_are_collected_by_range(log_start, upper_bound, found, tmp_path):
    (tmp_path / f"{0:020d}.log").write_bytes(b"")
    (tmp_path / f"{0:020d}.txnindex").write_bytes(encode_transaction_index(FOUR_ABORTED))
    segments = list_segments(tmp_path)
    collected = collect_aborted(segments, log_start, upper_bound, log_start_offset=log_start)
    wanted = [txn for txn in FOUR_ABORTED if txn.last_offset >= log_start and txn.first_offset < upper_bound]
    assert collected == wanted
    assert len(collected) == found


def test_collecting_ends_at_the_entry_whose_last_stable_offset_reaches_the_bound(tmp_path):
    for base, entries in ((0, FOUR_ABORTED[:2]), (20, FOUR_ABORTED[2:])):
        (tmp_path / f"{base:020d}.log").write_bytes(b"")
        (tmp_path / f"{base:020d}.txnindex").write_bytes(encode_transaction_index(entries))
    segments = list_segments(tmp_path)
    assert collect_aborted(segments, 0, 12, log_start_offset=0) == FOUR_ABORTED[:2]
    assert collect_aborted(segments, 19, 36, log_start_offset=0) == FOUR_ABORTED
    assert collect_aborted(segments, 20, 36, log_start_offset=0) == FOUR_ABORTED[2:]


@pytest.mark.parametrize("last_offset", [15, 10])
def test_ix_16_aborted_transactions_must_end_in_order(last_offset):
    builder = TransactionIndexBuilder()
    builder.append(AbortedTransaction(1, 0, 15, 16))
    with pytest.raises(InvalidIndexOffsetError, match="does not follow 15"):
        builder.append(AbortedTransaction(2, 3, last_offset, 17))


def test_ix_16_the_order_starts_afresh_with_a_reopened_file_and_goes_back_with_a_truncation():
    builder = TransactionIndexBuilder(FOUR_ABORTED)
    builder.append(AbortedTransaction(4, 0, 20, 21))
    builder.truncate_to(50)
    with pytest.raises(InvalidIndexOffsetError, match="does not follow 35"):
        builder.append(AbortedTransaction(5, 30, 33, 34))
    builder.append(AbortedTransaction(5, 40, 45, 46))
    assert [entry.last_offset for entry in builder.entries] == [10, 15, 35, 45]


def test_ix_18_incomplete_trailing_bytes_of_a_transaction_index_are_ignored():
    assert parse_transaction_index(encode_transaction_index(FOUR_ABORTED)[:50]) == FOUR_ABORTED[:1]


def test_ix_19_golden_index_files():
    offset_entries = [OffsetEntry(55, 4096), OffsetEntry(70, 8300)]
    time_entries = [TimeEntry(1000, 55), TimeEntry(2000, 70)]
    aborted = [AbortedTransaction(7, 100, 200, 150)]
    assert encode_offset_index(offset_entries, 45) == vectors.OFFSET_INDEX
    assert parse_offset_index(vectors.OFFSET_INDEX, 45) == offset_entries
    assert encode_time_index(time_entries, 45) == vectors.TIME_INDEX
    assert parse_time_index(vectors.TIME_INDEX, 45) == time_entries
    assert encode_transaction_index(aborted) == vectors.TRANSACTION_INDEX
    assert parse_transaction_index(vectors.TRANSACTION_INDEX) == aborted


def test_ix_20_an_entry_follows_more_than_the_interval_of_bytes():
    batches = [single(offset, 999, timestamp=1000 + offset) for offset in range(12)]
    offset_index, time_index = build_indexes(batches, 0, interval_bytes=4096)
    assert parse_offset_index(offset_index, 0) == [OffsetEntry(5, 4995), OffsetEntry(10, 9990)]
    assert parse_time_index(time_index, 0) == [TimeEntry(1005, 5), TimeEntry(1010, 10), TimeEntry(1011, 11)]


def test_ix_21_interval_0_indexes_every_batch_but_the_first():
    offset_index, _time_index = build_indexes([single(offset) for offset in range(4)], 0, interval_bytes=0)
    assert parse_offset_index(offset_index, 0) == [OffsetEntry(1, 70), OffsetEntry(2, 140), OffsetEntry(3, 210)]


def test_batches_of_70_bytes_and_interval_100_give_the_entries_of_the_example():
    offset_index, _time_index = build_indexes([single(offset) for offset in range(7)], 0, interval_bytes=100)
    assert parse_offset_index(offset_index, 0) == [OffsetEntry(2, 140), OffsetEntry(4, 280), OffsetEntry(6, 420)]


# ------------------------------------------------------------------------------------------------------------ snapshots
def test_ix_25_the_golden_snapshot_reads_and_writes():
    entries = {
        1: ProducerEntry(1, 2, 1, 2, 3, -1, 3, 100),
        11: ProducerEntry(11, 12, timestamp=123456, coordinator_epoch=13),
    }
    assert parse_snapshot(vectors.SNAPSHOT) == entries
    assert encode_snapshot(entries) == vectors.SNAPSHOT
    assert encode_snapshot({}) == vectors.EMPTY_SNAPSHOT
    assert parse_snapshot(vectors.EMPTY_SNAPSHOT) == {}


@pytest.mark.parametrize(
    "damaged",
    [
        vectors.SNAPSHOT[: len(vectors.SNAPSHOT) // 2],
        b"",
        bytes(37) + vectors.SNAPSHOT[37:],
        b"\x00\x02" + vectors.SNAPSHOT[2:],
        vectors.SNAPSHOT[:-1] + b"\x00",
    ],
)
def test_ix_25_damaged_snapshots_are_corrupt(damaged):
    with pytest.raises(CorruptSnapshotError):
        parse_snapshot(damaged)
